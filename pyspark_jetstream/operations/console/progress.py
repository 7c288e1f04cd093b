"""The programs' output while they work: rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark_jetstream.operations.copies import Copied
from pyspark_jetstream.operations.terminal import Row, cell, complain, console, drawn
from pyspark_jetstream.sanitize import sanitized

Bar = Callable[[str, int, int, str], None]
"""Shows of the work of a name how much is done, of how much; and a text on it."""


@contextmanager
def bars() -> Iterator[Bar]:
    """A bar for each name; without rich or a terminal its text as a line, whenever it changes."""
    where = console(stderr=True)
    if where is None:
        said: dict[str, str] = {}

        def line(name: str, done: int, end: int, text: str) -> None:
            if said.get(name) != text:
                said[name] = text
                complain(text)

        yield line
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    columns = (SpinnerColumn(), BarColumn(bar_width=20), text, TimeElapsedColumn())
    with Progress(*columns, console=where) as progress:
        tasks = {}

        def bar(name: str, done: int, end: int, text: str) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task("", total=end, text="")
            progress.update(tasks[name], completed=done, total=end, text=sanitized(text))

        yield bar


@contextmanager
def copying() -> Iterator[Callable[[Sequence[Copied]], None]]:
    """A bar for each stream that is copied."""
    with bars() as bar:

        def show(streams: Sequence[Copied]) -> None:
            for each in streams:
                name = f"copied: {each.stream}"
                bar(name, each.done, each.end, f"{name}, sequence {each.done:,} of {each.end:,}")

        yield show


@contextmanager
def living(rows: Callable[[], Sequence[Row]]) -> Iterator[Callable[[], None]]:
    """
    A table that follows `rows` while something runs: in place on a terminal; elsewhere a line
    whenever the last column of a row has another value, which is said beside the first one, and
    the query if the row has one.
    """
    where = console(stderr=True)
    if where is None:
        yield _changes(rows)
        return
    from rich.live import Live
    from rich.text import Text

    def text() -> Text:
        return Text("\n".join(drawn(rows(), width=where.width)))

    with Live(text(), console=where, transient=True, redirect_stdout=False) as live:
        yield lambda: live.update(text())


def _changes(rows: Callable[[], Sequence[Row]]) -> Callable[[], None]:
    shown: dict[str, str] = {}

    def show() -> None:
        now = {}
        for row in rows():
            first, *_, last = map(cell, row.values())
            if last:
                now[f"{row['query']} {first}" if row.get("query") else first] = last
        for name, state in now.items():
            if shown.get(name) != state:
                complain(f"{name}: {state}")
        shown.clear()
        shown.update(now)

    return show
