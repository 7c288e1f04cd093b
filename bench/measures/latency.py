"""
How long publishes of others take while something is read.

Two writers publish side by side, one to a stream of its own and one to the stream that is read. The
first is slowed by the server's and the machine's work. The second has to wait for the stream, too:
one goroutine of the server sends all that is read of a stream and takes what is published, so a
publish waits behind all that was asked for, and its PubAck again. As long as that
takes more than 2 ms a publish, the writer falls ever further behind.

What a machine does whose cores are merely busy tells how much of it is for want of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from ..comparisons import Times
from ..others.child import Children
from ..results import Entry
from ..streams import Lane, Layout, Streams

_IDLE: Final = "no read"

_RATE: Final = 500
"""Publishes a second of each writer."""

_SIZE: Final = 100
"""Bytes of a payload."""

_OWN: Final = Layout("beside", {"BESIDE": "beside.>"}, (Lane("BESIDE", None),), {})


class Latency(NamedTuple):
    """What a writer saw."""

    during: str
    """The read."""
    on: str
    """Which stream it published to, the one that is read or another one."""
    times: Times
    idle: Times
    """The same without a read."""

    @property
    def ratio(self) -> float:
        """How much slower the slow ones are than without a read."""
        return self.times.quantile(0.99) / self.idle.quantile(0.99)


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
    idle: dict[str, Times] = {}
    latencies = []
    with streams.empty(_OWN):
        calls: dict[str, Callable[[], object]] = {f"{_IDLE} of {name}": lambda: time.sleep(seconds)}
        for during, read in (calls | dict(reads)).items():
            for on, each_s in _timed(streams, subject, subjects, read, seconds).items():
                times = Times(
                    f"publishes to {on}, {during}", [latency_s * 1e3 for latency_s in each_s]
                )
                latencies.append(Latency(during, on, times, idle.setdefault(on, times)))
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
) -> dict[str, Sequence[float]]:
    """Seconds of each publish, by stream."""
    job: dict[str, Any] = {
        "do": "bench.others.work:on_the_wire",
        "call": "publish_paced",
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
        return {on: writer.outcome().latencies_s for on, writer in writers.items()}


def entries(latencies: Iterable[Latency]) -> list[Entry]:
    """What goes into the JSON; the p99 beside the one without a read."""
    made = []
    for latency in latencies:
        p99_ms, ratio = round(latency.idle.quantile(0.99), 3), round(latency.ratio, 3)
        for figure, value_ms in latency.times.figures.items():
            beside = (_IDLE, p99_ms, ratio) if figure == "p99" else ()
            name = f"{latency.times.name}: {figure}"
            made.append(Entry(name, round(value_ms, 3), "ms", *beside))
    return made


def table(latencies: Iterable[Latency]) -> Table:
    """A line a read and a stream."""
    made = Table("publishes during", "to")
    for column in ("publishes", "p50 ms", "p99 ms", "max ms", "p99 / without"):
        made.add_column(column, justify="right")
    for latency in latencies:
        figures = (*latency.times.figures.values(), latency.ratio)
        count = f"{len(latency.times.each):,}"
        made.add_row(latency.during, latency.on, count, *(f"{value:,.2f}" for value in figures))
    return made
