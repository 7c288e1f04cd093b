"""
The figures of docs/bench.md and its two pictures, from what `python -m bench` left.

    python -m bench.report bench-results.json

What stands outside of its places is written by hand. Text of a picture stays text, and the same
figures give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .results import markdown, of_cases

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOCS: Final = Path(__file__).parents[1] / "docs"
_PLACE: Final = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_OURS: Final = "#1f77b4"
_MARKS: Final = "|xoD^s"


def written(page: str, results: Mapping[str, Any]) -> str:
    """The page with these figures in their places; a place of what was not measured is empty."""
    return _PLACE.sub(lambda place: f"{place[1]}\n{_figures(place[2], results)}\n{place[3]}", page)


def _figures(name: str, results: Mapping[str, Any]) -> str:
    if name == "about":
        return _taken(results["about"]) + "\n"
    found = results["phases"].get(name)
    if found is None:
        return "Not measured.\n"
    parts = [markdown(of_cases(found["cases"]))] if found["cases"] else []
    parts += map(markdown, found["tables"])
    if name in PICTURES:
        parts.append(f"![{PICTURES[name][0]}](_static/bench/{name}.svg)\n")
    return "\n".join(parts)


def _taken(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"*{about['taken']} UTC, commit {about['commit']}, `--rows {about['rows']}`, medians of"
        f" {about['repeat']} runs; {about['machine']}; {versions}. † marks a case of which every"
        " run began at a load above 3.*"
    )


def _rates(axes: Axes, found: Mapping[str, Any]) -> None:
    """A bar of rows a second a case, and a mark for each reference beside it."""
    cases = found["cases"]
    names = [case["name"] for case in cases]
    axes.barh(names, [case["rate"] for case in cases], color=_OURS, label="pyspark-jetstream")
    others = dict.fromkeys(other for case in cases for other in case["references"])
    for mark, other in zip(_MARKS, others, strict=False):
        those = [case for case in cases if other in case["references"]]
        rates = [case["references"][other] for case in those]
        beside = [case["name"] for case in those]
        axes.scatter(rates, beside, marker=mark, color="black", label=other, zorder=3)
    axes.set_xscale("log")
    axes.set_xlabel("rows a second (logarithmic)")
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.14), ncols=6, frameon=False)


def _latencies(axes: Axes, found: Mapping[str, Any]) -> None:
    """p50 and p99 over the rate."""
    points = [
        [float(re.sub(r"row, |/s|,", "", cell)) for cell in row]
        for row in found["tables"][0]["rows"]
    ]
    for name, column in (("p50", 2), ("p99", 3)):
        rates, times = [row[0] for row in points], [row[column] for row in points]
        axes.plot(rates, times, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("messages a second (logarithmic)")
    axes.set_ylabel("ms")
    axes.legend()


PICTURES: Final = {
    "read": ("rows a second of each case beside its references", 5.5, _rates),
    "latency": ("p50 and p99 of a row's latency over the rate", 3.0, _latencies),
}
"""Of a phase: what its picture shows, its height in inches, and what draws it."""


def _drawn(path: Path, phase: str, found: Mapping[str, Any]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    _, height, draw = PICTURES[phase]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 8}):
        figure = Figure(figsize=(8.0, height), layout="constrained")
        draw(figure.add_subplot(), found)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> int:
    """Writes the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("bench-results.json"))
    results = json.loads(parser.parse_args().results.read_text())
    page = _DOCS / "bench.md"
    page.write_text(written(page.read_text(), results))
    for phase in PICTURES:
        if phase in results["phases"]:
            _drawn(_DOCS / "_static" / "bench" / f"{phase}.svg", phase, results["phases"][phase])
    return 0


if __name__ == "__main__":
    sys.exit(main())
