"""
What a writer counts of itself while it publishes: blocks that leave the queue, PubAcks, pauses.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and seconds that they have
measured, and publish what `report` returns.
Rule 2: totals are handed in as they are now; what is new of them is worked out here.
Rule 3: a call is about a block of rows or a run of PubAcks, never about a row; it costs
microseconds, `waited` and `Routes.groups` some nanoseconds a row.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..outbox.limits import Limit
from ..outbox.messages import Messages
from ..outbox.priority import Priority
from ..outbox.throttle import REFUSALS, Source
from ..outbox.throttleprotocol import Reason
from ..subjects import pattern
from . import metrics
from .metrics import METRICS, MICRO, UNKNOWN, Bounded, Labels, Metric, Report, Snapshot

__all__ = ["Counts", "Origin", "Reporter", "Routes", "Telemetry", "Totals", "Watchdog"]

logger = logging.getLogger(__name__)


_STALLED_S: Final = 10.0

Cause = Literal["queue", "throttle", "frozen"]
"""Why a writer takes no rows from Spark."""


class Origin(NamedTuple):
    """Which attempt of a task the rows are of."""

    producer_id: int = 0
    """As which operators know it."""
    query_id: str = ""
    batch_id: int = 0


class Totals(NamedTuple):
    """What a writer has counted so far."""

    stored: int = 0
    dead_letters: int = 0
    duplicates: int = 0
    retries: int = 0
    late_retries: int = 0
    drops: int = 0
    """Push-backs."""
    ignored: int = 0
    """Sendings that failed for a cause that says nothing of the load."""
    rejected: int = 0
    """Rows that the server will never store."""
    invalid: int = 0
    """Messages on the control subject that said nothing."""
    unrecognised: int = 0
    """Values that should name a priority and do not."""


_TOTALS: Final[dict[str, tuple[Metric, Labels]]] = {
    "stored": (metrics.OUTCOMES, ("success",)),
    "dead_letters": (metrics.OUTCOMES, ("bypassed",)),
    "ignored": (metrics.OUTCOMES, ("ignored",)),
    "rejected": (metrics.OUTCOMES, ("rejected",)),
    "late_retries": (metrics.LATE_RETRIES, ()),
    "duplicates": (metrics.DUPLICATES, ("", "")),
    "retries": (metrics.RETRIES, ("", "")),
    "drops": (metrics.OUTCOMES, ("dropped",)),
    "invalid": (metrics.INVALID_COMMANDS, ()),
    "unrecognised": (metrics.UNRECOGNISED, ()),
}
"""What each of them counts for."""

_MAX_ROUTES: Final = 100
"""Of one task; subjects of later ones are `UNKNOWN`."""

_MODES: Final = {"async": "publish", "atomic": "publish", "fast": "fast_publish"}


class Telemetry:
    """
    What one task counts. `mode` is the publish mode of a lane (`async`, `fast`, `atomic`).

    Args:
        routes: filters of destination subjects, for the label `subject`.
    """

    def __init__(self, routes: Iterable[str] = ()) -> None:
        self._values: dict[str, dict[Labels, list[int]]] = {name: {} for name in METRICS}
        self._routes = Routes(routes)
        self._route = Bounded(_MAX_ROUTES)
        self._totals = Totals()
        self._letters: deque[tuple[str, Priority, int]] = deque()  # shed, and not known as stored
        self._blocked: tuple[Cause, float] | None = None

    def __repr__(self) -> str:
        return f"<Telemetry {self.snapshot().summary()}>"

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def sent(self, messages: Messages, since: pa.Array, mode: str, now: float) -> None:
        """
        Rows left the queue.

        Args:
            since: DOUBLE, when each was there.
        """
        waits = pc.subtract(now, since)
        if not self._routes.patterns and messages.priorities is None:
            self._waited(waits, UNKNOWN, Priority.NORMAL, mode)
            return
        for route, priority, places in self._groups(messages):
            self._waited(waits.take(places), route, priority, mode)

    def _waited(self, seconds: pa.Array, route: str, priority: Priority, mode: str) -> None:
        series = self._series(metrics.QUEUE_TIME, (_MODES[mode], route, priority.label))
        _observe_each(series, metrics.QUEUE_TIME.buckets, seconds)

    def shed(self, messages: Messages, reason: str, are_kept: bool) -> None:
        """Rows made room, as dead letters (that count when they are stored) or for good."""
        for route, priority, places in self._groups(messages):
            count = len(places)
            self._add(metrics.REJECTED, (_MODES["async"], route, reason, priority.label), count)
            if are_kept:
                self._letters.append((reason, priority, count))
            else:
                self._add(metrics.DROPPED, (reason, priority.label), count)

    def _groups(self, messages: Messages) -> list[tuple[str, Priority, pa.Array]]:
        groups = self._routes.groups(messages.distinct, messages.indices, messages.priorities)
        return [(self._route(route), priority, places) for route, priority, places in groups]

    def watched(self, limit: Limit, mode: str) -> Limit:
        """The limit, whose samples are counted."""
        return _Watched(limit, self, mode)

    def processed(self, rtt_s: float, count: int, mode: str) -> None:
        """PubAcks came of publishes that were sent together, once each."""
        series = self._series(metrics.PROCESSING_TIME, (_MODES[mode], ""))
        _observe(series, metrics.PROCESSING_TIME.buckets, rtt_s, count)

    # ── pauses ───────────────────────────────────────────────────────────────────────────────

    def commanded(self, reason: Reason, filter: str, pause_s: float) -> None:
        """An operator's pause was granted."""
        self._paused(Source.OPERATOR, reason, self._route(filter), pause_s)

    def refused(self, err_code: int, subject: str, pause_s: float) -> None:
        """The server refused a publish for a limit or its load."""
        if err_code not in REFUSALS:
            return
        place = self._routes.of([subject])[0].as_py()
        route = UNKNOWN if place is None else self._routes.patterns[place]
        self._paused(Source.SERVER, REFUSALS[err_code][0], self._route(route), pause_s)

    def _paused(self, limiter: Source, reason: Reason, route: str, pause_s: float) -> None:
        self._add(metrics.THROTTLED, (reason.name, route), round(pause_s * 1000))
        self._add(metrics.RATE_LIMIT, (limiter.value, reason.name, route), 1)

    def wants_rows(self, cause: Cause | None, now: float) -> None:
        """Why no row is asked for now; None when one is."""
        if self._blocked is not None:
            why, since = self._blocked
            self._add(metrics.BLOCKED, (why,), round((now - since) * MICRO))
        self._blocked = None if cause is None else (cause, now)

    # ── all ──────────────────────────────────────────────────────────────────────────────────

    def count(self, totals: Totals) -> None:
        """What is new of the totals."""
        new = Totals(*(b - a for a, b in zip(self._totals, totals, strict=True)))
        self._totals = totals
        for name, (metric, labels) in _TOTALS.items():
            self._add(metric, labels, getattr(new, name))
        self._letters_stored(new.dead_letters)

    def bypassed(self) -> None:
        """A receipt or a report was sent, for which no limit holds."""
        self._add(metrics.OUTCOMES, ("bypassed",), 1)

    def _letters_stored(self, count: int) -> None:
        """So many more are stored; which, is taken to be those that were shed first."""
        while count and self._letters:
            reason, priority, maximum = self._letters.popleft()
            stored = min(count, maximum)
            self._add(metrics.DEAD_LETTER, (reason, priority.label), stored)
            count -= stored
            if stored < maximum:
                self._letters.appendleft((reason, priority, maximum - stored))

    def state(
        self,
        waiting: Mapping[Priority, int],
        in_flight: int,
        limit: int,
        queue_limit: int,
        mode: str,
    ) -> None:
        """What there is now."""
        for priority, count in waiting.items():
            self._set(metrics.QUEUE, (_MODES[mode], UNKNOWN, priority.label), count)
        self._set(metrics.ITEMS, (_MODES[mode], ""), in_flight)
        self._set(metrics.LIMIT, (), limit)
        self._set(metrics.QUEUE_LIMIT, (), queue_limit)

    def snapshot(self) -> Snapshot:
        """All of it, as of now."""
        return Snapshot.of(
            (name, labels, series)
            for name, metric in self._values.items()
            for labels, series in metric.items()
        )

    def _series(self, metric: Metric, labels: Labels) -> list[int]:
        return self._values[metric.name].setdefault(labels, [0] * metric.width)

    def _add(self, metric: Metric, labels: Labels, count: int) -> None:
        if count:
            self._series(metric, labels)[0] += count

    def _set(self, metric: Metric, labels: Labels, value: int) -> None:
        self._values[metric.name][labels] = [value]


class Reporter:
    """
    When a task says what it has counted, and as what.

    Args:
        run: unlike that of any other task.
        interval_s: between two reports; infinite for none.
    """

    def __init__(self, origin: Origin, run: str, interval_s: float) -> None:
        self.due = -math.inf if interval_s < math.inf else math.inf
        """When the next one is; infinite for never."""
        self._origin = origin
        self._run = run
        self._interval_s = interval_s
        self._sequence = 0

    def report(self, counts: Snapshot, now: float, final: bool = False) -> bytes:
        """The next one."""
        self.due = now + self._interval_s
        self._sequence += 1
        producer_id, query_id, batch_id = self._origin
        return Report(
            producer_id, self._run, query_id, batch_id, self._sequence, final, counts
        ).encode()


class _Watched:
    """A limit whose samples are counted, too."""

    def __init__(self, limit: Limit, telemetry: Telemetry, mode: str) -> None:
        self._limit = limit
        self._telemetry = telemetry
        self._mode = mode
        self.maximum: Final = limit.maximum

    def __repr__(self) -> str:
        return repr(self._limit)

    @property
    def value(self) -> int:
        """The limit now."""
        return self._limit.value

    @property
    def drops(self) -> int:
        """How often `dropped` was called."""
        return self._limit.drops

    @property
    def held(self) -> bool:
        """Whether it may not grow."""
        return self._limit.held

    @held.setter
    def held(self, held: bool) -> None:
        self._limit.held = held

    def acked(self, count: int, rtt_s: float, in_flight: int, now: float) -> None:
        """PubAcks have come."""
        self._telemetry.processed(rtt_s, count, self._mode)
        self._limit.acked(count, rtt_s, in_flight, now)

    def dropped(self, now: float) -> None:
        """The server pushed back."""
        self._limit.dropped(now)


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


class Routes:
    """
    By which pattern subjects go.

    Args:
        patterns: filters of destination subjects; the first that matches a subject is its route.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = list(dict.fromkeys(patterns))[:_MAX_ROUTES]

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


class Counts(NamedTuple):
    """What became of a task's messages."""

    offered: int
    acked: int
    """Those that are stored, dead letters aside."""
    duplicates: int
    """Of the acked: those the stream had already, by their `Nats-Msg-Id`, as far as it says."""
    retries: int
    """Publishes sent again."""
    dead_letters: int = 0
    """Shed or rejected, and stored where dead letters go."""
    dropped: int = 0
    """Shed, and gone."""


class Watchdog:
    """
    Of one task.

    Args:
        dropped_every_s: between two lines about rows that were dropped.
        describe: what there is to know of the writer when it stands still.
    """

    def __init__(self, now: float, dropped_every_s: float, describe: Callable[[], str]) -> None:
        self._dropped_every_s = dropped_every_s
        self._describe = describe
        self._moved = (0, now)
        """PubAcks, and when there was one more or a warning that there was none."""
        self._dropped_said = (0, -math.inf)
        """Rows that were dropped when this was last said, and when it was."""

    def look(self, now: float, acked: int, dropped: int, is_busy: bool) -> None:
        """
        Says so when nothing is stored although there is something to store; and how many rows were
        dropped in all (A23).
        """
        said, since = self._dropped_said
        if dropped > said and now - since >= self._dropped_every_s:
            self._dropped_said = dropped, now
            logger.warning("dropped %d rows so far: the server has no room", dropped)
        before, at = self._moved
        if acked != before or not is_busy:
            self._moved = acked, now
        elif now - at >= _STALLED_S:
            self._moved = before, now
            logger.warning("nothing stored for %.0fs: %s", now - at, self._describe())
