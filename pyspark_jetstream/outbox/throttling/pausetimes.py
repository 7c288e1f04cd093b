"""
The time for which subjects were paused, and the number of limits met.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
Rule 2: time counts as it passes. A pause that is issued again counts what that adds, one that is
shortened or lifted what there was of it: one of a minute, issued each second, is 60,000 ms.

A *limit* lasts from its first pause until it is lifted, or not met any more: a quota pauses again
and again, and the server refuses again what is tried again, so it is over when there was no pause
for some seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

_MAX: Final = 10_000
"""Pauses, and limits, that are remembered; as many as filters can be paused."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Time:
    until: float
    """End of the open pause."""
    counted_at: float
    """The time before is in `passed_s`."""
    passed_s: float = 0.0
    told_ms: int = 0

    def passes(self, now: float) -> int:
        """Milliseconds that were not told before."""
        self.passed_s += max(0.0, min(now, self.until) - self.counted_at)
        self.counted_at = now
        total_ms = round(self.passed_s * 1000)
        told_ms, self.told_ms = self.told_ms, total_ms
        return total_ms - told_ms


class PauseTimes(Generic[K]):
    """The pauses of one task, by what was paused."""

    def __init__(self) -> None:
        self._times: dict[K, _Time] = {}

    def __repr__(self) -> str:
        return f"<PauseTimes {len(self._times)} paused so far>"

    def __iter__(self) -> Iterator[K]:
        """Everything that was paused so far."""
        return iter([*self._times])

    def paused(self, key: K, until: float, now: float) -> int:
        """
        The latest word: it is paused from now until then, and no longer.

        Returns:
            Milliseconds that have passed and were not told before.
        """
        if key not in self._times:
            if until <= now:
                return 0
            if len(self._times) >= _MAX:  # those that are over and told
                self._times = {k: t for k, t in self._times.items() if t.until > t.counted_at}
            if len(self._times) >= _MAX:
                return 0
        time = self._times.setdefault(key, _Time(until, now))
        new_ms = time.passes(now)
        time.until = until
        return new_ms

    def until(self, key: K, now: float) -> float:
        """End of its pause; now if it is not paused."""
        return max(now, self._times[key].until) if key in self._times else now

    def passed(self, now: float) -> Iterator[tuple[K, int]]:
        """Milliseconds of each that have passed since the last call."""
        for key, time in self._times.items():
            yield key, time.passes(now)


class Limited:
    """
    Limits that were met.

    Args:
        pause_s: a limit that is met again within so long is the one that was met before.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._until: OrderedDict[Hashable, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Limited {len(self._until)} limits>"

    def add(self, key: Hashable, until: float, now: float) -> bool:
        """Adds a limit that is met, and in force until then; whether it is a new one."""
        known = self._until.pop(key, None)
        if until > now:
            self._until[key] = until + self._pause_s
            if len(self._until) > _MAX:
                self._until.popitem(last=False)
        return until > now and (known is None or known < now)
