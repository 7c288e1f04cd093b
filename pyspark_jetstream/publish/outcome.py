"""
The outcome of a task's rows: how many there were, and where they are.

Rule 1: no I/O, and nothing else is imported: the driver adds outcomes up.
"""

from __future__ import annotations

from typing import NamedTuple


class Written(NamedTuple):
    """The outcome of a task's rows."""

    rows: int
    acked: int
    """Rows that are stored, dead letters aside."""
    duplicates: int
    """Acked rows that a stream had already, by their `Nats-Msg-Id`, as far as PubAcks tell."""
    retries: int
    """Publishes sent again."""
    lost: int = 0
    """Rows that the mapping loses, as its weights say."""
    already_stored: int = 0
    """Rows that an earlier attempt had stored; they were not published again."""
    dead_letters: int = 0
    """Rows that were shed or rejected and are stored elsewhere (`deadLetterSubject`)."""
    dropped: int = 0
    """Rows that were shed and are gone (`overloadPolicy=drop`)."""

    @property
    def adds_up(self) -> bool:
        """Whether the place of every row is known."""
        elsewhere = self.dead_letters + self.dropped
        return self.rows == self.acked + self.lost + self.already_stored + elsewhere
