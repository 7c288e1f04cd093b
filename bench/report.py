"""
The figures of docs/bench.md and its two pictures, from what `python -m bench` left.

    python -m bench.report bench-results.json

What stands outside of the marks is written by hand, and has no figures of these measurements.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from . import pictures

_DOCS: Final = Path(__file__).parents[1] / "docs"
_BEGIN: Final = "<!-- written by python -m bench.report -->\n"
_END: Final = "<!-- end -->\n"

_SECTIONS: Final = {
    "read": (
        "Reads",
        "Flights as JSON of about 91 B on two partitions, into noop. *Raw drain* pulls from"
        " consumers and decodes nothing, *raw direct* asks by batched direct get. At the live end"
        " the server stores and delivers at the same time.",
    ),
    "kafka": (
        "Beside Spark's Kafka source and sink",
        "The same flights in a topic of as many partitions, on one broker without replicas, in the"
        " same session. Kafka's sink is at least once; ours is exactly once. The small jobs took"
        " turns, ten times each.",
    ),
    "write": ("Writes", "*ids* means with a `Nats-Msg-Id`, the default."),
    "snapshot": (
        "Ranges and snapshots",
        "Messages of 100 B. *Spark reduce* reads the range and groups it, which is no snapshot. The"
        " last table has a publisher that sends 500 messages a second and awaits each PubAck; its"
        " times count from when a publish was due.",
    ),
    "latency": (
        "Latency at the live end",
        "From the server's time of a message to the end of the batch that holds it; two"
        " partitions, rows of 100 B, trigger 0, into noop.",
    ),
    "mapping": (
        "Subject mapping",
        "Nanoseconds a row over columns of 10,000 rows.",
    ),
}
"""The heading of each phase, and the facts that a reader needs."""


def written(page: str, results: Mapping[str, Any]) -> str:
    """The page with these figures between the marks."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError("the page has no place for figures")
    parts = [
        part
        for phase, (heading, words) in _SECTIONS.items()
        if phase in results
        for part in (f"## {heading}\n", f"{words}\n", *_section(phase, results[phase]))
    ]
    return head + begin + "\n" + "\n".join(parts) + "\n" + end + tail


def _section(phase: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield _taken(found["about"]) + "\n"
    if found["cases"]:
        yield _cases(phase, found["cases"])
    for table in found["tables"]:
        yield _table(table["columns"], table["rows"])
    if phase in pictures.PICTURES:
        says, _ = pictures.PICTURES[phase]
        yield f"![{says}](_static/bench/{phase}.svg)\n"


def _taken(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    runs = f"medians of {about['repeat']} runs" if about["repeat"] > 1 else "one run"
    return (
        f"*{about['taken'].replace('T', ' ').removesuffix('+00:00')} UTC, commit"
        f" {about['commit']}, `--rows {about['rows']}`, {runs}; {about['machine']}, load"
        f" {about['load']} at the start; {versions}.*"
    )


def _cases(phase: str, cases: Sequence[Mapping[str, Any]]) -> str:
    others = list(dict.fromkeys(other for case in cases for other in case["references"]))
    columns = ["", "rows/s", *(cell for other in others for cell in (other, "ratio"))]
    columns += ["CPU-s/1M: server", "Spark"]
    rows = []
    for case in cases:
        row = [case["name"].removeprefix(f"{phase} "), f"{case['rate']:,}"]
        for other in others:
            rate = case["references"].get(other)
            row += [f"{rate:,}", f"{case['rate'] / rate:.2f}"] if rate else ["", ""]
        cpu_s = dict(case["cpu_s"])
        row += [f"{cpu_s.pop('server', 0.0):.1f}", f"{sum(cpu_s.values()):.1f}"]
        rows.append(row)
    return _table(columns, rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        plain = (re.sub(r"\[/?[a-z]+\]", "", cell).replace("\n", "<br>") for cell in cells)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in plain) + " |"

    ruler = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join([line(columns), "|" + "|".join(ruler) + "|", *map(line, rows), ""])


def main() -> int:
    """Writes the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("bench-results.json"))
    parser.add_argument("--docs", type=Path, default=_DOCS, help="(%(default)s)")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    page = arguments.docs / "bench.md"
    page.write_text(written(page.read_text(), results))
    for phase, (_, draw) in pictures.PICTURES.items():
        if phase in results:
            draw(arguments.docs / "_static" / "bench" / f"{phase}.svg", results[phase])
    return 0


if __name__ == "__main__":
    sys.exit(main())
