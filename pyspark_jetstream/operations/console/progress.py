"""What the programs show while they work: rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark_jetstream.operations.copies import Copied

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
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {}

        def show(streams: Sequence[Copied]) -> None:
            for copied in streams:
                name = f"{copied.stream} {copied.doing}"
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
            print(f"{now[0].doing}: {line}" if now else "", file=sys.stderr, flush=True)

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
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        yield _changes(rows)
        print(*("\t".join(row) for row in rows()), sep="\n")
        return

    def table() -> Table:
        drawn = Table(*columns)
        for row in rows():
            drawn.add_row(*row)
        return drawn

    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False, markup=False)
        with Live(table(), console=console, transient=True, redirect_stdout=False) as live:
            yield lambda: live.update(table())
    else:
        yield _changes(rows)
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, markup=False, width=width).print(table())


def _changes(rows: Callable[[], Sequence[Sequence[str]]]) -> Callable[[], None]:
    shown: dict[str, str] = {}

    def show() -> None:
        now = {row[0]: row[-1] for row in rows() if row[-1]}
        for name, state in now.items():
            if shown.get(name) != state:
                print(f"{name}: {state}", file=sys.stderr, flush=True)
        shown.clear()
        shown.update(now)

    return show
