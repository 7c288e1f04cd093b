"""
`spark.read.format("jetstream")`: a range of a stream, split into tasks by sequence.

Bounds are resolved to sequences once, on the driver, so all tasks of a read agree on them. The
range is read by batched direct get, or, where that costs the server less and the user may make
them, by consumers that belong to one attempt of a task alone. What a query's filters leave out is
not asked for where that spares the server (`narrowing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from ..client.connection import borrow
from ..client.info import StreamInfo
from ..errors import DataLossError, OptionError
from ..fetch.dataloss import report_loss
from ..fetch.layout import Layout, Span
from ..fetch.survey import Survey, check_direct, check_past, total
from ..tasks.ranges import RangeRead, filter_on_server, range_reads
from ..tasks.rows import ReadTask
from .narrowing import CLOCKS_S, shifted
from .options import RangeOptions
from .pushdown import NarrowedReader, TakesFilters

_TASK_SEQUENCES: Final = 500_000
"""Length of a task's range where neither minPartitions nor maxRecordsPerPartition is given."""


class JetStreamRangeReader(NarrowedReader):
    """Reads `startingOffsets` to `endingOffsets` of every partition."""

    _options: RangeOptions

    def partitions(self) -> Sequence[ReadTask]:
        """
        The tasks of the read.

        Raises:
            OptionError: Bounds that do not fit the stream; direct get is off.
            DataLossError: The range begins before the stream's first message.
        """
        options = self._options
        with borrow(options.connection, at_start=True) as client:
            survey = Survey(client, options)
            layout, infos = survey.layout, survey.streams()
            self._forget_keys(infos)
            for info in infos.values():
                check_direct(info)
                if options.bucket is not None:  # its bounds are those of a snapshot
                    check_past(info, None, {"upToTime": options.ending.moment})
            survey.check_coverage(infos)
            starts: Sequence[int]
            starts = survey.positions(options.starting, infos, "startingOffsets")
            ends: Sequence[int]
            end = "endingOffsets" if options.bucket is None else "upToSequence"
            ends = survey.positions(options.ending, infos, end, ending=True)
            self._check_order(layout, starts, ends)
            starts = tuple(self._first(layout, infos, starts))
            if not self.narrowing.everything:
                starts, ends = self._narrowed(survey, infos, starts, ends)
            return self._tasks(survey, infos, self._reads(survey, infos, starts, ends))

    def _check_order(self, layout: Layout, starts: Sequence[int], ends: Sequence[int]) -> None:
        options = self._options
        bounds = options.starting, options.ending
        given = [bool(each.sequences or each.moment or each.streams) for each in bounds]
        for partition, start, end in zip(layout, starts, ends, strict=True):
            if all(given) and start > end:
                number = layout.within(partition.index)[1]
                of = f" of stream '{partition.stream}'" if layout.is_several else ""
                raise OptionError(
                    "endingOffsets",
                    f"partition {number}{of} ends at sequence {end}, before it starts at"
                    f" {start + 1}",
                )

    def _tasks(
        self, survey: Survey, infos: Mapping[str, StreamInfo], reads: Sequence[RangeRead]
    ) -> list[ReadTask]:
        options = self._options
        sequences = max(1, sum(read.end - read.start for read in reads))
        wanted = options.cut.min_partitions or 0
        if not options.cut:
            wanted = max(len(reads), -(-sequences // _TASK_SEQUENCES))
        cut = range_reads(options, survey, infos, reads, wanted)
        return [ReadTask(options.connection, read) for read in cut]

    def _first(
        self, layout: Layout, infos: Mapping[str, StreamInfo], starts: Sequence[int]
    ) -> Iterator[int]:
        """Starts, moved to the first message where `failOnDataLoss` lets them."""
        fails = self._options.fail_on_data_loss
        for partition in layout:
            info, start = infos[partition.stream], starts[partition.index]
            first = max(0, info.first_seq - 1)
            if start < first and info.keeps_history:
                what = f"the read begins at sequence {start + 1}, the stream at {info.first_seq}"
                if fails:
                    what += "; begin there, or set failOnDataLoss=false"
                report_loss(DataLossError(info.name, partition.index, what), fails)
                start = first
            yield start

    def _reads(
        self,
        survey: Survey,
        infos: Mapping[str, StreamInfo],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> list[RangeRead]:
        """Ranges to read: each partition's, or a stream's where they have it in common."""
        layout, options = survey.layout, self._options
        whole = self._targets(layout, starts, ends)
        fewer = [
            (partition, replace(span, filter=filter_))
            for partition, span in whole
            for filter_ in self.narrowing.within([span.filter])
        ]
        targets = _counted(survey, infos, fewer)
        if fewer != whole and not all(by_server for _, _, _, by_server in targets):
            # The narrower filter costs the server more than it saves: read as without.
            targets = [
                (p, span, count, False) for p, span, count, _ in _counted(survey, infos, whole)
            ]
        bounds = {(s.start, s.end) for _, s, _, _ in targets}
        scans = [target for target in targets if not target[3]]
        is_named = layout.shares_stream and layout.partition_subject is None
        if is_named and len(whole) == len(layout) and len(scans) > 1 and len(bounds) == 1:
            # One pass over the stream for all filters that it takes one for.
            count = total([count for _, _, count, _ in targets])
            targets = [(None, replace(scans[0][1], filter=None), count, False)]
        parts = [layout.within(p) if p is not None else (layout, None) for p, *_ in targets]
        return [
            RangeRead(
                partition=number,
                stream=span.stream,
                filter=span.filter if by_server else None,
                start=span.start,
                end=span.end,
                expected=count,
                # Markers show in the headers.
                include_headers=options.needs_headers or options.drop_markers,
                fail_on_data_loss=options.fail_on_data_loss,
                on_invalid_subject=options.on_invalid_subject,
                layout=part,
            )
            for (_, span, count, by_server), (part, number) in zip(targets, parts, strict=True)
        ]

    def _targets(
        self, layout: Layout, starts: Sequence[int], ends: Sequence[int]
    ) -> list[tuple[int | None, Span]]:
        """The partitions that a query needs; None for all of a stream that share bounds."""
        numbers = self.narrowing.partitions
        wanted = [p for p in layout if layout.within(p.index)[1] in numbers]
        together = (
            layout.partition_subject is not None
            and len(wanted) == len(layout)
            and len(set(zip(starts, ends, strict=True))) == 1
        )
        spans: list[tuple[int | None, Span]] = [
            (p.index, Span(p.stream, p.filter, starts[p.index], ends[p.index])) for p in wanted
        ]
        if together:
            spans = [(None, Span(layout.streams[0], layout.union_filter, starts[0], ends[0]))]
        return [(partition, span) for partition, span in spans if span.start < span.end]

    def _narrowed(
        self,
        survey: Survey,
        infos: Mapping[str, StreamInfo],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> tuple[list[int], list[int]]:
        """The bounds, as far as the query's filters reach."""
        narrowing, margin = self.narrowing, timedelta(seconds=CLOCKS_S)
        starts = [max(start, narrowing.sequences.low - 1) for start in starts]
        ends = [min(end, narrowing.sequences.high) for end in ends]
        if narrowing.since is not None:
            since = survey.before(shifted(narrowing.since, -margin), infos)
            starts = [max(starts[p.index], since[p.stream]) for p in survey.layout]
        if narrowing.until is not None:
            until = survey.before(shifted(narrowing.until, margin), infos)
            ends = [min(ends[p.index], until[p.stream]) for p in survey.layout]
        return starts, ends


def _counted(
    survey: Survey, infos: Mapping[str, StreamInfo], spans: Sequence[tuple[int | None, Span]]
) -> list[tuple[int | None, Span, int | None, bool]]:
    """Spans with messages: how many these are, and whether the server is to filter them."""
    counts = survey.counts([span for _, span in spans], infos)
    return [
        (p, span, count, filter_on_server(span.filter, count, span.end - span.start))
        for (p, span), count in zip(spans, counts, strict=True)
        if count != 0
    ]


class FilteredRangeReader(TakesFilters, JetStreamRangeReader):
    """A range reader that takes the filters of a query."""
