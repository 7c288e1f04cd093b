"""What the tests of partitioning share: origins, and what streams hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pyspark_jetstream.client.jetstream import JetStream

from .streams import stored as messages
from .streams import update_stream

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
    update_stream(js, js.stream_info(stream).config | changes)


def stored(js: JetStream, *streams: str, between: tuple[int, int] | None = None) -> Rows:
    """Payloads by subject in stored order, of all the streams together."""
    rows: Rows = defaultdict(list)
    for stream in streams:
        for sequence, message in messages(js, stream).items():
            if between is None or between[0] <= sequence <= between[1]:
                rows[message["subject"]].append(message["data"])
    return rows
