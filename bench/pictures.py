"""
Pictures of figures, as SVG: rates beside references, CPU by process, latency over rate, cost and
requests over partitions.

Text stays text, and the same figures give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .usage import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

_OURS: Final = "#1f77b4"
_MARKS: Final = "|xoD^s"
_WIDTH: Final = 8.0
_LINE: Final = 0.32
"""Inches of a case."""


def rates(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """A bar of rows a second a case, and a mark for each reference beside it."""
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
        _finish(axes)


def costs(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """CPU seconds a million rows a case, by process."""
    with _figure(path, 1.1 + _LINE * len(cases)) as axes:
        names = [case["name"] for case in cases]
        left = [0.0] * len(cases)
        for role in ROLES:
            each = [case["cpu_s"].get(role, 0.0) for case in cases]
            if any(each):
                axes.barh(names, each, left=left, label=role)
                left = [a + b for a, b in zip(left, each, strict=True)]
        axes.set_xlabel("CPU seconds a million rows")
        _finish(axes)


def latencies(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """p50 and p99 over the rate."""
    with _figure(path, 3.0) as axes:
        for quantile in ("p50", "p99"):
            points = [
                (int(found[1].replace(",", "")), entry["value"])
                for entry in entries
                if (found := re.fullmatch(rf"row, ([\d,]+)/s: {quantile}", entry["name"]))
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=quantile)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("messages a second (logarithmic)")
        axes.set_ylabel("ms")
        axes.legend()


def partitions(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """CPU seconds a million rows over partitions read and streams written."""
    with _figure(path, 3.0) as axes:
        for what, label in (("read", "partitions read"), ("write", "streams written")):
            points = [
                (int(found[1]), sum(case["cpu_s"].values()))
                for case in cases
                if (found := re.fullmatch(rf"scale {what}, (\d+) \w+", case["name"]))
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("partitions, streams (logarithmic)")
        axes.set_ylabel("CPU seconds a million rows")
        axes.legend()


def requests(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Requests to JetStream's API a batch over partitions, of which all have a new row."""
    with _figure(path, 3.0) as axes:
        for kind in ("streams", "filters", "streams by pattern"):
            points = [
                (int(found[1].replace(",", "")), entry["value"])
                for entry in entries
                if (found := re.fullmatch(rf"scale requests, ([\d,]+) {kind}, live", entry["name"]))
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=kind)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("partitions (logarithmic)")
        axes.set_ylabel("requests a batch (logarithmic)")
        axes.legend()


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


def _finish(axes: Axes) -> None:
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.18), ncols=6, frameon=False)
