"""The format `jetstream`: where it says what is wrong with options, and which readers it gives."""

import pickle

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.readstream.refused import RefusedReader


def source(**options):
    """What Spark makes of `format("jetstream").options(…)`."""
    return JetStreamDataSource(CaseInsensitiveDict(options))


def test_the_columns_follow_from_the_options():
    """Headers, deliveries and the columns of a bucket are there where options ask for them."""
    names = {
        "plain": source(stream="S"),
        "headers": source(stream="S", includeHeaders="true"),
        "shared": source(stream="S", consumer="c", priorityPolicy="overflow"),
        "count": source(
            stream="S",
            consumer="c",
            priorityPolicy="overflow",
            includeHeaders="true",
            includeCount="TRUE",
        ),
        "bucket": source(bucket="B"),
    }
    columns = {key: each.schema().fieldNames() for key, each in names.items()}

    assert columns["plain"] == ["subject", "data", "sequence", "timestamp", "partition", "stream"]
    assert columns["headers"] == [*columns["plain"], "headers"]
    assert columns["shared"] == [*columns["plain"], "deliveries"]
    assert columns["count"] == [*columns["plain"], "headers", "deliveries", "count"]
    assert columns["bucket"] == ["key", "value", "revision", "timestamp", "operation"]


@pytest.mark.parametrize(
    "options",
    [{}, {"strem": "S"}, {"stream": "S", "subscribe": "T"}, {"stream": "S", "user": "u"}],
    ids=["nothing", "unknown", "kafka", "half"],
)
def test_mistakes_are_said_with_the_columns(options):
    """`load()` asks for the columns: what no read takes is an error there."""
    with pytest.raises(OptionError):
        source(**options).schema()


@pytest.mark.parametrize(
    ("options", "schema", "option"),
    [
        ({"stream": "S", "multiLast": ">"}, None, "multiLast"),
        ({"bucket": "B", "history": "true"}, None, "history"),
        ({"stream": "S"}, StructType().add("value", StringType()), "schema"),
        ({"strem": "S"}, StructType().add("value", StringType()), "strem"),
    ],
    ids=["range", "bucket", "schema", "unseen"],
)
def test_a_stream_reader_is_refused_by_its_own_words(options, schema, option):
    """What columns could not tell raises nothing of Spark's, and answers each question."""
    made = source(**options)
    reader = made.streamReader(schema or made.schema())
    reader = pickle.loads(pickle.dumps(reader))

    assert isinstance(reader, RefusedReader)
    for ask in (
        reader.getDefaultReadLimit,
        reader.initialOffset,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        with pytest.raises(OptionError) as caught:
            ask()
        assert caught.value.option == option
    reader.stop()
