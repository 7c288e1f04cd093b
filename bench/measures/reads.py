"""
What is measured: for each case this package's run and its references, on streams made for it.

The cases come one by one, because the streams of one phase exist only while its cases run:
both layouts use the same subjects, which two streams cannot share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ..cases import Case
from ..others.child import Children, Outcome
from ..others.references import (
    NATS_PY,
    RAW_DIRECT,
    RAW_DRAIN,
    RAW_PLAIN,
    References,
    produced_note,
)
from ..spark import Run, Spark, wait_for
from ..streams import FILTERED, STREAMS, Layout, Streams

_SHARE: Final = 200_000
"""So many messages are enough of a reference that would take a minute for all."""

_A_TRIGGER: Final = 100_000

_FIRST_ROWS: Final = 1_000
"""What a query has read before the producer starts: it is up and running then."""

_PLAIN: Final = {NATS_PY: "plain consumers without filter, half of the messages each"}

_CUT: Final = 4
"""Tasks of a stream that is cut by sequence, whatever its partitions are."""

_DIRECT_BOUND: Final = "both cores: the server and the workers, about the same"


def read_cases(spark: Spark, streams: Streams, references: References) -> Iterator[Case]:
    """Reading what is stored, then keeping up with a producer; in both layouts."""
    rows, counts = streams.flights.rows, streams.flights.counts()
    limited = STREAMS.options | {"maxRecordsPerTrigger": str(_A_TRIGGER)}
    with streams.empty(STREAMS):
        streams.publish(rows)
        yield Case(
            "read streams layout, auto, from the start",
            "both cores: the server's delivery most, then Spark's JVM, then the workers",
            lambda: spark.read_stream(STREAMS.options, rows),
            {
                RAW_DRAIN: lambda: references.drain_consumers(STREAMS, counts),
                RAW_PLAIN: lambda: references.drain_consumers(STREAMS, counts, pinned=False),
                NATS_PY: lambda: references.fetch_partitions(STREAMS, counts),
            },
        )
        yield _direct(spark, references, STREAMS, rows)
        yield Case(
            f"read streams layout, auto, {_A_TRIGGER:,} a trigger",
            "what a batch costs beside its rows",
            lambda: spark.read_stream(limited, rows),
            {},
        )
        yield _range(spark, references, STREAMS, rows)
    with streams.empty(FILTERED):
        streams.publish(rows)
        share = [count * min(_SHARE, rows) // rows for count in counts]
        note = f"the first {sum(share):,} messages" if sum(share) < rows else "all messages"
        yield Case(
            "read filtered layout, auto, from the start",
            "both cores: each partition's task reads the whole stream and drops the others' rows",
            lambda: spark.read_stream(FILTERED.options, rows),
            {
                RAW_DRAIN: lambda: references.drain_consumers(FILTERED, share),
                NATS_PY: lambda: references.fetch_partitions(FILTERED, share),
            },
            dict.fromkeys((RAW_DRAIN, NATS_PY), f"filtered consumers, {note}"),
        )
        yield _direct(spark, references, FILTERED, rows)
        cut = FILTERED.options | {"minPartitions": str(_CUT)}
        yield Case(
            f"read filtered layout, auto, minPartitions={_CUT}",
            "both cores: the stream is cut by sequence and read once",
            lambda: spark.read_stream(cut, rows),
            {},
        )
        yield _range(spark, references, FILTERED, rows)
    for layout in (STREAMS, FILTERED):
        yield _live(spark, streams, references, layout)


def _direct(spark: Spark, references: References, layout: Layout, rows: int) -> Case:
    return Case(
        f"read {layout.name}, direct, from the start",
        _DIRECT_BOUND,
        lambda: spark.read_stream(layout.options | {"directBelow": "999999999"}, rows),
        {
            RAW_DIRECT: lambda: references.drain_direct(layout),
            NATS_PY: lambda: references.fetch_ranges(layout),
        },
        _PLAIN,
    )


def _range(spark: Spark, references: References, layout: Layout, rows: int) -> Case:
    return Case(
        f"read {layout.name}, batch read",
        "both cores: the server's delivery most, then Spark's JVM, then the workers",
        lambda: spark.read_range(layout.options, rows),
        {RAW_DIRECT: lambda: references.drain_direct(layout)},
    )


def _live(spark: Spark, streams: Streams, references: References, layout: Layout) -> Case:
    rows, counts = streams.flights.rows, streams.flights.counts()

    def ours() -> Run:
        with streams.empty(layout), spark.following(layout.options) as query:
            streams.publish(_FIRST_ROWS)
            wait_for(query, streams.last_sequences(layout))
            with Children([streams.publish_job()]) as producer, spark.sampler() as sampler:
                before = query.lastProgress
                producer.go()
                produced = producer.outcome()
                wait_for(query, streams.last_sequences(layout))
                seconds = time.monotonic() - producer.started
                after = query.lastProgress
        batches = after.batchId - before.batchId if before and after else 0
        note = f"{produced_note(produced)}, {batches} batches"
        return Run(rows, seconds, None, sampler.usage, note)

    def raw() -> Outcome:
        with streams.empty(layout):
            return references.follow_consumers(layout, counts)

    name = f"read live end, {layout.name}, auto"
    bound = "both cores: the server stores and delivers at once, beside the producer"
    return Case(name, bound, ours, {RAW_DRAIN: raw}, warm_up=False)
