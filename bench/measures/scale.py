"""
The same rows over few and many partitions, and into few and many streams: what a row costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..cases import Case
from ..others.references import SPARK_ALONE
from ..payloads import Payloads
from ..spark import Run, Spark
from ..streams import Lane, Layout, Streams, publish_payloads
from .writes import payload_frame

PARTITIONS: Final = (2, 8, 64)
TARGETS: Final = (1, 10, 100)

_SIZE: Final = 100
"""Bytes of a payload."""

_SHARE: Final = 0.4
"""Of the rows that are asked for: a batch of 400,000 with a million."""

_DEEP: Final = 10
"""So many times the rows that are asked for in one batch, for what memory it takes."""


def scale_cases(spark: Spark, streams: Streams) -> Iterator[Case]:
    """One batch from so many partitions; one write into so many streams."""
    rows = max(max(PARTITIONS), int(streams.flights.rows * _SHARE))
    spark.read_alone(max(PARTITIONS), rows, _SIZE)  # the first one takes longer
    for count in PARTITIONS:
        layout = _layout(count)
        with streams.empty(layout):
            publish_payloads(streams.url, _SIZE, rows, count)
            options = layout.options
            yield Case(
                f"scale read, {count} partitions",
                "both cores",
                lambda options=options: spark.read_stream(options, rows),  # type: ignore[misc]
                {SPARK_ALONE: lambda count=count: spark.read_alone(count, rows, _SIZE)},  # type: ignore[misc]
            )
    layout, deep = _layout(min(PARTITIONS)), streams.flights.rows * _DEEP
    with streams.empty(layout):
        publish_payloads(streams.url, _SIZE, deep, min(PARTITIONS))
        yield Case(
            f"scale read in one go, {deep:,} rows",
            "both cores",
            lambda: spark.read_stream(layout.options, deep),
            {},
            warm_up=False,
        )
    for count in TARGETS:
        yield Case(
            f"scale write, {count} {'streams' if count > 1 else 'stream'}",
            "server CPU, then both cores",
            lambda count=count: _write(spark, streams, count, rows),  # type: ignore[misc]
            {},
        )


def _layout(count: int) -> Layout:
    return Layout(
        f"{count} streams",
        {f"SCALE-{p}": f"payloads.{p}" for p in range(count)},
        tuple(Lane(f"SCALE-{p}", None) for p in range(count)),
        {"stream": "SCALE-{partition}", "partitions": str(count)},
    )


def _write(spark: Spark, streams: Streams, count: int, rows: int) -> Run:
    layout = _layout(count)
    with streams.empty(layout):
        frame = payload_frame(spark, Payloads(_SIZE, rows), count)
        run = spark.write(frame, {"exactlyOnce": "false"}, rows)
        stored = sum(streams.last_sequences(layout))
    if stored != rows:
        raise RuntimeError(f"the streams hold {stored} of {rows} rows")
    return run
