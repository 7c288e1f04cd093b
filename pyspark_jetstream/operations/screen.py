"""
The terminal of the programs. Names and texts of others pass the border (`sanitize`) here.

No value is ever cut: a cell that is too long for the terminal goes on below.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ..sanitize import sanitized

_WIDTH: Final = 200
"""Columns where the output is no terminal, unless $COLUMNS says otherwise."""

_FRACTION: Final = re.compile(r"(?<=^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+(?=[-+Z][\d:]*$)")
"""Of a second, in a time; only documents have it."""


def console(to_stderr: bool = False) -> Console:
    """The console of an output, as wide as the terminal."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def plain(value: object) -> str:
    """Any value as one line of text that a terminal only shows."""
    return sanitized("" if value is None else str(value))


def table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Rows, each by column, as a table; columns without values go, numbers stand at the right."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) not in ("", None, []) for row in rows)]
    found = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title=plain(title) or None,
        title_justify="left", header_style="bold",
    )  # fmt: skip
    for name in columns:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        side: Any = "right" if is_number else "left"
        found.add_column(name, justify=side, overflow="fold", no_wrap=is_number)
    for row in rows:
        found.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return found


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return plain(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) else _FRACTION.sub("", plain(value))


def show(*what: RenderableType, to_stderr: bool = False) -> None:
    """Prints tables, and texts, which the terminal breaks: a command in them is copied whole."""
    for each in what:
        is_text = isinstance(each, str)
        shown = Text(plain(each)) if is_text else each
        console(to_stderr).print(shown, soft_wrap=is_text)


def show_json(document: Any) -> None:
    """Prints a document for other programs, with all that is not ASCII escaped."""
    click.echo(json.dumps(document, indent=2).replace("\x7f", "\\u007f"))


def bar() -> Progress:
    """A bar for what takes long, on standard error; nothing where that is no terminal."""
    screen = console(to_stderr=True)
    return Progress(console=screen, transient=True, disable=not screen.is_terminal)
