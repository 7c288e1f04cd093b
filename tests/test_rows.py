"""
Messages into Arrow: both scanners against a slow decoder that looks at one message at a time.

The bytes are laid out as nats-server 2.15.1 sends them; `live/` reads the same from a real one.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_jetstream import rows, wire
from pyspark_jetstream.errors import SubjectDecodeError
from pyspark_jetstream.rows import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    ConsumerFrames,
    DirectFrames,
    RowBuilder,
    arrow_schema,
    user_headers,
)

SEEDS = [1, 2, random.randrange(2**32)]
"""The last one is new in every run; a failing test shows it in its name."""

SID = 7
INBOX = "_INBOX.abc"
PIN = "cNbDmxzpQ1J7Kn1Q2DBvFH"
TAIL = f"Nats-Pin-Id: {PIN}\r\n\r\n".encode()
PREFIX = f"HMSG {INBOX} {SID} ".encode()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOOKALIKES = [
    b"",
    b"\r\n",
    b"HMSG a.b 7 $JS.ACK.S.c.1.1.1.1.0 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"MSG _INBOX.abc 7 3\r\nabc\r\nPING\r\n",
    TAIL,
    b"NATS/1.0 404 Not Found\r\n\r\n",
    bytes(range(256)),
]


def block(pairs) -> bytes:
    return wire.header_block(pairs)


def hmsg(subject: str, reply: str, headers: bytes, data: bytes) -> bytes:
    to = f"{subject} {SID} {reply}" if reply else f"{subject} {SID}"
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (
        to.encode(), len(headers), len(headers) + len(data), headers, data,
    )  # fmt: skip


class Message:
    """One stored message and what a read should make of it."""

    def __init__(self, sequence, subject="a.b", data=b"x", headers=(), nanos=1_700_000_000 * 10**9):
        self.sequence, self.subject, self.data = sequence, subject, data
        self.headers, self.nanos = list(headers), nanos

    def delivered(self, dseq: int, pending: int, prefix: str = "$JS.ACK.S.c.1", tail="") -> bytes:
        """As a pinned consumer delivers it."""
        reply = f"{prefix}.{self.sequence}.{dseq}.{self.nanos}.{pending}{tail}"
        return hmsg(self.subject, reply, block([*self.headers, ("Nats-Pin-Id", PIN)]), self.data)

    def got(self, before: int, pending: int) -> bytes:
        """As a batched direct get sends it."""
        whole, part = divmod(self.nanos, 10**9)
        fraction = f".{part:09d}".rstrip("0").rstrip(".")
        stamp = (EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"
        own = [
            ("Nats-Stream", "S"),
            ("Nats-Subject", self.subject),
            ("Nats-Sequence", str(self.sequence)),
            ("Nats-Time-Stamp", stamp),
            ("Nats-Num-Pending", str(pending)),
            ("Nats-Last-Sequence", str(before)),
        ]
        return hmsg(INBOX, "", block([*self.headers, *own]), self.data)

    def row(self, partition: int, with_headers: bool) -> dict:
        """The row by the slowest way there is."""
        row = {
            "subject": self.subject,
            "data": self.data,
            "sequence": self.sequence,
            "timestamp": EPOCH + timedelta(microseconds=self.nanos // 1000),
            "partition": partition,
            "stream": "S",
        }
        if with_headers:
            found = {}
            for name, value in self.headers:
                if name.lower() not in rows.SERVER_HEADERS:
                    found.setdefault(name, []).append(value)
            row["headers"] = list(found.items()) or None
        return row


def random_message(rng: random.Random, sequence: int) -> Message:
    headers = []
    if rng.random() < 0.4:
        names, values = ["A", "a", "X-Trace", "\u00fc"], ["", "v", "a: b"]
        headers = [(rng.choice(names), rng.choice(values)) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.2:
        # What a message that was delivered or republished before carries along.
        headers += [
            ("Nats-Stream", "STALE"), ("Nats-Subject", "stale"), ("Nats-Sequence", "999999"),
            ("Nats-Time-Stamp", "2001-01-01T00:00:00Z"), ("Nats-Last-Sequence", "5"),
            ("Nats-Pin-Id", "stale"),
        ]  # fmt: skip
    data = rng.choice(LOOKALIKES) if rng.random() < 0.4 else rng.randbytes(rng.randint(0, 300))
    if rng.random() < 0.003:
        data = rng.randbytes(1 << 20)
    return Message(
        sequence,
        rng.choice(["a", "a.b.c", "fl\u00fcge.\u6771\u4eac", "x" * 200, "$weird.{}.\u00a0"]),
        data,
        headers,
        rng.choice([0, 1, 999, 1_700_000_000_123_456_789, rng.randrange(2**60)]),
    )


def random_messages(rng: random.Random, count: int) -> list[Message]:
    sequence = rng.choice([0, 2**53 - 3, 2**62])
    return [
        random_message(rng, sequence := sequence + rng.choice([1, 1, 1, rng.randint(2, 1000)]))
        for _ in range(count)
    ]


def fed(rng: random.Random, stream: bytes, scan) -> None:
    """Hands `stream` to a scanner through buffers that end at random points."""
    buffer, pos, at = b"", 0, 0
    while at < len(stream) or pos < len(buffer):
        step = rng.choice([1, 7, 100, 5000, 1 << 20])
        buffer = buffer[pos:] + stream[at : at + step]
        at += step
        pos = scan(buffer, 0)
        assert at < len(stream) or pos == len(buffer), buffer[pos : pos + 200]


@pytest.mark.parametrize("with_headers", [False, True], ids=["plain", "headers"])
@pytest.mark.parametrize("domain", [0, 11, 12], ids=["v1", "v2", "v2-random"])
@pytest.mark.parametrize("seed", SEEDS)
def test_consumer_frames_against_the_slow_decoder(with_headers, domain, seed):
    """
    Any deliveries, cut anywhere, become exactly the rows that a decoder of single messages makes,
    whether ack subjects have 9 tokens, or 11 or 12 with a domain.
    """
    rng = random.Random(seed)
    messages = random_messages(rng, 150)
    prefix = "$JS.ACK.hub.hash.S.c.1" if domain else "$JS.ACK.S.c.1"
    tail = ".rnd" if domain == 12 else ""
    stream = b"".join(m.delivered(i, 150 - i, prefix, tail) for i, m in enumerate(messages, 1))
    frames, builder = ConsumerFrames(with_headers), RowBuilder("S", with_headers)
    found, dseqs = [], []

    def flush() -> None:
        facts = builder.deliveries(frames)
        dseqs.extend(facts.column("dseq").to_pylist())
        found.append(builder.consumer_batch(frames, facts, 3, 0, 2**63 - 1))
        frames.clear()

    def scan(buffer: bytes, pos: int) -> int:
        pos = frames.scan(buffer, pos, SID, TAIL)
        if frames.full or (len(frames) and rng.random() < 0.1):
            flush()
        return pos

    fed(rng, stream, scan)
    if len(frames):
        flush()

    assert all(batch.schema == arrow_schema(with_headers) for batch in found)
    assert [row for batch in found for row in batch.to_pylist()] == [
        m.row(3, with_headers) for m in messages
    ]
    assert dseqs == list(range(1, 151))


@pytest.mark.parametrize("with_headers", [False, True], ids=["plain", "headers"])
@pytest.mark.parametrize("mixed", [False, True], ids=["one-shape", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_direct_frames_against_the_slow_decoder(with_headers, mixed, seed):
    """
    Any replies of a direct get, cut anywhere, become exactly the rows that a decoder of single
    messages makes, with and without headers of their own.
    """
    rng = random.Random(seed)
    messages = random_messages(rng, 150)
    if not mixed:
        for message in messages:
            message.headers = [("A", "1"), ("Nats-Subject", "stale")]
    before = [0, *(m.sequence for m in messages)]
    stream = b"".join(m.got(before[i], 150 - i) for i, m in enumerate(messages))
    frames, builder = DirectFrames("S", with_headers), RowBuilder("S", with_headers)
    found, places = [], []

    def flush() -> None:
        places.extend(zip(frames.ordinals, map(int, frames.pendings), strict=True))
        found.append(builder.direct_batch(frames, 0, 2**63 - 1, 3, None))
        frames.clear()

    def scan(buffer: bytes, pos: int) -> int:
        pos = frames.scan(buffer, pos, PREFIX)
        if frames.full or (len(frames) and rng.random() < 0.1):
            flush()
        return pos

    fed(rng, stream, scan)
    if len(frames):
        flush()

    assert all(batch.schema == arrow_schema(with_headers) for batch in found)
    assert [row for batch in found for row in batch.to_pylist()] == [
        m.row(3, with_headers) for m in messages
    ]
    assert places == [(i, 150 - i) for i in range(150)]


@pytest.mark.parametrize("seed", SEEDS)
def test_direct_frames_of_one_beginning(seed):
    """
    With a beginning given, messages of other subjects are counted and dropped, whatever stale
    subjects they carry; the first message of a request stays for the count to be checked against.
    """
    rng = random.Random(seed)
    messages = random_messages(rng, 150)
    mine = messages[0].subject[:1]
    wanted = [i for i, m in enumerate(messages) if i == 0 or m.subject.startswith(mine)]
    before = [0, *(m.sequence for m in messages)]
    stream = b"".join(m.got(before[i], 150 - i) for i, m in enumerate(messages))
    frames, builder = DirectFrames("S", True), RowBuilder("S", True)
    fed(rng, stream, lambda buffer, pos: frames.scan(buffer, pos, PREFIX, mine.encode()))
    batch = builder.direct_batch(frames, 0, 2**63 - 1, 3, None)

    assert frames.seen == 150
    assert frames.ordinals == wanted
    assert list(map(int, frames.pendings)) == [150 - i for i in wanted]
    assert batch.to_pylist() == [messages[i].row(3, True) for i in wanted]


def test_schema_is_sparks():
    """
    The columns are exactly those of the design, with the types Spark takes.
    """
    headers = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))

    assert arrow_schema(False) == pa.schema(
        [
            ("subject", pa.string()),
            ("data", pa.binary()),
            ("sequence", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("partition", pa.int32()),
            ("stream", pa.string()),
        ]
    )
    assert arrow_schema(True).field("headers").type == headers


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], None),
        ([("Nats-Stream", "S"), ("nats-PIN-id", "p")], None),
        ([("A", "1"), ("B", "2"), ("A", "3")], [("A", ["1", "3"]), ("B", ["2"])]),
        ([("a", "1"), ("A", "2")], [("a", ["1"]), ("A", ["2"])]),
        ([("Nats-Msg-Id", "m"), ("Nats-TTL", "5")], [("Nats-Msg-Id", ["m"]), ("Nats-TTL", ["5"])]),
        ([("Nats-Marker-Reason", "MaxAge")], [("Nats-Marker-Reason", ["MaxAge"])]),
        ([("KV-Operation", "DEL")], [("KV-Operation", ["DEL"])]),
        ([("Nats-Stream-Source", "x"), ("E", "")], [("E", [""])]),
    ],
    ids=str,
)
def test_user_headers(pairs, expected):
    """
    Headers keep order, case and repetition; what servers add is left out, what publishers and
    markers say stays.
    """
    assert user_headers(block(pairs).removeprefix(b"NATS/1.0\r\n")) == expected


def scanned(stream: bytes) -> tuple[ConsumerFrames, int]:
    frames = ConsumerFrames(False)
    return frames, frames.scan(stream, 0, SID, TAIL)


@pytest.mark.parametrize(
    "stop",
    [
        b"PING\r\n",
        b"MSG a 7 $JS.ACK.S.c.1.1.1.1.0 1\r\nx\r\n",
        b"HMSG _INBOX.x 7 16 16\r\nNATS/1.0 100\r\n\r\n\r\n",
        hmsg("a", "$JS.ACK.S.c.1.1.1.1.0", block([("Nats-Pin-Id", "another")]), b"x"),
        hmsg("a", "$JS.ACK.S.c.1.1.1.1.0", block([("Nats-Pin-Id", PIN), ("Z", "")]), b"x"),
        hmsg("a", "$JS.ACK.S.c.1.1.1.1.0", block([]), TAIL),
        Message(9).delivered(9, 0).replace(b" 7 $JS", b" 8 $JS"),
        Message(9).delivered(9, 0)[:-1],
        b"HMSG a 7 r x y\r\n",
    ],
    ids=[
        "ping", "msg", "status", "other-pin", "pin-not-last", "pin-in-payload", "other-sid",
        "incomplete", "malformed",
    ],
)  # fmt: skip
def test_the_consumer_scan_stops_at_everything_else(stop):
    """
    Whatever is no whole message of ours under our pin stays in the buffer for the general path.
    """
    good = Message(1).delivered(1, 5) + Message(2).delivered(2, 4)
    frames, pos = scanned(good + stop)

    assert (len(frames), pos) == (2, len(good))


@pytest.mark.parametrize(
    "stop",
    [
        b"PING\r\n",
        b"HMSG _INBOX.abc 7 18 18\r\nNATS/1.0 204 EOB\r\n\r\n\r\n",
        b"HMSG _INBOX.abc 8 18 18\r\nNATS/1.0 204 EOB\r\n\r\n\r\n",
        Message(9).got(8, 0)[:-1],
        Message(9).got(8, 0)[:20],
        b"HMSG _INBOX.abc 7 reply 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HMSG _INBOX.abc 7 x y\r\n",
    ],
    ids=["ping", "status", "other-sid", "incomplete", "line", "reply", "malformed"],
)
def test_the_direct_scan_stops_at_everything_else(stop):
    """
    Whatever is no whole message of this request stays in the buffer for the general path.
    """
    good = Message(1).got(0, 5) + Message(2).got(1, 4)
    frames = DirectFrames("S", True)
    pos = frames.scan(good + stop, 0, PREFIX)

    assert (len(frames), pos) == (2, len(good))


def test_a_change_of_shape_does_not_stop_the_direct_scan():
    """
    Messages with and without headers of their own in one buffer are taken in one go.
    """
    stale = [("Nats-Subject", "stale"), ("Nats-Last-Sequence", "7"), ("Mine", "1")]
    shapes = [None, stale, None, None, stale, stale, None]
    stream = b"".join(
        Message(i, headers=headers or []).got(i - 1, 9) for i, headers in enumerate(shapes, 1)
    )
    frames = DirectFrames("S", True)

    assert frames.scan(stream, 0, PREFIX) == len(stream)
    assert list(map(int, frames.sequences)) == list(range(1, 8))


def test_scans_stop_when_a_batch_is_full():
    """
    No scan gathers more rows than a record batch may hold, nor goes on once its bytes are many.
    """
    many = b"".join(Message(i).delivered(i, 1) for i in range(1, MAX_BATCH_ROWS + 10))
    frames, _ = scanned(many)
    direct = DirectFrames("S", True)
    direct.scan(b"".join(Message(i).got(i - 1, 1) for i in range(1, MAX_BATCH_ROWS + 9)), 0, PREFIX)
    large, _ = scanned(Message(1, data=bytes(MAX_BATCH_BYTES)).delivered(1, 0))

    assert len(frames) == len(direct) == MAX_BATCH_ROWS
    assert frames.full and direct.full and large.full


def test_a_range_cuts_both_ends():
    """
    Only `after < sequence <= upto` becomes rows, in both decoders.
    """
    messages = [Message(s) for s in (5, 6, 8, 9)]
    frames, builder = ConsumerFrames(False), RowBuilder("S", False)
    frames.scan(b"".join(m.delivered(i, 9) for i, m in enumerate(messages)), 0, SID, TAIL)
    direct = DirectFrames("S", True)
    direct.scan(b"".join(m.got(0, 9) for m in messages), 0, PREFIX)
    facts = builder.deliveries(frames)

    for after, upto, expected in ((5, 8, [6, 8]), (0, 99, [5, 6, 8, 9]), (6, 7, []), (9, 99, [])):
        consumed = builder.consumer_batch(frames, facts, 0, after, upto)
        got = builder.direct_batch(direct, after, upto, 0, None)

        assert consumed.column("sequence").to_pylist() == expected
        assert got.column("sequence").to_pylist() == expected


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(1, [(2, 1), (4, 1)]), (0, [(1, 0)]), (None, [(1, 0), (2, 1), (4, 1)]), (7, [])],
    ids=str,
)
def test_classified_rows(partition, expected):
    """
    With a classifier a direct read keeps the rows of its partition, or of any partition.
    """
    subjects = ["p.0.a", "p.1.a", "other", "p.1.b"]
    direct, builder = DirectFrames("S", True), RowBuilder("S", True)
    direct.scan(b"".join(Message(i, s).got(i - 1, 0) for i, s in enumerate(subjects, 1)), 0, PREFIX)
    codes = {b"p.0.a": 0, b"p.1.a": 1, b"p.1.b": 1}
    batch = builder.direct_batch(
        direct,
        0,
        99,
        partition,
        codes.get,
    )

    rows_ = [(row["sequence"], row["partition"]) for row in batch.to_pylist()]
    assert rows_ == expected
    assert batch.schema == arrow_schema(True)


@pytest.mark.parametrize("bad", [b"a.\xff", b"\xc3", b"\xed\xa0\x80.x"], ids=repr)
def test_a_subject_that_is_no_utf8_names_its_sequence(bad):
    """
    A subject that no STRING can hold is an error that says which sequence it is of.
    """
    place = "Z" * len(bad)
    messages = [Message(41), Message(42, place), Message(43)]
    frames, builder = ConsumerFrames(False), RowBuilder("S", False)
    stream = b"".join(m.delivered(i, 9) for i, m in enumerate(messages))
    frames.scan(stream.replace(place.encode(), bad), 0, SID, TAIL)
    direct = DirectFrames("S", True)
    direct.scan(b"".join(m.got(0, 9) for m in messages).replace(place.encode(), bad), 0, PREFIX)

    with pytest.raises(SubjectDecodeError, match="sequence 42"):
        builder.consumer_batch(frames, builder.deliveries(frames), 3, 0, 99)
    with pytest.raises(SubjectDecodeError, match="sequence 42"):
        builder.direct_batch(direct, 0, 99, 3, None)


@pytest.mark.parametrize(
    ("sequence", "pending", "end", "reached"),
    [(5, 1, 5, True), (6, 1, 5, True), (4, 1, 5, False), (4, 0, 5, True)],
)
@pytest.mark.parametrize("prefix", ["$JS.ACK.S.c.1", "$JS.ACK.d.h.S.c.1"], ids=["v1", "v2"])
def test_reaching_the_end(sequence, pending, end, reached, prefix):
    """
    The last delivery reaches the end when it is there or beyond, or when nothing is behind it.
    """
    frames = ConsumerFrames(False)
    frames.scan(Message(sequence).delivered(1, pending, prefix), 0, SID, TAIL)

    assert frames.reaches(end) is reached


def test_reprs_show_the_state():
    """
    What gathers says how much it holds.
    """
    frames, _ = scanned(Message(1, data=b"xy").delivered(1, 0))

    assert repr(frames).startswith("<ConsumerFrames 1 messages, ")
    assert repr(DirectFrames("S", True)) == "<DirectFrames 0 messages, 0 bytes>"
