"""
The terminal of the programs. Names and texts of others pass the border (`sanitize`) here.

No value is ever cut: a cell that is too long for the terminal goes on below.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..sanitize import sanitized

_WIDTH: Final = 200
"""Columns where the output is no terminal, unless $COLUMNS says otherwise."""


def console(to_stderr: bool = False) -> Console:
    """The console of an output, as wide as the terminal."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def plain(value: object) -> str:
    """Any value as one line of text that a terminal only shows."""
    return sanitized("" if value is None else str(value))


def table(rows: Sequence[Mapping[str, Any]], title: str = "") -> RenderableType:
    """Rows, each by column, as a table; numbers stand at the right. Columns without values go."""
    columns = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)]
    found = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title=plain(title) or None,
        title_justify="left", header_style="bold",
    )  # fmt: skip
    for name in columns:
        is_number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        found.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        cells = ((f"{v:,}" if isinstance(v, int) else v) for v in map(row.get, columns))
        found.add_row(*(Text(plain(cell)) for cell in cells))
    return found


def show(*what: RenderableType) -> None:
    """Prints tables and texts."""
    for each in what:
        console().print(Text(plain(each)) if isinstance(each, str) else each)


def show_json(document: Any) -> None:
    """Prints a document for other programs, with all that is not ASCII escaped."""
    click.echo(json.dumps(document, indent=2).replace("\x7f", "\\u007f"))


def bar() -> Progress:
    """A bar for what takes long, on standard error; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), console=console(to_stderr=True), transient=True,
        disable=not sys.stderr.isatty(),
    )  # fmt: skip


def warn(lines: Iterable[str]) -> None:
    """Prints lines to standard error."""
    for line in lines:
        console(to_stderr=True).print(Text(plain(line)))
