"""What the jobs show while they work: rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark_jetstream.partitioning import Copied

__all__ = ["copying"]


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
            for each in streams:
                if each.stream not in tasks:
                    tasks[each.stream] = progress.add_task(each.stream, total=each.expected)
                progress.update(tasks[each.stream], completed=each.messages, total=each.expected)

        yield show


def _lines() -> Callable[[Sequence[Copied]], None]:
    shown: list[int] = []

    def show(streams: Sequence[Copied]) -> None:
        now = [each.messages for each in streams]
        if now != shown:
            shown[:] = now
            line = "  ".join(
                f"{each.stream} {each.messages:,}/{each.expected:,}" for each in streams
            )
            print(line, file=sys.stderr, flush=True)

    return show
