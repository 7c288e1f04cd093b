"""The lanes of a task: which stream pushed back, and how rows go."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.targets import Targets
from pyspark_jetstream.publish.laneset import LaneSet

from ...kits.lanes import INBOX
from ...kits.model import error
from ...kits.options import connection_of, sink_of, targets_of
from ...kits.world import STREAMS, block


def lanes_of(
    are_known: bool = True,
    **fields: object,
) -> LaneSet:
    """Of two streams, `ab` and `cd`."""
    targets = targets_of(STREAMS.get)
    targets.of(pa.array([*STREAMS]))
    options = sink_of(connection_of("nats://model"), **fields)
    known = targets if are_known else Targets()
    return LaneSet(options, known, INBOX)


def refuse(
    lanes: LaneSet, rows: list[int], err_code: int, detail: str, now: float, are_known: bool = True
) -> None:
    """All go out, and these are refused."""
    every = block("acbd", 0)
    if not are_known:
        every = replace(every, targets=pa.nulls(len(every.distinct), pa.int32()))
    lanes.offer(every)
    while lanes.rows.frames_to_send(now, 1 << 20) is not None:
        pass
    for row in rows:
        data = json.dumps({"stream": "S", "seq": 0, "error": error(503, err_code, detail)})
        lanes.rows.on_reply(b"%d" % row, 503, "", data.encode(), now)


@pytest.mark.parametrize(
    ("rows", "places"), [([0], {0}), ([1], {1}), ([2, 0], {0}), ([1, 2], {0, 1}), ([], set())]
)
@pytest.mark.parametrize("are_known", [True, False])
def test_a12_push_back_is_of_a_stream(rows, places, are_known):
    """A12: of the stream of the refused row, until it is tried again; said once."""
    lanes = lanes_of(are_known)
    refuse(lanes, rows, 10077, "maximum messages exceeded", 100.0, are_known)
    found, again = lanes.push_backs(100.001), lanes.push_backs(100.001)

    assert {place for place, _ in found} == (places if are_known else {None} if rows else set())
    assert {at for _, at in found} <= {100.002}
    assert again == []


def test_a12_silence_is_push_back_now():
    """A12: of all streams whose rows were not answered."""
    lanes = lanes_of()
    refuse(lanes, [], 0, "", 100.0)
    lanes.rows.expire(200.0)

    assert sorted(lanes.push_backs(200.0)) == [(0, 200.0), (0, 200.0), (1, 200.0), (1, 200.0)]


def test_a12_what_is_none():
    """A12: a subject's own limit, and what dead letters meet."""
    lanes = lanes_of()
    refuse(lanes, [0, 1], 10077, "maximum messages per subject exceeded", 100.0)
    dead = lanes.letters
    dead.tally.push_backs["dead.a"] = 100.0

    assert lanes.push_backs(100.0) == []
    assert dead.tally.push_backs == {}


def test_push_backs_of_dead_letters_are_none_of_the_task():
    """Only those that rows meet count."""
    lanes = lanes_of()
    for each in lanes.all:
        each.tally.pushed_back += 1

    assert lanes.totals()["pushed_back"] == 1
