"""What the demo shows: a live line while it works, tables at the end (rich, extra `cli`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text


class Finished(NamedTuple):
    """One row of the table of steps."""

    title: str
    rows: int
    seconds: float
    right: bool


class Step:
    """A step while it runs: `show` what it is at, `done` with what came out."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.rows = 0
        self.right = False

    def done(self, rows: int, right: bool) -> None:
        """How many rows there were, and whether each was as it should be."""
        self.rows, self.right = rows, right


class Screen:
    """The terminal; without one, plain lines and the same tables."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._finished: list[Finished] = []

    @property
    def right(self) -> bool:
        """Whether every step so far was right."""
        return bool(self._finished) and all(step.right for step in self._finished)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Times a step and shows one line of it."""
        began = time.monotonic()
        with self._console.status(title) as status:
            step = Step(lambda text: status.update(f"{title} [dim]{text}[/dim]"))
            yield step
        done = Finished(title, step.rows, time.monotonic() - began, step.right)
        self._finished.append(done)
        figures = f"[dim]{done.rows:,} rows in {done.seconds:.1f}s[/dim]"
        self._console.print(_mark(done.right), title, figures)

    def steps(self) -> None:
        """All steps: rows, seconds, rows a second, right or wrong."""
        from rich.table import Table

        table = Table(
            title="\nEvery count and every order, against the input", title_justify="left"
        )
        for name in ("step", "rows", "seconds", "rows/s", ""):
            table.add_column(name, justify="left" if name == "step" else "right")
        for step in self._finished:
            rate = f"{step.rows / step.seconds:,.0f}" if step.seconds else ""
            row = [step.title, f"{step.rows:,}", f"{step.seconds:.1f}", rate]
            table.add_row(*row, _mark(step.right))
        total = sum(step.seconds for step in self._finished)
        table.add_section()
        table.add_row("all", "", f"{total:.1f}", "", _mark(self.right), style="bold")
        self._console.print(table)

    def partitions(self, streams: Mapping[str, int], rows: pa.Table) -> None:
        """The subject partitions: what each holds, and its busiest origins."""
        from rich.table import Table

        origins: dict[int, Counter[str]] = {p: Counter() for p in range(len(streams))}
        subjects: dict[int, set[str]] = {p: set() for p in origins}
        for p, subject in zip(
            rows["partition"].to_pylist(), rows["subject"].to_pylist(), strict=True
        ):
            origins[p][subject.split(".")[2]] += 1
            subjects[p].add(subject)
        table = Table(title="\nSubject partitions", title_justify="left")
        for name in ("stream", "messages", "subjects", "origins"):
            table.add_column(name, justify="left" if name == "stream" else "right", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("busiest", no_wrap=True)
        maximum = max(streams.values())
        for p, (stream, messages) in enumerate(streams.items()):
            counts = [f"{n:,}" for n in (messages, len(subjects[p]), len(origins[p]))]
            busiest = " ".join(origin for origin, _ in origins[p].most_common(3))
            table.add_row(stream, *counts, _bar(messages / maximum, "cyan", 16), busiest)
        self._console.print(table)

    def origins(self, delays: dict[str, tuple[int, int]], top: int = 10) -> None:
        """The busiest origins and how late their flights left."""
        from rich.table import Table

        table = Table(title="\nBusiest origins, average delay", title_justify="left")
        table.add_column("origin")
        table.add_column("flights", justify="right")
        table.add_column("minutes", justify="right")
        table.add_column("", no_wrap=True)
        busiest = sorted(delays, key=lambda origin: -delays[origin][0])[:top]
        average = {origin: delays[origin][1] / delays[origin][0] for origin in busiest}
        maximum = max([1.0, *average.values()])
        for origin in busiest:
            bar = _bar(max(0.0, average[origin]) / maximum, "yellow")
            table.add_row(origin, f"{delays[origin][0]:,}", f"{average[origin]:.1f}", bar)
        self._console.print(table)


def _mark(right: bool) -> str:
    return "[green]✓[/green]" if right else "[bold red]✗[/bold red]"


def _bar(share: float, colour: str, width: int = 24) -> Text:
    """A bar of at most `width` characters, drawn in eighths of one."""
    from rich.text import Text

    eighths = round(share * width * 8)
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text("█" * (eighths // 8) + part, style=colour)
