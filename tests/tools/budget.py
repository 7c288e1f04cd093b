"""
What the project weighs: lines of code by wing, tests, bench, pages; `make budget` prints it.

Lines of code are those without comments, docstrings and blanks. `BUDGETS` has what each may weigh
in the end, and `NOW` what it may weigh today: it is lowered with what goes, and never raised.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import COMMENT, DEDENT, ENDMARKER, INDENT, NEWLINE, NL, generate_tokens
from typing import Final

from ..kits.places import PACKAGE, ROOT

WRITE: Final = {"write", "publish", "outbox", "mapping"}

BUDGETS: Final = {
    "read side and ground": 10_700,
    "write side": 7_000,
    "operations": 2_300,
    "jobs": 400,
    "lines of tests": 45_000,
    "lines of bench": 2_500,
    "pages": 30,
    "words of docs": 50_000,
}

NOW: Final = {
    "read side and ground": 10_939,
    "write side": 6_913,
    "operations": 2_299,
    "jobs": 306,
    "lines of tests": 43_863,
    "lines of bench": 2_487,
    "pages": 30,
    "words of docs": 50_000,
}

_NO_CODE: Final = {COMMENT, NL, NEWLINE, INDENT, DEDENT, ENDMARKER}


def code_lines(path: Path) -> int:
    """Of a module: its lines without comments, docstrings and blanks."""
    source = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def wing(path: Path) -> str:
    """The wing of a module of the package, as the budget names it."""
    top = path.relative_to(PACKAGE).parts[0]
    if top == "operations":
        return top
    return "write side" if top in WRITE else "read side and ground"


def _total(of: Callable[[Path], int], paths: Iterable[Path]) -> int:
    return sum(map(of, paths))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def weighed() -> dict[str, int]:
    """What everything of `BUDGETS` weighs."""
    sums = dict.fromkeys(BUDGETS, 0)
    for path in PACKAGE.rglob("*.py"):
        sums[wing(path)] += code_lines(path)
    pages = [*(ROOT / "docs").rglob("*.md")]
    return sums | {
        "jobs": _total(code_lines, (ROOT / "jobs").rglob("*.py")),
        "lines of tests": _total(_lines, (ROOT / "tests").rglob("*.py")),
        "lines of bench": _total(_lines, (ROOT / "bench").rglob("*.py")),
        "pages": len(pages),
        "words of docs": sum(len(p.read_text().split()) for p in [*pages, ROOT / "README.md"]),
    }


if __name__ == "__main__":
    for name, weight in weighed().items():
        sys.stdout.write(f"{name:22}{weight:>9,}  of {BUDGETS[name]:>7,}\n")
