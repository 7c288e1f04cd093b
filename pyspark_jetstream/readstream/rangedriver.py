"""
The driver of a read by ranges: how far the query is, and what it plans for each batch.

Guarantees, and what they rest on:

* A batch is the range `(start, end]` of each partition. Both offsets are in Spark's write-ahead
  log before a row is read, so a batch that is run again has the same rows.
* Tasks read these ranges and touch nothing of the query; its consumers only show where it is.

Limits: on `interest` and `workqueue` streams a message is only there as long as the stream keeps
it for our consumer. `maxBytesPerTrigger` goes by the streams' average message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from ..client.info import StreamInfo
from ..client.versions import RESETS
from ..errors import ApiError, JetStreamError, OptionError, QueryFencedError
from ..fetch.layout import Layout
from ..sanitize import get_logger
from ..tasks.rows import ReadTask
from ..values import Starting
from .driver import Driver
from .holder import Holder
from .offsets import Offset, begins, is_initial
from .planner import BatchPlanner, BatchStart, Plan, available, batch_start, stay_of
from .runend import RunEnd
from .seats import Seats
from .watched import WatchedStreams

logger = get_logger(__name__)

T = TypeVar("T")

_IDLE_WAIT_S: Final = 0.05
"""
Seconds that an idle `latestOffset` waits for a message; Spark polls every 10 ms. Not longer: a
query may have other sources, for which it does nothing meanwhile.
"""

_LOOK_EVERY_S: Final = 0.5
"""Between two looks at the streams of an idle driver that hears nothing."""

_LOOK_SELDOM_S: Final = 5.0
"""Likewise of one that would be told if a message came."""

_MOST_VAIN: Final = 5
"""Times that a driver is told of a message and finds none before it goes by looks alone."""

_LOOKS_A_SECOND: Final = 6
"""Streams that such a driver asks for in a second, at the most."""


class RangeDriver(Driver):
    """Position of the query, and its plans."""

    remedy = f"{Driver.remedy}; to begin anew, at startingOffsets, use a new checkpointLocation"

    def _enter(self) -> None:
        options = self._options
        self._seats = Seats(self._survey.js, options, self._layout, self._lost)
        self._holder = Holder(options, self._seats, self._survey.js)
        self._watched = WatchedStreams(options, self._survey, self._seats, self._lost)
        self._planner = BatchPlanner(options, self._survey, self._watched)
        self._plans: list[Plan] = []
        """The last two, the newest last: a commit comes one batch late."""
        self._stayed: tuple[Mapping[str, Any], dict[str, Any]] | None = None
        """Start behind which nothing was there to read the last time, and the answer to Spark."""
        self._vain = 0
        """How often the driver was told that a message came since it planned a batch."""
        self._end = RunEnd(options, len(self._layout))
        self._origin: Offset | None = None
        """Offset that the symbolic start stands for."""
        self._waiting_since: float | None = None
        """Time since which `minRecordsPerTrigger` holds the next batch back."""
        self._watched.look()
        self._watched.check_readable()
        for info in self._infos.values():
            self._check_start(info)
            if info.retention == "interest":
                self._require(RESETS, "retention interest (CONSUMER.RESET)")
        self._survey.check_coverage(self._infos)

    @property
    def _infos(self) -> Mapping[str, StreamInfo]:
        """The streams, by name."""
        return self._watched.infos

    def close(self) -> None:
        self._holder.close()
        self._seats.close()
        super().close()

    def reported(self) -> dict[str, Any]:
        """
        For each partition the end of its stream, and its lag, when the last batch was planned.

        `lag` counts the messages behind that batch, 0 when the query has caught up; null where
        nobody has counted.
        """
        shown = super().reported() | {
            index: report | self._seats.report(int(index)) for index, report in self.report.items()
        }
        return shown | ({"standby": self._holder.report()} if self._options.standby else {})

    def freeze(self) -> None:
        if self._options.standby:
            raise OptionError(
                "standby",
                "waits for its turn, and availableNow ends at what is there: leave one of the two"
                " out",
            )
        self._watched.look()
        self._end.freeze(self._infos)

    # ── what Spark asks for each batch ───────────────────────────────────────────────────────

    def latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        return self._without_lost_streams(lambda: self._latest(start, unlimited))

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        return self._without_lost_streams(lambda: self._tasks_of(start, end))

    def _without_lost_streams(self, plan: Callable[[], T]) -> T:
        """
        Result of `plan`; it is asked once more where one of several streams was deleted meanwhile:
        what is asked of it then is refused, and a new look knows what to do without it.
        """
        try:
            return plan()
        except ApiError:
            if self._layout.is_several:
                self._watched.look()
            if all(stream in self._infos for stream in self._layout.streams):
                raise
            return plan()

    def _latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        stay = self._stay(start)
        if stay is not None:
            return stay
        initial = is_initial(start)
        if initial and self._watched.is_early():
            if self._stayed is None:
                logger.warning("nothing is read before the moment that startingTimestamp names")
            self._look()
            self._stayed = start, start
            return start
        checkpoint = self._offset(start) if initial else Offset.from_json(start)
        if not initial:
            self._seats.expect(checkpoint)
        self._look()
        own = self._offset(start)
        self._name_query(own)
        resumed = () if initial else checkpoint.resumed
        position: Offset | None = own
        if self._options.standby:
            position = self._holder.take_turn(replace(own, resumed=resumed), initial, self._infos)
        if position is None:  # another query reads
            self._note(own, [None] * len(self._layout), None)
            return stay_of(start, own)
        position = position.bare()
        if not position.is_at(own):  # it may be further than what was seen
            self._watched.look()
        position, own = self._laid_out(position, own)
        checked = self._watched.checked(position)
        begin = batch_start(start, own, checked, self._options.standby)
        if not initial:
            self._prepare(begin.offset)
            if self._holder.must_prove and not self._holder.is_proved():
                return begin.stay
            # Spark asks for what follows a batch when it has committed that. Whoever comes next
            # would not know how far a query with `standby` is.
            if checked == own and not self._settle(own) and self._options.standby:
                return begin.stay
        if self._end.is_frozen:
            self._await_resumed(begin.offset)
        # The first batch of a query is one also without rows: nothing is waited for.
        plan = self._plan_next(begin, unlimited)
        if plan is not None:
            self._stayed, self._vain = None, 0
            return plan.end.to_json()
        self._stayed = start, begin.stay
        return begin.stay

    def _tasks_of(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        upto = Offset.from_json(end)
        self._check_fits(upto)
        self._name_query(upto)
        offset = self._begins(start, end, upto)
        if self._layout.is_several:
            self._watched.look()
            self._watched.report_deleted(upto)
        is_empty = offset.sequences == upto.sequences
        if is_empty and self._options.standby:
            return []
        plan = next((p for p in self._plans if p.start == offset and p.end == upto), None)
        is_sure = plan is not None and self._options.fail_on_data_loss
        if not is_sure and not self._layout.is_several:  # those were looked at above
            self._look()
        if self._options.standby:
            own = replace(offset, resumed=upto.resumed)
            # An earlier run left the batch unfinished, so it cannot be left out.
            while self._holder.take_turn(own, is_initial(start), self._infos) is None:
                self._watched.look()
            if self._holder.is_past(upto, self._infos):
                logger.warning(
                    "standby: this query runs the batch that it had begun without rows, because"
                    " another query has committed all rows of the batch"
                )
                return []
        if plan is not None:
            # Nor does a task miss what left before it was counted.
            self._watched.check_batch(offset, upto)
        resumed = not is_initial(start) or bool(upto.resumed)
        self._prepare(offset, resumed)
        if is_empty:
            return []
        if plan is None:
            self._watched.check_batch(offset, upto)
            plan = self._planner.plan(offset, upto)
        return self._planner.tasks(plan)

    def commit(self, end: Mapping[str, Any]) -> None:
        if not is_initial(end):
            self._settle(Offset.from_json(end))

    def _settle(self, offset: Offset) -> bool:
        """Settles all up to an offset that Spark has committed; whether it did. Never raises."""
        if offset.layout != self._layout or not self._infos:
            return False  # nothing was looked at yet: the next commit covers it
        try:
            if self._holder.must_prove and not self._holder.is_proved():
                return False
            self._seats.settle(offset, self._infos)
        except JetStreamError as error:
            logger.warning(
                "the batch is committed, and its messages are not acknowledged yet. The next"
                " commit acknowledges them: %s",
                error,
            )
            return False
        return True

    # ── whose turn it is ─────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Looks at the streams and seats; raises if the query is another run's by now."""
        at = time.monotonic()
        self._watched.look()
        first = self._watched.seen.consumers.get(0)
        if self._holder.holds and first is not None:
            try:
                self._holder.see(first, at)
            except QueryFencedError as error:
                if not self._options.standby:
                    raise
                self._holder.lose(error)

    def _stay(self, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """
        The answer of a moment ago, if nothing was there behind `start`, and nothing has come since
        as far as is heard; None where the streams are to be looked at.
        """
        if self._stayed is None or self._stayed[0] != start:
            return None
        pins, every_s = self._seats.pins, _LOOK_EVERY_S
        if self._vain >= _MOST_VAIN:  # what came is none of the query's, or was read
            time.sleep(_IDLE_WAIT_S)
        elif pins.wait(_IDLE_WAIT_S):
            self._vain += 1
            return None
        elif pins.hears and not self._seats.paused:
            every_s = max(_LOOK_SELDOM_S, len(self._layout) / _LOOKS_A_SECOND)
        is_old = time.monotonic() - self._watched.seen.at >= every_s
        return None if is_old else self._stayed[1]

    # ── planning ─────────────────────────────────────────────────────────────────────────────

    def _plan_next(self, start: BatchStart, unlimited: bool) -> Plan | None:
        """
        The next batch; None where there is none yet.

        Args:
            unlimited: the limits of the options do not count (`trigger(once=True)`).
        """
        offset = start.offset
        upto = self._upto(offset)
        if upto == offset.sequences:
            self._note(offset, [0] * len(self._layout), None)
            return None
        if self._seats.paused:
            self._note(offset, available(self._survey, offset, upto, self._infos), None)
            return None
        there = self._planner.available(offset, upto)
        nothing = not any(count != 0 for count in there)
        if nothing or (not unlimited and self._is_held_back(offset, upto, there)):
            self._note(offset, there, None)
            return None
        end = offset.at(upto)
        if not unlimited:
            end = self._planner.cut_end(offset, upto, there)
        self._waiting_since = None
        is_whole = end.sequences == upto
        counts = there if is_whole else available(self._survey, offset, end.sequences, self._infos)
        plan = self._plan(start, end, counts)
        self._note(offset, there if not is_whole else counts, plan)
        return plan

    def _plan(self, start: BatchStart, end: Offset, counts: Sequence[int | None]) -> Plan:
        """The batch from `start` to `end`, whose end notes all that a replay has to know."""
        plan = self._planner.plan(start.offset, end, counts)
        noted = replace(
            plan.end,
            resumed=start.resumed,
            marks={name: self._infos[name].mark for name in self._layout.streams},
            consumers=dict(self._seats.made),
        )
        plan = replace(plan, end=noted)
        self._plans = [*self._plans[-1:], plan]
        return plan

    def _prepare(self, offset: Offset, resumed: bool = True) -> None:
        """Makes the consumers; only ever once their names are in the write-ahead log."""
        if self._holder.prepare(offset, resumed, self._infos):
            self._watched.forget_consumers()

    # ── offsets ──────────────────────────────────────────────────────────────────────────────

    def _name_query(self, offset: Offset) -> None:
        self._name_log(offset.consumer, offset.query if self._options.standby else "")

    def _offset(self, start: Mapping[str, Any]) -> Offset:
        """The offset that `start` stands for."""
        if not is_initial(start):
            offset = Offset.from_json(start).bare()
            self._check_fits(offset)
            return offset
        if self._origin is None:
            base = self._survey.positions(self._options.starting, self._infos, "startingOffsets")
            self._origin = Offset(
                sequences=base,
                base=base,
                streams={name: info.created for name, info in self._infos.items()},
                consumer=self._options.consumer or f"spark-{os.urandom(5).hex()}",
                query=os.urandom(5).hex(),
                layout=self._layout,
            )
            self._check_fits(self._origin)
        return self._origin

    def _check_fits(self, offset: Offset) -> None:
        """
        Raises:
            OptionError, OffsetError: The checkpoint is not one of this query.
        """
        self._watched.check_fits(offset, self._end.fixed(offset.layout))

    def _laid_out(self, offset: Offset, own: Offset) -> tuple[Offset, Offset]:
        """
        An offset of several streams with those that are there now. The ones that came begin at
        their first message, or where `startingOffsets` names them, or at a moment if that is
        absolute. A run that ends at what was there takes none that came later. And the checkpoint's
        own with the same ones.
        """
        if not self._layout.is_several:
            return offset, own
        offset = self._watched.without_deleted(offset)
        known = dict.fromkeys(self._layout.streams)
        came = [n for n in self._infos if n not in known and self._end.has(n)]
        new = [n for n in came if self._survey.has_begun(self._infos[n])]
        joining = Layout.of_streams(new)
        starting = self._options.starting
        moment = starting.moment if starting.moment and starting.moment.absolute else None
        named = Starting(streams=starting.streams, moment=moment)
        positions = self._survey.positions(named, self._infos, "startingOffsets", of=joining)
        if new:
            self._watched.check_readable()
            self._survey.set_layout(Layout.of_streams([*known, *new]))
        at = dict(zip(joining.places, positions, strict=True))
        created = {name: self._infos[name].created for name in new}
        offset = offset.laid_out(self._layout, at, created)
        return offset, own.laid_out(self._layout, offset.by_place, offset.streams)

    def _begins(self, start: Mapping[str, Any], end: Mapping[str, Any], upto: Offset) -> Offset:
        """Start of the batch between two offsets, by these alone."""
        offset = begins(start, upto)
        if offset.streams != upto.streams:
            # The batch begins at the base of a stream that was made anew (failOnDataLoss=false).
            offset = upto.at(
                tuple(
                    offset.sequences[p.index]
                    if offset.streams.get(p.stream) == upto.streams[p.stream]
                    else upto.base[p.index]
                    for p in upto.layout
                )
            )
        return upto.at(upto.resumed) if upto.resumed else offset

    def _upto(self, offset: Offset) -> tuple[int, ...]:
        """End of what this run may read now."""
        return tuple(
            max(at, self._end.last(p.index, p.stream, self._infos[p.stream].last_seq))
            for p, at in zip(offset.layout, offset.sequences, strict=True)
        )

    def _await_resumed(self, offset: Offset) -> None:
        """Returns when no consumer is paused, or nothing is left for this run to read."""
        while self._seats.paused and self._upto(offset) != offset.sequences:
            time.sleep(_LOOK_EVERY_S)
            self._watched.look()
            self._watched.check_consumers()

    def _is_held_back(
        self, offset: Offset, upto: Sequence[int], there: Sequence[int | None]
    ) -> bool:
        """Whether `minRecordsPerTrigger` holds the batch back; waits a moment if it does."""
        minimum = self._options.min_records
        if minimum is None or self._end.is_frozen:
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        pending = sum(_counts(there, offset, upto))
        if pending >= minimum or now - self._waiting_since >= self._options.max_trigger_delay_s:
            return False
        time.sleep(_IDLE_WAIT_S)
        return True

    # ── progress ─────────────────────────────────────────────────────────────────

    def _note(self, offset: Offset, there: Sequence[int | None], plan: Plan | None) -> None:
        """Notes for progress what the batch was planned by."""
        counts = plan.counts if plan is not None else (0,) * len(there)
        left = [
            None if held is None or count is None else max(0, held - count)
            for held, count in zip(there, counts, strict=True)
        ]
        if plan is not None and plan.end.sequences == self._upto(offset):
            left = [0] * len(left)
        latest = {name: info.last_seq for name, info in self._infos.items()}
        self.report = {
            str(p.index): {"stream": p.stream, "latest": latest[p.stream], "lag": left[p.index]}
            for p in self._layout
            if p.stream in latest  # one that waits tells of no loss
        }


def _counts(counts: Sequence[int | None], start: Offset, end: Sequence[int]) -> list[int]:
    """Messages of each partition; where the server cannot count, sequences."""
    return [
        max(0, end[index] - start.sequences[index]) if count is None else count
        for index, count in enumerate(counts)
    ]
