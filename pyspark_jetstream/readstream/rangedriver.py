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
from ..errors import ApiError, JetStreamError, OptionError, QueryFencedError
from ..fetch.layout import Layout
from ..sanitize import get_logger
from ..tasks.rows import ReadTask
from ..values import Starting
from .driver import Driver
from .holder import Holder
from .offsets import Offset, begins, is_initial
from .planner import BatchPlanner, Plan, RunEnd, at_most
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
        own = Layout(()) if options.several is not None else self._layout
        self._seats = Seats(self._survey.js, options, own, self._lost)
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
                self._require_resets("retention interest")
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
        return self._once_more(lambda: self._latest(start, unlimited))

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        return self._once_more(lambda: self._tasks_of(start, end))

    def _once_more(self, plan: Callable[[], T]) -> T:
        """
        Result of `plan`, which is asked once more where the server refuses something: a stream may
        have been deleted meanwhile, and a new look raises, or knows what to do without it.
        """
        try:
            return plan()
        except ApiError:
            self._watched.look()
            return plan()

    def _latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        stay = self._stay(start)
        if stay is not None:
            return stay
        initial = is_initial(start)
        if initial and self._origin is None and self._begun() is None:
            if self._stayed is None:
                logger.warning("nothing is read before the moment that startingTimestamp names")
            self._look()
            self._stayed = start, start
            return start
        own = self._offset(start)
        if not initial:
            self._seats.expect(own)
        self._look()
        self._name_query(own)
        position: Offset | None = own
        if self._options.standby:
            position = self._holder.take_turn(own, initial, self._infos)
        if position is None:  # another query reads
            self._note(own, [None] * len(own.layout), None)
            return _stay_of(start, own)
        if not position.is_at(own):  # it may be further than what was seen
            self._watched.look()
        begin = self._with_new(self._watched.checked(position))
        known = own.laid_out(begin.layout, begin.by_place, begin.streams)
        is_moved = not begin.is_at(known)
        stay = _stay_of(start, known)
        if not initial:
            self._prepare(begin)
            if self._holder.must_prove and not self._holder.is_proved():
                return stay
            # Spark asks for what follows a batch when it has committed that. Whoever comes next
            # would not know how far a query with `standby` is.
            if not is_moved and not self._settle(own) and self._options.standby:
                return stay
        if self._end.is_frozen:
            self._await_resumed(begin)
        # The first batch of a query is one also without rows: nothing is waited for.
        plan = self._plan_next(begin, begin.sequences if is_moved else (), unlimited)
        if plan is not None:
            self._stayed, self._vain = None, 0
            return plan.end.to_json()
        self._stayed = start, stay
        return stay

    def _tasks_of(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        upto = Offset.from_json(end)
        self._check_fits(upto)
        self._name_query(upto)
        offset = upto.at(upto.resumed) if upto.resumed else begins(start, upto)
        is_empty = offset.sequences == upto.sequences
        if is_empty and self._options.standby:
            return []
        plan = next((p for p in self._plans if p.start.is_at(offset) and p.end == upto), None)
        if plan is None or not self._options.fail_on_data_loss:
            self._look()
        if self._options.standby:
            # An earlier run left the batch unfinished, so it cannot be left out.
            while self._holder.take_turn(offset, is_initial(start), self._infos) is None:
                self._watched.look()
            if self._holder.is_past(upto, self._infos):
                logger.warning(
                    "standby: this query runs the batch that it had begun without rows, because"
                    " another query has committed all rows of the batch"
                )
                return []
        if not is_empty:
            # Nor does a task miss what left before it was counted.
            self._watched.check_batch(offset, upto)
        self._prepare(offset, bool(upto.resumed) or not is_initial(start))
        # Without a plan it is a batch of the run before, from the write-ahead log.
        counts = (None,) * len(upto.layout)
        return [] if is_empty else self._planner.tasks(plan or Plan(offset, upto, counts))

    def commit(self, end: Mapping[str, Any]) -> None:
        if not is_initial(end):
            self._settle(Offset.from_json(end))

    def _settle(self, offset: Offset) -> bool:
        """Settles all up to an offset that Spark has committed; whether it did. Never raises."""
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
        at, mine = time.monotonic(), self._seats.pins.id
        self._watched.look()
        first = self._watched.seen.consumers.get(0)
        if self._holder.holds and first is not None:
            try:
                self._holder.see(first, at, mine)
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
            every_s = max(_LOOK_SELDOM_S, len(self._seats.layout) / _LOOKS_A_SECOND)
        is_old = time.monotonic() - self._watched.seen.at >= every_s
        return None if is_old else self._stayed[1]

    # ── planning ─────────────────────────────────────────────────────────────────────────────

    def _plan_next(self, offset: Offset, resumed: tuple[int, ...], unlimited: bool) -> Plan | None:
        """
        The next batch; None where there is none yet.

        Args:
            resumed: its start, where that is not the end of the last one (`Offset`).
            unlimited: the limits of the options do not count (`trigger(once=True)`).
        """
        upto = self._upto(offset)
        is_paused = bool(self._seats.paused)
        there = (self._planner.counts if is_paused else self._planner.available)(offset, upto)
        nothing = is_paused or not any(count != 0 for count in there)
        if nothing or (not unlimited and self._is_held_back(offset, upto, there)):
            self._note(offset, there, None)
            return None
        end = offset.at(upto) if unlimited else self._planner.cut_end(offset, upto, there)
        self._waiting_since = None
        is_whole = end.sequences == upto
        counts = there if is_whole else self._planner.counts(offset, end.sequences)
        # The end notes all that a replay has to know.
        end = replace(
            end,
            resumed=resumed,
            marks={name: self._infos[name].mark for name in end.layout.streams},
            consumers=dict(self._seats.made),
        )
        plan = self._planner.plan(offset, end, counts)
        self._plans = [*self._plans[-1:], plan]
        self._note(offset, there if not is_whole else counts, plan)
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
            layout, option = self._begun() or self._layout, "startingOffsets"
            base = self._survey.positions(self._options.starting, self._infos, option, of=layout)
            self._origin = Offset(
                sequences=base,
                base=base,
                streams={name: self._infos[name].created for name in layout.streams},
                consumer=self._options.consumer or f"spark-{os.urandom(5).hex()}",
                query=os.urandom(5).hex(),
                layout=layout,
            )
            self._check_fits(self._origin)
        return self._origin

    def _begun(self) -> Layout | None:
        """
        The partitions to begin with; None before the moment at which they begin. Of several streams
        those that have begun are read: the others join them when they do.
        """
        streams = self._layout.streams
        begun = [name for name in streams if not self._survey.is_early(self._infos[name])]
        if len(begun) == len(streams):
            return self._layout
        return Layout.of_streams(begun) if self._options.several is not None and begun else None

    def _check_fits(self, offset: Offset) -> None:
        """
        Raises:
            OptionError, OffsetError: The checkpoint is not one of this query.
        """
        self._watched.check_fits(offset, self._end.fixed(offset.layout))

    def _with_new(self, offset: Offset) -> Offset:
        """
        An offset of several streams with those that came: they begin at their first message, or
        where `startingOffsets` names them, or at a moment if that is absolute. A run that ends at
        what was there takes none.
        """
        known = offset.layout.streams
        came = [n for n in self._infos if n not in known and self._end.has(n)]
        new = [n for n in came if self._survey.has_begun(self._infos[n])]
        if not new:
            return offset
        self._watched.check_readable()
        joining = Layout.of_streams(new)
        starting = self._options.starting
        moment = starting.moment if starting.moment and starting.moment.absolute else None
        named = Starting(streams=starting.streams, moment=moment)
        positions = self._survey.positions(named, self._infos, "startingOffsets", of=joining)
        at = dict(zip(joining.places, positions, strict=True))
        created = {name: self._infos[name].created for name in new}
        return offset.laid_out(Layout.of_streams([*known, *new]), at, created)

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
        pending = sum(at_most(there, offset, upto))
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
            for p in offset.layout
            if p.stream in latest  # one that waits tells of no loss
        }


def _stay_of(asked: Mapping[str, Any], own: Offset) -> dict[str, Any]:
    """The offset unchanged, as Spark compares the text; of the symbolic start what that means."""
    return own.to_json() if is_initial(asked) else dict(asked)
