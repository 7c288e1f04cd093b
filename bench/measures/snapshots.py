"""
What is measured of `spark.read`: a range, and snapshots of few to many subjects.

The streams have few messages a subject. What bounds a snapshot of them, whoever takes it, is one
pass over the stream: so the raw limit is the raw drain of the whole range, its rate in subjects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..others.references import NATS_PY, RAW_DIRECT, SPARK_REDUCE, References
from ..runs import Case, Run
from ..spark import Spark, counted
from ..streams import FILTERED, PAYLOADS, Streams

_FETCHED: Final = 200_000
_LOOKED_UP: Final = 5_000
"""So many messages and subjects are enough of nats-py, which would take minutes for all."""

_SIZES: Final = ((1_000, 4_000), (50_000, 200_000), (1_000_000, 1_500_000))
"""
Subjects and messages, for a million rows that are asked for. By the package's choice the small ones
are looked up by name, the large one is read and reduced.
"""

_OPTIONS: Final = {"stream": "PAYLOADS", "multiLast": ">"}
_PAYLOAD: Final = 100


def snapshot_cases(spark: Spark, streams: Streams, references: References) -> Iterator[Case]:
    """The range, then snapshots of more and more subjects."""
    rows, options = streams.flights.rows, {"stream": "FLIGHTS"}
    with streams.empty(FILTERED):
        streams.publish(rows)
        counted(spark.range(options), rows)
        yield Case(
            "range, whole stream",
            lambda: spark.read_range(options, rows),
            {
                RAW_DIRECT: lambda: references.drain_direct(FILTERED),
                NATS_PY: lambda: references.fetch(FILTERED, _FETCHED),
            },
        )
    for size in _SIZES:
        subjects, messages = (max(1, each * rows // 1_000_000) for each in size)
        with streams.empty(PAYLOADS):
            streams.publish_payloads(_PAYLOAD, messages, subjects)
            counted(spark.range(_OPTIONS), subjects)
            yield _snapshot(spark, references, subjects)


def _snapshot(spark: Spark, references: References, subjects: int) -> Case:
    some = [f"payloads.{number}" for number in range(min(subjects, _LOOKED_UP))]

    def drained() -> Run:
        return replace(references.drain_direct(PAYLOADS), rows=subjects)

    return Case(
        f"snapshot of {subjects:,} subjects",
        lambda: spark.read_range(_OPTIONS, subjects),
        {
            RAW_DIRECT: drained,
            SPARK_REDUCE: lambda: spark.reduce({"stream": "PAYLOADS"}, subjects),
            NATS_PY: lambda: references.fetch_last("PAYLOADS", some),
        },
    )
