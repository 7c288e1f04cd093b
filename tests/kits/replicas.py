"""Streams of three replicas, filled whoever leads them meanwhile."""

from __future__ import annotations

import time

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.jetstream import JetStream

__all__ = ["fill"]


def fill(js: JetStream, name: str, count: int) -> None:
    """
    `count` messages of 200 bytes on `<name>.a`, by the thousand, in a stream that has none. What
    was sent while nobody led is nowhere, so it is sent again; each has an id and is stored once.
    """
    deadline = time.monotonic() + 120
    for low in range(0, count, 1000):
        ids = [wire.header_block([("Nats-Msg-Id", str(n))]) for n in range(low, low + 1000)]
        while (stored := js.stream_info(name).last_seq) < low + 1000:
            assert time.monotonic() < deadline, f"{stored} of {count} are stored"
            js.client.requests([(f"{name}.a", b"x" * 200, each) for each in ids])
