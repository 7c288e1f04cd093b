"""What real queries say that they read, as Prometheus gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..kits.exporter import Reads, Scrapes, exporter
from ..kits.servers import DevServer
from ..kits.shared import eventually
from ..kits.sources import NewStream, Publish, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["exporter"]

SUBJECT = "spark.metrics.reads"


@pytest.fixture
def reads(nats_server: DevServer, exporter: Callable[..., Scrapes]) -> Reads:
    """An exporter of the shared server."""
    return Reads(exporter(nats_server, "--metrics-subject", SUBJECT))


@pytest.fixture
def start(
    stream_df: Callable[..., DataFrame], tmp_path: Path
) -> Iterator[Callable[..., tuple[StreamingQuery, list[Any]]]]:
    """Starts queries that report; what each delivers grows in a list."""
    started: list[StreamingQuery] = []

    def begin(checkpoint: str, **options: Any) -> tuple[StreamingQuery, list[Any]]:
        rows: list[Any] = []
        told = {"metricsSubject": SUBJECT, "metricsInterval": "200ms"}
        query = (
            stream_df(**told | options)
            .writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .start()
        )
        started.append(query)
        return query, rows

    yield begin
    for query in started:
        query.stop()


def test_rows_and_lag_of_queries_with_a_standby(
    new_stream: NewStream, publish: Publish, start: Callable[..., Any], reads: Reads
) -> None:
    """
    Rows and bytes by partition are those that Spark delivered, over many batches; the lag is 0 when
    all is read. Of two identical queries one reads and the other waits, and when the first stops
    the second reads on and counts under its own name.
    """
    name = new_stream()
    options = {
        "stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>",
        "maxRecordsPerTrigger": 40, "standby": "true", "consumer": "hot", "priorityTimeout": "6s",
        "queryName": "flights",
    }  # fmt: skip
    publish(numbered(name, 201, 2))
    first, rows = start("first", **options)
    eventually(lambda: len(rows) == 201, 120)
    reads.wait("rows_total", {("0",): 101, ("1",): 100}, stream=name)
    reads.wait("lag_messages", {("0",): 0, ("1",): 0}, stream=name)
    reads.wait("batch_messages", {("0",): 0, ("1",): 0}, stream=name)
    assert reads.of("batch_seconds_count") == {(): 6}
    assert reads.of("task_seconds_count") == {(): 11}  # the last batch has one message
    sizes = {
        (str(partition),): sum(len(row.data) for row in rows if row.partition == partition)
        for partition in range(2)
    }
    assert reads.of("bytes_total", stream=name) == sizes
    _, others = start("second", **options)
    reads.scrapes.wait(lambda: len(reads.queries(0.0)) == 1)
    (reader,), (waits,) = reads.queries(1.0), reads.queries(0.0)
    assert reads.of("lag_messages", query=waits) == {}
    first.stop()
    publish(numbered(name, 20, 2, start=201))
    eventually(lambda: {row.sequence for row in rows + others} == set(range(1, 222)), 120)
    reads.scrapes.wait(lambda: reads.queries(1.0) >= {waits})
    reads.wait("lag_messages", {("0",): 0, ("1",): 0}, query=waits)
    reads.scrapes.wait(lambda: sum(reads.of("rows_total", query=waits).values()) == len(others))

    assert reader.startswith("flights/") and waits.startswith("flights/")
    assert sum(reads.of("rows_total", query=reader).values()) == len(rows)


def test_claims_of_queries_that_share(
    new_stream: NewStream, publish: Publish, start: Callable[..., Any], reads: Reads
) -> None:
    """
    Of two queries on a shared consumer each counts what it has claimed, which is what it read, and
    together the stream; nothing is left, and nothing came twice.
    """
    name = new_stream()
    publish(numbered(name, 100))
    options = {
        "stream": name, "priorityPolicy": "overflow", "consumer": "jobs",
        "maxRecordsPerTrigger": 30,
    }  # fmt: skip
    delivered = {each: start(each, **options, queryName=each)[1] for each in ("one", "two")}
    eventually(lambda: sum(map(len, delivered.values())) == 100, 120)
    for each, rows in delivered.items():
        reads.wait("claims_total", {("0",): len(rows)}, query=each)
        reads.wait("rows_total", {("0",): len(rows)}, query=each)
        reads.wait("lag_messages", {("0",): 0}, query=each)
        reads.wait("ack_pending_messages", {("0",): 0}, query=each)
        reads.wait("active", {(): 1}, query=each)
        assert reads.of("redelivered_total", query=each) == {("0",): 0}

    found = sorted(row.sequence for rows in delivered.values() for row in rows)
    assert found == list(range(1, 101))
