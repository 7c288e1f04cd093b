"""What a writer counts: which series a call moves, and that adding snapshots forgets nothing."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttle import Source
from pyspark_jetstream.outbox.throttleprotocol import Reason
from pyspark_jetstream.publish.metrics import METRICS, UNKNOWN, Bounded, Snapshot
from pyspark_jetstream.publish.telemetry import Meters, Routes

from ...kits.pressure import SEED

CRITICAL, NORMAL, NON_CRITICAL = Priority
QUOTA = Reason.TopicProduceQuotaExceeded

TABLE = {
    "jetstream_publish_queue_total": ("gauge", "mode subject priority"),
    "jetstream_publish_queue_limit_total": ("gauge", ""),
    "jetstream_publish_concurrency_limit_total": ("gauge", ""),
    "jetstream_publish_concurrency_items_total": ("gauge", "mode priority"),
    "jetstream_publish_rejected_total": ("counter", "mode subject reason priority"),
    "jetstream_publish_queue_time_seconds": ("histogram", "mode subject priority"),
    "jetstream_publish_processing_time_seconds": ("histogram", "mode priority"),
    "jetstream_producer_throttled_times": ("counter", "reason subject"),
    "jetstream_publish_rate_limit_count": ("counter", "limiter reason subject"),
    "jetstream_publish_outcomes_total": ("counter", "status"),
    "jetstream_publish_dead_letter_total": ("counter", "reason priority"),
    "jetstream_publish_dropped_total": ("counter", "reason priority"),
    "jetstream_publish_retries_total": ("counter", "reason priority"),
    "jetstream_publish_duplicates_total": ("counter", "reason priority"),
    "jetstream_publish_blocked_seconds_total": ("counter", "cause"),
    "jetstream_publish_retries_beyond_duplicate_window_total": ("counter", ""),
    "jetstream_publish_priority_unrecognised_total": ("counter", ""),
    "jetstream_producer_throttle_commands_invalid_total": ("counter", ""),
}
"""Section 8 of the design, and the counters that its other sections name."""


def counted(*calls) -> Snapshot:
    """What a task counted whose meters were called like this."""
    meters = Meters()
    for call in calls:
        call(meters)
    return meters.snapshot()


def test_names_and_labels():
    """
    The metrics have the names, kinds and labels of the design, and the buckets it says.
    """
    found = {m.name: (m.kind, " ".join(m.labels)) for m in METRICS.values()}

    assert found == TABLE
    for name, first in (("queue", 0.0005), ("processing", 0.001)):
        buckets = METRICS[f"jetstream_publish_{name}_time_seconds"].buckets
        assert buckets == tuple(first * 2**n for n in range(20))


@pytest.mark.parametrize(
    ("call", "name", "series"),
    [
        (
            lambda m: m.queued({CRITICAL: 1, NON_CRITICAL: 7}, "a.>", "fast"),
            "jetstream_publish_queue_total",
            {("fast_publish", "a.>", "critical"): 1, ("fast_publish", "a.>", "noncritical"): 7},
        ),
        (
            lambda m: m.queued({NORMAL: 2}),
            "jetstream_publish_queue_total",
            {("publish", UNKNOWN, "normal"): 2},
        ),
        (lambda m: m.limits(64, 9), "jetstream_publish_concurrency_limit_total", {(): 64}),
        (lambda m: m.limits(64, 9), "jetstream_publish_queue_limit_total", {(): 9}),
        (
            lambda m: m.in_flight({None: 3}, "atomic"),
            "jetstream_publish_concurrency_items_total",
            {("publish", ""): 3},
        ),
        (
            lambda m: m.rejected("a.*", "MaxMemoryUsage", NON_CRITICAL, 5),
            "jetstream_publish_rejected_total",
            {("publish", "a.*", "MaxMemoryUsage", "noncritical"): 5},
        ),
        (
            lambda m: m.throttled(QUOTA, "a.>", 640),
            "jetstream_producer_throttled_times",
            {("TopicProduceQuotaExceeded", "a.>"): 640},
        ),
        (
            lambda m: m.rate_limited(Source.SERVER, QUOTA, "a.>"),
            "jetstream_publish_rate_limit_count",
            {("server", "TopicProduceQuotaExceeded", "a.>"): 1},
        ),
        (
            lambda m: m.outcome("ignored", 4),
            "jetstream_publish_outcomes_total",
            {("ignored",): 4},
        ),
        (
            lambda m: m.dead_letters("QueueTimeout", NORMAL, 2),
            "jetstream_publish_dead_letter_total",
            {("QueueTimeout", "normal"): 2},
        ),
        (
            lambda m: m.dropped("MaxConcurrentRequests", NON_CRITICAL, 2),
            "jetstream_publish_dropped_total",
            {("MaxConcurrentRequests", "noncritical"): 2},
        ),
        (lambda m: m.retries(2), "jetstream_publish_retries_total", {("", ""): 2}),
        (lambda m: m.duplicates(3), "jetstream_publish_duplicates_total", {("", ""): 3}),
        (
            lambda m: m.blocked("throttle", 1.25),
            "jetstream_publish_blocked_seconds_total",
            {("throttle",): 1_250_000},
        ),
        (
            lambda m: m.late_retries(1),
            "jetstream_publish_retries_beyond_duplicate_window_total",
            {(): 1},
        ),
        (lambda m: m.unrecognised(6), "jetstream_publish_priority_unrecognised_total", {(): 6}),
        (
            lambda m: m.invalid_commands(),
            "jetstream_producer_throttle_commands_invalid_total",
            {(): 1},
        ),
    ],
)
def test_each_call_moves_its_series(call, name, series):
    """
    A call adds to a counter, or says what a gauge is; nothing counted makes no series.
    """
    twice = 1 if METRICS[name].kind == "gauge" else 2
    found = counted(call, call).values[name]

    assert found == {labels: (twice * value,) for labels, value in series.items()}
    assert all(len(labels) == len(METRICS[name].labels) for labels in found)
    assert counted(lambda m: m.retries(0), lambda m: m.outcome("dropped", 0)).values == {}


SECONDS = [0.0, 0.0001, 0.0005, 0.00051, 0.001, 0.128, 0.1281, 262.144, 262.2, 9999.0]
PLACES = [0, 0, 0, 1, 1, 8, 9, 19, 20, 20]


def test_buckets_end_at_their_bounds():
    """
    A time falls into the first bucket whose bound it does not exceed, be it given in pairs or as
    an array; the sum is exact to a microsecond.
    """
    pairs = counted(lambda m: m.waited([(each, 2) for each in SECONDS]))
    array = counted(lambda m: m.waited(pa.array(SECONDS * 2, pa.float64())))
    (series,) = pairs.values["jetstream_publish_queue_time_seconds"].values()

    assert list(series[:-1]) == [2 * Counter(PLACES)[place] for place in range(21)]
    assert series[-1] == round(2 * sum(SECONDS) * 1e6)
    assert pairs == array
    assert (
        counted(lambda m: m.waited(pa.array([], pa.float64()))).total(
            "jetstream_publish_queue_time_seconds"
        )
        == (0,) * 22
    )


def test_processing_times_have_their_own_buckets():
    """
    Round trips begin at a millisecond.
    """
    found = counted(lambda m: m.processed(0.001, 3), lambda m: m.processed(0.0011, 4, NORMAL))
    series = found.values["jetstream_publish_processing_time_seconds"]

    assert series["publish", ""][:3] == (3, 0, 0)
    assert series["publish", "normal"][:3] == (0, 4, 0)
    assert found.total("jetstream_publish_processing_time_seconds")[-1] == 7400


def test_no_more_than_so_many_routes():
    """
    What comes beyond the first hundred routes is counted as UNKNOWN, and nothing is lost.
    """
    found = counted(
        *(lambda m, n=n: m.rejected(f"r.{n}", "QueueTimeout", NORMAL, 1) for n in range(250)),
        lambda m: m.rejected("r.7", "QueueTimeout", NORMAL, 1),
    )
    series = found.values["jetstream_publish_rejected_total"]

    assert len(series) == 101
    assert series["publish", "r.7", "QueueTimeout", "normal"] == (2,)
    assert series["publish", UNKNOWN, "QueueTimeout", "normal"] == (150,)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────


def count_something(meters: Meters, rng: random.Random) -> None:
    """One call of any kind."""
    route, priority = rng.choice(["a.>", "b.*", UNKNOWN]), rng.choice(list(Priority))
    mode, count = rng.choice(["async", "fast", "atomic"]), rng.randrange(1000)
    rng.choice(
        [
            lambda: meters.queued({priority: count}, route, mode),
            lambda: meters.limits(count, 10_000),
            lambda: meters.waited([(rng.expovariate(1), count)], route, priority, mode),
            lambda: meters.processed(rng.expovariate(100), count, priority, mode),
            lambda: meters.rejected(route, "MaxMemoryUsage", priority, count, mode),
            lambda: meters.throttled(rng.choice(list(Reason)), route, count),
            lambda: meters.outcome("success", count),
            lambda: meters.blocked("queue", rng.random() / 3),
        ]
    )()


def anything(rng: random.Random) -> Snapshot:
    """What some task may have counted."""
    meters = Meters()
    for _ in range(rng.randrange(30)):
        count_something(meters, rng)
    return meters.snapshot()


@pytest.mark.parametrize("seed", range(SEED, SEED + 50))
def test_the_order_of_adding_does_not_matter(seed):
    """
    Snapshots merged in any order, and in any grouping, are the same to the last digit; so are
    their gauges.
    """
    rng = random.Random(seed)
    snapshots = [anything(rng) for _ in range(rng.randrange(2, 12))]
    shuffled = rng.sample(snapshots, len(snapshots))
    cut = rng.randrange(len(snapshots))
    grouped = [Snapshot.merged(shuffled[:cut]), Snapshot.merged(shuffled[cut:])]

    assert Snapshot.merged(snapshots) == Snapshot.merged(shuffled) == Snapshot.merged(grouped)


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_snapshots_are_plain_values(seed):
    """
    A snapshot comes back the same from pickle and from JSON, and later counts do not change it.
    """
    snapshot = anything(random.Random(seed))

    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert Snapshot.of_json(json.loads(json.dumps(snapshot.as_json()))) == snapshot


def test_a_snapshot_does_not_change():
    """
    What is counted later is in the next snapshot only.
    """
    meters = Meters()
    meters.outcome("success", 1)
    before = meters.snapshot()
    meters.outcome("success", 1)

    assert before.total("jetstream_publish_outcomes_total") == (1,)
    assert meters.snapshot().follows(before)
    assert not before.follows(meters.snapshot())


def test_what_ends_has_no_gauges():
    """
    Of a producer that has ended all stays that was counted, and nothing that was a state.
    """
    found = counted(
        lambda m: m.limits(64, 9),
        lambda m: m.queued({NORMAL: 3}),
        lambda m: m.outcome("success", 5),
        lambda m: m.processed(0.1, 5),
    ).ended()

    assert set(found.values) == {
        "jetstream_publish_outcomes_total",
        "jetstream_publish_processing_time_seconds",
    }


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"jetstream_publish_outcomes_total": 1},
        {"jetstream_publish_outcomes_total": [1]},
        {"jetstream_publish_outcomes_total": [[["success"]]]},
        {"jetstream_publish_outcomes_total": [[["success", "b"], [1]]]},
        {"jetstream_publish_outcomes_total": [[[1], [1]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [1.5]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [-1]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [True]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [1, 2]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [10**400]]]},
        {"jetstream_publish_outcomes_total": [[["\ud800"], [1]]]},
        {"jetstream_publish_processing_time_seconds": [[["publish", ""], [1]]]},
    ],
)
def test_what_is_no_snapshot(said):
    """
    JSON that is not of the table's labels and whole numbers is refused, with a ValueError.
    """
    with pytest.raises(ValueError):
        Snapshot.of_json(said)


def test_metrics_of_other_versions():
    """
    A metric that is not known is left out, the others are there.
    """
    said = counted(lambda m: m.retries(2)).as_json()

    assert Snapshot.of_json(said | {"jetstream_new_total": "?"}) == Snapshot.of_json(said)


def test_summary():
    """
    A snapshot is one line: outcomes, what was counted at all, and times by their buckets' bounds.
    """
    found = counted(
        lambda m: m.outcome("success", 990),
        lambda m: m.outcome("dropped", 10),
        lambda m: m.retries(10),
        lambda m: m.throttled(QUOTA, "a.>", 640),
        lambda m: m.blocked("queue", 0.5),
        lambda m: m.blocked("throttle", 0.25),
        lambda m: m.waited([(0.0004, 98), (0.9, 2)]),
        lambda m: m.processed(999.0, 1),
    )

    assert found.summary() == (
        "dropped=10 success=990 throttled_ms=640 retries=10 blocked_s=0.750"
        " queued_p50_s<=0.0005 queued_p99_s<=1.024 rtt_p50_s<=inf rtt_p99_s<=inf"
    )
    assert counted().summary() == "nothing counted"
    assert repr(Meters()) == "<Meters nothing counted>"


def test_labels_have_a_bound():
    """
    So many labels pass; one that has passed always does.
    """
    bounded = Bounded(2)

    assert [bounded(each) for each in "abcacb"] == ["a", "b", UNKNOWN, "a", UNKNOWN, "b"]


# ── routes ───────────────────────────────────────────────────────────────────────────────────


def test_routes_are_the_first_pattern_that_matches():
    """
    Of the patterns the first that matches counts; a subject without one has none.
    """
    routes = Routes(["orders.eu", "orders.*", "orders.>", "metrics.>"])

    assert routes.of(["orders.eu", "orders.us", "orders.eu.x", "metrics.a", "b"]).to_pylist() == [
        0, 1, 2, 3, None,
    ]  # fmt: skip
    assert Routes([]).of(["a"]).to_pylist() == [None]
    assert repr(routes) == "<Routes orders.eu, orders.*, orders.>, metrics.>>"


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_groups_are_the_rows_by_route_and_priority(seed):
    """
    Each row is in exactly one group: that of its subject's route and of its priority, in order.
    """
    rng = random.Random(seed)
    distinct = ["a.x", "a.y", "b", "c.d.e"]
    indices = [rng.randrange(4) for _ in range(rng.randrange(40))]
    urgent = [rng.choice(list(Priority)) for _ in indices] if rng.random() < 0.8 else None
    expected: dict[tuple[str, Priority], list[int]] = {}
    for row, index in enumerate(indices):
        route = ["a.*", "a.*", UNKNOWN, "c.>"][index]
        expected.setdefault((route, urgent[row] if urgent else NORMAL), []).append(row)
    priorities = None if urgent is None else pa.array(urgent, pa.int8())
    groups = Routes(["a.*", "c.>"]).groups(distinct, pa.array(indices, pa.int32()), priorities)

    assert {(r, p): places.to_pylist() for r, p, places in groups} == expected
    assert len(groups) == len(expected)
