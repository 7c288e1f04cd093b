"""What a writer counts: which series a call moves, and that adding snapshots forgets nothing."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.publish.metrics import METRICS, UNKNOWN, ZEROS, MetricsSnapshot
from pyspark_jetstream.publish.telemetry import Telemetry

from ...kits.lanes import messages
from ...kits.metrics import series
from ...kits.seeds import examples

CRITICAL, NORMAL, NON_CRITICAL = Priority
QUOTA = Reason.TopicProduceQuotaExceeded


def paused(filter: str, now: float) -> Throttle:
    """An operator paused this filter for a second."""
    throttle = Throttle()
    throttle.table.command(ThrottleProducer(1, QUOTA, 1.0, filter), now)
    return throttle


def counted(*calls) -> MetricsSnapshot:
    """What a task counted whose telemetry was called like this."""
    telemetry = Telemetry(["a.*"])
    for call in calls:
        call(telemetry)
    return telemetry.snapshot()


def urgent(subjects, *priorities):
    """Rows with these priorities."""
    return replace(messages(subjects), priorities=pa.array(priorities, pa.int8()))


WAITING = urgent(["a.x", "a.y"], CRITICAL, CRITICAL), messages(["a.y", "b", "b"])
"""Rows that wait."""


def test_what_waits_is_a_gauge():
    """By route and priority; said twice it is what it is; nothing counted is no series."""
    found = counted(lambda t: t.waiting(WAITING), lambda t: t.waiting(WAITING))

    assert found.values["jetstream_publish_queue_total"] == {
        ("a.*", "critical"): (2,),
        ("a.*", "normal"): (1,),
        (UNKNOWN, "normal"): (2,),
    }
    assert counted(lambda t: t.count({})).values == {}


def test_everything_begins_at_zero():
    """Of labels whose values are known each has its zero."""
    labels = {(name, *labels) for name, labels, _ in ZEROS}

    assert {name for name, *_ in labels} == {
        name for name, metric in METRICS.items() if metric.kind != "histogram"
    }
    assert {values for *_, values in ZEROS} == {(0,)}
    for status in ("success", "pushed_back", "ignored", "rejected", "bypassed", "dropped"):
        assert ("jetstream_publish_outcomes_total", status) in labels
    for reason in Reason:
        assert ("jetstream_producer_throttled_times", reason.name, "", "") in labels
        for limiter in ("operator", "server"):
            assert ("jetstream_publish_rate_limit_count", limiter, reason.name, "", "") in labels
    reasons = ("MaxConcurrentRequests", "MaxMemoryUsage", "QueueTimeout", "Rejected")
    for reason, priority in product(reasons, ("critical", "normal", "noncritical")):
        assert ("jetstream_publish_dead_letter_total", reason, priority) in labels
        assert ("jetstream_publish_rejected_total", "", reason, priority) in labels
    assert ("jetstream_publish_retries_total",) in labels


SECONDS = [0.0, 0.0001, 0.0005, 0.00051, 0.001, 0.0011, 0.128, 0.1281, 262.144, 262.2, 9999.0]


def test_buckets_end_at_their_bounds():
    """A time falls into the first bucket whose bound, one of the design's, it does not exceed."""
    buckets = METRICS["jetstream_publish_queue_time_seconds"].buckets
    since = pa.array([-each for each in SECONDS] * 2, pa.float64())
    rows = messages(["b"] * len(since))
    found = counted(lambda t: t.sent(rows, since, 0.0))

    name = "jetstream_publish_queue_time_seconds"
    (counts,) = found.values[name].values()
    assert buckets == tuple(0.0005 * 2**n for n in range(20))
    places = Counter(sum(bound < each for bound in buckets) for each in SECONDS)
    assert list(counts[:-1]) == [2 * places[place] for place in range(21)]
    assert counts[-1] == round(2 * sum(SECONDS) * 1e6)
    nothing = counted(lambda t: t.sent(rows.slice(0, 0), since.slice(0, 0), 0.0))
    assert nothing.total("jetstream_publish_queue_time_seconds") == (0,) * 22


def test_rows_of_one_time_are_counted_as_rows_of_many_are():
    """By route and priority, whether their waits are the same or not."""
    rows = replace(
        messages(["a.b", "c", "a.b", "d", "c", "c"]),
        priorities=pa.array([CRITICAL, NORMAL, NORMAL, NORMAL, CRITICAL, CRITICAL], pa.int8()),
    )
    name = "jetstream_publish_queue_time_seconds"
    same, other = (
        counted(lambda t, since=since: t.sent(rows, pa.array(since), 1.0)).values[name]
        for since in ([0.5] * 6, [0.5, 0.5, 0.5, 0.5000001, 0.5, 0.5])
    )

    assert {labels: sum(found[:-1]) for labels, found in same.items()} == {
        ("a.*", "critical"): 1,
        ("a.*", "normal"): 1,
        ("UNKNOWN", "normal"): 2,
        ("UNKNOWN", "critical"): 2,
    }
    assert same == other


def test_no_more_than_so_many_routes():
    """What comes beyond the first hundred routes is counted as UNKNOWN, and nothing is lost."""
    found = counted(
        *(lambda t, n=n: t.paused(paused(f"r.{n}", 0.0), 9.0) for n in range(250)),
        lambda t: t.paused(paused("r.7", 9.0), 19.0),
    )
    series = found.values["jetstream_publish_rate_limit_count"]

    assert len(series) == 101
    assert series["operator", "TopicProduceQuotaExceeded", "r.7", ""] == (2,)
    assert series["operator", "TopicProduceQuotaExceeded", UNKNOWN, ""] == (150,)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────


def series_of(metric):
    """Any series of a metric."""
    labels = st.tuples(*[st.sampled_from("xyz")] * len(metric.labels))
    values = st.lists(st.integers(0, 999), min_size=metric.width, max_size=metric.width)
    return st.tuples(st.just(metric.name), labels, values)


SNAPSHOTS = st.builds(
    MetricsSnapshot.of, st.lists(st.sampled_from([*METRICS.values()]).flatmap(series_of))
)
"""What some task may have counted."""


@examples(50)
@given(st.lists(SNAPSHOTS, min_size=2, max_size=5), st.integers(0, 5), st.data())
def test_the_order_of_adding_does_not_matter(snapshots, cut, data):
    """Snapshots merged in any order, and in any grouping, are the same."""
    shuffled = data.draw(st.permutations(snapshots))
    grouped = [MetricsSnapshot.merged(shuffled[:cut]), MetricsSnapshot.merged(shuffled[cut:])]

    assert (
        MetricsSnapshot.merged(snapshots)
        == MetricsSnapshot.merged(shuffled)
        == MetricsSnapshot.merged(grouped)
    )


@examples(50)
@given(SNAPSHOTS)
def test_snapshots_are_plain_values(snapshot):
    """A snapshot comes back the same from pickle and from JSON."""
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert MetricsSnapshot.of_json(json.loads(json.dumps(snapshot.as_json()))) == snapshot


def test_a_snapshot_does_not_change():
    """What is counted later is in the next snapshot only."""
    telemetry = Telemetry()
    telemetry.count({"success": 1})
    before = telemetry.snapshot()
    telemetry.count({"success": 2})

    assert before.total("jetstream_publish_outcomes_total") == (1,)
    assert telemetry.snapshot().follows(before)
    assert not before.follows(telemetry.snapshot())


def test_what_ends_has_no_gauges():
    """Of a producer that has ended all stays that was counted, and nothing that was a state."""
    found = counted(
        lambda t: t.waiting(WAITING),
        lambda t: t.count({"success": 5}),
        lambda t: t.sent(messages(["b"]), pa.array([0.0, 0.0]), 1.0),
    ).ended()

    assert set(found.values) == {
        "jetstream_publish_outcomes_total",
        "jetstream_publish_queue_time_seconds",
    }


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"jetstream_publish_outcomes_total": 1},
        {"jetstream_publish_outcomes_total": [1]},
        {"jetstream_publish_outcomes_total": [[["success"]]]},
        {"jetstream_publish_outcomes_total": [[["success", ""], [1]]]},
        {"jetstream_publish_outcomes_total": [[[1], [1]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [1.5]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [-1]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [True]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [1, 2]]]},
        {"jetstream_publish_outcomes_total": [[["success"], [10**400]]]},
        {"jetstream_publish_outcomes_total": [[["\ud800"], [1]]]},
        {"jetstream_publish_queue_time_seconds": [[["", ""], [1]]]},
    ],
)
def test_what_is_no_snapshot(said):
    """JSON that is not of the table's labels and whole numbers is refused, with a ValueError."""
    with pytest.raises(ValueError):
        MetricsSnapshot.of_json(said)


def test_metrics_of_other_versions():
    """A metric that is not known is left out, the others are there."""
    said = counted(lambda t: t.count({"retries": 2})).as_json()

    assert MetricsSnapshot.of_json(said | {"jetstream_new_total": "?"}) == MetricsSnapshot.of_json(
        said
    )


def test_summary():
    """A snapshot is one line: outcomes, and what else was counted at all."""
    found = MetricsSnapshot.of(
        [
            series("publish_outcomes_total", ("success",), 980),
            series("publish_outcomes_total", ("success",), 10),
            series("publish_outcomes_total", ("pushed_back",), 10),
            series("publish_retries_total", (), 10),
            series("producer_throttled_times", ("TopicProduceQuotaExceeded", "a.>", ""), 640),
        ]
    )

    assert found.summary() == (
        "success=990 pushed_back=10 producer_throttled_times=640 publish_retries_total=10"
    )
    assert counted().summary() == ""


# ── routes ───────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Priority))), st.booleans())
def test_groups_are_the_rows_by_route_and_priority(rows, are_urgent):
    """Each row is in the one group of its route and priority, in order."""
    names, routes = ["a.x", "a.y", "b", "c.d.e"], ["a.*", "a.*", UNKNOWN, "c.>"]
    indices = [index for index, _ in rows]
    urgent = [priority for _, priority in rows] if are_urgent else None
    expected: dict[tuple[str, Priority], list[int]] = {}
    for row, index in enumerate(indices):
        key = routes[index], urgent[row] if urgent else NORMAL
        expected.setdefault(key, []).append(row)
    rows = replace(
        messages(["b"] * len(indices)),
        distinct=names,
        indices=pa.array(indices, pa.int32()),
        priorities=None if urgent is None else pa.array(urgent, pa.int8()),
    )
    groups = Telemetry(["a.*", "c.>"]).groups(rows)

    assert {tuple(key): places.to_pylist() for *key, places in groups} == expected
    assert len(groups) == len(expected)
