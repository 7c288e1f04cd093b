"""
What holds rows of a writer back: operators' pauses, and refusals of the server for want of room.

Rule 1: only this module says whether a subject is paused. The pauses are in `pausetable`.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic).

A refusal opens no pause. It has one of the throttle's reasons, for metrics, answers to operators
and errors (overload.md §4.5). Where a subject found no room (10077, 10002, 10023 and the like) its
rows wait, and are tried after 250 ms, later after up to a second: one row, then two, four, and so
on, `TRY_S` apart. All at one time would be refused one by one, at the cost of the others. What is
about the account or the server holds all rows for that time. After any other refusal (429) the lane
tries again by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ProducerThrottledError
from ...subjects import REST
from .pausetable import Matcher, PausedTimes, PauseTable
from .throttleprotocol import MAX_SUBJECTS, Paused, Reason

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

_MAX_WAITING: Final = 10_000
"""Subjects that wait at one time, each for itself."""

_MAX_TRIED: Final = 1024

_SHARE: Final = 0.8
"""
Share of a publish's time: after a longer pause, the pause is the reason of its failure (overload.md
B15).
"""


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
        if len(self._known) >= _MAX_WAITING and self._known[oldest].until <= now:
            del self._known[oldest]  # tried again, it begins with the shortest pause
        if len(self._known) < _MAX_WAITING:
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


class PausedBy(StrEnum):
    """Origins of a pause."""

    OPERATOR = "operator"
    SERVER = "server"


class Throttle:
    """The pauses of one writer, and the refusals."""

    def __init__(self) -> None:
        self.table = PauseTable()
        self.refusals = Refusals()

    def __repr__(self) -> str:
        return f"<Throttle {self.table!r} {self.refusals!r}>"

    def active(self, now: float) -> bool:
        """Whether anything waits, be it a subject of this writer or not."""
        return self.next_deadline(now) < math.inf

    def next_deadline(self, now: float) -> float:
        """When the next pause or wait ends; infinite when there is none."""
        return min(self.table.next_end(now), self.refusals.next_end(now))

    def is_paused(self, subject: str, now: float, is_tried: bool = False) -> bool:
        """Whether nothing may go to this subject, but for what is tried although it was refused."""
        is_refused = not is_tried and self.refusals.is_waiting(subject, now)
        return is_refused or self.table.matcher(now)(subject)

    def snapshot(self, now: float) -> Matcher | None:
        """Says of a subject whether operators pause it now, whatever comes; None: none is."""
        return self.table.matcher(now) if self.table.next_end(now) < math.inf else None

    def pause(self, subject: str, now: float) -> Paused | None:
        """Why this subject waits, or was refused: what ends last; None if it is free."""
        found = [
            Paused(
                subject, reason, window.until - now, filter, PausedBy.OPERATOR, window.request_id
            )
            for (reason, filter), window in self.table.windows(subject)
        ]
        refused = self.refusals.get(subject)
        if refused is not None:
            left_s = refused.until - now
            found.append(Paused(subject, refused.reason, left_s, subject, PausedBy.SERVER, 0))
        last = max(found, key=lambda pause: pause.pause_s, default=None)
        return last if last is not None and last.pause_s > 0 else None

    def throttled(self, parts: Iterable[Sequence[str]], now: float) -> tuple[Paused, ...]:
        """
        Up to 32 of these subjects that wait, and of those that are refused, each with what ends
        last; see `Producer.isThrottled` (B16).
        """
        found = dict.fromkeys(self.refusals.now(now, MAX_SUBJECTS))
        for part in parts if self.active(now) else ():
            subjects = pa.array(part, pa.string())
            for source in (self.table, self.refusals):
                mask = source.mask(subjects, now)
                if mask is not None and len(found) < MAX_SUBJECTS:
                    waiting = subjects.filter(mask).slice(0, MAX_SUBJECTS)
                    found |= dict.fromkeys(waiting.to_pylist())
        pauses = (self.pause(subject, now) for subject in islice(found, MAX_SUBJECTS))
        return tuple(pause for pause in pauses if pause is not None)

    def timed_out(self, subject: str, since: float, now: float) -> ProducerThrottledError:
        """The error of a row that has waited since then, for as long as a paused one may."""
        pause = self.pause(subject, now)
        assert pause is not None, "only who is paused may ask"
        return self.error(subject, since, now) or ProducerThrottledError(
            subject, "", 0, pause.reason.name, pause.filter, 0.0, pause.request_id
        )

    def error(self, subject: str, since: float, now: float) -> ProducerThrottledError | None:
        """
        The error of a publish that ran out of its time, if pauses are why; None if they are not.

        They are if one took more than 0.8 of it, or if the writer was informed, without a pause,
        that its connection exceeds a limit (overload.md B15).
        """
        spans = [
            (window.within(since, now), reason, filter, window.request_id)
            for (reason, filter), window in self.table.windows(subject)
        ]
        refused = self.refusals.get(subject)
        if refused is not None:
            spans.append((refused.within(since, now), refused.reason, subject, 0))
        longest = max(spans, key=itemgetter(0), default=None)
        throttled_s = 0.0 if longest is None else longest[0]
        informed = next(iter(self.table.informed.items()), None)
        if longest is not None and throttled_s > _SHARE * (now - since):
            _, reason, filter, request_id = longest
        elif informed is not None:
            (reason, request_id), filter = informed, REST
        else:
            return None
        return ProducerThrottledError(subject, "", 0, reason.name, filter, throttled_s, request_id)
