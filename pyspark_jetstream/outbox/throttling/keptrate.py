"""
A writer's own rate on the subjects of a filter: the rows that may go now, and when the next may.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).

A controller gives the rate, as this writer's share of a quota (docs/throttle-protocol.md). Rows go
out some at a time, `_STEP_S` apart, and what a writer has not used within `_KEPT_S` is lost: it is
the controller that makes up for what was too much or too little, as it alone knows what was stored.
"""

from __future__ import annotations

import math
from typing import Final

from ..messages import STORED_LESS
from .throttleprotocol import Kept, Rates, Reason, Unit

_STEP_S: Final = 0.05
"""Rows go when what comes in so long is there: twenty sendings a second, not one a row."""

_KEPT_S: Final = 0.25
"""Tokens are kept for so long: a writer that stands still for a moment loses nothing."""

_LATER_S: Final = 1e-6
"""A due time is rounded up by this, so that the tokens are there when it has come."""


class TokenBucket:
    """
    Tokens that come back at a rate, as in Pulsar's rate limiters (PIP-322). More may be consumed
    than there are: then they are below zero.

    Args:
        rate: tokens a second.
        burst: the most that are kept.
        tokens: at the beginning; all of the burst if it is left out.
    """

    def __init__(self, rate: float, burst: float, now: float, tokens: float = math.inf) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._at = min(tokens, burst), now

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:.1f} of {self.burst:g}, {self.rate:g}/s>"

    def consume(self, count: float, now: float) -> None:
        """Takes tokens; with a negative count, gives some back."""
        self._tokens, self._at = min(self.burst, self.tokens(now) - count), now

    def consumed(self, count: float, now: float, floor: float = -math.inf) -> None:
        """Takes `count` tokens; a debt below the floor is forgiven."""
        # They came while others were taken: what was taken cannot have spilled over.
        left = min(self.burst, self._tokens + (now - self._at) * self.rate - count)
        self._tokens, self._at = max(left, floor), now

    def tokens(self, now: float) -> float:
        """Number of tokens now."""
        return min(self.burst, self._tokens + (now - self._at) * self.rate)

    def wait_s(self, target: float, now: float) -> float:
        """Seconds until there are so many; infinite where they never will be."""
        missing = min(target, self.burst) - self.tokens(now)
        if missing <= 0:
            return 0.0
        return missing / self.rate if self.rate > 0 else math.inf

    def refill(self, rate: float, burst: float, now: float) -> None:
        """Sets another rate and burst from now on; tokens stay, as far as there is room."""
        self._tokens, self._at = min(self.tokens(now), burst), now
        self.rate, self.burst = rate, burst

    def later(self, now: float) -> TokenBucket:
        """A copy of it as it was at the last call; nothing has come back since."""
        return TokenBucket(self.rate, self.burst, now, self._tokens)


class KeptRate:
    """
    A rate that a writer keeps.

    Args:
        filter: of the subjects it is about.
        reason: whose limit it is a part of.
        phase: the part of a message, from 0 to 1, that it begins with. Writers that begin together
            differ in it, so that slow rates do not make all of them publish at one time.
    """

    def __init__(self, filter: str, reason: Reason, phase: float, now: float) -> None:
        self.filter, self.reason = filter, reason
        self.rates = Rates()
        self.until = now
        """The time when the rate lapses, unless the controller sends it again."""
        self.waiting_for: Unit = ""
        """The unit of which its rows lack tokens."""
        self.released_at = -math.inf
        """The time when rows last left."""
        self._out = (0, 0)  # messages and bytes so far
        self._msgs = TokenBucket(0.0, 1.0, now, phase)
        self._bytes = TokenBucket(0.0, 0.0, now)

    def __repr__(self) -> str:
        return f"<KeptRate {self.filter} {self.rates.msgs} msgs/s, {self.rates.nbytes} bytes/s>"

    def heir(self, now: float) -> KeptRate:
        """For the next task of this process: the same tokens, and none for the time between."""
        heir = KeptRate(self.filter, self.reason, 0.0, now)
        heir.rates, heir.until = self.rates, self.until
        heir._msgs, heir._bytes = self._msgs.later(now), self._bytes.later(now)
        return heir

    @property
    def kept(self) -> Kept:
        """The rate as a report to operators."""
        return Kept(self.filter, self.reason, self.rates, *self._out, self.waiting_for)

    def keep(self, rates: Rates, until: float, now: float) -> None:
        """These are the rates from now until then."""
        self.rates, self.until = rates, until
        msgs, nbytes = rates.msgs or 0.0, rates.nbytes or 0.0
        self._msgs.refill(msgs, max(1.0, msgs * _KEPT_S), now)
        self._bytes.refill(nbytes, nbytes * _KEPT_S, now)

    def lacks(self, rows: int, mean: float, now: float) -> Unit:
        """
        Unit of which there is too little for the next rows; "" if they may go.

        Args:
            rows: how many wait.
            mean: bytes of one.
        """
        waits = self._waits_s(rows, mean, now)
        return max(waits, key=lambda unit: waits[unit])

    def due(self, rows: int, mean: float, now: float) -> float:
        """The time when the next row may leave; infinite where none may."""
        wait_s = max(self._waits_s(rows, mean, now).values())
        return now + wait_s + _LATER_S if wait_s > 0 else now

    def room(self, rows: int, mean: float, now: float) -> int:
        """Number of rows that may leave now."""
        if self.lacks(rows, mean, now):
            return 0
        if self.rates.msgs is not None:
            rows = min(rows, int(self._msgs.tokens(now)))
        if self.rates.nbytes is not None:  # the last one may be larger than what is there
            rows = min(rows, max(1, int(self._bytes.tokens(now) / mean)))
        return rows

    def go(self, rows: int, nbytes: int, now: float) -> None:
        """
        Rows go out.

        Args:
            nbytes: of them, as `sizes` has it.
        """
        self.released_at = now
        self._consume(rows, nbytes - rows * STORED_LESS, now)

    def back(self, rows: int, nbytes: int, now: float) -> None:
        """Rows that were to go have not gone; those that went before there was a rate are none."""
        count = min(rows, self._out[0])
        self._consume(-count, -min(nbytes - rows * STORED_LESS, self._out[1]), now)

    def _consume(self, rows: int, nbytes: int, now: float) -> None:
        self._out = self._out[0] + rows, self._out[1] + nbytes
        if self.rates.msgs is not None:
            self._msgs.consume(rows, now)
        if self.rates.nbytes is not None:
            self._bytes.consume(nbytes, now)

    def _waits_s(self, rows: int, mean: float, now: float) -> dict[Unit, float]:
        """Seconds for which there are too few tokens of each kind."""
        msgs, nbytes = self.rates
        waits: dict[Unit, float] = {"": 0.0}
        if msgs is not None:
            step = max(1.0, min(msgs * _STEP_S, rows))
            waits["msg"] = self._msgs.wait_s(step, now) if msgs else math.inf
        if nbytes is not None:
            step = min(nbytes * _STEP_S, rows * mean)
            waits["byte"] = self._bytes.wait_s(step, now) if nbytes else math.inf
        return waits
