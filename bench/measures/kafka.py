"""
What is measured beside Spark's Kafka source and sink: the same flights, as many partitions, one
session.

Then what a small job waits for: a hundred rows counted, the first rows of a query, a hundred rows
written, each by both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ..cases import Case
from ..comparisons import Part, Times, of_times
from ..flights import MAPPING, PARTITIONS
from ..others.kafka import KAFKA, Kafka
from ..spark import Run, Spark
from ..streams import FILTERED, STREAMS, Streams
from ..waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOUND: Final = "both cores: server or broker, Spark's JVM, and our workers"
_A_TRIGGER: Final = 100_000
_FEW: Final = 100
_STARTS: Final = 10
"""How often each of the small jobs runs."""

_TIMEOUT_S: Final = 300.0

Job = Callable[[], None]


class Beside:
    """The cases, then the small jobs; `starts` has them when the cases are done."""

    def __init__(self, spark: Spark, streams: Streams) -> None:
        self._spark = spark
        self._streams = streams
        self.starts: Part | None = None

    def cases(self) -> Iterator[Case]:
        """Both layouts read, and flights that are in memory written."""
        spark, streams, rows = self._spark, self._streams, self._streams.flights.rows
        directory = spark.new_directory()
        streams.flights.write_parquet(directory)
        frame = spark.session.read.parquet(str(directory)).cache()
        if (cached := frame.count()) != rows:
            raise RuntimeError(f"the DataFrame has {cached} of {rows} rows")
        with Kafka(spark) as kafka:
            topic = kafka.topic()
            kafka.fill(frame, topic)
            for layout in (STREAMS, FILTERED):
                with streams.empty(layout):
                    streams.publish(rows)
                    yield from self._reads(kafka, topic, layout.name, layout.options)
            yield Case(
                "kafka write flights, async, ids",
                _BOUND,
                lambda: self._write(frame, rows),
                {KAFKA: lambda: kafka.write(frame, rows)},
            )
            with streams.empty(STREAMS):
                streams.publish(_FEW)
                self.starts = self._small(kafka, frame.limit(_FEW).repartition(PARTITIONS).cache())

    def _reads(
        self, kafka: Kafka, topic: str, name: str, options: Mapping[str, str]
    ) -> Iterator[Case]:
        spark, rows = self._spark, self._streams.flights.rows
        limited = dict(options) | {"maxRecordsPerTrigger": str(_A_TRIGGER)}
        yield Case(
            f"kafka read {name}, from the start",
            _BOUND,
            lambda: spark.read_stream(options, rows),
            {KAFKA: lambda: kafka.read_stream(topic, rows)},
        )
        yield Case(
            f"kafka read {name}, {_A_TRIGGER:,} a trigger",
            _BOUND,
            lambda: spark.read_stream(limited, rows),
            {KAFKA: lambda: kafka.read_stream(topic, rows, _A_TRIGGER)},
        )
        yield Case(
            f"kafka read {name}, batch read",
            _BOUND,
            lambda: spark.read_range(options, rows),
            {KAFKA: lambda: kafka.read_range(topic, rows)},
        )

    def _write(self, frame: DataFrame, rows: int) -> Run:
        options = {"subjectMapping": MAPPING}
        with self._streams.empty(FILTERED):
            return self._spark.write(frame, options, rows)

    def _small(self, kafka: Kafka, few: DataFrame) -> Part:
        """Each small job by both, in turns."""
        spark, topic = self._spark, kafka.topic()
        kafka.fill(few, topic)
        read = STREAMS.options
        wanted = {"subjectMapping": MAPPING}
        jobs: dict[str, tuple[Job, Job]] = {
            f"count of {_FEW} rows": (
                lambda: _counted(spark.range(read)),
                lambda: _counted(kafka.range(topic)),
            ),
            "first rows of a query": (
                lambda: self._first(spark.stream(read)),
                lambda: self._first(kafka.stream(topic)),
            ),
            f"write of {_FEW} rows": (
                spark.writer(few, wanted).save,
                lambda: kafka.fill(few, kafka.topic()),
            ),
        }
        series = []
        for name, both in jobs.items():
            times: tuple[list[float], list[float]] = ([], [])
            for turn in range(-1, _STARTS):  # the first of each finds everything cold
                for job, into in zip(both, times, strict=True):
                    began = time.monotonic()
                    job()
                    if turn >= 0:
                        into.append((time.monotonic() - began) * 1e3)
            series += [Times(name, times[0]), Times(f"{name}, {KAFKA}", times[1])]
        return of_times("small jobs in a warm session", series, beside_first=False)

    def _first(self, frame: DataFrame) -> None:
        """Starts a query and returns when its first rows are through; it is stopped then."""
        query = self._spark.to_noop(frame, {"processingTime": "0 seconds"})
        try:
            until(
                lambda: (seen := query.lastProgress) and seen.numInputRows,
                _TIMEOUT_S,
                "rows",
                poll_s=0.005,
            )
        finally:
            query.stop()


def _counted(frame: DataFrame) -> None:
    if (found := frame.count()) != _FEW:
        raise RuntimeError(f"{found} of {_FEW} rows")
