"""
What a small job waits for in a warm session: a hundred rows counted, the first rows of a query, a
hundred rows written; beside Spark's Kafka source and sink, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..others.kafka import KAFKA, Peer
from ..results import Times, of_times
from ..rows import MAPPING, PARTITIONS
from ..runs import until
from ..spark import Spark
from ..streams import STREAMS, Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FEW: Final = 100
_TIMEOUT_S: Final = 300.0


def small_jobs(
    spark: Spark, streams: Streams, flights: DataFrame, kafka: Peer | None, turns: int
) -> dict[str, Any]:
    """Each job so many times by both."""
    few = flights.limit(_FEW).repartition(PARTITIONS).cache()
    rows = few.count()
    mapped = {"subjectMapping": MAPPING}
    jobs: dict[str, Callable[[], object]] = {
        f"count of {_FEW} rows": lambda: spark.range(STREAMS.options).count(),
        "first rows of a query": lambda: _first(spark, spark.stream(STREAMS.options)),
        f"write of {_FEW} rows": lambda: spark.write(few, mapped, rows),
    }
    if kafka is not None:
        topic = kafka.new_topic()
        kafka.fill(few, topic)
        jobs |= {
            f"count, {KAFKA}": lambda: kafka.range(topic).count(),
            f"first rows, {KAFKA}": lambda: _first(spark, kafka.stream(topic)),
            f"write, {KAFKA}": lambda: kafka.fill(few, kafka.new_topic()),
        }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with streams.empty(STREAMS):
        streams.publish(rows)
        for turn in range(-1, turns):  # the first of each finds everything cold
            for name, job in jobs.items():
                began = time.monotonic()
                job()
                if turn >= 0:
                    times[name].append((time.monotonic() - began) * 1e3)
    series = [Times(name, found) for name, found in sorted(times.items())]
    return of_times("small jobs in a warm session", series)


def _first(spark: Spark, frame: DataFrame) -> None:
    """Starts a query and returns when its first rows are through; it is stopped then."""
    query = spark.to_noop(frame, {"processingTime": "0 seconds"})
    try:
        until(
            lambda: (seen := query.lastProgress) and seen.numInputRows,
            _TIMEOUT_S,
            "rows",
            poll_s=0.005,
        )
    finally:
        query.stop()
