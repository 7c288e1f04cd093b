"""
The plan of one batch: its end, the messages of each partition, the way each is read, and the
tasks that read them.

Asks the server through `survey`, decides with `planning`. The offsets alone decide which tasks
there are, so a replay has the same ones. A stream that was deleted or made anew since is not read
(`failOnDataLoss=false`); the other streams keep their tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..client.info import StreamInfo
from ..fetch import planning
from ..fetch.layout import Layout, SubjectPartition
from ..fetch.survey import Span, Survey, total
from ..sanitize import get_logger
from ..tasks.ranges import RangeRead, by_own_consumer, direct_tasks, of_many
from ..tasks.rows import ReadTask, WarmUp, Work
from .offsets import Offset
from .options import SourceOptions

if TYPE_CHECKING:
    from .pinned.durables import Durables
    from .watched import WatchedStreams

logger = get_logger(__name__)

_STREAMS: Final = 16
"""Streams of several that a task reads at the most, where each has few messages."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: for each partition how many messages it holds (None: unknown) and its mode."""

    start: Offset
    end: Offset
    counts: tuple[int | None, ...]
    modes: tuple[planning.ReadMode, ...]

    def bypasses_consumer(self, index: int) -> bool:
        """Whether a partition is read without its consumer."""
        is_moved = self.start.sequences[index] < self.end.sequences[index]
        return is_moved and self.modes[index] != "consumer"

    def span(self, partition: SubjectPartition) -> Span:
        """The place of a partition's messages."""
        at = partition.index
        start, end = self.start.sequences[at], self.end.sequences[at]
        return Span(partition.stream, partition.filter, start, end)


def messages_in(size: int, infos: Mapping[str, StreamInfo]) -> int:
    """Number of average messages of the streams in `size` bytes; one at least."""
    messages = sum(info.messages for info in infos.values())
    average = sum(info.bytes for info in infos.values()) / max(1, messages)
    return max(1, int(size / max(1.0, average)))


def available(
    survey: Survey,
    start: Offset,
    upto: Sequence[int],
    infos: Mapping[str, StreamInfo],
) -> list[int | None]:
    """Messages of each partition from `start` to `upto`; None where the server cannot tell."""
    spans = [
        Span(p.stream, p.filter, start.sequences[p.index], upto[p.index]) for p in survey.layout
    ]
    return survey.counts(spans, infos)


class BatchPlanner:
    """Plans the batches of one query, and makes their tasks."""

    def __init__(
        self, options: SourceOptions, survey: Survey, durables: Durables, watched: WatchedStreams
    ) -> None:
        self._options = options
        self._survey = survey
        self._durables = durables
        self._watched = watched
        self._warned = False

    @property
    def _layout(self) -> Layout:
        return self._survey.layout

    @property
    def _infos(self) -> Mapping[str, StreamInfo]:
        return self._watched.infos

    def cut_end(self, start: Offset, upto: Sequence[int], there: Sequence[int | None]) -> Offset:
        """The end of the next batch within the limits of the options."""
        known = [
            count if count is not None else upto[p] - start.sequences[p]
            for p, count in enumerate(there)
        ]
        maximum = self._maximum()
        if maximum is None or sum(known) <= maximum:
            return start.at(tuple(upto))
        return start.at(self._cut(start, upto, known, maximum))

    def plan(self, start: Offset, end: Offset, counts: Sequence[int | None] | None = None) -> Plan:
        """The batch between two offsets, counted and with a mode for each partition."""
        if counts is None:
            counts = available(self._survey, start, end.sequences, self._infos)
        modes = tuple(
            self._mode(p, start.sequences[p.index], end.sequences[p.index], counts[p.index])
            for p in self._layout
        )
        idle = frozenset(index for index, count in enumerate(counts) if count == 0)
        return Plan(start, replace(end, idle=idle), tuple(counts), modes)

    def is_deep(self, plan: Plan, there: Sequence[int | None]) -> bool:
        """
        Whether as much as the plan holds is left behind it, and no retention but `limits` has to be
        known at each moment: then the next batch can be planned by what was seen for this one.
        """
        planned = [0 if c is None else c for c in plan.counts]
        if None in there or any(info.retention != "limits" for info in self._infos.values()):
            return False
        return sum(c or 0 for c in there) >= 2 * sum(planned) > 0

    def _maximum(self) -> int | None:
        """The limit of a batch in messages."""
        maximum, max_bytes = self._options.max_records, self._options.max_bytes
        if max_bytes is not None:
            by_bytes = messages_in(max_bytes, self._infos)
            maximum = by_bytes if maximum is None else min(maximum, by_bytes)
        return maximum

    def _cut(
        self,
        start: Offset,
        upto: Sequence[int],
        counts: Sequence[int],
        maximum: int,
    ) -> tuple[int, ...]:
        """
        Ends that share `maximum` messages among the partitions.

        Where all partitions of one stream stand at the same place, and go to the same, they advance
        together, to one sequence: one question to the server instead of one each, and none falls
        behind another.
        """
        layout = self._layout
        together = (
            layout.partition_subject is not None
            and len(set(start.sequences)) == 1
            and len(set(upto)) == 1
        )
        groups: list[list[SubjectPartition]] = (
            [list(layout)] if together else [[partition] for partition in layout]
        )
        of_groups = [sum(counts[p.index] for p in group) for group in groups]
        ends = list(upto)
        wanted: list[tuple[list[SubjectPartition], tuple[Span, int, int]]] = []
        for group, there, granted in zip(
            groups, of_groups, planning.share_records(of_groups, maximum), strict=True
        ):
            if granted >= there:
                continue
            first = group[0]
            low, high = start.sequences[first.index], upto[first.index]
            of = layout.union_filter if together else first.filter
            if granted > 0:
                wanted.append((group, (Span(first.stream, of, low, high), there, granted)))
            for partition in group:
                ends[partition.index] = low
        cuts = self._survey.cuts([search for _, search in wanted], self._infos)
        for (group, _), cut in zip(wanted, cuts, strict=True):
            for partition in group:
                ends[partition.index] = cut
        return tuple(ends)

    def _mode(
        self, partition: SubjectPartition, start: int, end: int, count: int | None
    ) -> planning.ReadMode:
        options, info = self._options, self._infos[partition.stream]
        if options.read_mode == "direct":
            return "direct"
        behind, wide = info.last_seq - start, self._is_wide(partition, start)

        def cheapest(*ways: planning.ReadMode) -> planning.ReadMode:
            return planning.choose_mode(
                ways=ways if info.allow_direct else {*ways} - {"direct"},
                filtered=partition.filter is not None,
                wide=wide,
                messages=end - start,
                matching=count if count is not None else (end - start) // self._per_stream,
                site=self._survey.site(info),
                amid=behind >= 2 * (end - start),
            )

        if options.read_mode == "auto" and info.retention == "limits":
            mode = cheapest("own", "direct")
            group = options.priority_group
            if mode == "own" and not self._survey.may_own(partition.stream, self._infos, group):
                mode = cheapest("direct")
            if mode != "consumer":
                return mode
        if not self._warned and wide:
            self._warned = True
            logger.warning(
                "stream=%s filter=%s: this filter costs the server ten times a plain read, because"
                " the stream has %d subjects and a backlog of %d. That is so at each backlog;"
                " a stream for each partition has no such cost (`pyspark-jetstream partition`)",
                info.name, partition.filter, info.num_subjects, behind,
            )  # fmt: skip
        return "consumer"

    @property
    def _per_stream(self) -> int:
        """Number of partitions that one template makes of a stream."""
        return len(self._layout) if self._layout.partition_subject is not None else 1

    def _is_wide(self, partition: SubjectPartition, start: int) -> bool:
        """Whether the server reads a partition from `start` on at much greater cost than all."""
        info = self._infos[partition.stream]
        behind, is_filtered = info.last_seq - start, partition.filter is not None
        return planning.wide_filter(is_filtered, self._per_stream, behind, info.num_subjects)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────

    def tasks(self, plan: Plan, is_deep: bool, logged: tuple[Offset, Offset]) -> list[ReadTask]:
        """
        The tasks of a batch.

        Args:
            is_deep: amid a backlog far away: see `looks_along`.
            logged: where the batch begins and ends with the streams that are gone by now.
        """
        unseen = self.looks_along(plan, is_deep)
        if self._options.read_mode == "direct" or plan.end.split:
            return self._range_tasks(plan, unseen, logged)
        connection, busy = self._options.connection, self._busy(plan)
        return [
            ReadTask(connection, self._work(p, plan, unseen) if p in busy else WarmUp())
            for p in self._moved(plan)
        ]

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
            if not (may_skip and self._survey.is_counted_by_look(plan.span(p), self._infos))
        }

    def usual_tasks(self, end: Offset) -> int:
        """Number of tasks of a batch that ends there, with few messages of each partition."""
        partitions = len(end.sequences)
        return -(-partitions // _STREAMS) if self._layout.is_several else partitions

    def splits(self, plan: Plan) -> bool:
        """Whether a batch is cut as options wish: if no partition needs its pinned consumer."""
        if self._options.min_partitions is self._options.max_records_per_partition is None:
            return False
        return all(info.allow_direct for info in self._infos.values()) and all(
            plan.modes[index] != "consumer" for index in self._busy(plan)
        )

    def _moved(self, plan: Plan) -> list[int]:
        """The partitions that get a task: by the offsets alone, so that a replay has the same."""
        return [
            p.index
            for p in self._layout
            if p.index not in plan.end.idle
            and plan.start.sequences[p.index] < plan.end.sequences[p.index]
        ]

    def _busy(self, plan: Plan) -> list[int]:
        """
        Of these the ones with something to read: what is left of a batch whose stream was made anew
        (`failOnDataLoss=false`, or another query has committed it).
        """
        created = plan.end.streams
        streams = [p.stream for p in self._layout]
        return [
            i for i in self._moved(plan) if self._infos[streams[i]].created == created[streams[i]]
        ]

    def _work(self, index: int, plan: Plan, unseen: bool) -> Work:
        if plan.modes[index] == "direct":
            return self._range_read(index, plan, unseen)
        partition = self._layout.partitions[index]
        info, span = self._infos[partition.stream], plan.span(partition)
        # A task that has come to its last message need not ask whether there are more.
        end = self._survey.lasts.get(span, span.end)
        pinned = self._durables.read_of(partition, plan.start, info, end, plan.counts[index])
        if plan.modes[index] == "consumer":
            return pinned
        # Where the filter is that dear, dropping rows is cheaper.
        filter_ = None if self._is_wide(partition, pinned.start) else partition.filter
        return by_own_consumer(pinned, self._layout, filter_)

    def _range_read(self, index: int | None, plan: Plan, unseen: bool) -> RangeRead:
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
            mark=self._infos[stream].mark,
            unseen=unseen,
            on_invalid_subject=self._options.on_invalid_subject,
            layout=layout,
        )

    def _range_tasks(
        self, plan: Plan, unseen: bool, logged: tuple[Offset, Offset]
    ) -> list[ReadTask]:
        """Contiguous ranges; what partitions share is read once."""
        layout, options = self._layout, self._options
        shared = (
            layout.shares_stream
            and len(set(plan.start.sequences)) == 1
            and len(set(plan.end.sequences)) == 1
        )
        busy: Sequence[int | None] = self._busy(plan)
        reads = [
            self._range_read(index, plan, unseen) for index in ([None] if shared and busy else busy)
        ]
        infos = self._infos
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
