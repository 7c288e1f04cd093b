"""
Shared reading: one, two and four queries on one consumer, and what a driver can claim.

A message costs the server a delivery with bookkeeping, an ack, and a direct get; the first two are
what `raw claims` does with bare sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark_jetstream.options import parse_stream

from ..cases import Case
from ..others.bare import Counted
from ..others.child import Child
from ..others.references import NATS_PY, RAW_CLAIMS, References
from ..spark import Run, Spark
from ..streams import GROUP, Layout, Streams

_QUERIES: Final = (1, 2, 4)

_SHARED: Final = Layout("one stream", {"SHARED": "flights.>"}, (), {"stream": "SHARED"})

_PLAIN: Final = {NATS_PY: "plain consumer, payloads at once; it knows no priority groups"}


def share_cases(spark: Spark, streams: Streams, references: References) -> Iterator[Case]:
    """Claims alone, then whole queries, each with more and more readers."""
    rows = streams.flights.rows
    numbers = iter(range(1_000_000))
    with streams.empty(_SHARED):
        streams.publish(rows)
        for queries in _QUERIES:
            yield Case(
                f"share claims, {queries} drivers" if queries > 1 else "share claims, 1 driver",
                "one core a driver, until the server's is full",
                lambda queries=queries: _as_run(references, queries),  # type: ignore[misc]
                {
                    RAW_CLAIMS: lambda queries=queries: references.share_raw(  # type: ignore[misc]
                        "SHARED", queries
                    )
                },
                warm_up=False,
            )
        for queries in _QUERIES:
            yield Case(
                f"share rows, {queries} queries" if queries > 1 else "share rows, 1 query",
                "both cores",
                lambda queries=queries: spark.share_stream(  # type: ignore[misc]
                    {
                        "stream": "SHARED",
                        "priorityPolicy": "overflow",
                        "priorityGroup": GROUP,
                        "consumer": f"share{next(numbers)}",
                    },
                    rows,
                    queries,
                ),
                {
                    NATS_PY: lambda queries=queries: references.share_nats_py(  # type: ignore[misc]
                        "SHARED", queries
                    )
                },
                _PLAIN,
            )


def _as_run(references: References, drivers: int) -> Run:
    outcome = references.share_claims("SHARED", drivers)
    return Run(outcome.messages, outcome.seconds, None, outcome.usage)


def claim(child: Child, url: str, stream: str, consumer: str) -> None:
    """For a process of its own: claims all that the consumer brings."""
    child.run(lambda: _claim_all(url, stream, consumer))


def _claim_all(url: str, stream: str, consumer: str) -> Counted:
    """Claims batch after batch, as a query that reads nothing; each acknowledges the one before."""
    from pyspark_jetstream.readstream.reader import StreamReader

    reader = StreamReader(
        parse_stream(
            {
                "servers": url,
                "stream": stream,
                "consumer": consumer,
                "priorityPolicy": "overflow",
                "priorityGroup": GROUP,
            }
        )
    )
    reader.prepareForTriggerAvailableNow()
    offset, messages = reader.initialOffset(), 0
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        claimed = reader.reportLatestOffset()
        messages += sum(said.get("claimed", 0) for said in claimed.values())
        offset = end
    reader.stop()
    return Counted(messages)
