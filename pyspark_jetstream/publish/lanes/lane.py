"""What a lane is: a connection's way to publish the rows of one stream, or of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from ...outbox.messages import Messages
from .answers import Outcome, Refusal
from .frames import Frames

__all__ = ["Lane", "Rejected", "earliest"]


class Rejected(NamedTuple):
    """A message the server will never store."""

    message: Messages
    outcome: Outcome
    """What the server answered."""


class Lane(Protocol):
    """What the publisher needs of a lane."""

    @property
    def acked(self) -> int:
        """Messages stored."""

    @property
    def duplicates(self) -> int:
        """Of those: which the stream had already, as far as it says."""

    @property
    def retries(self) -> int:
        """Publishes sent again."""

    @property
    def ignored(self) -> int:
        """Sendings that failed for a cause that says nothing of the server's load."""

    @property
    def late_retries(self) -> int:
        """Of the retries: of what may be stored, and whose id its stream has forgotten."""

    @property
    def stored_in(self) -> Mapping[str, int]:
        """
        The streams that have messages of the lane, as PubAcks name them, and a sequence that the
        first one's is not beyond; those that they had already aside.
        """

    @property
    def unanswered(self) -> int:
        """Publishes that were sent and are not stored."""

    @property
    def limit(self) -> int:
        """How many publishes may be on the wire."""

    @property
    def bytes_in_flight(self) -> int:
        """Bytes on the wire without an answer."""

    @property
    def is_midway(self) -> bool:
        """Whether what it has on the wire is answered only when more is sent."""

    @property
    def is_frozen(self) -> bool:
        """Whether nothing new goes out until what was refused or lost is settled."""

    @property
    def refusals(self) -> set[Refusal]:
        """What the server refused of late; who looks at them clears them."""

    @property
    def push_backs(self) -> dict[str, float]:
        """
        Subjects on which the server pushed back of late, of each stream one at least, and until
        when nothing is tried; who looks at them clears them.
        """

    @property
    def rejected(self) -> list[Rejected]:
        """What left the lane as the server will never store it; who takes them clears them."""

    @property
    def repeated(self) -> list[Messages]:
        """
        What its stream had already by the id, though it was not sent before, as far as the server
        tells; who takes them clears them.
        """

    @property
    def wants_rows(self) -> bool:
        """Whether everything offered is on its way, so that more may come."""

    @property
    def busy(self) -> bool:
        """Whether any offered message is not stored."""

    @property
    def give_up_at(self) -> float:
        """When the oldest message on its way has to be stored; infinite when there is none."""

    def offer(self, messages: Messages) -> None:
        """Takes the messages that follow those offered before."""

    def ready(self, now: float, max_bytes: int) -> Frames | None:
        """
        The frames to send now, about `max_bytes` at most; None when there are none. With 0 only
        what the lane cannot do without: to send again, or to ask.
        """

    def answered(
        self, token: bytes, status: int, description: str, data: bytes, now: float
    ) -> None:
        """A reply came."""

    def broken(self) -> None:
        """The connection broke: what is on the wire may be stored or not."""

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """
        Gives back the messages that were not sent, and those to be sent again whose subject is
        paused, with the time of that. So nothing goes out on a paused subject until offered again.

        Args:
            unsent: whether the former are wanted.
        """

    def holds(self, is_paused: Callable[[str], bool]) -> bool:
        """Whether any that was not sent may go to a subject that is paused."""

    def expire(self, now: float) -> None:
        """Time passes; call it when all replies that have arrived were handed in."""

    def next_deadline(self, now: float) -> float:
        """When to call `ready` and `expire` again if nothing happens; infinite when never."""

    def narrow(self, publish_timeout_s: float) -> None:
        """Gives messages less time, if that is less than they have."""

    def forget(self, after_s: float) -> None:
        """A stream of its rows knows their message ids for so long."""

    def set_round_trip(self, round_trip_s: float) -> None:
        """How long a PING takes to the server and its PONG back."""

    def expect(self, more: bool) -> None:
        """Whether more rows may come, and the lane is driven meanwhile."""

    def unread(self) -> None:
        """Replies handed in before the next `ready` may have come long ago."""


def earliest(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By stream, the lowest of its sequences."""
    lowest: dict[str, int] = {}
    for sequences in each:
        for stream, sequence in sequences.items():
            lowest[stream] = min(sequence, lowest.get(stream, sequence))
    return lowest
