"""
How much may be published on some subjects, and for how long they must rest when it was more.

Rule 1: no I/O and no clock; callers pass how many messages there were, and `now` (seconds).

A bucket of tokens, as Pulsar has it (PIP-322): a message takes one, `rate` come back in a second,
at most `burst` are kept. Messages are counted after the fact, so the bucket may fall below zero;
then the subjects rest until it holds `target` again: (target - tokens) / rate seconds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..subjects import check_filter, overlaps

__all__ = ["Limit", "Quota", "TokenBucket", "check_limits"]

_LONGEST_S: Final = 60.0
"""Of rest that a bucket may ask for; publishers that do not listen are not paid for longer."""

_TARGET_S: Final = 0.1
"""The rest ends when what comes in so long is there again."""

_SMOOTH_S: Final = 5.0
"""The rate that is shown is that of the last so many seconds."""

_RATE: Final = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h)\s*(?:,\s*burst\s*=\s*(\d+)\s*)?", re.ASCII
)
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Limit(NamedTuple):
    """So many messages a second on the subjects of a filter, and at most so many at once."""

    filter: str
    rate: float
    burst: float

    @classmethod
    def parse(cls, filter: str, text: str) -> Limit:
        """
        What `1000/s` or `600/m,burst=5000` says; without burst it is what comes in a second.

        Raises:
            ValueError: It says nothing, or the filter is none.
        """
        check_filter(filter)
        found = _RATE.fullmatch(text)
        if found is None or float(found[1]) == 0 or found[3] == "0":
            raise ValueError(
                f"limit of '{filter}': expected messages per s, m or h, such as 1000/s or"
                f" 600/m,burst=50, got '{text}'"
            )
        rate = float(found[1]) / _UNIT_S[found[2]]
        return cls(filter, rate, float(found[3]) if found[3] else max(1.0, rate))


def check_limits(limits: Sequence[Limit]) -> None:
    """
    Accept limits that can be kept side by side.

    Raises:
        ValueError: Two have subjects in common, where the latest pause is the one that counts: one
            would end those of the other.
    """
    for number, each in enumerate(limits):
        for other in limits[:number]:
            if overlaps(each.filter, other.filter):
                raise ValueError(
                    f"limits of '{other.filter}' and '{each.filter}': they have subjects in common;"
                    " give filters that have none"
                )


class TokenBucket:
    """The tokens of one limit, full at first."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, now
        self._target = min(burst, rate * _TARGET_S)

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:.1f} of {self._burst:g}, {self._rate:g}/s>"

    def consume(self, count: float, now: float) -> None:
        """So many messages have been published since the last time."""
        # They came while the tokens did: what a message took cannot have spilled over.
        left = min(self._burst, self._tokens + (now - self._at) * self._rate - count)
        self._tokens = max(left, self._target - _LONGEST_S * self._rate)
        self._at = now

    def rest_s(self, now: float) -> float:
        """How long nothing should be published; 0 while there are tokens."""
        self.consume(0, now)
        return 0.0 if self._tokens > 0 else (self._target - self._tokens) / self._rate


class Quota:
    """A limit, what was published under it, and until when its subjects rest."""

    def __init__(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self.messages = 0
        """Counted so far."""
        self.rest_until = now
        self._bucket = TokenBucket(limit.rate, limit.burst, now)
        self._seen = deque([(now, 0)])

    def __repr__(self) -> str:
        return f"<Quota {self.limit.filter}: {self.messages} messages, {self._bucket!r}>"

    def published(self, count: int, now: float) -> float | None:
        """So many more: until when its subjects must rest; None when they need not."""
        self.messages += count
        self._seen.append((now, self.messages))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SMOOTH_S:
            self._seen.popleft()
        self._bucket.consume(count, now)
        rest_s = self._bucket.rest_s(now)
        if rest_s > 0:
            self.rest_until = now + rest_s
        return self.rest_until if rest_s > 0 else None

    @property
    def rate(self) -> float:
        """Messages a second of late."""
        (since, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - since) if now > since else 0.0
