"""
How much may be published on some subjects, and for how long they must rest when it was more.

Rule 1: no I/O and no clock; callers pass what there was (`Came`), and `now` (seconds).

A bucket of tokens, as Pulsar has it (PIP-322): a message, or a byte, takes one, `rate` come back in
a second, at most `burst` are kept. It is counted after the fact, so the bucket may fall below zero;
then the subjects rest until it holds `target` again: (target - tokens) / rate seconds.

Three quotas there are, after PIP-385's reasons, which pauses give: a *topic's*, of the subjects of
a filter; a *resource group's*, that several filters share; the *broker's*, of all there is, which
pauses whole writers. Pauses of different reasons do not cancel each other, so one subject may be
under all three.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..outbox.throttleprotocol import Reason
from ..subjects import REST, check_filter, overlaps
from ..values import size
from .usage import Came

__all__ = ["Limit", "Quota", "TokenBucket", "check_limits", "limits_of"]

_LONGEST_S: Final = 60.0
"""Of rest that a bucket may ask for; publishers that do not listen are not paid for longer."""

_TARGET_S: Final = 0.1
"""The rest ends when what comes in so long is there again."""

_SMOOTH_S: Final = 5.0
"""The rate that is shown is that of the last so many seconds."""

_AMOUNT: Final = r"(\d+(?:\.\d+)?)\s*([KMG]i?B|B)?"
_RATE: Final = re.compile(
    rf"\s*{_AMOUNT}\s*/\s*(s|m|h)\s*(?:,\s*burst\s*=\s*{_AMOUNT}\s*)?", re.ASCII
)
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Limit(NamedTuple):
    """So much a second on the subjects of some filters together, and at most so much at once."""

    filters: tuple[str, ...]
    rate: float
    burst: float
    of_bytes: bool = False
    """Whether that is bytes; else it is messages."""
    reason: Reason = Reason.TopicProduceQuotaExceeded
    """Whose quota it is: a topic's, a resource group's, or the broker's."""

    @property
    def name(self) -> str:
        """As tables show it."""
        if self.reason is Reason.BrokerProduceQuotaExceeded:
            return "broker"
        return ", ".join(self.filters)


def limits_of(
    filters: str, text: str, reason: Reason = Reason.TopicProduceQuotaExceeded
) -> list[Limit]:
    """
    What `1000/s`, `1MiB/s`, `600/m,burst=5000` or `1000/s and 1MiB/s` says of these filters.

    Without burst it is what comes in a second, at least one. A filter is one, or, of a resource
    group, several with commas between them; a broker has none: `>`.

    Raises:
        ValueError: It says nothing, or a filter is none.
    """
    names = [filters]
    if reason is Reason.ResourceGroupProduceQuotaExceeded:
        names = [part.strip() for part in filters.split(",")]
    elif reason is Reason.BrokerProduceQuotaExceeded:
        names = [REST]
    for name in names:
        check_filter(name)
    for number, name in enumerate(names):
        if any(overlaps(name, other) for other in names[:number]):
            raise ValueError(f"group '{filters}': '{name}' has subjects in common with another")
    return [_limit(tuple(names), filters, part, reason) for part in re.split(r"\band\b", text)]


def _limit(filters: tuple[str, ...], name: str, text: str, reason: Reason) -> Limit:
    match = _RATE.fullmatch(text)
    if match is not None:
        amount, unit, per, most, most_unit = match.groups()
        is_known = float(amount) > 0 and (most is None or float(most) > 0)
        if is_known and (unit is not None or most_unit is None):
            rate = float(amount) * _bytes(unit) / _UNIT_S[per]
            burst = float(most) * _bytes(most_unit) if most else max(1.0, rate)
            return Limit(filters, rate, burst, unit is not None, reason)
    raise ValueError(
        f"limit of '{name}': expected messages or bytes per s, m or h, such as 1000/s, 1MiB/s,"
        f" 600/m,burst=50 or 1000/s and 1MiB/s, got '{text.strip()}'"
    )


def _bytes(unit: str | None) -> int:
    return 1 if unit is None else size(f"1{unit}")


def check_limits(limits: Sequence[Limit]) -> None:
    """
    Accept limits that can be kept side by side.

    Raises:
        ValueError: Two for one reason have subjects in common, where the latest pause is the one
            that counts: one would end those of the other. Of the same filters one of messages and
            one of bytes may be given, which end together.
    """
    for number, limit in enumerate(limits):
        for other in limits[:number]:
            if limit.reason is not other.reason:
                continue
            if limit.filters == other.filters and limit.of_bytes != other.of_bytes:
                continue
            if any(overlaps(a, b) for a in limit.filters for b in other.filters):
                raise ValueError(
                    f"limits of '{other.name}' and '{limit.name}': they have subjects in common;"
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
        """So much has been published since the last time."""
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
        self.total = 0
        """Messages, or bytes, counted so far."""
        self.rest_until = now
        self._bucket = TokenBucket(limit.rate, limit.burst, now)
        self._seen = deque([(now, 0)])

    def __repr__(self) -> str:
        unit = "bytes" if self.limit.of_bytes else "messages"
        return f"<Quota {self.limit.name}: {self.total} {unit}, {self._bucket!r}>"

    def came(self, came: Mapping[str, Came], now: float) -> float | None:
        """So much more on each filter; else as `published`."""
        counts = [came[filter] for filter in self.limit.filters if filter in came]
        of_bytes = self.limit.of_bytes
        return self.published(sum(e.nbytes if of_bytes else e.messages for e in counts), now)

    def published(self, count: int, now: float) -> float | None:
        """So much more: until when its subjects must rest; None when they need not."""
        self.total += count
        self._seen.append((now, self.total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SMOOTH_S:
            self._seen.popleft()
        self._bucket.consume(count, now)
        rest_s = self._bucket.rest_s(now)
        if rest_s > 0:
            self.rest_until = now + rest_s
        return self.rest_until if rest_s > 0 else None

    @property
    def rate(self) -> float:
        """Messages, or bytes, a second of late."""
        (since, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - since) if now > since else 0.0
