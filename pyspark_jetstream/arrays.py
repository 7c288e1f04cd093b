"""
Small Arrow helpers: constants, columns of bytes, positions, the place of a value among its equals.

Rule 1: Arrow kernels, no loop over rows.

A column of bytes is one buffer and the offsets between its rows (`offsets`), so some of the bytes
of each row become a column of their own by other offsets alone (`between`). Positions are INT32, as
offsets are, unless a docstring says INT64; a bare Python number would make INT64 of them (`int32`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

BINARY: Final = pa.binary()
INT32: Final = pa.int32()
STRING: Final = pa.string()

CRLF: Final = pa.scalar(b"\r\n", BINARY)
NOTHING: Final = pa.scalar(b"", BINARY)

REST: Final = 1 << 30
"""`stop` of a slice that goes to the end; the largest integer overflows in Arrow."""

_TWO_TO_32: Final = pa.scalar(1 << 32, pa.int64())
_TAKE: Final = pc.get_function("array_take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


# ── scalars ──────────────────────────────────────────────────────────────────────────────────


def scalar(text: str | bytes) -> pa.Scalar:
    """BINARY: these bytes, of a str its UTF-8."""
    return pa.scalar(text.encode() if isinstance(text, str) else text, BINARY)


@lru_cache(maxsize=256)
def int32(number: int | None) -> pa.Scalar:
    """INT32: this number, or null."""
    return pa.scalar(number, INT32)


def is_all(flags: pa.Array) -> bool:
    """Whether no value of a column of BOOL is false; so it is of none."""
    return bool(pc.all(flags, min_count=0).as_py())


# ── bytes ────────────────────────────────────────────────────────────────────────────────────


def is_text(type: pa.DataType) -> bool:
    """Whether it is one of the forms of STRING."""
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def binary(array: pa.Array) -> pa.Array:
    """The same bytes as BINARY."""
    return array.cast(BINARY)


def digits(numbers: pa.Array) -> pa.Array:
    """BINARY: integers in decimal."""
    return numbers.cast(STRING).cast(BINARY)


def integers(digits: pa.Array) -> pa.Array:
    """
    INT64: what `digits` made of them.

    Raises:
        pa.ArrowInvalid: One is no number.
    """
    return digits.cast(STRING).cast(pa.int64())


def is_digits(texts: pa.Array) -> bool:
    """Whether each value of BINARY is a number in decimal, without a sign."""
    if not len(texts):
        return True
    ends = offsets(texts)
    begin, end = ends[0].as_py(), ends[-1].as_py()
    text = texts.buffers()[2].slice(begin, end - begin).to_pybytes()
    return bool(text.isdigit() and pc.min(pc.binary_length(texts)).as_py() > 0)


def join(*parts: Any) -> pa.Array:
    """BINARY: the parts of each row behind each other; null where one is null."""
    return pc.binary_join_element_wise(*parts, NOTHING)


def offsets(texts: pa.Array) -> pa.Array:
    """INT32, one more than rows: where each begins in the buffer of bytes, and the last ends."""
    count = len(texts) + 1
    return pa.Array.from_buffers(INT32, count, [None, texts.buffers()[1]], offset=texts.offset)


def between(ends: pa.Array, text: pa.Buffer) -> pa.Array:
    """BINARY, one less than `ends` (INT32, no slice): the bytes from each position to the next."""
    return pa.Array.from_buffers(BINARY, len(ends) - 1, [None, ends.buffers()[1], text])


# ── positions ────────────────────────────────────────────────────────────────────────────────


def places(count: int) -> pa.Array:
    """INT64: 0, 1, 2 … `count` of them."""
    return _counted(count.bit_length(), wide=True).slice(0, count)


def numbers(count: int) -> pa.Array:
    """INT32: 0, 1, 2 … `count` of them."""
    return _counted(count.bit_length(), wide=False).slice(0, count)


@lru_cache(maxsize=64)  # of either width all sizes together are twice the largest
def _counted(bits: int, wide: bool) -> pa.Array:
    positions = pc.indices_nonzero(pa.repeat(pa.scalar(True), 1 << bits))
    return positions.cast(pa.int64() if wide else INT32)


def every(step: int, count: int, first: int = 0) -> pa.Array:
    """INT32: `count` numbers from `first` on, `step` apart."""
    return _stepped(step, count.bit_length(), first).slice(0, count)


@lru_cache(maxsize=64)
def _stepped(step: int, bits: int, first: int) -> pa.Array:
    return pc.add(pc.multiply(_counted(bits, wide=False), int32(step)), int32(first))


def where(mask: pa.Array) -> pa.Array:
    """INT32: the rows where a column of BOOL is true."""
    return pc.indices_nonzero(mask).cast(INT32)


def take(values: pa.Array, indexes: pa.Array) -> pa.Array:
    """`pc.take` without checks, and without building its options anew at every call."""
    return _TAKE.call([values, indexes], _UNCHECKED)


def woven(columns: Sequence[pa.Array]) -> pa.Array:
    """INT32: row 0 of every column (INT32), then row 1 of every column, and so on."""
    rows = len(columns[0])
    if len(columns) == 2:  # each pair is one number of twice the width
        pairs = pc.add(pc.multiply(columns[1], _TWO_TO_32), columns[0])
        return pa.Array.from_buffers(INT32, 2 * rows, [None, pairs.buffers()[1]])
    return take(pa.concat_arrays(columns), _weave(len(columns), rows))


@lru_cache(maxsize=8)
def _weave(columns: int, rows: int) -> pa.Array:
    """Place of row r of column c when the columns stand one after another."""
    place = numbers(columns * rows)
    row = pc.divide(place, int32(columns))
    column = pc.subtract(place, pc.multiply(row, int32(columns)))
    return pc.add(pc.multiply(column, int32(rows)), row)


def bounds(sizes: pa.Array) -> pa.Array:
    """INT32, one more than `sizes`: where values of them begin, behind each other, and the end."""
    return pa.concat_arrays([pa.array([0], INT32), pc.cumulative_sum(sizes.cast(INT32))])


def view(numbers: pa.Array) -> Sequence[int]:
    """A column of INT32 or INT64, without nulls, as a sequence; it is not copied."""
    held = memoryview(numbers.buffers()[1] or b"")
    start = numbers.offset
    return held.cast("i" if numbers.type == INT32 else "q")[start : start + len(numbers)]


# ── groups ───────────────────────────────────────────────────────────────────────────────────


def entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """
    Offsets of each row's entries in a column of MAP, INT32 and one more than rows; all keys; all
    values.
    """
    # The children of a sliced array are whole; its offsets point into them.
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    starts = pc.subtract(maps.offsets, int32(first))
    return starts, maps.keys.slice(first, last - first), maps.items.slice(first, last - first)


def ranks(groups: pa.Array) -> pa.Array:
    """INT64: of each row, how many of its group are before it."""
    order = pc.sort_indices(groups)
    ordered = groups.take(order)
    here = places(len(groups))
    first = of_groups(ordered, here, "min")
    return pc.subtract(here, first(ordered)).take(pc.sort_indices(order))


def of_groups(groups: pa.Array, values: pa.Array, function: str) -> Callable[[pa.Array], pa.Array]:
    """Gives for groups the least or largest of their values; null for a group without any."""
    table = pa.table({"group": groups, "value": values})
    aggregated = table.group_by("group", use_threads=False).aggregate([("value", function)])
    known = aggregated["group"].combine_chunks()
    of_known = aggregated[f"value_{function}"].combine_chunks()
    return lambda asked: of_known.take(pc.index_in(asked, known))
