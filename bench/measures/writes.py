"""
What is measured of writing: flights that are in memory, mapped, then payloads of three sizes, with
and without message ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark_jetstream.options import parse_sink

from ..others.kafka import KAFKA, Peer
from ..others.references import NATS_PY, RAW_PUBLISH, References
from ..rows import MAPPING, PARTITIONS, SUBJECTS, Payloads
from ..runs import Case, Run
from ..spark import Spark
from ..streams import FILTERED, PAYLOADS, WINDOW, Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHARE: Final = 50_000
"""So many rows are enough of a reference that would take a minute for all."""

_WINDOW_BYTES: Final = parse_sink({}).window.max_in_flight_bytes
"""Bytes of a publisher without a PubAck; the sink's default."""


_SIZES: Final = {"100 B": (100, 300_000), "1 KB": (1_000, 150_000), "100 KB": (100_000, 16_000)}
"""Bytes of a payload, and how many rows of it, of a million that are asked for in all."""


def write_cases(
    spark: Spark, streams: Streams, references: References, flights: DataFrame, kafka: Peer | None
) -> Iterator[Case]:
    """Each on a stream of its own."""
    rows, job, mapped = streams.flights.rows, streams.publish_job(), {"subjectMapping": MAPPING}
    share = min(_SHARE, rows)
    others: dict[str, Callable[[], Run]] = {
        RAW_PUBLISH: streams.fresh(
            FILTERED, rows, lambda: references.publish(RAW_PUBLISH, job, rows, True)
        ),
        NATS_PY: streams.fresh(
            FILTERED, share, lambda: references.publish(NATS_PY, job, share, True)
        ),
    }
    if kafka is not None:
        others[KAFKA] = lambda: kafka.write(flights, rows)
    ours = streams.fresh(FILTERED, rows, lambda: spark.write(flights, mapped, rows))
    yield Case("flights, ids", ours, others, True)
    for name, (size, of_a_million) in _SIZES.items():
        payloads = Payloads(size, max(1, rows * of_a_million // 1_000_000))
        for ids in (True, False):
            yield _payloads(spark, streams, references, name, payloads, ids)


def _payloads(
    spark: Spark, streams: Streams, references: References, name: str, payloads: Payloads, ids: bool
) -> Case:
    rows, size = payloads.rows, len(payloads.data)
    share = min(_SHARE // 5, rows)
    frame = _frame(spark, payloads)
    # A batch write gives rows ids unless told not to.
    options = {} if ids else {"exactlyOnce": "false"}
    window = min(WINDOW, _WINDOW_BYTES // size)
    job = {"url": streams.url, "size": size, "rows": rows, "window": window}
    return Case(
        f"{name}, {'ids' if ids else 'no ids'}",
        streams.fresh(PAYLOADS, rows, lambda: spark.write(frame, options, rows)),
        {
            RAW_PUBLISH: streams.fresh(
                PAYLOADS, rows, lambda: references.publish(RAW_PUBLISH, job, rows, ids)
            ),
            NATS_PY: streams.fresh(
                PAYLOADS, share, lambda: references.publish(NATS_PY, job, share, ids)
            ),
        },
    )


def _frame(spark: Spark, payloads: Payloads) -> DataFrame:
    """The payloads' rows; nothing is read and hardly anything computed for them."""
    from pyspark.sql import functions as F

    number = F.col("id") % SUBJECTS
    return spark.session.range(0, payloads.rows, 1, PARTITIONS).select(
        F.concat(F.lit("payloads."), number.cast("string")).alias("subject"),
        F.lit(payloads.data).alias("data"),
    )
