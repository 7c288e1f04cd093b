"""Writing from a real Spark: batch, streaming, and mistakes found on the driver."""

import json
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_jetstream.errors import ColumnError, CommitError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.publish.metrics import Written
from pyspark_jetstream.write.sink import (
    JetStreamBatchWriter,
    JetStreamStreamWriter,
    Published,
)

from ..kits.encoder import map_one

ROWS = StructType().add("subject", StringType()).add("data", BinaryType())


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """The format, whatever PYTHONPATH Spark's workers have."""
    from pyspark_jetstream.datasource import JetStreamDataSource

    spark.dataSource.register(JetStreamDataSource)


def messages(js, stream):
    """Subject, data and headers of every message of a small stream."""
    info = js.stream_info(stream)
    found = js.messages(stream, [{"seq": seq} for seq in range(info.first_seq, info.last_seq + 1)])
    return [(each.subject, each.data, each.stored) for each in found if each is not None]


def test_append_maps_subjects_and_stores_every_row(spark, nats_server, js, new_stream):
    """df.write stores each row once, on the subject that the mapping computes."""
    name = new_stream()
    rules = json.dumps({f"{name}.*.*": f"{name}.{{{{partition(4,1)}}}}.$1.$2"})
    mapping = SubjectMapping.parse(rules)
    frame = spark.range(0, 5000, numPartitions=3).selectExpr(
        f"concat('{name}.', 'k', id % 50, '.x') as subject",
        "cast(id as string) as data",
        "map('n', cast(id as string)) as headers",
    )
    (
        frame.write.format("jetstream")
        .mode("append")
        .option("servers", nats_server.url)
        .option("subjectMapping", rules)
        .save()
    )
    info = js.stream_info(name)
    some = messages(js, name)[:200]

    assert info.messages == 5000
    for subject, data, headers in some:
        assert subject == map_one(mapping, f"{name}.k{int(data) % 50}.x")
        assert b"\r\nn: " + data + b"\r\n" in headers
        assert b"\r\nNats-Msg-Id: " in headers


def test_a_streaming_write_stores_every_row_once(spark, nats_server, js, new_stream, tmp_path):
    """Rows of a file source are stored once; a batch that runs again is dropped by its ids."""
    name = new_stream()
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    spark.range(0, 2000, numPartitions=4).selectExpr("cast(id as string) as value").write.text(
        str(source)
    )

    def run():
        query = (
            spark.readStream.format("text")
            .load(str(source))
            .selectExpr(f"concat('{name}.', cast(value as int) % 10) as subject", "value as data")
            .writeStream.format("jetstream")
            .options(servers=nats_server.url, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    first = js.stream_info(name).messages
    # As if the driver had died before it wrote that batch 0 is done.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    run()
    info = js.stream_info(name)
    stored = Counter(data for _, data, _ in messages(js, name))

    assert first == info.messages == 2000
    assert stored == Counter(str(i).encode() for i in range(2000))


@pytest.mark.parametrize(("ids", "times"), [("none", 2), ("msg_id", 1)])
def test_a_foreach_batch_that_runs_again(spark, nats_server, js, new_stream, tmp_path, ids, times):
    """Its rows are there twice; those with a `msg_id` are there once."""
    name, source = new_stream(), tmp_path / "in"
    spark.range(0, 20, numPartitions=2).selectExpr("cast(id as string) as value").write.text(
        str(source)
    )
    of_rows = [] if ids == "none" else [f"concat('{name}-', value) as msg_id"]

    def run(then):
        def write(rows, batch):
            mapped = rows.selectExpr(f"'{name}.a' as subject", "value as data", *of_rows)
            (
                mapped.write.format("jetstream")
                .mode("append")
                .options(servers=nats_server.url, exactlyOnce="true")
                .save()
            )
            then()

        frame = spark.readStream.format("text").load(str(source))
        started = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
        started.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(
            120
        )

    def died():
        raise RuntimeError("behind the write, before the commit")

    with pytest.raises(StreamingQueryException, match="behind the write"):
        run(died)
    run(lambda: None)
    stored = Counter(data for _, data, _ in messages(js, name))

    assert stored == Counter({str(i).encode(): times for i in range(20)})


def test_a_mapping_file_that_changes_holds_from_the_next_batch_on(
    spark, nats_server, js, new_stream, tmp_path
):
    """One that cannot be read ends the query before its next batch moves a row."""
    name = new_stream()
    source, rules = tmp_path / "in", tmp_path / "mapping.json"
    source.mkdir()

    def put(path, text):
        aside = tmp_path / "aside"
        aside.write_text(text)
        aside.rename(path)

    put(rules, json.dumps({f"{name}.in": f"{name}.one"}))
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .selectExpr(f"'{name}.in' as subject", "value as data")
        .writeStream.format("jetstream")
        .options(servers=nats_server.url, checkpointLocation=str(tmp_path / "checkpoint"))
        .option("subjectMapping", str(rules))
        .start()
    )
    try:
        put(source / "1", "a\nb\n")
        query.processAllAvailable()
        put(rules, json.dumps({f"{name}.in": f"{name}.two"}))
        put(source / "2", "c\n")
        query.processAllAvailable()
        put(rules, "{")
        put(source / "3", "d\n")
        with pytest.raises(Exception, match="option 'subjectMapping': line 1, at its end"):
            query.processAllAvailable()
    finally:
        query.stop()

    assert [(subject, data) for subject, data, _ in messages(js, name)] == [
        (f"{name}.one", b"a"), (f"{name}.one", b"b"), (f"{name}.two", b"c"),
    ]  # fmt: skip


def test_a_type_without_arrow_form_is_named():
    """A known column of a type that cannot be written is named, not Spark's converter."""
    from pyspark.sql.types import CalendarIntervalType

    with pytest.raises(ColumnError, match="column 'data': expected BINARY or STRING, got interval"):
        JetStreamBatchWriter(
            parse_sink({"subject": "s"}), StructType().add("data", CalendarIntervalType())
        )


def test_commit_checks_the_counts(caplog):
    """A task that reports nothing fails the commit; a good commit is one line in the log."""
    options = parse_sink({"subject": "s", "token": "hush"})
    batch, stream = JetStreamBatchWriter(options, ROWS), JetStreamStreamWriter(options, ROWS)
    good = Published("w", Written(5, 5, 1, 2, 0, 0))
    caplog.set_level("INFO", "pyspark_jetstream.write.sink")
    batch.commit([good, good])
    stream.commit([], 3)

    assert "tasks=2 rows=10 acked=10 duplicates=2 retries=4 lost=0 already_stored=0" in caplog.text
    assert "batch=3 tasks=0 rows=0" in caplog.text
    with pytest.raises(CommitError, match=r"Trigger\.Continuous"):
        stream.commit([None, None], 0)
    assert "hush" not in caplog.text + repr(batch) + repr(stream) + repr(options)


def test_i1_commit_checks_the_sum():
    """I1: rows of which nobody knows where they are fail the commit."""
    options = parse_sink({"subject": "s"})
    known = Published("w", Written(9, 5, 0, 0, 1, 1, dead_letters=1, dropped=1))
    lost = Published("w", Written(9, 5, 0, 0, 1, 1, dead_letters=1))
    for writer, rest in (
        (JetStreamBatchWriter(options, ROWS), ()),
        (JetStreamStreamWriter(options, ROWS), (3,)),
    ):
        writer.commit([known], *rest)
        with pytest.raises(CommitError, match="do not add up"):
            writer.commit([known, lost], *rest)


def test_abort_never_raises():
    """Whatever is missing, abort leaves the root cause to Spark."""
    options = parse_sink({"subject": "s"})
    JetStreamBatchWriter(options, ROWS).abort([None, Published("w", Written(5, 5, 0, 0, 0, 0))])
    JetStreamStreamWriter(options, ROWS).abort([None], 7)
