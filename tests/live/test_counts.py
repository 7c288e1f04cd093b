"""Counters read as numbers, by every read of a stream."""

from decimal import Decimal

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import OptionError, ReadError

from ..kits.options import BELOW
from ..kits.reading import query

__all__ = ["query"]


@pytest.fixture
def counters(js, new_stream):
    """A stream of two counters, and one with a message of another kind."""
    name = new_stream(allow_msg_counter=True)
    for subject, increment in (("a", "5"), ("b", "+7"), ("a", "-8"), ("b", "0"), ("a", "+1")):
        js.publish(f"{name}.{subject}", b"", [("Nats-Incr", increment)])
    return name


@pytest.fixture
def rows(nats_server):
    """The rows of a batch read, as its schema has them."""

    def read(**options):
        given = {name: str(value) for name, value in options.items()}
        made = JetStreamDataSource(CaseInsensitiveDict({"servers": nats_server.url} | given))
        columns = made.schema()
        reader = made.reader(columns)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        assert all(batch.schema.names == columns.fieldNames() for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    return read


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, [5, 7, -3, 7, -2]),
        ({"includeHeaders": "true"}, [5, 7, -3, 7, -2]),
        ({"startingOffsets": '{"0": 3}', "minPartitions": 2}, [-3, 7, -2]),
        ({"multiLast": "{name}.>"}, [7, -2]),
        ({"multiLast": "{name}.>", "upToSequence": 3}, [7, -3]),
        ({"sequence": 3}, [-3]),
        ({"lastBySubject": "{name}.b"}, [7]),
        ({"multiLast": "{name}.a", "batch": 5}, [-2]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_every_batch_read_has_the_sum(counters, rows, options, counts):
    """
    A range has the sum with each message, a snapshot that of each subject, also as of a sequence.
    """
    given = {key: str(value).replace("{name}", counters) for key, value in options.items()}
    found = rows(stream=counters, includeCount="true", **given)

    assert [row["count"] for row in sorted(found, key=lambda row: row["sequence"])] == [
        Decimal(count) for count in counts
    ]


@pytest.mark.parametrize("mode", ["own", "direct"])
def test_a_streaming_read_has_the_sum(counters, query, mode):
    """In a stream it is the sum with each message."""
    reader = query(stream=counters, includeCount="true", directBelow=BELOW[mode])
    reader.drain()

    assert [int(row["count"]) for row in reader.rows] == [5, 7, -3, 7, -2]


def test_what_is_no_counter_has_null(new_stream, publish, rows):
    """Whatever its payload looks like."""
    name = new_stream()
    payloads = [
        b'{"val":"5"}',
        b"",
        b"x\xff",
        b'{"val":"1.5"}',
        b'{"val":1}',
        b' {"val":"1"}',
        b'{"val":""}',
    ]
    publish([(f"{name}.x", payload) for payload in payloads])

    assert [row["count"] for row in rows(stream=name, includeCount="true")] == [None] * 7
    assert "count" not in rows(stream=name)[0]


def test_a_sum_that_is_too_long_is_named(counters, js, rows):
    """The server adds numbers of any size: 38 digits are a number, 39 an error that says where."""
    js.publish(f"{counters}.c", b"", [("Nats-Incr", "-" + "9" * 38)])
    assert rows(stream=counters, includeCount="true")[-1]["count"] == Decimal("-" + "9" * 38)
    js.publish(f"{counters}.c", b"", [("Nats-Incr", "-1")])

    with pytest.raises(ReadError, match=rf"'{counters}.c' has 39 digits at sequence 7"):
        rows(stream=counters, includeCount="true")


@pytest.mark.parametrize("option", ["includeCount", "includeData"])
def test_a_bucket_has_no_counters_and_always_values(rows, option):
    """The options contradict a bucket."""
    with pytest.raises(OptionError, match=option):
        rows(bucket="B", **{option: "false"})


@pytest.mark.parametrize(
    "options",
    [{}, {"multiLast": "{name}.>"}, {"sequence": 3}, {"includeHeaders": "true"}],
    ids=lambda value: ",".join(value) or "range",
)
def test_rows_without_their_data(counters, rows, options):
    """
    With `includeData=false` every read has its other columns, a count of what is left out, too.
    """
    given = {key: str(value).replace("{name}", counters) for key, value in options.items()}
    given |= {"stream": counters, "includeCount": "true"}
    whole, bare = rows(**given), rows(**given, includeData="false")

    assert bare == [{key: row[key] for key in row if key != "data"} for row in whole]
    assert any(row["count"] is not None for row in bare)


@pytest.mark.parametrize("mode", ["own", "direct", "overflow"])
def test_a_stream_without_its_data(counters, query, mode):
    """So has a stream, however it is read."""
    how = (
        {"directBelow": BELOW[mode]}
        if mode != "overflow"
        else {"priorityPolicy": mode, "consumer": "c"}
    )
    reader = query(stream=counters, includeData="false", **how)
    reader.drain()

    assert [row["sequence"] for row in reader.rows] == [1, 2, 3, 4, 5]
    assert all("data" not in row and row["subject"] for row in reader.rows)
