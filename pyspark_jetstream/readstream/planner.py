"""
The plan of one batch: its end, the messages of each partition, and the tasks that read them.

Partitions of one stream that stand at one place are read in one pass over the stream where that is
cheaper: a short range by one task instead of one each, and a backlog that the server finds dear to
filter. Else each partition is a task.

A batch ends where its run does (`RunEnd`), or before that by the limits of the options. The offsets
alone decide which tasks there are, so a replay has the same ones, whatever streams are there by
then (`failOnDataLoss=false`). The server is asked through `survey`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..client.info import StreamInfo
from ..errors import OptionError
from ..fetch.layout import Layout, Span
from ..fetch.survey import Survey, total
from ..sanitize import get_logger
from ..tasks.ranges import RangeRead, range_reads, together
from ..tasks.rows import ReadTask
from .offsets import Offset
from .options import SourceOptions

if TYPE_CHECKING:
    from .watched import WatchedStreams

logger = get_logger(__name__)

_STREAMS: Final = 16
"""Streams of several that a task reads at the most, where each has few messages."""

NEAR_END: Final = 10_000
"""Sequences before the end of a stream within which its store finds the next match by a scan."""

FEW_SUBJECTS: Final = 32
"""Matching subjects up to which, about, the store looks the next match up as fast as by a scan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: for each partition how many messages it holds, None where nobody has counted."""

    start: Offset
    end: Offset
    counts: tuple[int | None, ...]


def messages_in(size: int, infos: Mapping[str, StreamInfo]) -> int:
    """Number of average messages of the streams in `size` bytes; one at least."""
    messages = sum(info.messages for info in infos.values())
    average = sum(info.bytes for info in infos.values()) / max(1, messages)
    return max(1, int(size / max(1.0, average)))


def at_most(counts: Sequence[int | None], start: Offset, upto: Sequence[int]) -> list[int]:
    """Messages of each partition; where nobody has counted, sequences."""
    each = zip(counts, start.sequences, upto, strict=True)
    return [max(0, end - at) if count is None else count for count, at, end in each]


def share_records(available: Sequence[int], limit: int) -> list[int]:
    """
    Splits `limit` in proportion to what is available, as Kafka's source does: so partitions of
    steady rates go through a backlog together, and a watermark finds no rows of one late.

    Each that has messages gets one at least, so none starves; where more have some than `limit`,
    the sum exceeds it.
    """
    everything = sum(available)
    if everything <= limit:
        return list(available)
    granted, seen, shared = [], 0, 0
    for count in available:
        seen += count
        before, shared = shared, limit * seen // everything
        granted.append(max(min(1, count), shared - before))
    return granted


def is_dear(partitions: int, behind: int, num_subjects: int) -> bool:
    """
    Whether the server reads a partition of a filtered layout at a greater cost than its whole
    stream: far from the stream's end it looks the next match up subject by subject.
    """
    return behind > NEAR_END and num_subjects / partitions > FEW_SUBJECTS


class RunEnd:
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
        self._ending = options.ending
        self._streams: dict[str, int] | None = None
        """By stream the last sequence of a run that ends at what is there."""

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
        named = self._ending.of(partition, stream)
        return min(last_seq, named) if isinstance(named, int) else last_seq

    def fixed(self, layout: Layout) -> dict[int, int]:
        """By partition of a layout the sequence beyond which it is not read."""
        named = {p.index: self._ending.of(p.index, p.stream) for p in layout}
        return {index: last for index, last in named.items() if isinstance(last, int)}


class BatchPlanner:
    """Plans the batches of one query, and makes their tasks."""

    def __init__(self, options: SourceOptions, survey: Survey, watched: WatchedStreams) -> None:
        self._options = options
        self._survey = survey
        self._watched = watched

    @property
    def _infos(self) -> Mapping[str, StreamInfo]:
        return self._watched.infos

    def counts(self, start: Offset, upto: Sequence[int]) -> list[int | None]:
        """Messages of each partition from `start` to `upto`; None where the server cannot tell."""
        spans = [
            Span(p.stream, p.filter, start.sequences[p.index], upto[p.index]) for p in start.layout
        ]
        return self._survey.counts(spans, self._infos)

    def available(self, start: Offset, upto: Sequence[int]) -> list[int | None]:
        """
        Messages of each partition from `start` to `upto`; None where the server cannot tell. Where
        one pass brings them the first number is that of all, and the others are None.
        """
        limit = self._maximum() or self._options.direct_below
        is_counted = self._options.min_records is not None
        if self._is_short(start, upto) and upto[0] - start.sequences[0] <= limit and not is_counted:
            stream, of = start.layout.streams[0], start.layout.union_filter
            span = Span(stream, of, start.sequences[0], upto[0])
            (count,) = self._survey.counts([span], self._infos)
            return [count, *[0 if count == 0 else None] * (len(start.layout) - 1)]
        return self.counts(start, upto)

    def plan(self, start: Offset, end: Offset, counts: Sequence[int | None]) -> Plan:
        """The batch between two offsets, which is not planned yet."""
        idle = frozenset(index for index, count in enumerate(counts) if count == 0)
        one_pass = self._is_together(start, end.sequences) and (
            bool(self._options.cut)
            or self._is_short(start, end.sequences)
            or self._is_dear(start, 0)
        )
        return Plan(start, replace(end, idle=idle, one_pass=one_pass), tuple(counts))

    def _is_together(self, start: Offset, ends: Sequence[int]) -> bool:
        """Whether the partitions are filters on one stream, all at the same range of it."""
        at_one = len(set(start.sequences)) == 1 and len(set(ends)) == 1
        return start.layout.shares_stream and at_one

    def _is_short(self, start: Offset, ends: Sequence[int]) -> bool:
        """Whether one task reads what comes of all partitions as soon as each would its own."""
        return (
            self._is_together(start, ends)
            and start.layout.partition_subject is not None
            and ends[0] - start.sequences[0] < self._options.direct_below
        )

    def _is_dear(self, start: Offset, index: int) -> bool:
        """Whether the server reads a partition from there at a greater cost than its stream."""
        partition = start.layout.partitions[index]
        if partition.filter is None:
            return False
        info = self._infos[partition.stream]
        behind = info.last_seq - start.sequences[index]
        return is_dear(len(start.layout), behind, info.num_subjects)

    def _maximum(self) -> int | None:
        """The limit of a batch in messages."""
        maximum, max_bytes = self._options.max_records, self._options.max_bytes
        if max_bytes is not None:
            by_bytes = messages_in(max_bytes, self._infos)
            maximum = by_bytes if maximum is None else min(maximum, by_bytes)
        return maximum

    def cut_end(self, start: Offset, upto: Sequence[int], there: Sequence[int | None]) -> Offset:
        """
        The end of the next batch within the limits of the options, which partitions share.

        Where all partitions of one stream stand at the same place, and go to the same, they advance
        together, to one sequence: one question to the server instead of one each, and none falls
        behind another.
        """
        counts, maximum, ends = at_most(there, start, upto), self._maximum(), list(upto)
        is_one = self._is_together(start, upto)
        length = min(sum(counts), upto[0] - start.sequences[0]) if is_one else sum(counts)
        if maximum is None or length <= maximum:
            return start.at(tuple(upto))
        layout = start.layout
        is_one = is_one and layout.partition_subject is not None
        groups = [list(layout)] if is_one else [[partition] for partition in layout]
        of_groups = [sum(counts[p.index] for p in group) for group in groups]
        shares = share_records(of_groups, maximum)
        for group, held, granted in zip(groups, of_groups, shares, strict=True):
            first = group[0]
            cut = upto[first.index]
            if granted < held:
                of = layout.union_filter if is_one else first.filter
                span = Span(first.stream, of, start.sequences[first.index], cut)
                cut = self._survey.cut(span, held, granted, self._infos)
            for partition in group:
                ends[partition.index] = cut
        return start.at(tuple(ends))

    # ── tasks ────────────────────────────────────────────────────────────────────────────────

    def tasks(self, plan: Plan) -> list[ReadTask]:
        """
        The tasks of a batch, in the order of their partitions and ranges. Those of streams that are
        gone by now, or were made anew, are there and read nothing.
        """
        options, created = self._options, plan.end.streams
        there = {n: info for n, info in self._infos.items() if info.created == created.get(n)}
        reads = [self._range_read(index, plan) for index in self._moved(plan)]
        if plan.end.one_pass and reads:
            reads = [self._range_read(None, plan)]
        wanted = options.cut.min_partitions or 0
        cut = range_reads(options, self._survey, there, reads, wanted, options.priority_group)
        most = 1
        if plan.end.layout.is_several:
            most = min(max(1, len(cut) // (options.cut.min_partitions or 1)), _STREAMS)
        works = together(cut, most, there, options.cut.max_records_per_partition)
        return [ReadTask(options.connection, work) for work in works]

    def _moved(self, plan: Plan) -> list[int]:
        """The partitions that get a task: by the offsets alone, so that a replay has the same."""
        return [
            p.index
            for p in plan.end.layout
            if p.index not in plan.end.idle
            and plan.start.sequences[p.index] < plan.end.sequences[p.index]
        ]

    def _range_read(self, index: int | None, plan: Plan) -> RangeRead:
        """Partition `index` of the batch, or with None all partitions of the one stream."""
        at = index or 0
        partition = plan.end.layout.partitions[at]
        layout, number = plan.end.layout.within(at)
        is_filtered = index is not None and not self._is_dear(plan.start, at)
        return RangeRead(
            partition=number if index is not None else None,
            stream=partition.stream,
            filter=partition.filter if is_filtered else None,
            start=plan.start.sequences[at],
            end=plan.end.sequences[at],
            expected=plan.counts[at] if index is not None else total(plan.counts),
            include_headers=self._options.needs_headers,
            fail_on_data_loss=self._options.fail_on_data_loss,
            on_invalid_subject=self._options.on_invalid_subject,
            layout=layout,
        )
