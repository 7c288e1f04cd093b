"""
What is measured of `spark.read`: a range, snapshots of few to many subjects, and what others who
publish notice of them.

The streams have few messages a subject. What bounds a snapshot of them, whoever takes it, is one
pass over the stream: so the raw limit is the raw drain of the whole range. (`multi_last` of bare
names would cost the server more: some 10 µs a subject, 2.5 µs a message is what a drain costs.)
Its rate is in subjects, as the snapshot's is, and so are those of what else there is: nats-py
asking for one subject after another, and Spark reading the range and reducing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from ..cases import Case
from ..others.child import Outcome
from ..others.references import NATS_PY, RAW_DRAIN, SPARK_REDUCE, References
from ..results import Entry
from ..spark import Run, Spark
from ..streams import FILTERED, Lane, Layout, Streams, publish_payloads
from . import latency
from .latency import Latency

_RANGE_ROWS: Final = 3_000_000
"""Like all numbers of rows here, for a million that are asked for."""

_FETCHED: Final = 200_000
"""So many messages are enough of nats-py, which would take minutes for all."""

_LOOKED_UP: Final = 5_000
"""Likewise subjects."""

_WRITING_S: Final = 10.0
"""How long publishes are timed, at least."""


_BATCH: Final = 1_000
"""Messages of a request of the package."""


class _Size(NamedTuple):
    """A stream, and whether publishes are timed while it is read."""

    subjects: int
    messages: int
    timed: bool


_SIZES: Final = (
    _Size(1_000, 4_000, False),
    _Size(50_000, 200_000, True),
    _Size(1_000_000, 1_500_000, True),
)
"""
By the package's choice the small ones are looked up by name and fetched one by one, the large one
is read and reduced. With three messages a subject it would be a toss.
"""

_STREAM: Final = Layout("payloads", {"PAYLOADS": "payloads.>"}, (Lane("PAYLOADS", None),), {})
_OPTIONS: Final = {"stream": "PAYLOADS", "multiLast": ">"}
_PAYLOAD: Final = 100


@dataclass(slots=True)
class _Cost:
    """All snapshots of one stream; medians."""

    size: _Size
    plans_s: list[float] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, tuple[float, str]]:
        """What is shown, with its unit."""
        seconds = median(run.seconds for run in self.runs)
        server = median(run.usage.cpu_s["server"] for run in self.runs)
        whole = median(sum(run.usage.cpu_s.values()) for run in self.runs)
        per_subject_us = 1e6 / self.size.subjects
        return {
            "time": (seconds, "s"),
            "plan alone": (median(self.plans_s), "s"),
            "server CPU": (server, "s"),
            "CPU with Spark": (whole, "s"),
            "time a subject": (seconds * per_subject_us, "µs"),
            "server CPU a subject": (server * per_subject_us, "µs"),
            "CPU with Spark a subject": (whole * per_subject_us, "µs"),
        }


class Snapshots:
    """The phase: its cases, and what it finds beside their figures."""

    def __init__(self, spark: Spark, streams: Streams, references: References) -> None:
        self._spark = spark
        self._streams = streams
        self._references = references
        self._costs: dict[_Size, _Cost] = {}
        self._latencies: list[Latency] = []

    def cases(self) -> Iterator[Case]:
        """The range, then snapshots of more and more subjects."""
        yield from self._range()
        for size in _SIZES:
            subjects, messages = self._scaled(size.subjects), self._scaled(size.messages)
            yield from self._snapshot(_Size(subjects, messages, size.timed))

    def entries(self) -> list[Entry]:
        """What goes into the JSON beside the cases."""
        costs = [
            Entry(f"{_name(cost.size)}: {what}", round(value, 2), unit)
            for cost in self._costs.values()
            for what, (value, unit) in cost.figures.items()
        ]
        return costs + latency.entries(self._latencies)

    def tables(self) -> list[Table]:
        """What snapshots cost, and how long publishes took meanwhile."""
        costs = Table("snapshot of\nsubjects")
        costs.add_column("messages", justify="right")
        for cost in self._costs.values():
            if not costs.row_count:
                for what, (_, unit) in cost.figures.items():
                    costs.add_column(f"{what}\n{unit}", justify="right")
            figures = (f"{value:,.2f}" for value, _ in cost.figures.values())
            costs.add_row(f"{cost.size.subjects:,}", f"{cost.size.messages:,}", *figures)
        return [costs, latency.table(self._latencies)]

    def _scaled(self, rows: int) -> int:
        return max(1, rows * self._streams.flights.rows // 1_000_000)

    def _range(self) -> Iterator[Case]:
        rows, options = self._scaled(_RANGE_ROWS), {"stream": "FLIGHTS"}
        with self._streams.empty(FILTERED):
            self._streams.publish(rows)
            self._spark.check_range(options, rows)
            share = min(rows, _FETCHED)
            yield Case(
                "read range, whole stream",
                "both cores: the server and the workers, about the same",
                lambda: self._spark.read_range(options, rows),
                {
                    RAW_DRAIN: lambda: self._references.drain_direct(FILTERED),
                    NATS_PY: lambda: self._references.fetch_ranges(FILTERED, share),
                },
                {NATS_PY: f"plain consumers without filter, {share:,} messages"},
                warm_up=False,
            )
            reads: dict[str, Callable[[], object]] = {
                "no read, busy cores": lambda: latency.busy(self._writing_s),
                f"raw drain of {rows:,}": lambda: self._references.drain_direct(FILTERED, _BATCH),
                f"range of {rows:,}": lambda: self._spark.read_range(options, rows),
            }
            self._latencies += latency.measure(
                self._streams, "the flights", "flights.timed", 1_000, reads, self._writing_s
            )

    def _snapshot(self, size: _Size) -> Iterator[Case]:
        subjects, spark = size.subjects, self._spark

        def ours() -> Run:
            plan_s = spark.plan(_OPTIONS)
            run = spark.read_range(_OPTIONS, subjects)
            cost = self._costs.setdefault(size, _Cost(size))
            cost.plans_s.append(plan_s)
            cost.runs.append(run)
            return replace(run, note=f"plan alone {plan_s:.2f} s")

        def drained() -> Outcome:
            return replace(self._references.drain_direct(_STREAM), messages=subjects)

        def reduced() -> Outcome:
            run = spark.reduce({"stream": "PAYLOADS"}, subjects)
            return Outcome(subjects, 0, run.seconds, 0.0, run.usage)

        with self._streams.empty(_STREAM):
            publish_payloads(self._streams.url, _PAYLOAD, size.messages, subjects)
            spark.check_range(_OPTIONS, subjects)
            some = [f"payloads.{number}" for number in range(min(subjects, _LOOKED_UP))]
            yield Case(
                _name(size),
                "both cores",
                ours,
                {
                    RAW_DRAIN: drained,
                    SPARK_REDUCE: reduced,
                    NATS_PY: lambda: self._references.fetch_last("PAYLOADS", some),
                },
                {
                    RAW_DRAIN: f"all {size.messages:,} messages of {subjects:,} subjects",
                    NATS_PY: f"get_last_msg of {len(some):,} subjects",
                },
                warm_up=False,
            )
            if size.timed:
                reads = {_name(size): lambda: spark.read_range(_OPTIONS, subjects)}
                self._latencies += latency.measure(
                    self._streams,
                    f"{subjects:,} subjects",
                    "payloads",
                    subjects,
                    reads,
                    self._writing_s,
                )

    @property
    def _writing_s(self) -> float:
        return min(_WRITING_S, _WRITING_S * self._streams.flights.rows / 1_000_000)


def _name(size: _Size) -> str:
    return f"snapshot of {size.subjects:,} subjects"
