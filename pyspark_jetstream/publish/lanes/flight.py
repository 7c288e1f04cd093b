"""
Publishes by their ordinals: those offered, those sent once and when, those that are done with here.

Rule 1: no decision is taken here; what goes, and what goes again, is the lane's to say.

    low ≤ … < next ≤ … < end        below `low` all are done with, from `next` on none was sent

What is to be sent again is done with here: it is in `retries`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...outbox.messages import Messages
from .frames import Publishes, size_of


class _Sending(NamedTuple):
    """Ordinals sent for the first time together."""

    first: int
    end: int
    at: float


class Flight:
    """The publishes of one lane, from the offer to the answer of their first sending."""

    def __init__(self) -> None:
        self.low = 0
        """Every ordinal below is done with."""
        self.next = 0
        """The first ordinal never sent."""
        self.end = 0
        """The first ordinal not offered."""
        self.nbytes = 0
        """Bytes of everything sent and not done."""
        self._blocks: deque[Publishes] = deque()
        self._done: set[int] = set()  # above `low`
        self._sendings: deque[_Sending] = deque()  # oldest first; those done with may linger

    @property
    def outstanding(self) -> int:
        """Publishes that were sent and are not done with."""
        return self.next - self.low - len(self._done)

    @property
    def oldest_at(self) -> float | None:
        """Time of the oldest sending without a reply; None if there is none."""
        return self._sendings[0].at if self._sendings else None

    def is_outstanding(self, ordinal: int) -> bool:
        """Whether it was sent and is not done with."""
        return self.low <= ordinal < self.next and ordinal not in self._done

    def block(self, ordinal: int) -> Publishes:
        """The block that has this ordinal."""
        return next(block for block in self._blocks if ordinal < block.end)

    def first_sent(self, ordinal: int) -> float:
        """Time at which this ordinal, which was sent once, was sent."""
        return next(run.at for run in self._sendings if ordinal < run.end)

    # ── offers ───────────────────────────────────────────────────────────────────────────────

    def append(self, block: Publishes) -> None:
        """Takes the publishes that follow those offered before."""
        if block.end > block.first:
            self._blocks.append(block)
            self.end = block.end

    @property
    def unsent(self) -> list[Messages]:
        """The messages that were never sent, the last ones offered."""
        blocks = (block for block in self._blocks if block.end > self.next)
        return [block.messages.slice(max(0, self.next - block.first)) for block in blocks]

    def drop_unsent(self) -> None:
        """Forgets the publishes that were never sent."""
        while self._blocks and self._blocks[-1].end > self.next:
            block = self._blocks.pop()
            if block.first < self.next:
                self._blocks.append(block.before(self.next))
        self.end = self.next

    # ── sendings ─────────────────────────────────────────────────────────────────────────────

    def note_sent(self, end: int, nbytes: int, now: float) -> None:
        """Notes that the ordinals before this one go out for the first time."""
        self._sendings.append(_Sending(self.next, end, now))
        self.next = end
        self.nbytes += nbytes

    def drop_sendings(self, now: float, after_s: float) -> list[tuple[int, float]]:
        """
        Forgets sendings of so long ago, or longer; those of their publishes that are not done with,
        and when they were sent.
        """
        found: list[tuple[int, float]] = []
        while self._sendings and self._sendings[0].at + after_s <= now:
            run = self._sendings.popleft()
            ordinals = range(max(run.first, self.low), run.end)
            found += [(ordinal, run.at) for ordinal in ordinals if ordinal not in self._done]
        return found

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def follows(self, ordinals: list[int]) -> bool:
        """Whether these are the lowest that are out, in order, and none behind them is done."""
        end = self.low + len(ordinals)
        return not self._done and end <= self.next and ordinals == list(range(self.low, end))

    def advance(self, count: int) -> None:
        """Finishes the lowest ordinals that are out: the fast path."""
        end = self.low + count
        while self.low < end:
            block = self._blocks[0]
            upto = min(end, block.end)
            self.nbytes -= block.nbytes(self.low, upto)
            self.low = upto
            self._retire()

    def undone(self, ordinals: Iterable[int]) -> list[int]:
        """Ordinals of these, in any order, that were sent and are not done with; ascending."""
        places = sorted(set(ordinals).difference(self._done))
        if places and not self.low <= places[0] <= places[-1] < self.next:
            places = [ordinal for ordinal in places if self.is_outstanding(ordinal)]
        return places

    def finish(self, places: Sequence[int]) -> None:
        """
        Finishes ordinals that ascend and are not done with: any of them, as acks of several streams
        come in any order.
        """
        self.nbytes -= size_of(self._blocks, places)
        self._done.update(places)
        low = self.low
        self.low = next(itertools.filterfalse(self._done.__contains__, itertools.count(low)))
        self._done.difference_update(range(low, self.low))
        self._retire()

    def _retire(self) -> None:
        while self._blocks and self._blocks[0].end <= self.low:
            self._blocks.popleft()
        while self._sendings and self._sendings[0].end <= self.low:
            self._sendings.popleft()
