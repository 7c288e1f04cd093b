"""Rows that can be no messages, and why."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import STRING

NO_TEXT = pa.scalar(None, STRING)


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
        raise UnfitError(pc.if_else(pc.fill_null(bad, False), whys, NO_TEXT))


def sound(values: pa.Array, bad: pa.Array, reason: str | None = None) -> pa.Array:
    """
    The values but those that are bad, which are null.

    Raises:
        UnfitError: There are such, and there is a reason against it.
    """
    if reason is not None:
        refuse(bad, reason)
    elif pc.any(bad).as_py():
        return pc.if_else(bad, NO_TEXT, values)
    return values
