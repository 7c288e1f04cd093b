"""
Common parts of all lanes: terms, counts, and messages about which the caller decides.

A lane is a connection's way to publish the rows of one stream, or of all. All look alike, so that
one loop (`publisher`) drives any mix of them: `asynclane` has the words of each member. Replies to
a lane arrive on `<prefix>.<token>`; the lane chooses its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...outbox.limits import GradientLimit
from ...outbox.messages import Messages
from .answers import Outcome, Refusal
from .retries import Deadlines

BROKEN: Final = "the connection broke"

_EXPECTED: Final = re.compile(rb"(?m)^Nats-Expected-Last-(?:Subject-)?Sequence: ?(\d{1,18})\r$")
"""Header line that says behind which sequence a message is to be stored."""

_LOOKED_AT: Final = 16
"""Upper bound of the messages of a batch that are looked for."""


class Doubted(NamedTuple):
    """
    Messages that the server refuses for what a subject has, and may have stored before: all of
    them, or none.
    """

    messages: Messages
    outcome: Outcome
    """The server's answer."""
    ordinal: int = -1
    """Ordinal of a message that was sent by itself."""

    def places(self) -> Iterator[tuple[int, str, int, bytes]]:
        """
        Places where an earlier sending would have stored some of them: the target, the subject, the
        sequence that it expected to be the last one there, and the message's id.
        """
        ids, lines = self.messages.ids, self.messages.lines
        if ids is None or lines is None:
            return
        found = zip(self.messages.codes, lines.to_pylist(), ids.to_pylist(), strict=True)
        expecting = ((code, _EXPECTED.search(line or b""), id) for code, line, id in found)
        left = _LOOKED_AT
        for code, expected, id in expecting:
            place = self.messages.targets[code].as_py()
            if expected is not None and place is not None and id is not None and left > 0:
                left -= 1
                yield place, self.messages.distinct[code], int(expected[1]), id


@dataclass(slots=True)
class Tally:
    """Counts of a lane; its caller takes sets, dictionaries and lists, and clears them."""

    acked: int = 0
    """Messages stored."""
    duplicates: int = 0
    """Messages among `acked` that the stream already had, as far as its PubAcks say."""
    retries: int = 0
    """Publishes sent again."""
    late_retries: int = 0
    """Retries of messages that may be stored already, and whose ids their stream has forgotten."""
    ignored: int = 0
    """Sendings that failed for a cause unrelated to the server's load."""
    stored_in: dict[str, int] = field(default_factory=dict)
    """
    The streams that stored messages of the lane, as PubAcks name them. Each stream has a sequence
    at or below that of its first message; duplicates do not count. Not to clear.
    """
    refusals: set[Refusal] = field(default_factory=set)
    """Recent refusals of the server."""
    push_backs: dict[str, float] = field(default_factory=dict)
    """
    Subjects on which the server pushed back recently, at least one of each stream. The time is when
    the lane tries again; after silence, when it noticed.
    """
    rejected: list[tuple[Messages, Outcome]] = field(default_factory=list)
    """Messages that left the lane because the server will never store them, with its answers."""
    doubted: list[Doubted] = field(default_factory=list)
    """
    Messages that wait for somebody to look whether an earlier sending is what the server refuses
    them for. The caller settles each.
    """
    repeated: list[Messages] = field(default_factory=list)
    """
    Messages sent for the first time whose ids their stream already had, as far as the server
    reports duplicates.
    """


@dataclass(slots=True)
class Outlook:
    """Facts about the server and the rows of a task for its lanes."""

    round_trip_s: float = 0.0
    """The time between a PING and its PONG."""
    more: bool = False
    """Whether more rows may come."""


class LaneTerms(NamedTuple):
    """Terms that a lane is made with, beside the place of its replies."""

    limit: GradientLimit
    """Bounds the publishes on the wire."""
    max_bytes: int
    """Upper bound of their bytes; one larger publish may still go alone."""
    deadlines: Deadlines
    outlook: Outlook
    strict: bool = False
    """
    Whether of each subject one goes at a time, so that nothing can be stored ahead of what the
    server refuses; of a lane of batches, among the rows that go one by one.
    """
    rejects: bool = False
    """Whether a message that the server will never store leaves the lane, or ends the task."""
    falls_back: bool = False
    """Whether rows go one by one where the stream takes no batches (any more), or the task ends."""


def earliest(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By stream, the lowest of its sequences."""
    lowest: dict[str, int] = {}
    for sequences in each:
        for stream, sequence in sequences.items():
            lowest[stream] = min(sequence, lowest.get(stream, sequence))
    return lowest
