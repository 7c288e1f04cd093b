"""Figures: medians over the runs that count, as tables in Markdown and as JSON, by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from .runs import Run
from .usage import SERVER, SPARK


class Times(NamedTuple):
    """How long something took, each time; milliseconds."""

    name: str
    each: Sequence[float]

    def quantile(self, share: float) -> float:
        """The time that this share of all did not exceed."""
        ascending = sorted(self.each)
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def of_times(title: str, series: Sequence[Times]) -> dict[str, Any]:
    """A table with a line for each."""
    return {
        "columns": [title, "times", "p50 ms", "p99 ms", "max ms"],
        "rows": [
            [
                times.name,
                f"{len(times.each):,}",
                *(f"{times.quantile(share):,.1f}" for share in (0.5, 0.99, 1.0)),
            ]
            for times in series
        ],
    }


def of_case(name: str, ours: Sequence[Run], others: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """The figures of a case: medians, and how many of the runs were on a quiet machine."""
    counted = _counting(ours)
    return {
        "name": name,
        "rate": round(median(run.rate for run in counted)),
        "counted": sum(run.counts for run in ours),
        "references": {
            other: round(median(run.rate for run in _counting(runs)))
            for other, runs in others.items()
        },
        "cpu_s": {
            role: round(median(run.cpu_s.get(role, 0.0) * 1e6 / run.rows for run in counted), 1)
            for role in (SERVER, SPARK)
        },
    }


def _counting(runs: Sequence[Run]) -> Sequence[Run]:
    """Those of a quiet machine; all of them, where it never was."""
    return [run for run in runs if run.counts] or runs


def of_cases(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A table with a line a case: our rate, each reference, and our share of it."""
    others = list(dict.fromkeys(other for case in cases for other in case["references"]))
    columns = ["", "rows/s", *(cell for other in others for cell in (other, "ratio"))]
    rows = []
    for case in cases:
        mark = "" if case["counted"] else " †"
        row = [case["name"] + mark, f"{case['rate']:,}"]
        for other in others:
            rate = case["references"].get(other)
            row += [f"{rate:,}", f"{case['rate'] / rate:.2f}"] if rate else ["", ""]
        rows.append([*row, f"{case['cpu_s'][SERVER]:.1f}", f"{case['cpu_s'][SPARK]:.1f}"])
    return {"columns": [*columns, "CPU-s/1M: server", "Spark"], "rows": rows}


def markdown(table: Mapping[str, Any]) -> str:
    """A table for people."""
    ruler = ["---", *["---:"] * (len(table["columns"]) - 1)]
    lines = [table["columns"], *table["rows"]]
    head, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|" + "|".join(ruler) + "|", *rest, ""])
