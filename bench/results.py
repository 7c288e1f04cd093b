"""Figures: medians over the runs of a case, as a table and as JSON, by phase."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from .about import About
from .cases import Case
from .others.child import Outcome
from .spark import Run

RATE: Final = "rows/s"
CPU: Final = "CPU-s/1M rows"
MEMORY: Final = "MB"

MEASURED_BY: Final = (
    "The rows/s of a streaming query are its rows divided by the time of its batches (Spark's"
    " triggerExecution). All other rows/s are divided by the time of the whole call. The column"
    " 'with start' adds the start of the query's processes; the figures of raw and nats-py have no"
    " such start either. Memory is the peak of the largest process of each kind."
)

_MEMORY_ROLES: Final = {"worker": "worker", "jvm": "JVM", "source": "source runner"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of `bench-results.json`."""

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

    def reference_cpu_s(self, reference: str) -> dict[str, float]:
        """By role, CPU seconds of a reference for a million messages."""
        outcomes = self.outcomes[reference]
        roles = sorted({role for outcome in outcomes for role in outcome.usage.cpu_s})
        return {
            role: median(o.usage.cpu_s.get(role, 0.0) * 1e6 / o.messages for o in outcomes)
            for role in roles
        }

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

    def as_json(self) -> dict[str, Any]:
        """What a table and a picture show of the case."""
        roles = sorted({role for run in self.runs for role in run.usage.cpu_s})
        return {
            "name": self.case.name,
            "bound": self.case.bound,
            "rows": self.runs[0].rows,
            "rate": round(self.rate),
            "whole_rate": round(self.whole_rate) if self.whole_rate else None,
            "references": {name: round(self.reference_rate(name)) for name in self.outcomes},
            "references_cpu_s": {
                name: {role: round(cpu_s, 3) for role, cpu_s in self.reference_cpu_s(name).items()}
                for name in self.outcomes
            },
            "notes": dict(self.case.notes),
            "cpu_s": {role: round(self.cpu_s(role), 3) for role in roles},
            "memory_mb": {
                role: round(memory)
                for role in _MEMORY_ROLES
                if (memory := self.memory_mb(role)) is not None
            },
        }


@dataclass(slots=True)
class _Phase:
    """What one phase measured."""

    about: About
    figures: list[Figures] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        entries = [entry for figures in self.figures for entry in figures.entries()]
        return {
            "about": self.about.as_json(),
            "cases": [figures.as_json() for figures in self.figures],
            "tables": [_cells(table) for table in self.tables],
            "entries": [asdict(entry) for entry in (*entries, *self.others)],
        }


class Results:
    """Collects the figures of a run by phase, and shows them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phases: dict[str, _Phase] = {}

    def begin(self, phase: str, about: About) -> None:
        """What comes now is of this phase."""
        self._phases[phase] = _Phase(about)

    def add(self, figures: Figures) -> None:
        """Takes the figures of one case."""
        self._last.figures.append(figures)

    def note(self, entries: Iterable[Entry], *tables: Table) -> None:
        """Takes what is no figure of a case, and shows its tables."""
        self._last.others.extend(entries)
        self._last.tables.extend(tables)
        for table in tables:
            self._console.print(table)

    @property
    def _last(self) -> _Phase:
        return next(reversed(self._phases.values()))

    def write(self, path: Path) -> None:
        """All phases as JSON; those of an earlier run that were not measured again stay."""
        before = json.loads(path.read_text()) if path.exists() else {}
        now = {name: phase.as_json() for name, phase in self._phases.items()}
        path.write_text(json.dumps(before | now, indent=1) + "\n")

    def show(self) -> None:
        """The table of all cases, and what one must know to read it."""
        table = Table(show_lines=True)
        table.add_column("measurement, bound by")
        for column in ("rows/s", "with start", "reference", "ratio"):
            table.add_column(column, justify="right")
        table.add_column("worker\nCPU-s/1M", justify="right")
        table.add_column("MB: worker,\nJVM, source", justify="right")
        for figures in (each for phase in self._phases.values() for each in phase.figures):
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
        self._console.print(MEASURED_BY, style="dim")


def _cells(table: Table) -> dict[str, Any]:
    """A table as it was shown, without the line breaks of its head."""
    heads = [str(column.header).replace("\n", " ") for column in table.columns]
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return {"columns": heads, "rows": [list(row) for row in zip(*columns, strict=True)]}
