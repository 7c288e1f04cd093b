"""
`spark.read` with `multiLast`: the last message of every subject, all as of one sequence, the point.

The driver fixes the point and chooses the way in which tasks find the messages (`snapshotread`).
Costs are of server and client together, measured on nats-server 2.15.1.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from .. import subjects
from ..client.connection import borrow
from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import SnapshotLossError
from ..fetch.dataloss import report_loss
from ..fetch.layout import Layout, split_range, stored_keys
from ..fetch.survey import Survey, check_direct, check_past, check_subjects
from ..sanitize import get_logger
from ..tasks.rows import ReadTask
from ..values import Moment
from .narrowing import Interval
from .options import SnapshotOptions
from .pushdown import NarrowedReader, TakesFilters
from .snapshotread import MOST_NAMES, BackRead, NamedRead, Point, PointRead, WholeRead

logger = get_logger(__name__)

_MOST_IN_MEMORY: Final = 1_000
"""
The same of a stream in memory, where to look up one that changed since takes as long as there are
subjects.
"""

_BY_NAME: Final = 3
"""
Messages a subject from which on names are cheaper: one is looked up in 20 µs, and a message read
back in 7.
"""

_BY_NAME_PAST: Final = 22
"""The same of a point in the past, where one that changed since is looked up in 150 µs."""

_TASK_MESSAGES: Final = 50_000


class JetStreamSnapshotReader(NarrowedReader):
    """Reads the last message of every subject at one point."""

    _options: SnapshotOptions

    def partitions(self) -> Sequence[ReadTask]:
        """
        The tasks of the read.

        Raises:
            OptionError: The bound lies in the future, a filter matches nothing that the stream
                takes, or direct get is off.
            SnapshotLossError: The stream no longer holds what it held then (`failOnDataLoss`).
        """
        options = self._options
        with borrow(options.connection, at_start=True) as client:
            survey = Survey(client, options)
            layout, infos = survey.layout, survey.streams()
            self._forget_keys(infos)
            for info in infos.values():
                check_direct(info)
            if len(infos) == 1:
                option = "multiLast" if options.bucket is None else "bucket"
                filters = stored_keys(options.bucket, info.is_filled, options.filters)
                check_subjects(survey.js, info, option, filters)
            works: list[PointRead] = []
            at = {} if layout.partition_subject else {p.stream: p.index for p in layout}
            for stream in layout.streams:
                part, number = layout.within(at[stream]) if stream in at else (layout, None)
                if number is None or number in self.narrowing.partitions:
                    works += self._works(survey, stream, part, number)
            return [ReadTask(options.connection, work) for work in works]

    def _works(
        self, survey: Survey, stream: str, layout: Layout, partition: int | None
    ) -> list[PointRead]:
        """The tasks of one stream."""
        options, js = self._options, survey.js
        info = js.stream_info(stream)
        asked = bound(js, info, options.up_to_sequence, options.up_to_time)
        end = info.last_seq if asked is None else asked
        is_past = end < info.last_seq
        if is_past and info.origin <= end < info.first_seq:
            what = (
                f"nothing at or below sequence {end} is left, it begins at {info.first_seq} now;"
                " ask for a later point, or go on with failOnDataLoss=false"
            )
            report_loss(SnapshotLossError(stream, 0, what, ()), options.fail_on_data_loss)
        filters = self._filters(layout, partition, info.is_filled)
        if not filters or end < info.first_seq or not info.messages:
            return []
        point = Point(end, info.created, None, is_past)
        common: dict[str, Any] = {
            "partition": partition,
            "stream": stream,
            "filter": None,
            "start": max(0, info.first_seq - 1),
            "end": end,
            "expected": 0,
            # Markers show in the headers.
            "include_headers": options.needs_headers or options.drop_markers,
            "fail_on_data_loss": options.fail_on_data_loss,
            "on_invalid_subject": options.on_invalid_subject,
            "layout": layout,
        }
        way = choose_way(js, info, filters, point)
        logger.info("stream=%s snapshot as_of=%d by=%s", stream, end, way)
        if way == "whole":
            return self._whole(survey, info, point, common)
        if way == "names":
            last, names = _names(js, stream, filters)
            if names is not None:
                held = None if is_past else js.stream_info(stream).last_seq
                point = Point(end if asked is not None else last, info.created, held, is_past)
                common |= {"end": point.sequence, "point": point}
                packed = [zlib.compress("\n".join(part).encode(), 1) for part in self._cut(names)]
                return [NamedRead(**common, names=each) for each in packed]
        if not is_past:
            point = replace(point, held=info.num_subjects)
        return [BackRead(**common, point=point, filters=filters)]

    def _filters(self, layout: Layout, partition: int | None, is_filled: bool) -> tuple[str, ...]:
        """Filters of what the query needs."""
        narrowing = self.narrowing
        given = stored_keys(self._options.bucket, is_filled, self._options.filters)
        filters = [each for each in narrowing.within(given) if each is not None]
        if partition is None and narrowing.partitions != Interval():
            wanted = [p.filter or ">" for p in layout if p.index in narrowing.partitions]
            of_each = (subjects.intersection(a, b) for a in filters for b in wanted)
            filters = list(dict.fromkeys(each for each in of_each if each is not None))
        return tuple(filters)

    def _whole(
        self, survey: Survey, info: StreamInfo, point: Point, common: dict[str, Any]
    ) -> list[PointRead]:
        """A stream that has one message a subject, by its sequences."""
        start, end = common["start"], point.sequence
        parts = self._parts(info.messages)
        ranges = split_range(start, end, parts, None)
        sums = survey.sums(info.name, (None,), ranges, {info.name: info})
        counts = [count or 0 for count in sums]
        # What has left by now the first one misses.
        counts[0] += max(0, info.messages - sum(counts))
        return [
            WholeRead(**common | {"start": low, "end": high}, point=replace(point, held=count))
            for (low, high), count in zip(ranges, counts, strict=True)
        ]

    def _cut(self, names: list[str]) -> list[list[str]]:
        ranges = split_range(0, len(names), self._parts(len(names)), None)
        return [names[low:high] for low, high in ranges]

    def _parts(self, rows: int) -> int:
        """Tasks for so many rows."""
        cut = self._options.cut
        longest = cut.max_records_per_partition or (rows if cut.min_partitions else _TASK_MESSAGES)
        return max(cut.min_partitions or 1, -(-rows // longest))


class FilteredSnapshotReader(TakesFilters, JetStreamSnapshotReader):
    """A snapshot reader that takes the filters of a query."""


def bound(
    js: JetStream, info: StreamInfo, up_to_sequence: int | None, up_to_time: Moment | None
) -> int | None:
    """
    The sequence that was asked for, None for the stream's end.

    A moment stands for the last sequence stored before it.

    Raises:
        OptionError: It lies in the future.
    """
    check_past(info, up_to_sequence, {"upToTime": up_to_time})
    if up_to_time is None:
        return up_to_sequence
    following = js.message_get(info.name, start_time=up_to_time.rfc3339(info.now))
    if following is not None and following.sequence == info.origin:
        logger.warning(
            "stream=%s: upToTime '%s' lies before its first message, so the snapshot has no rows",
            info.name, up_to_time.text,
        )  # fmt: skip
    # ADR-31 leaves it open; the server takes a message of that very moment for a later one.
    return following.sequence - 1 if following is not None else info.last_seq


# ── ways ─────────────────────────────────────────────────────────────────────────────────────


def choose_way(
    js: JetStream, info: StreamInfo, filters: Sequence[str], point: Point
) -> Literal["whole", "names", "back"]:
    """The cheapest way to a snapshot, as `snapshotread` has them."""
    is_all = takes_all(filters, info)
    if is_all and info.messages == info.num_subjects and not point.is_past:
        return "whole"
    size = info.num_subjects if is_all else _matching(js, info, filters)
    most = _MOST_IN_MEMORY if info.config.get("storage") == "memory" else MOST_NAMES
    length = info.last_seq - info.first_seq + 1
    messages = info.messages * (point.sequence - info.first_seq + 1) // length
    least = size * (_BY_NAME_PAST if point.is_past else _BY_NAME)
    return "names" if size <= most and least < messages else "back"


def takes_all(filters: Sequence[str], info: StreamInfo) -> bool:
    """Whether each message that the stream can hold matches one of these filters."""
    if subjects.REST in filters:
        return True
    taken: list[str] = info.config.get("subjects") or []
    return bool(taken and not info.is_filled) and all(
        any(subjects.covers(filter_, subject) for filter_ in filters) for subject in taken
    )


def _matching(js: JetStream, info: StreamInfo, filters: Sequence[str]) -> int:
    """At most how many subjects match."""
    wild = [filter_ for filter_ in filters if not subjects.is_literal(filter_)]
    firsts = js.next_messages([(info.name, {"seq": 1, "next_by_subj": each}) for each in wild])
    matching = sum(first.pending + 1 for first in firsts if first is not None)
    return min(info.num_subjects, matching + len(filters) - len(wild))


def _names(js: JetStream, stream: str, filters: Sequence[str]) -> tuple[int, list[str] | None]:
    """
    The stream's end, and the subjects that match; None if one is no UTF-8, which has no name in
    JSON that it could be looked up by.
    """
    last, pages = js.listed(stream, filters)
    names: dict[str, None] = {}
    for page in pages:
        if any("\ufffd" in name for name in page):
            return last, None
        names |= dict.fromkeys(page)
    return last, list(names)
