"""Results: a line of JSON each in a file, and the table made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .cells import CELLS

_TABLE = "| how | Spark | Python | Java | pandas | result | run on |\n" + 7 * "|---" + "|\n"


@dataclass(frozen=True)
class Outcome:
    """What one cell came to."""

    name: str
    result: str
    """`ok`, `failed` or `not run: …`."""
    spark: str
    python: str
    java: str
    pandas: str
    server: str
    date: str
    seconds: float = 0.0


def append(path: Path, outcome: Outcome) -> None:
    """One more line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def latest(path: Path) -> dict[str, Outcome]:
    """The last outcome of each cell by its name."""
    if not path.exists():
        return {}
    outcomes = (Outcome(**json.loads(line)) for line in path.read_text().splitlines())
    return {each.name: each for each in outcomes}


def table(outcomes: dict[str, Outcome]) -> str:
    """Every cell with what it came to, as Markdown."""
    return _TABLE + "".join(_rows(outcomes)) + _servers(outcomes.values())


def _rows(outcomes: dict[str, Outcome]) -> Iterable[str]:
    for cell in CELLS:
        each = outcomes.get(cell.name)
        if each is None:
            versions, said = (cell.spark, cell.python, cell.java, " "), ("not run", " ")
        else:
            versions = (each.spark, each.python, each.java, each.pandas or "none")
            said = (each.result, each.date)
        yield f"| {' | '.join((cell.words, *versions, *said))} |\n"


def _servers(outcomes: Iterable[Outcome]) -> str:
    found = sorted({each.server for each in outcomes if each.server})
    return f"\nThe server was nats-server {', '.join(found)}.\n" if found else ""
