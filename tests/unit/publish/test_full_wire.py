"""What a lane sends when a quarter of `bufferMemory`, which lanes share, is all on the wire."""

from __future__ import annotations

import pytest

from pyspark_jetstream.publish.lanes.asynclane import AsyncLane
from pyspark_jetstream.publish.lanes.atomiclane import AtomicLane
from pyspark_jetstream.publish.lanes.detour import Lane
from pyspark_jetstream.publish.lanes.fastlane import FastLane

from ...kits.lanes import PREFIX, FixedLimit, ModelServer, messages, parse, terms

LANES = [AsyncLane, FastLane, AtomicLane]
ONE_ROW = 1  # bytes: a lane sends a row at least


def lane(kind: type[Lane]) -> Lane:
    one = kind(PREFIX, terms(FixedLimit(4096)))
    one.offer(messages(["a"] * 600))
    return one


@pytest.mark.parametrize("kind", LANES)
def test_nothing_new_goes_out(kind):
    one = lane(kind)

    assert one.frames_to_send(0.0, 0) is None
    assert one.bytes_in_flight == 0
    assert one.frames_to_send(0.0, ONE_ROW) is not None
    assert one.frames_to_send(0.0, 0) is None
    assert one.busy


@pytest.mark.parametrize("kind", LANES)
def test_what_may_be_lost_goes_again(kind):
    """
    An async lane sends its row, an atomic one begins its batch, a fast one asks what is stored.
    """
    one = lane(kind)
    before = parse(bytes(one.frames_to_send(0.0, ONE_ROW)))
    one.on_disconnect()
    again = parse(bytes(one.frames_to_send(2.0, 0)))

    assert len(again) == 1
    assert (again[0].data == before[0].data) == (kind is not FastLane)
    assert again[0].reply.endswith(".4.$FI") == (kind is FastLane)


@pytest.mark.parametrize(
    "kind, answered, rows, midway",
    [
        (AsyncLane, 0, 1, False),
        (FastLane, 0, 1, False),  # the first row is answered at once: 500 a time
        (FastLane, 1, 2, True),
        (FastLane, 1, 499, True),
        (FastLane, 1, 500, False),
        (AtomicLane, 0, 1, True),
        (AtomicLane, 0, 599, True),
        (AtomicLane, 0, 600, False),  # the commit
    ],
)
def test_midway_is_what_is_answered_only_when_more_goes_out(kind, answered, rows, midway):
    one, server = lane(kind), ModelServer()
    assert not one.is_midway
    for count in range(rows):
        (row,) = parse(bytes(one.frames_to_send(0.0, ONE_ROW)))
        if count < answered:
            for token, status, data in server.publish(row):
                one.on_reply(token, status, "", data, 0.0)
        assert one.frames_to_send(0.0, 0) is None

    assert one.is_midway == midway
