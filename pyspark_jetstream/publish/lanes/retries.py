"""
Publishes without an ack for their first sending: those that go again, since when, and until when.

Rule 1: no I/O and no clock; what goes again, and when, is the lane's to say.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ...errors import PublishError, PublishTimeoutError
from ...outbox.messages import Messages
from ...outbox.throttling.throttle import FIRST_PAUSE_S, pause_s
from ..settings import WindowOptions
from .answers import Fate
from .flight import Publishes

HINTS: Final = {
    Fate.ABSENT: "; no stream listens on this subject: create it, check the subject, or enable"
    " JetStream for this account",
    Fate.LIMITED: "; lift the limit, or make room",
}
"""Advice about a publish that failed in the end."""

_PUSHED_BACK_S: Final = 0.002
"""First pause of a server that has too much to do, or no room: it may be over at once."""


@dataclass(slots=True)
class Trouble:
    """A publish whose first sending was not acked."""

    ordinal: int
    subject: str
    messages: Messages
    place: int
    """Its row is that of these messages."""
    frame: bytes | memoryview
    first_sent: float
    last_sent: float
    cause: str = ""
    err_code: int = 0
    sendings: int = 1
    waiting: bool = False
    """Whether it is to be sent again, at once or when its subject is free."""
    is_unsure: bool = False
    """Whether it may be stored, though no PubAck came."""

    @classmethod
    def of(cls, block: Publishes, ordinal: int, at: float) -> Trouble:
        """That of the publish of this block, sent then."""
        messages, place = block.messages, ordinal - block.first
        subject, frame = messages.distinct[messages.codes[place]], block.slice(ordinal, ordinal + 1)
        return cls(ordinal, subject, messages, place, frame, at, at)

    @property
    def row(self) -> int:
        """Its row of the task's input."""
        return int(self.messages.rows[self.place].as_py())

    def error(self, now: float) -> PublishError:
        """Error of a publish whose time is up."""
        tails = (tail for kind, tail in HINTS.items() if self.cause.startswith(kind.value))
        sent = "it was sent" if self.sendings == 1 else f"the first of {self.sendings} sendings"
        return PublishTimeoutError(
            self.subject,
            f"row {self.row}: not stored {now - self.first_sent:.1f}s after {sent};"
            f" {self.cause}{next(tails, '')}",
            self.err_code,
        )


def gathered(troubles: Iterable[Trouble]) -> list[tuple[Messages, list[Trouble]]]:
    """The messages of these, as many as lie together at one time, and whose they are."""
    blocks: dict[int, list[Trouble]] = {}
    for each in troubles:
        blocks.setdefault(id(each.messages), []).append(each)
    return [
        (own[0].messages.take(pa.array([each.place for each in own], pa.int64())), own)
        for own in blocks.values()
    ]


class Retries:
    """
    The troubled publishes of one lane, by their ordinals.

    Those *held* wait for their subjects. They stop nothing new, nor does one that was held when it
    goes again, until it is not answered or is refused.
    """

    def __init__(self, limits: WindowOptions) -> None:
        self.resume_at = -math.inf
        """Nothing is sent before."""
        self.check_at = math.inf
        """No troubled publish expires before."""
        self.nbytes = 0
        """Bytes of the frames that are on the wire."""
        self.held_bytes = 0
        self._limits = limits
        self._troubled: dict[int, Trouble] = {}
        self.waiting: list[int] = []
        """The ordinals that are to be sent again now, ascending."""
        self.held: dict[int, Trouble] = {}
        self._stopping: set[int] = set()
        """Those until whose PubAcks nothing new goes."""
        self._rounds = 0  # of refusals since something was acked

    def __len__(self) -> int:
        return len(self._troubled)

    @property
    def stops(self) -> bool:
        """Whether nothing new may go."""
        return bool(self.waiting or self._stopping)

    @property
    def on_wire(self) -> int:
        """Number of them that were sent again and have no answer."""
        return len(self._troubled) - len(self.waiting) - len(self.held)

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

    def add(self, trouble: Trouble) -> Trouble:
        """Takes in a publish whose first sending was not acked."""
        self._troubled[trouble.ordinal] = trouble
        self.nbytes += len(trouble.frame)
        return trouble

    def lose(self, trouble: Trouble, cause: str) -> None:
        """Queues a publish that got no answer, so that it may be stored."""
        trouble.is_unsure = True
        self.queue(trouble, cause)

    def lose_all(self, cause: str) -> int:
        """Marks all that do not wait as lost; returns their number."""
        lost = [each for each in self._troubled.values() if not each.waiting]
        for trouble in lost:
            self.lose(trouble, cause)
        return len(lost)

    def queue(self, trouble: Trouble, cause: str, err_code: int = 0) -> None:
        """Queues a publish to be sent again."""
        trouble.waiting = True
        self.nbytes -= len(trouble.frame)
        trouble.cause = cause
        trouble.err_code = err_code
        bisect.insort(self.waiting, trouble.ordinal)
        self._stopping.add(trouble.ordinal)
        self.check_at = min(self.check_at, self._until(trouble))

    def first(self, maximum: int) -> list[Trouble]:
        """The first of those that wait to be sent again now."""
        return [self._troubled[ordinal] for ordinal in self.waiting[: max(0, maximum)]]

    def resend(self, count: int, now: float) -> None:
        """Notes that so many of the first go again."""
        for trouble in self.first(count):
            trouble.waiting = False
            self.nbytes += len(trouble.frame)
            trouble.last_sent = now
            trouble.sendings += 1
        del self.waiting[:count]
        self.check_at = min(self.check_at, now + self._limits.ack_timeout_s)

    def drop(self, ordinals: Iterable[int]) -> int:
        """
        Forgets these, which are done with; there may be others among them.

        Returns:
            Number of those that were here.
        """
        found = self._troubled.keys() & ordinals if self._troubled else ()
        for ordinal in found:
            trouble = self._troubled.pop(ordinal)
            self._stopping.discard(ordinal)
            if self.held.pop(ordinal, None) is not None:
                self.held_bytes -= len(trouble.frame)
            elif trouble.waiting:
                del self.waiting[bisect.bisect_left(self.waiting, ordinal)]
            else:
                self.nbytes -= len(trouble.frame)
        self._resume()
        return len(found)

    # ── subjects that wait ───────────────────────────────────────────────────────────────────

    def hold(self, is_paused: Callable[[str, bool], bool]) -> bool:
        """
        Lays aside what waits to go again to paused subjects; the blocks they came in may go.

        Args:
            is_paused: whether this subject is, for a row that was freed, or for another.

        Returns:
            Whether there is any.
        """
        found = [
            trouble
            for trouble in self.first(len(self.waiting))
            if is_paused(trouble.subject, trouble.ordinal not in self._stopping)
        ]
        for messages, troubles in gathered(found):
            for place, trouble in enumerate(troubles):
                trouble.messages, trouble.place = messages, place
                trouble.frame = bytes(trouble.frame)
                self.held[trouble.ordinal] = trouble
                self._stopping.discard(trouble.ordinal)
                del self.waiting[bisect.bisect_left(self.waiting, trouble.ordinal)]
                self.held_bytes += len(trouble.frame)
        self._resume()
        return bool(found)

    def free(self, may_go: Callable[[str, float], float]) -> None:
        """
        Queues what is held again as far as its subject is free.

        Args:
            may_go: how many may go to this subject, whose first one was first sent then.
        """
        counts: dict[str, float] = {}
        for ordinal in sorted(self.held):
            trouble = self.held[ordinal]
            subject = trouble.subject
            if subject not in counts:
                counts[subject] = may_go(subject, trouble.first_sent)
            counts[subject] -= 1
            if counts[subject] >= 0:
                del self.held[ordinal]
                bisect.insort(self.waiting, ordinal)
                self.held_bytes -= len(trouble.frame)

    def pause(self, is_push_back: bool, now: float) -> bool:
        """Begins a pause, as the server refused one; False while a pause goes on."""
        if now < self.resume_at:
            return False
        first_s = _PUSHED_BACK_S if is_push_back else FIRST_PAUSE_S
        self.resume_at = now + pause_s(self._rounds, first_s)
        self._rounds += 1
        return True

    def _resume(self) -> None:
        """Ends the pause when none is left that stops others: nobody would wake up at its end."""
        if not self._stopping:
            self.resume_at = -math.inf

    def succeed(self) -> None:
        """Something was stored: the next pause is a first one."""
        self._rounds = 0

    def expire(self, now: float, silence: str) -> list[Trouble]:
        """
        Queues those that got no answer for `ackTimeout`; here they are.

        Raises:
            PublishTimeoutError: The time of one is up.
        """
        late: list[Trouble] = []
        if now < self.check_at:
            return late
        self.check_at = math.inf
        limits = self._limits
        for trouble in self._troubled.values():
            if trouble.first_sent + limits.publish_timeout_s <= now:
                raise trouble.error(now)
            if not trouble.waiting and trouble.last_sent + limits.ack_timeout_s <= now:
                self.lose(trouble, silence)
                late.append(trouble)
            self.check_at = min(self.check_at, self._until(trouble))
        return late

    def lower(self, limits: WindowOptions) -> None:
        """The time-outs become shorter: the time of some may be up."""
        self._limits = limits
        if self._troubled:
            self.check_at = -math.inf

    def next_deadline(self, now: float) -> float:
        """The time at which to act though nothing arrives; infinite for never."""
        if self.waiting and self.resume_at > -math.inf:
            return min(self.check_at, self.resume_at)
        return self.check_at

    def _until(self, trouble: Trouble) -> float:
        give_up_at = trouble.first_sent + self._limits.publish_timeout_s
        if trouble.waiting:
            return give_up_at
        return min(give_up_at, trouble.last_sent + self._limits.ack_timeout_s)
