"""
A quota on some subjects: the rate that writers may share, and the times when others must rest.

Rule 1: no I/O and no clock; callers pass what there was (`Came`), and `now` (seconds).

A bucket of tokens, as Pulsar has it (PIP-322): a message, or a byte, takes one, `rate` come back in
a second, at most `burst` are kept. What streams store is counted after the fact, whoever publishes
it, so the bucket may fall below zero.

Writers that keep a rate share what is `wanted`: the limit, and what the bucket holds within
`_EVEN_S`. So in the long run what is stored is the limit, though others publish, too, or estimates
are wrong. Producers that only know pauses rest while the bucket is empty, until it holds `target`
again: (target - tokens) / rate seconds.

Three quotas there are, after PIP-385's reasons, which commands give: a *topic's*, of the subjects
of a filter; a *resource group's*, that several filters share; the *broker's*, of all there is,
which is about whole writers. What is said for different reasons does not cancel each other, so one
subject may be under all three.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..outbox.throttling.keptrate import TokenBucket
from ..outbox.throttling.throttleprotocol import Rates, Reason, Unit
from ..subjects import REST, check_filter, overlaps
from ..values import size
from .pauses import Member
from .shares import Key, Use, shares
from .usage import Came

_LONGEST_S: Final = 60.0
"""Longest rest of a bucket: what publishers that ignore commands store beyond it is forgiven."""

_EVEN_S: Final = 1.0
"""Time in which an excess, or a shortfall, is made up for."""

_REST_S: Final = 1.0
"""Longest single pause of producers that keep no rate (PIP-385)."""

_TARGET_S: Final = 0.1
"""A rest ends when the bucket holds what comes in within this time."""

_SMOOTH_S: Final = 5.0
"""The displayed rate is an average over this time."""

_AMOUNT: Final = r"(\d+(?:\.\d+)?)\s*([KMG]i?B|B)?"
_RATE: Final = re.compile(
    rf"\s*{_AMOUNT}\s*/\s*(s|m|h)\s*(?:,\s*burst\s*=\s*{_AMOUNT}\s*)?", re.ASCII
)
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class QuotaLimit(NamedTuple):
    """Rate and burst on the subjects of some filters together."""

    filters: tuple[str, ...]
    rate: float
    burst: float
    of_bytes: bool = False
    """Whether that is bytes; else it is messages."""
    reason: Reason = Reason.TopicProduceQuotaExceeded
    """Owner of the quota: a topic's, a resource group's, or the broker's."""

    @property
    def unit(self) -> Unit:
        """The unit of the rate."""
        return "byte" if self.of_bytes else "msg"

    @property
    def keys(self) -> list[Key]:
        """The keys of its rates, one a filter."""
        return [(filter, self.reason) for filter in self.filters]

    @property
    def none(self) -> Rates:
        """The rate of who may publish nothing."""
        return Rates(nbytes=0.0) if self.of_bytes else Rates(msgs=0.0)

    @property
    def name(self) -> str:
        """The limit's name in tables."""
        if self.reason is Reason.BrokerProduceQuotaExceeded:
            return "broker"
        return ", ".join(self.filters)


def limits_of(
    filters: str, text: str, reason: Reason = Reason.TopicProduceQuotaExceeded
) -> list[QuotaLimit]:
    """
    Limits of these filters, written `1000/s`, `1MiB/s`, `600/m,burst=5000` or `1000/s and 1MiB/s`.

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


def _limit(filters: tuple[str, ...], name: str, text: str, reason: Reason) -> QuotaLimit:
    match = _RATE.fullmatch(text)
    if match is not None:
        amount, unit, per, most, most_unit = match.groups()
        is_known = float(amount) > 0 and (most is None or float(most) > 0)
        if is_known and (unit is not None or most_unit is None):
            rate = float(amount) * _bytes(unit) / _UNIT_S[per]
            burst = float(most) * _bytes(most_unit) if most else max(1.0, rate)
            return QuotaLimit(filters, rate, burst, unit is not None, reason)
    raise ValueError(
        f"limit of '{name}': expected messages or bytes per s, m or h, such as 1000/s, 1MiB/s,"
        f" 600/m,burst=50 or 1000/s and 1MiB/s, got '{text.strip()}'"
    )


def _bytes(unit: str | None) -> int:
    return 1 if unit is None else size(f"1{unit}")


def check_limits(limits: Sequence[QuotaLimit]) -> None:
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


class Quota:
    """A limit, what was published under it, and until when its subjects rest."""

    def __init__(self, limit: QuotaLimit, now: float) -> None:
        self.limit = limit
        self.total = 0
        """Messages, or bytes, counted so far."""
        self.rest_until = now
        """Time until which producers that keep no rate rest."""
        self._bucket = TokenBucket(limit.rate, limit.burst, now)
        self._seen = deque([(now, 0)])

    def __repr__(self) -> str:
        unit = "bytes" if self.limit.of_bytes else "messages"
        return f"<Quota {self.limit.name}: {self.total} {unit}, {self._bucket!r}>"

    def fill_bucket(self, now: float) -> None:
        """The bucket is full: what came before writers were told of the limit is forgotten."""
        self._bucket = TokenBucket(self.limit.rate, self.limit.burst, now)

    def count(self, came: Mapping[str, Came], now: float) -> None:
        """Counts what was stored on each filter since the last time."""
        counts = [came[filter] for filter in self.limit.filters if filter in came]
        of_bytes = self.limit.of_bytes
        self.add(sum(e.nbytes if of_bytes else e.messages for e in counts), now)

    def add(self, count: int, now: float) -> None:
        """Counts so many messages, or bytes, since the last time."""
        self.total += count
        self._seen.append((now, self.total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SMOOTH_S:
            self._seen.popleft()
        self._bucket.consumed(count, now, -_LONGEST_S * self.limit.rate + self._target)

    def wanted(self, now: float) -> float:
        """The rate of all writers that keep rates, together."""
        return max(0.0, self.limit.rate + self._bucket.tokens(now) / _EVEN_S)

    def rest(self, now: float, part: float = 0.0) -> float | None:
        """
        Time until which producers that keep no rate must rest; None when they need not.

        Args:
            part: of the limit that is theirs, where writers that keep rates want all of it; 0 where
                those want none. The bucket of both evens out where each has its part.
        """
        tokens = self._bucket.tokens(now) + part * self.limit.rate * _EVEN_S
        if tokens > 0:
            return None
        self.rest_until = now + (self._target - tokens) / self.limit.rate
        return self.rest_until

    @property
    def _target(self) -> float:
        return min(self.limit.burst, self.limit.rate * _TARGET_S)

    @property
    def rate(self) -> float:
        """Messages, or bytes, a second of late."""
        (since, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - since) if now > since else 0.0


def shares_of(
    quotas: Iterable[Quota], members: Mapping[int, Member], now: float
) -> dict[Key, dict[int, Rates]]:
    """The share of each producer that keeps rates."""
    uses = {number: member.uses for number, member in members.items() if member.keeps_rates}
    return plan([(quota.limit, quota.wanted(now)) for quota in quotas], uses)


def plan(
    limits: Iterable[tuple[QuotaLimit, float]], uses: Mapping[int, Mapping[Key, Use]]
) -> dict[Key, dict[int, Rates]]:
    """
    Rates at which each writer may publish.

    Args:
        limits: each with the rate that there is to share.
        uses: of each writer that keeps rates, by its id.
    """
    rates: dict[Key, dict[int, Rates]] = {}
    idle = Use()
    for limit, room in limits:
        wanted = {
            (key, writer): own.get(key, idle).wants(limit.unit)
            for key in limit.keys
            for writer, own in uses.items()
        }
        for (key, writer), share in shares(room, wanted).items():
            before = rates.setdefault(key, {}).get(writer, Rates())
            rates[key][writer] = (
                before._replace(nbytes=share) if limit.of_bytes else before._replace(msgs=share)
            )
    return rates


def rests_of(
    quotas: Iterable[Quota], members: Mapping[int, Member], now: float
) -> dict[Key, float]:
    """Ends of the pauses of producers that keep no rate: for a second at one time, at most."""
    keepers = [member for member in members.values() if member.keeps_rates]
    others = sum(member.producer.supports_throttle for member in members.values()) - len(keepers)
    rests: dict[Key, float] = {}
    if keepers and not others:
        return rests
    for quota in quotas:
        keys = quota.limit.keys
        is_wanted = any(member.use(key).waiting_for for member in keepers for key in keys)
        until = quota.rest(now, others / len(members) if is_wanted else 0.0)
        for key in keys if until is not None else ():
            rests[key] = min(now + _REST_S, max(until or now, rests.get(key, now)))
    return rests
