"""
A writer's part of the throttle protocol: it announces itself, receives pauses, acknowledges them.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and send what is returned.
Rule 2: the writer's side of `throttleprotocol`, for one task; what is paused is in `throttle`.

    begins ──word on <throttleSubject>.active──▸ holds its rows ──┬ nobody listens ──▸ sends
                                                                  ├ an answer ───────▸ sends
                                                                  └ `PATIENCE_S` ────▸ sends

A controller tells who begins what is in force, by commands, and then says that this was all. So a
pause is there before the first row, however short the task is (overload.md B7). Where no operator
runs, the server says at once that nobody listens. Of several controllers the first answer is not
the last: the others get as long again. Who listens and never answers (a monitor of all subjects)
holds a process's first task for `PATIENCE_S` and the later ones for ever less.

What operators said to the task before is in force in this one, too: a worker process runs many.

A controller of a quota gives a share of its rate to those whose rows wait for it. So a writer says
at once when rows begin to wait for a rate, and at its end that none do; in between its answers to
discovery say it, each second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from .throttle import Throttle
from .throttleprotocol import (
    Active,
    Discover,
    Kept,
    Reason,
    ThrottleProducer,
    active_subject,
    understand,
)

PATIENCE_S: Final = 1.0
"""For a controller that listens and does not answer; later its commands come when they come."""

LEAST_PATIENCE_S: Final = 0.01
"""Lower bound of the patience: each task of a process without an answer halves it."""

_SUBJECTS: Final = 32

_WORD_S: Final = 0.1
"""Minimum time between two reports about rates."""


class Operators:
    """
    Args:
        subject: the control subject.
        producer_id: of this writer.
        now: of this writer's beginning.
        before: those of the task that this process ran before.
    """

    def __init__(
        self, subject: str, producer_id: int, now: float, before: Operators | None = None
    ) -> None:
        self.listens = subject, f"{subject}.{producer_id}"
        """Subjects of commands to this writer."""
        self.active = active_subject(subject)
        """Subject on which the writer announces itself."""
        self.throttle = Throttle(producer_id)
        """Pauses and rates in force."""
        self._sent: dict[str, None] = {}
        self._began = self._until = -math.inf
        self._is_unanswered = False
        self._patience_s = PATIENCE_S
        self._waiting: frozenset[tuple[str, Reason]] = frozenset()
        """The rates that rows wait for, as far as operators know."""
        self._worded_at = -math.inf
        if before is not None:
            self.throttle = before.throttle.heir(producer_id, now)
            if before._is_unanswered:
                self._patience_s = max(LEAST_PATIENCE_S, before._patience_s / 2)

    def __repr__(self) -> str:
        return f"<Operators on {self.listens[1]}, {self.throttle!r}>"

    def announce(self, now: float) -> bytes:
        """
        The announcement for `active`, sent with a reply subject; no row leaves before its answer.
        """
        self._began, self._until = now, now + self._patience_s
        self._is_unanswered = True
        self._waiting = frozenset()  # whoever has lost its connection has lost words, too
        return self.throttle.writer.encode()

    def nobody(self) -> None:
        """Nobody listens on `active`, says the server."""
        self._until, self._is_unanswered = -math.inf, False

    def holds(self, now: float) -> bool:
        """Whether the first row has to wait still."""
        return now < self._until

    def next_deadline(self, now: float) -> float:
        """
        The time when patience for the answer ends, or the next report is due; infinite for never.
        """
        held = self._until if self.holds(now) else math.inf
        return min(held, self._worded_at + _WORD_S if self._has_news(now) else math.inf)

    def word(self, now: float, ends: bool = False) -> bytes | None:
        """
        Report to publish on `active`, without a reply subject: rows wait for a rate; None if there
        is nothing to say.

        Args:
            ends: whether this is the last word, of a writer that gives up its share.
        """
        if ends:
            self.throttle.wait({}, now)
        elif not self._has_news(now) or now < self._worded_at + _WORD_S:
            return None
        if ends and not self._waiting:
            return None
        kept = self.throttle.kept(now)
        self._worded_at, self._waiting = now, _waiting(kept)
        return self.throttle.writer._replace(rates=kept).encode()

    def _has_news(self, now: float) -> bool:
        return bool(_waiting(self.throttle.kept(now)) - self._waiting)

    @property
    def subjects(self) -> Iterable[str]:
        """Some of those that rows have gone to."""
        return self._sent

    def sent(self, subjects: Iterable[str]) -> None:
        """Rows have gone to these; some of them are shown to operators."""
        for subject in subjects if len(self._sent) < _SUBJECTS else ():
            self._sent[subject] = None
            if len(self._sent) == _SUBJECTS:
                return

    def heard(
        self, data: bytes, now: float, lately: Iterable[Iterable[str]] = ()
    ) -> tuple[ThrottleProducer | None, bytes | None]:
        """
        An operator spoke.

        Args:
            lately: subjects of the rows that wait, in any number of parts.

        Returns:
            The command, None if it was none, and what to answer, behind everything sent before and
            ahead of everything sent from now on (B12). Without an answer nothing is new (B4).
        """
        try:
            said = understand(data)
        except ValueError:
            self.throttle.invalid += 1
            return None, None
        if isinstance(said, Active):
            self._is_unanswered = False
            self._until = min(self._until, now + (now - self._began))
            return None, None
        answer = self.throttle.answer(said, now, self._sent, lately)
        if isinstance(said, Discover):
            self._waiting = _waiting(self.throttle.kept(now))
        command = said if answer and isinstance(said, ThrottleProducer) else None
        return command, answer


def _waiting(kept: Iterable[Kept]) -> frozenset[tuple[str, Reason]]:
    return frozenset((each.filter, each.reason) for each in kept if each.waiting_for)
