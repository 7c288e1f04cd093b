"""Several filters in `subject`: each is a partition, in every way to read a stream."""

import json

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, StringStartsWith
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_jetstream import subjects
from pyspark_jetstream.errors import OffsetError, OptionError
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import FilteredRangeReader

from ..kits.options import BELOW
from ..kits.reading import jobs as query
from ..kits.reading import reader

__all__ = ["query", "reader"]


@pytest.fixture
def filled(new_stream, publish):
    """Makes a stream of 120 messages: `.a.x`, `.b.y`, `.a.y` and `.c.x`, in turns."""

    def fill(**config):
        name = new_stream(**config)
        publish([(f"{name}.{'abac'[i % 4]}.{'xyyx'[i % 4]}", b"%d" % i) for i in range(120)])
        return name

    return fill


def rows(source, tasks):
    """What the tasks read, sorted."""
    columns = "sequence", "subject", "partition"
    return sorted(
        tuple(row[column] for column in columns)
        for task in tasks
        for batch in source.read(task)
        for row in batch.to_pylist()
    )


def due(name, *filters):
    """What these filters read of a stream that was `filled`."""
    found = []
    for i in range(120):
        subject = f"{name}.{'abac'[i % 4]}.{'xyyx'[i % 4]}"
        places = [p for p, of in enumerate(filters) if subjects.matches(f"{name}.{of}", subject)]
        found += [(i + 1, subject, place) for place in places]
    return found


def listed(name, *filters):
    return ", ".join(f"{name}.{filter_}" for filter_ in filters)


def batch_after(source, start=None, limit=None):
    """One batch as Spark plans it: its end and tasks."""
    start = source.initialOffset() if start is None else start
    end = json.loads(json.dumps(source.latestOffset(start, limit or ReadAllAvailable())))
    return end, source.partitions(start, end)


LISTS = [("a.x", "c.>"), ("c.*", "a.>"), ("*.x", "b.y", "a.y")]


@pytest.mark.parametrize("filters", LISTS, ids="-".join)
@pytest.mark.parametrize("read_mode", ["auto", "own", "direct"])
def test_a_stream_is_read_by_each_filter(filled, reader, filters, read_mode):
    """Each message that a filter matches comes once, with the filter's place."""
    name = filled()
    options = {"stream": name, "subject": listed(name, *filters), "directBelow": BELOW[read_mode]}
    whole = reader(**options)
    _, tasks = batch_after(whole)
    small, start, read = reader(**options, maxRecordsPerTrigger=7), None, []
    while True:
        end, more = batch_after(small, start, ReadMaxRows(7))
        if end == start:
            break
        found = rows(small, more)
        assert len(found) <= 7
        read += found
        start = end

    assert rows(whole, tasks) == due(name, *filters)
    assert sorted(read) == due(name, *filters)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_streams_that_keep_messages_for_consumers(js, new_stream, publish, reader, retention):
    """What the filters match is settled when its batch is committed; the rest stays as it is."""
    name = new_stream(retention=retention)
    source = reader(stream=name, subject=listed(name, "a.>", "b.>"))
    start, _ = batch_after(source)
    source.partitions(source.initialOffset(), start)  # makes the consumers
    publish([(f"{name}.{'abc'[i % 3]}.x", b"x") for i in range(30)])
    end, tasks = batch_after(source, start)
    read = rows(source, tasks)
    source.commit(end)
    source.latestOffset(end, ReadAllAvailable())

    assert [row[2] for row in read] == [0, 1] * 10
    left = js.subject_counts(name, [">"])[1]
    assert left == ({f"{name}.c.x": 10} if retention == "workqueue" else {})


@pytest.mark.parametrize("filters", LISTS, ids="-".join)
@pytest.mark.parametrize(
    "pushed",
    [
        [],
        [EqualTo(("partition",), 1)],
        [GreaterThan(("sequence",), 50)],
        "subject",
        "prefix",
    ],
    ids=["all", "partition", "sequence", "subject", "prefix"],
)
def test_a_range_is_read_by_each_filter(filled, nats_server, filters, pushed):
    """A batch read has the same rows, whatever part of them a query needs."""
    name = filled()
    options = {"servers": nats_server.url, "stream": name, "minPartitions": "3"}
    source = FilteredRangeReader(parse_read(options | {"subject": listed(name, *filters)}))
    if pushed == "subject":
        pushed = [In(("subject",), (f"{name}.a.x", f"{name}.b.y"))]
    elif pushed == "prefix":
        pushed = [StringStartsWith(("subject",), f"{name}.a.")]
    list(source.pushFilters(pushed))
    read = rows(source, source.partitions())

    def accepted(row):
        for filter_ in pushed:
            match filter_:
                case EqualTo():
                    fits = row[2] == 1
                case GreaterThan():
                    fits = row[0] > 50
                case In():
                    fits = row[1] in filter_.value
                case _:
                    fits = row[1].startswith(filter_.value)
            if not fits:
                return False
        return True

    assert [row for row in read if accepted(row)] == list(filter(accepted, due(name, *filters)))
    assert set(read) <= set(due(name, *filters))
    assert len(read) == len(set(read))


def test_a_range_by_partition(filled, nats_server):
    """Where offsets name partitions, each filter has its own range."""
    name = filled()
    source = FilteredRangeReader(
        parse_read(
            {
                "servers": nats_server.url,
                "stream": name,
                "subject": listed(name, "a.>", "c.>"),
                "startingOffsets": '{"0": 101, "1": 61}',
                "endingOffsets": '{"1": 80}',
            }
        )
    )
    wanted = [r for r in due(name, "a.>", "c.>") if (r[0] > 100 if r[2] == 0 else 60 < r[0] <= 80)]

    assert rows(source, source.partitions()) == wanted


def test_what_another_filter_covers_is_no_partition(filled, reader):
    """A filter within another adds nothing: no message comes twice."""
    name = filled()
    source = reader(stream=name, subject=listed(name, "a.x", "a.>", "b.y", "a.>"))
    _, tasks = batch_after(source)

    assert rows(source, tasks) == due(name, "a.>", "b.y")


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (("a.>", "b.>"), ("b.>", "a.>"), "this query has 2 partitions"),
        (("a.>", "b.>"), ("a.>", "c.>"), "Give it the options that it had"),
        (("a.>", "b.>"), ("a.>", "b.>", "c.>"), "this query has 3 partitions"),
        (("a.>", "b.>"), ("a.>",), "this query has 1 partition of"),
        (("a.>",), ("a.>", "b.>"), "was written for 1 partition of"),
    ],
)
@pytest.mark.parametrize("read_mode", ["auto", "direct"])
def test_a_checkpoint_knows_its_filters(filled, reader, then, now, said, read_mode):
    """A position is one of a filter: with others at its place, messages would be passed over."""
    name = filled()
    first = reader(stream=name, subject=listed(name, *then), directBelow=BELOW[read_mode])
    end, _ = batch_after(first)
    second = reader(stream=name, subject=listed(name, *now), directBelow=BELOW[read_mode])

    with pytest.raises(OffsetError) as caught:
        second.latestOffset(end, ReadAllAvailable())
    assert said in str(caught.value)
    batch_after(reader(stream=name, subject=listed(name, *then), directBelow=BELOW[read_mode]), end)


def test_a_filter_that_can_never_match(filled, reader):
    """Each filter has to be one of the stream's subjects."""
    name = filled()
    source = reader(stream=name, subject=f"{name}.a.>, elsewhere.>")

    with pytest.raises(OptionError, match="'elsewhere.>' matches no message of stream"):
        source.latestOffset(source.initialOffset(), ReadAllAvailable())


def test_claims_of_each_filter(js, filled, query):
    """A consumer that queries share is one of each filter."""
    name = filled()
    one = query(stream=name, subject=listed(name, "a.>", "c.x"))
    while one.step():
        pass

    found = sorted((r["sequence"], r["subject"], r["partition"]) for r in one.rows)
    assert found == due(name, "a.>", "c.x")
    wanted = [f"{name}.a.>", f"{name}.c.x"]
    at = [js.consumer_info(name, f"jobs-{p}").config["filter_subject"] for p in range(2)]
    assert at == wanted
