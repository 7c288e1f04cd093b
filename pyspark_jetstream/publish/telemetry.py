"""
Counts of a writer while it publishes: blocks that leave the queue, PubAcks, pauses.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and seconds that they have
measured, and publish what `report` returns.
Rule 2: totals are handed in as they are now; what is new of them is worked out here.
Rule 3: a call is about a block of rows or a run of PubAcks, never about a row; it costs
microseconds, `waited` and `groups` some nanoseconds a row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import places as all_places
from ..outbox.messages import Messages
from ..outbox.priority import Priority, first_match
from ..outbox.throttling.pausetable import Count
from ..outbox.throttling.throttle import PausedBy, Throttle
from ..sanitize import get_logger
from ..subjects import REST
from . import metrics
from .metrics import METRICS, MICRO, UNKNOWN, Labels, Metric, MetricsReport, MetricsSnapshot

logger = get_logger(__name__)


_STALLED_S: Final = 10.0

REPORT_S: Final = 5.0
"""Time between two reports."""


class Origin(NamedTuple):
    """The task attempt of the rows."""

    producer_id: int = 0
    """The writer's number for operators."""
    query_id: str = ""
    batch_id: int = 0
    query_name: str = ""
    """The user's name for the query or the write; "" where it has no name."""


_MAX_ROUTES: Final = 100
"""Upper bound of one task's labels of subjects; later ones are `UNKNOWN`."""


class Telemetry:
    """
    What one task counts.

    Args:
        routes: filters of destination subjects, for the label `subject`.
    """

    def __init__(self, routes: Iterable[str] = ()) -> None:
        self._values: dict[str, dict[Labels, list[int]]] = {name: {} for name in METRICS}
        self.stored_in: Mapping[str, int] = {}
        """
        The streams that have rows, and the sequence of the row that was acknowledged last; known at
        the end.
        """
        self._routes = list(dict.fromkeys(routes))[:_MAX_ROUTES]
        self._labels = {UNKNOWN}  # of subjects
        self._totals: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Telemetry {self.snapshot().summary()}>"

    def snapshot(self) -> MetricsSnapshot:
        """All of it, as of now."""
        return MetricsSnapshot.of(
            (name, labels, series)
            for name, metric in self._values.items()
            for labels, series in metric.items()
        )

    def _series(self, metric: Metric, labels: Labels) -> list[int]:
        return self._values[metric.name].setdefault(labels, [0] * metric.width)

    def _add(self, metric: Metric, labels: Labels, count: int) -> None:
        if count:
            self._series(metric, labels)[0] += count

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def sent(self, messages: Messages, since: pa.Array, now: float) -> None:
        """
        Rows left the queue.

        Args:
            since: DOUBLE, when each was there.
        """
        waits = pc.subtract(now, since)
        for route, priority, rows in self.groups(messages):
            series = self._series(metrics.QUEUE_TIME, (route, priority.label))
            for run in pc.value_counts(waits.take(rows)).to_pylist():
                seconds, count = run["values"], run["counts"]
                series[bisect_left(metrics.QUEUE_TIME.buckets, seconds)] += count
                series[-1] += round(seconds * count * MICRO)

    def shed(self, messages: Messages, reason: str, are_kept: bool) -> None:
        """Rows made room, as dead letters or for good."""
        for route, priority, rows in self.groups(messages):
            count = len(rows)
            self._add(metrics.REJECTED, (route, reason, priority.label), count)
            if are_kept:
                self._add(metrics.DEAD_LETTER, (reason, priority.label), count)
            else:
                self._add(metrics.OUTCOMES, ("dropped",), count)

    def groups(self, messages: Messages) -> list[tuple[str, Priority, pa.Array]]:
        """
        The rows by route and priority.

        Returns:
            Route, priority and the places of these rows (INT64), in order.
        """
        if not self._routes and messages.priorities is None:
            # Arrow's own grouping is slow to import.
            return [(UNKNOWN, Priority.NORMAL, all_places(len(messages)))]
        routes = first_match(self._routes, pa.array(messages.distinct, pa.string()))
        table = pa.table(
            {
                "route": routes.take(messages.indices),
                "priority": messages.urgency,
                "row": all_places(len(messages)),
            }
        )
        keys = ["route", "priority"]
        groups = table.group_by(keys, use_threads=False).aggregate([("row", "list")])
        rows = groups["row_list"].combine_chunks()
        found = []
        for number, key in enumerate(groups.select(keys).to_pylist()):
            route = UNKNOWN if key["route"] is None else self._route(self._routes[key["route"]])
            found.append((route, Priority(key["priority"]), rows[number].values))
        return found

    def _route(self, label: str) -> str:
        """The label of a subject, or `UNKNOWN` where there are too many."""
        if len(self._labels) <= _MAX_ROUTES:
            self._labels.add(label)
        return label if label in self._labels else UNKNOWN

    # ── pauses ───────────────────────────────────────────────────────────────────────────────

    def paused(self, throttle: Throttle, now: float) -> None:
        """Counts the time of pauses and refusals, and how often they began."""
        for count in throttle.table.times.counted(now):
            # What is about all subjects is told apart, be the labels used up.
            subject = REST if count.of == REST else self._route(count.of or UNKNOWN)
            self._limited(PausedBy.OPERATOR, count, subject, "")
        for count in throttle.refusals.times.counted(now):
            self._limited(PausedBy.SERVER, count, UNKNOWN, count.of)

    def _limited(self, by: PausedBy, count: Count, subject: str, stream: str) -> None:
        labels = count.reason.name, subject, stream
        self._add(metrics.THROTTLED, labels, count.ms)
        self._add(metrics.RATE_LIMIT, (by, *labels), count.met)

    # ── all ──────────────────────────────────────────────────────────────────────────────────

    def count(self, totals: Mapping[str, int]) -> None:
        """
        Adds what is new of these totals.

        Args:
            totals: publishes by what became of them, and `retries`.
        """
        for name, total in totals.items():
            new = total - self._totals.get(name, 0)
            if name == "retries":
                self._add(metrics.RETRIES, (), new)
            else:
                self._add(metrics.OUTCOMES, (name,), new)
        self._totals |= totals

    def bypassed(self) -> None:
        """A receipt or a report was sent, for which no limit holds."""
        self._add(metrics.OUTCOMES, ("bypassed",), 1)

    def waiting(self, blocks: Iterable[Messages]) -> None:
        """The rows that wait now."""
        for series in self._values[metrics.QUEUE.name].values():
            series[0] = 0
        for messages in blocks:
            for route, priority, rows in self.groups(messages):
                self._add(metrics.QUEUE, (route, priority.label), len(rows))


class Reporter:
    """
    When a task says what it has counted, and as what.

    Args:
        is_on: whether there are reports.
    """

    def __init__(self, origin: Origin, is_on: bool) -> None:
        self.due = -math.inf if is_on else math.inf
        """Time of the next report; infinite for never."""
        self._origin = origin
        self._sequence = 0

    def report(self, counts: MetricsSnapshot, now: float, final: bool = False) -> bytes:
        """The next report, as JSON in UTF-8."""
        self.due = now + REPORT_S
        self._sequence += 1
        producer_id, query_id, batch_id, name = self._origin
        return MetricsReport(
            producer_id, query_id, batch_id, self._sequence, final, counts, name
        ).encode()


class Watchdog:
    """Of one task."""

    def __init__(self, now: float) -> None:
        self._moved = (0, now)
        """PubAcks, and when there was one more."""
        self._warn_at = now + _STALLED_S

    def look(self, now: float, acked: int, is_busy: bool) -> float:
        """
        Says that rows are stored again.

        Returns:
            For how many seconds nothing is stored although there is something to store, each ten
            seconds; else 0.
        """
        before, at = self._moved
        if acked != before and self._warn_at > at + _STALLED_S:
            logger.warning("rows are stored again, after %.0fs in which none was", now - at)
        if acked != before or not is_busy:
            self._moved, self._warn_at = (acked, now), now + _STALLED_S
        elif now >= self._warn_at:
            self._warn_at = now + _STALLED_S
            return now - at
        return 0.0
