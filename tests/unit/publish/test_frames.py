"""Frames are the bytes of the protocol, whatever their payloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.lanes.flight import framed
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, messages, terms
from ...kits.model import parse


def by_hand(of: Messages, row: int, ordinal: int) -> bytes:
    """The frame of one row."""
    subject, data = of.subject[row].as_py(), of.data[row].as_py()
    lines = b"" if of.lines is None else of.lines[row].as_py()
    to = b"%b %b.%d" % (subject, PREFIX.encode(), ordinal)
    if not lines:
        return b"PUB %b %d\r\n%b\r\n" % (to, len(data), data)
    block = b"NATS/1.0\r\n%b\r\n" % lines
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(block), len(block) + len(data), block, data)


ROWS = st.tuples(
    st.sampled_from(["a", "b.c"]),
    st.integers(0, 100) | st.integers(0, 80_000),
    st.sampled_from([b"", b"A: b\r\n"]),
)
RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=5)


@given(
    st.lists(ROWS, min_size=2, max_size=40),
    st.sampled_from(["none", "all", "some"]),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 999),
    RUNS,
)
def test_frames_are_those_of_the_protocol(rows, headers, low, less, first, runs):
    """Of any run of any part of a batch, some payloads being empty."""
    subjects, sizes, some = zip(*rows, strict=True)
    data = [(b"\r\nPUB a 1\r\n" * 8000)[:size] for size in sizes]
    lines = {"none": None, "all": [b"A: b\r\n"] * len(rows)}.get(headers, some)
    made = messages(subjects, data, ids=headers == "all", headers=lines)
    part = made.slice(low, len(rows) - low - less)
    block = framed(part, first, PREFIX)
    frames = [by_hand(part, row, first + row) for row in range(len(part))]

    assert block.end == first + len(part)
    for start, end in (sorted((a % (len(part) + 1), b % (len(part) + 1))) for a, b in runs):
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
