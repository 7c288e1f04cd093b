"""Figures: medians over the runs of a case, as JSON entries, progress lines and a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from .cases import Case
from .others.child import Outcome
from .spark import Run

__all__ = ["Entry", "Figures", "Results"]

RATE: Final = "rows/s"
CPU: Final = "CPU-s/1M rows"
MEMORY: Final = "MB"

_MEMORY_ROLES: Final = {"worker": "worker", "jvm": "JVM", "source": "source runner"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `bench-results.json`."""

    name: str
    value: float
    unit: str
    reference: str | None = None
    reference_value: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """All runs of one case."""

    case: Case
    runs: Sequence[Run]
    outcomes: Mapping[str, Sequence[Outcome]]

    @property
    def rate(self) -> float:
        """The headline: rows a second of the work, see `Run.seconds`."""
        return median(run.rate for run in self.runs)

    @property
    def whole_rate(self) -> float | None:
        """Rows a second over a whole streaming query, its start included."""
        seconds = [run.whole_s for run in self.runs if run.whole_s]
        return median(self.runs[0].rows / whole_s for whole_s in seconds) if seconds else None

    def reference_rate(self, reference: str) -> float:
        """Messages a second of a reference."""
        return median(outcome.rate for outcome in self.outcomes[reference])

    def cpu_s(self, role: str) -> float:
        """CPU seconds of a role for a million rows."""
        return median(run.usage.cpu_s.get(role, 0.0) * 1e6 / run.rows for run in self.runs)

    def memory_mb(self, role: str) -> float | None:
        """Peak memory of the largest process of a role; None where there was none."""
        peaks = [run.usage.peak_bytes[role] for run in self.runs if role in run.usage.peak_bytes]
        return median(peaks) / 1e6 if peaks else None

    def entries(self) -> list[Entry]:
        """What goes into the JSON."""
        name, rate = self.case.name, self.rate
        entries = []
        for reference in self.outcomes:
            other = self.reference_rate(reference)
            entries.append(
                Entry(name, round(rate), RATE, reference, round(other), round(rate / other, 3))
            )
        if (whole := self.whole_rate) is not None:
            entries.append(Entry(f"{name}: with the query's start", round(whole), RATE))
        entries.append(Entry(f"{name}: worker CPU", round(self.cpu_s("worker"), 2), CPU))
        for role, shown in _MEMORY_ROLES.items():
            if (memory := self.memory_mb(role)) is not None:
                entries.append(Entry(f"{name}: {shown} memory", round(memory), MEMORY))
        return entries


class Results:
    """Collects the figures of a run, and shows them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._figures: list[Figures] = []
        self._others: list[Entry] = []

    def add(self, figures: Figures) -> None:
        """Takes the figures of one case."""
        self._figures.append(figures)

    def note(self, entries: Iterable[Entry]) -> None:
        """Takes what is no figure of a case."""
        self._others.extend(entries)

    def write(self, path: Path) -> None:
        """All entries as JSON."""
        entries = [entry for figures in self._figures for entry in figures.entries()]
        documents = [asdict(entry) for entry in (*entries, *self._others)]
        path.write_text(json.dumps(documents, indent=1) + "\n")

    def show(self) -> None:
        """The table, and what one must know to read it."""
        table = Table(show_lines=True)
        table.add_column("measurement, bound by")
        for column in ("rows/s", "with start", "reference", "ratio"):
            table.add_column(column, justify="right")
        table.add_column("worker\nCPU-s/1M", justify="right")
        table.add_column("MB: worker,\nJVM, source", justify="right")
        for figures in self._figures:
            references = {name: figures.reference_rate(name) for name in figures.outcomes}
            memory = [figures.memory_mb(role) for role in _MEMORY_ROLES]
            table.add_row(
                f"{figures.case.name}\n[dim]{figures.case.bound}",
                f"{figures.rate:,.0f}",
                f"{figures.whole_rate:,.0f}" if figures.whole_rate else "",
                "\n".join(f"{name} {rate:,.0f}" for name, rate in references.items()),
                "\n".join(f"{figures.rate / rate:.2f}" for rate in references.values()),
                f"{figures.cpu_s('worker'):.2f}",
                ", ".join("-" if peak is None else f"{peak:,.0f}" for peak in memory),
            )
        self._console.print(table)
        self._console.print(
            "rows/s of a streaming query is over its micro-batches (Spark's triggerExecution), of"
            " everything else over the call; 'with start' adds the start of the query's processes,"
            " about 2 s, which raw and nats-py do not have in their figures either. Memory is the"
            " peak of the largest process of each kind.",
            style="dim",
        )
