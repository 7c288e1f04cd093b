"""Ranges of streams as tasks, each read by a consumer of its own or by direct get."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from .. import subjects
from ..errors import DataLossError, StreamNotFoundError
from ..fetch.dataloss import report_loss
from ..fetch.layout import Layout, Slice, split_range
from ..fetch.own import GROUP
from ..sanitize import get_logger

if TYPE_CHECKING:
    import pyarrow as pa

    from ..client.connection import Client
    from ..client.info import StreamInfo
    from ..fetch.options import StreamOptions
    from ..fetch.survey import Survey

logger = get_logger(__name__)

_TASK_SEQUENCES: Final = 10_000
"""Ranges of several streams that have more in sum are no one task."""

DIRECT_COST: Final = 2.7
"""One message by batched direct get without a filter, in microseconds of the server's CPU."""

FILTERED_COST: Final = 50.0
"""One message where a wide filter is looked up subject by subject."""


@dataclass(frozen=True, slots=True)
class RangeRead(Slice):
    """A range, and which partitions its subjects belong to."""

    layout: Layout = field(repr=False, kw_only=True)
    group: str = ""
    """
    The priority group of the consumer of the attempt's own by which it is read; "" by direct get.
    """

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows; the rest by direct get where the server makes no consumer for this user."""
        from ..fetch.decoding.rows import RowBuilder  # what plans reads nothing

        builder = RowBuilder.of(self, self.layout)
        if not self.group:
            from ..fetch.directget import read_direct

            yield from read_direct(client, self, builder)
            return
        from ..fetch.pulling.alone import ConsumerRefusedError, OwnAttempt

        attempt = OwnAttempt(client, self, builder, self.group)
        try:
            yield from attempt.batches()
        except ConsumerRefusedError as error:
            logger.warning(
                "stream=%s: from sequence %d on the task reads by direct get, because it can make"
                " no consumer of its own. The rows are the same: %s",
                self.stream, attempt.last + 1, error,
            )  # fmt: skip
            left = None if self.expected is None else max(0, self.expected - attempt.rows)
            rest = replace(self, start=attempt.last, expected=left, group="")
            yield from rest.batches(client)


@dataclass(frozen=True, slots=True)
class Reads:
    """The work of a task of a stream read: ranges, one after the other."""

    reads: tuple[RangeRead, ...]

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            DataLossError: A stream was deleted (`failOnDataLoss`).
        """
        for read in self.reads:
            try:
                yield from read.batches(client)
            except StreamNotFoundError:
                what = f"the stream was deleted before it was read up to sequence {read.end}"
                error = DataLossError(read.stream, read.partition or 0, what)
                report_loss(error, read.fail_on_data_loss)


def range_reads(
    options: StreamOptions,
    survey: Survey,
    infos: Mapping[str, StreamInfo],
    reads: Sequence[RangeRead],
    wanted: int,
    group: str = GROUP,
) -> list[RangeRead]:
    """
    The reads cut into contiguous ranges of sequences, each with what it must find and its way.

    Args:
        infos: the streams; those that are gone are none of them.
        wanted: into how many all reads are cut, by their sequences; if there are as many
            reads, none is cut: the rows of a partition stay in order.
        group: the priority group of consumers.
    """
    sequences = max(1, sum(read.end - read.start for read in reads))
    found: list[RangeRead] = []
    for read in reads:
        length = read.end - read.start
        parts = -(-wanted * length // sequences) if wanted > len(reads) else 1
        most = options.cut.max_records_per_partition
        ranges = split_range(read.start, read.end, parts, most)
        filters = read.layout.filters(read.partition) if read.filter is None else (read.filter,)
        counts, info = [read.expected] * len(ranges), infos.get(read.stream)
        can_tell = info is not None and (survey.counts_exactly(info) or filters == (None,))
        if info is not None and (len(ranges) > 1 or (counts[0] is None and can_tell)):
            counts = survey.sums(read.stream, filters, ranges, infos)
        for piece in pieces(read, ranges, counts):
            messages = piece.expected
            is_own = info is not None and by_consumer(
                piece.end - piece.start if messages is None or piece.filter is None else messages,
                options.direct_below, info.retention, info.allow_direct,
            )  # fmt: skip
            found.append(replace(piece, group=group) if is_own else piece)
    return found


def by_consumer(messages: int, direct_below: int, retention: str, allow_direct: bool) -> bool:
    """
    Whether a task reads its range by a consumer of its own, else by batched direct get.

    Args:
        messages: in the range, or sequences where nobody has counted.
        direct_below: as `directBelow`.
    """
    return retention == "limits" and (messages >= direct_below or not allow_direct)


def filter_on_server(filter_: str | None, matching: int | None, sequences: int) -> bool:
    """
    Whether a direct read should let the server filter, rather than drop rows itself.

    A literal subject is an index lookup for the server; a wide filter must save enough messages.
    """
    if filter_ is None or subjects.is_literal(filter_):
        return filter_ is not None
    return matching is not None and matching * FILTERED_COST < sequences * DIRECT_COST


def pieces(
    read: RangeRead, ranges: Sequence[tuple[int, int]], counts: Sequence[int | None]
) -> list[RangeRead]:
    """
    `read` in ranges, with what each must find.

    What was there when `read` was counted and is not any more the first one misses: a stream loses
    its oldest messages.
    """
    expected = list(counts)
    if read.expected is not None and None not in counts:
        expected[0] = max(counts[0] or 0, read.expected - sum(count or 0 for count in counts[1:]))
    return [
        replace(read, start=low, end=high, expected=count)
        for (low, high), count in zip(ranges, expected, strict=True)
    ]


def together(
    reads: Sequence[RangeRead], most: int, there: Collection[str], longest: int | None
) -> list[Reads]:
    """
    Works of up to `most` reads, in their order, by their ranges alone. One of several has no more
    sequences than make it worth its start, nor than `longest` where that is given. Of streams
    nothing is read that are not `there`.
    """
    enough = min(longest or _TASK_SEQUENCES, _TASK_SEQUENCES)
    groups: list[list[RangeRead]] = []
    length = 0
    for read in reads:
        length += read.end - read.start
        if not groups or len(groups[-1]) >= most or length > enough:
            groups.append([])
            length = read.end - read.start
        groups[-1].append(read)
    return [Reads(tuple(read for read in group if read.stream in there)) for group in groups]
