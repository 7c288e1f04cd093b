"""What the tests of partitioning share: origins, and what streams hold."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.partition.plan import PartitionPlan

from . import snapshots

N = 4
ORIGINS = [f"O{i}" for i in range(12)]
Rows = dict[str, list[bytes]]


def raw_messages(name: str) -> list[tuple[str, bytes]]:
    """Ten messages on each `<name>.<origin>.<destination>`, interleaved."""
    return [
        (f"{name}.{o}.{d}", b"%d %s" % (i, o.encode()))
        for i in range(10)
        for o in ORIGINS
        for d in ("JFK", "LAX")
    ]


def numbered_messages(name: str) -> list[tuple[str, bytes]]:
    """Ten messages on each `<name>.<partition>.<origin>`, interleaved."""
    return [(f"{name}.{p}.{o}", b"%d" % i) for i in range(10) for o in ORIGINS for p in range(N)]


def update(js: JetStream, stream: str, **changes: Any) -> None:
    """Changes the configuration of a stream."""
    js.update_stream(js.stream_info(stream).config | changes)


def stored(js: JetStream, *streams: str, between: tuple[int, int] | None = None) -> Rows:
    """Payloads by subject in stored order, of all the streams together."""
    rows: Rows = defaultdict(list)
    for stream in streams:
        for sequence, message in snapshots.stored(js, stream).items():
            if between is None or between[0] <= sequence <= between[1]:
                rows[message["subject"]].append(message["data"])
    return rows


@contextmanager
def writing(js: JetStream, name: str) -> Iterator[None]:
    """
    Publishes on `<name>.<origin>.<destination>` all the time, on a connection of its own; the first
    message is stored. At most 300 messages a second, so that whoever reads a few dozen at a time
    comes to the end on a slow machine too.
    """
    client, began, stop = Client(js.client.options), threading.Event(), threading.Event()
    other = JetStream(client)

    def write() -> None:
        for n in itertools.count():
            if stop.wait(1 / 300):
                return
            other.publish(f"{name}.{ORIGINS[n % 12]}.JFK", b"w%d" % n, [])
            began.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert began.wait(60)
        yield
    finally:
        stop.set()
        thread.join(60)
        client.close()


def layouts(name: str, n: int, how: str) -> PartitionPlan:
    """The layout of n partitions over raw subjects; its streams have n in their names."""
    streams = f"{name}x{n}-{{partition}}" if how == "streams" else None
    return PartitionPlan(
        name, n, streams, subject=f"{name}.*.*", tokens=(1,), numbered=f"{name}x{n}-all"
    )
