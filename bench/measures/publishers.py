"""
How long publishes of others take while something is read.

Two writers publish side by side, one to a stream of its own and one to the stream that is read. The
first is slowed by the server's and the machine's work. The second has to wait for the stream, too:
one goroutine of the server sends all that is read of a stream and takes what is published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..others.children import Children
from ..others.references import References
from ..results import Times, of_times
from ..spark import Spark
from ..streams import FILTERED, Lane, Layout, Streams

_RATE: Final = 500
"""Publishes a second of each writer."""

_SIZE: Final = 100
"""Bytes of a payload."""

_BATCH: Final = 1_000
"""Messages of a request of the package."""

_OWN: Final = Layout("beside", {"BESIDE": "beside.>"}, (Lane("BESIDE"),))


def publishers(
    spark: Spark, streams: Streams, references: References, seconds: float
) -> dict[str, Any]:
    """Publishes without a read, then during each, done again until `seconds` are over."""
    rows, options = streams.flights.rows, {"stream": "FLIGHTS"}
    gentle = options | {"maxPublishDelay": "20ms"}
    reads: dict[str, Callable[[], object]] = {
        "no read": lambda: time.sleep(seconds),
        "raw direct": lambda: references.drain_direct(FILTERED, _BATCH),
        "range": lambda: spark.read_range(options, rows),
        "range, maxPublishDelay=20ms": lambda: spark.read_range(gentle, rows),
    }
    series = []
    with streams.empty(FILTERED), streams.empty(_OWN):
        streams.publish(rows)
        for during, read in reads.items():
            found = _timed(streams, read, seconds)
            series += [Times(f"{during}: to {on}", each) for on, each in found.items()]
    return of_times(f"publishes, {_RATE}/s each", series)


def _timed(streams: Streams, read: Callable[[], object], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each publish, by stream."""
    job = {
        "do": "on_the_wire",
        "call": "publish_paced",
        "url": streams.url,
        "subjects": 1_000,
        "size": _SIZE,
        "rate": _RATE,
    }
    with (
        Children([job | {"subject": "beside"}]) as beside,
        Children([job | {"subject": "flights.timed"}]) as same,
    ):
        writers = {"another stream": beside, "the stream read": same}
        for writer in writers.values():
            writer.go()
        until = time.monotonic() + seconds
        read()
        while time.monotonic() < until:
            read()
        for writer in writers.values():
            writer.stop()
        return {
            on: [latency_s * 1e3 for latency_s in writer.outcome().latencies_s]
            for on, writer in writers.items()
        }
