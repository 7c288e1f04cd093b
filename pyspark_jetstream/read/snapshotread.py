"""
The tasks of a snapshot: the last message of every subject at or below one sequence, the point.

Nobody makes a list of messages. A task hands on what is last as of the point, whenever it reads;
so attempts agree, and writers may write.

| what the stream has | a task |
|---|---|
| one message a subject | reads a part of it (`WholeRead`) |
| few subjects, with many messages each | looks subjects up by name (`NamedRead`) |
| anything else | goes back from the point, and hands on each subject once (`BackRead`) |

Messages may leave the stream before they are read. What the stream had at the point is known by a
number, of messages or of subjects, or by name; what a task then lacks of it is a loss. Of a point
in the past neither is known: there a subject that has messages beyond the point only may have lost
what it had (`_gone`).
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .. import subjects
from ..client.connection import Client
from ..client.info import Found, StreamInfo
from ..client.jetstream import JetStream
from ..errors import SnapshotLossError
from ..fetch.call import DirectCall
from ..fetch.dataloss import report_loss
from ..fetch.decoding.markers import purges
from ..fetch.decoding.replies import Columns
from ..fetch.decoding.rows import RowBuilder, StoredBuilder, user_headers
from ..fetch.directcalls import DirectCalls, record_batch
from ..fetch.directget import read_direct
from ..fetch.layout import Layout, Slice
from ..tasks.shape import numbered
from .lookups import Lookups

_FIRST_LENGTH: Final = 20_000
_CHUNK_ROWS: Final = 100_000
_CHUNK_BYTES: Final = 24 << 20
"""Sequences of the first chunk that is read back, messages and bytes of each."""

_COLUMNS: Final = ("subject", "sequence", "time", "data")
_NOTHING: Final = pa.schema(
    [(name, pa.int64() if name == "sequence" else pa.binary()) for name in _COLUMNS]
).empty_table()

MOST_NAMES: Final = 1_000_000
"""Subjects whose names a process holds."""

_COUNTED: Final = 1_000
"""Subjects whose messages the leader counts at one time."""


@dataclass(frozen=True, slots=True)
class Point:
    """A stream as its snapshot was planned."""

    sequence: int
    created: str
    held: int | None
    """
    What it had at the point of what a task counts; None in the past. Where names tell, its end when
    they were known: a subject whose messages are all newer has lost what it had.
    """
    is_past: bool


class Lost(NamedTuple):
    """What a task lacks of the snapshot."""

    number: int
    subjects: tuple[str, ...] = ()


Rows = Generator[pa.RecordBatch, None, Lost]


@dataclass(frozen=True, slots=True)
class PointRead(Slice, ABC):
    """The work of a task: messages of `(start, end]`, of which the last one is the point."""

    layout: Layout = field(kw_only=True, repr=False)
    point: Point = field(kw_only=True)

    @abstractmethod
    def rows(self, client: Client, info: StreamInfo) -> Rows:
        """The rows; then what is lost. Each way below has its own."""

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            SnapshotLossError: Some left the stream before they were read (`failOnDataLoss`).
            ReadTimeoutError: No progress within `requestTimeout`.
        """
        batches = self._checked(client)
        classify = self.layout.classifier() if self.partition is None else None
        return batches if classify is None else numbered(batches, "subject", classify)

    def _checked(self, client: Client) -> Iterator[pa.RecordBatch]:
        info = JetStream(client).stream_info(self.stream)
        if info.created != self.point.created:
            self._report(Lost(0), "the stream was made anew; read again")
            return
        lost = yield from self.rows(client, info)
        if lost.number:
            self._report(
                lost,
                f"{lost.number} subjects of the snapshot as of sequence {self.point.sequence} are"
                " gone, or may be: their messages were replaced, deleted, purged or expired. Keep"
                " more per subject (max_msgs_per_subject), ask for a later point, or leave such"
                " subjects out with failOnDataLoss=false",
            )

    def _report(self, lost: Lost, what: str) -> None:
        report_loss(SnapshotLossError(self.stream, 0, what, lost.subjects), self.fail_on_data_loss)


@dataclass(frozen=True, slots=True)
class WholeRead(PointRead):
    """A part of a stream that has one message a subject."""

    def rows(self, client: Client, info: StreamInfo) -> Rows:
        read = 0
        for batch in read_direct(client, self, RowBuilder.of(self)):
            read += batch.num_rows
            yield batch
        return Lost(max(0, (self.point.held or 0) - read))


@dataclass(frozen=True, slots=True)
class NamedRead(PointRead):
    """Subjects by name."""

    names: bytes = field(kw_only=True, repr=False)

    def rows(self, client: Client, info: StreamInfo) -> Rows:
        builder = RowBuilder.of(self)
        lookups = Lookups(client, self.stream, self.point.sequence, info.replicas)
        without = yield from lookups.last(
            zlib.decompress(self.names).decode().split("\n"),
            lambda found: record_batch(builder, found),
        )
        later = _gone(JetStream(client), self.stream, self.point, without.later)
        gone = [*without.vanished, *later]
        return Lost(len(gone), tuple(gone))


@dataclass(frozen=True, slots=True)
class BackRead(PointRead):
    """From the point back to the stream's start: what has a subject not seen yet is its last."""

    filters: tuple[str, ...] = field(kw_only=True)

    def rows(self, client: Client, info: StreamInfo) -> Rows:
        builder, seen, held = RowBuilder.of(self), _Seen(), self.point.held
        match = any_of(self.filters)
        upto, length = self.end, _FIRST_LENGTH
        while upto > self.start and seen.count != held:
            low = max(self.start, upto - length)
            chunk = self._chunk(client, low, upto)
            if chunk is None:
                length = max(1, (upto - low) // 8)
                continue
            rows, size = max(1, chunk.num_rows), max(1, chunk.nbytes)
            last = _last(chunk)
            last = last.filter(seen.new(last["subject"].combine_chunks()))
            if match is not None:
                wanted = [match(subjects.raw(name)) for name in last["subject"].to_pylist()]
                last = last.filter(pa.array(wanted, pa.bool_()))
            if last.num_rows:
                (batch,) = last.combine_chunks().to_batches()
                stored = batch["stored"] if self.include_headers else None
                name, sequence, time, data = (batch[column] for column in _COLUMNS)
                columns = Columns(name, sequence, time, data, stored)
                yield builder.batch(columns, low, upto)
            upto = low
            length = max(
                1, min(8 * length, length * _CHUNK_ROWS // rows, length * _CHUNK_BYTES // size)
            )
        if held is not None:
            return Lost(max(0, held - seen.count))
        # In the past: what has messages beyond the point only may have had others before it.
        js = JetStream(client)
        info = js.stream_info(self.stream)
        if _is_whole(info):
            return Lost(0)
        if info.num_subjects > MOST_NAMES:
            return Lost(max(0, info.num_subjects - seen.count))
        names = {name for page in js.listed(self.stream, self.filters)[1] for name in page}
        listed = pa.array(sorted(names), pa.binary())
        beyond = [name.decode() for name in listed.filter(seen.new(listed)).to_pylist()]
        asked = [DirectCall(next_by_subj=name) for name in beyond]
        firsts = zip(beyond, DirectCalls(client, self.stream).each(asked), strict=True)
        later = {name: first for name, first in firsts if first is not None}
        gone = _gone(js, self.stream, self.point, later)
        return Lost(len(gone), tuple(gone))

    def _chunk(self, client: Client, low: int, high: int) -> pa.Table | None:
        """The messages of a range; None where there are too many to hold."""
        held, size = [], 0
        read = Slice.whole(self.stream, low, high, self.include_headers)
        for batch in read_direct(client, read, StoredBuilder()):
            held.append(batch if self.include_headers else batch.select(_COLUMNS))
            size += batch.nbytes
            if size > 2 * _CHUNK_BYTES and high - low > 1:
                return None
        return pa.Table.from_batches(held) if held else _NOTHING


class _Seen:
    """Subjects that were seen, as they are stored."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[pa.Array] = []

    def new(self, names: pa.Array) -> pa.Array:
        """BOOL: which of these, each there once, are new; they are seen now."""
        known = pa.chunked_array(self._names, pa.binary())
        again = known.filter(pc.is_in(known, value_set=names)).combine_chunks()
        is_new = pc.invert(pc.is_in(names, value_set=again))
        self._names.append(names.filter(is_new))
        self.count += len(self._names[-1])
        return is_new


def _last(messages: pa.Table) -> pa.Table:
    """The last message of each subject, in their order."""
    of = messages.select(["subject", "sequence"]).group_by("subject")
    last = of.aggregate([("sequence", "max")])
    if last.num_rows == messages.num_rows:
        return messages
    wanted = last["sequence_max"].combine_chunks()
    return messages.filter(pc.is_in(messages["sequence"], value_set=wanted))


def any_of(filters: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a subject matches one of the filters; None where all do."""
    if subjects.REST in filters:
        return None
    if all(map(subjects.is_literal, filters)):
        return frozenset(filters).__contains__
    matchers = [subjects.matcher(filter_) for filter_ in filters]
    return lambda subject: any(match(subject) for match in matchers)


# ── what is gone ─────────────────────────────────────────────────────────────────────────────


def _gone(js: JetStream, stream: str, point: Point, later: Mapping[str, Found]) -> list[str]:
    """
    Of subjects that have messages beyond the point only, with the first of these, those that may
    have had others before.

    Of a point that was the stream's end only what replaced the value since then matters, and that
    nothing is left of when the names were known (`Point.held`). In the past nothing vouches for a
    subject but a stream that is whole, or a limit per subject that it has not reached, where that
    is the only limit.
    """
    if not later:
        return []
    info = js.stream_info(stream)
    if point.is_past and _is_whole(info):
        return []
    limit = max(0, info.config.get("max_msgs_per_subject") or 0)
    others = ("max_age", "max_msgs", "max_bytes", "allow_msg_ttl")
    if point.is_past and (not limit or any((info.config.get(each) or 0) > 0 for each in others)):
        return list(later)
    known = 0 if limit == 1 else point.held or math.inf
    gone = [n for n, f in later.items() if f.sequence > known or purges(user_headers(f.lines))]
    left = [name for name in later if name not in gone] if limit > 1 else []
    for low in range(0, len(left), _COUNTED):
        part = left[low : low + _COUNTED]
        counts = js.subject_counts(stream, part)[1]
        gone += [name for name in part if counts.get(name, limit) >= limit]
    return gone


def _is_whole(info: StreamInfo) -> bool:
    """Whether no message has left the stream, as far as its leader says."""
    return info.first_seq <= info.origin and not info.num_deleted
