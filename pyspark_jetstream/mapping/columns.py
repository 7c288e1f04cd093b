"""
Columns of subjects: positions of their tokens, hashes, and subjects joined from parts.

Rule 1: no Python object for any row; every step is an Arrow kernel over the whole column.
Rule 2: nothing here knows mapping rules, performs I/O or reads a clock.

A column of text is one buffer of bytes and the offsets between its rows. So a *run* (some bytes of
each row) is two columns of positions; it becomes text without being searched or copied by giving
the same bytes other offsets, and rows of several parts become one row by dropping the offsets
between the parts. Splitting and joining by Arrow's own kernels costs three times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import INT32, between, every, int32, is_all, numbers, offsets, take, where, woven
from .rule import fnv1a32

_UINT32: Final = pa.uint32()
_DOT: Final = pa.scalar(ord("."), pa.uint8())
_PRIME: Final = pa.scalar(0x01000193, _UINT32)
_SPAN: Final = 8
"""Bytes behind the shortest row's end after which the hash drops rows that have ended."""


class Part(NamedTuple):
    """One part of every row: row r has the text `pool[at[r]]`."""

    pool: pa.Array
    """BINARY: the texts that rows refer to."""

    at: pa.Array | int
    """Int32; or the step between rows: 0 where all have the first text, 1 where each its own."""


class Tokens:
    """
    The tokens of a column of subjects, or of some of its rows.

    `rows` says which (None: all); everything else is about these rows in their order. Positions
    are indexes into `bytes`. Good for columns of up to 2 GiB of text without nulls.
    """

    def __init__(
        self,
        text: pa.Buffer,
        dots: pa.Array,
        begin: pa.Array,
        end: pa.Array,
        first: pa.Array,
        counts: int | pa.Array,
        rows: pa.Array | None = None,
    ) -> None:
        self.begin = begin
        self.end = end
        self.rows = rows
        self._text = text
        self._dots = dots
        """Positions of all dots of the whole column."""
        self._first = first
        """Index in `_dots` of each row's first one."""
        self._counts = counts
        """Number of dots in each row; a single number where all rows have the same."""
        self._starts: dict[int, pa.Array] = {}
        self._ends: dict[int, pa.Array] = {}

    @classmethod
    def of(cls, subjects: pa.Array) -> Tokens:
        """The tokens of a column that has at least one row."""
        rows = len(subjects)
        text, ends = _text_of(subjects)
        begin, end = ends.slice(0, rows), ends.slice(1)
        dots = numbers(text.size).filter(pc.equal(_bytes_of(text), _DOT))
        per_row, rest = divmod(len(dots), rows)
        if not rest:
            tokens = cls(text, dots, begin, end, every(per_row, rows), per_row)
            if tokens._is_regular():
                return tokens
        counts = pc.count_substring(subjects, ".")
        return cls(text, dots, begin, end, pc.subtract(pc.cumulative_sum(counts), counts), counts)

    def __len__(self) -> int:
        return len(self.begin)

    def __repr__(self) -> str:
        return f"<Tokens of {len(self)} rows>"

    @property
    def bytes(self) -> pa.Array:
        """The text of the whole column, as numbers."""
        return _bytes_of(self._text)

    def take(self, rows: pa.Array) -> Tokens:
        """The tokens of some of these rows."""
        counts = self._counts
        return Tokens(
            self._text,
            self._dots,
            take(self.begin, rows),
            take(self.end, rows),
            take(self._first, rows),
            counts if isinstance(counts, int) else take(counts, rows),
            self.rows_of(rows),
        )

    def rows_of(self, rows: pa.Array) -> pa.Array:
        """Some of these rows, by their places in the whole column."""
        return rows if self.rows is None else take(self.rows, rows)

    def by_count(self) -> Iterator[tuple[int, Tokens]]:
        """The rows by how many tokens they have; 0 stands for those with an empty token."""
        if isinstance(self._counts, int):
            yield self._counts + 1, self
            return
        for dots, rows in group_rows(self._counts):
            tokens = self.take(rows)
            tokens._counts = dots
            sound = pc.greater(tokens.end_of(0), tokens.begin)
            for index in range(1, dots + 1):
                sound = pc.and_(sound, pc.greater(tokens.end_of(index), tokens.start_of(index)))
            if is_all(sound):
                yield dots + 1, tokens
                continue
            for count, mask in ((dots + 1, sound), (0, pc.invert(sound))):
                if len(some := where(mask)):
                    yield count, tokens.take(some)

    def _is_regular(self) -> bool:
        """
        Whether all rows have as many dots as they have on the average, and no token is empty.

        So it is if the first and the last of its share lie within each row and not at its edge,
        and no dot follows another at once.
        """
        if not isinstance(self._counts, int) or not self._counts:
            return is_all(pc.greater(self.end, self.begin))
        inside = pc.and_(
            pc.greater(self.end_of(0), self.begin),
            pc.greater(self.end, self.start_of(self._counts)),
        )
        gaps = pc.subtract(self._dots.slice(1), self._dots.slice(0, len(self._dots) - 1))
        return is_all(inside) and pc.min(gaps).as_py() != 1

    def start_of(self, index: int) -> pa.Array:
        """Position where the token begins; all rows have the same number of tokens."""
        if index == 0:
            return self.begin
        if (start := self._starts.get(index)) is None:
            start = self._starts[index] = pc.add(self.end_of(index - 1), int32(1))
        return start

    def end_of(self, index: int) -> pa.Array:
        """Position where the token ends; all rows have the same number of tokens."""
        if index == self._counts:
            return self.end
        if (end := self._ends.get(index)) is None:
            end = self._ends[index] = take(self._dots.slice(index), self._first)
        return end

    def run(self, start: pa.Array, end: pa.Array) -> Part:
        """The bytes of each row from one position to the other."""
        # Every second text is the run, those between them are never taken.
        return Part(between(woven([start, end]), self._text), 2)

    def text(self, start: pa.Array, end: pa.Array) -> pa.Array:
        """The bytes from one position to the other as a column of its own, binary."""
        return joined([self.run(start, end)], len(self))


def fnv1a32_of(
    tokens: Tokens, runs: Sequence[tuple[pa.Array, pa.Array]], beginning: str = ""
) -> pa.Array:
    """The 32-bit FNV-1a hash of a beginning that all rows share and of some runs behind it."""
    state: pa.Scalar | pa.Array = pa.scalar(fnv1a32(beginning.encode()), _UINT32)
    for start, end in runs:
        state = _hashed(state, tokens.bytes, start, pc.subtract(end, start), 0)
    return pa.repeat(state, len(tokens)) if isinstance(state, pa.Scalar) else state


def _hashed(
    state: pa.Scalar | pa.Array, text: pa.Array, start: pa.Array, sizes: pa.Array, at: int
) -> pa.Array:
    """Byte by byte over all rows at once, from byte `at` on; no row ends before it."""
    shortest, longest = (pc.min_max(sizes)[name].as_py() for name in ("min", "max"))
    until = min(longest, shortest + max(_SPAN, at))
    if until > shortest:  # then some positions lie behind the last row
        text = pa.concat_arrays([text, pa.repeat(pa.scalar(0, text.type), until)])
    for index in range(at, until):
        byte = take(text.slice(index), start)
        hashed = pc.multiply(pc.bit_wise_xor(byte, state), _PRIME)  # wraps around, as it should
        if index >= shortest:
            hashed = pc.if_else(pc.greater(sizes, int32(index)), hashed, state)
        state = hashed
    if until < longest:
        longer = pc.greater(sizes, int32(until))
        few = [column.filter(longer) for column in (state, start, sizes)]
        state = pc.replace_with_mask(state, longer, _hashed(few[0], text, few[1], few[2], until))
    return state


def modulo(values: pa.Array, divisor: int) -> pa.Array:
    """The remainders of uint32 values; Arrow has a kernel for them only since version 23."""
    by = pa.scalar(divisor, _UINT32)
    if not divisor & (divisor - 1):
        return pc.bit_wise_and(values, pa.scalar(divisor - 1, _UINT32))
    return pc.subtract(values, pc.multiply(pc.divide(values, by), by))


def joined(parts: Sequence[Part], rows: int) -> pa.Array:
    """The parts of each row as one text, binary."""
    places: list[pa.Array] = []
    filled = 0
    for pool, at in parts:
        if isinstance(at, int):
            places.append(every(at, rows, filled))
        else:
            places.append(pc.add(at, int32(filled)) if filled else at)
        filled += len(pool)
    if len(parts) == 1:
        return take(parts[0].pool, places[0])
    pieces = take(pa.concat_arrays([part.pool for part in parts]), woven(places))
    return between(take(offsets(pieces), every(len(parts), rows + 1)), pieces.buffers()[2])


def merged(pieces: Sequence[tuple[pa.Array, pa.Array]]) -> pa.Array:
    """One column of several, given the rows of each."""
    order = pc.array_sort_indices(pa.concat_arrays([rows for rows, _ in pieces]))
    return pa.concat_arrays([column for _, column in pieces]).take(order)


def group_rows(codes: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Each code with its rows, in order; rows whose code is null are left out."""
    if codes.null_count == len(codes):
        return
    order = pc.array_sort_indices(codes).cast(INT32)  # stable, and nulls come last
    distinct, counts = pc.value_counts(codes).flatten()
    at = 0
    pairs = zip(distinct.to_pylist(), counts.to_pylist(), strict=True)
    for code, count in sorted(pair for pair in pairs if pair[0] is not None):
        yield code, order.slice(at, count)
        at += count


def _text_of(subjects: pa.Array) -> tuple[pa.Buffer, pa.Array]:
    """The bytes of a column, which may be a slice of another, and the offsets into them."""
    ends = offsets(subjects)
    first, last = ends[0].as_py(), ends[-1].as_py()
    text = subjects.buffers()[2].slice(first, last - first)
    return text, pc.subtract(ends, int32(first)) if first else ends


def _bytes_of(text: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), text.size, [None, text])
