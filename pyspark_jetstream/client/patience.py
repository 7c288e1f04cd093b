"""Patience: the time for attempts without progress. Progress renews it."""

from __future__ import annotations

import time
from typing import Final, Protocol

_PAUSE_S: Final = 0.05


class Clock(Protocol):
    """The parts of the module `time` that a wait uses."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Does nothing for so long."""


class Patience:
    """
    Runs out once nothing was seen to move for `timeout_s`.

    Args:
        seen: how far it is at the beginning.
        pause_s: how long the first pause is; each is twice as long as the one before, up to
            `longest_s`, and all are the same without that.
        clock: the module `time` where none is given.
    """

    def __init__(
        self,
        timeout_s: float,
        seen: object = None,
        pause_s: float = _PAUSE_S,
        longest_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._clock = clock or time
        self.deadline = self._clock.monotonic() + timeout_s
        """End of patience on the monotonic clock."""
        self._seen = seen
        self._first_s = self._pause_s = pause_s
        self._longest_s = longest_s or pause_s

    def progress(self, seen: object) -> bool:
        """
        Whether something has moved, as far as `seen` is not what was seen last.

        Pauses stay as long as they have become: what moves need not be looked at more often.
        """
        if seen == self._seen:
            return False
        self._seen = seen
        self.deadline = self._clock.monotonic() + self.timeout_s
        return True

    def renew(self) -> None:
        """Gives all its time and the first pause again."""
        self.deadline = self._clock.monotonic() + self.timeout_s
        self._pause_s = self._first_s

    @property
    def left_s(self) -> float:
        """Seconds until it runs out; negative afterwards."""
        return self.deadline - self._clock.monotonic()

    @property
    def over(self) -> bool:
        """Whether it has run out."""
        return self.left_s <= 0

    def pause(self) -> None:
        """Waits before the next try, which is made at its end at the latest."""
        self._clock.sleep(max(0.0, min(self._pause_s, self.left_s)))
        self._pause_s = min(2 * self._pause_s, self._longest_s)
