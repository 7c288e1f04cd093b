"""
What is measured of writing: the publish modes by payload, with and without message ids.

References are measured beside each case, but nats-py's, which is by far not as close, only once
for all modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..cases import Case
from ..flights import MAPPING, PARTITIONS
from ..others.child import Outcome
from ..others.references import (
    NATS_PY,
    RAW_PUBLISH,
    References,
)
from ..payloads import SUBJECTS, WINDOW_BYTES, Payloads
from ..spark import Run, Spark
from ..streams import FILTERED, WINDOW, Lane, Layout, Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_SHARE: Final = 50_000
"""So many rows are enough of a reference that would take a minute for all."""

_TARGET: Final = Layout(
    "payloads",
    {"PAYLOADS": "payloads.>"},
    (Lane("PAYLOADS", None),),
    {},
    {},
)


class _Size(NamedTuple):
    """A payload, and how many rows of it, of a million that are asked for in all."""

    name: str
    bytes: int
    rows: int
    nats_py_rows: int


_SIZES: Final = (
    _Size("100 B", 100, 300_000, 15_000),
    _Size("1 KB", 1_000, 150_000, 10_000),
    _Size("100 KB", 100_000, 16_000, 4_000),
)

_BOUND: Final = "server CPU: one stream stores one message after another"


def write_cases(spark: Spark, streams: Streams, references: References) -> Iterator[Case]:
    """Flights that are in memory, mapped; then payloads of three sizes."""
    yield from _flights(spark, streams, references)
    for size in _SIZES:
        for ids in (True, False):
            yield from _sizes(spark, streams, references, size, ids)


def _flights(spark: Spark, streams: Streams, references: References) -> Iterator[Case]:
    rows = streams.flights.rows
    directory = spark.new_directory()
    streams.flights.write_parquet(directory)
    frame = spark.session.read.parquet(str(directory)).cache()
    partitions, cached_rows = frame.rdd.getNumPartitions(), frame.count()
    if (partitions, cached_rows) != (PARTITIONS, rows):
        raise RuntimeError(f"the DataFrame has {cached_rows} rows in {partitions} partitions")
    share = min(_SHARE, rows)

    def published(how: str, count: int, ids: bool) -> Callable[[], Outcome]:
        job = streams.publish_job()
        return _fresh(streams, target, count, lambda: references.publish(how, job, count, ids))

    target = FILTERED
    for ids in (True, False):
        options = {"subjectMapping": MAPPING} | _ids(ids)
        others = {RAW_PUBLISH: published(RAW_PUBLISH, rows, ids)}
        if ids:
            others[NATS_PY] = published(NATS_PY, share, ids)
        yield Case(
            f"write flights, {'ids' if ids else 'no ids'}",
            _BOUND,
            _fresh(
                streams,
                target,
                rows,
                lambda options=options: spark.write(frame, options, rows),  # type: ignore[misc]
            ),
            others,
            {NATS_PY: f"the first {share:,} rows"},
        )
    frame.unpersist()


def _sizes(
    spark: Spark, streams: Streams, references: References, size: _Size, ids: bool
) -> Iterator[Case]:
    rows = max(1, streams.flights.rows * size.rows // 1_000_000)
    payloads = Payloads(size.bytes, rows)
    frame = payload_frame(spark, payloads)
    job = {
        "url": streams.url,
        "size": size.bytes,
        "rows": rows,
        "window": min(WINDOW, WINDOW_BYTES // size.bytes),
    }

    def ours() -> Run:
        return _fresh(streams, _TARGET, rows, lambda: spark.write(frame, _ids(ids), rows))()

    def published(how: str, count: int = rows) -> Callable[[], Outcome]:
        return _fresh(streams, _TARGET, count, lambda: references.publish(how, job, count, ids))

    share = min(size.nats_py_rows, rows)
    nats_py = cache(published(NATS_PY, share))
    yield Case(
        f"write {size.name}, {'ids' if ids else 'no ids'}",
        _BOUND,
        ours,
        {
            RAW_PUBLISH: published(RAW_PUBLISH),
            NATS_PY: nats_py,
        },
        {NATS_PY: f"{size.name}: {share:,} rows"},
        warm_up=False,
    )


def _ids(ids: bool) -> dict[str, str]:
    """A batch write gives rows ids unless told not to."""
    return {} if ids else {"exactlyOnce": "false"}


def payload_frame(spark: Spark, payloads: Payloads, subjects: int = SUBJECTS) -> DataFrame:
    """The payloads' rows; nothing is read and hardly anything computed for them."""
    from pyspark.sql import functions as F

    number = F.col("id") % subjects
    return spark.session.range(0, payloads.rows, 1, PARTITIONS).select(
        F.concat(F.lit("payloads."), number.cast("string")).alias("subject"),
        F.lit(payloads.data).alias("data"),
    )


def _fresh(streams: Streams, layout: Layout, rows: int, call: Callable[[], T]) -> Callable[[], T]:
    """`call` on a stream of its own, which holds so many rows afterwards."""

    def on_fresh_stream() -> T:
        with streams.empty(layout):
            result = call()
            if (stored := streams.last_sequences(layout)[0]) != rows:
                raise RuntimeError(f"the stream holds {stored} of {rows} rows")
            return result

    return on_fresh_stream
