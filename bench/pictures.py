"""
Two pictures, as SVG: rates beside references, and latency over the rate.

Text stays text, and the same figures give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

_OURS: Final = "#1f77b4"
_MARKS: Final = "|xoD^s"
_WIDTH: Final = 8.0
_LINE: Final = 0.32
"""Inches of a case."""


def _rates(path: Path, found: Mapping[str, Any]) -> None:
    """A bar of rows a second a case, and a mark for each reference beside it."""
    cases = found["cases"]
    with _figure(path, 1.1 + _LINE * len(cases)) as axes:
        names = [case["name"] for case in cases]
        axes.barh(names, [case["rate"] for case in cases], color=_OURS, label="pyspark-jetstream")
        others = dict.fromkeys(other for case in cases for other in case["references"])
        for mark, other in zip(_MARKS, others, strict=False):
            those = [case for case in cases if other in case["references"]]
            axes.scatter(
                [case["references"][other] for case in those],
                [case["name"] for case in those],
                marker=mark,
                color="black",
                s=36,
                label=other,
                zorder=3,
            )
        axes.set_xscale("log")
        axes.set_xlabel("rows a second (logarithmic)")
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.18), ncols=6, frameon=False)


def _latencies(path: Path, found: Mapping[str, Any]) -> None:
    """p50 and p99 over the rate."""
    with _figure(path, 3.0) as axes:
        for quantile in ("p50", "p99"):
            points = [
                (int(name[1].replace(",", "")), entry["value"])
                for entry in found["entries"]
                if (name := re.fullmatch(rf"row, ([\d,]+)/s: {quantile}", entry["name"]))
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=quantile)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("messages a second (logarithmic)")
        axes.set_ylabel("ms")
        axes.legend()


PICTURES: Final = {
    "read": ("rows a second of each case beside its references", _rates),
    "latency": ("p50 and p99 of a row's latency over the rate", _latencies),
}
"""Of a phase: what its picture shows, and what draws it."""


@contextmanager
def _figure(path: Path, height: float) -> Iterator[Axes]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 8}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="x", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
