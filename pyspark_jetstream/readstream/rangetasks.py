"""
The tasks of a planned batch: the range of each, and the way it reads. The offsets alone decide, so
a replay has the same tasks. A stream that was deleted or made anew since is not read
(`failOnDataLoss=false`); the other streams keep their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..fetch.layout import Layout
from ..fetch.survey import Survey, total
from ..sanitize import get_logger
from ..tasks import RangeRead, ReadTask, Work, by_own_consumer, direct_tasks, of_many
from .offsets import Offset
from .options import SourceOptions
from .pinned.durables import Durables
from .planner import BatchPlanner, Plan
from .watched import WatchedStreams

logger = get_logger(__name__)

_STREAMS: Final = 16
"""Of several streams a task reads up to so many, where each has few messages."""


class RangeTasks:
    """Makes the tasks of one query's batches."""

    def __init__(
        self,
        options: SourceOptions,
        survey: Survey,
        planner: BatchPlanner,
        durables: Durables,
        watched: WatchedStreams,
    ) -> None:
        self._options = options
        self._survey = survey
        self._planner = planner
        self._durables = durables
        self._watched = watched
        self._split: bool | None = None
        """Whether the last batch was cut by sequence, as the log says."""

    @property
    def _layout(self) -> Layout:
        return self._survey.layout

    def of(self, plan: Plan, is_deep: bool, logged: tuple[Offset, Offset]) -> list[ReadTask]:
        """
        The tasks of a batch.

        Args:
            is_deep: amid a backlog far away: see `looks_along`.
            logged: where the batch begins and ends with the streams that are gone by now.
        """
        unseen = self.looks_along(plan, is_deep)
        if self._options.read_mode == "direct" or plan.end.split:
            return self._direct(plan, unseen, logged)
        connection = self._options.connection
        return [ReadTask(connection, self._work(p, plan, unseen)) for p in self._busy(plan)]

    def looks_along(self, plan: Plan, is_deep: bool) -> bool:
        """
        Whether each task looks at its stream along with what it asks for first, and nobody waits
        for a look: amid a backlog far away, where each stream is one task's, and what is to be
        found there has been counted.
        """
        ends = zip(plan.start.sequences, plan.end.sequences, strict=True)
        moved = [index for index, (start, end) in enumerate(ends) if start < end]
        return (
            is_deep
            and len(self._layout.streams) == len(self._layout)
            and self._options.read_mode != "direct"
            and not plan.end.split
            and self._busy(plan) == moved  # what gets no task is looked at by nobody else
            and all(plan.modes[i] == "direct" and plan.counts[i] is not None for i in moved)
        )

    def to_see_again(self, plan: Plan, may_skip: bool) -> set[int]:
        """
        The partitions of a plan that are looked at once more before their tasks begin: those whose
        messages were counted after the look by which the batch was planned, or long after it. What
        left a stream in between was not counted, and is missed by no task. And with
        `failOnDataLoss=false` all: a stream that was made anew since has no part in the batch,
        where else its task ends with an error.
        """
        may_skip = may_skip and self._watched.is_new and self._options.fail_on_data_loss
        return {
            p.index
            for p in self._layout
            if not (may_skip and self._survey.is_counted_by_look(plan.span(p), self._watched.infos))
        }

    def usual(self, end: Offset) -> int:
        """How many tasks a batch that ends there has, with few messages of each partition."""
        partitions = len(end.sequences)
        return -(-partitions // _STREAMS) if self._layout.is_several else partitions

    def splits(self, plan: Plan) -> bool:
        """Whether a batch is cut as options wish: if no partition needs its pinned consumer."""
        if self._options.min_partitions is self._options.max_records_per_partition is None:
            return False
        splits = all(info.allow_direct for info in self._watched.infos.values()) and all(
            plan.modes[index] != "consumer" for index in self._busy(plan)
        )
        if splits != self._split:
            self._split = splits
            cut = "is cut by sequence: a partition's rows are in several tasks"
            logger.info(
                "the batch %s", cut if splits else "has a task, and a consumer, a partition"
            )
        return splits

    def _busy(self, plan: Plan) -> list[int]:
        """The partitions that get a task: by the offsets alone, so that a replay has the same."""
        return [
            p.index
            for p in self._layout
            if p.index not in plan.end.idle
            and plan.start.sequences[p.index] < plan.end.sequences[p.index]
            # What is left of a batch of a stream that is no more (failOnDataLoss=false).
            and self._watched.infos[p.stream].created == plan.end.streams[p.stream]
        ]

    def _work(self, index: int, plan: Plan, unseen: bool) -> Work:
        if plan.modes[index] == "direct":
            return self._direct_read(index, plan, unseen)
        partition = self._layout.partitions[index]
        info = self._watched.infos[partition.stream]
        pinned = self._durables.read_of(
            partition, plan.start, info, plan.end.sequences[index], plan.counts[index]
        )
        if plan.modes[index] == "consumer":
            return pinned
        filter_ = self._planner.filter_of(partition, pinned.start, info)
        return by_own_consumer(pinned, self._layout, filter_)

    def _direct_read(self, index: int | None, plan: Plan, unseen: bool) -> RangeRead:
        """Partition `index` of the batch, or with None all partitions of the one stream."""
        at = index or 0
        stream = self._layout.partitions[at].stream
        layout, number = self._layout.within(at)
        return RangeRead(
            partition=number if index is not None else None,
            stream=stream,
            filter=None,
            start=plan.start.sequences[at],
            end=plan.end.sequences[at],
            expected=plan.counts[at] if index is not None else total(plan.counts),
            include_headers=self._options.needs_headers,
            fail_on_data_loss=self._options.fail_on_data_loss,
            mark=self._watched.infos[stream].mark,
            unseen=unseen,
            on_invalid_subject=self._options.on_invalid_subject,
            layout=layout,
        )

    def _direct(self, plan: Plan, unseen: bool, logged: tuple[Offset, Offset]) -> list[ReadTask]:
        """Contiguous ranges; what partitions share is read once."""
        layout, options = self._layout, self._options
        shared = (
            layout.shares_stream
            and len(set(plan.start.sequences)) == 1
            and len(set(plan.end.sequences)) == 1
        )
        busy: Sequence[int | None] = self._busy(plan)
        reads = [
            self._direct_read(index, plan, unseen)
            for index in ([None] if shared and busy else busy)
        ]
        infos = self._watched.infos
        if layout.is_several and reads:
            infos = {read.stream: infos[read.stream] for read in reads}
            reads = self._with_gone(reads, *logged)
        # Of many streams few have something at a time.
        wanted = max(options.min_partitions or 0, len(reads if layout.is_several else layout))
        longest = options.max_records_per_partition
        tasks = direct_tasks(
            options.connection, self._survey, infos, reads, wanted,
            longest, options.read_mode == "auto",
        )  # fmt: skip
        if layout.is_several:
            most = max(1, len(tasks) // (options.min_partitions or 1))
            return of_many(tasks, min(most, _STREAMS), infos, longest)
        return tasks

    @staticmethod
    def _with_gone(reads: Sequence[RangeRead], start: Offset, end: Offset) -> list[RangeRead]:
        """The reads, and in their places those of streams that had messages and are gone."""
        there = {read.stream: read for read in reads}
        assert end.layout is not None
        spans = zip(end.layout, start.sequences, end.sequences, strict=True)
        return [
            there.get(p.stream)
            or replace(reads[0], stream=p.stream, start=first, end=last, expected=None)
            for p, first, last in spans
            if first < last and p.index not in end.idle
        ]
