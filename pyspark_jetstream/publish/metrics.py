"""
What writes count: rows by their outcome, metrics by name and labels.

Rule 1: no I/O and no clock.
Rule 2: every value is a whole number (seconds are kept in microseconds), so that adding snapshots
in any order gives the same.

`METRICS` is the table of names and labels (overload.md §8). `subject` is the *route*: the pattern
that a destination subject matched, never the subject; `UNKNOWN` if it matched none. `stream` is
the one that refuses. A label that a writer cannot tell is empty, which to Prometheus is no label.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, Literal, NamedTuple

from ..foreign import Reader, each, flag, number, read_json, record, text
from ..outbox.priority import Priority
from ..outbox.throttling.throttle import PausedBy
from ..outbox.throttling.throttleprotocol import Reason

UNKNOWN: Final = "UNKNOWN"
"""The route of a subject that matches no pattern; any label that is none, or is one too many."""

MICRO: Final = 1_000_000
"""Series count time in millionths of a second."""

_MAX: Final = 1 << 63
"""No writer counts as far; what is larger would not go into a float once it is summed."""

Labels = tuple[str, ...]


_TYPE: Final = "metrics"


class Metric(NamedTuple):
    """A row of the table."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: Labels
    doc: str
    known: Mapping[str, tuple[str, ...]]
    """By label, the values that there are, where these are not open."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, in seconds."""

    @property
    def width(self) -> int:
        """Integers of one series: its value, or a count a bucket, one above them, and the sum."""
        return len(self.buckets) + 2 if self.buckets else 1


METRICS: Final[dict[str, Metric]] = {}
"""Every metric of writes, by name."""

_KNOWN: Final = {
    "status": ("success", "pushed_back", "ignored", "rejected", "bypassed", "dropped"),
    "priority": tuple(priority.label for priority in Priority),
    "limiter": tuple(PausedBy),
}
_SHED: Final = (
    "MaxConcurrentRequests", "MaxMemoryUsage", "QueueTimeout", "PublishTimeout",
    "ThrottleTimeout",
    "Rejected",
)  # fmt: skip
_PAUSED: Final = tuple(Reason.__members__)


def _row(
    kind: Literal["gauge", "counter", "histogram"],
    name: str,
    labels: str,
    doc: str,
    reasons: tuple[str, ...] = (),
) -> Metric:
    """Puts a metric into its table."""
    buckets = tuple(0.0005 * 2**n for n in range(20)) if kind == "histogram" else ()
    known = _KNOWN | {"reason": reasons}
    metric = METRICS[name] = Metric(name, kind, tuple(labels.split()), doc, known, buckets)
    return metric


QUEUE = _row(
    "gauge",
    "jetstream_publish_queue_total",
    "subject priority",
    "Rows that wait to be published.",
)
REJECTED = _row(
    "counter",
    "jetstream_publish_rejected_total",
    "subject reason priority",
    "Rows that were shed.",
    _SHED,
)
QUEUE_TIME = _row(
    "histogram",
    "jetstream_publish_queue_time_seconds",
    "subject priority",
    "How long rows waited to be published.",
)
THROTTLED = _row(
    "counter",
    "jetstream_producer_throttled_times",
    "reason subject stream",
    "Milliseconds in which the subject was paused.",
    _PAUSED,
)
RATE_LIMIT = _row(
    "counter",
    "jetstream_publish_rate_limit_count",
    "limiter reason subject stream",
    "Limits of publishing that an operator, the server or the writer itself has set.",
    _PAUSED,
)
OUTCOMES = _row(
    "counter",
    "jetstream_publish_outcomes_total",
    "status",
    "Publishes by what became of them. Those that were pushed back or ignored are sent again.",
)
DEAD_LETTER = _row(
    "counter",
    "jetstream_publish_dead_letter_total",
    "reason priority",
    "Rows that became dead letters.",
    _SHED,
)
RETRIES = _row("counter", "jetstream_publish_retries_total", "", "Publishes that were sent again.")


# ── sums ─────────────────────────────────────────────────────────────────────────────────────


class Written(NamedTuple):
    """The outcome of a task's rows."""

    rows: int
    acked: int
    """Rows that are stored, dead letters aside."""
    duplicates: int
    """Acked rows that a stream had already, by their `Nats-Msg-Id`, as far as PubAcks tell."""
    retries: int
    """Publishes sent again."""
    lost: int = 0
    """Rows that the mapping loses, as its weights say."""
    already_stored: int = 0
    """Rows that an earlier attempt had stored; they were not published again."""
    dead_letters: int = 0
    """Rows that were shed or rejected and are stored elsewhere (`deadLetterSubject`)."""
    dropped: int = 0
    """Rows that were shed and are gone (`overloadPolicy=drop`)."""

    @property
    def adds_up(self) -> bool:
        """Whether the place of every row is known."""
        elsewhere = self.dead_letters + self.dropped
        return self.rows == self.acked + self.lost + self.already_stored + elsewhere


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Counts at one time: a plain value that pickles, and that JSON can carry."""

    values: dict[str, dict[Labels, tuple[int, ...]]]
    """The series, by metric and labels."""

    def __iter__(self) -> Iterator[tuple[str, Labels, tuple[int, ...]]]:
        for name, metric in self.values.items():
            for labels, series in metric.items():
                yield name, labels, series

    @property
    def size(self) -> int:
        """Number of series."""
        return sum(map(len, self.values.values()))

    @staticmethod
    def merged(snapshots: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
        """
        All together, every value summed, whatever the order.

        Gauges, too: of producers that have ended or fallen silent hand in `ended`.
        """
        return MetricsSnapshot.of(series for snapshot in snapshots for series in snapshot)

    @staticmethod
    def of(series: Iterable[tuple[str, Labels, Sequence[int]]]) -> MetricsSnapshot:
        """Snapshot of metrics, labels and values; values with the same labels are added."""
        total: dict[str, dict[Labels, tuple[int, ...]]] = {}
        for name, labels, values in series:
            metric = total.setdefault(name, {})
            known = metric.get(labels)
            metric[labels] = tuple(values if known is None else map(int.__add__, known, values))
        return MetricsSnapshot(total)

    def ended(self) -> MetricsSnapshot:
        """The snapshot without gauges, for a producer that has ended."""
        return MetricsSnapshot({k: v for k, v in self.values.items() if METRICS[k].kind != "gauge"})

    def bounded(self, **bounds: Callable[[str], str]) -> MetricsSnapshot:
        """
        With no more values of these labels than their bounds let pass, and of the others those that
        there are.
        """

        def kept(name: str, labels: Labels) -> Iterator[str]:
            for key, label in zip(METRICS[name].labels, labels, strict=True):
                if key in bounds:
                    yield bounds[key](label)
                else:
                    is_known = label in (*METRICS[name].known.get(key, ()), "", UNKNOWN)
                    yield label if is_known else UNKNOWN

        return MetricsSnapshot.of(
            (name, tuple(kept(name, labels)), values) for name, labels, values in self
        )

    def follows(self, earlier: MetricsSnapshot) -> bool:
        """Whether nothing that only grows is less than it was."""
        return all(
            all(map(int.__ge__, self.values.get(name, {}).get(labels, (-1,)), series))
            for name, labels, series in earlier.ended()
        )

    def total(self, name: str, **labels: str) -> tuple[int, ...]:
        """A metric's series of these labels, summed."""
        metric = METRICS[name]
        sums = [0] * metric.width
        for key, series in self.values.get(name, {}).items():
            named = dict(zip(metric.labels, key, strict=True))
            if named.items() >= labels.items():
                sums = list(map(int.__add__, sums, series))
        return tuple(sums)

    def summary(self) -> str:
        """What was counted, in one line for a log: outcomes, and the other counters."""
        counts = {each: self.total(OUTCOMES.name, status=each)[0] for each in _KNOWN["status"]}
        for metric in METRICS.values():
            if metric.kind == "counter" and metric is not OUTCOMES:
                counts[metric.name.removeprefix("jetstream_")] = self.total(metric.name)[0]
        return " ".join(f"{name}={count}" for name, count in counts.items() if count)

    def as_json(self) -> dict[str, Any]:
        """The snapshot as JSON: by metric, pairs of labels and values."""
        return {
            name: [[list(labels), list(series)] for labels, series in metric.items()]
            for name, metric in self.values.items()
        }

    @staticmethod
    def of_json(said: Any) -> MetricsSnapshot:
        """
        Snapshot that `as_json` wrote; metrics that are not known here are left out.

        Raises:
            ValueError: It is something else.
        """
        known = {name: pairs for name, pairs in record({})(said).items() if name in METRICS}
        return MetricsSnapshot.of(
            (name, tuple(labels), values)
            for name, pairs in known.items()
            for labels, values in each(partial(_series_of, METRICS[name]))(pairs)
        )


def _zeros() -> Iterator[tuple[str, Labels, tuple[int, ...]]]:
    for metric in METRICS.values():
        if metric.kind == "histogram":
            continue
        for labels in product(*(metric.known.get(label) or ("",) for label in metric.labels)):
            yield metric.name, labels, (0,)


ZEROS: Final = MetricsSnapshot.of(_zeros())
"""Every count and state before anything has happened; of labels that are open there is none."""


def _series_of(metric: Metric, said: Any) -> list[Any]:
    """Reads labels and values of a series."""
    match said:
        case [labels, values]:
            each(text)(labels), each(number(0, _MAX - 1))(values)
            if len(labels) == len(metric.labels) and len(values) == metric.width:
                return [labels, values]
    raise ValueError(f": expected labels and values, got {said!r:.60}")


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """Counts of one producer so far."""

    producer_id: int
    """Random; the same in all reports of one attempt of a task, and in those of no other."""
    query_id: str
    batch_id: int
    sequence: int
    """Grows from report to report."""
    final: bool
    snapshot: MetricsSnapshot
    query_name: str = ""
    """The user's name for the query or the write; "" where it has no name."""

    def encode(self) -> bytes:
        """The report as JSON in UTF-8."""
        said = {"type": _TYPE} | {name: getattr(self, name) for name in _MEMBERS}
        as_json = MetricsSnapshot.as_json
        return json.dumps(said, default=as_json, separators=(",", ":"), ensure_ascii=False).encode()

    @staticmethod
    def decode(data: bytes) -> MetricsReport:
        """
        MetricsReport that `encode` wrote.

        Raises:
            ValueError: It is something else.
        """
        try:
            said = _REPORT(read_json(data))
        except ValueError as error:
            raise ValueError(f"expected a report of metrics, got {data[:60]!r}: {error}") from None
        return MetricsReport(**{name: said[name] for name in _MEMBERS})


def _type(said: Any) -> str:
    if said != _TYPE:
        raise ValueError(f" is not {_TYPE}")
    return _TYPE


_WHOLE: Final = number(1 - _MAX, _MAX - 1)
_MEMBERS: Final[dict[str, Reader]] = {
    "producer_id": _WHOLE,
    "query_id": text,
    "batch_id": _WHOLE,
    "sequence": _WHOLE,
    "final": flag,
    "snapshot": MetricsSnapshot.of_json,
    "query_name": text,
}
_REPORT: Final = record({"type": _type, **_MEMBERS})
