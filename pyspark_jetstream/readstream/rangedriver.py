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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..client.info import StreamInfo
from ..errors import ApiError, JetStreamError, OptionError
from ..fetch.layout import Layout
from ..sanitize import get_logger
from ..tasks.rows import ReadTask
from ..values import LATEST, Moment, Starting
from .driver import Driver
from .offsets import Offset, begins, is_initial
from .options import SourceOptions
from .planner import BatchPlanner, Plan, available
from .seats import Seats
from .turn import Alone, BatchStart
from .watched import WatchedStreams

if TYPE_CHECKING:
    from .lease import Standby

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


class _RunEnd:
    """End of a run's read: `endingOffsets`, and with `availableNow` what is there by now."""

    def __init__(self, options: SourceOptions, partitions: int) -> None:
        """
        Raises:
            OptionError: `endingOffsets` names a partition that there is not.
        """
        for index in options.ending.sequences:
            if index >= partitions:
                raise OptionError(
                    "endingOffsets", f"partition {index} is none of 0 to {partitions - 1}"
                )
        of_streams = {stream: of[0] for stream, of in options.ending.streams.items()}
        self._fixed = {
            of: int(word)
            for words in (options.ending.sequences, of_streams)
            for of, word in words.items()
            if not isinstance(word, Moment) and word != LATEST
        }
        """By partition, or of several streams by stream, the sequence beyond which none is read."""
        self._streams: dict[str, int] | None = None
        """Likewise by stream, of a run that ends at what is there."""

    def freeze(self, infos: Mapping[str, StreamInfo]) -> None:
        """The run ends at what these streams hold, but for those of which that is known."""
        held = {name: info.last_seq for name, info in infos.items()}
        self._streams = held | (self._streams or {})

    @property
    def is_frozen(self) -> bool:
        """Whether the run ends at what was there at some time."""
        return self._streams is not None

    def has(self, stream: str) -> bool:
        """Whether a stream was there when the run's end was fixed, or that is not."""
        return self._streams is None or stream in self._streams

    def last(self, partition: int, stream: str, last_seq: int) -> int:
        """The last sequence to read of a partition whose stream ends at `last_seq`."""
        if self._streams is not None:  # one that came since may have the name of one that is read
            last_seq = min(last_seq, self._streams.get(stream, 0))
        return min(last_seq, *(self._fixed.get(of, last_seq) for of in (partition, stream)))

    def fixed(self, layout: Layout) -> dict[int, int]:
        """By partition of a layout the sequence beyond which it is not read."""
        found = [(p.index, of) for p in layout for of in (p.index, p.stream)]
        return {index: self._fixed[of] for index, of in found if of in self._fixed}


class RangeDriver(Driver):
    """Position of the query, and its plans."""

    remedy = f"{Driver.remedy}; to begin anew, at startingOffsets, use a new checkpointLocation"

    _needs = (2, 14), "reading a stream (CONSUMER.RESET)"

    def _enter(self) -> None:
        options = self._options
        self._seats = Seats(self._survey.js, options, self._layout)
        self._watched = WatchedStreams(options, self._survey, self._seats, self._lost)
        self._planner = BatchPlanner(options, self._survey, self._watched)
        self._plans: list[Plan] = []
        """The last two, the newest last: a commit comes one batch late."""
        self._stayed: tuple[Mapping[str, Any], dict[str, Any]] | None = None
        """Start behind which nothing was there to read the last time, and the answer to Spark."""
        self._vain = 0
        """How often the driver was told that a message came since it planned a batch."""
        self._turn: Alone | Standby = Alone()
        if options.standby:
            from .lease import Standby

            self._turn = Standby(options, self._seats.owner, self._seats.check_last_reader)
        self._end = _RunEnd(options, len(self._layout))
        self._origin: Offset | None = None
        """Offset that the symbolic start stands for."""
        self._waiting_since: float | None = None
        """Time since which `minRecordsPerTrigger` holds the next batch back."""
        self._watched.look()
        self._watched.check_readable()
        for info in self._infos.values():
            self._check_start(info)
        self._survey.check_coverage(self._infos)

    @property
    def _infos(self) -> Mapping[str, StreamInfo]:
        """The streams, by name."""
        return self._watched.infos

    def close(self) -> None:
        self._turn.close()
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
        return shown | self._turn.report()

    def freeze(self) -> None:
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
        if initial and self._watched.are_early():
            self._watched.look()
            self._stayed = start, start
            return start
        checkpoint = self._offset(start) if initial else Offset.from_json(start)
        if not initial:
            self._seats.expect(checkpoint)
        waits_for_several = self._layout.is_several and not self._turn.holds
        if not waits_for_several or self._watched.is_older(_LOOK_EVERY_S):
            self._watched.look()  # who waits lists no streams for it
        own = self._offset(start)
        self._name_log(own.consumer, self._turn.label(own))
        created = {name: info.created for name, info in self._infos.items()}
        resumed = () if initial else checkpoint.resumed
        position = self._turn.take_turn(replace(own, resumed=resumed), initial, created)
        if position is None:
            self._note(own, [None] * len(self._layout), None)
            return self._turn.waiting(start, own, ends=self._end.is_frozen)
        position = position.bare()
        if not position.is_at(own):  # it may be further than what was seen
            self._watched.look()
        position, own = self._laid_out(position, own)
        checked = self._watched.checked(position)
        batch_start = self._turn.start(start, own, checked)
        if not initial:
            self._prepare(batch_start.offset)
            if checked == own:
                self._settle(own)  # Spark asks for what follows a batch when it has committed that
        if self._end.is_frozen:
            self._await_resumed(batch_start.offset)
        # The first batch of a query is one also without rows: nothing is waited for.
        plan = self._plan_next(batch_start, unlimited)
        if plan is not None:
            self._stayed, self._vain = None, 0
            return plan.end.to_json()
        self._stayed = start, batch_start.stay
        return batch_start.stay

    def _tasks_of(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        if is_initial(end):  # a batch before the moment that the query starts at
            return []
        upto = Offset.from_json(end)
        self._check_fits(upto)
        upto = replace(upto, layout=upto.layout or self._layout)
        self._name_log(upto.consumer, self._turn.label(upto))
        logged = self._begins(start, end, upto), upto
        if self._layout.is_several:
            self._watched.look()
            upto = self._watched.drop_deleted(upto)
        offset = logged[0] if upto == logged[1] else self._begins(start, end, upto)
        is_empty = offset.sequences == upto.sequences
        # Of a batch without rows: by its offset alone, so that each run has as many.
        tasks = self._planner.usual_tasks(logged[1]) if start != end else 0
        without_rows = self._turn.warm_ups(tasks)
        if not self._turn.may_run(upto, is_empty):
            return without_rows
        plan = next((p for p in self._plans if p.start == offset and p.end == upto), None)
        is_sure = plan is not None and self._options.fail_on_data_loss
        if not is_sure and not self._layout.is_several:  # those were looked at above
            self._watched.look()
        is_past = self._turn.is_past(upto)
        if plan is not None and not is_past:
            # Nor does a task miss what left before it was counted.
            self._watched.check_batch(offset, upto)
        resumed = not is_initial(start) or bool(upto.resumed and start != end)
        self._prepare(offset, resumed)
        if is_empty:
            return without_rows
        if plan is None:
            plan = self._replanned(offset, upto, is_past)
        if is_past:
            logger.warning(
                "standby: this query runs the batch that it had begun without rows, because another"
                " query has committed all rows of the batch"
            )
            return self._turn.warm_ups(len(self._planner.tasks(plan, logged)))
        return self._planner.tasks(plan, logged)

    def commit(self, end: Mapping[str, Any]) -> None:
        # A query that lost its turn: they are the consumers of the one that took its place.
        if not end.get("initial") and self._turn.holds:
            self._settle(self._read_by(end))

    def _settle(self, offset: Offset) -> None:
        """Settles all up to an offset that Spark has committed; never raises."""
        if offset.layout != self._layout or not self._infos:
            return  # nothing was looked at yet: the next commit covers it
        try:
            self._seats.settle(offset, self._infos)
        except JetStreamError as error:
            logger.warning(
                "the batch is committed, and its messages are not acknowledged yet. The next"
                " commit acknowledges them: %s",
                error,
            )

    def _stay(self, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """
        The answer of a moment ago, if nothing was there behind `start`, and nothing has come since
        as far as is heard; None where the streams are to be looked at.
        """
        if self._stayed is None or self._stayed[0] != start:
            return None
        wakeups, every_s = self._seats.wakeups, _LOOK_EVERY_S
        if self._vain >= _MOST_VAIN:  # what came is none of the query's, or was read
            time.sleep(_IDLE_WAIT_S)
        elif wakeups.wait(_IDLE_WAIT_S):
            self._vain += 1
            return None
        elif wakeups.hears and not self._seats.paused:
            every_s = max(_LOOK_SELDOM_S, len(self._layout) / _LOOKS_A_SECOND)
        return None if self._watched.is_older(every_s) else self._stayed[1]

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
        self._survey.check_coverage(self._infos)
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

    def _replanned(self, offset: Offset, upto: Offset, is_past: bool) -> Plan:
        """A batch of the run before, from the write-ahead log."""
        if not is_past:
            self._watched.check_batch(offset, upto)
        plan = replace(self._planner.plan(offset, upto), end=upto)
        self._plans = [*self._plans[-1:], plan]
        return plan

    def _prepare(self, offset: Offset, resumed: bool = True) -> None:
        """Makes the consumers; only ever once their names are in the write-ahead log."""
        if self._seats.prepare(offset, resumed, self._infos, self._lost):
            self._watched.forget_consumers()

    # ── offsets ──────────────────────────────────────────────────────────────────────────────

    def _read_by(self, value: Mapping[str, Any]) -> Offset:
        """An offset with its layout: the options', where it is of version 1."""
        offset = Offset.from_json(value)
        return offset if offset.layout is not None else replace(offset, layout=self._layout)

    def _offset(self, start: Mapping[str, Any]) -> Offset:
        """The offset that `start` stands for."""
        if not is_initial(start):
            offset = self._read_by(start).bare()
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
        self._watched.check_fits(offset, self._end.fixed(offset.layout or self._layout))

    def _laid_out(self, offset: Offset, own: Offset) -> tuple[Offset, Offset]:
        """
        An offset of several streams with those that are there now: the ones that came begin at
        their first message, or where `startingOffsets` names them. A run that ends at what was
        there takes none that came later. And the checkpoint's own with the same ones.
        """
        if not self._layout.is_several:
            return offset, own
        offset = self._watched.drop_deleted(offset)
        known = dict.fromkeys(self._layout.streams)
        came = [n for n in self._infos if n not in known and self._end.has(n)]
        new = [n for n in came if self._survey.has_begun(self._infos[n])]
        joining = Layout.of_streams(new)
        named = Starting(streams=self._options.starting.streams)
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
                    for p in upto.layout or self._layout
                )
            )
        return upto.at(upto.resumed) if upto.resumed and start != end else offset

    def _upto(self, offset: Offset) -> tuple[int, ...]:
        """End of what this run may read now: nothing is read around a pause."""
        return _without(self._seats.paused, offset, self._ends(offset, self._infos))

    def _ends(self, offset: Offset, infos: Mapping[str, StreamInfo]) -> tuple[int, ...]:
        """End of what this run will read, pauses over, where the streams are as these say."""
        lasts = {
            p.index: self._end.last(p.index, p.stream, infos[p.stream].last_seq)
            for p in offset.layout or self._layout
        }
        return tuple(max(at, lasts.get(index, 0)) for index, at in enumerate(offset.sequences))

    def _await_resumed(self, offset: Offset) -> None:
        """Returns when this run can read something, or all that is left is not paused any more."""
        while self._seats.paused and self._upto(offset) == offset.sequences:
            ends = self._ends(offset, self._infos)
            if all(ends[index] == offset.sequences[index] for index in self._seats.paused):
                return
            self._wait_paused(offset)

    def _wait_paused(self, offset: Offset) -> None:
        """Waits a moment, and looks again which consumers are paused, if it is time."""
        time.sleep(_IDLE_WAIT_S)
        if self._watched.is_older(_LOOK_EVERY_S):
            self._watched.look()
            self._watched.check_consumers(offset)

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
        end = plan.end if plan is not None else offset
        counts = plan.counts if plan is not None else (0,) * len(there)
        left = [
            None if held is None or count is None else max(0, held - count)
            for held, count in zip(there, counts, strict=True)
        ]
        if plan is not None and end.sequences == self._upto(offset):
            left = [0] * len(left)
        if self._seats.paused:  # `there` leaves out what waits for the end of a pause
            left = available(self._survey, end, self._ends(end, self._infos), self._infos)
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


def _without(partitions: Collection[int], at: Offset, ends: Sequence[int]) -> tuple[int, ...]:
    """Ends of a range that begins at an offset, without messages of these partitions."""
    pairs = enumerate(zip(at.sequences, ends, strict=True))
    return tuple(begin if index in partitions else end for index, (begin, end) in pairs)
