"""
`spark.readStream.format("jetstream")`: what Spark calls on the driver and in the tasks.

Guarantees, and what they rest on:

* A batch is the range `(start, end]` of each partition. Both offsets are in Spark's write-ahead
  log before a row is read, so a batch that is run again has the same rows.
* Consumers are a means: nothing depends on where one stands or on what was acknowledged.

Limits: on `interest` and `workqueue` streams a message is only there as long as the stream keeps
it for our consumer. `maxBytesPerTrigger` goes by the streams' average message.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from ..client.connection import Client
from ..client.info import StreamInfo
from ..client.patience import Patience
from ..errors import JetStreamError, OffsetError, OptionError
from ..fetch import planning
from ..fetch.assumptions import (
    Assumption,
    Change,
    position_changes,
    removed_unread,
    takes_all,
)
from ..fetch.consumer import edited
from ..fetch.pace import FAR_S, seldom_s
from ..fetch.survey import ServerView, Survey, total
from ..sanitize import get_logger
from ..tasks import RangeRead, ReadTask, WarmUp, Work, by_own_consumer, cheapest, direct_tasks
from ..values import LATEST
from .counts import ReadCounts
from .driver import SETTLES_EVERY_S, SETTLES_S, Driver, StreamReader, may_pass
from .durables import Durables
from .lease import StandbyTurn
from .offsets import Offset, check_filters, check_layout, is_initial
from .planner import BatchPlanner, Plan

__all__ = ["JetStreamStreamReader"]

logger = get_logger(__name__)

_IDLE_WAIT_S: Final = 0.05
"""
How long an idle `latestOffset` waits for a message; Spark polls every 10 ms. Not longer: a query
may have other sources, for which it does nothing meanwhile.
"""

_LOOK_EVERY_S: Final = 0.5
"""How often it looks where it would be heard if a message came."""


class JetStreamStreamReader(StreamReader["_Driver"]):
    """Reads the subject partitions of a stream, micro-batch by micro-batch."""

    def _begin(self) -> _Driver:
        return _Driver(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited; the limits are applied together in ours."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMinRows(options.min_records)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        Where the batch after `start` ends; `start` itself when there is nothing to read yet.

        Raises:
            OffsetError: The checkpoint belongs to another layout.
            DataLossError: A stream was recreated, or messages left unread (`failOnDataLoss`).
        """
        return self._run.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def commit(self, end: dict[str, Any]) -> None:
        """Settles a batch that Spark has checkpointed; never raises, the next commit covers it."""
        self._run.commit(end)


class _Driver(Driver):
    """How far the query is, and what it plans."""

    remedy = f"{Driver.remedy}; to begin anew, at startingOffsets, use a new checkpointLocation"

    def _enter(self) -> None:
        options = self._options
        self._survey = Survey(self._client, options)
        self._survey.require((2, 14), "reading a stream (CONSUMER.RESET)")
        self._layout = self._survey.layout
        self._planner = BatchPlanner(self._survey, options)
        self._durables = Durables(self._survey.js, options, self._layout)
        self._origin: Offset | None = None
        self._target: dict[str, int] | None = None
        self._ends: dict[int, int] = {}  # beyond which no partition is read
        self._seen = ServerView({}, {}, -math.inf)  # what the server said last
        self._turn = StandbyTurn(options, self._durables.owner) if options.standby else None
        self._plans: list[Plan] = []  # the newest last; two, because commits run one batch late
        self._waiting_since: float | None = None
        self._split: bool | None = None
        self._is_deep = False  # whether the next batch needs no look
        self._warmed = False  # whether this run had its batch without rows
        self._planned: Offset | None = None  # for metrics: where what is planned ends
        self._again: tuple[Survey, BatchPlanner] | None = None  # likewise: on their own connection
        self._look()
        self._check_options()
        self._survey.check_coverage(self._infos)

    def close(self) -> None:
        if self._turn is not None:
            self._turn.close()
        self._durables.close()
        super().close()

    def reported(self) -> dict[str, Any]:
        """
        For each partition the end of its stream, and its lag, when the last batch was planned.

        `lag` counts the messages behind that batch, 0 when the query has caught up; null where
        the server cannot count. `read` is the mode the batch is read in. Who is pinned at the
        partition's consumer, and how often that changed, is as `Pins.report` says.
        """
        shown = super().reported() | {
            index: report | self._durables.report(int(index))
            for index, report in self.report.items()
        }
        return shown if self._turn is None else shown | {"standby": self._turn.report()}

    def freeze(self) -> None:
        self._look()
        self._target = {name: info.last_seq for name, info in self._infos.items()}

    def latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        where = start.get("sequences") if isinstance(start, Mapping) else None  # it may be anything
        if not is_initial(start):
            self._durables.expect(Offset.from_json(start))
        quiet = self._durables.is_quiet(where)
        fresh_s = _LOOK_EVERY_S if quiet else 0.0
        if self._is_deep:
            fresh_s = seldom_s(_LOOK_EVERY_S, self._client.connection.round_trip_s)
        self._look(fresh_s)
        self._is_deep, offset = False, self._offset(start)
        initial = is_initial(start)
        self._report_on(*self._whose(offset))
        # Unchanged, `start` itself must be returned: Spark compares the text.
        stay = offset.to_json() if initial else start
        resumed: tuple[int, ...] = ()
        if self._turn is not None:
            created = {name: info.created for name, info in self._infos.items()}
            begin = self._turn.begin(offset, initial, created)
            if begin is None:
                self._note(offset, [None] * len(self._layout), None)
                self._warmed |= initial
                return stay if initial else self._once_without_rows(start, offset)
            moved = (begin.sequences, begin.streams) != (offset.sequences, offset.streams)
            self._look(0.0 if moved else math.inf)  # it may be further than what was seen
            begin = self._checked(begin)
            self._turn.note(begin)  # moved, where messages are gone (failOnDataLoss=false)
            if (begin.sequences, begin.streams) != (offset.sequences, offset.streams):
                resumed = begin.sequences
            offset = begin
        else:
            checked = self._checked(offset)
            if checked != offset:
                pairs = zip(checked.sequences, offset.sequences, strict=True)
                if any(now < before for now, before in pairs):
                    resumed = checked.sequences  # the batch begins before where the last one ended
                offset, stay = checked, replace(checked, resumed=resumed).to_json()
        if not initial:
            self._prepare(offset)
        if self._target is not None:
            self._await_resumed(offset)
        upto = self._upto(offset, self._infos)
        # The first batch of a query is one also without rows: nothing is waited for.
        waits = self._target is None and not initial
        if upto == offset.sequences and waits:
            came = self._durables.wait(offset, self._infos, _IDLE_WAIT_S)
            self._look(0.0 if came else _LOOK_EVERY_S)
            upto = self._upto(offset, self._infos)
        if upto == offset.sequences:
            self._note(offset, [0] * len(self._layout), None)
            return stay
        self._survey.check_coverage(self._infos)
        available = self._planner.available(offset, upto, self._infos)
        nothing = not any(count != 0 for count in available)
        if nothing and waits:  # what came is none of the query's
            self._durables.wait(offset, self._infos, _IDLE_WAIT_S)
        if nothing or (not unlimited and self._waits(offset, upto, available)):
            self._note(offset, available, None)
            return stay
        end = offset.at(upto)
        if not unlimited:
            end = self._planner.end(offset, upto, available, self._infos)
        self._waiting_since = None
        plan = self._planner.plan(
            offset, end, self._infos, available if end.sequences == upto else None
        )
        marks, made = self._survey.marks(self._infos), self._durables.made
        noted = replace(plan.end, resumed=resumed, marks=marks, consumers=dict(made))
        plan = replace(plan, end=replace(noted, split=self._splits(plan)))
        self._plans = [*self._plans[-1:], plan]
        is_far = self._turn is None and self._client.connection.round_trip_s >= FAR_S
        self._is_deep = is_far and self._planner.is_deep(plan, available, self._infos)
        self._durables.found([p.index for p in self._layout if p.index not in plan.end.idle])
        self._note(offset, available, plan)
        return plan.end.to_json()

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        upto = Offset.from_json(end)
        self._fits(upto)
        self._report_on(*self._whose(upto))
        resumed = not is_initial(start)
        offset = Offset.from_json(start).bare() if resumed else upto.at(upto.base)
        if offset.streams != upto.streams:
            # The batch begins at the base of a stream that was made anew (failOnDataLoss=false).
            offset = upto.at(
                tuple(
                    offset.sequences[p.index]
                    if offset.streams.get(p.stream) == upto.streams[p.stream]
                    else upto.base[p.index]
                    for p in self._layout
                )
            )
        if upto.resumed and start != end:
            offset, resumed = upto.at(upto.resumed), True
        nothing = offset.sequences == upto.sequences
        without_rows = self._warm_up() if start != end else []  # whoever reads, to be run again
        if self._turn is not None:
            if not nothing:
                self._turn.wait(upto)
            elif not self._turn.holds:
                return without_rows
        plan = next((p for p in self._plans if p.start == offset and p.end == upto), None)
        along = plan is not None and self._look_along(plan)
        self._look(math.inf if along else 0.0)
        if plan is not None and (self._turn is None or not self._turn.is_past(upto)):
            self._checked(offset)  # no task misses what left before it was counted
        self._prepare(offset, resumed)
        if nothing:
            return without_rows
        if self._options.read_mode != "direct":
            self._durables.look(offset, self._infos, self._seen.consumers)
        if plan is None:  # a batch of the run before, from the write-ahead log
            if self._turn is None or not self._turn.is_past(upto):
                self._checked(offset)
                for index, change in self._changes(upto).items():
                    if change.of in (Assumption.NOT_SHORTER, Assumption.NOT_OUTGROWN):
                        self._lost(self._layout.partitions[index].stream, index, change.text)
            plan = replace(self._planner.plan(offset, upto, self._infos), end=upto)
            self._plans = [*self._plans[-1:], plan]
        self._count_batch(plan)
        if self._options.read_mode == "direct" or upto.split:
            return self._direct(plan)
        connection = self._options.connection
        return [ReadTask(connection, self._work(index, plan)) for index in self._busy(plan)]

    def _once_without_rows(self, start: dict[str, Any], offset: Offset) -> dict[str, Any]:
        """
        The end of one batch without rows in each run of a query that waits, for its tasks' sake; a
        query that is new has one anyway, and one that ends at what is there (`availableNow`) none.
        """
        if self._warmed or self._target is not None:
            return start
        self._warmed = True
        everywhere = tuple(range(len(self._layout)))
        told = tuple(start.get("idle", ())) == everywhere
        return replace(offset, idle=() if told else everywhere).to_json()

    def _warm_up(self) -> list[ReadTask]:
        """
        The tasks of a batch without rows: with `standby` as many as there will be with rows, so
        that a take-over finds workers that have started.
        """
        if self._turn is None:
            return []
        return [ReadTask(self._options.connection, WarmUp()) for _ in self._layout]

    def commit(self, end: Mapping[str, Any]) -> None:
        if self._options.read_mode == "direct" or end.get("initial"):
            return
        if self._turn is not None and not self._turn.holds:
            return  # it is the consumer of the query that took this one's place
        try:
            offset = Offset.from_json(end)
            modes = next((p.modes for p in self._plans if p.end == offset), ())
            without = {i for i, mode in enumerate(modes) if offset.split or mode != "consumer"}
            self._durables.settle(offset, self._infos, without, self._is_deep)
        except JetStreamError as error:
            logger.warning("settling failed, the next commit will cover it: %s", error)

    # ── offsets ──────────────────────────────────────────────────────────────────────────────

    def _prepare(self, offset: Offset, resumed: bool = True) -> None:
        """Makes the consumers; only ever once their names are in the write-ahead log."""
        if self._options.read_mode != "direct":
            self._durables.prepare(offset, resumed, self._infos, self._lost)

    def _look(self, fresh_s: float = 0.0) -> None:
        """Looks at the streams, unless that was done less than `fresh_s` ago."""
        if time.monotonic() - self._seen.at >= fresh_s:
            self._seen = self._survey.look(self._durables.watched())

    @property
    def _infos(self) -> Mapping[str, StreamInfo]:
        """The streams, by name."""
        return self._seen.streams

    def _offset(self, start: Mapping[str, Any]) -> Offset:
        """The offset that `start` stands for."""
        if not is_initial(start):
            offset = Offset.from_json(start).bare()
            self._fits(offset)
            return offset
        if self._origin is None:
            base = self._survey.positions(self._options.starting, self._infos, "startingOffsets")
            self._origin = Offset(
                sequences=base,
                base=base,
                streams={name: info.created for name, info in self._infos.items()},
                consumer=self._options.consumer or f"spark-{os.urandom(5).hex()}",
                query=os.urandom(5).hex(),
                filters=self._layout.named_filters,
            )
            self._fits(self._origin)
        return self._origin

    def _upto(self, offset: Offset, infos: Mapping[str, StreamInfo]) -> tuple[int, ...]:
        """How far this run may read now."""
        highs = []
        for partition in self._layout:
            last = infos[partition.stream].last_seq
            if self._target is not None:
                last = min(last, self._target[partition.stream])
            last = min(last, self._ends.get(partition.index, last))
            if partition.index in self._durables.paused:
                last = 0  # nothing is read around a pause
            highs.append(max(last, offset.sequences[partition.index]))
        return tuple(highs)

    def _await_resumed(self, offset: Offset) -> None:
        """Returns when this run can read something, or all that is left is not paused any more."""
        assert self._target is not None
        while self._durables.paused and self._upto(offset, self._infos) == offset.sequences:
            left = [
                min(self._target[p.stream], self._ends.get(p.index, self._target[p.stream]))
                - offset.sequences[p.index]
                for p in self._layout
                if p.index in self._durables.paused
            ]
            if max(left) <= 0:
                return
            time.sleep(_IDLE_WAIT_S)
            self._look(_LOOK_EVERY_S)
            self._check_consumers(offset)

    def _waits(self, offset: Offset, upto: Sequence[int], available: Sequence[int | None]) -> bool:
        """Whether `minRecordsPerTrigger` holds the batch back."""
        minimum = self._options.min_records
        if minimum is None or self._target is not None:
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        pending = sum(
            count if count is not None else upto[p] - offset.sequences[p]
            for p, count in enumerate(available)
        )
        if pending >= minimum or now - self._waiting_since >= self._options.max_trigger_delay_s:
            return False
        time.sleep(_IDLE_WAIT_S)
        return True

    def _note(self, offset: Offset, available: Sequence[int | None], plan: Plan | None) -> None:
        counts = plan.counts if plan is not None else (0,) * len(available)
        left = [
            None if there is None or count is None else max(0, there - count)
            for there, count in zip(available, counts, strict=True)
        ]
        latest = {name: info.last_seq for name, info in self._infos.items()}
        self.report = {
            str(p.index): {"stream": p.stream, "latest": latest[p.stream], "lag": left[p.index]}
            | ({"read": plan.modes[p.index]} if plan is not None else {})
            for p in self._layout
        }
        if self._reporting is not None:
            self._count_lag(plan.end if plan is not None else offset, left)

    def _busy(self, plan: Plan) -> list[int]:
        """The partitions that get a task: by the offsets alone, so that a replay has the same."""
        return [
            p.index
            for p in self._layout
            if p.index not in plan.end.idle
            and plan.start.sequences[p.index] < plan.end.sequences[p.index]
            # What is left of a batch of a stream that is no more (failOnDataLoss=false).
            and self._infos[p.stream].created == plan.end.streams[p.stream]
        ]

    # ── metrics ──────────────────────────────────────────────────────────────────────────────

    def _whose(self, offset: Offset) -> tuple[str, str]:
        """What metrics name the query by; queries of a standby have all but the id in common."""
        return offset.consumer, offset.query if self._options.standby else ""

    def _count_lag(self, end: Offset, left: Sequence[int | None]) -> None:
        """What is left behind the batch that was planned; nothing of a query that waits."""
        assert self._reporting is not None
        with self._reporting.counting() as counted:
            if self._turn is not None and not self._turn.holds:
                self._planned = None
                return
            self._planned = end
            counted.lag(_counts(left, end, self._upto(end, self._infos)))

    def _count_batch(self, plan: Plan) -> None:
        if self._reporting is None:
            return
        with self._reporting.counting() as counted:
            self._planned = plan.end
            counted.under_way(_counts(plan.counts, plan.start, plan.end.sequences))
        self._reporting.soon()

    def _look_again(self, client: Client) -> None:
        end = self._planned
        if end is None or self._reporting is None:
            return
        if self._again is None:
            survey = Survey(client, self._options)
            self._again = survey, BatchPlanner(survey, self._options)
        survey, planner = self._again
        infos = survey.streams()
        upto = self._upto(end, infos)
        left = planner.available(end, upto, infos)
        with self._reporting.counting() as counted:
            if self._planned is end:
                counted.lag(_counts(left, end, upto))

    def _observe(self, counts: ReadCounts) -> None:
        counts.active(self._turn is None or self._turn.holds)
        for partition in self._layout:
            report = self._durables.report(partition.index)
            if "pinned" in report:
                counts.pins(partition.index, report)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────

    def _work(self, index: int, plan: Plan) -> Work:
        if plan.modes[index] == "direct":
            return self._direct_read(index, plan)
        partition = self._layout.partitions[index]
        info = self._infos[partition.stream]
        pinned = self._durables.read(
            partition, plan.start, info, plan.end.sequences[index], plan.counts[index]
        )
        if plan.modes[index] == "consumer":
            return pinned
        filter_ = self._planner.filter_of(partition, pinned.start, info)
        return by_own_consumer(pinned, self._layout, filter_)

    def _direct_read(self, index: int | None, plan: Plan) -> RangeRead:
        """Partition `index` of the batch, or with None all partitions of the one stream."""
        at = index or 0
        stream = self._layout.partitions[at].stream
        return RangeRead(
            partition=index,
            stream=stream,
            filter=None,
            start=plan.start.sequences[at],
            end=plan.end.sequences[at],
            expected=plan.counts[at] if index is not None else total(plan.counts),
            include_headers=self._options.include_headers,
            fail_on_data_loss=self._options.fail_on_data_loss,
            mark=self._infos[stream].mark,
            unseen=self._look_along(plan),
            on_invalid_subject=self._options.on_invalid_subject,
            layout=self._layout,
        )

    def _look_along(self, plan: Plan) -> bool:
        """
        Whether each task looks at its stream along with what it asks for first, and nobody waits
        for a look: amid a backlog far away, where each stream is one task's, and what is to be
        found there has been counted.
        """
        ends = zip(plan.start.sequences, plan.end.sequences, strict=True)
        moved = [index for index, (start, end) in enumerate(ends) if start < end]
        return (
            self._is_deep
            and len(self._layout.streams) == len(self._layout)
            and self._options.read_mode != "direct"
            and not plan.end.split
            and self._busy(plan) == moved  # what gets no task is looked at by nobody else
            and all(plan.modes[i] == "direct" and plan.counts[i] is not None for i in moved)
        )

    def _splits(self, plan: Plan) -> bool:
        """Whether a batch is cut as options wish: if no partition needs its pinned consumer."""
        if self._options.min_partitions is self._options.max_records_per_partition is None:
            return False
        splits = all(info.allow_direct for info in self._infos.values()) and all(
            plan.modes[index] != "consumer" for index in self._busy(plan)
        )
        if splits != self._split:
            self._split = splits
            cut = "is cut by sequence: a partition's rows are in several tasks"
            logger.info(
                "the batch %s", cut if splits else "has a task, and a consumer, a partition"
            )
        return splits

    def _direct(self, plan: Plan) -> list[ReadTask]:
        """Contiguous ranges; what partitions share is read once."""
        layout, options = self._layout, self._options
        shared = (
            layout.shares_stream
            and len(set(plan.start.sequences)) == 1
            and len(set(plan.end.sequences)) == 1
        )
        busy: Sequence[int | None] = self._busy(plan)
        reads = [self._direct_read(index, plan) for index in ([None] if shared and busy else busy)]
        wanted = max(options.min_partitions or 0, len(layout))
        sequences = max(1, sum(read.end - read.start for read in reads))
        tasks: list[ReadTask] = []
        for read in reads:
            ranges = planning.split_range(
                read.start,
                read.end,
                -(-wanted * (read.end - read.start) // sequences),
                options.max_records_per_partition,
            )
            filters = layout.filters(read.partition)
            counts = self._survey.sums(read.stream, filters, ranges, self._infos)
            direct = direct_tasks(options.connection, read, ranges, counts)
            if options.read_mode == "auto":
                tasks += cheapest(self._survey, self._infos[read.stream], direct)
            else:
                tasks += direct
        return tasks

    # ── checks ───────────────────────────────────────────────────────────────────────────────

    def _check_options(self) -> None:
        for index, word in self._options.ending.sequences.items():
            if index >= len(self._layout):
                raise OptionError(
                    "endingOffsets", f"partition {index} is none of 0 to {len(self._layout) - 1}"
                )
            if word != LATEST:
                self._ends[index] = int(word)
        for info in self._infos.values():
            if info.retention == "limits":
                if not info.allow_direct and self._options.read_mode == "direct":
                    raise OptionError(
                        "readMode",
                        f"stream '{info.name}' has direct get off; set allow_direct on it, or"
                        " readMode=consumer",
                    )
                continue
            if self._options.read_mode == "direct":
                raise OptionError(
                    "readMode",
                    f"direct reads without a consumer, but stream '{info.name}' keeps messages only"
                    f" for consumers (retention {info.retention}); use auto or consumer",
                )
            self._check_start(info)

    def _fits(self, offset: Offset) -> None:
        layout, named = self._layout, self._options.consumer
        if named is not None and named != offset.consumer:
            raise OptionError(
                "consumer",
                f"the checkpoint has '{offset.consumer}', by which this query has read so far, and"
                f" goes on with it, not with '{named}': give consumer={offset.consumer}, to whoever"
                " stands by (standby), too, or leave the option out",
            )
        check_filters(offset.filters, layout.named_filters)
        check_layout(
            len(offset.sequences), offset.streams, layout.streams, len(layout),
            "to change N: keep both layouts, let pyspark-jetstream partition --hand-over name one"
            " point in both, drain the old one with the old options, its endingOffsets and"
            " trigger(availableNow=True), then start with the new options, its startingOffsets and"
            " a new checkpointLocation",
        )  # fmt: skip
        for index, end in self._ends.items():
            if offset.sequences[index] > end:
                raise OffsetError(
                    f"partition {index} was read up to sequence {offset.sequences[index]}, beyond"
                    f" its endingOffsets {end}: stop the query first, then take the offsets anew"
                    " (pyspark-jetstream partition --hand-over)"
                )

    def _checked(self, offset: Offset) -> Offset:
        """
        The offset, after every check that its messages are still to be had; with
        `failOnDataLoss=false` moved to where reading can go on.

        Raises:
            DataLossError: They are not (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what a consumer of the query delivers.
        """
        self._check_consumers(offset)
        changes = self._changes(offset)
        patience = Patience(SETTLES_S, pause_s=SETTLES_EVERY_S)
        while not patience.over and may_pass(changes.values()):
            patience.pause()
            self._look()
            changes = self._changes(offset)
        if not changes:
            return offset
        sequences, base, streams = list(offset.sequences), list(offset.base), dict(offset.streams)
        for index, change in changes.items():
            info = self._infos[self._layout.partitions[index].stream]
            self._lost(info.name, index, change.text)
            streams[info.name] = info.created
            if change.of is Assumption.NOT_SHORTER and sequences[index] <= info.last_seq:
                continue  # what was read is still what it was
            sequences[index] = max(0, info.first_seq - 1)
            if change.of is not Assumption.NOTHING_UNREAD_LEFT:
                # From where on it holds other messages than were read cannot be told.
                base[index] = sequences[index]
        return replace(
            offset,
            sequences=tuple(sequences),
            base=tuple(base),
            streams=streams,
            idle=(),
            marks=self._survey.marks(self._infos),
        )

    def _changes(self, offset: Offset) -> dict[int, Change]:
        """By partition what shows that its stream cannot be read on from the offset."""
        outgrown = {
            name
            for name, change in self._survey.changed(offset.marks, self._infos).items()
            if change.of is Assumption.NOT_OUTGROWN
        }
        changes = {}
        for p in self._layout:
            info, position = self._infos[p.stream], offset.sequences[p.index]
            mark = offset.mark(p.stream, position)
            change = position_changes(info, mark, position, p.stream in outgrown)
            if change is None and info.retention != "limits":
                kept_from = self._kept_from(offset, info)
                change = removed_unread(info, kept_from, alone=True)
            if change is not None:
                changes[p.index] = change
        return changes

    def _kept_from(self, offset: Offset, info: StreamInfo) -> int:
        """
        Behind which sequence a stream that is not of retention `limits` holds all that came, unless
        somebody else removed it; its end where that cannot be told.
        """
        of = [p for p in self._layout if p.stream == info.name]
        filters = [p.filter for p in of]
        if info.retention == "workqueue" and self._layout.partition_subject is not None:
            filters = [self._layout.union_filter]  # what is outside of all partitions stays there
        if not takes_all(filters, info):
            return info.last_seq
        since = 0
        if info.retention == "interest":
            made = self._durables.made or offset.consumers
            if any(p.index not in made for p in of):
                return info.last_seq
            since = max(made[p.index].since for p in of)
        return max(since, *(offset.sequences[p.index] for p in of))

    def _check_consumers(self, offset: Offset) -> None:
        """
        Raises:
            DataLossError: A consumer is gone for which alone a stream keeps messages
                (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        for index, changes in self._durables.changes(
            offset, self._infos, self._seen.consumers
        ).items():
            partition = self._layout.partitions[index]
            read = self._durables.read(partition, offset, self._infos[partition.stream])
            for change in changes:
                if change.of is Assumption.CONSUMER_AS_MADE:
                    raise edited(read, change)
                if change.of.is_loss:
                    self._lost(partition.stream, index, change.text)
                    self._durables.forget(index, self._seen.consumers[index])


def _counts(counts: Sequence[int | None], start: Offset, end: Sequence[int]) -> dict[int, int]:
    """By partition; where the server cannot count, sequences."""
    return {
        index: max(0, end[index] - start.sequences[index]) if count is None else count
        for index, count in enumerate(counts)
    }
