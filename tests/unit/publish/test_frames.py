"""Frames are the bytes of the protocol, whatever their payloads."""

import random

import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.lanes.flight import framed
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, messages, terms
from ...kits.model import parse
from ...kits.seeds import fresh


def by_hand(of: Messages, row: int, ordinal: int) -> bytes:
    """The frame of one row."""
    subject, data = of.subject[row].as_py(), of.data[row].as_py()
    lines = b"" if of.lines is None else of.lines[row].as_py()
    to = b"%b %b.%d" % (subject, PREFIX.encode(), ordinal)
    if not lines:
        return b"PUB %b %d\r\n%b\r\n" % (to, len(data), data)
    block = b"NATS/1.0\r\n%b\r\n" % lines
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(block), len(block) + len(data), block, data)


@pytest.mark.parametrize("most", [100, 80_000], ids=["small", "large"])
@pytest.mark.parametrize("headers", ["none", "all", "some"])
@pytest.mark.parametrize("seed", fresh(__name__, 3))
def test_frames_are_those_of_the_protocol(most, headers, seed):
    """Of any run of any part of a batch, some payloads being empty."""
    chance = random.Random(seed)
    count = chance.randint(5, 40)
    data = [chance.randbytes(chance.randint(most // 2, most)) for _ in range(count)]
    data[chance.randrange(count)] = b""
    lines = {"none": None, "all": [b"A: b\r\n"] * count}.get(
        headers, [chance.choice([b"", b"A: b\r\n"]) for _ in range(count)]
    )
    subjects = [chance.choice(["a", "b.c"]) for _ in range(count)]
    rows = messages(subjects, data, ids=headers == "all", headers=lines)
    low, first = chance.randrange(3), chance.randrange(1000)
    part = rows.slice(low, count - low - chance.randrange(2))
    block = framed(part, first, PREFIX)
    frames = [by_hand(part, row, first + row) for row in range(len(part))]

    assert block.end == first + len(part)
    for _ in range(20):
        start = chance.randint(0, len(part))
        end = chance.randint(start, len(part))
        run = first + start, first + end
        assert bytes(block.slice(*run)) == b"".join(frames[start:end])
        assert block.nbytes(*run) == sum(map(len, frames[start:end]))


def test_a_large_payload_that_goes_again_is_the_same_bytes():
    """What is lost of large rows goes again, a chunk at a time, and is given up at its time."""
    lane = Lane(PREFIX, *terms(FixedLimit(64), 32 << 20, 5.0, 120.0))
    lane.offer(messages(["a"] * 5, [bytes([row]) * 100_000 for row in range(5)]))
    sent = parse(bytes(lane.frames_to_send(0.0, 1 << 20)))
    lane.on_pubacks([0, 2], 0.1)
    lane.on_disconnect()
    again = []
    while frames := lane.frames_to_send(1.0, 250_000):
        again.append(parse(bytes(frames)))

    assert [each.data[:1] for each in sent] == [b"\0", b"\1", b"\2", b"\3", b"\4"]
    assert again == [[sent[1], sent[3]], [sent[4]]]
    assert lane.tally.retries == 3
    with pytest.raises(PublishTimeoutError):
        lane.expire(121.0)
