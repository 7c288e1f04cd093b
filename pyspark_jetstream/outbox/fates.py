"""
Kinds of answers to a publish, and how long a subject is left alone after each kind of refusal.

Rule 1: no I/O and no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


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
