"""
A writer's part of the throttle protocol: it announces itself, receives pauses, acknowledges them.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and send what is returned.
Rule 2: the writer's side of `throttleprotocol`, for one task; what is paused is in `throttle`.

    begins ──word on <throttleSubject>.active──▸ holds its rows ──┬ nobody listens ──▸ sends
                                                                  ├ an answer ───────▸ sends
                                                                  └ `PATIENCE_S` ────▸ sends

A controller sends a writer that begins the commands in force, and then says that this was all. So
a pause reaches the writer before its first row, however short the task is (overload.md B7). If no
operator runs, the server says at once that nobody listens. After the first controller's answer, the
others get as much time again. If a listener never answers (a monitor of all subjects), it holds a
process's first task for `PATIENCE_S`, and later ones for ever less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from ...sanitize import get_logger
from .pausetable import TooManyFiltersError
from .throttle import Throttle
from .throttleprotocol import (
    MAX_SUBJECTS,
    Active,
    Discover,
    Producer,
    Receipt,
    ThrottleProducer,
    active_subject,
    understand,
)

logger = get_logger(__name__)

PATIENCE_S: Final = 1.0
"""For a controller that listens and does not answer; later its commands come when they come."""

LEAST_PATIENCE_S: Final = 0.01
"""Lower bound of the patience: each task of a process without an answer halves it."""


class Operators:
    """
    Args:
        subject: the control subject.
        writer: this writer, as it announces itself.
        patience_s: how long the first row waits for an answer.
    """

    def __init__(self, subject: str, writer: Producer, patience_s: float = PATIENCE_S) -> None:
        self.listens = subject, f"{subject}.{writer.producer_id}"
        """Subjects of commands to this writer."""
        self.active = active_subject(subject)
        """Subject on which the writer announces itself."""
        self.throttle = Throttle()
        """Pauses in force."""
        self.writer = writer
        """This writer, as it says who it is."""
        self.is_unanswered = False
        """Whether nobody has answered the announcement."""
        self._sent: dict[str, None] = {}
        self._began = self._until = -math.inf
        self._patience_s = patience_s
        self._is_told = False  # that something was left out

    def __repr__(self) -> str:
        return f"<Operators on {self.listens[1]}, {self.throttle!r}>"

    def announce(self, now: float) -> bytes:
        """
        The announcement for `active`, sent with a reply subject; no row leaves before its answer.
        """
        self._began, self._until = now, now + self._patience_s
        self.is_unanswered = True
        return self.writer.encode()

    def nobody(self) -> None:
        """Nobody listens on `active`, says the server."""
        self._until, self.is_unanswered = -math.inf, False

    def holds(self, now: float) -> bool:
        """Whether the first row has to wait still."""
        return now < self._until

    def next_deadline(self, now: float) -> float:
        """The time when patience for the answer ends; infinite for never."""
        return self._until if self.holds(now) else math.inf

    def sent(self, subjects: Iterable[str]) -> None:
        """Rows have gone to these; some of them are shown to operators."""
        for subject in subjects if len(self._sent) < MAX_SUBJECTS else ():
            self._sent[subject] = None
            if len(self._sent) == MAX_SUBJECTS:
                return

    def heard(self, data: bytes, now: float, lately: Iterable[Sequence[str]] = ()) -> bytes | None:
        """
        An operator spoke.

        Args:
            lately: subjects of the rows that wait, in any number of parts.

        Returns:
            What to answer, behind everything sent before and ahead of everything sent from now on
            (B12). What a receipt says is in force when this returns. Without an answer nothing is
            new (B4).
        """
        try:
            said = understand(data)
        except ValueError as error:
            self._leave_out(error)
            return None
        match said:
            case Active():
                self.is_unanswered = False
                self._until = min(self._until, now + (now - self._began))
                return None
            case Discover():
                sent = tuple(self._sent)
                throttled = self.throttle.throttled([sent, *lately], now)
                return self.writer._replace(subjects=sent, throttled=throttled).encode()
            case ThrottleProducer():
                return self._command(said, now)
        self._leave_out("it is an answer, and no command")
        return None

    def _command(self, said: ThrottleProducer, now: float) -> bytes | None:
        if said.producer_id not in (None, self.writer.producer_id):
            return None
        try:
            self.throttle.table.command(said, now)
        except TooManyFiltersError as error:
            self._leave_out(f"the pause of '{said.subject}' is refused: {error}")
            return None
        return Receipt(said.request_id, self.writer.producer_id).encode()

    def _leave_out(self, why: object) -> None:
        """Says once of a writer that somebody spoke in vain."""
        if not self._is_told:
            logger.warning(
                "what somebody says on '%s' counts for nothing and gets no receipt: %.300s. More"
                " of that kind is left out without a warning", self.listens[0], why,
            )  # fmt: skip
        self._is_told = True
