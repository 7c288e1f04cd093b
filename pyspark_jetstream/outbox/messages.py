"""
Messages on their way out, by the column: subjects, payloads, header lines, ids, priorities.

Rule 1: no I/O and no clock; a few kernels over the rows, no loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, NOTHING, STRING, numbers, view
from .priority import Priority, in_order

FRAMING_BYTES: Final = len(b"NATS/1.0\r\n\r\n")
"""Bytes of a header block beside its lines."""

_FRAME_BYTES: Final = 256
"""
Upper bound of a frame's bytes beside subject, headers and data: verb, reply, sizes, line ends.
"""

_NO_TEXT: Final = pa.scalar(None, STRING)

_FILLERS: Final = {
    "lines": NOTHING,
    "ids": pa.scalar(None, BINARY),
    "priorities": Priority.NORMAL.code,
    "since": pa.scalar(None, pa.float64()),
    "faults": pa.scalar(None, pa.string()),
}
"""Columns of `Messages` that may be None, and the value that each row has then."""

_COLUMNS: Final = ("subject", "data", "indices", "rows", *_FILLERS)
"""Columns of `Messages` with a value for each row."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows of one task as messages, in order; their lane makes the frames."""

    subject: pa.Array
    """BINARY: where each goes."""
    lines: pa.Array | None
    """BINARY: header lines of each, each with its CRLF; None when no row has any."""
    data: pa.Array
    """BINARY: the payload of each."""
    distinct: Sequence[str]
    """The distinct subjects."""
    indices: pa.Array
    """INT32: row i goes to distinct[indices[i]]."""
    targets: pa.Array
    """INT32: the stream, by its place in `Targets`, of each distinct subject; null for none."""
    rows: pa.Array
    """INT64: each row's number in the task's input."""
    ids: pa.Array | None = None
    """BINARY: the message id of each, null for none; None when no row has any."""
    priorities: pa.Array | None = None
    """INT8: the `Priority` of each; None when all are normal."""
    since: Any = None
    """DOUBLE: when each was there to be sent (monotonic); None before they are queued."""
    faults: pa.Array | None = None
    """STRING: why each can be no message, null for those that can; None when all can."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def codes(self) -> Sequence[int]:
        """`indices` as a sequence of integers."""
        return view(self.indices)

    @property
    def urgency(self) -> pa.Array:
        """INT8: the `Priority` of each."""
        if self.priorities is not None:
            return self.priorities
        return pa.repeat(Priority.NORMAL.code, len(self))

    @property
    def row_targets(self) -> pa.Array:
        """INT32: the stream of each row, by its place in `Targets`; null for none."""
        return self.targets.take(self.indices)

    @property
    def subjects(self) -> list[str]:
        """The distinct subjects of these messages; `distinct` may have some of others, too."""
        return [self.distinct[code] for code in pc.unique(self.indices).to_pylist()]

    def parted(self) -> tuple[Messages, Messages | None]:
        """Rows that can be messages, and those that cannot, if there are such."""
        if self.faults is None:
            return self, None
        bad = pc.is_valid(self.faults)
        return replace(self.where(pc.invert(bad)), faults=None), self.where(bad)

    def slice(self, start: int, count: int | None = None) -> Messages:
        """`count` messages from the `start`-th on; all where it is left out."""
        return self._each(lambda array: array.slice(start, count))

    def where(self, mask: pa.Array) -> Messages:
        """Messages whose mask is true."""
        return self._each(lambda array: array.filter(mask))

    def take(self, places: pa.Array) -> Messages:
        """Messages in these places, in that order."""
        return self._each(lambda array: array.take(places))

    @staticmethod
    def joined(parts: Sequence[Messages]) -> Messages:
        """The messages of all parts, one at least, behind each other."""
        if len(parts) == 1:
            return parts[0]
        subject = pa.concat_arrays([part.subject for part in parts])
        encoded = subject.dictionary_encode()
        row_targets = pa.concat_arrays([part.row_targets for part in parts])
        codes = numbers(len(encoded.dictionary))
        return Messages(
            subject=subject,
            data=pa.concat_arrays([part.data for part in parts]),
            distinct=encoded.dictionary.cast(pa.string()).to_pylist(),
            indices=encoded.indices,
            targets=row_targets.take(pc.index_in(codes, encoded.indices)),
            rows=pa.concat_arrays([part.rows for part in parts]),
            **{
                name: _stacked([(getattr(part, name), len(part)) for part in parts], filler)
                for name, filler in _FILLERS.items()
            },
        )

    def _each(self, change: Any) -> Messages:
        changed = {
            name: change(column) for name in _COLUMNS if (column := getattr(self, name)) is not None
        }
        return replace(self, **changed)


def _stacked(parts: Sequence[tuple[pa.Array | None, int]], filler: pa.Scalar) -> pa.Array | None:
    """The arrays behind each other, the filler where there is none; None where there is none."""
    if all(array is None for array, _ in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(filler, count) if array is None else array for array, count in parts]
    )


def size(messages: Messages) -> int:
    """Bytes of all frames, at most."""
    return pc.sum(sizes(messages)).as_py() or 0


def sizes(messages: Messages) -> pa.Array:
    """INT64: bytes of each one's frame, at most."""
    frame_bytes = pc.add(pc.binary_length(messages.data), pc.binary_length(messages.subject))
    if messages.lines is not None:
        frame_bytes = pc.add(frame_bytes, pc.binary_length(messages.lines))
    return pc.add(frame_bytes.cast(pa.int64()), _FRAME_BYTES)


# ── rows that can be no messages ─────────────────────────────────────────────────────────────


class UnfitError(Exception):
    """
    Rows that can be no messages.

    Args:
        faults: STRING, what is wrong with each row; null for those that can be messages.
    """

    def __init__(self, faults: pa.Array) -> None:
        super().__init__(faults)
        self.faults = faults


def refuse(bad: pa.Array, reasons: str | pa.Array) -> None:
    """
    Args:
        bad: BOOL, which rows are.
        reasons: why all of them are, or each.

    Raises:
        UnfitError: There are such.
    """
    if pc.any(bad).as_py():
        whys = pa.scalar(reasons) if isinstance(reasons, str) else reasons
        raise UnfitError(pc.if_else(pc.fill_null(bad, False), whys, _NO_TEXT))


def sound(values: pa.Array, bad: pa.Array, reason: str | None = None) -> pa.Array:
    """
    The values but those that are bad, which are null.

    Raises:
        UnfitError: There are such, and there is a reason against it.
    """
    if reason is not None:
        refuse(bad, reason)
    elif pc.any(bad).as_py():
        return pc.if_else(bad, _NO_TEXT, values)
    return values


# ── messages that wait ───────────────────────────────────────────────────────────────────────


class RowQueue:
    """
    Rows that wait: blocks come in, rows leave in the order of sending.

    Where all are of one priority a block goes as it came; else the order is worked out once, and is
    known until another row comes or leaves.

    Args:
        by_subject: whether rows of a subject keep their order; if not, each goes by its priority.
    """

    def __init__(self, by_subject: bool) -> None:
        self.nbytes = 0
        self._rows = 0
        self._by_subject = by_subject
        self._blocks: deque[Messages] = deque()
        self._next: pa.Array | None = None
        """
        Places of the first block's rows that are here, in the order of sending; None where all are,
        or nothing is known of the order.
        """

    def __repr__(self) -> str:
        return f"<RowQueue {self._rows} rows, {self.nbytes} bytes>"

    def __len__(self) -> int:
        return self._rows

    @property
    def is_plain(self) -> bool:
        """Whether rows go as they came."""
        return all(block.priorities is None for block in self._blocks)

    @property
    def distinct(self) -> list[Sequence[str]]:
        """Subjects of the rows, of each block, and maybe of some that were here."""
        return [block.distinct for block in self._blocks]

    def append(self, block: Messages) -> None:
        """Takes rows that go behind the others of their subjects."""
        self._compact()
        if len(block):
            self._blocks.append(block)
            self._count(block, 1)

    def take(self, maximum: int) -> Messages | None:
        """The rows to go next, in order, `maximum` at most; None when there are none."""
        if not self._blocks or maximum <= 0:
            return None
        if self._next is None and not self.is_plain:
            block = self.merged()
            if self._rows > maximum:
                self._next = in_order(block.indices, block.urgency, self._by_subject)
        if self._next is not None:
            block = self._blocks[0].take(self._next.slice(0, maximum))
            self._next = self._next.slice(maximum)
        else:
            block = self._blocks.popleft()
            if (left := len(block) - maximum) > 0:
                self._blocks.appendleft(block.slice(maximum, left))
                block = block.slice(0, maximum)
        self._count(block, -1)
        if not self._rows:
            self.clear()
        return block

    def blocks(self) -> list[Messages]:
        """All rows, block by block."""
        self._compact()
        return list(self._blocks)

    def clear(self) -> list[Messages]:
        """Lets go of all rows; here they are."""
        blocks = self.blocks()
        self._blocks.clear()
        self._rows = self.nbytes = 0
        return blocks

    def merged(self) -> Messages:
        """All rows as one block in the order of the row numbers."""
        self._compact()
        if len(self._blocks) > 1:
            block = Messages.joined(list(self._blocks))
            rows = block.rows
            if pc.any(pc.less(rows.slice(1), rows.slice(0, len(rows) - 1))).as_py():
                block = block.take(pc.sort_indices(rows))
            self._blocks = deque([block])
        return self._blocks[0]

    def remove(self, mask: pa.Array) -> Messages:
        """The rows of the merged block whose mask is true; the others stay."""
        block = self.merged()
        removed = block.where(mask)
        if len(removed):  # else no row is copied
            self._count(removed, -1)
            self._blocks = deque([block.where(pc.invert(mask))] if self._rows else [])
        return removed

    @property
    def oldest(self) -> float:
        """When the first of the rows was there; infinite where there is none."""
        lefts = zip(self._blocks, chain((self._next,), repeat(None)), strict=False)
        times = (block.since if left is None else block.since.take(left) for block, left in lefts)
        return min((pc.min(each).as_py() for each in times), default=math.inf)

    def _compact(self) -> None:
        """Lets go of rows that are taken, and of the order of sending: something changes."""
        if self._next is not None:
            left, self._next = self._next.take(pc.sort_indices(self._next)), None
            self._blocks[0] = self._blocks[0].take(left)

    def _count(self, block: Messages, sign: int) -> None:
        self._rows += sign * len(block)
        self.nbytes += sign * size(block)
