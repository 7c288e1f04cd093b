"""
The terminal of operators' programs, and the only way to it: names and texts of others pass the
border (`sanitize`) here.

Tables are rich's where it is installed, else lines with tabs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..sanitize import sanitized

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["complain", "console", "drawn", "say", "say_json", "show"]

_WIDTH = 200
"""Where there is no terminal."""


def say(*lines: object) -> None:
    """Prints each as a line, whatever it holds."""
    for line in lines:
        print(sanitized(str(line)), flush=True)


def complain(*lines: object) -> None:
    """Likewise to standard error."""
    for line in lines:
        print(sanitized(str(line)), file=sys.stderr, flush=True)


def say_json(document: Any, indent: int | None = None) -> None:
    """Prints a document that other programs read: what cannot be printed is escaped as JSON is."""
    say(*json.dumps(document, indent=indent).replace("\x7f", "\\u007f").split("\n"))


def show(
    columns: Sequence[str],
    sections: Sequence[Sequence[Sequence[str]]],
    right: Collection[str] = (),
) -> None:
    """Prints a table; without rich, its rows with tabs."""
    try:
        table = drawn(columns, sections, right)
    except ImportError:
        for row in (row for section in sections for row in section):
            print("\t".join(map(sanitized, row)), flush=True)
        return
    console(_WIDTH).print(table)


def drawn(
    columns: Sequence[str],
    sections: Sequence[Sequence[Sequence[str]]],
    right: Collection[str] = (),
) -> Table:
    """
    A table.

    Args:
        sections: rows, with a line between one section and the next.
        right: columns of numbers.

    Raises:
        ImportError: There is no rich.
    """
    from rich.table import Table

    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for section in sections:
        for row in section:
            table.add_row(*map(sanitized, row))
        table.add_section()
    return table


def console(width: int | None = None, stderr: bool = False) -> Console:
    """
    Where rich draws, with no markup in what it is given; `width` counts where no terminal is.

    Raises:
        ImportError: There is no rich.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    shown = None if stream.isatty() else width
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=shown)
