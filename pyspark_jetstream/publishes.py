"""
Arrow batches as publishes: which column is what, and the bytes of each row on the wire.

Rule 1: whatever is wrong with a row is found here, before any byte of its block is sent.
Rule 2: no I/O and no loop over rows; a batch is a handful of Arrow kernels.

Columns: `data` BINARY or STRING, which is never null; `subject` STRING, unless the option
`subject` names one for all rows (then it wins over the column); `headers` MAP of STRING to STRING
or to ARRAY of STRING, or null; `msg_id` STRING, or null.

**Message ids.** A row's `Nats-Msg-Id` is its `msg_id`, else the one among its `headers`, else,
when ids are wanted, `<prefix>-<row number>`. Both a `msg_id` and such a header is an error.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from . import subjects
from .errors import ColumnError, RowError
from .mapping import SubjectMapping
from .window import Publishes

__all__ = ["Encoder", "check_names", "check_schema"]

COLUMNS: Final = ("data", "subject", "headers", "msg_id")
"""What a row may consist of."""

_LATER: Final = ("priority", "ttl")
"""Columns of the contract that a later version brings."""

_MAX_CONTROL_LINE: Final = 4096
"""The server's default `max_control_line`; a longer HPUB line makes it cut the connection."""

_NUMBERS_BYTES: Final = 64
"""What the verb, the ordinal and the sizes take of that line, at most."""

_KNOWN_SUBJECTS: Final = 100_000
"""Distinct subjects an encoder remembers before it forgets them all."""

_FOREIGN: Final = ("$JS.", "$SYS.")
"""Subjects on which a message is a command to the server."""

_BINARY: Final = pa.binary()
_ID_NAME: Final = "Nats-Msg-Id"
_PREAMBLE: Final = b"NATS/1.0\r\n"
_CRLF: Final = pa.scalar(b"\r\n", _BINARY)
_COLON: Final = pa.scalar(b": ", _BINARY)
_NOTHING: Final = pa.scalar(b"", _BINARY)
_FRAMING_BYTES: Final = len(_PREAMBLE) + 2
_BAD_NAME: Final = r"^$|[^!-9;-~]"  # ADR-4: printable ASCII without the colon
_BAD_VALUE: Final = r"[\r\n]"
_BAD_ID: Final = r"^$|[\r\n]"


def check_names(names: Sequence[str], subject_given: bool) -> None:
    """
    Accepts the columns of a write by their names.

    Raises:
        ColumnError: One is unknown or there twice, or a required one is missing.
    """
    for name in names:
        if name in _LATER:
            raise ColumnError(name, "not supported by this version of pyspark-jetstream; drop it")
        if name not in COLUMNS:
            raise ColumnError(
                name, f"unknown; a row to write consists of {', '.join(COLUMNS)}: drop or rename it"
            )
        if list(names).count(name) > 1:
            raise ColumnError(name, "there are two of this name")
    if "data" not in names:
        raise ColumnError("data", "required: the payload, BINARY or STRING")
    if "subject" not in names and not subject_given:
        raise ColumnError("subject", "required, unless the option 'subject' names one for all rows")


def check_schema(schema: pa.Schema, subject_given: bool) -> None:
    """
    Accepts the columns of a write by their names and types.

    Raises:
        ColumnError: As `check_names`, or a column has another type than its own.
    """
    check_names(schema.names, subject_given)
    for field in schema:
        accepts, expected = _TYPES[field.name]
        if not accepts(field.type):
            raise ColumnError(field.name, f"expected {expected}, got {field.type}")


def _is_text(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def _is_bytes(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)
    )


def _is_headers(type: pa.DataType) -> bool:
    if not pa.types.is_map(type) or not _is_text(type.key_type):
        return False
    item = type.item_type
    if pa.types.is_list(item) or pa.types.is_large_list(item):
        item = item.value_type
    return _is_text(item)


_TYPES: Final[dict[str, tuple[Any, str]]] = {
    "data": (lambda type: _is_text(type) or _is_bytes(type), "BINARY or STRING"),
    "subject": (_is_text, "STRING"),
    "msg_id": (_is_text, "STRING"),
    "headers": (_is_headers, "MAP<STRING,STRING> or MAP<STRING,ARRAY<STRING>>"),
}


class Encoder:
    """
    Turns the batches of one task, in order, into publishes.

    Args:
        inbox: replies go to `<inbox>.<ordinal>`.
        partition: the task's, for what errors say.
        subject: of all rows, instead of the column.
        mapping: applied to every subject.
        id_prefix: of the ids made for rows without one; None makes none.
        max_payload: the largest headers and payload the server takes together.
    """

    def __init__(
        self,
        inbox: str,
        *,
        partition: int = 0,
        subject: str | None = None,
        mapping: SubjectMapping | None = None,
        id_prefix: str | None = None,
        max_payload: int = 1 << 20,
    ) -> None:
        self.rows = 0
        """Rows encoded so far; the ordinal of the next one."""
        self.max_payload = max_payload
        self._inbox = inbox
        self._partition = partition
        self._subject = subject
        self._mapping = mapping
        self._id_prefix = id_prefix
        self._destinations: dict[str, str] = {}
        self._counting = pa.array([], pa.int64())

    def encode(self, batch: pa.RecordBatch) -> Publishes:
        """
        The rows of the next batch, in order.

        Raises:
            ColumnError: The batch has not the columns of a write.
            RowError: A row cannot be a message; names the first such row.
        """
        check_schema(batch.schema, self._subject is not None)
        first, count = self.rows, batch.num_rows
        data = _binary(batch.column("data"))
        if data.null_count:
            raise self._fault(pc.is_null(data), "data is null; a message needs a payload")
        ordinals = _binary(pc.add(self._numbers(count), first).cast(pa.string()))
        subject, distinct, codes = self._subjects(batch, count)
        lines = self._header_lines(batch, ordinals)
        to: list[Any] = [subject, _scalar(f" {self._inbox}."), ordinals, _scalar(" ")]
        plain = None if lines is None else pc.equal(pc.binary_length(lines), 0)
        if lines is None or pc.all(plain).as_py():
            frames = self._pub(to, data, distinct, codes)
        else:
            frames = self._hpub(to, lines, data, distinct, codes)
            if pc.any(plain).as_py():
                frames = pc.if_else(plain, self._pub(to, data, distinct, codes), frames)
        self.rows = first + count
        _, offsets, wire = frames.buffers()
        return Publishes(
            first,
            memoryview(wire or b""),
            memoryview(offsets).cast("i")[: count + 1] if count else (0,),
            distinct,
            codes,
        )

    def _pub(
        self, to: list[Any], data: pa.Array, distinct: list[str], codes: Sequence[int]
    ) -> pa.Array:
        sizes = pc.binary_length(data)
        self._check_sizes(sizes, distinct, codes)
        return _join(_scalar("PUB "), *to, _digits(sizes), _CRLF, data, _CRLF)

    def _hpub(
        self,
        to: list[Any],
        lines: pa.Array,
        data: pa.Array,
        distinct: list[str],
        codes: Sequence[int],
    ) -> pa.Array:
        header_sizes = pc.add(pc.binary_length(lines), _FRAMING_BYTES)
        sizes = pc.add(header_sizes, pc.binary_length(data))
        self._check_sizes(sizes, distinct, codes)
        return _join(
            _scalar("HPUB "),
            *to,
            _digits(header_sizes),
            _scalar(" "),
            _digits(sizes),
            _scalar(b"\r\n" + _PREAMBLE),
            lines,
            _CRLF,
            data,
            _CRLF,
        )

    def _check_sizes(self, sizes: pa.Array, distinct: list[str], codes: Sequence[int]) -> None:
        largest = pc.max(sizes).as_py()
        if largest is not None and largest > self.max_payload:
            row = pc.index(pc.greater(sizes, self.max_payload), True).as_py()
            raise RowError(
                distinct[codes[row]],
                f"{self._row(row)}: {sizes[row].as_py()} bytes of headers and data are more than"
                f" the server's max_payload of {self.max_payload}",
            )

    # ── subjects ─────────────────────────────────────────────────────────────────────────────

    def _subjects(
        self, batch: pa.RecordBatch, count: int
    ) -> tuple[pa.Array | pa.Scalar, list[str], Sequence[int]]:
        """As bytes, and the distinct ones with the code of each row."""
        if self._subject is not None:
            try:
                only = self._destination(self._subject)
            except ValueError as error:
                raise RowError(self._subject, str(error)) from None
            return _scalar(only), [only], _Zeros(count)
        column = batch.column("subject").cast(pa.string())
        if column.null_count:
            raise self._fault(pc.is_null(column), "subject is null")
        encoded = column.dictionary_encode()
        known = self._destinations
        distinct = []
        for code, subject in enumerate(encoded.dictionary.to_pylist()):
            destination = known.get(subject)
            if destination is None:
                try:
                    destination = self._destination(subject)
                except ValueError as error:
                    row = pc.index(encoded.indices, pa.scalar(code, pa.int32())).as_py()
                    raise RowError(subject, f"{self._row(row)}: {error}") from None
            distinct.append(destination)
        dense = pa.array([text.encode() for text in distinct], _BINARY).take(encoded.indices)
        return dense, distinct, memoryview(encoded.indices.buffers()[1] or b"").cast("i")

    def _destination(self, subject: str) -> str:
        subjects.check_subject(subject)
        mapped = subject
        if self._mapping is not None:
            mapped = self._mapping.map(subject)
            subjects.check_subject(mapped)
        if len(mapped.encode()) > _MAX_CONTROL_LINE - len(self._inbox) - _NUMBERS_BYTES:
            raise ValueError(f"the subject is longer than a protocol line: {mapped[:40]}…")
        if mapped.startswith(_FOREIGN):
            raise ValueError(f"a message on {mapped} is a command to the server")
        if len(self._destinations) >= _KNOWN_SUBJECTS:
            self._destinations.clear()
        self._destinations[subject] = mapped
        return mapped

    # ── headers ──────────────────────────────────────────────────────────────────────────────

    def _header_lines(self, batch: pa.RecordBatch, ordinals: pa.Array) -> pa.Array | None:
        """The header lines of each row, each with its CRLF; None when no row has any."""
        names = batch.schema.names
        given = batch.column("msg_id").cast(pa.string()) if "msg_id" in names else None
        if given is not None and given.null_count == len(given):
            given = None
        if given is not None:
            bad = pc.match_substring_regex(given, _BAD_ID)
            if pc.any(bad).as_py():
                raise self._fault(bad, "msg_id is empty or contains a line break")
        headers, named = None, None
        if "headers" in names and batch.column("headers").null_count < batch.num_rows:
            headers, named = self._map_lines(batch.column("headers"))
        if given is not None and named is not None:
            both = pc.and_(named, pc.is_valid(given))
            if pc.any(both).as_py():
                raise self._fault(both, f"both a msg_id and the header {_ID_NAME}; drop one")
        ids = None
        if self._id_prefix is not None:
            ids = _join(_scalar(f"{_ID_NAME}: {self._id_prefix}-"), ordinals, _CRLF)
            if named is not None:
                ids = pc.if_else(named, _scalar(""), ids)
        if given is not None:
            own = _join(_scalar(f"{_ID_NAME}: "), _binary(given), _CRLF)
            ids = pc.coalesce(own, ids if ids is not None else _scalar(""))
        if headers is None:
            return ids
        return headers if ids is None else _join(headers, ids)

    def _map_lines(self, column: pa.MapArray) -> tuple[pa.Array, pa.Array | None]:
        """The lines of a map column, and which rows have an id among them (None: no row)."""
        # The children of a sliced array are whole; its offsets point into them.
        names, values, starts = column.keys.cast(pa.string()), column.items, column.offsets
        if not _is_text(values.type):
            names = names.take(pc.list_parent_indices(values))
            counts = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int32())
            sums = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
            starts = sums.take(starts)
            values = pc.list_flatten(values)
        values = values.cast(pa.string())
        self._check_lines(names, values, starts)
        named = None
        is_id = pc.equal(names, _ID_NAME)
        if pc.any(is_id).as_py():
            bounds = starts.to_pylist()
            rows = {
                bisect.bisect_right(bounds, i) - 1 for i, yes in enumerate(is_id) if yes.as_py()
            }
            named = pa.array([row in rows for row in range(len(column))])
        lines = _join(_binary(names), _COLON, _binary(values), _CRLF)
        return _regrouped(lines, starts, column), named

    def _check_lines(self, names: pa.Array, values: pa.Array, starts: pa.Array) -> None:
        bounds: list[int] = []
        for mask, reason in (
            (pc.match_substring_regex(names, _BAD_NAME), "the name is not printable ASCII"),
            (pc.is_null(values), "the value is null"),
            (pc.match_substring_regex(values, _BAD_VALUE), "the value contains a line break"),
        ):
            if not pc.any(mask).as_py():
                continue
            # Entries before and behind the bounds belong to other slices of the same array.
            bounds = bounds or starts.to_pylist()
            index = pc.index(mask.slice(bounds[0], bounds[-1] - bounds[0]), True).as_py()
            if index >= 0:
                index += bounds[0]
                row = bisect.bisect_right(bounds, index) - 1
                raise RowError(
                    self._subject or "?",
                    f"{self._row(row)}: header {names[index].as_py()!r}: {reason}",
                )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def _numbers(self, count: int) -> pa.Array:
        if len(self._counting) < count:
            self._counting = pa.array(range(count), pa.int64())
        return self._counting.slice(0, count)

    def _row(self, row: int) -> str:
        return f"row {self.rows + row} of partition {self._partition}"

    def _fault(self, bad: pa.Array, reason: str) -> RowError:
        row = pc.index(bad, True).as_py()
        return RowError(self._subject or "?", f"{self._row(row)}: {reason}")


class _Zeros(Sequence[int]):
    """The codes of rows that all go to one subject."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return 0


def _scalar(text: str | bytes) -> pa.Scalar:
    return pa.scalar(text.encode() if isinstance(text, str) else text, _BINARY)


def _binary(array: pa.Array) -> pa.Array:
    return array.cast(_BINARY)


def _digits(numbers: pa.Array) -> pa.Array:
    return _binary(numbers.cast(pa.string()))


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _regrouped(lines: pa.Array, starts: pa.Array, column: pa.Array) -> pa.Array:
    """The lines of each row as one value: the same bytes under fewer offsets."""
    if not len(lines):
        return pa.array([b""] * len(column), _BINARY)
    _, offsets, content = lines.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, offsets]).take(starts)
    grouped = pa.Array.from_buffers(_BINARY, len(column), [None, ends.buffers()[1], content])
    return pc.if_else(pc.is_valid(column), grouped, _NOTHING) if column.null_count else grouped
