"""
The adaptive window against fixed ones, on servers that differ.

A fixed window is the best on one server and bad on another one; which of them a job will meet
nobody knows. So what counts is not how often a window is the best, but its worst share of the best
on any server, and the geometric mean of its shares. Each time the adaptive one begins from the
bottom, as in a new worker process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple

from rich.table import Table

from pyspark_jetstream.outbox.window import Window
from tests.kits.servers import DevServer

from ..others.delay import far
from ..results import RATE, Entry
from ..writer import SUBJECTS, empty, rows, sink, write
from .scripted import Script, run

_ADAPTIVE: Final = "adaptive"
_FIXED: Final = (16, 64, 256, 1024, 4096, 8192)
_WINDOW: Final = sink("nats://127.0.0.1:4222").window

_LIMITS: Final[dict[str, Callable[[], Window]]] = {
    _ADAPTIVE: partial(Window, _WINDOW.max_in_flight),
    **{str(maximum): partial(Window, maximum, maximum) for maximum in _FIXED},
}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    _ADAPTIVE: {},
    **{str(maximum): {"min_in_flight": maximum, "max_in_flight": maximum} for maximum in _FIXED},
}

SHARE: Final = "of the best"
_RTT_S: Final = 0.02


_REFUSAL: Final = 0.2
_SCRIPTS: Final = {
    "near and fast": (Script(rtt_s=lambda now: 0.001, rate=lambda now: 100_000), 9.0),
    "80 ms away": (Script(rtt_s=lambda now: 0.08, rate=lambda now: 40_000), 9.0),
    "slow disk, stalls": (Script(rate=lambda now: 0 if now % 1 < 0.2 else 600), 18.0),
    "room for 50": (Script(rate=lambda now: 20_000, room=50, refusal=_REFUSAL), 4.5),
    "latency ×10 amid": (Script(rtt_s=lambda now: 0.004 if now < 3 else 0.04), 9.0),
    "capacity cut to 1/25 and back": (
        Script(rate=lambda now: 2_000 if 3 <= now < 6 else 50_000, room=1_000, refusal=_REFUSAL),
        9.0,
    ),
}
"""Simulated servers, each with its seconds."""

_TICK_S: Final = 0.001


class _Real(NamedTuple):
    name: str
    config: str
    reached: Callable[[str], AbstractContextManager[str]] = nullcontext


_REAL: Final = (
    _Real("nats-server", ""),
    _Real("nats-server, room for 100", "jetstream { max_buffered_msgs: 100 }"),
    _Real("nats-server, 20 ms away", "", partial(far, rtt_s=_RTT_S)),
)


class Surrounding(NamedTuple):
    """A server, and what each window reached there."""

    name: str
    rates: Mapping[str, float]
    """Rows a second."""

    @property
    def best(self) -> float:
        """What the best window reached."""
        return max(self.rates.values())

    def share(self, window: str) -> float:
        """What a window reached, as a share of the best."""
        return self.rates[window] / self.best


def simulated() -> Iterator[Surrounding]:
    """Scripted servers."""
    for name, (script, seconds) in _SCRIPTS.items():
        rates = {
            window: run(script, make(), until=seconds, tick_s=_TICK_S)[0].window.tally.acked
            / seconds
            for window, make in _LIMITS.items()
        }
        yield Surrounding(f"{name} (simulated)", rates)


def real(seconds: float, rounds: int) -> Iterator[Surrounding]:
    """Real servers, new ones each round, on which the windows take turns; medians."""
    for name, config, reached in _REAL:
        rates: dict[str, list[float]] = {window: [] for window in _OPTIONS}
        for turn in range(rounds):
            order = deque(_OPTIONS)
            order.rotate(2 * turn)  # the first one finds the server cold
            with DevServer(config) as server, reached(server.url) as url:
                for window in order:
                    with empty(server.url):
                        options = sink(url, **_OPTIONS[window])
                        written = write(options, rows(SUBJECTS), seconds)
                    rates[window].append(written.rate)
        yield Surrounding(name, {window: median(turns) for window, turns in rates.items()})


def summary(surroundings: Sequence[Surrounding]) -> dict[str, tuple[float, float]]:
    """By window, its worst share of the best and their geometric mean."""
    shares = {
        window: [surrounding.share(window) for surrounding in surroundings]
        for window in surroundings[0].rates
    }
    return {
        window: (min(values), math.prod(values) ** (1 / len(values)))
        for window, values in shares.items()
    }


def entries(surroundings: Sequence[Surrounding]) -> list[Entry]:
    """What goes into the JSON."""
    made = [
        Entry(
            f"window {window}, {surrounding.name}",
            round(rate),
            RATE,
            "the best window",
            round(surrounding.best),
            round(surrounding.share(window), 3),
        )
        for surrounding in surroundings
        for window, rate in surrounding.rates.items()
    ]
    for window, (worst, mean) in summary(surroundings).items():
        made.append(Entry(f"window {window}: worst share of the best", round(worst, 3), SHARE))
        made.append(Entry(f"window {window}: mean share of the best", round(mean, 3), SHARE))
    return made


def table(surroundings: Sequence[Surrounding]) -> Table:
    """A line a surrounding, a column a window; then the worst and the mean of each."""
    made = Table("rows/s\n[dim]share of the best")
    for window in surroundings[0].rates:
        made.add_column(window, justify="right")
    for surrounding in surroundings:
        rates = (
            f"{surrounding.rates[w]:,.0f}\n[dim]{surrounding.share(w):.2f}"
            for w in surrounding.rates
        )
        made.add_row(surrounding.name, *rates)
    made.add_section()
    for name, shares in zip(
        ("worst share", "geometric mean"),
        zip(*summary(surroundings).values(), strict=True),
        strict=True,
    ):
        made.add_row(name, *(f"{share:.2f}" for share in shares))
    return made
