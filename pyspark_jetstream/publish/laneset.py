"""
The lanes of one task: the lane of each row follows from its stream and the publish mode.

Rule 1: no clock, and no I/O but that `check_windows` asks the server through `targets`. Lanes are
made when the first row needs one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import OptionError, PublishTimeoutError
from ..outbox.admission import Load
from ..outbox.limits import GradientLimit
from ..outbox.messages import Messages
from ..outbox.targets import Target, Targets
from ..sanitize import get_logger
from .lanes.asynclane import AsyncLane
from .lanes.atomiclane import AtomicLane
from .lanes.detour import Lane
from .lanes.fastlane import FastLane
from .lanes.lane import LaneTerms, Outlook, Tally
from .lanes.retries import Deadlines
from .options import SinkOptions
from .telemetry import Telemetry, Way

logger = get_logger(__name__)

_LANES: Final[dict[str, Callable[[str, LaneTerms], Lane]]] = {
    "async": AsyncLane,
    "fast": FastLane,
    "atomic": AtomicLane,
}
"""The lane of each publish mode."""

_FAST_LANES: Final = 32
"""
Upper bound of a task's streams with fast batches under `auto`; open batches share the server's
flow.
"""

_TOO_FAR_FOR_FAST_S: Final = 0.01
"""
A round trip from which on `auto` takes none: a fast batch waits for it more often than PubAcks do,
at its beginning and end, and until the server lets it have its share of the flow. From there on
more may be on its way, too (`max_in_flight_far`).
"""

_APART: Final = {"dead_letters": 64}
"""Rows that go elsewhere, without a PubAck at one time (overload.md A22)."""

_AGAIN_S: Final = 0.1
"""Pause before a stream that did not tell its duplicate window is asked again."""


@lru_cache(maxsize=64)
def kept_limit(
    servers: Hashable, stream: str | None, mode: str, settings: tuple[int, int, int]
) -> GradientLimit:
    """
    Limit of a server and a stream in this worker process: how much it could take when last written
    to. The one thing a task leaves behind; Spark's workers run many tasks, one at a time.
    """
    return GradientLimit(*settings)


@dataclass(slots=True)
class _WindowChecks:
    """The checks of duplicate windows: one precedes each resending of rows that may be stored."""

    is_due: bool = False
    """Whether rows were offered that may be stored, and no check followed."""
    next_at: float = -math.inf
    """Earliest time of the next check."""
    unanswered_since: float = math.inf
    """Time of the first check that a stream left unanswered; infinite while all answer."""


class LaneSet:
    """
    The lanes of one task.

    Args:
        inbox: replies to the n-th lane come on `<inbox>.<n>.>`.
        telemetry: counts their round trips.
    """

    def __init__(
        self, options: SinkOptions, targets: Targets, inbox: str, telemetry: Telemetry
    ) -> None:
        self.all: list[Lane] = []
        """In the order of their numbers."""
        self.main: list[Lane] = []
        """Lanes of rows."""
        self.apart: dict[str, Lane] = {}
        """The lane of `dead_letters`, once there are such."""
        self.publish_timeout_s = options.window.publish_timeout_s
        """The least that any row has."""
        self.outlook = Outlook()
        """Whoever drives the lanes sets it."""
        self._options = options
        self._targets = targets
        self._inbox = inbox
        self._telemetry = telemetry
        self._lanes: dict[int | None, Lane] = {}
        """By the place of the target stream; None is the lane of all that go asynchronously."""
        self._checks = _WindowChecks()
        self._is_far: bool | None = None
        """Whether `auto` takes the server for far; None until rows come. Rows keep their lane."""
        self._ways: dict[Lane, Way] = {}

    def __repr__(self) -> str:
        return f"<LaneSet {self.all}>"

    @property
    def awaits_windows(self) -> bool:
        """Whether nothing may be sent, as a stream does not tell its duplicate window."""
        return self._checks.unanswered_since < math.inf

    def push_backs(self, now: float) -> list[tuple[int | None, float]]:
        """
        The streams of rows that pushed back since the last call, by their places, None for one that
        is not known; and when, or until when nothing is tried there.
        """
        said: dict[str, float] = {}
        for lane in self.all:
            if lane.tally.push_backs:
                said |= lane.tally.push_backs if lane in self.main else {}
                lane.tally.push_backs.clear()
        if not said:
            return []
        places = self._targets.known(pa.array([*said], pa.string())).to_pylist()
        return [(place, max(now, at)) for place, at in zip(places, said.values(), strict=True)]

    def take(self, kind: str) -> list[Any]:
        """Entries of this field in the tallies of rows' lanes; those of other lanes are dropped."""
        found: list[Any] = []
        for lane in self.all:
            if entries := getattr(lane.tally, kind):
                found += entries if lane in self.main else ()
                entries.clear()
        return found

    @property
    def acked(self) -> int:
        """Messages stored, dead letters among them."""
        return sum(lane.tally.acked for lane in self.all)

    def load(self) -> Load:
        """
        Publishes that are not answered, as `Admission` compares them with the limit: at the limit
        where a lane may not send what it has, else below it.
        """
        limit = sum(lane.limit for lane in self.main)
        unanswered = sum(lane.unanswered for lane in self.main)
        is_full = not all(lane.wants_rows for lane in self.main)
        return Load(max(unanswered, limit) if is_full else min(unanswered, limit - 1), limit)

    def is_stuck(self, lane: Lane) -> bool:
        """Whether nothing on the wire is answered before this lane, the first such, goes on."""
        holding = [other for other in self.all if other.bytes_in_flight]
        return bool(holding) and holding[0] is lane and all(other.is_midway for other in holding)

    def way(self, place: int | None) -> Way:
        """Publish mode of rows for the stream in this place."""
        return Way(self._mode(place), "" if place is None else self._targets[place].name)

    def count_trips(self) -> None:
        """Counts the round trips of the PubAcks since the last call."""
        for lane in self.all:
            trips = lane.terms.limit.trips
            for rtt_s, count in trips:
                self._telemetry.processed(rtt_s, count, self._ways[lane])
            trips.clear()

    def totals(self) -> list[tuple[Way, dict[str, int]]]:
        """Publish mode and counts of each lane in this task, as `Telemetry.count` takes them."""
        found = []
        for lane in self.all:
            tally = lane.tally
            kind = next((kind for kind, other in self.apart.items() if other is lane), "stored")
            totals = {
                kind: tally.acked,
                "duplicates": tally.duplicates,
                "retries": tally.retries,
                "late_retries": tally.late_retries,
                "drops": lane.terms.limit.drops if lane in self.main else 0,
                "ignored": tally.ignored,
            }
            found.append((self._ways[lane], totals))
        return found

    def lately(self) -> list[tuple[Way, int]]:
        """Way of each lane's rows, and how many have no PubAck."""
        return [(self._ways[lane], lane.unanswered) for lane in self.all]

    def next_deadline(self, now: float) -> float:
        """The time at which a lane has to act though nothing arrives."""
        deadlines = [lane.next_deadline(now) for lane in self.all]
        return min(
            [*deadlines, self._checks.next_at] if self.awaits_windows else deadlines,
            default=math.inf,
        )

    def freeze_limits(self, frozen: bool) -> None:
        """Sets whether the lanes' limits may not grow."""
        for lane in self.all:
            lane.terms.limit.held = frozen

    def store_apart(self, kind: str, messages: Messages) -> None:
        """Rows that do not go where they should go out, in their order; see `apart`."""
        if kind not in self.apart:
            limit = GradientLimit(*[_APART[kind]] * 3)
            self.apart[kind] = self._new(Way("async", ""), limit)
        self.apart[kind].offer(messages)

    def stored_apart(self, kind: str) -> Tally:
        """The counts of such rows."""
        return self.apart[kind].tally if kind in self.apart else Tally()

    def parts(self, messages: Messages) -> Iterator[tuple[Lane, Messages]]:
        """The messages by the lane they go through, in order within each."""
        if not len(messages):
            return
        if self._is_far is None:
            self._is_far = self._seems_far
        if messages.unsure is not None:
            self._checks.is_due |= pc.any(pc.is_finite(messages.unsure)).as_py()
        row_targets = messages.row_targets
        places = pc.unique(row_targets)
        lanes: dict[Lane, int] = {}
        numbers = []
        for place in places.to_pylist():
            lane = self._lane(place)
            if place is not None:
                self._apply_window(lane, self._targets[place])
            numbers.append(lanes.setdefault(lane, len(lanes)))
        if len(lanes) == 1:
            yield lane, messages
            return
        # Sorted once, the rows of each are a run; a filter for each would look at all rows.
        each = pa.array(numbers, pa.int32()).take(pc.index_in(row_targets, places))
        counts = {run["values"]: run["counts"] for run in pc.value_counts(each).to_pylist()}
        ordered, start = messages.take(pc.array_sort_indices(each)), 0
        for lane, number in lanes.items():
            yield lane, ordered.slice(start, counts[number])
            start += counts[number]

    def check_windows(self, now: float) -> bool:
        """
        Asks the target streams for their duplicate windows before rows that may be stored are sent
        again: a stream must still know their ids. Where a window became shorter, the lanes' time
        does. A check is made once an `ackTimeout` at most, but every 0.1 s while a stream does not
        answer (`awaits_windows`).

        Returns:
            Whether streams were asked, which takes a round trip.

        Raises:
            PublishTimeoutError: A stream has not answered for `publishTimeout`.
        """
        checks, window = self._checks, self._options.window
        if not self._options.ledger or now < checks.next_at:
            return False
        if not checks.is_due and not any(lane.is_frozen for lane in self.main):
            return False
        shorter = self._targets.renew_windows()
        checks.is_due = bool(self._targets.silent)
        if not checks.is_due:
            checks.next_at, checks.unanswered_since = now + window.ack_timeout_s, math.inf
        else:
            checks.next_at = now + _AGAIN_S
            checks.unanswered_since = min(checks.unanswered_since, now)
            if now - checks.unanswered_since >= window.publish_timeout_s:
                stream, waited_s = self._targets.silent, window.publish_timeout_s
                raise PublishTimeoutError(
                    stream,
                    f"rows that may be stored wait since {waited_s:g}s until stream '{stream}' says"
                    " how long it knows their ids, and it does not answer; look whether it has a"
                    " leader",
                )
        for place, target in shorter.items():
            logger.warning(
                "stream=%s: its duplicate_window is %gs now. A row that may be stored and has no"
                " PubAck is sent again for at most this time, then the write fails. A longer window"
                " (`nats stream edit %s --dupe-window`) gives rows more time",
                target.name, target.duplicate_window_s, target.name,
            )  # fmt: skip
            lane = self._lanes.get(place) or self._lanes.get(None)
            if lane is not None:
                self._apply_window(lane, target)
        return True

    def _apply_window(self, lane: Lane, target: Target) -> None:
        """Lowers the lane's times to what the stream's duplicate window allows."""
        max_s = math.inf
        if self._options.ledger:
            # Sent again for the last time, a message must still find its id in the window.
            max_s = max(0.0, target.duplicate_window_s - self._options.window.ack_timeout_s)
        lane.lower_times(target.duplicate_window_s, max_s)
        self.publish_timeout_s = min(self.publish_timeout_s, max_s)

    def _lane(self, place: int | None) -> Lane:
        way = self.way(place)
        key = place if way.mode != "async" else None
        lane = self._lanes.get(key)
        if lane is None:
            mode = self._options.publish_mode
            fault = None if place is None else self._targets[place].mode_fault(mode)
            if fault is not None:
                raise OptionError("publishMode", fault)
            limit = self._limit(way.mode, None if key is None else way.stream)
            lane = self._lanes[key] = self._new(way, limit, self._options.rows.rejects)
            self.main.append(lane)
            if len(self._lanes) == 1 or logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "publishing stream=%s mode=%s round_trip=%.1fms",
                    way.stream or "*", way.mode, self.outlook.round_trip_s * 1e3,
                )  # fmt: skip
        if self._ways[lane] != way:
            self._ways[lane] = Way(way.mode)  # of several streams
        return lane

    def _mode(self, place: int | None) -> str:
        if place is None or self._options.publish_mode != "auto":
            return "async" if place is None else self._options.publish_mode
        target = self._targets[place]
        is_far = self._seems_far if self._is_far is None else self._is_far
        counts_early = target.counts_ids_early and self._options.message_ids
        is_fast = target.allow_batched and not counts_early and not is_far and place < _FAST_LANES
        return "fast" if is_fast else "async"

    @property
    def _seems_far(self) -> bool:
        """
        By the round trip as it is known. With `publishOrder=strict` none is: one publish of each
        subject in a round trip is less than any batch.
        """
        return (
            self.outlook.round_trip_s >= _TOO_FAR_FOR_FAST_S
            and not self._options.window.strict_order
        )

    def _new(self, way: Way, limit: GradientLimit, rejects: bool = False) -> Lane:
        window = self._options.window
        deadlines = Deadlines(window.ack_timeout_s, window.publish_timeout_s)
        own = limit, window.max_in_flight_bytes, deadlines, self.outlook
        falls_back = self._options.publish_mode == "auto"
        terms = LaneTerms(*own, window.strict_order, rejects, falls_back)
        lane = _LANES[way.mode](f"{self._inbox}.{len(self.all)}", terms)
        self.all.append(lane)
        self._ways[lane] = way
        return lane

    def _limit(self, mode: str, stream: str | None) -> GradientLimit:
        window = self._options.window
        is_far = self.outlook.round_trip_s >= _TOO_FAR_FOR_FAST_S
        maximum = window.max_in_flight_far if is_far else window.max_in_flight
        # The server has a slow start of its own for fast batches.
        initial = window.initial_in_flight if mode == "async" else maximum
        settings = window.min_in_flight, initial, maximum
        limit = kept_limit(self._options.connection.servers, stream, mode, settings)
        limit.reset_counts()
        return limit
