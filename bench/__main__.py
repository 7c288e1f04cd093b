"""
Measures this package, prints the figures, and writes them to bench-results.json here.

Each case runs in turns with its references, and medians count. The load of the machine stands
beside each run; one that begins at a load above 3 does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.kits.servers import DevServer

from .about import about
from .measures.live import live
from .measures.mapping import mapping_costs
from .measures.publishers import publishers
from .measures.reads import read_cases
from .measures.smalljobs import small_jobs
from .measures.snapshots import snapshot_cases
from .measures.writes import write_cases
from .others.kafka import CONNECTOR, Peer
from .others.references import References
from .results import markdown, of_case, of_cases
from .rows import Flights
from .runs import Case, Run, quiet, started
from .spark import SETTINGS, Spark, counted
from .streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULTS: Final = Path("bench-results.json")
_OURS: Final = "ours"

_CASES: Final = ("read", "write", "snapshot")
_TABLES: Final = ("latency", "jobs", "publishers")
PHASES: Final = (*_CASES, *_TABLES, "mapping")

_MILLION: Final = 1_000_000
_QUICK: Final = 20_000

_WARM_S: Final = 12.0
"""How long a case runs without a clock before: a JVM that has just begun costs twice the CPU."""

_TIMED_S: Final = 20.0
"""How long rows come at each rate, and publishes are timed. Both are less with fewer rows."""

_TURNS: Final = 10
"""Of a small job."""


class Bench:
    """One run: its arguments, what it finds, and how many measurements failed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._share = min(1.0, arguments.rows / _MILLION)
        self._phases: dict[str, dict[str, Any]] = {}
        """What has been found in each: its cases, and its tables."""
        self._about = about(arguments.rows, arguments.repeat)
        self.failures = 0

    def run(self, phases: Collection[str]) -> None:
        """Measures these phases, and writes what it found."""
        if set(phases) & {*_CASES, *_TABLES}:
            self._with_spark(phases)
        if "mapping" in phases:
            self._table("mapping", lambda: mapping_costs(0.3 * self._share))
        found = {"about": self._about, "phases": self._phases}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")

    def _with_spark(self, phases: Collection[str]) -> None:
        arguments = self._arguments
        flights = Flights(arguments.rows)
        with ExitStack() as stack:
            server = stack.enter_context(DevServer())
            streams = stack.enter_context(closing(Streams(server.url, flights)))
            packages = CONNECTOR if arguments.kafka else ""
            spark = stack.enter_context(Spark(server.url, server.pid, packages))
            print(f"{flights.rows:,} rows, {os.cpu_count()} cores, Spark set by {SETTINGS}")
            frame = _in_memory(spark, flights)
            kafka = stack.enter_context(Peer(spark, frame)) if arguments.kafka else None
            others = References(streams, server.pid)
            for phase, cases in {
                "read": read_cases(spark, streams, others, kafka),
                "write": write_cases(spark, streams, others, frame, kafka),
                "snapshot": snapshot_cases(spark, streams, others),
            }.items():
                if phase in phases:
                    self._cases(phase, cases)
            seconds = max(3.0, _TIMED_S * self._share)
            turns = max(2, round(_TURNS * self._share))
            for phase, measure in {
                "latency": lambda: live(spark, streams, seconds),
                "jobs": lambda: small_jobs(spark, streams, frame, kafka, turns),
                "publishers": lambda: publishers(spark, streams, others, seconds),
            }.items():
                if phase in phases:
                    self._table(phase, measure)

    def _cases(self, phase: str, cases: Iterator[Case]) -> None:
        found: list[dict[str, Any]] = []
        self._phases[phase] = {"cases": found, "tables": []}
        while True:
            name = "the next case"
            try:
                case = next(cases, None)
                if case is None:
                    break
                name = case.name
                found.append(self._measured(case))
            except Exception:  # one that fails does not keep the others from running
                self._failed(phase, name)
        print("\n" + markdown(of_cases(found)))

    def _table(self, phase: str, measure: Callable[[], dict[str, Any]]) -> None:
        print(f"\n{phase}: load {quiet(not self._arguments.quick):.1f}", flush=True)
        try:
            table = started(measure)
        except Exception:  # likewise
            self._failed(phase, "its table")
            return
        self._phases[phase] = {"cases": [], "tables": [table]}
        print("\n" + markdown(table))

    def _failed(self, phase: str, name: str) -> None:
        self.failures += 1
        print(f"{phase}, {name}: failed", file=sys.stderr)
        traceback.print_exc()

    def _measured(self, case: Case) -> dict[str, Any]:
        """Ours for so long without a clock; then ours and each reference in turn."""
        print(f"\n{case.name}", flush=True)
        warm_until = time.monotonic() + (_WARM_S * self._share if case.warm_up else 0.0)
        while time.monotonic() < warm_until:
            started(case.ours)
        calls = {_OURS: case.ours, **case.references}
        runs: dict[str, list[Run]] = {name: [] for name in calls}
        for _ in range(self._arguments.repeat):
            for name, call in calls.items():
                load = quiet(not self._arguments.quick)
                runs[name].append(run := replace(started(call), load=load))
                used = ", ".join(f"{role} {cpu_s:.1f}" for role, cpu_s in run.cpu_s.items())
                does_not = "" if run.counts else ", does not count"
                print(
                    f"  {name:14} {run.rate:>9,.0f}/s  {run.seconds:.2f} s; load {load:.1f}"
                    f"{does_not}; CPU-s: {used}; {run.note}",
                    flush=True,
                )
        return of_case(case.name, runs.pop(_OURS), runs)


def _in_memory(spark: Spark, flights: Flights) -> DataFrame:
    directory = spark.new_directory()
    flights.write_parquet(directory)
    frame = spark.session.read.parquet(str(directory)).cache()
    counted(frame, flights.rows)
    return frame


def main() -> int:
    """Runs the benchmarks; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=_MILLION, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", choices=PHASES)
    parser.add_argument(
        "--with",
        dest="kafka",
        choices=["kafka"],
        help="measure beside Spark's Kafka source and sink, too; fetched from Maven Central",
    )
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="K", help="medians of K runs (%(default)s)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{_QUICK:,} rows, once, and whatever the load: whether all of it runs",
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.repeat = _QUICK, 1
    if arguments.rows < 1 or arguments.repeat < 1:
        parser.error("--rows and --repeat are at least 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM tidies up as Ctrl-C does
    bench = Bench(arguments)
    bench.run(PHASES if arguments.only is None else (arguments.only,))
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
