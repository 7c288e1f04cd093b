"""
Cutting deliveries whose bytes a stranger chose: nothing is lost, and it stays linear.

What is linear is shown by counting what is looked at, never by a clock.
"""

from __future__ import annotations

import logging
import random

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import pinned
from pyspark_jetstream.errors import ProtocolError
from pyspark_jetstream.fetch import rows
from pyspark_jetstream.fetch.rows import ConsumerFrames, RowBuilder

from ...kits.messages import ODD, PIN, SID, SOUND, TAIL, Message, hmsg
from ...kits.seeds import fresh
from ...kits.steps import steps

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


def reader_takes(frames: ConsumerFrames, buffer: bytes) -> list[bytes]:
    """All payloads, taken as the reader does: what the scan stops at is looked at alone."""
    payloads, pos = [], 0
    while True:
        pos = frames.scan(buffer, pos, SID, TAIL)
        if frames.full:
            payloads += frames.payloads
            frames.clear()
            continue
        found, where = wire.next_frame(buffer, pos)
        if found is None:
            assert pos == len(buffer)
            return payloads + frames.payloads
        pos = where
        if isinstance(found, wire.Frame) and found.sid == SID:
            there = pinned(found.headers)
            assert there is not None and there[1] == PIN.encode()
            frames.add(found, there[0])


@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED)
def test_a_search_looks_at_each_byte_a_few_times(repeated):
    """
    However often a payload begins a frame, a search looks at so many bytes as there are, times a
    number that does not grow with them.
    """
    frames = ConsumerFrames(False)
    frames.scan(Message(1, headers=[("A", "1")]).delivered(1, 9), 0, SID, TAIL)
    for pattern in frames._cutter._patterns:
        looked = []
        for size in (3000, 6000):
            data = (repeated * (size // len(repeated) + 1))[:size]
            looked.append(steps(pattern, Message(1, data=data).delivered(1, 9)))

        assert looked[1] < 2.5 * looked[0]
        assert looked[1] < 20 * size


def mixed(kind: str, count: int) -> list[bytes]:
    """Frames, so many or as many bytes as that."""
    frames = []
    for i in range(1, count + 1):
        good = Message(i, data=b"%d" % i)
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
        }[kind]
        frames.append(message.delivered(i, count - i))
        frames += {"other subscription": [other], "pings": [b"PING\r\n"]}.get(kind, [])
    return frames


@pytest.mark.parametrize(
    "kind",
    [
        "good", "odd", "odd at times", "lookalikes", "lookalikes at times", "other subscription",
        "pings", "many lines", "large", "large behind lookalikes",
    ],
)  # fmt: skip
def test_bytes_are_cut_a_few_times_at_the_most(monkeypatch, kind):
    """
    Whatever makes cuts fail, or interrupts them, all cuts of a buffer together look at a few times
    its bytes, and every message is taken.
    """
    cut = 0
    original = rows._Cutter._cut

    def counting(self, pattern, head, window, room):
        nonlocal cut
        cut += len(window)
        return original(self, pattern, head, window, room)

    monkeypatch.setattr(rows._Cutter, "_cut", counting)
    count = 300 if "large" in kind or kind == "many lines" else 12_000
    buffer = b"".join(mixed(kind, count))
    frames = ConsumerFrames(False)
    payloads = reader_takes(frames, buffer)

    assert [int(each.split(b"HMSG")[0]) for each in payloads] == list(range(1, count + 1))
    assert cut <= 3 * len(buffer) + (2 << 20), f"{cut / len(buffer):.1f} times"


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
    frames, builder = ConsumerFrames(keep), RowBuilder("S", keep)
    buffer = b"".join(m.delivered(i, 9) for i, m in enumerate(messages, 1))
    assert frames.scan(buffer, 0, SID, TAIL) == len(buffer)
    with caplog.at_level(logging.WARNING):
        batch = builder.consumer_batch(frames, builder.deliveries(frames), 0, 5, 390)

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
        b"80 60", b"200 100", b"-5 60", b"60 -5", b"0 61", b"13 61", b"59 61", b"61 61", b"62 61",
        b"60 62", b"60 60", b"60 9999999999", b"9999999999 9999999999", b"+60 61", b"6_0 61",
        b"60 61 61", b"61", b"",
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("headers", [[], [("A", "1")]], ids=["plain", "headers"])
def test_sizes_that_cannot_be_take_nothing(sizes, headers):
    """
    A frame whose sizes are not those of its bytes is never cut, nor is what stands before it
    taken twice; the frame by itself is an error, or not complete, or no message of ours.
    """
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
    for behind in (b"", good):
        frames = ConsumerFrames(False)
        pos = frames.scan(good + bad + behind, 0, SID, TAIL)

        assert (len(frames), pos) == (1, len(good))
    try:
        found, _ = wire.next_frame(bad + good, 0)
    except ProtocolError:
        return
    assert found is None or pinned(found.headers) is None


def test_more_sizes_than_are_remembered():
    """
    Any number of different sizes is cut right, also where they are forgotten on the way.
    """
    messages = [
        Message(i, headers=[("A", "x" * (i % 97))], data=b"y" * (i % 83)) for i in range(1, 9000)
    ]
    frames = ConsumerFrames(True)
    buffer = b"".join(m.delivered(i, 9) for i, m in enumerate(messages, 1))

    assert frames.scan(buffer, 0, SID, TAIL) == len(buffer)
    assert frames.payloads == [m.data for m in messages]
