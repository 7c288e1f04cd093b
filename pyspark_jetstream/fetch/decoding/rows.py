"""
Messages into Arrow: from columns of bytes to record batches of a read's schema.

`deliveries` and `replies` make columns of what came off the wire, of a consumer and of
batched direct gets. What all messages have in common is parsed a column at a time by Arrow, never a
message at a time.

No I/O. Row order is wire order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...client import wire
from ...client.blocks import lines_of
from ...client.wire import CRLF
from ...errors import ReadError, SubjectDecodeError
from ...sanitize import get_logger
from ...serverheaders import BAD_NAME, BAD_VALUE, NOT_READ
from .cuts import Delivered
from .replies import Columns

__all__ = [
    "SERVER_HEADERS",
    "RowBuilder",
    "arrow_schema",
    "user_headers",
]

logger = get_logger(__name__)

SERVER_HEADERS: Final = NOT_READ
"""Names of headers that are left out wherever they stand (`serverheaders`)."""

_PREAMBLE: Final = wire.HEADER_PREAMBLE + CRLF
_CLEAN: Final = re.compile(rb"(?:[!-9;-~]++:[^\r\n]*+\r\n)*+")
"""Header lines as nearly all messages have them; others are looked at one by one."""

_BAD_NAME: Final = re.compile(BAD_NAME)
_BAD_VALUE: Final = re.compile(BAD_VALUE)
_HEADERS_CACHED: Final = 4096

_NAMED: Final = 20
"""Sequences that one line of the log names."""

_HEADERS_TYPE: Final = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The columns of a read, exactly as Spark 4.2+ demands them (nullable, UTC, no large types)."""
    fields = [
        pa.field("subject", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("sequence", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("partition", pa.int32()),
        pa.field("stream", pa.string()),
    ]
    if include_headers:
        fields.append(pa.field("headers", _HEADERS_TYPE))
    return pa.schema(fields)


def user_headers(lines: bytes | None) -> list[tuple[str, list[str]]] | None:
    """Header lines of a message as names with their values in order; None without any."""
    if lines is None:
        return None
    headers: dict[str, list[str]] = {}
    clean = _CLEAN.fullmatch(lines) is not None
    for name, value in wire.parse_headers(_PREAMBLE + lines):
        if name not in SERVER_HEADERS and (clean or not _is_none(name, value)):
            headers.setdefault(name, []).append(value)
    return list(headers.items()) or None


def _is_none(name: str, value: str) -> bool:
    """Whether this is no header, though a server has stored it."""
    return bool(_BAD_NAME.search(name) or _BAD_VALUE.search(value))


def _has_others(lines: bytes) -> bool:
    """Whether any of the lines is no header."""
    if _CLEAN.fullmatch(lines):
        return False
    if any(b":" not in line for line in lines.split(CRLF)[:-1]):
        return True
    return any(_is_none(*header) for header in wire.parse_headers(_PREAMBLE + lines))


class RowBuilder:
    """Record batches of one stream's messages, in the schema of the query."""

    def __init__(self, stream: str, include_headers: bool) -> None:
        self.stream = stream
        self.schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self.odd = 0
        """Rows so far whose message was stored with something else than headers."""
        self._parsed_headers: dict[bytes, list[tuple[str, list[str]]] | None] = {}
        self._odd: set[bytes] = set()

    def consumer_batch(
        self,
        messages: Delivered,
        partition: int | None,
        after: int,
        upto: int,
        classify: Callable[[bytes], int | None] | None = None,
        mine: bytes = b"",
    ) -> pa.RecordBatch:
        """The messages that a consumer delivered, of which the same count as in `direct_batch`."""
        stored, sequences = messages.stored, messages.sequences
        columns = [messages.subjects, messages.payloads, sequences, messages.times]
        columns += [stored] if stored is not None else []
        columns, partitions = self._wanted(
            columns, sequences, after, upto, partition, classify, mine
        )
        subjects, payloads, sequences, times, *blocks = columns
        texts = self._text(subjects, partition or 0, sequences)
        micros = pc.divide(times, 1000).cast(pa.timestamp("us", tz="UTC"))
        return self._batch(texts, payloads, sequences, micros, partitions, partition, blocks)

    def direct_batch(
        self,
        messages: Columns,
        after: int,
        upto: int,
        partition: int | None,
        classify: Callable[[bytes], int | None] | None,
        mine: bytes = b"",
    ) -> pa.RecordBatch:
        """
        The messages with `after < sequence <= upto` that belong to `partition`, or with None to
        any partition.

        Args:
            classify: gives the partition of a subject; without it all belong to `partition` that
                begin as its do.
            mine: how the subjects of `partition` begin, which is cheaper to compare.
        """
        columns, partitions = self._wanted(
            [column for column in messages if column is not None],
            messages.sequences, after, upto, partition, classify, mine,
        )  # fmt: skip
        subjects, sequences, times, payloads, *blocks = columns
        texts = self._text(subjects, partition or 0, sequences)
        micros = self._times(times, partition or 0)
        return self._batch(texts, payloads, sequences, micros, partitions, partition, blocks)

    def _wanted(
        self,
        columns: list[pa.Array],
        sequences: pa.Array,
        after: int,
        upto: int,
        partition: int | None,
        classify: Callable[[bytes], int | None] | None,
        mine: bytes,
    ) -> tuple[list[pa.Array], pa.Array | None]:
        """Of columns, subjects first, the rows that count, and their partitions if `classify`."""
        partitions: pa.Array | None = None
        wanted: list[pa.Array] = []
        if sequences[0].as_py() <= after or sequences[-1].as_py() > upto:
            wanted += [pc.greater(sequences, after), pc.less_equal(sequences, upto)]
        if mine:
            wanted.append(pc.starts_with(columns[0], mine))
        if classify is not None:
            distinct = columns[0].dictionary_encode()
            codes = pa.array(map(classify, distinct.dictionary.to_pylist()), pa.int32())
            partitions = codes.take(distinct.indices)
            of = pc.is_valid(partitions) if partition is None else pc.equal(partitions, partition)
            wanted.append(of)
        if wanted:
            mask = reduce(pc.and_kleene, wanted)
            columns = [column.filter(mask) for column in columns]
            partitions = partitions.filter(mask) if partitions is not None else None
        return columns, partitions

    def _batch(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        sequences: pa.Array,
        times: pa.Array,
        partitions: pa.Array | None,
        partition: int | None,
        stored: list[pa.Array],
    ) -> pa.RecordBatch:
        """Of columns as they are to be; subjects as text, times in microseconds."""
        rows = len(sequences)
        arrays = [
            subjects,
            payloads,
            sequences,
            times,
            partitions if partitions is not None else self._partition(partition or 0, rows),
            self._stream(rows),
        ]
        if self._include_headers:
            arrays.append(self._headers(stored[0], sequences))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _text(self, subjects: pa.Array, partition: int, sequences: pa.Array) -> pa.Array:
        try:
            return subjects.cast(pa.string())
        except pa.ArrowInvalid:
            for subject, seq in zip(subjects.to_pylist(), sequences.to_pylist(), strict=True):
                try:
                    subject.decode()
                except UnicodeDecodeError:
                    raise SubjectDecodeError(
                        self.stream,
                        partition,
                        f"the subject of sequence {seq} is not UTF-8: {subject!r};"
                        " delete that message, or read around it",
                    ) from None
            raise

    def _times(self, texts: pa.Array, partition: int) -> pa.Array:
        try:
            nanos = texts.cast(pa.string()).cast(pa.timestamp("ns", tz="UTC"))
        except pa.ArrowInvalid as error:
            raise ReadError(
                self.stream, partition, f"the server sends a time that is none: {error}"
            ) from None
        return nanos.cast(pa.timestamp("us", tz="UTC"), safe=False)

    def _headers(self, stored: pa.Array, sequences: pa.Array) -> pa.Array:
        """The column of headers, of what stands before the server's lines (`blocks`)."""
        parsed, odd = self._parsed_headers, self._odd
        if len(parsed) >= _HEADERS_CACHED:
            parsed.clear()
            odd.clear()
        encoded = stored.dictionary_encode()
        values, codes = [], []
        for code, block in enumerate(encoded.dictionary.to_pylist()):
            if block not in parsed:
                lines = lines_of(block)
                parsed[block] = user_headers(lines)
                if lines is None or _has_others(lines):
                    odd.add(block)
            values.append(parsed[block])
            if block in odd:
                codes.append(code)
        if codes:
            self._note(sequences.filter(pc.is_in(encoded.indices, pa.array(codes, pa.int32()))))
        return pa.array(values, _HEADERS_TYPE).take(encoded.indices)

    def _note(self, sequences: pa.Array) -> None:
        """Counts and logs rows whose messages were stored with something else than headers."""
        count = len(sequences)
        if not count:
            return
        self.odd += count
        logger.warning(
            "stream=%s: what %d messages were stored with are no headers, or not all of it; that"
            " is left out: sequences=%s%s, %d so far",
            self.stream, count, ",".join(map(str, sequences[:_NAMED].to_pylist())),
            ",…" if count > _NAMED else "", self.odd,
        )  # fmt: skip

    def _partition(self, partition: int, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(partition, pa.int32()), rows)

    def _stream(self, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(self.stream, pa.string()), rows)
