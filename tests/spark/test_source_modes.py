"""Streaming reads in a real Spark: read modes, and options that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_jetstream.client.jetstream import JetStream

from ..kits.sources import NewStream, Publish, RunQuery, numbered


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strem": "X"}, "option 'strem': unknown option; did you mean 'stream'"),
        ({}, "option 'stream': required"),
        (
            {"stream": "X", "maxRecordsPerTrigger": "many"},
            "expected a positive integer, got 'many'",
        ),
        ({"stream": "NOSUCH"}, "stream 'NOSUCH' not found"),
        ({"stream": "X", "minPending": "5"}, "belongs to priorityPolicy=overflow"),
        ({"stream": "X", "multiLast": "a.>"}, "applies to spark.read, not to"),
    ],
    ids=["unknown", "missing", "malformed", "no-stream", "policy", "misplaced"],
)
def test_bad_options_fail_on_the_driver(
    run_query: RunQuery, options: dict[str, str], message: str
) -> None:
    """A mistake in the options is one clear error before a row moves."""
    with pytest.raises(Exception, match=message):
        run_query(**options)


def test_secrets_do_not_show(
    stream_df: Callable[..., Any], new_stream: NewStream, tmp_path: Path
) -> None:
    """A password shows in no plan and in no error."""
    df = stream_df(stream=new_stream(), user="u", password="hunter2-secret")
    plan = df._jdf.queryExecution().toString()  # what explain(True) prints
    with pytest.raises(Exception) as failed:
        (
            stream_df(
                stream="NOSUCH", user="u", password="hunter2-secret", requestTimeout="1s",
                servers="nats://u:hunter2-secret@127.0.0.1:1",
            )
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
            .awaitTermination(60)
        )  # fmt: skip

    assert "hunter2" not in plan
    assert "hunter2" not in str(failed.value)


def test_a_batch_is_cut_by_sequence(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """A batch is cut by minPartitions and maxRecordsPerPartition, exactly."""
    name = new_stream()
    publish(numbered(name, 500, 2))
    run = run_query(
        stream=name, directBelow="999999999", partitions=2,
        partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerPartition=40, minPartitions=5,
    )  # fmt: skip

    assert run.sequences == list(range(1, 501))
    assert all(row.subject.split(".")[1] == str(row.partition) for row in run.rows)


def test_a_foreign_consumer_is_not_taken_over(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """A durable of the same name with other settings is refused, not changed."""
    name = new_stream()
    js.create_consumer(name, {"durable_name": "mine-0", "ack_policy": "explicit"})
    publish(numbered(name, 5))
    with pytest.raises(StreamingQueryException, match="option 'consumer'.*mine-0"):
        run_query(stream=name, consumer="mine")


def test_workqueue_must_start_at_its_beginning(run_query: RunQuery, new_stream: NewStream) -> None:
    """On a work queue a start that skips messages is refused: they would stay for ever."""
    name = new_stream(retention="workqueue")
    with pytest.raises(Exception, match="option 'startingOffsets'.*work queue"):
        run_query(stream=name, startingOffsets="latest")
