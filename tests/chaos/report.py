"""Results: a line of JSON each in a file, and a table for who looks on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .run import Result


def append(path: Path, result: Result) -> None:
    """One more line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result.as_dict()) + "\n")


def show(console: Console, results: Iterable[Result]) -> None:
    """A row a run."""
    table = Table(box=None, header_style="bold")
    words = "case seed order faults lives published copied lost doubled disordered"
    for name in [*words.split(), "unacked", "of them copied", "s", "drain s", "result"]:
        table.add_column(name, justify="left" if name in ("case", "order", "result") else "right")
    for each in results:
        v = each.verdict
        counts = (v.published, v.copied, v.lost, v.doubled, v.disordered, v.unacked,
                  v.unacked_copied)  # fmt: skip
        table.add_row(
            each.plan.case.name, str(each.plan.seed), str(each.settings.get("order")),
            str(len(each.faults)), str(each.lives), *map(str, counts), f"{each.seconds:.0f}",
            f"{each.drained_s:.0f}", "; ".join(each.failures) or "ok",
        )  # fmt: skip
    console.print(table)
