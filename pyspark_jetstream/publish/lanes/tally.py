"""What a lane counts for its caller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...outbox.messages import Messages
from .answers import Outcome, Refusal

BROKEN: Final = "the connection broke"


@dataclass(slots=True)
class Tally:
    """Counts of a lane; its caller takes sets, dictionaries and lists, and clears them."""

    acked: int = 0
    """Messages stored."""
    duplicates: int = 0
    """Messages among `acked` that the stream already had, as far as its PubAcks say."""
    retries: int = 0
    """Publishes sent again."""
    ignored: int = 0
    """Sendings that failed for a cause unrelated to the server's load."""
    stored_in: dict[str, int] = field(default_factory=dict)
    """
    The streams that stored messages of the lane, as PubAcks name them, each with the sequence of
    the one that was acknowledged last; duplicates do not count. Not to clear.
    """
    pushed_back: int = 0
    """Number of push-backs."""
    refusals: set[Refusal] = field(default_factory=set)
    """Recent refusals of the server."""
    push_backs: dict[str, float] = field(default_factory=dict)
    """
    Subjects on which the server pushed back recently, at least one of each stream. The time is when
    the lane tries again; after silence, when it noticed.
    """
    rejected: list[tuple[Messages, Outcome]] = field(default_factory=list)
    """Messages that left the lane because the server will never store them, with its answers."""
