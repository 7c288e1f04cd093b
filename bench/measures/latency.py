"""
How long publishes of others take while something is read.

Two writers publish side by side, one to a stream of its own and one to the stream that is read. The
first is slowed by the server's and the machine's work. The second has to wait for the stream, too:
one goroutine of the server sends all that is read of a stream and takes what is published, so a
publish waits behind all that was asked for, and its PubAck again (`neighbours`). As long as that
takes more than 2 ms a publish, the writer falls ever further behind.

What a machine does whose cores are merely busy tells how much of it is for want of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table

from ..others.child import Children
from ..results import Entry
from ..streams import Lane, Layout, Streams

__all__ = ["Latency", "busy", "entries", "measure", "table"]

_IDLE: Final = "no read"

_RATE: Final = 500
"""Publishes a second of each writer."""

_SIZE: Final = 100
"""Bytes of a payload."""

_OWN: Final = Layout("beside", {"BESIDE": "beside.>"}, (Lane("BESIDE", None),), {})


@dataclass(frozen=True, slots=True)
class Latency:
    """What a writer saw; milliseconds."""

    during: str
    """The read."""
    on: str
    """Which stream it published to, the one that is read or another one."""
    publishes: int
    p50: float
    p99: float
    maximum: float
    idle_p99: float
    """The same without a read."""

    @property
    def ratio(self) -> float:
        """How much slower the slow ones are than without a read."""
        return self.p99 / self.idle_p99


def measure(
    streams: Streams,
    name: str,
    subject: str,
    subjects: int,
    reads: Mapping[str, Callable[[], object]],
    seconds: float,
) -> list[Latency]:
    """
    Publishes without a read, then during each.

    Args:
        name: says which stream is read.
        subject: a writer publishes to `<subject>.<n>` of the stream that is read,
        subjects: so many of them in turn.
        reads: done again until `seconds` are over.
    """
    idle: dict[str, float] = {}
    latencies = []
    with streams.empty(_OWN):
        calls: dict[str, Callable[[], object]] = {f"{_IDLE} of {name}": lambda: time.sleep(seconds)}
        for during, read in (calls | dict(reads)).items():
            for on, timed in _timed(streams, subject, subjects, read, seconds).items():
                p50, p99, maximum = (_quantile(timed, share) * 1e3 for share in (0.5, 0.99, 1.0))
                idle.setdefault(on, p99)
                latencies.append(Latency(during, on, len(timed), p50, p99, maximum, idle[on]))
    return latencies


def busy(seconds: float) -> None:
    """Takes two cores, as a read does, but asks nothing of the server."""
    with Children([{"do": "bench.others.work:spin"}] * 2) as children:
        children.go()
        time.sleep(seconds)
        children.stop()
        children.outcome()


def _timed(
    streams: Streams, subject: str, subjects: int, read: Callable[[], object], seconds: float
) -> dict[str, list[float]]:
    """Sorted latencies by stream."""
    job: dict[str, Any] = {
        "do": "bench.others.work:publish_paced",
        "url": streams.url,
        "subjects": subjects,
        "size": _SIZE,
        "rate": _RATE,
    }
    with (
        Children([job | {"subject": "beside"}]) as beside,
        Children([job | {"subject": subject}]) as same,
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
        return {on: sorted(writer.outcome().latencies_s) for on, writer in writers.items()}


def _quantile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def entries(latencies: Iterable[Latency]) -> list[Entry]:
    """What goes into the JSON; the p99 beside the one without a read."""
    made = []
    for latency in latencies:
        name = f"publishes to {latency.on}, {latency.during}"
        made += [
            Entry(f"{name}: p50", round(latency.p50, 3), "ms"),
            Entry(
                f"{name}: p99", round(latency.p99, 3), "ms",
                _IDLE, round(latency.idle_p99, 3), round(latency.ratio, 3),
            ),
            Entry(f"{name}: max", round(latency.maximum, 3), "ms"),
        ]  # fmt: skip
    return made


def table(latencies: Iterable[Latency]) -> Table:
    """A line a read and a stream."""
    made = Table("publishes during", "to")
    for column in ("publishes", "p50 ms", "p99 ms", "max ms", "p99 / without"):
        made.add_column(column, justify="right")
    for latency in latencies:
        figures = (
            f"{value:,.2f}" for value in (latency.p50, latency.p99, latency.maximum, latency.ratio)
        )
        made.add_row(latency.during, latency.on, f"{latency.publishes:,}", *figures)
    return made
