"""Filters of a query: the rows they accept all come, and fewer messages leave the server."""

import time

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.read.pushdown import narrowing_of
from pyspark_jetstream.read.ranges import FilteredRangeReader
from pyspark_jetstream.read.snapshot import FilteredSnapshotReader

from ..kits.clients import serving
from ..kits.reading import batch_reader, rows_of

SUBJECT, SEQUENCE, TIME, PARTITION = ("subject",), ("sequence",), ("timestamp",), ("partition",)


@pytest.fixture(scope="module")
def server():
    """2,000 flights over 400 subjects: 4 partitions, a stream each, a bucket; in two halves."""
    streams = {"S": {"subjects": ["f.>"]}}
    streams |= {"KV_B": {"subjects": ["$KV.B.>"], "max_msgs_per_subject": 64}}
    streams |= {f"S-{p}": {"subjects": [f"g.{p}.>"]} for p in range(4)}
    with serving(streams=streams) as (server, js):
        for half in range(2):
            if half:
                time.sleep(2.5)
            for i in range(1000):
                at = f"{i % 4}.{'AB'[i // 4 % 2]}.{i % 400}" if i % 100 else f"1.rare.{i}"
                js.client.requests([(f"{on}.{at}", b"%d" % i) for on in ("f", "g", "$KV.B")])
        yield server


def messages_out(server):
    """Messages that have left the server."""
    return server.ask("/varz")["out_msgs"]


def read(server, kind, filters, **options):
    """The rows of a read with these filters, and how many messages left the server for it."""
    reader = batch_reader(server, kind, **options)
    before = messages_out(server)
    assert list(reader.pushFilters(filters)) == filters  # all of them stay with Spark
    return rows_of(reader), messages_out(server) - before


def accepted(filters, row):
    """What Spark makes of these filters."""
    for each in filters:
        value = row[each.attribute[0]] if not isinstance(each, Not) else None
        match each:
            case EqualTo() | EqualNullSafe():
                good = value == each.value
            case In():
                good = value in each.value
            case GreaterThan():
                good = value is not None and value > each.value
            case GreaterThanOrEqual():
                good = value is not None and value >= each.value
            case LessThan():
                good = value is not None and value < each.value
            case LessThanOrEqual():
                good = value is not None and value <= each.value
            case StringStartsWith():
                good = value.startswith(each.value)
            case StringContains():
                good = each.value in value
            case IsNotNull():
                good = value is not None
            case Not():
                good = not accepted([each.child], row)
        if not good:
            return False
    return True


def same(rows, everything, filters):
    """Whether both hold the same rows that the filters accept."""

    def kept(of):
        return sorted(
            (row for row in of if accepted(filters, row)),
            key=lambda row: (row.get("stream"), row.get("sequence") or row.get("revision")),
        )

    return kept(rows) == kept(everything)


LAYOUT = {"stream": "S", "partitions": 4, "partitionSubject": "f.{partition}.>"}
RANGE = (FilteredRangeReader, {"stream": "S"})
LAID_OUT = (FilteredRangeReader, LAYOUT)
STREAMS = (FilteredRangeReader, {"stream": "S-{partition}", "partitions": 4})
FILTERED = (FilteredRangeReader, {"stream": "S", "subject": "f.*.A.>"})
SNAPSHOT = (FilteredSnapshotReader, LAYOUT | {"multiLast": "f.>"})
BUCKET = (FilteredSnapshotReader, {"bucket": "B"})
HISTORY = (FilteredRangeReader, {"bucket": "B", "history": True})


@pytest.mark.parametrize(
    ("of", "filters"),
    [
        (RANGE, [EqualTo(SUBJECT, "f.1.A.41")]),
        (RANGE, [EqualNullSafe(SUBJECT, "f.1.A.41")]),
        (RANGE, [EqualTo(SUBJECT, "f.none")]),
        (RANGE, [IsNotNull(SUBJECT), In(SUBJECT, ("f.1.A.41", "f.3.B.7", None))]),
        (RANGE, [StringStartsWith(SUBJECT, "f.1.rare.5")]),
        (LAID_OUT, [StringStartsWith(SUBJECT, "f.1.rare.")]),
        (RANGE, [GreaterThan(SEQUENCE, 1990)]),
        (RANGE, [GreaterThanOrEqual(SEQUENCE, 10), LessThan(SEQUENCE, 20)]),
        (RANGE, [EqualTo(SEQUENCE, 77)]),
        (RANGE, [In(SEQUENCE, (5, 9))]),
        (RANGE, [LessThanOrEqual(SEQUENCE, 12), Not(EqualTo(SEQUENCE, 5))]),
        (RANGE, [EqualTo(SEQUENCE, 77), EqualTo(SUBJECT, "f.1.A.41")]),
        (FILTERED, [EqualTo(SUBJECT, "f.0.A.8")]),
        (FILTERED, [EqualTo(SUBJECT, "f.0.B.4")]),
        (LAID_OUT, [EqualTo(SUBJECT, "f.1.A.41")]),
        (LAID_OUT, [In(SUBJECT, ("f.1.A.41", "f.3.B.7"))]),
        (STREAMS, [EqualTo(PARTITION, 2)]),
        (STREAMS, [In(PARTITION, (0, 3)), GreaterThan(PARTITION, 0)]),
        (STREAMS, [EqualTo(SUBJECT, "g.1.A.41")]),
        (SNAPSHOT, [EqualTo(SUBJECT, "f.1.A.41")]),
        (SNAPSHOT, [In(SUBJECT, ("f.1.A.41", "f.3.B.7", "other"))]),
        (SNAPSHOT, [StringStartsWith(SUBJECT, "f.1.A.4")]),
        (SNAPSHOT, [EqualTo(SUBJECT, "other")]),
        (BUCKET, [EqualTo(("key",), "1.A.41")]),
        (BUCKET, [StringStartsWith(("key",), "1.A.4")]),
        (HISTORY, [EqualTo(("key",), "1.A.41")]),
        (HISTORY, [GreaterThan(("revision",), 1990)]),
        (HISTORY, [In(("key",), ("1.A.41", "3.B.7")), LessThan(("revision",), 1000)]),
    ],
    ids=lambda value: " and ".join(map(repr, value)) if isinstance(value, list) else None,
)
def test_fewer_messages_for_the_same_rows(server, of, filters):
    """The rows that the filter accepts, for less than a third of the messages."""
    kind, options = of
    everything, all_out = read(server, kind, [], **options)
    rows, out = read(server, kind, filters, **options)

    assert same(rows, everything, filters)
    assert out < all_out / 3


@pytest.mark.parametrize(
    ("of", "filters", "spared"),
    [
        (SNAPSHOT, [EqualTo(PARTITION, 1)], 250),
        # A snapshot does not know which sequences it holds.
        (SNAPSHOT, [GreaterThan(SEQUENCE, 1990)], -10),
        (BUCKET, [LessThan(("revision",), 1700)], -10),
        # These would cost the server more than they spare.
        (LAID_OUT, [EqualTo(PARTITION, 1)], -10),
        (RANGE, [StringStartsWith(SUBJECT, "f.1.A.4")], -10),
        (FILTERED, [StringStartsWith(SUBJECT, "f.1.")], -10),
    ],
    ids=lambda value: repr(value[0]) if isinstance(value, list) else "",
)
def test_filters_that_spare_less(server, of, filters, spared):
    """Filters that spare little bring the same rows for no more messages."""
    kind, options = of
    everything, all_out = read(server, kind, [], **options)
    rows, out = read(server, kind, filters, **options)

    assert same(rows, everything, filters)
    assert out <= all_out - spared


@pytest.mark.parametrize("of", [RANGE, HISTORY], ids=["range", "history"])
def test_times(server, of):
    """A filter of time brings the same rows, of the half of the stream that it is about."""
    kind, options = of
    everything, all_out = read(server, kind, [], **options)
    late, early = everything[1500]["timestamp"], everything[500]["timestamp"]
    for filters in (
        [GreaterThan(TIME, late)], [GreaterThanOrEqual(TIME, late)], [LessThan(TIME, early)],
        [LessThanOrEqual(TIME, early)], [EqualTo(TIME, late)],
        [GreaterThan(TIME, early), LessThan(TIME, early)],
    ):  # fmt: skip
        rows, out = read(server, kind, filters, **options)

        assert same(rows, everything, filters)
        assert out < all_out * 2 / 3


def test_what_is_no_help_is_left_to_spark(server):
    """Filters that cannot be expressed leave the read as it is."""
    assert narrowing_of(
        [
            StringContains(SUBJECT, "A"),
            Not(EqualTo(SUBJECT, "f.1.A.41")),
            IsNotNull(SUBJECT),
            EqualTo(("data",), b"1"),
            EqualTo(("headers", "x"), "1"),
            EqualTo(SUBJECT, None),
        ]
    ).everything


@pytest.mark.parametrize("asked", [True, False])
def test_only_the_process_that_hands_filters_over_gets_a_reader_for_them(
    server, monkeypatch, asked
):
    """A reader takes filters only where Spark hands some over, else it would refuse to read."""
    worker = "data_source_pushdown_filters" if asked else "plan_data_source_read"
    monkeypatch.setattr("sys.argv", ["daemon.py", f"pyspark.sql.worker.{worker}"])
    for options in ({"stream": "S"}, {"stream": "S", "multiLast": "f.>"}, {"bucket": "B"}):
        source = JetStreamDataSource(options)
        reader = source.reader(source.schema())

        assert ("pushFilters" in {n for c in type(reader).__mro__[:-3] for n in vars(c)}) is asked
