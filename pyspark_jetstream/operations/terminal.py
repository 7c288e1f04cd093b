"""
The terminal of operators' programs, and the only way to it: names and texts of others pass the
border (`sanitize`) here.

Tables are text, as wide as the terminal; elsewhere as wide as they must be, or as `$COLUMNS` says.
No value is ever cut. Where the columns do not fit side by side, those that say the same in every
row stand once, in the title; where the others still do not fit, each row becomes some lines of its
own. Other lines go on below at a space, on a terminal alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from ..sanitize import sanitized

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
"""The values of one row of a table, by column."""

_GAP: Final = "  "
_NUMBER: Final = re.compile(r"[-+]?[\d,.]+( ?(%|s|[KMGT]?i?B))?|\?|none|")
"""Cells of a column of numbers, which stand at the right."""


def say(*lines: object) -> None:
    """
    Prints each as a line, whatever it holds; on a terminal as long as the terminal is wide.

    Raises:
        SystemExit: with status 0, where nobody reads on: `| head` has seen enough.
    """
    _print(_fitted(sanitized(str(line)), sys.stdout) for line in lines)


def _print(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            print(line, flush=True)
    except BrokenPipeError:  # the interpreter would write once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def complain(*lines: object) -> None:
    """Prints each as a line to standard error, whatever it holds."""
    for line in lines:
        print(_fitted(sanitized(str(line)), sys.stderr), file=sys.stderr, flush=True)


def _fitted(line: str, stream: TextIO) -> str:
    """A line that is too long for a terminal goes on below, at a space; commands stay whole."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width or not stream.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    whole = re.sub(r"`[^`]+`", lambda command: command[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def say_json(document: Any, indent: int | None = 2) -> None:
    """Prints a document that other programs read: what cannot be printed is escaped as JSON is."""
    _print(json.dumps(document, indent=indent).replace("\x7f", "\\u007f").split("\n"))


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a digit before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def show(rows: Sequence[Row]) -> None:
    """Prints a table."""
    say(*drawn(rows))


def drawn(rows: Sequence[Row], title: str = "", width: int | None = None) -> list[str]:
    """
    The lines of a table; columns without a value are left out.

    Args:
        width: how wide it may be; None: as wide as the output is.
    """
    texts = [{name: cell(value) for name, value in row.items()} for row in rows]
    found = dict.fromkeys(name for row in texts for name, text in row.items() if text)
    names = sorted(found, key="problems".__eq__)  # the last one
    table = [[name, *(row.get(name, "") for row in texts)] for name in names]
    width = _width() if width is None else width
    same = [column for column in table if len(rows) > 1 and len(set(column[1:])) == 1]
    left = [column for column in table if column not in same] or table[:1]
    if not table:
        return []
    for columns, once in ((table, []), (left, same)):
        lines = _aligned(columns)
        if max(map(len, lines)) <= width:
            return [*_titled(title, once, width), *lines]
    lines = _titled(title, same, width)
    for at, _ in enumerate(rows, 1):
        lines += _block([(column[0], column[at]) for column in left if column[at]], width)
    return lines


class Columns:
    """
    Columns of a table, each by the name of what it shows.

    Args:
        names: `name`, or `title=name` where the column has another title, in which `_` is a blank.
            The name of a part of a part has dots.
        shown: by name, how its values are shown; else as `cell` does.
    """

    def __init__(self, names: str, shown: Mapping[str, Callable[[Any], Any]] | None = None) -> None:
        pairs = [word.rpartition("=")[::2] for word in names.split()]
        self._names = {(title or name).replace("_", " "): name for title, name in pairs}
        self._shown = shown or {}

    def row(self, facts: Any) -> dict[str, Any]:
        """The row of an object's attributes, or of a document's members."""
        return {title: self._value(facts, name) for title, name in self._names.items()}

    def _value(self, facts: Any, name: str) -> Any:
        for part in name.split("."):
            facts = facts[part] if isinstance(facts, Mapping) else getattr(facts, part)
        return self._shown[name](facts) if name in self._shown else facts


def cell(value: Any) -> str:
    """A value as tables show it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return sanitized(", ".join(map(str, value)))
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return sanitized("; ".join(value))
    return sanitized(str(value))


def _width() -> int:
    """The columns of the output; without end where nothing tells."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return sys.maxsize


def _titled(title: str, once: Sequence[Sequence[str]], width: int) -> list[str]:
    """The title, with what all rows have in common."""
    common = [f"{name} {text}" for name, text, *_ in once]
    first = f"{title}:" if title and common else title
    return _filled([first, *common] if first else common, width)


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, below their names: words from the left, numbers from the right."""
    cells = []
    for name, *texts in columns:
        wide = max(map(len, (name, *texts)))
        numbers = all(map(_NUMBER.fullmatch, texts)) and any(map(str.isdigit, "".join(texts)))
        place = str.rjust if numbers else str.ljust
        cells.append([place(text, wide) for text in (name, "-" * wide, *texts)])
    return [_GAP.join(row).rstrip() for row in zip(*cells, strict=True)]


def _block(values: Sequence[tuple[str, str]], width: int) -> list[str]:
    """A row as lines: its first value, and below it the others, each behind its name."""
    (name, first), *others = values or [("", "")]
    lines = _filled([f"{name} {other}" for name, other in others], width - len(_GAP))
    return [f"{name} {first}".strip(), *(f"{_GAP}{line}" for line in lines)]


def _filled(parts: Iterable[str], width: int) -> list[str]:
    """The parts on as few lines as they fit on; none is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += f"{_GAP}{part}"
        else:
            lines.append(part)
    return lines


def console(stderr: bool = False) -> Console | None:
    """
    Console on which rich draws what moves, with no markup in what it is given; None without a
    terminal, or without rich.
    """
    if not (sys.stderr if stderr else sys.stdout).isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)
