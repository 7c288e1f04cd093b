"""Deliveries whose bytes a stranger chose: nothing is lost, and it stays linear."""

import logging
import random

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.fetch.decoding import deliveries
from pyspark_jetstream.fetch.decoding.deliveries import Deliveries
from pyspark_jetstream.fetch.decoding.rows import RowBuilder

from ....kits.messages import ODD, SID, SOUND, TAIL, Message, hmsg
from ....kits.seeds import fresh

LINE = b"HMSG a 7 b 1 1\r\nNATS/1.0\r\n"


def reader_takes(frames, buffer):
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


def mixed(kind, count):
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
    """All cuts of a buffer together look at a few times its bytes, and take every message."""
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


@pytest.mark.parametrize("keep", [False, True], ids=["plain", "headers"])
@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_odd_blocks_among_others(seed, keep, caplog):
    """Odd blocks among others are null headers, counted, and named in the log."""
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
