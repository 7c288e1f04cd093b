"""
The tail of a batch: its rows that are stored, read once for all of its tasks.

The tasks of a batch have their rows in the same streams, behind the ends that their notes name,
and after a driver was killed each of them has an earlier attempt. A worker process writes one task
after the other, so it keeps one `Tail`: the numbers of stored rows of all tasks, some 20 bytes a
row of the batch and nothing for the messages of others. A task reads on from where the last one's
look ended. So C processes read a tail of N messages C times, whatever the number of tasks.

Why that is exact: a tail has every row of the batch between the two ends of each span. It is read
further back for a task whose note begins before, and up to the present end for each task, after
that has taken its note over.

Not by a consumer that brings headers only: nats-server 2.15.1 ends with a panic where such a one
comes to a header block of a single byte, which whoever may publish on the stream can store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from threading import Lock
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import BINARY, int32, view
from ...client.connection import Client
from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from ...errors import LedgerError
from ...outbox.targets import Target
from ...sanitize import get_logger
from ..headerlines import ROW_ID
from ..streams import FoundStream, check_unchanged
from .ids import TaskName
from .ledger import Ledger

logger = get_logger(__name__)

_ID: Final = r"\r\nNats-Msg-Id: ?(?P<text>[^\r]*)\r\n"
_ROLLUP: Final = r"\r\nNats-Rollup: ?(?P<text>sub|all)\r\n"
_SCHEDULER: Final = r"\r\nNats-Scheduler: ?(?P<text>[^\r]*)\r\n"
_ROW_ID: Final = rf"\r\n{ROW_ID}: ?(?P<text>[^\r]*)\r\n"

_SUBJECT, _STREAM = 1, 2
"""What a stored row has replaced: earlier ones of its subject, or all of its stream."""

_OWN: Final = pa.schema(
    {
        "task": pa.int32(),
        "row": pa.int64(),
        "subject": pa.dictionary(pa.int32(), BINARY),
        "size": pa.int32(),
        "replaces": pa.int8(),
    }
)
"""Stored rows of a batch."""


@dataclass(slots=True)
class Scanned:
    """The part of a stream that a tail has read: `(start, end]`."""

    created: str
    start: int
    end: int
    rows: list[pa.RecordBatch] = field(default_factory=list)
    """Those of the batch, as `_OWN` has them."""
    others: set[bytes] | None = None
    """All other ids; None where none are kept."""
    rolls: bool = False
    """Whether there are roll-ups."""


class StoredRows:
    """The rows of one task in one stream, in their order."""

    def __init__(self, parts: Iterable[pa.RecordBatch], span: Scanned) -> None:
        self.others: Set[bytes] = span.others or frozenset()
        self.rolls = span.rolls
        table = pa.Table.from_batches(parts, _OWN)
        subject = table["subject"].cast(BINARY)
        table = table.set_column(2, "subject", subject).sort_by("row").combine_chunks()
        self._rows = table
        numbers = table["row"].combine_chunks() if len(table) else pa.array([], pa.int64())
        self._numbers = view(numbers)
        self.last = self._numbers[-1] if len(self._numbers) else -1
        self.replaces = bool(pc.any(pc.greater(table["replaces"], 0)).as_py())

    def between(self, first: int, last: int) -> pa.RecordBatch:
        """The stored rows with these numbers."""
        start = bisect_left(self._numbers, first)
        rows = self._rows.slice(start, bisect_right(self._numbers, last) - start)
        return pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in rows.columns], names=rows.column_names
        )

    def replaced(self, kept: int, row: int, subject: bytes) -> bool:
        """Whether a row that is not here was stored and replaced; the stream keeps so many."""
        later, rolled = self._by_subject
        same = later.get(subject, [])
        return row < max(rolled.get(subject, -1), rolled.get(b"", -1)) or (
            0 < kept <= len(same) - bisect_right(same, row)
        )

    @cached_property
    def _by_subject(self) -> tuple[dict[bytes, list[int]], dict[bytes, int]]:
        """Rows by subject; and, "" for all subjects, the last one that replaces those before."""
        later: dict[bytes, list[int]] = {}
        rolled: dict[bytes, int] = {}
        own = self._rows.select(["row", "subject", "replaces"]).to_pydict()
        for row, subject, replaces in zip(*own.values(), strict=True):
            same = later.setdefault(subject, [])
            if same[-1:] != [row]:
                same.append(row)
            if replaces:
                rolled[subject if replaces == _SUBJECT else b""] = row
        return later, rolled


class Tail:
    """
    The rows of a batch that are stored.

    Args:
        prefix: of the ids that are made for its rows; None where none are made.
    """

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix
        self._spans: dict[str, Scanned] = {}
        self._lock = Lock()

    def refresh(
        self, client: Client, name: TaskName, noted: Iterable[FoundStream], others: bool
    ) -> None:
        """
        Reads what is not read yet.

        Args:
            name: of the task, for what errors say.
            noted: the streams before any attempt of it.
            others: whether other ids are kept.

        Raises:
            TargetChangedError: A stream has lost rows since.
            LedgerError: It no longer holds all that an attempt may have stored.
        """
        js, noted = JetStream(client), list(noted)
        with self._lock:
            infos = check_unchanged(js, noted, Ledger(js).remedy(name.write))
            for since in noted:
                info, span = infos[since.name], self._spans.get(since.name)
                lacks = span is None or (others and span.others is None)
                if span is None or lacks or span.created != since.created:
                    ids = set[bytes]() if others else None
                    span = Scanned(since.created, since.end, since.end, others=ids)
                    self._spans[since.name] = span
                if since.end < span.start:
                    self._read(client, name, info, span, (since.end, span.start))
                    span.start = since.end
                if span.end < info.last_seq:
                    self._read(client, name, info, span, (span.end, info.last_seq))

    def of(self, task: int) -> Mapping[str, StoredRows]:
        """The stored rows of a task, by stream."""
        found = {}
        with self._lock:
            for name, span in self._spans.items():
                own = [part.filter(pc.equal(part["task"], int32(task))) for part in span.rows]
                found[name] = StoredRows(own, span)
        return found

    def _read(
        self, client: Client, name: TaskName, info: StreamInfo, span: Scanned, part: tuple[int, int]
    ) -> None:
        after, end = part
        target = Target.parse(info.config)
        # Of schedules the first ones leave when their time has come: then only limits lose rows.
        leaves = target.allow_ttl or target.max_per_subject
        loses = info.keeps_history or (target.allow_schedules and info.is_bounded and not leaves)
        if info.first_seq > after + 1 and loses:
            raise LedgerError(
                str(name),
                f"stream '{info.name}' begins at sequence {info.first_seq}, but an earlier"
                f" attempt may have stored rows from {after + 1} on: which ones cannot be told."
                f" `nats kv del SPARK_LEDGER {name}` lets the task write all of its rows,"
                " those stored before for the second time",
            )
        logger.info("recovering task=%s stream=%s after=%d", name, info.name, after)
        from ...fetch.pulling.alone import ConsumerRefusedError

        try:
            for batch in stored_messages(client, info.name, after, end):
                self.note(span, batch)
                span.end = max(span.end, batch["sequence"][-1].as_py())
        except ConsumerRefusedError as error:
            raise LedgerError(
                str(name),
                f"what is stored in '{info.name}' cannot be read: {error}; the write needs a"
                " consumer of its own for a moment",
            ) from error
        span.end = max(span.end, end)

    def note(self, span: Scanned, messages: pa.RecordBatch) -> None:
        """Takes in stored messages: their subjects, header lines (`stored`) and payloads."""
        stored = messages["stored"].cast(BINARY)
        if span.others is not None:
            span.rolls |= bool(pc.any(pc.match_substring_regex(stored, _ROLLUP)).as_py())
        elif self._prefix is not None:
            mine = pc.match_substring(stored, f"{self._prefix}-")
            messages, stored = messages.filter(mine), stored.filter(mine)
        else:
            return
        scheduler = _text(stored, _SCHEDULER)  # its row, which may be gone, had this subject
        is_made = pc.is_valid(scheduler)
        ids = pc.if_else(is_made, _text(stored, _ROW_ID), _text(stored, _ID))
        numbers = pc.extract_regex(
            ids, f"^{self._prefix}-(?P<task>[0-9]{{1,9}})-(?P<row>[0-9]{{1,18}})$"
        )
        is_own = pc.and_(pc.is_valid(numbers), self._prefix is not None)
        if span.others is not None:
            span.others.update(ids.filter(pc.invert(is_own)).drop_null().to_pylist())
        rollup = _text(stored, _ROLLUP)
        of_stream = pc.fill_null(pc.equal(rollup, b"all"), False)
        of_subject = pc.or_(pc.is_valid(rollup), is_made)
        replaces = pc.if_else(of_stream, _STREAM, pc.if_else(of_subject, _SUBJECT, 0))
        columns = [
            _whole_numbers(pc.struct_field(numbers, "task"), pa.int32()),
            _whole_numbers(pc.struct_field(numbers, "row"), pa.int64()),
            pc.coalesce(scheduler, messages["subject"].cast(BINARY)),
            pc.binary_length(messages["data"]).cast(pa.int32()),
            replaces.cast(pa.int8()),
        ]
        columns = [column.filter(is_own) for column in columns]
        columns[2] = columns[2].dictionary_encode()
        if len(columns[0]):
            span.rows.append(pa.RecordBatch.from_arrays(columns, schema=_OWN))


@lru_cache(maxsize=1)
def tail_of(write: str, batch: int, prefix: str | None) -> Tail:
    """The tail of a batch: the one that this process has recovered last is kept."""
    return Tail(prefix)


def stored_messages(client: Client, stream: str, since: int, end: int) -> Iterator[pa.RecordBatch]:
    """
    The messages in `(since, end]`, as `StoredBuilder` has them, by a consumer that is deleted
    behind it.
    """
    # Only who follows others reads: a first attempt need not import it.
    from ...fetch.decoding.rows import StoredBuilder
    from ...fetch.layout import Slice
    from ...fetch.pulling.alone import OwnAttempt

    read = Slice(None, stream, None, since, end, None, True, False)
    yield from filter(len, OwnAttempt(client, read, builder=StoredBuilder()).batches())


def _text(stored: pa.Array, pattern: str) -> pa.Array:
    return pc.struct_field(pc.extract_regex(stored, pattern), "text")


def _whole_numbers(texts: pa.Array, type: pa.DataType) -> pa.Array:
    return texts.cast(pa.string()).cast(type)
