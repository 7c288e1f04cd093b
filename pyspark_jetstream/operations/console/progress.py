"""The programs' output while they work: rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark_jetstream.operations.terminal import Row, cell, complain, console, drawn
from pyspark_jetstream.readstream.copies import Copied
from pyspark_jetstream.sanitize import sanitized


@contextmanager
def copying() -> Iterator[Callable[[Sequence[Copied]], None]]:
    """One bar a stream that is being copied; without rich or a terminal, one line a change."""
    where = console(stderr=True)
    if where is None:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=where) as progress:
        tasks = {}

        def show(streams: Sequence[Copied]) -> None:
            for copied in streams:
                name = sanitized(f"{copied.stream} {copied.doing}")
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=copied.end)
                progress.update(tasks[name], completed=copied.done, total=copied.end)

        yield show


def _lines() -> Callable[[Sequence[Copied]], None]:
    shown: list[Copied] = []

    def show(streams: Sequence[Copied]) -> None:
        if streams and list(streams) != shown:
            shown[:] = streams
            line = "  ".join(f"{each.stream} {each.done:,}/{each.end:,}" for each in streams)
            complain(f"{streams[0].doing}: {line}")

    return show


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
