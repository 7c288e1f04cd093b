"""Direct gets over a connection that is only bytes: what comes between, late, twice or never."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.errors import JetStreamError, NotConnectedError, RequestTimeoutError
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.gets import ForeignAnswerError, Gets
from pyspark_jetstream.fetch.layout import Slice

from ...kits.messages import INBOX, ODD, SID, Message, hmsg, random_messages
from ...kits.options import connection_of
from ...kits.seeds import fresh

SEEDS = [1, 2, *fresh(__name__)]
"""The last one is new in every run; a failing test shows it in its name."""

numbers = itertools.count()

CONTROLS = [b"PING\r\n", b"INFO {}\r\n", b"+OK\r\n", b"MSG late 8 2\r\nhi\r\n"]


def end(pending, last):
    return (
        f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n\r\n"
    ).encode()


class Server:
    """A connection to a server that holds these messages; `spoil` changes what it answers."""

    def __init__(self, messages, seed=0):
        self.messages = messages
        self.spoil: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
        self.asked: list[dict] = []
        self.controls: list[bytes] = []
        self.under_way = b""
        self.buffer, self.pos = b"", 0
        self.max_payload = 1 << 20
        self.round_trip_s = 0.0001
        self.version = (2, 15, 1)
        self.rng = random.Random(seed)
        # Of its own: what a reader learns of one server it keeps for the next read.
        self.options = connection_of(f"nats://server-{next(numbers)}", request_timeout_s=5.0)

    # ── what a client is to the reader ───────────────────────────────────────────────────────

    @property
    def connection(self):
        return self

    def drop(self):
        self.under_way = self.buffer = b""

    def requests(self, requests):
        """Answers of JetStream's API: no other stream than this one is known."""
        error = b'{"error": {"code": 404, "err_code": 10059}}'
        return [Reply(0, "", b"", error) for _ in requests]

    # ── what a connection is ─────────────────────────────────────────────────────────────────

    def new_inbox(self):
        return INBOX

    def subscribe(self, subject):
        return SID

    def unsubscribe(self, sid):
        pass

    def send(self, data):
        line, _, body = data.partition(b"\r\n")
        assert line.startswith(b"PUB $JS.API.DIRECT.GET.S ") and not self.under_way
        self.asked.append(query := json.loads(body))
        found = [m for m in self.messages if m.sequence >= query["seq"]]
        if not found:
            self.under_way = hmsg(INBOX, "", b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")
            return
        taken, left = found[: query["batch"]], len(found)
        before = [0, *(m.sequence for m in taken)]
        frames = [m.got(before[i], left - 1 - i) for i, m in enumerate(taken)]
        frames.append(hmsg(INBOX, "", end(left - len(taken), before[-1]), b""))
        self.under_way = b"".join(self.spoil(frames))

    def fill(self, deadline, need=1):
        assert deadline > time.monotonic() - 60
        if len(self.under_way) < need:
            return False
        size = max(need, self.rng.choice([1, 9, 1000, 1 << 20]))
        self.buffer = self.buffer[self.pos :] + self.under_way[:size]
        self.pos, self.under_way = 0, self.under_way[size:]
        return True

    def control(self, control):
        if control.verb == b"-ERR":
            raise JetStreamError(control.argument.decode())
        self.controls.append(control.verb)


def gathered(server, batch=1000):
    """One complete request for what follows sequence 0."""
    gets = Gets(server, "S")
    gets.ask({"seq": 1, "batch": batch})
    gets.gather(time.monotonic() + 1)
    return gets


def reading(end):
    return Slice(0, "S", None, 0, end, None, True, True)


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_in_any_pieces_with_anything_between(seed):
    """However the bytes are cut, and with anything between, the rows are the messages'."""
    rng = random.Random(seed)
    messages = random_messages(rng, 1500)
    for message in messages:
        message.data = message.data[:1000]
    server = Server(messages, seed)
    said: list[bytes] = []

    def spoil(frames):
        spoiled = []
        for frame in frames:
            if rng.random() < 0.003:
                said.append(rng.choice(CONTROLS))
                spoiled.append(said[-1])
            spoiled.append(frame)
        return spoiled

    server.spoil = spoil
    batches = list(read_direct(server, reading(messages[-1].sequence)))

    assert [row for batch in batches for row in batch.to_pylist()] == [
        m.row(0, True) for m in messages
    ]
    assert sorted(server.controls) == sorted(each.split()[0] for each in said if each[:1] != b"M")


def test_nothing_is_under_way_while_spark_has_a_batch():
    """When a batch is handed out, all that was asked for has been read."""
    messages = [Message(i, data=b"x" * 500) for i in range(1, 20_001)]
    server = Server(messages)
    rows = 0
    for batch in read_direct(server, reading(20_000)):
        rows += batch.num_rows
        last = server.asked[-1]

        assert not server.under_way
        assert last["seq"] == rows + 1 or rows == 20_000
        assert batch.num_rows > last["batch"] or rows == 20_000

    assert rows == 20_000
    assert all(query["batch"] <= 1000 for query in server.asked)
    assert all(0 < query["max_bytes"] <= 8 << 20 for query in server.asked)
    ends = [query["seq"] + query["batch"] for query in server.asked]
    assert [query["seq"] for query in server.asked] == [1, *ends[:-1]]


def test_requests_are_small_where_publishers_are_not_to_wait():
    """`maxPublishDelay` bounds what is asked for at one time."""
    server = Server([Message(i) for i in range(1, 4_001)])
    server.options = replace(server.options, max_publish_delay_s=0.002)
    rows = sum(batch.num_rows for batch in read_direct(server, reading(4_000), None))

    assert rows == 4_000
    assert {query["batch"] for query in server.asked} == {100}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frames: frames[1:],
        lambda frames: [*frames[:5], *frames[6:]],
        lambda frames: [*frames[:-2], frames[-1]],
        lambda frames: frames[3:],
        lambda frames: [frames[0], frames[-1]],
        lambda frames: [frames[1], frames[0], *frames[2:]],
        lambda frames: [*frames[:3], frames[2], *frames[4:]],
    ],
    ids=["first", "middle", "last", "some", "most", "swapped", "replaced"],
)
def test_lost_replies_are_noticed(spoil):
    """Replies that never came, or came in another order, do not pass for a gap in the stream."""
    server = Server([Message(2 * i) for i in range(1, 21)])
    server.spoil = spoil

    with pytest.raises(NotConnectedError, match="lost after sequence 0"):
        gathered(server).take()


def test_a_lost_reply_of_a_later_request_is_noticed():
    """A reply missing from the second request is not made up by the first."""
    server = Server([Message(i) for i in range(1, 21)])
    gets = gathered(server, 10)
    server.spoil = lambda frames: frames[1:]
    gets.ask({"seq": 11, "batch": 10})
    gets.gather(time.monotonic() + 1)

    with pytest.raises(NotConnectedError, match="lost after sequence 10"):
        gets.take()


def test_lost_replies_are_asked_for_again():
    """A read goes on behind the last row it has handed out, and the rows are exact."""
    messages = [Message(i) for i in range(1, 5001)]
    server = Server(messages)
    losses = iter([False, True, False, True])
    server.spoil = lambda frames: [*frames[:50], *frames[51:]] if next(losses, False) else frames
    rows = [row for batch in read_direct(server, reading(5000)) for row in batch.to_pylist()]

    assert [row["sequence"] for row in rows] == list(range(1, 5001))


def test_a_missing_end_is_a_timeout():
    """A request whose end does not come fails when its time is over."""
    server = Server([Message(1)])
    server.spoil = lambda frames: frames[:-1]

    with pytest.raises(RequestTimeoutError):
        gathered(server)


def test_what_a_mirror_answers_is_dropped():
    """An answer of a mirror is refused; the requests before and after it count."""
    server = Server([Message(i) for i in range(1, 31)])
    gets = gathered(server, 10)
    server.spoil = lambda frames: [f.replace(b"Nats-Stream: S", b"Nats-Stream: M") for f in frames]
    gets.ask({"seq": 11, "batch": 5})
    with pytest.raises(ForeignAnswerError, match="mirror 'M' answers"):
        gets.gather(time.monotonic() + 1)
    server.spoil = lambda frames: frames
    gets.ask({"seq": 11, "batch": 20})
    gets.gather(time.monotonic() + 1)
    messages = gets.take()

    assert messages is not None
    assert messages.columns(False).sequences.to_pylist() == list(range(1, 31))


@pytest.mark.parametrize("cut", range(1, 7))
def test_what_the_server_began_to_say_behind_the_end_is_not_lost(cut):
    """A PING cut in two by a request's end is answered, and the next one is read."""
    server = Server([Message(i) for i in range(1, 31)])
    server.spoil = lambda frames: [*frames, b"PING\r\n"[:cut]]
    gets = gathered(server, 10)
    server.spoil = lambda frames: [b"PING\r\n"[cut:], *frames]
    gets.ask({"seq": 11, "batch": 20})
    gets.gather(time.monotonic() + 1)

    assert gets.take().columns(False).sequences.to_pylist() == list(range(1, 31))
    assert server.controls == [b"PING"]


def test_stale_headers_do_not_make_a_mirror():
    """Which stream a message is of is what the server says last, not what was stored with it."""
    server = Server([Message(1, headers=[("Nats-Stream", "OLD")])])
    messages = gathered(server).take()

    assert messages is not None and len(messages) == 1


@pytest.mark.parametrize("stored", ODD.values(), ids=ODD)
def test_no_stored_block_passes_for_a_word_of_the_server(stored):
    """Messages stored with a status line are read in order, and end no request."""
    messages = [Message(i, data=b"%d" % i, stored=stored if i % 3 else None) for i in range(1, 31)]
    server = Server(messages)
    server.spoil = lambda frames: [b"".join(frames)]
    rows = [row for batch in read_direct(server, reading(30)) for row in batch.to_pylist()]

    assert [(row["sequence"], row["data"]) for row in rows] == [
        (m.sequence, m.data) for m in messages
    ]
    assert {row["headers"] is None for row in rows} == {True}

    gets = Gets(server, "S")
    for after in range(0, 30, 10):
        gets.ask({"seq": after + 1, "batch": 10})
        whole, server.under_way = server.under_way, b""
        *frames, end = _frames(whole)
        for frame in frames:  # each comes alone, so each is the last one for a time
            server.under_way += frame
            with pytest.raises(RequestTimeoutError):
                gets.gather(time.monotonic() + 1)
        server.under_way += end
        ending = gets.gather(time.monotonic() + 1)

        assert (ending.code, ending.pending, ending.last) == (204, 20 - after, after + 10)
    assert len(gets.take()) == 30


@pytest.mark.parametrize("seed", SEEDS)
def test_one_by_one_messages_are_those_of_the_columns(seed):
    """What is taken a message at a time is what is taken at one time."""
    rng = random.Random(seed)
    messages = random_messages(rng, 200)
    for message, stored in zip(messages[::7], ODD.values(), strict=False):
        message.headers, message.data = [], message.data[:100]
        messages[messages.index(message)] = Message(
            message.sequence, message.subject, message.data, stored=stored
        )
    server = Server(messages, seed)
    columns = gathered(server).take().columns(with_headers=True)
    found = gathered(server).take_each()

    assert [one.sequence for one in found] == [message.sequence for message in messages]
    as_columns = (
        columns.subjects,
        columns.sequences,
        columns.times,
        columns.stored,
        columns.payloads,
    )
    rows = zip(*(column.to_pylist() for column in as_columns), strict=True)
    assert [one[:5] for one in found] == list(rows)


def _frames(data):
    found, at = [], 0
    while at < len(data):
        _, end = wire.next_frame(data, at)
        found.append(data[at:end])
        at = end
    return found


def test_frames_of_others_are_looked_at_once(monkeypatch):
    """Late frames of other subscriptions are taken out in one go, however many they are."""
    looked, next_frame = [], wire.next_frame

    def counting(buffer, pos):
        looked.append(len(buffer) if not pos else 0)  # copied to be looked at from the beginning
        return next_frame(buffer, pos)

    monkeypatch.setattr(wire, "next_frame", counting)
    server = Server([Message(1)])
    late = 20_000 * CONTROLS[3]
    server.spoil = lambda frames: [*frames, late]
    server.rng = SimpleNamespace(choice=max)  # all of it at once
    gets = Gets(server, "S")
    gets.ask({"seq": 1, "batch": 10})

    assert gets.gather(time.monotonic() + 1).last == 1
    assert len(gets.take()) == 1
    assert len(looked) < 2 * 20_000
    assert sum(looked) < 4 * len(late)


@pytest.mark.parametrize("control", CONTROLS, ids=repr)
def test_a_request_that_brings_nothing(control):
    """A 404 is an ending without messages, whatever else is said before and after it."""
    server = Server([])
    gets = Gets(server, "S")
    for _ in range(2):
        gets.ask({"seq": 1, "batch": 10})
        server.under_way = control + server.under_way + control
        ending = gets.gather(time.monotonic() + 1)

        assert (ending.code, ending.text) == (404, "Message Not Found")
        assert (ending.pending, ending.last, gets.kept, gets.take()) == (0, 0, 0, None)


def test_an_error_of_the_server_ends_the_request():
    """What the server refuses is not waited for."""
    server = Server([Message(1)])
    server.spoil = lambda frames: [b"-ERR 'Permissions Violation'\r\n"]

    with pytest.raises(JetStreamError, match="Permissions Violation"):
        gathered(server)
