"""
Messages into Arrow: from columns of bytes to record batches of a read's schema.

`deliveries` and `replies` make columns of what came off the wire, of a consumer and of
batched direct gets. What all messages have in common is parsed a column at a time by Arrow, never a
message at a time.

A server stores subjects that are no UTF-8. What becomes of such a row is the reader's choice
(`Texts`); a row that is left out is there with null for its subject until whoever counts rows has
counted it (`kept`).

No I/O. Row order is wire order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import is_all
from ...client import wire
from ...client.blocks import lines_of
from ...client.wire import CRLF
from ...errors import ReadError
from ...sanitize import get_logger
from ...serverheaders import BAD_NAME, BAD_VALUE, NOT_READ
from ...subjects import raw, readable
from .replies import Columns

if TYPE_CHECKING:
    from ..layout import Layout, Slice

logger = get_logger(__name__)

_PREAMBLE: Final = wire.HEADER_PREAMBLE + CRLF
_CLEAN: Final = re.compile(rb"(?:[!-9;-~]++:[^\r\n]*+\r\n)*+")
"""Header lines as nearly all messages have them; others are looked at one by one."""

_BAD_NAME: Final = re.compile(BAD_NAME)
_BAD_VALUE: Final = re.compile(BAD_VALUE)
_HEADERS_CACHED: Final = 4096
_KNOWN_SUBJECTS: Final = 200_000

_NAMED: Final = 20
"""Sequences that one line of the log names."""

_AGAIN: Final = 10
"""Factor of the rows named last: after so many the log names some again."""

_DONE: Final = {"replace": "have U+FFFD in their place (replace)", "drop": "are left out (drop)"}
"""Fate of a row whose subject is no UTF-8, by the values of `onInvalidSubject`."""

_MICROS: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The columns of a read, exactly as Spark 4.2+ demands them (nullable, UTC, no large types)."""
    fields = [
        pa.field("subject", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("sequence", pa.int64()),
        pa.field("timestamp", _MICROS),
        pa.field("partition", pa.int32()),
        pa.field("stream", pa.string()),
    ]
    if include_headers:
        fields.append(pa.field("headers", HEADERS))
    return pa.schema(fields)


def user_headers(lines: bytes | None) -> list[tuple[str, list[str]]] | None:
    """Header lines of a message as names with their values in order; None without any."""
    if lines is None:
        return None
    headers: dict[str, list[str]] = {}
    clean = _CLEAN.fullmatch(lines) is not None
    for name, value in wire.parse_headers(_PREAMBLE + lines):
        if name not in NOT_READ and (clean or not _is_none(name, value)):
            headers.setdefault(name, []).append(value)
    return list(headers.items()) or None


def _is_none(name: str, value: str) -> bool:
    """Whether this is no header, though a server has stored it."""
    return bool(_BAD_NAME.search(name) or _BAD_VALUE.search(value))


def kept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches without the rows that are left out for their subjects."""
    for batch in batches:
        subjects = batch.column(0)
        if subjects.null_count:
            batch = batch.filter(pc.is_valid(subjects))
            if not batch.num_rows:
                continue
        yield batch


class Texts:
    """
    The subjects of one stream's messages as text.

    Args:
        on_invalid: what becomes of one that is no UTF-8. With `fail` it is an error, with `replace`
            each byte that is none of a character becomes U+FFFD, with `drop` there is null.
    """

    def __init__(self, stream: str, on_invalid: str) -> None:
        self.invalid = 0
        """Number of rows whose subject is no UTF-8, so far."""
        self._stream = stream
        self._on_invalid = on_invalid
        self._named = 0

    def of(self, subjects: pa.Array, sequences: pa.Array, partition: int = 0) -> pa.Array:
        """
        The column as text.

        Raises:
            ReadError: One of them is no UTF-8, and that is to be an error.
        """
        try:
            return subjects.cast(pa.string())
        except pa.ArrowInvalid:
            return self._mended(subjects, sequences, partition)

    def _mended(self, subjects: pa.Array, sequences: pa.Array, partition: int) -> pa.Array:
        encoded = subjects.dictionary_encode()
        texts: list[str | None] = []
        invalid = []
        for code, subject in enumerate(encoded.dictionary.to_pylist()):
            try:
                texts.append(subject.decode())
            except UnicodeDecodeError:
                invalid.append(code)
                texts.append(None if self._on_invalid == "drop" else readable(subject))
        of = pc.is_in(encoded.indices, pa.array(invalid, pa.int32()))
        named = list(
            zip(
                sequences.filter(of)[:_NAMED].to_pylist(),
                subjects.filter(of)[:_NAMED].to_pylist(),
                strict=True,
            )
        )
        if self._on_invalid == "fail":
            seq, subject = named[0]
            raise ReadError(
                self._stream,
                partition,
                f"the subject of sequence {seq} is no UTF-8: {subject!r}; set onInvalidSubject to"
                " replace or drop, delete that message, or read around it",
            )
        self.invalid += of.true_count
        if self.invalid >= _AGAIN * self._named:
            self._named = self.invalid
            logger.warning(
                "stream=%s: subjects of %d messages so far are no UTF-8, and %s: %s%s",
                self._stream, self.invalid, _DONE[self._on_invalid],
                ", ".join(f"{seq} {subject!r}" for seq, subject in named),
                ", …" if of.true_count > _NAMED else "",
            )  # fmt: skip
        return pa.array(texts, pa.string()).take(encoded.indices)


class StoredBuilder:
    """
    Messages as they are stored: subject, sequence, time, data, and what stands for headers, where
    that was asked for.
    """

    takes_all = True

    def batch(self, messages: Columns, after: int, upto: int) -> pa.RecordBatch:
        """The messages with `after < sequence <= upto`."""
        columns = {
            "subject": messages.subjects,
            "sequence": messages.sequences,
            "time": messages.times,
            "data": messages.payloads,
            "stored": messages.stored,
        }
        batch = pa.RecordBatch.from_pydict({n: c for n, c in columns.items() if c is not None})
        sequences = messages.sequences
        inside = pc.and_(pc.greater(sequences, after), pc.less_equal(sequences, upto))
        return batch if is_all(inside) else batch.filter(inside)


class RowBuilder:
    """
    Record batches of one stream's messages, in the schema of the query.

    Args:
        on_invalid: what becomes of a subject that is no UTF-8, as `Texts` has it.
        only: sequences; what others have is dropped before it costs much.
        partition: whose rows they are; None for those of all partitions.
        classify: gives the partition of a subject, None for one of none. Without it all messages
            belong to `partition`.
    """

    def __init__(
        self,
        stream: str,
        include_headers: bool,
        on_invalid: str = "fail",
        only: pa.Array | None = None,
        partition: int | None = 0,
        classify: Callable[[str], int | None] | None = None,
    ) -> None:
        self.stream = stream
        self.schema = arrow_schema(include_headers)
        self._texts = Texts(stream, on_invalid)
        self._only = only
        self._include_headers = include_headers
        self._partition = partition
        self._classify = None
        if classify is not None:
            self._classify = lru_cache(_KNOWN_SUBJECTS)(lambda subject: classify(raw(subject)))
        self._parsed = lru_cache(_HEADERS_CACHED)(lambda stored: user_headers(lines_of(stored)))

    @classmethod
    def of(
        cls, read: Slice, layout: Layout | None = None, only: pa.Array | None = None
    ) -> RowBuilder:
        """
        Rows of the slice's partition.

        Args:
            layout: tells whose a message is, where the slice holds others' messages as well.
            only: sequences, as the class has them.
        """
        needs_telling = read.filter is None or read.partition is None
        return cls(
            read.stream,
            read.include_headers,
            read.on_invalid_subject,
            only,
            read.partition,
            layout.classifier() if layout is not None and needs_telling else None,
        )

    @property
    def takes_all(self) -> bool:
        """Whether all messages of a range become rows, whatever their subjects are."""
        return self._classify is None

    def batch(self, messages: Columns, after: int, upto: int) -> pa.RecordBatch:
        """The messages with `after < sequence <= upto` that belong to the partition."""
        wanted, partitions = self._wanted(messages, after, upto)
        columns = [column for column in messages if column is not None]
        if wanted is not None:
            columns = [column.filter(wanted) for column in columns]
        subjects, sequences, times, payloads, *stored = columns
        partition, rows = self._partition or 0, len(sequences)
        if partitions is None:
            partitions = pa.repeat(pa.scalar(partition, pa.int32()), rows)
        elif wanted is not None:
            partitions = partitions.filter(wanted)
        arrays = [
            self._texts.of(subjects, sequences, partition),
            payloads,
            sequences,
            self._micros(times),
            partitions,
            pa.repeat(pa.scalar(self.stream, pa.string()), rows),
        ]
        if self._include_headers:
            arrays.append(self._headers(stored[0]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _wanted(
        self, messages: Columns, after: int, upto: int
    ) -> tuple[pa.Array | None, pa.Array | None]:
        """BOOL: which messages count, None for all; INT32: their partitions, where `classify`."""
        sequences, partitions = messages.sequences, None
        wanted: list[pa.Array] = []
        if sequences[0].as_py() <= after or sequences[-1].as_py() > upto:
            wanted += [pc.greater(sequences, after), pc.less_equal(sequences, upto)]
        if self._only is not None:
            wanted.append(pc.is_in(sequences, value_set=self._only))
        if self._classify is not None:
            distinct = messages.subjects.dictionary_encode()
            codes = pa.array(map(self._classify, distinct.dictionary.to_pylist()), pa.int32())
            partitions = codes.take(distinct.indices)
            whose = self._partition
            wanted.append(pc.is_valid(partitions) if whose is None else pc.equal(partitions, whose))
        return reduce(pc.and_kleene, wanted) if wanted else None, partitions

    def _micros(self, times: pa.Array) -> pa.Array:
        if times.type == pa.int64():
            return pc.divide(times, 1000).cast(_MICROS)
        try:
            nanos = times.cast(pa.string()).cast(pa.timestamp("ns", tz="UTC"))
        except pa.ArrowInvalid as error:
            raise ReadError(
                self.stream, self._partition or 0, f"the server sends a time that is none: {error}"
            ) from None
        return nanos.cast(_MICROS, safe=False)

    def _headers(self, stored: pa.Array) -> pa.Array:
        """The column of headers, of what stands before the server's lines (`blocks`)."""
        encoded = stored.dictionary_encode()
        parsed = [self._parsed(block) for block in encoded.dictionary.to_pylist()]
        return pa.array(parsed, HEADERS).take(encoded.indices)


Builder: TypeAlias = RowBuilder | StoredBuilder
"""Makers of record batches."""
