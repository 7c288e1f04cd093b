"""Measures this package, prints the figures, and writes them to bench-results.json here."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.kits.servers import DevServer

from .about import about
from .cases import Case
from .comparisons import Part
from .flights import DATA, Flights
from .measures import (
    mapping,
    rowlatency,
)
from .measures.kafka import Beside
from .measures.reads import read_cases
from .measures.snapshots import Snapshots
from .measures.writes import write_cases
from .others.child import Outcome
from .others.kafka import CONNECTOR
from .others.references import References
from .results import Figures, Results
from .spark import SETTINGS, Run, Spark
from .streams import Streams
from .waiting import started

RESULTS: Final = Path("bench-results.json")
_PEER: Final = "kafka"
"""A phase of its own: it fetches a broker and needs memory for two more JVMs."""

_OF_SPARK: Final = ("read", "write", "snapshot", _PEER, "latency")
PHASES: Final = (*_OF_SPARK, "mapping")

_WARM_S: Final = 12.0
"""
How long a case runs without a clock before, less with fewer rows than a million: a JVM that has
just begun costs twice the CPU.
"""

_LIVE_S: Final = 20.0
"""How long rows come at each rate; less with fewer rows than a million."""


def main() -> int:
    """Runs the benchmarks; 1 when one of them failed."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM tidies up as Ctrl-C does
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    results = Results(console)
    usual = [phase for phase in PHASES if phase not in {_PEER} - set(arguments.peers)]
    wanted = usual if arguments.only is None else (arguments.only,)
    failures = _with_spark(console, results, wanted, arguments)
    if "mapping" in wanted:
        results.begin("mapping", about(arguments.rows, arguments.repeat))
        failures += _press(console, results, {"mapping": mapping.part})
    results.write(RESULTS)
    return 1 if failures else 0


def _with_spark(
    console: Console, results: Results, wanted: Collection[str], arguments: argparse.Namespace
) -> int:
    """The phases that need Spark; how many measurements failed."""
    if not set(_OF_SPARK).intersection(wanted):
        return 0
    flights = Flights(arguments.data, arguments.rows)
    failures = 0
    with (
        DevServer() as server,
        Streams(server.url, flights, arguments.data) as streams,
        Spark(server.url, server.pid, CONNECTOR if _PEER in wanted else "") as spark,
    ):
        console.print(f"{flights.rows:,} rows, {os.cpu_count()} cores, Spark set by {SETTINGS}")
        references = References(streams, server.pid)
        snapshots = Snapshots(spark, streams, references)
        beside = Beside(spark, streams)
        for phase, cases in {
            "read": read_cases(spark, streams, references),
            "write": write_cases(spark, streams, references),
            "snapshot": snapshots.cases(),
            _PEER: beside.cases(),
        }.items():
            if phase in wanted:
                results.begin(phase, about(arguments.rows, arguments.repeat, SETTINGS))
                failures += _run(console, results, phase, cases, arguments)
                if phase == "snapshot":
                    results.note(snapshots.entries(), *snapshots.tables())
                if phase == _PEER and beside.starts is not None:
                    results.note(beside.starts.entries, beside.starts.table)
        seconds = max(3.0, min(_LIVE_S, _LIVE_S * arguments.rows / 1_000_000))
        if "latency" in wanted:
            results.begin("latency", about(arguments.rows, arguments.repeat, SETTINGS))
            live = {"latency": lambda: rowlatency.part(spark, streams, seconds)}
            failures += _press(console, results, live)
    results.show()
    return failures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", choices=PHASES)
    parser.add_argument(
        "--with",
        dest="peers",
        action="append",
        choices=[_PEER],
        default=[],
        help="measure beside Spark's Kafka source and sink, too; fetched from Maven Central",
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="K", help="medians of K runs (%(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="FILE", help="a parquet file of flights"
    )
    arguments = parser.parse_args()
    if arguments.rows < 1 or arguments.repeat < 1:
        parser.error("--rows and --repeat are at least 1")
    return arguments


def _run(
    console: Console,
    results: Results,
    phase: str,
    cases: Iterator[Case],
    arguments: argparse.Namespace,
) -> int:
    """Runs the cases of a phase; how many failed."""
    failures = 0
    warm_s = min(_WARM_S, _WARM_S * arguments.rows / 1_000_000)
    while True:
        name = f"{phase} streams"
        try:
            case = next(cases, None)
            if case is None:
                return failures
            name = case.name
            results.add(_measure(console, case, arguments.repeat, warm_s if case.warm_up else 0.0))
        except Exception as error:  # one that fails does not keep the others from running
            failures += 1
            console.print(f"{name} failed: {type(error).__name__}: {error}", style="red")
            traceback.print_exc()


def _press(console: Console, results: Results, parts: Mapping[str, Callable[[], Part]]) -> int:
    """Measures each part of a phase without Spark; how many failed."""
    failures = 0
    for name, measure in parts.items():
        console.print(f"\n{name}", style="bold")
        try:
            part = measure()
            results.note(part.entries, part.table)
        except Exception as error:  # likewise
            failures += 1
            console.print(f"{name} failed: {type(error).__name__}: {error}", style="red")
            traceback.print_exc()
    return failures


def _measure(console: Console, case: Case, repeat: int, warm_s: float) -> Figures:
    """Ours for so long without a clock; then ours and each reference in turn, `repeat` times."""
    console.print(f"\n{case.name}", style="bold")
    warm_from = time.monotonic()
    while time.monotonic() < warm_from + warm_s:
        started(case.ours)
    runs: list[Run] = []
    outcomes: dict[str, list[Outcome]] = {name: [] for name in case.references}
    for _ in range(repeat):
        runs.append(run := started(case.ours))
        console.print(_run_line(run), soft_wrap=True)
        for name, reference in case.references.items():
            outcomes[name].append(outcome := started(reference))
            line = _outcome_line(name, outcome, case.notes.get(name, ""))
            console.print(line, soft_wrap=True)
    return Figures(case, runs, outcomes)


def _run_line(run: Run) -> str:
    parts = [f"{run.seconds:.2f} s"]
    if run.whole_s is not None:
        parts.append(f"{run.whole_s:.2f} s with start")
    parts.append(f"CPU-s: {run.usage}")
    if run.note:
        parts.append(run.note)
    return f"  {'ours':11} {run.rate:>9,.0f}/s  {'; '.join(parts)}"


def _outcome_line(name: str, outcome: Outcome, note: str) -> str:
    parts = [f"{outcome.seconds:.2f} s"]
    if outcome.bytes:
        parts.append(f"{outcome.bytes / outcome.messages:.0f} B a message")
    parts.append(f"CPU-s: clients {outcome.cpu_s:.1f}, {outcome.usage}")
    parts.extend(text for text in (outcome.note, note) if text)
    return f"  {name:11} {outcome.rate:>9,.0f}/s  {'; '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
