"""
What holds rows of a writer back: operators' pauses, and refusals of the server for want of room.

Rule 1: only this module says whether a subject is paused. The pauses are in `pausetable`, the
refusals in `refusals`.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final

import pyarrow as pa

from ...errors import ProducerThrottledError
from ...subjects import REST
from .pausetable import Matcher, PauseTable
from .refusals import Refusals
from .throttleprotocol import MAX_SUBJECTS, Paused

_SHARE: Final = 0.8
"""
Share of a publish's time: after a longer pause, the pause is the reason of its failure (overload.md
B15).
"""


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
