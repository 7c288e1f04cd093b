"""
Comparisons: two writes that took turns, times beside other times, and how either is shown.

What is compared takes turns, and each figure is a median; the range beside it is of the ratios of
the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from rich.table import Table

from .results import RATE, Entry


class Part(NamedTuple):
    """What is shown of some measurements."""

    entries: list[Entry]
    table: Table


class Ratio(NamedTuple):
    """Two writes that took turns; rows a second."""

    name: str
    reference: str
    rates: Sequence[float]
    references: Sequence[float]

    @property
    def value(self) -> float:
        """The ratio of the medians."""
        return median(self.rates) / median(self.references)

    @property
    def turns(self) -> list[float]:
        """The ratio of each turn, ascending."""
        return sorted(a / b for a, b in zip(self.rates, self.references, strict=True))

    def entry(self) -> Entry:
        """What goes into the JSON."""
        medians = round(median(self.rates)), round(median(self.references))
        return Entry(self.name, medians[0], RATE, self.reference, medians[1], round(self.value, 3))


class Times(NamedTuple):
    """How long something took, each time; milliseconds."""

    name: str
    each: Sequence[float]

    def quantile(self, share: float) -> float:
        """The time that this share of all did not exceed."""
        ascending = sorted(self.each)
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]

    @property
    def figures(self) -> dict[str, float]:
        """What is shown."""
        return {name: self.quantile(q) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}

    def entries(self, beside: Times | None = None) -> list[Entry]:
        """What goes into the JSON; each figure with that of `beside`, if there is one."""
        made = []
        for figure, value in self.figures.items():
            name, value = f"{self.name}: {figure}", round(value, 2)
            if beside is None:
                made.append(Entry(name, value, "ms"))
            else:
                other = round(beside.figures[figure], 2)
                made.append(Entry(name, value, "ms", beside.name, other, round(value / other, 3)))
        return made


def compared(
    name: str, reference: str, ours: Callable[[], float], other: Callable[[], float], turns: int
) -> Ratio:
    """Two writes, each of which gives its rate, in turns."""
    other()  # the first write finds everything cold
    rates: list[float] = []
    references: list[float] = []
    for turn in range(turns):
        calls = [(rates, ours), (references, other)]
        for measured, call in calls if turn % 2 else reversed(calls):
            measured.append(call())
    return Ratio(name, reference, rates, references)


def of_ratios(title: str, ratios: Sequence[Ratio]) -> Part:
    """A line a comparison."""
    table = Table(title)
    for column in ("rows/s", "reference", "ratio", "of the turns"):
        table.add_column(column, justify="right")
    for ratio in ratios:
        table.add_row(
            ratio.name,
            f"{median(ratio.rates):,.0f}",
            f"{ratio.reference} {median(ratio.references):,.0f}",
            f"{ratio.value:.3f}",
            f"{ratio.turns[0]:.3f} to {ratio.turns[-1]:.3f}",
        )
    return Part([ratio.entry() for ratio in ratios], table)


def of_times(title: str, series: Sequence[Times], beside_first: bool = True) -> Part:
    """A line for each; in the JSON the others are compared with the first, unless told not to."""
    table = Table(title)
    for column in ("times", "p50 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for times in series:
        figures = (f"{value:,.1f}" for value in times.figures.values())
        table.add_row(times.name, f"{len(times.each):,}", *figures)
    first, *others = series
    beside = first if beside_first else None
    entries = first.entries() + [entry for times in others for entry in times.entries(beside)]
    return Part(entries, table)
