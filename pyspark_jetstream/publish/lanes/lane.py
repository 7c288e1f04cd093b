"""What a lane is: a connection's way to publish the rows of one stream, or of all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from ...outbox.messages import Messages
from .answers import Outcome, Refusal
from .frames import Frames

BROKEN: Final = "the connection broke"

_EXPECTED: Final = re.compile(rb"(?m)^Nats-Expected-Last-(?:Subject-)?Sequence: ?(\d{1,18})\r$")
"""Header line that says behind which sequence a message is to be stored."""

_LOOKED_AT: Final = 16
"""Upper bound of the messages of a batch that are looked for."""


class Rejected(NamedTuple):
    """A message the server will never store."""

    message: Messages
    outcome: Outcome
    """The server's answer."""


class Doubted(NamedTuple):
    """
    Messages that the server refuses for what a subject has, and may have stored before: all of
    them, or none.
    """

    messages: Messages
    outcome: Outcome
    """The server's answer."""
    ordinal: int = -1
    """Of a message that was sent by itself."""

    def places(self) -> Iterator[tuple[int, str, int, bytes]]:
        """
        Where an earlier sending would have stored some of them: the target, the subject, the
        sequence that it expected to be the last one there, and the message's id.
        """
        targets, ids, lines = self.messages.targets, self.messages.ids, self.messages.lines
        if targets is None or ids is None or lines is None:
            return
        found = zip(self.messages.codes, lines.to_pylist(), ids.to_pylist(), strict=True)
        expecting = ((code, _EXPECTED.search(line or b""), id) for code, line, id in found)
        left = _LOOKED_AT
        for code, expected, id in expecting:
            place = targets[code].as_py()
            if expected is not None and place is not None and id is not None and left > 0:
                left -= 1
                yield place, self.messages.distinct[code], int(expected[1]), id


class Lane(Protocol):
    """A lane as the publisher uses it."""

    @property
    def acked(self) -> int:
        """Messages stored."""

    @property
    def duplicates(self) -> int:
        """Messages among `acked` that the stream already had, as far as its PubAcks say."""

    @property
    def retries(self) -> int:
        """Publishes sent again."""

    @property
    def ignored(self) -> int:
        """Sendings that failed for a cause unrelated to the server's load."""

    @property
    def late_retries(self) -> int:
        """
        Retries of messages that may be stored already, and whose ids their stream has forgotten.
        """

    @property
    def stored_in(self) -> Mapping[str, int]:
        """
        The streams that stored messages of the lane, as PubAcks name them. Each stream has a
        sequence at or below that of its first message; duplicates do not count.
        """

    @property
    def unanswered(self) -> int:
        """Publishes that were sent and are not stored: in flight, or waiting to be sent again."""

    @property
    def limit(self) -> int:
        """The most publishes that may be in flight."""

    @property
    def bytes_in_flight(self) -> int:
        """
        Bytes of the publishes that were sent and are not stored. A refused publish that waits to be
        sent again counts; an atomic batch that waits does not.
        """

    @property
    def is_midway(self) -> bool:
        """Whether the server answers the publishes in flight only when more are sent."""

    @property
    def is_frozen(self) -> bool:
        """Whether the lane sends no new message until the refused and lost ones are settled."""

    @property
    def refusals(self) -> set[Refusal]:
        """Recent refusals of the server. The caller clears the set."""

    @property
    def push_backs(self) -> dict[str, float]:
        """
        Subjects on which the server pushed back recently, at least one of each stream. The time is
        when the lane tries again; after silence, when it noticed. The caller clears them.
        """

    @property
    def rejected(self) -> list[Rejected]:
        """
        Messages that left the lane because the server will never store them. The caller clears the
        list.
        """

    @property
    def doubted(self) -> list[Doubted]:
        """
        Messages that wait for somebody to look whether an earlier sending is what the server
        refuses them for. The caller settles each entry, and clears the list.
        """

    @property
    def repeated(self) -> list[Messages]:
        """
        Messages sent for the first time whose ids their stream already had, as far as the server
        reports duplicates. The caller clears the list.
        """

    @property
    def wants_rows(self) -> bool:
        """Whether no offered message waits to be sent, or sent again, so that more may come."""

    @property
    def busy(self) -> bool:
        """Whether any offered message is not stored."""

    @property
    def give_up_at(self) -> float:
        """The deadline of the oldest message in flight; infinite when there is none."""

    def offer(self, messages: Messages) -> None:
        """Queues messages behind those offered before."""

    def ready(self, now: float, max_bytes: int) -> Frames | None:
        """
        The frames to send now, about `max_bytes` at most; None when there are none. With
        `max_bytes=0` the lane sends only what it cannot do without: retries, and requests for an
        answer.
        """

    def on_reply(
        self, token: bytes, status: int, description: str, data: bytes, now: float
    ) -> None:
        """Handles the reply with this token."""

    def settle(self, doubted: Doubted, is_stored: bool, now: float) -> None:
        """Counts doubted messages as stored, or as rejected."""

    def on_disconnect(self, why: str = BROKEN) -> None:
        """
        Handles a broken connection: each publish in flight may or may not be stored.

        Args:
            why: it broke, for the error of publishes whose time ends before they are stored.
        """

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """
        Gives back the unsent messages, and the messages to retry whose subject is paused, with the
        times of their first sending. Nothing goes out on a paused subject until offered again.

        Args:
            unsent: whether to give back the unsent messages.
        """

    def has_paused(self, is_paused: Callable[[str], bool]) -> bool:
        """Whether an unsent message may be on a paused subject."""

    def expire(self, now: float) -> None:
        """Applies deadlines. Call it after all replies that have arrived were handed in."""

    def next_deadline(self, now: float) -> float:
        """The time for the next `ready` and `expire` if no reply comes; infinite when never."""

    def lower_publish_timeout(self, publish_timeout_s: float) -> None:
        """Lowers the publish timeout of all messages to this, if it is lower."""

    def lower_id_memory(self, after_s: float) -> None:
        """Lowers the time after which streams are taken to forget message ids to this."""

    def set_round_trip(self, round_trip_s: float) -> None:
        """Sets the time between a PING and its PONG."""

    def expect(self, more: bool) -> None:
        """Sets whether more rows may come."""


def earliest(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By stream, the lowest of its sequences."""
    lowest: dict[str, int] = {}
    for sequences in each:
        for stream, sequence in sequences.items():
            lowest[stream] = min(sequence, lowest.get(stream, sequence))
    return lowest
