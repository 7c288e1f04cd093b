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
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..sanitize import sanitized

_WIDTH: Final = 200
"""Columns where the output is no terminal, unless $COLUMNS says otherwise."""

_ANY: Final = 1 << 20
"""Columns of a terminal on which everything fits."""


def console(to_stderr: bool = False) -> Console:
    """The console of an output, as wide as the terminal."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def plain(value: object) -> str:
    """Any value as one line of text that a terminal only shows."""
    return sanitized("" if value is None else str(value))


def table(rows: Sequence[Mapping[str, Any]], title: str = "") -> RenderableType:
    """
    Rows, each by column, as a table; columns without values go.

    Numbers stand at the right. Where the terminal is too narrow, what all rows have in common
    stands once, below the title, and each row is a paragraph of its own.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in names if any(row.get(name) not in ("", None, []) for row in rows)]
    found = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title=plain(title) or None,
        title_justify="left", header_style="bold",
    )  # fmt: skip
    cells = [{name: _cell(row.get(name)) for name in columns} for row in rows]
    for name in columns:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        found.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for each in cells:
        found.add_row(*map(Text, each.values()))
    screen = console()
    wide = Measurement.get(screen, screen.options.update(max_width=_ANY), found).maximum
    return found if wide <= screen.width else _paragraphs(cells, title)


def _paragraphs(rows: Sequence[Mapping[str, str]], title: str) -> RenderableType:
    """Rows as paragraphs: each value behind its name, the first one on a line of its own."""
    same = [name for name in rows[0] if len({row[name] for row in rows}) == 1 < len(rows)]
    parts: list[RenderableType] = [Text(plain(title), "italic")] if title else []
    own = [[name for name in row if name not in same and row[name]] for row in rows]
    for row, names in [(rows[0], same), *zip(rows, own, strict=True)]:
        words = [f"{name} {row[name]}" for name in names if row[name]]
        if names is not same and words:
            parts.append(Text(words.pop(0), "bold"))
        if words:
            parts.append(Padding(Columns(map(Text, words), padding=(0, 2)), (0, 0, 0, 2)))
    return Group(*parts)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return plain(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) else plain(value)


def show(*what: RenderableType) -> None:
    """Prints tables, and texts, which the terminal breaks: a command in them is copied whole."""
    for each in what:
        is_text = isinstance(each, str)
        console().print(Text(plain(each)) if is_text else each, soft_wrap=is_text)


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
