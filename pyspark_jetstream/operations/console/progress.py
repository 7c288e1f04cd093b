"""What the programs show while they work: rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark_jetstream.operations.copies import Copied
from pyspark_jetstream.operations.terminal import complain, console, drawn, show
from pyspark_jetstream.sanitize import sanitized

__all__ = ["copying", "living"]


@contextmanager
def copying() -> Iterator[Callable[[Sequence[Copied]], None]]:
    """One bar a stream that is being copied; without rich or a terminal, one line a change."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        yield _lines()
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        tasks = {}

        def show(streams: Sequence[Copied]) -> None:
            for copied in streams:
                name = sanitized(f"{copied.stream} {copied.doing}")
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=copied.expected)
                progress.update(tasks[name], completed=copied.messages, total=copied.expected)

        yield show


def _lines() -> Callable[[Sequence[Copied]], None]:
    shown: list[Copied] = []

    def show(streams: Sequence[Copied]) -> None:
        now = [replace(copied, lag=0, error="") for copied in streams]
        if now != shown:
            shown[:] = now
            line = "  ".join(
                f"{copied.stream} {copied.messages:,}/{copied.expected:,}" for copied in streams
            )
            complain(f"{now[0].doing}: {line}" if now else "")

    return show


@contextmanager
def living(
    columns: Sequence[str], rows: Callable[[], Sequence[Sequence[str]]]
) -> Iterator[Callable[[], None]]:
    """
    A table that follows `rows` on a terminal and is printed at the end; without rich, with tabs.

    Elsewhere than on a terminal there is a line whenever the last column of a row has changed; for
    none where it is empty.
    """
    is_live = sys.stderr.isatty()
    try:
        from rich.live import Live
    except ImportError:
        is_live = False
    if is_live:
        table, where = drawn(columns, [rows()]), console(stderr=True)
        with Live(table, console=where, transient=True, redirect_stdout=False) as live:
            yield lambda: live.update(drawn(columns, [rows()]))
    else:
        yield _changes(rows)
    show(columns, [rows()])


def _changes(rows: Callable[[], Sequence[Sequence[str]]]) -> Callable[[], None]:
    shown: dict[str, str] = {}

    def show() -> None:
        now = {row[0]: row[-1] for row in rows() if row[-1]}
        for name, state in now.items():
            if shown.get(name) != state:
                complain(f"{name}: {state}")
        shown.clear()
        shown.update(now)

    return show
