"""
What a writer counts of itself while it publishes.

Rule 1: no I/O and no clock; callers hand in counts, and seconds that they have measured.
Rule 2: a call is about a block of rows or a run of PubAcks, never about a row; it costs
microseconds, `waited` and `Routes.groups` some nanoseconds a row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from .outbox.priority import Priority
from .outbox.throttle import Source
from .outbox.throttleprotocol import Reason
from .publish import metrics
from .publish.metrics import METRICS, MICRO, UNKNOWN, Bounded, Labels, Metric, Snapshot
from .subjects import pattern

__all__ = ["Meters", "Routes"]

_MOST_ROUTES: Final = 100
"""Of one task; subjects of later ones are `UNKNOWN`."""

Status = Literal["success", "dropped", "ignored", "rejected", "bypassed"]
Cause = Literal["queue", "throttle", "frozen"]
Rejection = Literal[
    "MaxConcurrentRequests", "MaxCpuUsage", "MaxMemoryUsage", "QueueTimeout", "Rejected"
]

_MODES: Final = {"async": "publish", "atomic": "publish", "fast": "fast_publish"}
_PRIORITIES: Final[dict[Priority | None, str]] = {None: "", **{p: p.label for p in Priority}}


class Meters:
    """
    The counts of one task.

    `mode` is the publish mode of the lane (`async`, `fast`, `atomic`), `route` the pattern that the
    subject matched (`Routes`).
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, list[int]]] = {name: {} for name in METRICS}
        self._route = Bounded(_MOST_ROUTES)

    def __repr__(self) -> str:
        return f"<Meters {self.snapshot().summary()}>"

    # ── state ────────────────────────────────────────────────────────────────────────────────

    def queued(
        self, counts: Mapping[Priority, int], route: str = UNKNOWN, mode: str = "async"
    ) -> None:
        """So many rows wait now."""
        route = self._route(route)
        for priority, count in counts.items():
            self._set(metrics.QUEUE, (_MODES[mode], route, _PRIORITIES[priority]), count)

    def in_flight(self, counts: Mapping[Priority | None, int], mode: str = "async") -> None:
        """So many publishes are without a PubAck now."""
        for priority, count in counts.items():
            self._set(metrics.ITEMS, (_MODES[mode], _PRIORITIES[priority]), count)

    def limits(self, in_flight: int, queue: int) -> None:
        """So many publishes may be without a PubAck, and so many rows may wait, now."""
        self._set(metrics.LIMIT, (), in_flight)
        self._set(metrics.QUEUE_LIMIT, (), queue)

    # ── times ────────────────────────────────────────────────────────────────────────────────

    def waited(
        self,
        seconds: pa.Array | Iterable[tuple[float, int]],
        route: str = UNKNOWN,
        priority: Priority = Priority.NORMAL,
        mode: str = "async",
    ) -> None:
        """
        Rows left the queue for the wire.

        Args:
            seconds: DOUBLE, of each row; or pairs of seconds and of how many rows waited as long.
        """
        labels = _MODES[mode], self._route(route), _PRIORITIES[priority]
        series = self._series(metrics.QUEUE_TIME, labels)
        if isinstance(seconds, (pa.Array, pa.ChunkedArray)):
            _observe_each(series, metrics.QUEUE_TIME.buckets, seconds)
        else:
            for each, count in seconds:
                _observe(series, metrics.QUEUE_TIME.buckets, each, count)

    def processed(
        self, rtt_s: float, count: int, priority: Priority | None = None, mode: str = "async"
    ) -> None:
        """PubAcks came of publishes that were sent together, once each."""
        series = self._series(metrics.PROCESSING_TIME, (_MODES[mode], _PRIORITIES[priority]))
        _observe(series, metrics.PROCESSING_TIME.buckets, rtt_s, count)

    def blocked(self, cause: Cause, seconds: float) -> None:
        """The writer took no rows from Spark for so long: for want of room, or for a pause."""
        self._add(metrics.BLOCKED, (cause,), round(seconds * MICRO))

    # ── events ───────────────────────────────────────────────────────────────────────────────

    def outcome(self, status: Status, count: int = 1) -> None:
        """What became of publishes, to the limiter (overload.md §6)."""
        self._add(metrics.OUTCOMES, (status,), count)

    def rejected(
        self, route: str, reason: Rejection, priority: Priority, count: int, mode: str = "async"
    ) -> None:
        """Rows were shed, whatever becomes of them; not such as only wait."""
        labels = _MODES[mode], self._route(route), reason, _PRIORITIES[priority]
        self._add(metrics.REJECTED, labels, count)

    def throttled(self, reason: Reason, filter: str, pause_ms: int) -> None:
        """
        A pause was granted.

        Args:
            filter: what the operator's command paused; of a server's refusal the route.
        """
        self._add(metrics.THROTTLED, (reason.name, self._route(filter)), pause_ms)

    def rate_limited(self, limiter: Source, reason: Reason, filter: str, count: int = 1) -> None:
        """A command, or so many refusals, limited what may be published; `filter` as above."""
        self._add(metrics.RATE_LIMIT, (limiter.value, reason.name, self._route(filter)), count)

    def dead_letters(self, reason: str, priority: Priority, count: int) -> None:
        """Rows were stored elsewhere, PubAcks and all."""
        self._add(metrics.DEAD_LETTER, (reason, _PRIORITIES[priority]), count)

    def dropped(self, reason: str, priority: Priority, count: int) -> None:
        """Rows were let go."""
        self._add(metrics.DROPPED, (reason, _PRIORITIES[priority]), count)

    def retries(self, count: int, reason: str = "", priority: Priority | None = None) -> None:
        """Publishes were sent again."""
        self._add(metrics.RETRIES, (reason, _PRIORITIES[priority]), count)

    def duplicates(self, count: int, reason: str = "", priority: Priority | None = None) -> None:
        """PubAcks said that the stream had the message."""
        self._add(metrics.DUPLICATES, (reason, _PRIORITIES[priority]), count)

    def late_retries(self, count: int) -> None:
        """Publishes, perhaps stored, were sent again after the stream's duplicate window."""
        self._add(metrics.LATE_RETRIES, (), count)

    def unrecognised(self, count: int) -> None:
        """Values that should name a priority did not."""
        self._add(metrics.UNRECOGNISED, (), count)

    def invalid_commands(self, count: int = 1) -> None:
        """Messages on the control subject were no commands."""
        self._add(metrics.INVALID_COMMANDS, (), count)

    # ── all ──────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Snapshot:
        """All of it, as of now."""
        return Snapshot.of(
            (name, labels, series)
            for name, metric in self._values.items()
            for labels, series in metric.items()
        )

    def _series(self, metric: Metric, labels: Labels) -> list[int]:
        found = self._values[metric.name].get(labels)
        if found is None:
            found = self._values[metric.name][labels] = [0] * metric.width
        return found

    def _add(self, metric: Metric, labels: Labels, count: int) -> None:
        if count:
            self._series(metric, labels)[0] += count

    def _set(self, metric: Metric, labels: Labels, value: int) -> None:
        self._values[metric.name][labels] = [value]


def _observe(series: list[int], buckets: Sequence[float], seconds: float, count: int) -> None:
    series[bisect_left(buckets, seconds)] += count
    series[-1] += round(seconds * count * MICRO)


def _observe_each(series: list[int], buckets: Sequence[float], seconds: pa.Array) -> None:
    """As bounds double, the bucket is a logarithm."""
    if not len(seconds):
        return
    place = pc.ceil(pc.log2(pc.divide(seconds, buckets[0])))
    place = pc.min_element_wise(pc.max_element_wise(place, 0.0), float(len(buckets)))
    for each in pc.value_counts(place).to_pylist():
        series[int(each["values"])] += each["counts"]
    series[-1] += round(pc.sum(seconds).as_py() * MICRO)


# ── routes ───────────────────────────────────────────────────────────────────────────────────


class Routes:
    """
    By which pattern subjects go.

    Args:
        patterns: filters of destination subjects; the first that matches a subject is its route.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = list(dict.fromkeys(patterns))[:_MOST_ROUTES]

    def __repr__(self) -> str:
        return f"<Routes {', '.join(self.patterns)}>"

    def of(self, distinct: Sequence[str]) -> pa.Array:
        """INT32: the place of each subject's pattern; null for none."""
        subjects = pa.array(distinct, pa.string())
        found = pa.nulls(len(subjects), pa.int32())
        for place, each in enumerate(self.patterns):
            if not found.null_count:
                break
            matched = pc.match_substring_regex(subjects, f"^{pattern(each)}$")
            first = pc.and_(matched, pc.is_null(found))
            found = pc.if_else(first, pa.scalar(place, pa.int32()), found)
        return found

    def groups(
        self, distinct: Sequence[str], indices: pa.Array, priorities: pa.Array | None
    ) -> list[tuple[str, Priority, pa.Array]]:
        """
        The rows of a block by route and priority.

        Args:
            indices: INT32, row i goes to distinct[indices[i]].
            priorities: INT8, of each row; None when all are normal.

        Returns:
            Route, priority and the places of its rows (INT64), in order.
        """
        codes = pc.fill_null(self.of(distinct), -1).take(indices).cast(pa.int64())
        each = (
            pa.scalar(int(Priority.NORMAL)) if priorities is None else priorities.cast(pa.int64())
        )
        keys = pc.add(pc.multiply(codes, len(Priority)), each)
        groups = []
        for key in pc.unique(keys).to_pylist():
            code, priority = divmod(key, len(Priority))
            route = self.patterns[code] if code >= 0 else UNKNOWN
            places = pc.indices_nonzero(pc.equal(keys, key)).cast(pa.int64())
            groups.append((route, Priority(priority), places))
        return groups
