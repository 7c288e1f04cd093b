"""Several filters in `subject`: each is a partition, in every way to read a stream."""

from types import SimpleNamespace

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, StringStartsWith

from pyspark_jetstream import subjects
from pyspark_jetstream.errors import OffsetError, OptionError
from pyspark_jetstream.read.ranges import FilteredRangeReader

from ..kits.options import BELOW
from ..kits.reading import batch_reader, jobs, query, rows_of

__all__ = ["jobs", "query"]


@pytest.fixture
def filled(new_stream, publish):
    """Makes a stream of 120 messages: `.a.x`, `.b.y`, `.a.y` and `.c.x`, in turns."""

    def fill(**config):
        name = new_stream(**config)
        publish([(f"{name}.{'abac'[i % 4]}.{'xyyx'[i % 4]}", b"%d" % i) for i in range(120)])
        return name

    return fill


def found_by(query):
    """What it has read, sorted."""
    return sorted((row["sequence"], row["subject"], row["partition"]) for row in query.rows)


def rows(source):
    """What a batch read reads, sorted."""
    return found_by(SimpleNamespace(rows=rows_of(source)))


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


LISTS = [("a.x", "c.>"), ("c.*", "a.>"), ("*.x", "b.y", "a.y")]


@pytest.mark.parametrize("filters", LISTS, ids="-".join)
@pytest.mark.parametrize("read_mode", ["auto", "own", "direct"])
def test_a_stream_is_read_by_each_filter(filled, query, filters, read_mode):
    """Each message that a filter matches comes once, with the filter's place."""
    name = filled()
    options = {"stream": name, "subject": listed(name, *filters), "directBelow": BELOW[read_mode]}
    whole, small = query(**options), query(**options, maxRecordsPerTrigger=7)
    whole.batch()
    sizes = [len(found) for found in iter(small.batch, [])]

    assert found_by(whole) == found_by(small) == due(name, *filters)
    assert max(sizes) <= 7


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_streams_that_keep_messages_for_consumers(js, new_stream, publish, query, retention):
    """What the filters match is settled when its batch is committed; the rest stays as it is."""
    name = new_stream(retention=retention)
    source = query(stream=name, subject=listed(name, "a.>", "b.>"))
    source.batch()  # makes the consumers
    publish([(f"{name}.{'abc'[i % 3]}.x", b"x") for i in range(30)])
    source.batch()
    source.settle()
    source.ask()

    assert [row[2] for row in found_by(source)] == [0, 1] * 10
    left = js.subject_counts(name, [">"])[1]
    assert left == ({f"{name}.c.x": 10} if retention == "workqueue" else {})


@pytest.mark.parametrize("filters", LISTS, ids="-".join)
@pytest.mark.parametrize(
    "pushed",
    [[], [EqualTo(("partition",), 1)], [GreaterThan(("sequence",), 50)], "subject", "prefix"],
    ids=["all", "partition", "sequence", "subject", "prefix"],
)
def test_a_range_is_read_by_each_filter(filled, nats_server, filters, pushed):
    """A batch read has the same rows, whatever part of them a query needs."""
    name = filled()
    options = {"stream": name, "minPartitions": 3, "subject": listed(name, *filters)}
    source = batch_reader(nats_server, FilteredRangeReader, **options)
    if pushed == "subject":
        pushed = [In(("subject",), (f"{name}.a.x", f"{name}.b.y"))]
    elif pushed == "prefix":
        pushed = [StringStartsWith(("subject",), f"{name}.a.")]
    list(source.pushFilters(pushed))
    read = rows(source)

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
    source = batch_reader(
        nats_server, FilteredRangeReader, stream=name, subject=listed(name, "a.>", "c.>"),
        startingOffsets='{"0": 101, "1": 61}', endingOffsets='{"1": 80}',
    )  # fmt: skip
    wanted = [r for r in due(name, "a.>", "c.>") if (r[0] > 100 if r[2] == 0 else 60 < r[0] <= 80)]

    assert rows(source) == wanted


def test_what_another_filter_covers_is_no_partition(filled, query):
    """A filter within another adds nothing: no message comes twice."""
    name = filled()
    source = query(stream=name, subject=listed(name, "a.x", "a.>", "b.y", "a.>"))
    source.batch()

    assert found_by(source) == due(name, "a.>", "b.y")


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
def test_a_checkpoint_knows_its_filters(filled, query, then, now, said, read_mode):
    """A position is one of a filter: with others at its place, messages would be passed over."""
    name = filled()
    first = query(stream=name, subject=listed(name, *then), directBelow=BELOW[read_mode])
    first.batch()
    first.restart(subject=listed(name, *now))

    with pytest.raises(OffsetError) as caught:
        first.ask()
    assert said in str(caught.value)
    first.restart(subject=listed(name, *then))
    first.ask()


def test_a_filter_that_can_never_match(filled, query):
    """Each filter has to be one of the stream's subjects."""
    name = filled()
    source = query(stream=name, subject=f"{name}.a.>, elsewhere.>")

    with pytest.raises(OptionError, match="'elsewhere.>' matches no message of stream"):
        source.ask()


def test_claims_of_each_filter(js, filled, jobs):
    """A consumer that queries share is one of each filter."""
    name = filled()
    one = jobs(stream=name, subject=listed(name, "a.>", "c.x"))
    one.drain()

    assert found_by(one) == due(name, "a.>", "c.x")
    wanted = [f"{name}.a.>", f"{name}.c.x"]
    at = [js.consumer_info(name, f"jobs-{p}").config["filter_subject"] for p in range(2)]
    assert at == wanted
