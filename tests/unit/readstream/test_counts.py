"""What a streaming read counts: zeros first, nothing less than before, only labels of the table."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.operations.metrics import Reports
from pyspark_jetstream.publish.metrics import (
    EXPORTED,
    READ_METRICS,
    UNKNOWN,
    MetricsSnapshot,
    Report,
)
from pyspark_jetstream.readstream.counts import MAX_STREAMS, ReadCounts, RowCounts
from pyspark_jetstream.readstream.driver import behind_latest, query_label

from ...kits.seeds import SEED

LAYOUT = Layout(tuple(SubjectPartition(p, "S", f"s.{p}.>") for p in range(2)), "s.{partition}.>")
FIRST, SECOND = ("q", "S", "0"), ("q", "S", "1")


def name(short: str) -> str:
    return f"jetstream_read_{short}"


def said(counts: ReadCounts | RowCounts, short: str) -> dict[tuple[str, ...], tuple[int, ...]]:
    """A metric's series in the next report."""
    return Report.decode(counts.report()).snapshot.values.get(name(short), {})


def driver(query: str = "q", run: str = "r") -> ReadCounts:
    return ReadCounts(query, run, LAYOUT)


def rows(
    partitions: list[int], size: int = 3, subjects: list[str | None] | None = None
) -> pa.RecordBatch:
    """Rows of these partitions, with payloads of so many bytes."""
    count = len(partitions)
    return pa.record_batch(
        {
            "subject": pa.array(subjects or ["s"] * count, pa.string()),
            "data": pa.array([b"x" * size] * count, pa.binary()),
            "partition": pa.array(partitions, pa.int32()),
            "stream": pa.array(["S"] * count),
        }
    )


def pins(**changes) -> dict:
    """As `Pins.report` says it."""
    unpins = {"attempt": 0, "admin": 0, "timeout": 0, "leader": 0}
    return {"pinned": None, "pins": 0, "strangers": 0, "unpins": unpins} | changes


def test_lags_as_the_kafka_source_shows_them():
    """
    Of lags their mean, most and least, as texts; nothing where there are none, or one is not known.
    """
    assert behind_latest([4, 0, 2]) == {
        "avgOffsetsBehindLatest": "2.0", "maxOffsetsBehindLatest": "4",
        "minOffsetsBehindLatest": "0",
    }  # fmt: skip
    assert behind_latest([]) == behind_latest([3, None]) == {}


def test_all_that_grows_is_there_as_zero():
    """
    The first report has every counter and histogram of every partition, as 0, with the labels of
    the table; gauges are there once they are known.
    """
    first = Report.decode(driver().report())

    assert first.snapshot.values.keys() == {
        m.name for m in READ_METRICS.values() if m.kind != "gauge"
    }
    assert not any(value for _, _, series in first.snapshot for value in series)
    for each, labels, _ in first.snapshot:
        assert len(labels) == len(EXPORTED[each].labels)
    assert set(said(driver(), "rows_total")) == {FIRST, SECOND}
    assert len(said(driver(), "unpins_total")) == 8
    assert (first.query_id, first.run, first.sequence, first.final) == ("q", "r", 1, False)


def test_no_label_is_a_subject():
    """
    Readers' metrics tell queries, streams and partitions apart, and nothing that grows with the
    subjects of a stream.
    """
    assert {label for each in READ_METRICS.values() for label in each.labels} == {
        "query", "stream", "partition", "reason",
    }  # fmt: skip


def test_rows_and_bytes_by_partition():
    """
    A task counts rows and payload bytes of the partitions they are of, also where one task has
    rows of several.
    """
    counts = RowCounts("q", "r")
    for batch in (rows([0, 0, 0]), rows([0, 1, 1], 5), rows([])):
        counts.add(batch)
    counts.add_task(0.3)

    assert said(counts, "rows_total") == {FIRST: (4,), SECOND: (2,)}
    assert said(counts, "bytes_total") == {FIRST: (14,), SECOND: (10,)}
    (series,) = said(counts, "task_seconds").values()
    assert (sum(series[:-1]), series[-1]) == (1, 300_000)


def test_rows_that_are_left_out_are_counted_apart():
    """
    Those whose subject is null: they are no rows that Spark gets.
    """
    counts = RowCounts("q", "r")
    counts.add(rows([0, 0, 1], subjects=["a", None, None]))
    counts.add(rows([0, 0], subjects=[None, None]))

    assert said(counts, "rows_total") == {FIRST: (1,)}
    assert said(counts, "bytes_total") == {FIRST: (3,)}
    assert said(counts, "left_out_total") == {FIRST: (3,), SECOND: (1,)}


def test_streams_that_come_and_go():
    """
    Of several streams each is partition 0 of its own; one that comes begins at 0, of one that goes
    the counts stay and the lag does not. What consumers have is not there.
    """
    counts = ReadCounts("q", "r", Layout.of_streams(["A", "B"]))
    counts.set_lag({"A": 5, "B": 7})
    counts.set_layout(Layout.of_streams(["B", "C"]))
    counts.set_lag({"B": 3, "A": 5})

    assert said(counts, "lag_messages") == {("q", "B", "0"): (3,)}
    assert said(counts, "rows_total") == {("q", stream, "0"): (0,) for stream in "ABC"}
    for short in ("claims_total", "pins_total", "unpins_total", "paused"):
        assert said(counts, short) == {}


def test_more_streams_than_are_told_apart():
    """
    A report has so many streams; those that come later are one, whose lag is their sum. The report
    of the most fits into a message.
    """
    names = [f"a-tenant-with-a-name-{number}" for number in range(MAX_STREAMS + 3)]
    counts = ReadCounts("q", "r", Layout.of_streams(names[:-1]))
    counts.set_layout(Layout.of_streams(names))
    counts.set_lag(dict.fromkeys(names, 4))
    counts.set_under_way(dict.fromkeys(names, 4))
    rest = ("q", UNKNOWN, UNKNOWN)

    for short, each, sum_ in (("lag_messages", 4, 12), ("rows_total", 0, 0)):
        series = said(counts, short)
        assert len(series) == MAX_STREAMS + 1
        assert (series["q", names[0], "0"], series[rest]) == ((each,), (sum_,))
    assert Report.decode(counts.report()).snapshot.size <= 5 * (MAX_STREAMS + 1) + 2
    assert len(counts.report()) < 1 << 19


def total_of(reports: Reports, now: float) -> MetricsSnapshot:
    """The sum over all queries."""
    return MetricsSnapshot.merged(reports.totals(now).values())


def test_tasks_and_driver_are_one_sum():
    """
    What tasks count is added to the driver's zeros, whatever the order of the reports, and stays
    when they have ended.
    """
    reports = Reports()
    tasks = [RowCounts("q", f"t{n}") for n in range(3)]
    for task in tasks:
        task.add(rows([0, 1]))
        reports.take(Report.decode(task.report(final=True)), 0)
    reports.take(Report.decode(driver().report()), 1)

    total = total_of(reports, 100)
    assert total.total(name("rows_total")) == (6,)
    assert total.total(name("rows_total"), partition="1") == (3,)


def test_one_query_says_its_gauges_alone():
    """
    Of a query that was killed and started again the lag is the one said last, not the sum; that of
    another query stands beside it, and each goes when nobody says it any more.
    """
    reports = Reports(silent_s=30)
    for now, (query, run, lag) in enumerate([("q", "a", 7), ("other", "b", 1), ("q", "c", 5)]):
        counts = driver(query, run)
        counts.set_lag({"0": lag, "1": lag})
        reports.take(Report.decode(counts.report()), now)

    total = total_of(reports, 3)
    assert total.total(name("lag_messages"), query="q") == (10,)
    assert total.total(name("lag_messages"), query="q", partition="0") == (5,)
    assert total.total(name("lag_messages"), query="other") == (2,)
    assert total_of(reports, 31.5).total(name("lag_messages")) == (10,)
    assert name("lag_messages") not in total_of(reports, 33).values


def test_lag_and_the_batch_under_way():
    """
    Both are as they were said last, never below 0; partitions without a message in the batch have
    0.
    """
    counts = driver()
    counts.set_lag({"0": 5, "1": -1})
    counts.set_under_way({"1": 8})

    assert said(counts, "lag_messages") == {FIRST: (5,), SECOND: (0,)}
    assert said(counts, "batch_messages") == {FIRST: (0,), SECOND: (8,)}
    counts.set_under_way({})
    assert said(counts, "batch_messages") == {FIRST: (0,), SECOND: (0,)}


def test_a_query_that_waits_stands_nowhere():
    """
    While another query reads in its place, there is no lag of this one: it would be that of an old
    checkpoint.
    """
    counts = driver()
    counts.set_lag({"0": 5, "1": 5})
    counts.set_under_way({})
    counts.set_active(False)

    assert said(counts, "active") == {("q",): (0,)}
    assert said(counts, "lag_messages") == said(counts, "batch_messages") == {}
    counts.set_active(True)
    counts.set_lag({"0": 1})
    assert said(counts, "active") == {("q",): (1,)}
    assert said(counts, "lag_messages") == {FIRST: (1,)}


def test_batches_and_their_times():
    """
    Each batch is in the bucket of its time, and the sum is exact to the microsecond.
    """
    counts = driver()
    for seconds in (0.004, 0.5, 0.0100015, 1e9):
        counts.add_batch(seconds)

    (series,) = said(counts, "batch_seconds").values()
    buckets = EXPORTED[name("batch_seconds")].buckets
    assert sum(series[:-1]) == 4
    assert series[0] == 1 and series[1] == 1 and series[len(buckets)] == 1
    assert series[-1] == 4_000 + 500_000 + 10_002 + 10**15


def test_claims_redeliveries_and_dead_letters():
    """
    Claims count one by one, those delivered before also as redelivered; dead letters are told as
    they are now.
    """
    counts = driver()
    counts.add_claims({"0": [1, 1, 2]})
    counts.add_claims({"0": [5], "1": []})
    counts.set_dead_letters({"0": 2})
    counts.set_ack_pending({"0": 9})

    assert said(counts, "claims_total") == {FIRST: (4,), SECOND: (0,)}
    assert said(counts, "redelivered_total") == {FIRST: (2,), SECOND: (0,)}
    assert said(counts, "dead_letters_total") == {FIRST: (2,), SECOND: (0,)}
    assert said(counts, "ack_pending_messages") == {FIRST: (9,)}


def test_what_may_be_taken_back_is_believed_at_the_second_look():
    """
    An attempt's own unpin looks like an administrator's until it is announced; it never counts as
    one, while what is still there at the next look does.
    """
    counts = driver()
    counts.set_pins("0", pins(pinned="a", pins=1, unpins=dict(pins()["unpins"], admin=1)))
    counts.set_pins("0", pins(pins=2, unpins=dict(pins()["unpins"], attempt=1)))
    assert said(counts, "unpins_total")[*FIRST, "admin"] == (0,)
    assert said(counts, "pinned") == {FIRST: (0,)}
    counts.set_pins("0", pins(pins=2, unpins=dict(pins()["unpins"], attempt=1, timeout=1)))
    counts.set_pins(
        "0", pins(pinned="b", pins=3, unpins=dict(pins()["unpins"], attempt=1, timeout=1))
    )

    found = said(counts, "unpins_total")
    assert (found[*FIRST, "attempt"], found[*FIRST, "timeout"]) == ((1,), (1,))
    assert said(counts, "pins_total")[FIRST] == (2,)
    assert said(counts, "pinned") == {FIRST: (1,)}


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_no_counter_ever_becomes_less(seed):
    """
    However pins, claims and batches come, and whatever is taken back, an exporter accepts every
    report: no count is less than in the one before.
    """
    rng = random.Random(seed)
    counts, reports = driver(), Reports()
    for now in range(40):
        partition = rng.randrange(2)
        match rng.randrange(5):
            case 0:
                unpins = {reason: rng.randrange(4) for reason in pins()["unpins"]}
                changes = {"pins": rng.randrange(5), "strangers": rng.randrange(3)}
                counts.set_pins(str(partition), pins(unpins=unpins, **changes))
            case 1:
                deliveries = [rng.randrange(1, 3) for _ in range(rng.randrange(5))]
                counts.add_claims({str(partition): deliveries})
            case 2:
                counts.add_batch(rng.random())
            case 3:
                counts.set_lag({str(partition): rng.randrange(-1, 9)})
            case _:
                counts.set_active(rng.random() < 0.5)
        assert reports.take(Report.decode(counts.report()), now)


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ((None, "flights"), "flights"),
        (("Flights", "spark-12"), "Flights"),
        (("", "flights", ""), "flights"),
        ((None, "flights", "3f9a"), "flights/3f9a"),
        (("Flights", "flights", "3f9a"), "Flights/3f9a"),
        (("x" * 300, "flights", "3f9a"), "x" * 200 + "/3f9a"),
    ],
)
def test_what_a_query_is_called(words, label):
    """
    A query has the name that its user gave, else its consumers'; with `standby`, where several
    have the same, its id as well.
    """
    assert query_label(*words) == label
