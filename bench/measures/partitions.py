"""
What a query asks JetStream of how many partitions: idle, at the live end, and in a backlog.

Partitions are streams of one number, filters of one stream, or streams that a pattern finds.

Requests are counted at the server. At the live end a round is one message to each partition, or to
one of four, and the batches that read them; the query has nothing to do in between.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.table import Table

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import parse_connection

from ..apirequests import ApiRequests, connections
from ..comparisons import Part
from ..results import Entry
from ..spark import Spark, wait_for
from ..streams import Lane, Layout, Streams

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS: Final = (8, 64)
PATTERNS: Final = (50, 200, 1_000)
"""How many streams a pattern finds."""

_ROUNDS: Final = 5
_DEEP: Final = 200
"""Messages of each partition in the backlog."""


class _Seen(NamedTuple):
    """What was asked in one state of a query."""

    name: str
    asked: Counter[str]
    over: float
    """In so many seconds of a query that is idle, else batches."""
    unit: str
    busy: int
    """Partitions that had messages, a batch."""
    cpu: str
    connections: int


def part(spark: Spark, streams: Streams, monitor_url: str, seconds: float, whole: bool) -> Part:
    """
    Each layout with each number of partitions.

    Args:
        seconds: how long a query is watched that is idle.
        whole: each number; else the least of them.
    """
    table = Table("a query's requests")
    for column in ("requests", "of", "a partition with rows", "connections", "CPU-s"):
        table.add_column(column, justify="right")
    table.add_column("which, each")
    entries: list[Entry] = []
    layouts = [
        kind(count) for count in PARTITIONS[: None if whole else 1] for kind in (_many, _one)
    ]
    layouts += [_pattern(count) for count in PATTERNS[: None if whole else 1]]
    for layout in layouts:
        for seen in _follow(spark, streams, layout, monitor_url, seconds):
            each = sum(seen.asked.values()) / seen.over
            name = f"scale requests, {layout.name}, {seen.name}"
            entries.append(Entry(name, round(each, 1), f"requests a {seen.unit}"))
            if seen.name == "idle":
                entries.append(Entry(f"{name}: clients", seen.connections, "connections"))
            table.add_row(
                f"{layout.name}, {seen.name}",
                f"{each:,.1f}",
                seen.unit,
                f"{each / seen.busy:.1f}" if seen.busy else "",
                str(seen.connections),
                seen.cpu,
                ", ".join(f"{c} {n / seen.over:.1f}" for c, n in sorted(seen.asked.items())),
            )
    return Part(entries, table)


def _many(count: int) -> Layout:
    return Layout(
        f"{count} streams",
        {f"ASKED-{p}": f"asked.{p}.>" for p in range(count)},
        tuple(Lane(f"ASKED-{p}", None) for p in range(count)),
        {"stream": "ASKED-{partition}", "partitions": str(count)},
    )


def _one(count: int) -> Layout:
    subject = "asked.{partition}.>"
    return Layout(
        f"{count} filters",
        {"ASKED": "asked.>"},
        tuple(Lane("ASKED", f"asked.{p}.>") for p in range(count)),
        {"stream": "ASKED", "partitions": str(count), "partitionSubject": subject},
    )


def _pattern(count: int) -> Layout:
    names = [f"MANY-{p:04}" for p in range(count)]
    return Layout(
        f"{count:,} streams by pattern",
        {name: f"asked.{p}.>" for p, name in enumerate(names)},
        tuple(Lane(name, None) for name in names),
        {"streamPattern": "MANY-*"},
    )


class _Query:
    """A query beside its producer."""

    def __init__(self, streams: Streams, layout: Layout, query: StreamingQuery) -> None:
        self._query = query
        self._stored = Counter[str]()
        self._lanes = layout.lanes
        self._client = Client(parse_connection({"servers": streams.url}))

    def close(self) -> None:
        self._client.close()

    def publish(self, partitions: Collection[int], each: int = 1) -> None:
        """So many messages to each of these partitions; they are stored."""
        for p in partitions:
            self._client.requests([(f"asked.{p}.x", b"x")] * each)
            self._stored[self._lanes[p].stream] += each

    def catch_up(self) -> None:
        """Returns when all that is stored is read."""
        ends = [self._stored[lane.stream] for lane in self._lanes]
        wait_for(self._query, ends)

    def batches(self) -> int:
        """How many batches with rows there were."""
        return sum(1 for each in self._query.recentProgress if each.numInputRows)


@contextmanager
def _running(spark: Spark, streams: Streams, layout: Layout) -> Iterator[_Query]:
    with streams.empty(layout), spark.following(layout.options) as running:
        query = _Query(streams, layout, running)
        try:
            yield query
        finally:
            query.close()


def _follow(
    spark: Spark, streams: Streams, layout: Layout, monitor_url: str, seconds: float
) -> Iterator[_Seen]:
    """One query in its four states, one after the other."""
    every = range(len(layout.lanes))
    with ApiRequests(streams.url) as api, _running(spark, streams, layout) as query:
        others = 3  # who makes the streams, the producer, and who counts
        for _ in range(_ROUNDS):  # its processes start, and pins are known
            query.publish(every)
            query.catch_up()
        for busy, name in ((every, "live"), (every[::4], "live, one of four")):
            query.publish(busy)
            query.catch_up()
            api.taken()
            done = query.batches()
            with spark.sampler() as sampler:
                for _ in range(_ROUNDS):
                    query.publish(busy)
                    query.catch_up()
            asked = api.taken()
            clients, over = connections(monitor_url) - others, query.batches() - done
            cpu = str(sampler.usage)
            yield _Seen(name, asked, over, "batch", len(busy), cpu, clients)
        time.sleep(1.0)
        api.taken()
        began = time.monotonic()
        with spark.sampler() as sampler:
            time.sleep(seconds)
        asked, over_s = api.taken(), time.monotonic() - began
        clients = connections(monitor_url) - others
        yield _Seen("idle", asked, over_s, "second", 0, str(sampler.usage), clients)
        done = query.batches()
        with spark.sampler() as sampler:
            query.publish(every, _DEEP)
            query.catch_up()
        asked = api.taken()
        clients, over = connections(monitor_url) - others, query.batches() - done
        yield _Seen("backlog", asked, over, "batch", len(every), str(sampler.usage), clients)
