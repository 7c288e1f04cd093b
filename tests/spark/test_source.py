"""Streaming reads in a real Spark: what is delivered, in which batches, and what is reported."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from ..kits.options import BELOW, connection_of
from ..kits.shared import eventually
from .conftest import numbered


@pytest.mark.parametrize("read_mode", ["auto", "own", "direct"])
@pytest.mark.parametrize("layout", ["one", "filtered", "streams"])
def test_every_message_is_delivered_once(run_query, new_stream, publish, layout, read_mode):
    """In each layout and mode two runs over a growing stream deliver every message once."""
    options: dict[str, Any] = {"directBelow": BELOW[read_mode]}
    if layout == "streams":
        base = new_stream()
        for p in range(2):
            new_stream(f"{base}P-{p}", subjects=[f"{base}P.{p}.>"])
        prefix = f"{base}P"
        options |= {"stream": f"{base}P-{{partition}}", "partitions": 2}
    else:
        prefix = new_stream()
        options |= {"stream": prefix}
        if layout == "filtered":
            options |= {"partitions": 2, "partitionSubject": f"{prefix}.{{partition}}.>"}
    publish(numbered(prefix, 300, 2))
    first = run_query(**options)
    publish(numbered(prefix, 100, 2, start=300))
    second = run_query(**options)
    rows = first.rows + second.rows

    assert len(first.rows) == 300
    assert sorted(bytes(row.data) for row in rows) == sorted(b"m%d" % i for i in range(400))
    for row in rows:
        number = int(bytes(row.data)[1:])
        assert row.subject == f"{prefix}.{number % 2}.x"
        assert row.partition == (0 if layout == "one" else number % 2)
        assert row.timestamp.year >= 2024
    assert {row.stream for row in rows} == (
        {f"{prefix}-0", f"{prefix}-1"} if layout == "streams" else {prefix}
    )


def test_max_bytes_per_trigger(run_query, new_stream, publish):
    """maxBytesPerTrigger cuts by the stream's average message, together with the row limit."""
    name = new_stream()
    publish([(f"{name}.0.x", b"x" * 1000) for _ in range(100)])
    run = run_query(stream=name, maxBytesPerTrigger="21KB", maxRecordsPerTrigger=90)

    assert run.sequences == list(range(1, 101))
    assert max(run.sizes) in range(15, 22)


def test_a_large_partition_has_no_late_rows(stream_df, new_stream, publish, tmp_path):
    """Partitions of one hour go through it together: a watermark drops no row of the large one."""
    base = new_stream() + "H"
    for p in range(2):
        new_stream(f"{base}-{p}", subjects=[f"{base}.{p}.>"])
    minutes = range(1, 61)  # Spark's first watermark is the minute 0
    publish([(f"{base}.0.x", b"%d" % m) for m in minutes for _ in range(10)])
    publish([(f"{base}.1.x", b"%d" % m) for m in minutes])
    frame = stream_df(stream=f"{base}-{{partition}}", partitions=2, maxRecordsPerTrigger=66)
    found: list[tuple[int, int]] = []

    def keep(batch, batch_id):
        found.extend((row.minute, row["count"]) for row in batch.collect())

    query = (
        frame.selectExpr("timestamp_seconds(60 * CAST(CAST(data AS STRING) AS INT)) AS at")
        .withWatermark("at", "5 minutes")
        .groupBy("at").count()
        .selectExpr("CAST(unix_seconds(at) / 60 AS INT) AS minute", "count")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    assert query.awaitTermination(300)
    read = [each for each in query.recentProgress if each.numInputRows]
    dropped = [o.numRowsDroppedByWatermark for each in read for o in each.stateOperators]

    assert len(read) >= 10
    assert sum(dropped) == 0
    assert sorted(found) == [(minute, 11) for minute in range(1, max(found)[0] + 1)]
    assert max(found)[0] >= 50  # the last minutes stay open


def test_min_records_wait_for_more_or_for_the_delay(stream_df, new_stream, publish, tmp_path):
    """A batch waits for minRecordsPerTrigger, but not beyond maxTriggerDelay."""
    name = new_stream()
    batches: list[int] = []
    query = (
        stream_df(stream=name, minRecordsPerTrigger=12, maxTriggerDelay="10s")
        .writeStream.foreachBatch(lambda df, _: batches.append(df.count()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        publish(numbered(name, 4))
        time.sleep(0.5)
        early = [size for size in batches if size]
        publish(numbered(name, 8))
        eventually(lambda: sum(batches) >= 12, 120.0)
        full = [size for size in batches if size]
        publish(numbered(name, 3))
        eventually(lambda: sum(batches) >= 15, 120.0)
    finally:
        query.stop()

    assert early == []
    assert full == [12]
    assert [size for size in batches if size] == [12, 3]


def test_available_now_ends_while_a_producer_writes(run_query, new_stream, nats_server, js):
    """AvailableNow reads what was there when it began, and ends although more keeps coming."""
    from pyspark_jetstream.client.connection import Client

    name = new_stream()
    stop = threading.Event()
    sent = 0

    def produce():
        nonlocal sent
        client = Client(connection_of(nats_server.url))
        while not stop.is_set():
            client.requests([(f"{name}.{i % 2}.x", b"x") for i in range(20)])
            sent += 20
            time.sleep(0.005)
        client.close()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        eventually(lambda: sent >= 200)
        before = js.stream_info(name).last_seq
        run = run_query(
            stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
            maxRecordsPerTrigger=5_000,
        )  # fmt: skip
        after = js.stream_info(name).last_seq
    finally:
        stop.set()
        producer.join()
    rest = run_query(
        stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
    )  # fmt: skip

    assert before <= len(run.rows) < after
    assert run.sequences == list(range(1, len(run.rows) + 1))
    assert run.sequences + rest.sequences == list(range(1, js.stream_info(name).last_seq + 1))


def test_64_partitions_with_one_hot(run_query, new_stream, publish):
    """64 partitions work; those without traffic have no task and do not hold up a hot one."""
    name = new_stream()
    publish([(f"{name}.7.x", b"hot")] * 2000 + [(f"{name}.9.x", b"cold")])
    run = run_query(stream=name, partitions=64, partitionSubject=f"{name}.{{partition}}.>")
    publish([(f"{name}.{p}.x", b"all") for p in range(64)])
    second = run_query(stream=name, partitions=64, partitionSubject=f"{name}.{{partition}}.>")

    assert len(run.rows) == 2001
    assert {row.partition for row in run.rows} == {7, 9}
    assert sorted(row.partition for row in second.rows) == list(range(64))


def test_offsets_beyond_2_to_the_53(run_query, new_stream, publish):
    """Sequences that no double can hold survive checkpoint, restart and columns."""
    first = 2**53 + 3
    name = new_stream(first_seq=first)
    publish(numbered(name, 5))
    one = run_query(stream=name, maxRecordsPerTrigger=2)
    publish(numbered(name, 2))
    two = run_query(stream=name, maxRecordsPerTrigger=2)

    assert one.sequences == [first + i for i in range(5)]
    assert two.sequences == [first + 5, first + 6]


def test_a_start_yet_to_come(run_query, new_stream, publish, js):
    """A run that ends before its moment leaves a checkpoint by which the next one begins at it."""
    name = new_stream()
    publish(numbered(name, 3))
    tomorrow = js.stream_info(name).now + timedelta(days=1)
    first = run_query(stream=name, startingTimestamp=tomorrow.isoformat())
    publish(numbered(name, 3))
    moment = js.stream_info(name).now
    publish(numbered(name, 4))
    second = run_query(stream=name, startingTimestamp=moment.isoformat())

    assert first.sequences == []
    assert second.sequences == [7, 8, 9, 10]
