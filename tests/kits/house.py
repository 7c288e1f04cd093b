"""
The tables of docs/house.md, made of what the code says: who may import whom, and every module in
the sentence that stands first in it. Written by `python -m tests.kits.house`.
"""

from __future__ import annotations

import ast
from pathlib import Path

from ..unit.test_layers import MAY, ONLY, PACKAGE
from .places import ROOT

PAGE = ROOT / "docs" / "house.md"

_IMPORTS = "| wing | may import, beside the ground |\n|---|---|\n"
_MODULES = "## The root and the ground\n"
_HOUSE = ROOT / PACKAGE


def written(page: str) -> str:
    """The page with its tables as they should be now; what stands around them stays."""
    head, _, rest = page.partition(_IMPORTS)
    between = rest[rest.index("\n\n") : rest.index(_MODULES)]
    folders = {path.parent.relative_to(_HOUSE) for path in _HOUSE.rglob("*.py")} - {Path()}
    wings = "".join(map(_wing, sorted(folders, key=_place)))
    return f"{head}{_IMPORTS}{_imports()}{between}{_MODULES}\n{_table(Path())}{wings}"


def _place(folder: Path) -> tuple[int, Path]:
    """Wings stand as in the table of imports, each before what is in it."""
    return list(MAY).index(folder.parts[0]), folder


def _imports() -> str:
    rows = []
    for wing, may in MAY.items():
        words = [
            f"{other} (only {', '.join(sorted(ONLY[wing, other]))})"
            if (wing, other) in ONLY
            else other
            for other in may.split()
            if other != "__init__"
        ]
        if wing != "__init__":
            rows.append(f"| {wing} | {', '.join(words) or 'nothing'} |")
    return "\n".join(rows)


def _wing(folder: Path) -> str:
    about = _sentence(_HOUSE / folder / "__init__.py")
    return f"\n## {folder.as_posix()}\n\n{about}\n\n{_table(folder)}"


def _table(folder: Path) -> str:
    rows = "".join(
        f"| `{'.'.join((folder / path.stem).parts)}` | {_sentence(path)} |\n"
        for path in sorted((_HOUSE / folder).glob("*.py"))
        if path.name != "__init__.py"
    )
    return f"| module | what it is |\n|---|---|\n{rows}"


def _sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
