"""
What becomes of a publish by its answer, and how long a subject is left alone after a refusal.

Rule 1: no I/O and no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Fate(Enum):
    """What an answer makes of a publish: stored, to be sent again and why, or never stored."""

    STORED = "stored"
    DUPLICATE = "stored before"
    OVERLOADED = "the server is overloaded"
    LIMITED = "a limit is reached"
    ABSENT = "nobody listens on the subject"
    IN_PROCESS = "another attempt is being stored"
    REJECTED = "rejected"


_FIRST_PAUSE_S: Final = {Fate.OVERLOADED: 0.01}
_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 1.0


def pause_s(kind: Fate, refusals: int) -> float:
    """Pause before refused rows are sent again, by the reason of the refusal."""
    pause = _FIRST_PAUSE_S.get(kind, _PAUSE_S) * 2 ** min(refusals, 10)
    return float(min(pause, _MAX_PAUSE_S))
