"""
Publishes without an ack for their first sending: those that go again, since when, and until when.

Rule 1: no I/O and no clock; what goes again, and when, is the lane's to say.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ...errors import PublishError, PublishTimeoutError
from ...outbox.throttling.refusals import FIRST_PAUSE_S, pause_s
from ..options import WindowOptions
from .answers import Fate
from .frames import Publishes

HINTS: Final = {
    Fate.ABSENT: "; no stream listens on this subject: create it, check the subject, or enable"
    " JetStream for this account",
    Fate.LIMITED: "; lift the limit, or make room",
}
"""Advice about a publish that failed in the end."""

_OVERLOADED_S: Final = 0.01
"""First pause of a server that has too much to do: it may be over at once."""


@dataclass(slots=True)
class Trouble:
    """A publish whose first sending was not acked."""

    first_sent: float
    cause: str
    err_code: int = 0
    last_sent: float = 0.0
    sendings: int = 1
    waiting: bool = False
    unsure: float = math.inf
    """Time since which it may be stored, though no PubAck came."""

    def error(self, block: Publishes, ordinal: int, now: float) -> PublishError:
        """Error of a publish whose time is up."""
        tails = (tail for kind, tail in HINTS.items() if self.cause.startswith(kind.value))
        sent = "it was sent" if self.sendings == 1 else f"the first of {self.sendings} sendings"
        return PublishTimeoutError(
            block.subject(ordinal),
            f"row {block.row(ordinal)}: not stored {now - self.first_sent:.1f}s after {sent};"
            f" {self.cause}{next(tails, '')}",
            self.err_code,
        )


class Retries:
    """The troubled publishes of one lane, by their ordinals."""

    def __init__(self, limits: WindowOptions) -> None:
        self.resume_at = -math.inf
        """Nothing is sent before."""
        self.check_at = math.inf
        """No troubled publish expires before."""
        self._limits = limits
        self._troubled: dict[int, Trouble] = {}
        self.waiting: list[int] = []
        """The ordinals that are to be sent again, ascending."""
        self._rounds = 0  # of refusals since something was acked

    def __len__(self) -> int:
        return len(self._troubled)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal in self._troubled

    @property
    def oldest(self) -> float:
        """Earliest first sending of them; infinite if there is none."""
        return min((each.first_sent for each in self._troubled.values()), default=math.inf)

    @property
    def cause(self) -> str:
        """Why the first of them goes again; "" if there is none."""
        return next((each.cause for each in self._troubled.values()), "")

    def get(self, ordinal: int) -> Trouble | None:
        """History of this publish; None if it was sent once."""
        return self._troubled.get(ordinal)

    def of(self, ordinals: Iterable[int]) -> Iterator[tuple[int, Trouble]]:
        """Histories of these publishes, which are all here."""
        return ((ordinal, self._troubled[ordinal]) for ordinal in ordinals)

    def add(self, ordinal: int, first_sent: float, last_sent: float, unsure: float) -> Trouble:
        """Takes in a publish whose first sending here was not acked; its history."""
        trouble = Trouble(first_sent, "", last_sent=last_sent, unsure=unsure)
        self._troubled[ordinal] = trouble
        return trouble

    def lose(self, ordinal: int, trouble: Trouble, cause: str) -> None:
        """Queues a publish that got no answer, so that it may be stored."""
        trouble.unsure = min(trouble.unsure, trouble.last_sent)
        self.queue(ordinal, trouble, cause)

    def lose_all(self, cause: str) -> int:
        """Marks all that do not wait as lost; returns their number."""
        lost = [(ordinal, each) for ordinal, each in self._troubled.items() if not each.waiting]
        for ordinal, trouble in lost:
            self.lose(ordinal, trouble, cause)
        return len(lost)

    def queue(self, ordinal: int, trouble: Trouble, cause: str, err_code: int = 0) -> None:
        """Queues a publish to be sent again."""
        trouble.waiting = True
        trouble.cause = cause
        trouble.err_code = err_code
        bisect.insort(self.waiting, ordinal)
        self.check_at = min(self.check_at, self._until(trouble))

    def resend(self, ordinals: list[int], now: float) -> None:
        """Notes that these, the first of those that wait, go again."""
        for _, trouble in self.of(ordinals):
            trouble.waiting = False
            trouble.last_sent = now
            trouble.sendings += 1
        del self.waiting[: len(ordinals)]
        self.check_at = min(self.check_at, now + self._limits.ack_timeout_s)

    def drop(self, ordinals: list[int]) -> None:
        """
        Forgets these, which are done with; there may be others among them. When none is left, the
        pause is over: nobody would wake up at its end.
        """
        for ordinal in self._troubled.keys() & ordinals if self._troubled else ():
            if self._troubled.pop(ordinal).waiting:
                del self.waiting[bisect.bisect_left(self.waiting, ordinal)]
        if not self._troubled:
            self.resume()

    def pause(self, kind: Fate, now: float) -> bool:
        """Begins a pause, as the server refused one; False while a pause goes on."""
        if now < self.resume_at:
            return False
        first_s = _OVERLOADED_S if kind is Fate.OVERLOADED else FIRST_PAUSE_S
        self.resume_at = now + pause_s(self._rounds, first_s)
        self._rounds += 1
        return True

    def resume(self) -> None:
        """Ends the pause."""
        self.resume_at = -math.inf

    def succeed(self) -> None:
        """Something was stored: the next pause is a first one."""
        self._rounds = 0

    def expire(self, now: float, silence: str) -> tuple[list[int], tuple[int, Trouble] | None]:
        """
        Queues those that got no answer for `ackTimeout`.

        Returns:
            Their ordinals, and the publish whose time is up, if there is one.
        """
        late: list[int] = []
        if now < self.check_at:
            return late, None
        self.check_at = math.inf
        limits = self._limits
        for ordinal, trouble in self._troubled.items():
            if trouble.first_sent + limits.publish_timeout_s <= now:
                return late, (ordinal, trouble)
            if not trouble.waiting and trouble.last_sent + limits.ack_timeout_s <= now:
                self.lose(ordinal, trouble, silence)
                late.append(ordinal)
            self.check_at = min(self.check_at, self._until(trouble))
        return late, None

    def lower(self, limits: WindowOptions) -> None:
        """The time-outs become shorter: the time of some may be up."""
        self._limits = limits
        if self._troubled:
            self.check_at = -math.inf

    def next_deadline(self, now: float) -> float:
        """The time at which to act though nothing arrives; infinite for never."""
        if self.waiting and now < self.resume_at:
            return min(self.check_at, self.resume_at)
        return self.check_at

    def _until(self, trouble: Trouble) -> float:
        give_up_at = trouble.first_sent + self._limits.publish_timeout_s
        if trouble.waiting:
            return give_up_at
        return min(give_up_at, trouble.last_sent + self._limits.ack_timeout_s)
