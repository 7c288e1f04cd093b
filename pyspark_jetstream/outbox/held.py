"""
Rows that wait for the end of an operator's pause, or of the server's refusals.

Rule 1: no I/O and no clock; no row and no subject is looked at by Python.

They lie here until somebody takes them all and asks again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from .messages import Messages
from .rowqueue import RowQueue


class Held:
    """
    Args:
        by_subject: as in `RowQueue`.
    """

    def __init__(self, by_subject: bool) -> None:
        self.paused = RowQueue(by_subject)
        """Rows of subjects that operators pause."""
        self.refused = RowQueue(by_subject)
        """Rows of subjects that only the server refuses."""
        self.since = math.inf
        """Arrival time of the first of the paused rows."""
        self.sent = math.inf
        """When the first of the refused rows that were sent was; infinite where none was."""

    def __repr__(self) -> str:
        return f"<Held {len(self.paused)} paused, {len(self.refused)} refused>"

    def __len__(self) -> int:
        return len(self.paused) + len(self.refused)

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return self.paused.nbytes + self.refused.nbytes

    @property
    def distinct(self) -> list[Sequence[str]]:
        """Subjects of the rows, of each block."""
        return [*self.paused.distinct, *self.refused.distinct]

    def blocks(self) -> list[Messages]:
        """All rows, block by block."""
        return [*self.paused.blocks(), *self.refused.blocks()]

    def pause(self, block: Messages) -> None:
        """Takes rows of paused subjects."""
        if len(block):
            self.paused.append(block)
            self.since = min(self.since, pc.min(block.waits_since).as_py())

    def refuse(self, block: Messages) -> None:
        """Takes rows of subjects that the server refuses."""
        if len(block):
            self.refused.append(block)
            if block.was_sent:
                self.sent = min(self.sent, pc.min(block.sent).as_py())

    def drop_paused(self, mask: pa.Array) -> None:
        """Lets go of paused rows, by a mask over all of them in the order of their numbers."""
        self.paused.remove(mask)
        self.since = self.paused.oldest()

    def clear_paused(self) -> list[Messages]:
        """Lets go of all paused rows; here they are."""
        self.since = math.inf
        return self.paused.clear()

    def clear_refused(self) -> list[Messages]:
        """Lets go of all refused rows; here they are."""
        self.sent = math.inf
        return self.refused.clear()
