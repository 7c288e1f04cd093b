"""
The order of waiting rows (overload.md §7): subjects by their most urgent row, in turns.

Rule 1: a few kernels over the rows, no loop.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import of_groups, places, ranks
from .messages import Messages
from .priority import Priority

PLACE_BITS: Final = 24
"""Bits of a row's place in the sort key; more rows than this are not sorted at one time."""


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
