"""
The plan of one micro-batch: its end, the messages of each partition, the way each is read.

Asks the server through `survey`, decides with `planning`. Must not know Spark: `reader` turns a
plan into tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..client.info import StreamInfo
from ..fetch import planning
from ..fetch.layout import SubjectPartition
from ..fetch.survey import Span, Survey
from ..sanitize import get_logger
from .offsets import Offset
from .options import SourceOptions

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: for each partition how many messages it holds (None: unknown) and its mode."""

    start: Offset
    end: Offset
    counts: tuple[int | None, ...]
    modes: tuple[planning.ReadMode, ...]

    def is_around(self, index: int) -> bool:
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


class BatchPlanner:
    """Plans the batches of one query."""

    def __init__(self, survey: Survey, options: SourceOptions) -> None:
        self._survey = survey
        self._options = options
        self._warned = False

    def available(
        self,
        start: Offset,
        upto: Sequence[int],
        infos: Mapping[str, StreamInfo],
        quiet: Collection[int] = (),
    ) -> list[int | None]:
        """
        Messages of each partition from `start` to `upto`; None where the server cannot tell.

        Args:
            quiet: the partitions that seem to have none.
        """
        return self._survey.counts(
            [
                Span(p.stream, p.filter, start.sequences[p.index], upto[p.index])
                for p in self._survey.layout
            ],
            infos,
            quiet,
        )

    def end(
        self,
        start: Offset,
        upto: Sequence[int],
        available: Sequence[int | None],
        infos: Mapping[str, StreamInfo],
    ) -> Offset:
        """The end of the next batch within the limits of the options."""
        known = [
            count if count is not None else upto[p] - start.sequences[p]
            for p, count in enumerate(available)
        ]
        maximum = self._maximum(infos)
        if maximum is None or sum(known) <= maximum:
            return start.at(tuple(upto))
        return start.at(self._cut(start, upto, known, maximum, infos))

    def plan(
        self,
        start: Offset,
        end: Offset,
        infos: Mapping[str, StreamInfo],
        counts: Sequence[int | None] | None = None,
    ) -> Plan:
        """The batch between two offsets, counted and with a mode for each partition."""
        if counts is None:
            counts = self.available(start, end.sequences, infos)
        modes = tuple(
            self._mode(p, start.sequences[p.index], end.sequences[p.index], counts[p.index], infos)
            for p in self._survey.layout
        )
        idle = tuple(index for index, count in enumerate(counts) if count == 0)
        return Plan(start, replace(end, idle=idle), tuple(counts), modes)

    def is_deep(
        self, plan: Plan, available: Sequence[int | None], infos: Mapping[str, StreamInfo]
    ) -> bool:
        """
        Whether as much as the plan holds is left behind it, and no retention but `limits` has to be
        known at each moment: then the next batch can be planned by what was seen for this one.
        """
        planned, there = [0 if c is None else c for c in plan.counts], list(available)
        if None in there or any(info.retention != "limits" for info in infos.values()):
            return False
        return sum(c or 0 for c in there) >= 2 * sum(planned) > 0

    def _maximum(self, infos: Mapping[str, StreamInfo]) -> int | None:
        """The limit of a batch in messages."""
        maximum, max_bytes = self._options.max_records, self._options.max_bytes
        if max_bytes is not None:
            by_bytes = messages_in(max_bytes, infos)
            maximum = by_bytes if maximum is None else min(maximum, by_bytes)
        return maximum

    def _cut(
        self,
        start: Offset,
        upto: Sequence[int],
        counts: Sequence[int],
        maximum: int,
        infos: Mapping[str, StreamInfo],
    ) -> tuple[int, ...]:
        """
        Ends that share `maximum` messages among the partitions.

        Where all partitions of one stream stand at the same place, and go to the same, they advance
        together, to one sequence: one question to the server instead of one each, and none falls
        behind another.
        """
        layout = self._survey.layout
        together = (
            layout.partition_subject is not None
            and len(set(start.sequences)) == 1
            and len(set(upto)) == 1
        )
        groups: list[list[SubjectPartition]] = (
            [list(layout)] if together else [[partition] for partition in layout]
        )
        available = [sum(counts[p.index] for p in group) for group in groups]
        ends = list(upto)
        wanted: list[tuple[Span, int, int]] = []
        cut_groups: list[list[SubjectPartition]] = []
        for group, there, granted in zip(
            groups, available, planning.share_records(available, maximum), strict=True
        ):
            if granted >= there:
                continue
            first = group[0]
            low, high = start.sequences[first.index], upto[first.index]
            of = layout.union_filter if together else first.filter
            if granted > 0:
                wanted.append((Span(first.stream, of, low, high), there, granted))
                cut_groups.append(group)
            for partition in group:
                ends[partition.index] = low
        for group, cut in zip(cut_groups, self._survey.cuts(wanted, infos), strict=True):
            for partition in group:
                ends[partition.index] = cut
        return tuple(ends)

    def _mode(
        self,
        partition: SubjectPartition,
        start: int,
        end: int,
        count: int | None,
        infos: Mapping[str, StreamInfo],
    ) -> planning.ReadMode:
        options, info, layout = self._options, infos[partition.stream], self._survey.layout
        if options.read_mode == "direct":
            return "direct"
        sharing = len(layout) if layout.partition_subject is not None else 1
        behind = info.last_seq - start
        wide = planning.wide_filter(
            partition.filter is not None, sharing, behind, info.num_subjects
        )

        def cheapest(*ways: planning.ReadMode) -> planning.ReadMode:
            return planning.choose_mode(
                ways=ways if info.allow_direct else {*ways} - {"direct"},
                filtered=partition.filter is not None,
                wide=wide,
                messages=end - start,
                matching=count if count is not None else (end - start) // sharing,
                site=self._survey.site(info),
                amid=behind >= 2 * (end - start),
            )

        if options.read_mode == "auto" and info.retention == "limits":
            mode = cheapest("own", "direct")
            group = options.priority_group
            if mode == "own" and not self._survey.may_own(partition.stream, infos, group):
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

    def filter_of(self, partition: SubjectPartition, start: int, info: StreamInfo) -> str | None:
        """The filter with which an own consumer reads; None where dropping rows is cheaper."""
        layout = self._survey.layout
        sharing = len(layout) if layout.partition_subject is not None else 1
        behind = info.last_seq - start
        is_wide = planning.wide_filter(
            partition.filter is not None, sharing, behind, info.num_subjects
        )
        return None if is_wide else partition.filter
