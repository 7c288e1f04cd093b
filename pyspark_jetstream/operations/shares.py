"""
Shares of a limit: how much of it each writer may publish.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).

A limit is dealt to those who use it: a writer whose rows wait gets as much as any other, one whose
rows do not wait twice what it publishes, so that it can grow, and nobody more than that. What
nobody uses stays with nobody: a writer says at once when rows begin to wait.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ..outbox.throttling.throttleprotocol import Kept, Rates, Reason, Unit

_SAMPLE_S: Final = 0.5
"""Shortest time over which a writer's rate is measured."""

_GROWS: Final = 2.0
"""Share of a writer whose rows do not wait, as a multiple of what it publishes."""

_SAME: Final = 0.1
"""Rates that differ by no more than this fraction are not told again."""

K = TypeVar("K", bound=Hashable)

Key = tuple[str, Reason]
"""Key of a rate: a filter of subjects, and the reason of the limit."""


@dataclass(slots=True)
class Use:
    """State of one writer under one rate."""

    told: Rates | None = None
    told_at: float = -math.inf
    unanswered_since: float = math.inf
    """Time since which a command has had no receipt."""
    waiting_for: Unit = ""
    msgs: float = 0.0
    """Messages that it publishes in a second, as measured last."""
    nbytes: float = 0.0
    total: tuple[int, int] = (0, 0)
    """Messages and bytes so far."""
    before: tuple[float, int, int] = (-math.inf, 0, 0)
    """A sample: when, messages and bytes so far."""

    def update(self, kept: Kept | None, now: float) -> None:
        """Keeps what the writer reports of this rate; None if it reports nothing."""
        self.waiting_for = kept.waiting_for if kept is not None else ""
        if kept is None:
            return
        at, msgs, nbytes = self.before
        self.total = kept.msg_in_counter, kept.bytes_in_counter
        if now - at >= _SAMPLE_S:
            took_s = now - at if at > -math.inf else math.inf
            self.msgs = max(0, kept.msg_in_counter - msgs) / took_s
            self.nbytes = max(0, kept.bytes_in_counter - nbytes) / took_s
            self.before = now, kept.msg_in_counter, kept.bytes_in_counter

    def wants(self, unit: Unit) -> float:
        """Messages, or bytes, a second that it can use."""
        told = self.told or Rates()
        may, used = (told.msgs, self.msgs) if unit == "msg" else (told.nbytes, self.nbytes)
        if self.waiting_for and (self.waiting_for == unit or not may):
            return math.inf
        return _GROWS * used


def shares(total: float, wanted: Mapping[K, float]) -> dict[K, float]:
    """
    Share of each in a total: what it wants, or as much as all others that want more than they get.

    The sum is no more than the total.
    """
    dealt: dict[K, float] = {}
    left = total
    for place, key in enumerate(sorted(wanted, key=lambda each: wanted[each])):
        dealt[key] = min(wanted[key], left / (len(wanted) - place))
        left = max(0.0, left - dealt[key])
    return dealt


def differ(a: Rates | None, b: Rates) -> bool:
    """Whether a writer has to be told."""
    return a is None or any(
        (x is None) != (y is None) or abs((x or 0.0) - (y or 0.0)) > _SAME * max(x or 0.0, y or 0.0)
        for x, y in zip(a, b, strict=True)
    )
