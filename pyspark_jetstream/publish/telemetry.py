"""
What a writer's metrics are counted from: blocks that leave the queue, PubAcks, pauses, totals.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and publish what `report`
returns.
Rule 2: totals are handed in as they are now; what is new of them is worked out here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..meters import Meters, Routes
from ..outbox.limits import Limit
from ..outbox.messages import Messages
from ..outbox.priority import Priority
from ..outbox.throttle import REFUSALS, Source
from ..outbox.throttleprotocol import Reason
from .metrics import UNKNOWN, Report

__all__ = ["Origin", "Telemetry", "Totals"]


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
    drops: int = 0
    """Push-backs."""
    invalid: int = 0
    """Messages on the control subject that said nothing."""
    unrecognised: int = 0
    """Values that should name a priority and do not."""


class Telemetry:
    """
    The metrics of one task.

    Args:
        run: unlike that of any other task.
        routes: filters of destination subjects, for the label `subject`.
        interval_s: between two reports; infinite for none.
    """

    def __init__(
        self, meters: Meters, origin: Origin, run: str, routes: Iterable[str], interval_s: float
    ) -> None:
        self._meters = meters
        self._origin = origin
        self._routes = Routes(routes)
        self._is_plain = not tuple(routes)
        self._interval_s = interval_s
        self._report_at = -math.inf if interval_s < math.inf else math.inf
        self._sequence = 0
        self._run = run
        self._totals = Totals()
        self._letters: deque[tuple[str, Priority, int]] = deque()  # shed, and not known as stored
        self._blocked: tuple[Literal["queue", "throttle"], float] | None = None

    def __repr__(self) -> str:
        return f"<Telemetry {self._meters.snapshot().summary()}>"

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def sent(self, messages: Messages, since: pa.Array, mode: str, now: float) -> None:
        """
        Rows left the queue.

        Args:
            since: DOUBLE, when each was there.
        """
        waits = pc.subtract(now, since)
        if self._is_plain and messages.priorities is None:
            self._meters.waited(waits, mode=mode)
            return
        for route, priority, places in self._groups(messages):
            self._meters.waited(waits.take(places), route, priority, mode)

    def shed(self, messages: Messages, reason: str, are_kept: bool) -> None:
        """Rows made room, as dead letters (that count when they are stored) or for good."""
        for route, priority, places in self._groups(messages):
            count = len(places)
            self._meters.rejected(route, reason, priority, count)  # type: ignore[arg-type]
            if are_kept:
                self._letters.append((reason, priority, count))
            else:
                self._meters.dropped(reason, priority, count)

    def _groups(self, messages: Messages) -> list[tuple[str, Priority, pa.Array]]:
        return self._routes.groups(messages.distinct, messages.indices, messages.priorities)

    def watched(self, limit: Limit, mode: str) -> Limit:
        """The limit, whose samples are counted."""
        return _Watched(limit, self._meters, mode)

    # ── pauses ───────────────────────────────────────────────────────────────────────────────

    def commanded(self, reason: Reason, filter: str, pause_s: float) -> None:
        """An operator's pause was granted."""
        self._meters.throttled(reason, filter, round(pause_s * 1000))
        self._meters.rate_limited(Source.OPERATOR, reason, filter)

    def refused(self, err_code: int, subject: str, pause_s: float) -> None:
        """The server refused a publish for a limit or its load."""
        if err_code not in REFUSALS:
            return
        reason, _ = REFUSALS[err_code]
        place = self._routes.of([subject])[0].as_py()
        route = UNKNOWN if place is None else self._routes.patterns[place]
        self._meters.throttled(reason, route, round(pause_s * 1000))
        self._meters.rate_limited(Source.SERVER, reason, route)

    def wants_rows(self, cause: Literal["queue", "throttle"] | None, now: float) -> None:
        """Why no row is asked for now; None when one is."""
        if self._blocked is not None:
            why, since = self._blocked
            self._meters.blocked(why, now - since)
        self._blocked = None if cause is None else (cause, now)

    # ── all ──────────────────────────────────────────────────────────────────────────────────

    def count(self, totals: Totals) -> None:
        """What is new of the totals."""
        new = Totals(*(b - a for a, b in zip(self._totals, totals, strict=True)))
        self._totals = totals
        self._meters.outcome("success", new.stored)
        self._meters.outcome("bypassed", new.dead_letters)
        self._letters_stored(new.dead_letters)
        self._meters.outcome("dropped", new.drops)
        self._meters.duplicates(new.duplicates)
        self._meters.retries(new.retries)
        self._meters.invalid_commands(new.invalid)
        self._meters.unrecognised(new.unrecognised)

    def _letters_stored(self, count: int) -> None:
        """So many more are stored; which, is taken to be those that were shed first."""
        while count and self._letters:
            reason, priority, most = self._letters.popleft()
            stored = min(count, most)
            self._meters.dead_letters(reason, priority, stored)
            count -= stored
            if stored < most:
                self._letters.appendleft((reason, priority, most - stored))

    def state(
        self,
        waiting: Mapping[Priority, int],
        in_flight: int,
        limit: int,
        queue_limit: int,
        mode: str,
    ) -> None:
        """What there is now."""
        self._meters.queued(waiting, mode=mode)
        self._meters.in_flight({None: in_flight}, mode)
        self._meters.limits(limit, queue_limit)

    def next_report(self) -> float:
        """When a report is due; infinite for never."""
        return self._report_at

    def report(self, now: float, final: bool = False) -> bytes:
        """The next report."""
        self._report_at = now + self._interval_s
        self._sequence += 1
        return Report(
            self._origin.producer_id,
            self._run,
            self._origin.query_id,
            self._origin.batch_id,
            self._sequence,
            final,
            self._meters.snapshot(),
        ).encode()


class _Watched:
    """A limit whose samples are counted, too."""

    def __init__(self, limit: Limit, meters: Meters, mode: str) -> None:
        self._limit = limit
        self._meters = meters
        self._mode = mode
        self.most: Final = limit.most

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
        self._meters.processed(rtt_s, count, mode=self._mode)
        self._limit.acked(count, rtt_s, in_flight, now)

    def dropped(self, now: float) -> None:
        """The server pushed back."""
        self._limit.dropped(now)
