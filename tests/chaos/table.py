"""
Tables of files of results, printed as Markdown: `python -m tests.chaos.table FILE ...`, and with
`--neighbours` how often each kind of fault was, and what came of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .cases import MATRIX


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Results, in the order in which they were written."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]


def tables(results: list[dict[str, Any]]) -> str:
    """All tables of these results."""
    failed = [each for each in results if each["failures"]]
    parts = [_summary(results, len(failed)), _kinds(results), _cells(results)]
    if failed:
        parts.append(_failed(failed))
    return "\n".join(parts)


def by_kind(results: list[dict[str, Any]]) -> str:
    """How often each kind of fault was, what was expected, what came, and where it was not that."""
    rows: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for each in results:
        last = each.get("last") or {}
        for one in each["each"]:
            row = rows.setdefault(
                (one["fault"], one["expected"]), {"came": Counter(), "surprises": Counter()}
            )
            came = last["came"] if last.get("fault") == one["fault"] else "exact"
            row["came"][came if not each["failures"] else "a run that failed"] += 1
            if each["failures"]:
                row["surprises"][f"{each['seed']} ({each['case']})"] += 1
    lines = [
        f"| {name} | {row['came'].total()} | {expected} | "
        + "; ".join(f"{came} {count}" for came, count in row["came"].most_common())
        + f" | {', '.join(row['surprises'])} |\n"
        for (name, expected), row in sorted(rows.items())
    ]
    total = sum(row["came"].total() for row in rows.values())
    failed = sum(bool(each["failures"]) for each in results)
    return (
        f"{total:,} faults in {len(results)} runs of {len({each['case'] for each in results})}"
        f" cells; {failed} runs were a surprise.\n\n"
        f"| fault | times | expected | came | seeds of surprises |\n|---|---|---|---|---|\n"
        f"{''.join(lines)}"
    )


def _summary(results: list[dict[str, Any]], failed: int) -> str:
    counted = Counter[str]()
    for each in results:
        names = ("published", "unacked", "unacked_copied", "lost", "doubled", "lost_by_server")
        counted.update({name: each["verdict"][name] for name in names})
        counted["lives"] += each["lives"]
        promised = each["settings"]["order"] == "strict" and "overflow" not in each["case"]
        counted["disordered" if promised else "unordered"] += each["verdict"]["disordered"]
    rows = [
        ("runs", f"{len(results)}, of which {failed} failed (the last table)"),
        ("cells of the matrix", f"{len({each['case'] for each in results})} of {len(MATRIX)}"),
        ("faults", f"{sum(each['faults'] for each in results):,}"),
        ("starts of a query", f"{counted['lives']:,}"),
        ("messages published, with a PubAck", f"{counted['published']:,}"),
        ("lost, or not copied in time", f"{counted['lost']:,}"),
        ("doubled", counted["doubled"]),
        ("out of order, where order is promised", counted["disordered"]),
        ("out of order elsewhere (`publishOrder=subject`, `overflow`)", counted["unordered"]),
        ("published without a PubAck", f"{counted['unacked']:,}"),
        ("of them stored nevertheless, and copied once", f"{counted['unacked_copied']:,}"),
        ("acknowledged, and not in the source stream", counted["lost_by_server"]),
    ]
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


def _kinds(results: list[dict[str, Any]]) -> str:
    kinds = Counter[str]()
    ends = Counter[str]()
    for each in results:
        kinds.update(each["kinds"])
        for name, count in each["ends"].items():
            ends[_end(name)] += count
    rows = "".join(f"| {name} | {count} |\n" for name, count in kinds.most_common())
    ended = "".join(f"| {name} | {count} |\n" for name, count in ends.most_common())
    return (
        f"| fault | times |\n|---|---|\n{rows}| **all** | **{kinds.total()}** |\n\n"
        f"| a query ended with | times |\n|---|---|\n{ended}"
    )


def _cells(results: list[dict[str, Any]]) -> str:
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        rows.setdefault(each["case"], []).append(each)
    lines = [
        f"| {case} | {', '.join(str(each['seed']) for each in found)}"
        f" | {sum(each['faults'] for each in found)}"
        f" | {sum(bool(each['failures']) for each in found) or ''} |\n"
        for case, found in sorted(rows.items())
    ]
    return "| cell | seeds | faults | failed |\n|---|---|---|---|\n" + "".join(lines)


def _failed(results: list[dict[str, Any]]) -> str:
    lines = [
        f"| {each['case']} | {each['seed']} | {_plain('; '.join(each['failures']))} |\n"
        for each in results
    ]
    return "| failed | seed | with |\n|---|---|---|\n" + "".join(lines)


def _end(name: str) -> str:
    """What ended a query, without what differs each time."""
    if "STREAM_FAILED" in name or "no cause message" in name:
        return "an error of Spark's that names no cause, as when its source process is killed"
    if "JAVA_GATEWAY_EXITED" in name:
        return "JVM gone"
    return _plain(name)


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:160]


def main() -> None:
    """Prints them."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.table", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--neighbours", action="store_true")
    arguments = parser.parse_args()
    results = read(arguments.files)
    sys.stdout.write(by_kind(results) if arguments.neighbours else tables(results))


if __name__ == "__main__":
    main()
