"""Helpers of the Spark tests: run a streaming query to its end and keep what each batch held."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..kits.servers import DevServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Run:
    """What a run of a streaming query delivered."""

    batches: dict[int, list[Any]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def sequences(self) -> list[int]:
        return sorted(row.sequence for row in self.rows)

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch that had any."""
        return [len(self.batches[b]) for b in sorted(self.batches) if self.batches[b]]


@pytest.fixture
def stream_df(spark: SparkSession, nats_server: DevServer) -> Callable[..., DataFrame]:
    """A streaming DataFrame of the shared server with these options."""

    def make(server: DevServer | None = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format("jetstream").option("servers", (server or nats_server).url)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return make


@pytest.fixture
def range_df(spark: SparkSession, nats_server: DevServer) -> Callable[..., DataFrame]:
    """A batch DataFrame of the shared server with these options."""

    def make(server: DevServer | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("jetstream").option("servers", (server or nats_server).url)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return make


@pytest.fixture
def run_query(stream_df: Callable[..., DataFrame], tmp_path: Path) -> Callable[..., Run]:
    """Runs a query over everything there (availableNow); what it delivered."""

    def run(checkpoint: str = "checkpoint", server: DevServer | None = None, **options: Any) -> Run:
        result = Run()

        def keep(batch: DataFrame, batch_id: int) -> None:
            result.batches[batch_id] = batch.collect()

        query = (
            stream_df(server, **options)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120), "the query did not end within 120 s"
        finally:
            result.progress = [json.loads(progress.json) for progress in query.recentProgress]
            query.stop()
        return result

    return run
