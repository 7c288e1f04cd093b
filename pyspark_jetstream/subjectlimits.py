"""
Subjects at a limit of their stream (10077): when each is tried again.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math
from typing import Final

from .backlog import pause_s
from .pubacks import Kind

__all__ = ["SubjectLimits"]

_FORGET_S: Final = 5.0
"""A subject that was not refused for so long is at its limit for the first time."""

_MOST: Final = 10_000
"""Subjects at a limit that are paused at one time, each for itself; as many as `throttle` keeps."""


class SubjectLimits:
    """The subjects of one task that were refused of late, the last refused last."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}  # how many times in a row, paused until

    def __repr__(self) -> str:
        return f"<SubjectLimits {', '.join(list(self._known)[-5:])}>"

    def __len__(self) -> int:
        return len(self._known)

    def is_waiting(self, subject: str, now: float) -> bool:
        """Whether it is not to be tried now; False of those that are too many to be known."""
        return self._known.get(subject, (0, -math.inf))[1] > now

    def reached(self, subject: str, now: float) -> float:
        """The server refused it: when it is tried again. Pauses grow up to a second."""
        times, until = self._known.pop(subject, (0, -math.inf))
        if until <= now:
            times = times + 1 if now - until < _FORGET_S else 1
            until = now + pause_s(Kind.LIMITED, times - 1)
        oldest = next(iter(self._known), subject)
        if len(self._known) >= _MOST and self._known[oldest][1] <= now:
            del self._known[oldest]  # tried again, it begins with the shortest pause
        if len(self._known) < _MOST:
            self._known[subject] = times, until
        return until
