"""
Cutting deliveries whose bytes a stranger chose: nothing is lost, and it stays linear.

What is linear is shown by counting what is looked at, never by a clock.
"""

from __future__ import annotations

import logging
import random

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.errors import ProtocolError
from pyspark_jetstream.fetch.decoding import deliveries
from pyspark_jetstream.fetch.decoding.deliveries import Deliveries
from pyspark_jetstream.fetch.decoding.rows import RowBuilder

from ....kits.messages import ODD, SID, SOUND, TAIL, Message, hmsg, sent_on
from ....kits.seeds import fresh

LINE = b"HMSG a 7 b 1 1\r\nNATS/1.0\r\n"
REPEATED = {
    "other sid": b"HMSG a 2 b ",
    "no sizes": b"HMSG a 7 b ",
    "one size": b"HMSG a 7 b 1 ",
    "digits": b"HMSG a 7 b 1111111",
    "verbs": b"HMSG ",
    "no blank": b"HMSG aaaaaaaaaaaa",
    "whole lines": LINE,
    "whole lines within lines": b"x" + LINE + b"x\r\n",
    "headers": LINE + b"A: 1\r\n",
    "long headers": LINE + b"A: " + 30 * b"HMSG a 7 b 1 1 " + b"\r\n",
    "nearly our pin": LINE + TAIL[:-6] + b"\r\n\r\n",
    "our pin": LINE + TAIL,
    "line ends": b"\r\n",
    "half line ends": LINE[:-1],
}
"""What a payload may repeat to look like many beginnings of frames."""


def reader_takes(frames: Deliveries, buffer: bytes) -> list[bytes]:
    """All payloads, taken as the reader does: what the scan stops at is looked at alone."""
    payloads, pos = [], 0
    while True:
        pos = frames.scan(buffer, pos, SID)
        if frames.full:
            payloads += frames.columns().payloads.to_pylist()
            frames.clear()
            continue
        found, where = wire.next_frame(buffer, pos)
        if found is None:
            assert pos == len(buffer)
            return payloads + (frames.columns().payloads.to_pylist() if len(frames) else [])
        pos = where
        if isinstance(found, wire.Frame) and found.sid == SID:
            frames.add(found, stored_before(found.headers))


def mixed(kind: str, count: int) -> list[bytes]:
    """Frames, so many or as many bytes as that."""
    frames = []
    for i in range(1, count + 1):
        good = Message(i, data=b"%d" % i, stored=b"")
        odd = Message(i, data=b"%d" % i, stored=b"NATS/1.0 204 EOB")
        like = Message(i, data=b"%d" % i + LINE + TAIL)
        other = hmsg("x", "", b"NATS/1.0 100 Idle\r\n\r\n", b"").replace(b" 7 ", b" 8 ")
        many = Message(i, data=b"%d" % i, headers=[(f"H{n}", "") for n in range(100)])
        large = Message(i, data=(b"%d" % i).ljust(30_000))
        message = {
            "good": good,
            "odd": odd,
            "odd at times": odd if i % 50 == 0 else good,
            "lookalikes": like,
            "lookalikes at times": like if i % 50 == 0 else good,
            "other subscription": good,
            "pings": good,
            "many lines": many,
            "large": large,
            "large behind lookalikes": large if i % 20 else like,
            "headers and none": many if i % 2 else good,
        }[kind]
        frames.append(message.delivered(i, count - i))
        frames += {"other subscription": [other], "pings": [b"PING\r\n"]}.get(kind, [])
    return frames


@pytest.mark.parametrize(
    "kind",
    [
        "good", "odd", "odd at times", "lookalikes", "lookalikes at times", "other subscription",
        "pings", "many lines", "large", "large behind lookalikes", "headers and none",
    ],
)  # fmt: skip
def test_bytes_are_cut_a_few_times_at_the_most(monkeypatch, kind):
    """
    Whatever makes cuts fail, or interrupts them, all cuts of a buffer together look at a few times
    its bytes, and every message is taken.
    """
    looked = 0
    original = deliveries.cut

    def counting(window, *rest):
        nonlocal looked
        looked += len(window)
        return original(window, *rest)

    monkeypatch.setattr(deliveries, "cut", counting)
    count = 300 if "large" in kind or kind == "many lines" else 12_000
    buffer = b"".join(mixed(kind, count))
    frames = Deliveries(False)
    payloads = reader_takes(frames, buffer)

    assert [int(each.split(b"HMSG")[0]) for each in payloads] == list(range(1, count + 1))
    assert looked <= 3 * len(buffer) + (2 << 20), f"{looked / len(buffer):.1f} times"


@pytest.mark.parametrize("count", [1_000, 6_250, 20_000])
def test_a_small_task_is_cut_like_a_large_one(monkeypatch, count):
    """The first bytes of a read are cut, too: but for a few messages none is taken alone."""
    alone = 0
    original = Deliveries._scan_one

    def counting(*arguments):
        nonlocal alone
        alone += 1
        return original(*arguments)

    monkeypatch.setattr(Deliveries, "_scan_one", counting)
    payloads = reader_takes(Deliveries(False), b"".join(mixed("good", count)))

    assert len(payloads) == count
    assert alone < 64


WORDS = b" %d $JS.ACK.S.c." % SID
FORGED = Message(7, "forged", b"z").delivered(7, 7)
FRAGMENTS = [
    b"", b"x", b"\r\n", b"HMSG ", b"\r\nHMSG a", b"\r\nHMSG a.b", WORDS, WORDS[:-1], WORDS * 3,
    WORDS + b"1.5.5.5.5 60 61\r\n", WORDS + b"1.5.5.5.5 60 61",
    WORDS + b"1.5.5.5.5 999999999 0\r\n",
    b"\r\nHMSG a" + WORDS + b"1.x.5.5.5 60 61\r\n", FORGED, b"\r\n" + FORGED, FORGED[:-3], TAIL,
    b"NATS/1.0\r\n" + TAIL, b"y" * 300, bytes(range(256)),
]  # fmt: skip
"""What payloads of a stranger are made of who knows stream, consumer and pin."""

BETWEEN = [
    b"PING\r\n",
    b"HMSG _INBOX.abc 7 81 81\r\nNATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\n"
    b"Nats-Pending-Bytes: 0\r\n\r\n\r\n",
    FORGED.replace(b" 7 $JS", b" 8 $JS"),
    FORGED.replace(b" forged 7 $JS", b" a 8 $JS"),
    b"MSG other 8 %d\r\n%b\r\n" % (len(FORGED), FORGED),
]
"""What may come in between, and is none of the consumer's messages."""


def hostile(rng: random.Random, count: int) -> list[Message]:
    """Messages whose bytes a stranger has chosen, as far as the server lets it."""
    blocks = [*ODD.values(), *(block for block, _ in SOUND.values())]
    return [
        Message(
            2 * i + rng.randrange(2),
            rng.choice(["a.b", "a", "HMSG", "a\rb", "ä." * rng.randrange(1, 9) + "x"]),
            b"".join(rng.choices(FRAGMENTS, k=rng.choice([0, 0, 1, 1, 2, 5]))),
            [("A", str(i))] if rng.random() < 0.2 else (),
            rng.randrange(1, 2**62),
            rng.choice(blocks) if rng.random() < 0.1 else rng.choice([None, b""]),
        )
        for i in range(1, count + 1)
    ]


def calm(rng: random.Random, count: int) -> list[Message]:
    """Messages of which many can be taken at one time, and now and then one that is hostile."""
    stored = rng.choice([[None], [b""], [None, b""]])
    return [
        rare
        if rng.random() < 0.01
        else Message(rare.sequence, data=b"x" * rng.randrange(99), stored=rng.choice(stored))
        for rare in hostile(rng, count)
    ]


@pytest.mark.parametrize("minimum", [1, 64])
@pytest.mark.parametrize("make", [hostile, calm])
@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_what_was_sent_is_taken(monkeypatch, make, minimum, seed):
    """
    Whatever messages hold, wherever the bytes end that have come, and whatever stands between:
    each message is taken once, as it was sent, in order.
    """
    monkeypatch.setattr(deliveries, "_MIN_MESSAGES", minimum)
    if minimum == 1:
        monkeypatch.setattr(deliveries, "_WINDOW_BYTES", 2000)
    rng = random.Random(seed)
    messages = make(rng, 1500)
    frames = [m.delivered(i, 1500 - i) for i, m in enumerate(messages, 1)]
    for _ in range(rng.choice([0, 1, 5, 50])):
        frames.insert(rng.randrange(len(frames)), rng.choice(BETWEEN))
    stream = b"".join(frames)
    rows, gathered = [], Deliveries(True)
    buffer, at, delivery = b"", 0, 1

    def flush() -> None:
        nonlocal delivery
        columns = gathered.columns()
        assert (gathered.first.delivery, len(gathered)) == (delivery, len(columns.sequences))
        delivery += len(gathered)
        assert gathered.last.delivery == delivery - 1
        rows.extend(zip(*(column.to_pylist() for column in columns), strict=True))
        gathered.clear()

    while at < len(stream) or buffer:
        step = rng.choice([1, 50, 5000, 1 << 20, 1 << 22])
        buffer, at = buffer + stream[at : at + step], at + step
        pos = gathered.scan(buffer, 0, SID)
        if len(gathered) and (gathered.full or rng.random() < 0.2):
            flush()
        found, where = wire.next_frame(buffer, pos)
        if found is not None and not gathered.full:
            pos = where
            if (
                isinstance(found, wire.Frame)
                and found.sid == SID
                and found.subject != b"_INBOX.abc"
            ):
                gathered.add(found, stored_before(found.headers))
        buffer = buffer[pos:]
        assert at < len(stream) or found is not None or not buffer
    if len(gathered):
        flush()

    assert rows == [
        (m.subject.encode(), m.sequence, m.nanos, m.data, sent_on(m.stored, [])[:-2])
        for m in messages
    ]


@pytest.mark.parametrize("keep", [False, True], ids=["plain", "headers"])
@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_odd_blocks_among_others(seed, keep, caplog):
    """
    Messages that were stored with something else than headers are taken with the others; their
    headers are null, counted, and named in the log.
    """
    rng = random.Random(seed)
    stored = [*ODD.values(), *(block for block, _ in SOUND.values())]
    expected = dict(SOUND.values())
    messages = [
        Message(i, data=b"%d" % i, stored=rng.choice(stored) if rng.random() < 0.3 else None)
        for i in range(1, 400)
    ]
    frames, builder = Deliveries(keep), RowBuilder("S", keep)
    buffer = b"".join(m.delivered(i, 9) for i, m in enumerate(messages, 1))
    assert frames.scan(buffer, 0, SID) == len(buffer)
    with caplog.at_level(logging.WARNING):
        batch = builder.batch(frames.columns(), 5, 390)

    messages = messages[5:390]
    assert batch.column("data").to_pylist() == [m.data for m in messages]
    if not keep:
        assert not caplog.records
        return
    assert batch.column("headers").to_pylist() == [expected.get(m.stored) for m in messages]
    odd = [
        m.sequence for m in messages
        if m.stored in ODD.values() or m.stored in (b for b, _ in SOUND.values() if b"junk" in b)
        or b"\r\n\r\nB" in m.stored
    ]  # fmt: skip
    assert builder.odd == len(odd)
    (record,) = caplog.records
    assert "stream=S" in record.getMessage() and f"sequences={odd[0]},{odd[1]}," in record.message


@pytest.mark.parametrize(
    "sizes",
    [
        b"80 60", b"200 100", b"-5 60", b"60 -5", b"62 61",
        b"60 62", b"60 60", b"60 9999999999", b"9999999999 9999999999", b"+60 61", b"6_0 61",
        b"60 61 61", b"61", b"",
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("headers", [[], [("A", "1")]], ids=["plain", "headers"])
@pytest.mark.parametrize("minimum", [1, 64])
def test_sizes_that_cannot_be_take_nothing(monkeypatch, minimum, sizes, headers):
    """
    A frame whose sizes are not those of its bytes is never cut, nor is what stands before it
    taken twice; the frame by itself is an error, or not complete, or no message of ours.
    """
    monkeypatch.setattr(deliveries, "_MIN_MESSAGES", minimum)
    good = Message(1, headers=headers).delivered(1, 9)
    bad = Message(2, headers=headers).delivered(2, 8)
    line, _, rest = bad.partition(b"\r\n")
    before, header, total = line.rsplit(b" ", 2)
    add = int(header) - 60
    words = [
        b"%d" % (int(each) + add) if each.isdigit() and 50 < int(each) < 70 else each
        for each in sizes.split(b" ")
    ]
    assert (int(header), int(total)) == (60 + add, 61 + add)
    bad = b"%b %b\r\n%b" % (before, b" ".join(words), rest)
    for before, behind in ((1, 0), (1, 1), (3, 3)):
        frames = Deliveries(False)
        pos = frames.scan(before * good + bad + behind * good, 0, SID)

        assert (len(frames), pos) == (before, before * len(good))
    try:
        found, _ = wire.next_frame(bad + good, 0)
    except ProtocolError:
        return
    assert found is None


def test_more_sizes_than_are_remembered():
    """Any number of different sizes is cut right, also where they are forgotten on the way."""
    messages = [
        Message(i, headers=[("A", "x" * (i % 97))], data=b"y" * (i % 83)) for i in range(1, 9000)
    ]
    frames = Deliveries(True)
    buffer = b"".join(m.delivered(i, 9) for i, m in enumerate(messages, 1))

    assert frames.scan(buffer, 0, SID) == len(buffer)
    assert frames.columns().payloads.to_pylist() == [m.data for m in messages]


@pytest.mark.parametrize("length", [200, 3000, 20_000])
def test_a_window_that_ends_within_a_line(length):
    """A subject may be longer than many messages before it."""
    messages = [Message(i, data=b"x") for i in range(1, 301)]
    messages += [Message(i, "s" * length, b"y") for i in range(301, 401)]
    buffer = b"".join(m.delivered(i, 9) for i, m in enumerate(messages, 1))
    frames = Deliveries(False)

    assert frames.scan(buffer, 0, SID) == len(buffer)
    assert frames.columns().payloads.to_pylist() == [m.data for m in messages]


def test_a_window_that_ends_within_its_first_line():
    """Nothing is cut of it, and nothing fails."""
    line = Message(1).delivered(1, 9).partition(b"\r\n")[0]
    for end in range(len(line) + 2):
        assert deliveries.cut((line + b"\r\n")[:end], WORDS, 10) is None


@pytest.mark.parametrize("minimum", [1, 64])
@pytest.mark.parametrize(
    ("verb", "sizes"),
    [(b"MSG", b"13 14"), (b"HMSG", b"1"), (b"HMSG", b"0 1"), (b"MSG", b"0 1"), (b"XMSG", b"1")],
    ids=repr,
)
def test_a_verb_that_does_not_suit_its_sizes(monkeypatch, minimum, verb, sizes):
    """
    A message has one size without a header block, and two with
    one; whatever else says so is not cut, in the middle or at the beginning.
    """
    monkeypatch.setattr(deliveries, "_MIN_MESSAGES", minimum)
    good = Message(1, stored=b"").delivered(1, 9)
    _, subject, sid, reply, _ = good.partition(b"\r\n")[0].split(b" ")
    block = b"NATS/1.0\r\n\r\n" if sizes.startswith(b"13") else b""
    line = b" ".join([verb, subject, sid, reply, sizes])
    bad = b"%b\r\n%bx\r\n" % (line, block)
    for before, behind in ((1, 1), (3, 3), (200, 200)):
        frames, buffer = Deliveries(False), before * good + bad + behind * good
        pos = frames.scan(buffer, 0, SID)
        assert pos >= before * len(good)
        if (verb, sizes) == (b"HMSG", b"0 1"):  # a frame all the same, taken by itself
            continue
        assert (len(frames), pos) == (before, before * len(good))
