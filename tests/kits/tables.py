"""Tables of the programs, read off their output."""

from __future__ import annotations

import itertools
import re


def tables(out: str) -> dict[str, list[dict[str, str]]]:
    """
    Each table by its title ("" where it has none), each row by its columns, which stand where the
    dashes do. Tables of one title are one.
    """
    found: dict[str, list[dict[str, str]]] = {}
    lines = ["", *out.splitlines()]
    for at, rule in enumerate(lines):
        if not re.fullmatch(r"-+(  -+)*", rule):
            continue
        places = [match.span() for match in re.finditer("-+", rule)]
        columns = [lines[at - 1][low:high].strip() for low, high in places]
        rows = itertools.takewhile(str.strip, lines[at + 1 :])
        cells = [[row[low:high].strip() for low, high in places] for row in rows]
        found.setdefault(lines[at - 2] if at > 1 else "", []).extend(
            dict(zip(columns, row, strict=True)) for row in cells
        )
    return found
