"""
What is measured of reading: what is stored, in both layouts and three retentions, and the live end.

The cases come one by one, because the streams of one layout exist only while its cases run:
all layouts use the same subjects, which two streams cannot share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from ..others.children import Children
from ..others.kafka import KAFKA, Peer
from ..others.references import NATS_PY, RAW_DIRECT, RAW_DRAIN, References
from ..runs import Case, Run
from ..spark import Spark, wait_for
from ..streams import FILTERED, INTEREST, STREAMS, WORKQUEUE, Layout, Streams

_SHARE: Final = 100_000
"""So many messages of a stream are enough of a reference that would take a minute for all."""

_A_TRIGGER: Final = 100_000

_FIRST_ROWS: Final = 1_000
"""What a query has read before the producer starts: it is up and running then."""


def read_cases(
    spark: Spark, streams: Streams, references: References, kafka: Peer | None
) -> Iterator[Case]:
    """From the start, in batches and at once; then as it comes."""
    rows, counts = streams.flights.rows, streams.flights.counts()
    for layout in (STREAMS, FILTERED):
        with streams.empty(layout):
            streams.publish(rows)
            yield from _stored(spark, references, layout, counts, kafka)
    for layout in (INTEREST, WORKQUEUE):
        yield Case(f"{layout.name}, from the start", _settled(spark, streams, layout))
    for layout in (STREAMS, FILTERED):
        yield _live(spark, streams, references, layout)


def _stored(
    spark: Spark, references: References, layout: Layout, counts: list[int], kafka: Peer | None
) -> Iterator[Case]:
    rows, options = sum(counts), layout.options
    limited = options | {"maxRecordsPerTrigger": str(_A_TRIGGER)}
    drained = counts if layout is STREAMS else [min(_SHARE, count) for count in counts]
    at_once: dict[str, Callable[[], Run]] = {
        RAW_DRAIN: lambda: references.drain_consumers(layout, drained),
        NATS_PY: lambda: references.fetch(layout, _SHARE),
    }
    in_batches: dict[str, Callable[[], Run]] = {}
    ranges: dict[str, Callable[[], Run]] = {RAW_DIRECT: lambda: references.drain_direct(layout)}
    if kafka is not None:
        at_once[KAFKA] = lambda: kafka.read_stream(rows)
        in_batches[KAFKA] = lambda: kafka.read_stream(rows, _A_TRIGGER)
        ranges[KAFKA] = lambda: kafka.read_range(rows)
    yield Case(
        f"{layout.name}, from the start", lambda: spark.read_stream(options, rows), at_once, True
    )
    yield Case(
        f"{layout.name}, {_A_TRIGGER:,} a trigger",
        lambda: spark.read_stream(limited, rows),
        in_batches,
    )
    yield Case(f"{layout.name}, batch read", lambda: spark.read_range(options, rows), ranges)


def _settled(spark: Spark, streams: Streams, layout: Layout) -> Callable[[], Run]:
    """A read that acknowledges, on streams of its own; a consumer keeps what `interest` drops."""
    rows = streams.flights.rows

    def ours() -> Run:
        kept = layout.lanes if layout is INTEREST else ()
        with streams.consumers(kept, policy="explicit"):
            streams.publish(rows)
            return spark.read_stream(layout.options, rows)

    return streams.fresh(layout, rows, ours)


def _live(spark: Spark, streams: Streams, references: References, layout: Layout) -> Case:
    rows, counts = streams.flights.rows, streams.flights.counts()

    def ours() -> Run:
        with streams.empty(layout), spark.following(layout.options) as query:
            streams.publish(_FIRST_ROWS)
            wait_for(query, streams.last_sequences(layout))
            with Children([streams.publish_job()]) as producer, spark.sampler() as sampler:
                producer.go()
                produced = producer.outcome()
                wait_for(query, streams.last_sequences(layout))
                seconds = time.monotonic() - producer.started
        return Run(rows, seconds, sampler.cpu_s, f"the producer made {produced.rate:,.0f}/s")

    def raw() -> Run:
        with streams.empty(layout):
            return references.follow_consumers(layout, counts)

    return Case(f"live end, {layout.name}", ours, {RAW_DRAIN: raw})
