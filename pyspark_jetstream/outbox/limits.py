"""
Kinds of answers to a publish, and subjects at a limit of their stream (10077): when each is tried
again, and with how many rows.

    refused ──pause, growing up to 1 s──▸ 1 row ──50 ms──▸ 2 rows ──▸ 4 … 512 ──▸ all
       ▴                                    │ a refusal, at any time
       └────────────────────────────────────┘

All that wait of a subject would be refused one by one, each second, at the cost of all the others.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

_FORGET_S: Final = 5.0
"""A subject that was not refused for so long is at its limit for the first time."""

_MAX: Final = 10_000
"""Subjects at a limit that are paused at one time, each for itself; as many as `throttle` keeps."""

TRY_S: Final = 0.05
"""Time between a try and the next, larger one, unless the server refuses."""

_MAX_TRIED: Final = 1024


class Kind(Enum):
    """Kinds of answers to a publish, by their effect on the size of the window."""

    STORED = "stored"
    DUPLICATE = "stored before"
    OVERLOADED = "the server is overloaded"
    LIMITED = "a limit is reached"
    ABSENT = "nobody listens on the subject"
    IN_PROCESS = "another attempt is being stored"
    REJECTED = "rejected"


_FIRST_PAUSE_S: Final = {Kind.OVERLOADED: 0.01}
_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 1.0


def pause_s(kind: Kind, refusals: int) -> float:
    """Pause before refused rows are sent again, by the reason of the refusal."""
    pause = _FIRST_PAUSE_S.get(kind, _PAUSE_S) * 2 ** min(refusals, 10)
    return float(min(pause, _MAX_PAUSE_S))


@dataclass(slots=True)
class _AtLimit:
    times: int
    """Number of refusals in a row."""
    until: float
    """End of the subject's pause."""
    tries: int = 1
    """Number of rows in the next try."""


class SubjectLimits:
    """The subjects of one task that were refused of late, the last refused last."""

    def __init__(self) -> None:
        self._known: dict[str, _AtLimit] = {}

    def __repr__(self) -> str:
        return f"<SubjectLimits {', '.join(list(self._known)[-5:])}>"

    def __len__(self) -> int:
        return len(self._known)

    def is_waiting(self, subject: str, now: float) -> bool:
        """Whether it is not to be tried now; False of those that are too many to be known."""
        known = self._known.get(subject)
        return known is not None and known.until > now

    def reached(self, subject: str, now: float) -> float:
        """The server refused it: when it is tried again. Pauses grow up to a second."""
        known = self._known.pop(subject, None) or _AtLimit(0, -math.inf)
        known.tries = 1
        if known.until <= now:
            known.times = known.times + 1 if now - known.until < _FORGET_S else 1
            known.until = now + pause_s(Kind.LIMITED, known.times - 1)
        oldest = next(iter(self._known), subject)
        if len(self._known) >= _MAX and self._known[oldest].until <= now:
            del self._known[oldest]  # tried again, it begins with the shortest pause
        if len(self._known) < _MAX:
            self._known[subject] = known
        return known.until

    def tries(self, subject: str) -> int | None:
        """
        Number of the subject's rows that may leave now, the others `TRY_S` later; None for all.
        """
        known = self._known.get(subject)
        if known is None:
            return None
        known.tries *= 2
        if known.tries > _MAX_TRIED:
            del self._known[subject]
        return known.tries // 2
