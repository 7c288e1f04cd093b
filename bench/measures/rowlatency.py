"""
How long a row takes at the live end: from the server's clock of its message to the end of the
batch that holds it, at rates from one a second up.

Both clocks are this machine's. The query writes to noop and begins a batch as soon as the one
before is done; nothing but its progress is looked at while it runs. Which rows a batch held
and when they were stored is read afterwards. Beside it, what the progress says of the parts of a
batch at one of the rates, and how long a query takes from its start to its first one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..comparisons import Part, Times, of_times
from ..others.child import Children
from ..spark import Spark, sequences, wait_for
from ..streams import Lane, Layout, Streams
from ..waiting import until

if TYPE_CHECKING:
    pass

RATES: Final = (1, 200, 2_000, 20_000)
"""Messages a second, over both streams."""

_WARM_RATE: Final = 2_000
"""At which a query runs before, without a clock."""

_SHOWN: Final = 200
"""The rate of which the parts of a batch are shown."""

_PARTS: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""As Spark's progress calls them, in their order."""

_SIZE: Final = 100
"""Bytes of a payload."""

_STORED_TIMEOUT_S: Final = 10.0
_WARM: Final = 3
_WARM_TIMEOUT_S: Final = 300.0

_LAYOUT: Final = Layout(
    "two streams",
    {"LIVE-0": "live.0", "LIVE-1": "live.1"},
    (Lane("LIVE-0", None), Lane("LIVE-1", None)),
    {"stream": "LIVE-{partition}", "partitions": "2"},
)


class _Batch(NamedTuple):
    """A batch: behind which sequences, up to which, and when it ended (seconds)."""

    after: Sequence[int]
    last: Sequence[int]
    ended: float


class _Seen(NamedTuple):
    """What one query showed; milliseconds."""

    rows: list[float]
    """From stored to the end of its batch, of each row published while the query ran."""
    start: float
    """From the query's start until its first batch was planned."""
    parts: dict[str, list[float]]
    """Of each batch with rows, by part."""


def part(spark: Spark, streams: Streams, seconds: float) -> Part:
    """The latencies at each rate, and the rate beside the p50, p99 and maximum."""
    _follow(spark, streams, _WARM_RATE, seconds)
    seen = {rate: _follow(spark, streams, rate, seconds) for rate in RATES}
    series = [Times(f"row, {rate:,}/s", each.rows) for rate, each in seen.items()]
    series += [
        Times(f"a batch at {_SHOWN}/s, {name}", times) for name, times in seen[_SHOWN].parts.items()
    ]
    starts = [each.start for each in seen.values()]
    series.append(Times("start to first batch planned", starts))
    return of_times("from stored to the end of its batch", series, beside_first=False)


def _follow(spark: Spark, streams: Streams, rate: int, seconds: float) -> _Seen:
    """A query beside a producer of so many messages a second."""
    job: dict[str, Any] = {
        "do": "bench.others.work:on_the_wire",
        "call": "publish_steadily",
        "url": streams.url,
        "subject": "live",
        "subjects": len(_LAYOUT.lanes),
        "size": _SIZE,
        "rate": rate,
    }
    with streams.empty(_LAYOUT):
        began = time.time()
        with spark.following(_LAYOUT.options) as query, Children([job]) as producer:
            producer.go()
            until(lambda: len(query.recentProgress) > _WARM, _WARM_TIMEOUT_S, "its processes run")
            since = time.time()
            time.sleep(seconds)
            producer.stop()
            sent = producer.outcome().messages
            until(
                lambda: sum(streams.last_sequences(_LAYOUT)) >= sent,
                _STORED_TIMEOUT_S,
                f"{sent} messages are stored",
            )
            wait_for(query, streams.last_sequences(_LAYOUT))
            progress = query.recentProgress
            batches = list(_batches(progress))
        rows = spark.rows(_LAYOUT.options, ["partition", "sequence", "timestamp"])
    if rows.num_rows != sent:
        raise RuntimeError(f"{rows.num_rows} rows came out of {sent}")
    late = rows.filter(pc.field("timestamp").cast(pa.int64()) >= int(since * 1e6))
    return _Seen(
        [each for batch in batches for each in _of(late, batch)],
        (_planned(progress[0]) - began) * 1e3,
        {
            name: [each.durationMs[name] for each in progress if each.numInputRows]
            for name in _PARTS
        },
    )


def _planned(progress: Any) -> float:
    """When a batch was planned, and had yet to run (seconds)."""
    took = progress.durationMs
    before_ms = took["triggerExecution"] - took.get("addBatch", 0) - took.get("commitOffsets", 0)
    return datetime.fromisoformat(progress.timestamp).timestamp() + float(before_ms) / 1e3


def _batches(progress: Sequence[Any]) -> Iterator[_Batch]:
    """Of those with rows, but for the first, which began nowhere."""
    for each in progress:
        began = datetime.fromisoformat(each.timestamp).timestamp()
        if each.numInputRows and (after := sequences(each.sources[0].startOffset)):
            yield _Batch(
                after,
                sequences(each.sources[0].endOffset),
                began + each.durationMs["triggerExecution"] / 1e3,
            )


def _of(rows: pa.Table, batch: _Batch) -> Iterator[float]:
    """Milliseconds of the rows of a batch."""
    for number, (after, last) in enumerate(zip(batch.after, batch.last, strict=True)):
        mine = rows.filter(
            (pc.field("partition") == number)
            & (pc.field("sequence") > after)
            & (pc.field("sequence") <= last)
        )
        for stored in mine["timestamp"].cast(pa.int64()).to_pylist():
            yield batch.ended * 1e3 - stored / 1e3
