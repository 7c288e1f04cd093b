"""
How long a row takes at the live end: from the server's clock of its message to the end of the
batch that holds it, at rates from one a second up.

Both clocks are this machine's. Nothing but the query's progress is looked at while it runs; which
rows a batch held and when they were stored is read afterwards.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from ..others.children import Children
from ..results import Times, of_times
from ..runs import until
from ..spark import Spark, sequences, wait_for
from ..streams import Lane, Layout, Streams

RATES: Final = (1, 200, 2_000, 20_000)
"""Messages a second, over both streams."""

_WARM_RATE: Final = 2_000
"""At which a query runs before, without a clock."""

_SIZE: Final = 100
"""Bytes of a payload."""

_STORED_TIMEOUT_S: Final = 10.0
_WARM: Final = 3
_WARM_TIMEOUT_S: Final = 300.0

_LAYOUT: Final = Layout(
    "two streams",
    {"LIVE-0": "live.0", "LIVE-1": "live.1"},
    (Lane("LIVE-0"), Lane("LIVE-1")),
    {"stream": "LIVE-{partition}", "partitions": "2"},
)


def live(spark: Spark, streams: Streams, seconds: float) -> dict[str, Any]:
    """The latencies at each rate."""
    _follow(spark, streams, _WARM_RATE, seconds)
    return of_times(
        "from stored to the end of its batch",
        [Times(f"row, {rate:,}/s", _follow(spark, streams, rate, seconds)) for rate in RATES],
    )


def _follow(spark: Spark, streams: Streams, rate: int, seconds: float) -> list[float]:
    """Milliseconds of each row of a query beside a producer of so many messages a second."""
    job = {
        "do": "on_the_wire",
        "call": "publish_steadily",
        "url": streams.url,
        "subject": "live",
        "subjects": len(_LAYOUT.lanes),
        "size": _SIZE,
        "rate": rate,
    }
    with streams.empty(_LAYOUT):
        with spark.following(_LAYOUT.options) as query, Children([job]) as producer:
            producer.go()
            until(lambda: len(query.recentProgress) > _WARM, _WARM_TIMEOUT_S, "its processes run")
            since = time.time()
            time.sleep(seconds)
            producer.stop()
            sent = producer.outcome().rows
            until(
                lambda: sum(streams.last_sequences(_LAYOUT)) >= sent,
                _STORED_TIMEOUT_S,
                f"{sent} messages are stored",
            )
            wait_for(query, streams.last_sequences(_LAYOUT))
            progress = query.recentProgress
        rows = spark.range(_LAYOUT.options).select("partition", "sequence", "timestamp").toArrow()
    if rows.num_rows != sent:
        raise RuntimeError(f"{rows.num_rows} rows came out of {sent}")
    ends = list(_ends(progress))
    found = []
    for row in rows.to_pylist():
        stored = row["timestamp"].timestamp()
        at = bisect_left(ends, row["sequence"], key=lambda end: end[0][row["partition"]])
        if stored >= since and at:  # the first batch began before
            found.append((ends[at][1] - stored) * 1e3)
    return found


def _ends(progress: Sequence[Any]) -> Iterator[tuple[list[int], float]]:
    """Up to which sequences a batch with rows went, and when it ended (seconds)."""
    for each in progress:
        if each.numInputRows:
            began = datetime.fromisoformat(each.timestamp).timestamp()
            ended = began + each.durationMs["triggerExecution"] / 1e3
            yield sequences(each.sources[0].endOffset), ended
