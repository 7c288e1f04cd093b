"""
A bucket of tokens, as Pulsar's rate limiters have it (PIP-322).

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math

__all__ = ["TokenBucket"]


class TokenBucket:
    """
    Tokens that come back at a rate. More may be taken than there are: then they are below zero.

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
        """So many were taken since the last time; what is missing below the floor is forgiven."""
        # They came while others were taken: what was taken cannot have spilled over.
        left = min(self.burst, self._tokens + (now - self._at) * self.rate - count)
        self._tokens, self._at = max(left, floor), now

    def tokens(self, now: float) -> float:
        """How many there are now."""
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
