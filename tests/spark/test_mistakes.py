"""What only Spark shows of mistakes: where an error comes, what stands around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from ..kits.clients import serving
from ..live.test_mistakes import ERRORS

KAFKA = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}


@dataclass
class Place:
    """A session, a server with a stream `S` of five messages, and a directory."""

    spark: SparkSession
    url: str
    home: Path

    def load(self, how="stream", **options):
        """`load()` of one of the reads."""
        reader = self.spark.readStream if how == "stream" else self.spark.read
        given = {"servers": self.url} | options
        return reader.format("jetstream").options(**given).load()

    def run(self, frame, name="jetstream", mode="append", **options):
        """A streaming query of this frame, to its end; all of a test have one checkpoint."""
        writer = frame.writeStream.format(name).outputMode(mode).options(**options)
        writer = writer.option("checkpointLocation", str(self.home / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60), "the query did not end"
        finally:
            query.stop()

    def lines(self):
        """A stream of two rows to write."""
        place = self.home / "lines"
        place.mkdir()
        (place / "a.txt").write_text("x\ny\n")
        return self.spark.readStream.format("text").load(str(place))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server of all mistakes."""
    with serving() as (server, js):
        for _ in range(5):
            js.client.request("S.a", b"x")
        yield server


@pytest.fixture
def place(spark, server, tmp_path):
    """Where the mistake is made."""
    return Place(spark, server.url, tmp_path)


def sentence(error):
    """The line that is ours, once, with no other error behind it."""
    text = str(error)
    ours = [line for line in text.splitlines() if line.startswith(ERRORS)]

    assert len(ours) == 1, text
    assert "UnboundLocalError" not in text
    assert "During handling of the above" not in text
    behind = text.partition(ours[0])[2]
    assert not re.search(r"^(Traceback|  File )", behind, re.MULTILINE), text
    return ours[0].removeprefix(ERRORS)


@pytest.mark.parametrize("how", ["stream", "range"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strem": "S"}, "OptionError: option 'strem': unknown option; did you mean 'stream'?"),
        ({"stream": "S", "startingOffsets": "soon"}, "OptionError: option 'startingOffsets': exp"),
        (KAFKA, "OptionError: option 'kafka.bootstrap.servers': unknown option; it is 'servers'"),
    ],
    ids=["unknown", "value", "kafka"],
)
def test_options_are_checked_at_load(place, how, options, says):
    """Names and values that no read takes are an error at `load()`, before anything connects."""
    with pytest.raises(AnalysisException) as caught:
        place.load(how, servers="nats://127.0.0.1:1", **options)
    said = sentence(caught.value)
    last = [line.strip() for line in str(caught.value).splitlines() if line.strip()][-2:]

    assert said.startswith(says)
    assert last == [ERRORS + said, "SQLSTATE: 38000"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "S", "multiLast": "S.>"}, "OptionError: option 'multiLast': applies to spark."),
        ({"stream": "S", "subject": "T.>"}, "OptionError: option 'subject': 'T.>' matches no"),
    ],
    ids=["of-a-range", "never"],
)
def test_what_a_stream_says_when_it_starts(place, options, says):
    """What `load()` cannot know is the query's error, with no other one behind it."""
    frame = place.load(**options)
    with pytest.raises(StreamingQueryException) as caught:
        place.run(frame, "noop")

    assert sentence(caught.value).startswith(says)


def test_columns_of_ones_own(place):
    """With `.schema(…)` the query says what is wrong, not `load()`."""
    reader = place.spark.readStream.format("jetstream").options(servers=place.url, strem="S")
    with pytest.raises(StreamingQueryException) as caught:
        place.run(reader.schema("value STRING").load(), "noop")

    assert sentence(caught.value).startswith("OptionError: option 'strem': unknown option")


def test_a_checkpoint_of_another_source(place):
    """The checkpoint of a query that reads files is refused as what it is."""
    place.run(place.lines(), "noop")
    with pytest.raises(StreamingQueryException) as caught:
        place.run(place.load(stream="S"), "noop")
    said = sentence(caught.value)

    assert said.startswith("OffsetError: the checkpoint is one of another source")
    assert 'whose offset is {"logOffset": 0}' in said
    assert "give this query a checkpointLocation of its own" in said


WRITES: dict[str, tuple[Callable[[Place], object], type[Exception], str]] = {
    "kafka": (
        lambda at: save(at, "'x' AS value", topic="orders"),
        AnalysisException,
        "OptionError: option 'topic': unknown option; it is 'subject' here",
    ),
    "complete": (
        lambda at: at.run(at.lines().groupBy("value").count().selectExpr("value AS data"),
                          mode="complete", servers=at.url, subject="S.a"),
        StreamingQueryException,
        "OptionError: option 'outputMode'",
    ),
    "a row": (
        lambda at: save(at, "CAST(NULL AS STRING) AS data", subject="S.a"),
        Exception,
        "RowError: publish to 'S.a': row 0 of partition 0: data is null",
    ),
}  # fmt: skip


def save(at, *columns, mode="append", **options):
    """`df.write` of one row."""
    frame = at.spark.range(0, 1, numPartitions=1).selectExpr(*columns)
    writer = frame.write.format("jetstream").options(servers=at.url, **options)
    (writer.mode(mode) if mode else writer).save()


@pytest.mark.parametrize("name", WRITES)
def test_what_a_write_says(place, name):
    """A write's mistake is one line of ours on the driver before a job, or the task's."""
    call, kind, says = WRITES[name]
    context = place.spark.sparkContext
    context.setJobGroup(name, "")
    with pytest.raises(kind) as caught:
        call(place)
    jobs = context.statusTracker().getJobIdsForGroup(name)
    context.setLocalProperty("spark.jobGroup.id", None)

    assert sentence(caught.value).startswith(says)
    assert kind is not AnalysisException or not jobs
