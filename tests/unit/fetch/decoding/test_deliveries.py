"""Deliveries whose bytes a stranger chose: nothing is lost, and it stays linear."""

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.fetch.decoding import cuts, deliveries
from pyspark_jetstream.fetch.decoding.deliveries import Deliveries

from ....kits.messages import SID, TAIL, Message, hmsg

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
        other = hmsg(b"x", b"", b"NATS/1.0 100 Idle\r\n\r\n", b"", 8)
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


def test_lines_are_alike_where_their_numbers_are_as_long():
    """They are compared at one time; else each is matched, which takes longer."""
    lines = [b"1.%d.%d.1700000000000000000.%d " % (n, n, 50 - n) for n in range(10, 40)]
    first = cuts._FACTS.match(lines[0])

    assert cuts._are_alike(b"".join(lines), first, len(lines))
    for other in (b"1.1.11.", b"1.10.1x", b"1.1011."):
        lines[7] = other + lines[7][len(other) :]
        assert not cuts._are_alike(b"".join(lines), first, len(lines))
