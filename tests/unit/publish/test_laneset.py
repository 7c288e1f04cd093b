"""The lanes of a task: which stream pushed back, and how rows go."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.targets import Target, Targets
from pyspark_jetstream.publish.laneset import LaneSet
from pyspark_jetstream.publish.telemetry import Telemetry, Way

from ...kits.lanes import INBOX, error, messages, parse
from ...kits.options import connection_of, sink_of
from ...kits.targets import targets_of
from ...kits.world import STREAMS, block


def lanes_of(
    mode: str, are_known: bool = True, telemetry: Telemetry | None = None, **fields: object
) -> LaneSet:
    """Of two streams, `ab` and `cd`."""
    targets = targets_of(STREAMS.get)
    targets.of(pa.array([*STREAMS]))
    options = sink_of(connection_of("nats://model"), publish_mode=mode, **fields)
    return LaneSet(options, targets if are_known else Targets(), INBOX, telemetry or Telemetry())


def refuse(
    lanes: LaneSet, rows: list[int], err_code: int, detail: str, now: float, are_known: bool = True
) -> None:
    """All go out, and these are refused."""
    every = block("acbd", 0)
    if not are_known:
        every = replace(every, targets=pa.nulls(len(every.distinct), pa.int32()))
    for lane, part in list(lanes.parts(every)):
        lane.offer(part)
        while lane.frames_to_send(now, 1 << 20) is not None:
            pass
        for row in rows:
            data = json.dumps({"stream": "S", "seq": 0, "error": error(503, err_code, detail)})
            lane.on_reply(b"%d" % row, 503, "", data.encode(), now)


@pytest.mark.parametrize(
    ("rows", "places"), [([0], {0}), ([1], {1}), ([2, 0], {0}), ([1, 2], {0, 1}), ([], set())]
)
@pytest.mark.parametrize("are_known", [True, False])
def test_a12_push_back_is_of_a_stream(rows, places, are_known):
    """
    A12: of the stream of the refused row, until it is tried again; said once. Without its streams
    a task knows of one.
    """
    lanes = lanes_of("async", are_known)
    refuse(lanes, rows, 10077, "maximum messages exceeded", 100.0, are_known)
    found, again = lanes.push_backs(100.1), lanes.push_backs(100.1)

    assert {place for place, _ in found} == (places if are_known else {None} if rows else set())
    assert {at for _, at in found} <= {100.25}
    assert again == []


def test_a12_silence_is_push_back_now():
    """
    A12: of all streams whose rows were not answered.
    """
    lanes = lanes_of("async")
    refuse(lanes, [], 0, "", 100.0)
    (lane,) = lanes.main
    lane.expire(200.0)

    assert sorted(lanes.push_backs(200.0)) == [(0, 200.0), (0, 200.0), (1, 200.0), (1, 200.0)]


def test_a12_what_is_none():
    """
    A12: a subject's own limit, and what dead letters meet.
    """
    lanes = lanes_of("async")
    refuse(lanes, [0, 1], 10077, "maximum messages per subject exceeded", 100.0)
    lanes.store_apart("dead_letters", block("a", 0))
    dead = lanes.apart["dead_letters"]
    dead.tally.push_backs["dead.a"] = 100.0

    assert lanes.push_backs(100.0) == []
    assert dead.tally.push_backs == {}


@pytest.mark.parametrize("mode", ["async", "fast", "atomic"])
def test_how_rows_go(mode):
    """
    By the mode of their stream; where it is not known, each with its PubAck.
    """
    lanes = lanes_of(mode)

    assert [lanes.way(place) for place in (0, 1, None)] == [
        Way(mode, "ab"), Way(mode, "cd"), Way("async"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_rows_go_by_the_lane_of_their_stream_in_order(seed):
    """
    Every row in one part, that of its stream; of a stream that takes no batches, and of rows
    without one, in the part that goes one by one, whichever of them come first.
    """
    rng = random.Random(seed)
    configs = [
        {"name": f"S{n}", "subjects": [f"{n}"], "allow_batched": n % 3 > 0} for n in range(9)
    ]
    targets = targets_of({str(n): Target.parse(each) for n, each in enumerate(configs)}.get)
    options = sink_of(connection_of("nats://model"), publish_mode="auto")
    lanes = LaneSet(options, targets, INBOX, Telemetry())
    for first in range(0, 400, 100):
        rows = messages(rng.choices("012345678x"[first // 50 :], k=100), first=first)
        places = targets.of(pa.array(rows.distinct))
        parts = list(lanes.parts(replace(rows, targets=places)))
        known = dict(zip(rows.distinct, places.to_pylist(), strict=True))
        fast = {place for place, each in enumerate(targets.streams) if each.allow_batched}
        found = {}
        for _, part in parts:
            subjects = [rows.distinct[code] for code in part.codes]
            batched = {known[each] for each in subjects} & fast
            assert not batched or len({known[each] for each in subjects}) == 1
            assert subjects == part.subject.cast(pa.string()).to_pylist()
            assert part.rows.to_pylist() == sorted(part.rows.to_pylist())
            found |= dict(zip(part.rows.to_pylist(), subjects, strict=True))

        assert len({id(lane) for lane, _ in parts}) == len(parts)
        assert sum(len(part) for _, part in parts) == len(found) == 100
        assert [found[row] for row in rows.rows.to_pylist()] == rows.subject.cast(
            pa.string()
        ).to_pylist()


def test_each_lane_is_told_how_far_away_the_server_is():
    """
    One that is there and one that begins later: 3,000 rows without an ack, not 1,000.
    """
    lanes = lanes_of("fast")
    (first,) = lanes.parts(block("a" * 4000, 0))
    lanes.outlook.round_trip_s = 0.008
    (second,) = lanes.parts(block("c" * 4000, 0))
    out = []
    for lane, part in (first, second):
        lane.offer(part)
        (start,) = parse(bytes(lane.frames_to_send(0.0, 1 << 20)))
        ack = {"type": "ack", "seq": 0, "msgs": 500}
        token = start.reply[len(f"{INBOX}.0.") :].encode()
        lane.on_reply(token, 0, "", json.dumps(ack).encode(), 0.0)
        while lane.frames_to_send(0.0, 1 << 20) is not None:
            pass
        out.append(lane.unanswered)

    assert out == [3000, 3000]


@pytest.mark.parametrize("minimum", [4096, 1])
@pytest.mark.parametrize("mode", ["fast", "async"])
@pytest.mark.parametrize(("trip_s", "most"), [(0.0, 8), (0.009, 8), (0.010, 16), (0.3, 16)])
def test_far_away_more_may_be_on_its_way(minimum, mode, trip_s, most):
    """
    As much as the options say for there; a worker keeps a limit for each.
    """
    given = {"min_in_flight": minimum, "max_in_flight": 8, "max_in_flight_far": 16}
    lanes = lanes_of(mode, **given)
    lanes.outlook.round_trip_s = trip_s
    ((lane, _),) = lanes.parts(block("a" * 100, 0))

    assert lane.limit == most


@pytest.mark.parametrize(
    ("trip_s", "order", "mode"),
    [
        (0.0, "subject", "fast"),
        (0.009, "subject", "fast"),
        (0.010, "subject", "async"),
        (0.040, "none", "async"),
        (0.040, "strict", "fast"),
    ],
)
def test_auto_takes_no_fast_batches_of_a_server_far_away(trip_s, order, mode):
    """
    As far as it was when rows came first: they keep their lane, whatever a later PING says. Where
    of a subject one row a round trip would go out, fast batches are faster all the same.
    """
    lanes = lanes_of("auto", strict_order=order == "strict")
    lanes.outlook.round_trip_s = trip_s
    before = lanes.way(0)
    parts = list(lanes.parts(block("acbd", 0)))
    lanes.outlook.round_trip_s = 0.04 if trip_s < 0.01 else 0.0
    later = list(lanes.parts(block("acbd", 4)))

    assert before == Way(mode, "ab") == lanes.way(0)
    assert {way.mode for way, _ in lanes.totals()} == {mode}
    assert [lane for lane, _ in later] == [lane for lane, _ in parts]
    assert len(parts) == (1 if mode == "async" else 2)


def test_round_trips_and_push_backs_are_counted_once():
    """
    As those of the lane's mode and stream, for this task alone, though a limit outlives it. What
    dead letters meet is no push-back of the task.
    """
    counts = []
    for _ in range(2):
        telemetry = Telemetry()
        lanes = lanes_of("atomic", telemetry=telemetry)
        ((lane, rows), *_) = lanes.parts(block("ab", 0))
        lanes.store_apart("dead_letters", rows)
        lane.terms.limit.acked(64, 0.01, 64, 0.0)
        for each in lanes.all:
            each.terms.limit.dropped(2.0)
        lanes.count_trips()
        lanes.count_trips()
        lane.terms.limit.acked(9, 0.01, 64, 3.0)
        name = "jetstream_publish_processing_time_seconds"
        found = telemetry.snapshot().total(name, mode="publish", stream="ab")
        counts.append((sum(found[:-1]), [totals["drops"] for _, totals in lanes.totals()]))

    assert counts == [(64, [1, 0])] * 2


def test_what_may_be_stored_waits_until_its_stream_is_seen():
    """
    Nobody can say whether a stream still knows its ids: nothing goes out until somebody does, and
    then a window that was cut meanwhile holds.
    """
    answers: list[dict[str, float] | None] = [None, None, {"duplicate_window_s": 9.0}]
    asked = []

    def again(known: list[Target]) -> list[Target | None]:
        asked.append([target.name for target in known])
        answer = answers.pop(0)
        return [replace(known[0], **answer) if answer is not None else None, *known[1:]]

    targets = targets_of(STREAMS.get, again)
    targets.of(pa.array([*STREAMS]))
    options = sink_of(connection_of("nats://model"), publish_mode="async", ledger=True)
    lanes = LaneSet(options, targets, INBOX, Telemetry())
    rows = replace(block("acbd", 0), unsure=pa.array([1.0] * 4))
    for lane, part in lanes.parts(rows):
        lane.offer(part)
    looks = [
        (lanes.check_windows(now), lanes.awaits_windows)
        for now in (100.0, 100.05, 100.2, 100.4, 100.5)
    ]

    assert looks == [(True, True), (False, True), (True, True), (True, False), (False, False)]
    assert lanes.publish_timeout_s == 9.0 - options.window.ack_timeout_s
    assert asked == [["ab", "cd"]] * 3


def test_what_waits_for_a_stream_that_is_never_seen_ends():
    """
    Nobody ever says whether a stream still knows its ids: after `publishTimeout` that is an error,
    and not before; rows that cannot be stored do not wait for it.
    """
    targets = targets_of(STREAMS.get)
    targets.of(pa.array([*STREAMS]))
    options = sink_of(
        connection_of("nats://model"), publish_mode="async", ledger=True, publish_timeout_s=60.0
    )
    lanes = LaneSet(options, targets, INBOX, Telemetry())
    list(lanes.parts(replace(block("acbd", 0), unsure=pa.array([math.inf] * 4))))
    assert not lanes.check_windows(100.0)
    list(lanes.parts(replace(block("acbd", 0), unsure=pa.array([math.inf, 1.0] * 2))))
    looks = [lanes.check_windows(now) for now in (100.0, 130.0, 159.8)]
    with pytest.raises(PublishTimeoutError, match="until stream 'ab' says how long"):
        lanes.check_windows(160.0)

    assert looks == [True] * 3
    assert lanes.awaits_windows


@pytest.mark.parametrize("more", [True, False])
def test_a_batch_stays_open_only_while_more_rows_may_come(more):
    """
    Else its last row commits it; lanes that come later are told, too.
    """
    lanes = lanes_of("fast")
    lanes.outlook.round_trip_s = 0.04
    lanes.outlook.more = more
    ends = []
    for lane, part in lanes.parts(block("aacc", 0)):
        lane.offer(part)
        first = lane.frames_to_send(1.0, 1 << 20)
        (row,) = parse(bytes(first))
        name = row.reply.removeprefix(f"{INBOX}.").partition(".")[2].encode()
        lane.on_reply(name, 0, "", b'{"type":"ack","seq":0,"msgs":500}', 1.04)
        ends += [
            each.reply.rsplit(".", 2)[1]
            for each in parse(bytes(lane.frames_to_send(1.04, 1 << 20)))
        ]

    assert ends == ["1" if more else "2"] * 2
