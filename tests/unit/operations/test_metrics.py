"""The sum of what producers report: nothing twice, nothing taken back, gauges of the living."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.operations.metrics import exporter
from pyspark_jetstream.operations.metrics import reports as module
from pyspark_jetstream.operations.metrics.reports import Reports
from pyspark_jetstream.publish.metrics import (
    METRICS,
    UNKNOWN,
    ZEROS,
    MetricsReport,
    MetricsSnapshot,
)

from ...kits.metrics import QUERY
from ...kits.metrics import reports as reports_of_task

ACKED = "jetstream_publish_outcomes_total"
WAITING = "jetstream_publish_queue_total"
SHED = "jetstream_publish_rejected_total"


def total_of(reports, now=0):
    """The sum of all queries."""
    return MetricsSnapshot.merged(reports.totals(now).values())


def report(
    producer: int,
    sequence: int,
    acked: int,
    final: bool = False,
    query: str = "q",
) -> MetricsReport:
    """What a producer says that has so many PubAcks, and may have 10 publishes on the wire."""
    counts = [
        (ACKED, ("success",), (acked,)),
        (WAITING, ("", "normal"), (10,)),
    ]
    return MetricsReport(producer, query, 3, sequence, final, MetricsSnapshot.of(counts))


def figures(reports: Reports, now: float) -> tuple[int, int]:
    """All PubAcks and the sum of what waits."""
    total = total_of(reports, now)
    return total.total(ACKED)[0], total.total(WAITING)[0]


def test_a_report_comes_back_from_the_wire():
    """JSON with a type, the producer, its batch, a sequence and whether it is the last."""
    sent = report(7, 2, 5, final=True)

    assert MetricsReport.decode(sent.encode()) == sent
    assert json.loads(sent.encode()) == {
        "type": "metrics",
        "producer_id": 7,
        "query_id": "q",
        "batch_id": 3,
        "sequence": 2,
        "final": True,
        "query_name": "",
        "snapshot": {
            ACKED: [[["success"], [5]]],
            WAITING: [[["", "normal"], [10]]],
        },
    }


def test_a_query_has_the_name_that_its_user_gave_it():
    """Writers are summed by that name, else by the query's id; batch writes are one."""
    reports, named = Reports(), {"query_name": "orders"}
    sent = [
        replace(report(1, 1, 5, query=QUERY), **named),
        replace(report(2, 1, 7, query="0123456789abcdef"), **named),
        report(3, 1, 11, query=QUERY),
        report(4, 1, 13, query="0123456789abcdef"),
    ]
    for each in sent:
        reports.take(MetricsReport.decode(each.encode()), 0.0)

    assert {name: total.total(ACKED)[0] for name, total in reports.totals(0.0).items()} == {
        "orders": 12, QUERY: 11, "": 13
    }  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"discover"}',
        *(
            json.dumps(json.loads(report(1, 1, 1).encode()) | change).encode()
            for change in (
                {"producer_id": "1"},
                {"sequence": True},
                {"sequence": None},
                {"final": 0},
                {"snapshot": None},
            )
        ),
    ],
)
def test_what_is_no_report(data):
    """Anything else on the subject is a ValueError."""
    with pytest.raises(ValueError):
        MetricsReport.decode(data)


def test_counters_stay_and_gauges_go():
    """Of a producer that has ended, or was silent; gauges come back with its next report."""
    reports = Reports(silent_s=30)
    reports.take(report(1, 1, 5), 0)
    reports.take(report(2, 1, 7), 10)

    assert figures(reports, 30) == (12, 20)
    assert figures(reports, 31) == (12, 10)
    reports.take(report(1, 2, 6), 32)
    assert figures(reports, 32) == (13, 20)
    reports.take(report(2, 2, 9, final=True), 33)
    assert figures(reports, 33) == (15, 10)
    assert figures(reports, 1e9) == (15, 0)


TIMES = st.lists(st.integers(0, 2), min_size=5, max_size=5).filter(lambda times: times[-1])
"""How often each report of a producer comes: all but the last may be lost."""


@given(st.lists(st.tuples(st.integers(1, 99), TIMES), min_size=1, max_size=5), st.data())
def test_lost_late_and_double_reports(producers, data):
    """No total is ever less than one before, and in the end it is the sum."""
    sent = [
        report(producer, n, acked * n // 5, final=n == 5)
        for producer, (acked, times) in enumerate(producers)
        for n, count in enumerate(times, 1)
        for _ in range(count)
    ]
    reports, before = Reports(), 0
    for now, each in enumerate(data.draw(st.permutations(sent))):
        reports.take(each, now)
        (after, _) = figures(reports, now)
        assert after >= before
        before = after

    assert before == sum(acked for acked, _ in producers)
    assert not any(reports.take(each, 0) for each in sent)


def test_counts_that_become_less():
    """A report that takes counts back is refused and changes nothing."""
    reports = Reports()
    reports.take(report(1, 1, 5), 0)

    with pytest.raises(ValueError, match="producer 1: its counts became less"):
        reports.take(report(1, 2, 4), 1)
    assert figures(reports, 1) == (5, 10)


def query(number: int) -> str:
    """As Spark names one."""
    return f"00000000-0000-4000-8000-{number:012}"


def test_queries_are_told_apart():
    """Each has its sums, also of producers that have ended; all batch writes are one."""
    reports = Reports()
    for producer, name in enumerate([query(1), "5f0c", query(2), query(1), "77aa", query(3)]):
        final = producer % 2 == 1
        reports.take(report(producer, 1, 10**producer, final, query=name), 0)
    found = {name: total.total(ACKED)[0] for name, total in reports.totals(0).items()}

    assert found == {query(1): 1001, "": 10010, query(2): 100, query(3): 100_000}
    assert figures(reports, 0) == (111_111, 30)


def test_there_is_a_bound_to_queries(monkeypatch):
    """Where there are as many series as are told apart, new queries are one; the others go on."""
    monkeypatch.setattr(module, "_MAX_SERIES", 3)
    reports = Reports()
    for producer in range(6):
        reports.take(report(producer, 1, 5, query=query(producer)), 0)
    reports.take(report(0, 2, 6), 0)

    totals = reports.totals(0)
    assert {name: total.total(ACKED)[0] for name, total in totals.items()} == {
        query(0): 6, query(1): 5, UNKNOWN: 20,
    }  # fmt: skip


def test_a_counter_says_since_when_it_counts():
    """Scrapers of OpenMetrics see when it was 0: just before it was first heard of."""
    now = [1000.0]
    one = exporter.Exporter(clock=lambda: now[0])

    def created():
        families = {each.name: each for each in one.collect()}
        samples = families["jetstream_publish_outcomes"].samples
        return [
            sample.value for sample in samples
            if sample.name.endswith("_created") and sample.labels["query"] == QUERY
        ]  # fmt: skip

    one.take(report(1, 1, 900, query=QUERY).encode())
    first, again = created(), created()
    now[0] += 60
    one.take(report(1, 2, 901, query=QUERY).encode())

    assert len(first) == 1
    assert first == [1000.0]
    assert again == created() == first


@pytest.mark.parametrize(
    ("name", "labels", "shown"),
    [
        (ACKED, ("hacked",), (UNKNOWN,)),
        ("jetstream_publish_queue_total", ("r", "y"), ("r", UNKNOWN)),
        ("jetstream_publish_rate_limit_count", ("me", "why", "s", ""), (UNKNOWN, UNKNOWN, "s", "")),
        ("jetstream_publish_queue_total", ("S" * 5000, "critical"), (UNKNOWN, "critical")),
        ("jetstream_publish_dead_letter_total", ("MaxCpuUsage", "normal"), (UNKNOWN, "normal")),
    ],
)  # fmt: skip
def test_labels_that_no_producer_has_are_unknown(name, labels, shown):
    """Statuses, reasons, priorities, limiters that there are not, and labels that are too long."""
    reports = Reports()
    values = [1] * METRICS[name].width
    reports.take(replace(report(1, 1, 1), snapshot=MetricsSnapshot.of([(name, labels, values)])), 0)

    assert list(total_of(reports).values[name]) == [shown]


def test_every_label_that_producers_have_is_known():
    """What is shown before anything has happened, and what tasks report, passes."""
    for snapshot in (ZEROS, *(each.snapshot for each in reports_of_task(1))):
        reports = Reports()
        reports.take(replace(report(1, 1, 1), snapshot=snapshot), 0)
        assert total_of(reports) == snapshot


def test_there_is_a_bound_to_series(monkeypatch):
    """Of too many the open labels are UNKNOWN; known ones go on, and no count is lost."""
    monkeypatch.setattr(module, "_MAX_SERIES", 5)
    reports = Reports()

    def take(sequence, producer, count, final=False):
        labels = [(f"S{n}", "QueueTimeout", "normal") for n in range(producer, producer + 4)]
        counts = [(SHED, each, (count,)) for each in labels]
        said = replace(report(producer, sequence, 0, final), snapshot=MetricsSnapshot.of(counts))
        return reports.take(said, 0)

    assert all(take(1, producer, 10, final=producer == 0) for producer in range(8))
    assert take(2, 7, 20)
    found = total_of(reports).values[SHED]

    assert len(found) == 6
    assert found["S0", "QueueTimeout", "normal"] == (10,)
    assert sum(count for (count,) in found.values()) == 4 * (10 * 7 + 20)


def test_there_is_a_bound_to_what_producers_hold(monkeypatch):
    """Those silent for longest are taken for ended; their counts stay."""
    monkeypatch.setattr(module, "_MAX_HELD", 8)
    reports = Reports()
    for producer in range(6):
        reports.take(report(producer, 1, 5), producer)

    assert figures(reports, 5.0) == (30, 20)
    assert (len(reports._producers), len(reports._ended)) == (2, 4)


@pytest.mark.parametrize("change", [{"producer_id": 10**30}, {"sequence": 1 << 63}])
def test_a_report_s_numbers_are_bounded(change):
    """What is remembered of a producer is its number."""
    said = json.loads(report(1, 1, 1).encode()) | change

    with pytest.raises(ValueError, match=next(iter(change))):
        MetricsReport.decode(json.dumps(said).encode())


def test_the_exporter_warns_once_in_a_thousand(caplog):
    """A stranger who floods the subject does not flood the log."""
    one = exporter.Exporter()
    for _ in range(1_001):
        one.take(b"?")

    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" so far")[0] for line in said] == [
        "left out 1 reports", "left out 1001 reports",
    ]  # fmt: skip
