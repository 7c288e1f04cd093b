"""
Subjects that the server refuses for want of room: since when, why, and when they are tried again.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).

A refusal opens no pause. It has one of the throttle's reasons, for metrics, answers to operators
and errors (overload.md §4.5). Where a subject found no room (10077, 10002, 10023 and the like) its
rows wait, and are tried after 250 ms, later after up to a second: one row, then two, four, and so
on, `TRY_S` apart. All at one time would be refused one by one, at the cost of the others. What is
about the account or the server holds all rows for that time. After any other refusal (429) the lane
tries again by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...subjects import REST
from .pausetable import PausedTimes
from .throttleprotocol import Reason

REFUSALS: Final[dict[int, Reason]] = {
    10077: Reason.TopicProduceQuotaExceeded,
    10002: Reason.ResourceGroupProduceQuotaExceeded,
    10167: Reason.MessageBufferSizeBreach,
    10210: Reason.MessageBufferSizeBreach,
    10211: Reason.MessageBufferSizeBreach,
    10023: Reason.BrokerProduceQuotaExceeded,
    10028: Reason.BrokerProduceQuotaExceeded,
    10047: Reason.BrokerProduceQuotaExceeded,
}
"""The server's err_codes in the throttle's words (overload.md §4.5)."""

_OF_WRITER: Final = (Reason.ResourceGroupProduceQuotaExceeded, Reason.BrokerProduceQuotaExceeded)
"""Reasons of refusals that are about all subjects; the others are about the one refused."""

TRY_S: Final = 0.05
"""Time between a try and the next, larger one, unless the server refuses."""

FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 1.0

_FORGET_S: Final = 5.0
"""A subject that was not refused for so long is at its limit for the first time."""

_MAX: Final = 10_000
"""Subjects that wait at one time, each for itself."""

_MAX_TRIED: Final = 1024


def pause_s(refusals: int, first_s: float = FIRST_PAUSE_S) -> float:
    """
    Pause before refused rows are sent again; it doubles up to a second.

    Args:
        refusals: those before, in a row.
    """
    return float(min(first_s * 2 ** min(refusals, 10), _LONGEST_PAUSE_S))


@dataclass(slots=True)
class Refused:
    """A subject that was refused of late."""

    reason: Reason
    err_code: int
    detail: str
    """The server's words."""
    since: float
    until: float
    """When it is tried again."""
    holds: bool
    """Whether its rows wait until then."""
    times: int = 0
    """Number of refusals in a row."""
    tries: int = 1
    """Number of rows in the next try."""
    next_try: float = -math.inf

    def waits_until(self) -> float:
        """The time until which its rows wait."""
        return max(self.until, self.next_try) if self.holds else -math.inf

    def within(self, since: float, now: float) -> float:
        """Seconds of this time that it was refused."""
        return max(0.0, min(now, self.until) - max(since, self.since))


class Refusals:
    """The server's refusals of one task's subjects, the last refused last."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when other subjects wait than before."""
        self.last: tuple[str, Refused] | None = None
        """The last refusal of all."""
        self._known: dict[str, Refused] = {}
        self.times = PausedTimes()
        """When, by reason and stream."""
        self._waiting: tuple[int, float, pa.Array] = (-1, -math.inf, pa.array([], pa.string()))
        """Version, until when it is so, and the subjects that wait."""

    def __repr__(self) -> str:
        return f"<Refusals {', '.join(list(self._known)[-5:])}>"

    def __len__(self) -> int:
        return len(self._known)

    def refuse(
        self, subject: str, refusal: tuple[int, str, bool], stream: str, until: float, now: float
    ) -> float:
        """
        The server refused a publish.

        Args:
            refusal: its err_code, its words, and whether there is no room.
            stream: of the subject; "" where it is not known.
            until: when the lane tries again by itself.

        Returns:
            When the subject is tried again. Pauses for want of room grow up to a second.
        """
        err_code, detail, holds = refusal
        reason = REFUSALS.get(err_code)
        if reason is None:
            return until
        known = self._known.pop(subject, None)
        if known is None or now - known.until >= _FORGET_S:
            known = Refused(reason, err_code, detail, now, -math.inf, holds)
        known.reason, known.err_code, known.detail, known.holds = reason, err_code, detail, holds
        if not holds:
            known.until = max(known.until, until)
        elif known.until <= now:
            known.times += 1
            known.until = now + pause_s(known.times - 1)
        known.tries, known.next_try = 1, -math.inf
        self.last = subject, known
        self._keep(subject, known, now)
        if holds and reason in _OF_WRITER:
            whole = self._known.pop(REST, None)
            since = known.since if whole is None else min(whole.since, known.since)
            self._known[REST] = Refused(reason, err_code, detail, since, known.until, True)
        time = self.times.open((reason, stream), now, _FORGET_S)
        time.until = max(time.until, known.until)
        self.version += holds
        return known.until

    def _keep(self, subject: str, known: Refused, now: float) -> None:
        oldest = next(iter(self._known), subject)
        if len(self._known) >= _MAX and self._known[oldest].until <= now:
            del self._known[oldest]  # tried again, it begins with the shortest pause
        if len(self._known) < _MAX:
            self._known[subject] = known

    def tries(self, subject: str, now: float) -> int | None:
        """
        Number of the subject's rows that may leave now, the others `TRY_S` later; None for all.
        """
        known = self._known.get(subject)
        if known is None or not known.holds:
            return None
        known.tries *= 2
        known.next_try = now + TRY_S
        self.version += 1
        if known.tries > _MAX_TRIED:
            del self._known[subject]
        return known.tries // 2

    # ── questions ────────────────────────────────────────────────────────────────────────────

    def get(self, subject: str) -> Refused | None:
        """The last refusal of this subject, or else of all."""
        return self._known.get(subject) or self._known.get(REST)

    def now(self, now: float, maximum: int) -> list[str]:
        """Some of the subjects that were refused and were not tried again; `>` for all."""
        found = (name for name, known in self._known.items() if known.until > now)
        return list(islice(found, maximum))

    def is_waiting(self, subject: str, now: float) -> bool:
        """Whether it is not to be tried now; False of those that are too many to be known."""
        return any(
            known is not None and known.waits_until() > now
            for known in (self._known.get(subject), self._known.get(REST))
        )

    def next_end(self, now: float) -> float:
        """When the next subject is tried again; infinite when none waits."""
        return self._looked(now)[1]

    def mask(self, subjects: pa.Array, now: float) -> pa.Array | None:
        """BOOL: which of these distinct subjects wait; None when none does."""
        _, until, waiting = self._looked(now)
        if until == math.inf:
            return None
        rest = self._known.get(REST)
        if rest is not None and rest.waits_until() > now:
            return pa.repeat(True, len(subjects))
        mask = pc.is_in(subjects, waiting)
        return mask if pc.any(mask).as_py() else None

    def _looked(self, now: float) -> tuple[int, float, pa.Array]:
        version, until, _ = self._waiting
        if version != self.version or until <= now:
            ends = {
                name: end for name, of in self._known.items() if (end := of.waits_until()) > now
            }
            names = pa.array(list(ends), pa.string())
            self._waiting = self.version, min(ends.values(), default=math.inf), names
        return self._waiting
