"""
What holds rows of a writer back: operators' pauses, and refusals of the server for want of room.

Rule 1: only this module says whether a subject is paused. The pauses are in `pausetable`, the
refusals in `refusals`.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from ...errors import ProducerThrottledError
from ...subjects import REST
from .pausetable import PauseTable, Snapshot
from .refusals import Refusals
from .throttleprotocol import MAX_SUBJECTS, Paused, Reason

_SHARE: Final = 0.8
"""
Share of a publish's time: after a longer pause, the pause is the reason of its failure (overload.md
B15).
"""


class PausedBy(Enum):
    """Origins of a pause."""

    OPERATOR = "operator"
    SERVER = "server"


class Pause(NamedTuple):
    """Why a subject waits."""

    source: PausedBy
    reason: Reason
    filter: str
    """The paused subjects, of which this is one."""
    until: float
    request_id: int
    """Number of the command; 0 where there was none."""


class Throttle:
    """The pauses of one writer, and the refusals."""

    def __init__(self) -> None:
        self.table = PauseTable()
        self.refusals = Refusals()

    def __repr__(self) -> str:
        return f"<Throttle {self.table!r} {self.refusals!r}>"

    @property
    def version(self) -> int:
        """Grows when other subjects wait than before, but for those whose time is over."""
        return self.table.version + self.refusals.version

    @property
    def informed(self) -> bool:
        """Whether a command without a pause is on record: the connection exceeds a limit (B6)."""
        return bool(self.table.informed)

    def acked(self) -> None:
        """A PubAck came: what the writer was informed of without a pause is over."""
        self.table.acked()

    def active(self, now: float) -> bool:
        """Whether anything waits, be it a subject of this writer or not."""
        return self.next_deadline(now) < math.inf

    def next_deadline(self, now: float) -> float:
        """When the next pause or wait ends; infinite when there is none."""
        return min(self.table.next_end(now), self.refusals.next_end(now))

    def is_paused(self, subject: str, now: float) -> bool:
        """Whether nothing may go to this subject."""
        return self.table.matcher(now)(subject) or self.refusals.is_waiting(subject, now)

    def snapshot(self, now: float) -> Snapshot | None:
        """Says of a subject whether operators pause it now, whatever comes; None: none is."""
        return self.table.matcher(now) if self.table.is_open(now) else None

    def pause(self, subject: str, now: float) -> Pause | None:
        """Why this subject waits, or was refused: what ends last; None if it is free."""
        pauses = [
            Pause(PausedBy.OPERATOR, reason, filter, window.until, window.request_id)
            for (reason, filter), window in self.table.windows(subject)
            if window.until > now
        ]
        refused = self.refusals.get(subject)
        if refused is not None and refused.until > now:
            pauses.append(Pause(PausedBy.SERVER, refused.reason, subject, refused.until, 0))
        return max(pauses, key=lambda pause: pause.until, default=None)

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
        pauses = ((subject, self.pause(subject, now)) for subject in islice(found, MAX_SUBJECTS))
        return tuple(
            Paused(subject, why.reason, why.until - now, why.filter, why.source.value, why[-1])
            for subject, why in pauses
            if why is not None
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
        longest = max(spans, key=lambda span: span[0], default=None)
        throttled_s = 0.0 if longest is None else longest[0]
        if longest is not None and throttled_s > _SHARE * (now - since):
            _, reason, filter, request_id = longest
            return ProducerThrottledError(
                subject, "", 0, reason.name, filter, throttled_s, request_id
            )
        for reason, request_id in self.table.informed.items():
            return ProducerThrottledError(
                subject, "", 0, reason.name, REST, throttled_s, request_id
            )
        return None
