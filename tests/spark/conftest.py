"""Helpers of the Spark tests: run a streaming query to its end and keep what each batch held."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest


@dataclass
class Run:
    """What a run of a streaming query delivered."""

    batches: dict[int, list[Any]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self):
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def sequences(self):
        return sorted(row.sequence for row in self.rows)

    @property
    def sizes(self):
        """Rows of each batch that had any."""
        return [len(self.batches[b]) for b in sorted(self.batches) if self.batches[b]]


def _loaded(spark, way, shared, server=None, **options):
    url = {"servers": (server or shared).url}
    return getattr(spark, way).format("jetstream").options(**url | options).load()


@pytest.fixture
def stream_df(spark, nats_server):
    """A streaming DataFrame of the shared server with these options."""

    return partial(_loaded, spark, "readStream", nats_server)


@pytest.fixture
def range_df(spark, nats_server):
    """A batch DataFrame of the shared server with these options."""

    return partial(_loaded, spark, "read", nats_server)


@pytest.fixture
def run_query(stream_df, tmp_path):
    """Runs a query over everything there (availableNow); what it delivered."""

    def run(checkpoint="checkpoint", server=None, **options):
        result = Run()

        def keep(batch, batch_id):
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


def numbered(name: str, n: int, partitions: int = 1, start: int = 0) -> list[tuple[str, bytes]]:
    """`n` messages dealt out over `<name>.<partition>.x`."""
    return [(f"{name}.{i % partitions}.x", b"m%d" % i) for i in range(start, start + n)]
