"""The task of a read: Spark sends it to an executor, where it becomes rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from .client.connection import Client, borrow
from .client.jetstream import JetStream
from .client.options import ConnectionOptions
from .errors import DataLossError, JetStreamError, ReadError, StreamNotFoundError
from .fetch import planning
from .fetch.consumer import ConsumerRead
from .fetch.dataloss import History, report_loss
from .fetch.decoding.keys import keyed
from .fetch.decoding.markers import without_markers
from .fetch.decoding.rows import RowBuilder, kept
from .fetch.directget import DirectRead, read_direct
from .fetch.layout import Layout, Slice
from .fetch.own import GROUP, ConsumerRefusedError, Own, OwnAttempt
from .logs import log_for
from .sanitize import get_logger
from .subjects import matcher, partition_wildcard
from .worker import settle

_TASK_SEQUENCES: Final = 10_000
"""Ranges of several streams that have more in sum are no one task."""

_KNOWN_SUBJECTS: Final = 200_000
"""Subjects whose numbers a task remembers."""

if TYPE_CHECKING:
    from .client.info import StreamInfo
    from .fetch.options import RowExtent, StreamOptions
    from .fetch.survey import Survey

logger = get_logger(__name__)

COUNT: Final = pa.field("count", pa.decimal128(38, 0))
_INCREMENT: Final = "Nats-Incr"
"""Header of a counter's messages alone: other streams take none with it."""

_SUM: Final = r'^\{"val":"(?P<count>-?[0-9]+)"\}$'
"""The payload of a message of a counter (ADR-49)."""


class Work(Protocol):
    """The range and the way of one task's read; a small dataclass, for it travels pickled."""

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows, as record batches bounded in rows and bytes."""
        ...


class ReadTask(InputPartition):
    """One Spark task: where to connect, and what to read there."""

    def __init__(self, connection: ConnectionOptions, work: Work) -> None:
        super().__init__(None)
        self.connection = connection
        self.work = work

    def __repr__(self) -> str:
        return f"<ReadTask {self.work}>"


def read_task(task: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of one task; Spark makes a task of None where there are no partitions."""
    if isinstance(task, ReadTask):
        log_for(task.connection.log_level)
        with borrow(task.connection) as client:
            yield from kept(task.work.batches(client))
        settle()


class Numbers(NamedTuple):
    """The column `partition` of several streams: the stream's number, or the subject's."""

    streams: Mapping[str, int]
    """By name; 0 for any other."""
    template: str | None
    """With it the subject has the number: 0 for one of another form, null where none stands."""
    partitions: int

    @classmethod
    def of(cls, options: StreamOptions) -> Numbers | None:
        """None where no options say a number."""
        several, template = options.several, options.partition_subject
        if several is None or not (several.numbers or template):
            return None
        return cls(several.numbers, template, options.partitions or 1)

    def number(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with that column."""
        if self.template is None:
            return numbered(batches, "stream", lambda name: self.streams.get(name, 0))
        classify = Layout.of_filters("", self.template, self.partitions).classifier()
        assert classify is not None
        inside = matcher(partition_wildcard(self.template))
        known = lru_cache(_KNOWN_SUBJECTS)(lambda each: classify(each) if inside(each) else 0)
        return numbered(batches, "subject", known)


class TaskRows(NamedTuple):
    """The part of a reader that its tasks need: how messages become the rows of the read."""

    extent: RowExtent
    include_headers: bool
    numbers: Numbers | None = None
    is_keyed: bool = False
    """Whether rows are those of a Key-Value bucket."""
    drop_markers: bool = False
    ends: bool = False
    """Whether the history of a range is looked at when it is read: no later batch looks."""
    stream: str | None = None
    """Name in the column `stream` where a mirror of that stream is read; else None."""

    @classmethod
    def of(cls, options: StreamOptions, drop_markers: bool = False, ends: bool = False) -> TaskRows:
        """The rows of a read with these options."""
        is_keyed = options.bucket is not None
        numbers = Numbers.of(options)
        return cls(options.extent, options.include_headers, numbers, is_keyed, drop_markers, ends)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        rows = read_task(partition)
        if self.is_keyed:
            yield from keyed(rows, self.include_headers, self.drop_markers)
            return
        rows = self._trimmed(rows)
        yield from rows if self.numbers is None else self.numbers.number(rows)
        if (
            self.ends
            and isinstance(partition, ReadTask)
            and isinstance(partition.work, RangeRead | OwnRead)
        ):
            with borrow(partition.connection) as client:
                History(JetStream(client), partition.work).end()

    def _trimmed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Batches with the rows (`dropMarkers`, `headerFilter`) and columns that the read has: `count`
        behind the others (`includeCount`), and `data` not with `includeData=false`. Headers, which
        all of them go by, stay if `includeHeaders` wants them.

        Raises:
            ReadError: A counter has more digits than a DECIMAL.
        """
        extent = self.extent
        for batch in batches:
            if self.stream is not None:
                at = batch.schema.get_field_index("stream")
                name = pa.scalar(self.stream, batch.schema.field(at).type)
                names = pa.repeat(name, batch.num_rows)
                batch = batch.set_column(at, batch.schema.field(at), names)
            if self.drop_markers:
                batch = without_markers(batch)
            if extent.header_filter is not None:
                batch = batch.filter(_have(batch, *extent.header_filter))
            counts = _count(batch) if extent.include_count else None
            if not self.include_headers and "headers" in batch.schema.names:
                batch = batch.drop_columns(["headers"])
            if not extent.include_data:
                batch = batch.drop_columns(["data"])
            if batch.num_rows:
                yield batch if counts is None else batch.append_column(COUNT, counts)


def numbered(
    batches: Iterator[pa.RecordBatch], by: str, number: Callable[[str], int | None]
) -> Iterator[pa.RecordBatch]:
    """Batches with the column `partition` made of another one of text."""
    for batch in batches:
        of = batch.column(by).dictionary_encode()
        numbers = pa.array(map(number, of.dictionary.to_pylist()), pa.int32())
        at = batch.schema.names.index("partition")
        yield batch.set_column(at, batch.schema.field(at), numbers.take(of.indices))


class SentAsRows:
    """
    Mixed into a reader. Spark pickles a reader for its tasks alone, and it becomes its `rows`
    there: a task need not import what plans.
    """

    rows: TaskRows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.rows.read(partition)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.rows,)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """
    No rows: what counts is that a Python worker is there, with this package and a connection, for
    the task that comes next.
    """

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """None; that the server cannot be reached is for a task with rows to say."""
        try:
            _ = client.connection  # dials
        except JetStreamError as error:
            logger.info("a worker has no connection yet: %s", error)
        return iter(())


@dataclass(frozen=True, slots=True)
class RangeRead(DirectRead):
    """The work of a direct read: a range, and which partitions its subjects belong to."""

    layout: Layout = field(repr=False)

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        return read_direct(client, self, RowBuilder.of(self, self.layout))


@dataclass(frozen=True, slots=True)
class ManyReads:
    """The work of a task that reads ranges of several streams, one after the other."""

    reads: tuple[RangeRead, ...]

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            DataLossError: One of the streams was deleted (`failOnDataLoss`).
        """
        for read in self.reads:
            try:
                yield from read.batches(client)
            except StreamNotFoundError:
                what = f"the stream was deleted before it was read up to sequence {read.end}"
                error = DataLossError(read.stream, read.partition or 0, what)
                report_loss(error, read.fail_on_data_loss)


@dataclass(frozen=True, slots=True)
class OwnRead(Own):
    """The work of a read by a consumer of the attempt's own, and of what reads where none is."""

    layout: Layout = field(repr=False, kw_only=True)
    instead: RangeRead | ConsumerRead = field(kw_only=True)

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        is_filtered = self.filter is not None and self.partition is not None
        builder = RowBuilder.of(self, None if is_filtered else self.layout)
        attempt = OwnAttempt(client, self, builder)
        try:
            yield from attempt.batches()
            return
        except ConsumerRefusedError as error:
            logger.warning(
                "stream=%s: from sequence %d on the task reads in another way, because it can make"
                " no consumer of its own. The rows are the same: %s",
                self.stream, attempt.last + 1, error,
            )  # fmt: skip
        left = None if self.expected is None else max(0, self.expected - attempt.rows)
        yield from replace(self.instead, start=attempt.last, expected=left).batches(client)


def by_own_consumer(
    instead: RangeRead | ConsumerRead, layout: Layout, filter_: str | None
) -> OwnRead:
    """The same rows by a consumer of the attempt's own, with this filter for the server."""
    group, owner = GROUP, None
    if isinstance(instead, ConsumerRead):
        group, owner = instead.group, instead.owner
    same = {field.name: getattr(instead, field.name) for field in fields(Slice)}
    same["filter"] = filter_
    return OwnRead(**same, group=group, owner=owner, layout=layout, instead=instead)


def direct_tasks(
    connection: ConnectionOptions,
    survey: Survey,
    infos: Mapping[str, StreamInfo],
    reads: Sequence[RangeRead],
    wanted: int,
    most: int | None,
    may_own: bool = True,
) -> list[ReadTask]:
    """
    The reads as tasks over contiguous ranges of sequences, each with what it must find.

    Args:
        infos: the streams; of several those that are gone are none of them.
        wanted: into how many tasks all reads are cut, by their sequences.
        most: of sequences a task.
        may_own: whether consumers of the tasks' own take their place where these cost less.
    """
    sequences = max(1, sum(read.end - read.start for read in reads))
    tasks: list[ReadTask] = []
    for read in reads:
        parts = -(-wanted * (read.end - read.start) // sequences)
        ranges = planning.split_range(read.start, read.end, parts, most)
        filters = read.layout.filters(read.partition) if read.filter is None else (read.filter,)
        counts = [read.expected]
        if read.stream not in infos:
            counts = [None] * len(ranges)
        elif len(ranges) > 1:
            counts = survey.sums(read.stream, filters, ranges, infos)
        for piece in pieces(read, ranges, counts):
            is_own = may_own and _own_is_cheaper(survey, infos[read.stream], piece)
            work = by_own_consumer(piece, piece.layout, None) if is_own else piece
            tasks.append(ReadTask(connection, work))
    return tasks


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


def _own_is_cheaper(survey: Survey, info: StreamInfo, read: RangeRead) -> bool:
    return (
        read.filter is None
        and planning.own_is_cheaper(read.end - read.start, survey.site(info))
        and info.retention == "limits"
        and survey.may_own(info.name, {info.name: info})
    )


def of_many(
    tasks: Sequence[ReadTask], most: int, there: Collection[str], longest: int | None = None
) -> list[ReadTask]:
    """
    Direct reads of many streams as fewer tasks, by their ranges alone: a task has up to `most`, in
    their order, and no more sequences than make one worth its start, nor than `longest` where that
    is given. Of the streams nothing is read that are not `there`.
    """
    enough = min(longest or _TASK_SEQUENCES, _TASK_SEQUENCES)
    groups: list[list[RangeRead]] = []
    length = 0
    connection: ConnectionOptions | None = None
    for task in tasks:
        read, connection = task.work, task.connection
        assert isinstance(read, RangeRead)
        length += read.end - read.start
        if not groups or len(groups[-1]) >= most or length > enough:
            groups.append([])
            length = read.end - read.start
        groups[-1].append(read)
    if connection is None:
        return []
    found = [tuple(read for read in group if read.stream in there) for group in groups]
    return [ReadTask(connection, ManyReads(reads)) for reads in found]


def _have(batch: pa.RecordBatch, name: str, value: str) -> pa.Array:
    """Which rows have a header with this value, or one of several values."""
    values = pc.map_lookup(batch.column("headers"), name, "first")
    matching = pc.equal(pc.list_flatten(values), value)
    rows = pc.list_parent_indices(values).filter(matching)
    return pc.is_in(pa.array(range(batch.num_rows), rows.type), rows)


def _count(batch: pa.RecordBatch) -> pa.Array:
    found = pc.struct_field(pc.extract_regex(batch.column("data"), _SUM), "count")
    counts = pc.is_valid(pc.map_lookup(batch.column("headers"), _INCREMENT, "first"))
    counts = pc.and_not(counts, pc.equal(found, b""))
    texts = pc.if_else(counts, found, pa.scalar(None, pa.binary())).cast(pa.string())
    digits = pc.utf8_length(pc.utf8_ltrim(texts, "-"))
    if (pc.max(digits).as_py() or 0) > COUNT.type.precision:
        at = pc.index(pc.greater(digits, COUNT.type.precision), True).as_py()
        row = batch.slice(at, 1).to_pylist()[0]
        raise ReadError(
            row["stream"],
            row["partition"],
            f"the counter on '{row['subject']}' has {digits[at]} digits at sequence"
            f" {row['sequence']}, and a DECIMAL has {COUNT.type.precision}; leave includeCount out,"
            " it stands in data as text",
        )
    return texts.cast(COUNT.type)
