"""
A queue of rows: blocks come in, rows leave in the order of sending.

Rule 1: no I/O and no clock; a few kernels over the rows, no loop.

Rows come and go in blocks. Where all are of one priority a block goes as it came; else the order is
worked out once (overload.md §7), and is known until another row comes or leaves: subjects by their
most urgent row, in turns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import of_groups, places, ranks
from .messages import Messages, size
from .priority import Priority

PLACE_BITS: Final = 24
"""Bits of a row's place in the sort key; more rows than this are not sorted at one time."""


class RowQueue:
    """
    Rows that wait.

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
                self._next = in_order(block, self._by_subject)
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


def in_order(messages: Messages, by_subject: bool) -> pa.Array:
    """
    The places of the rows, which are in the order of arrival, in the order in which they go.

    Args:
        by_subject: whether rows of a subject keep their order; if not, each goes by its priority.
    """
    subjects, own, here = messages.indices, messages.urgency, places(len(messages))
    if not by_subject:
        return pc.sort_indices(pc.add(pc.shift_left(own.cast(pa.int64()), PLACE_BITS), here))
    classes = _classes(subjects, own)
    # Of each subject and class one row a turn; of those of a turn, the first that came.
    turns = ranks(pc.add(pc.multiply(subjects.cast(pa.int64()), 3), classes))
    keys = pc.add(
        pc.shift_left(classes.cast(pa.int64()), 2 * PLACE_BITS),
        pc.shift_left(turns.cast(pa.int64()), PLACE_BITS),
    )
    return pc.sort_indices(pc.add(keys, here))


def _classes(subjects: pa.Array, priorities: pa.Array) -> pa.Array:
    """INT8: of each row, the most urgent priority of its subject from it on (§7.1 to §7.3)."""
    here = places(len(subjects))
    classes = pa.repeat(Priority.NON_CRITICAL.code, len(subjects))
    for priority in (Priority.NORMAL, Priority.CRITICAL):
        urgent = pc.less_equal(priorities, priority.code)
        last = of_groups(subjects.filter(urgent), here.filter(urgent), "max")
        last_urgent = last(subjects)
        dragged = pc.fill_null(pc.less_equal(here, last_urgent), False)
        classes = pc.if_else(dragged, priority.code, classes)
    return classes
