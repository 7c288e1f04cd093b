"""
Pauses that an operator wants, producers that were told, and those that acknowledged.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and publish what is returned.
Rule 2: the operator's side of `throttleprotocol`; the writer's is `throttle`.

Each producer gets its commands by name, on `<subject>.<producer_id>`:

    found ──command──▸ told ──receipt──▸ acknowledged
                        │ receipt wait is over: told again, as a pause of its connection
                        ├──receipt──▸ paused as a whole
                        └──silence──▸ silent, until a receipt comes after all

So those that do not know the protocol are sent nothing, and of those that are gone the server says
so at once (503, nobody listens), which tells them from the silent ones. Receipts of the reasons
about a connection count, but are not waited for, as in PIP-385; only that of the fallback is, for
it is all that is left to ask.

A command pauses for the second that has begun and `MARGIN_S`, and is issued again when the second
is over, as long as the pause is wanted; who appears in between is told on sight, for what is left
of it. So no gap opens while the next command is under way, and nothing stays paused for long when
the operator's program dies. Who begins says so, and holds its rows until it has been told: so those
that last less than a second are paused, too (overload.md B7, B21 to B24).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ..client.wire import NO_RESPONDERS
from ..outbox.throttling.throttleprotocol import (
    DISCOVER,
    THROTTLE_SUBJECT,
    Active,
    Producer,
    Rates,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)
from ..subjects import REST
from .shares import Key, Use, differ

MARGIN_S: Final = 0.5
"""
Time that a command pauses beyond its second: the next one may be so late.

Measured on the loopback interface: 2 ms at most, 26 ms with six busy processes for each core. The
rest is for slow networks. What is too much does no harm, for the end of a pause is told.
"""

LEASE_S: Final = 5.0
"""
Seconds for which a command gives a rate. A writer that keeps one publishes all the same, so the
lease need not be as short as a pause; and when it lapses all its rows go at once, so it had better
not.
"""

_AGAIN_S: Final = 0.1
"""Shortest time between two rates that one producer is told."""

_SECOND_S: Final = 1.0
_EXACT_S: Final = 0.001
"""Resolution of durations on the wire; a shorter difference is ignored."""

_FORGET_S: Final = 10.0
"""A producer that has been silent for so long, and owes no receipt, has ended."""

_MAX_FAILED: Final = 1_000
"""
Upper bound of the named producers that missed a command: an operator with a quota runs for months.
"""

_FALLBACK: Final = Reason.ConnectionPendingMessagesBreach
_WHOLE: Final[Key] = (REST, _FALLBACK)


class Send(NamedTuple):
    """A message to publish: a discovery, a command, or an answer."""

    subject: str
    token: int | None
    """Identifies the replies; None where no reply is expected."""
    data: bytes


class Response(Enum):
    """A producer's last answer to commands."""

    FOUND = "found"
    UNABLE = "does not know the protocol"
    TOLD = "told"
    ACKNOWLEDGED = "acknowledged"
    WHOLE = "paused as a whole"
    SILENT = "not acknowledged"


@dataclass(slots=True)
class _Ask:
    """A command to one producer that it has not acknowledged."""

    command: ThrottleProducer
    until: float
    last: bool
    """Whether it is the last try: a producer that does not acknowledge it is silent."""
    overdue: bool = False

    @property
    def is_fallback(self) -> bool:
        return self.last and self.command.pause_s > 0

    @property
    def key(self) -> Key:
        return self.command.subject, self.command.reason


@dataclass(slots=True)
class Member:
    """A producer, as far as this operator knows it."""

    producer: Producer
    response: Response
    heard: float
    """Time of the producer's last answer."""
    told: bool = False
    """Whether it ever got a command."""
    receipts: int = 0
    missed: int = 0
    """Commands it did not acknowledge before the next one came, nor their fallback."""
    whole_until: float = -math.inf
    """End of its pause as a whole, if it listened to the fallback."""
    asks: dict[int, _Ask] = field(default_factory=dict)
    """By request_id; oldest first."""
    uses: dict[Key, Use] = field(default_factory=dict)
    """Its publishes, by the rate that limits them."""

    @property
    def keeps_rates(self) -> bool:
        """Whether it gets rates instead of pauses."""
        return self.producer.supports_throttle and self.producer.supports_rate

    def use(self, key: Key) -> Use:
        """Its publishes under this rate."""
        return self.uses.setdefault(key, Use())

    def update(self, producer: Producer, now: float) -> bool:
        """Keeps what it reports; True if rows of it begin, or cease, to wait for a rate."""
        self.producer, self.heard = producer, now
        kept = {(each.filter, each.reason): each for each in producer.rates}
        before = {key: use.waiting_for for key, use in self.uses.items()}
        for key, use in self.uses.items():
            use.update(kept.get(key), now)
        return before != {key: use.waiting_for for key, use in self.uses.items()}


class Ended(NamedTuple):
    """Producers that are gone."""

    producers: int
    receipts: int
    missed: int


@dataclass(slots=True)
class _WantedPause:
    """A pause that is wanted."""

    until: float
    issued: float = -math.inf
    """End of what was issued so far."""

    @property
    def due(self) -> float:
        """Time of the next command; never if the last one is enough."""
        return self.issued - MARGIN_S if self.until > self.issued + _EXACT_S else math.inf


class _Unacknowledged:
    """The commands that have no receipt, and until when one is waited for."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}  # by request_id, as in their `asks`
        self._waits: deque[tuple[float, int]] = deque()  # until when for which; in this order
        self._ids = itertools.count(1)

    def __contains__(self, number: int) -> bool:
        return number in self._members

    def __getitem__(self, number: int) -> Member:
        return self._members[number]

    def add(self, member: Member, ask: Callable[[int], _Ask], until: float) -> _Ask:
        """A command under a new request_id; infinite for one that is not waited for."""
        number = next(self._ids)
        member.asks[number] = ask(number)
        self._members[number] = member
        if until < math.inf:
            self._waits.append((until, number))
        return member.asks[number]

    def drop(self, member: Member, key: Key | None = None) -> None:
        """A producer's commands of this filter and reason, or all, are not waited for any more."""
        for number, ask in list(member.asks.items()):
            if key in (None, ask.key):
                del member.asks[number], self._members[number]

    @property
    def next_deadline(self) -> float:
        """Deadline of the first that is waited for; infinite where none is."""
        while self._waits and self._waits[0][1] not in self._members:
            self._waits.popleft()
        return self._waits[0][0] if self._waits else math.inf

    def overdue(self, now: float) -> Iterator[int]:
        """Commands that are not waited for any longer; each once."""
        while self.next_deadline <= now:
            yield self._waits.popleft()[1]


class Pauses:
    """
    The pauses of one operator, and the rates of its quotas.

    Args:
        subject: the control subject.
        receipt_wait_s: how long a receipt may take before the fallback (B22).
    """

    def __init__(self, subject: str = THROTTLE_SUBJECT, receipt_wait_s: float = 0.1) -> None:
        self.members: dict[int, Member] = {}
        """Producers that are there, by producer_id."""
        self.told = False
        """Whether anybody ever got a command."""
        self.ended: dict[Response, Ended] = {}
        """Producers that were told and have ended, by their last response."""
        self.nobody = False
        """Whether the server says that nobody listens on the control subject."""
        self.subject = subject
        self._receipt_wait_s = receipt_wait_s
        self._pauses: dict[tuple[str, Reason], _WantedPause] = {}
        self._failed: dict[int, None] = {}  # the last that missed one last
        self._asked = _Unacknowledged()
        self._discovery = -math.inf
        self._limits: dict[Key, Rates] = {}
        self.news = False
        """Whether shares must be worked out again; the caller that does so resets it."""

    def __repr__(self) -> str:
        paused = ", ".join(f"{filter} by {reason.name}" for filter, reason in self._pauses)
        return f"<Pauses {paused or 'none'}, {len(self.members)} producers>"

    @property
    def waiting(self) -> bool:
        """Whether a receipt may still come in time."""
        return self._asked.next_deadline < math.inf

    @property
    def acknowledged(self) -> bool:
        """Whether somebody was told, and no receipt is waited for."""
        return self.told and not self.waiting

    @property
    def is_kept(self) -> bool:
        """Whether each rate that was told has its receipt."""
        uses = (use for member in self.members.values() for use in member.uses.values())
        return all(use.unanswered_since == math.inf for use in uses)

    @property
    def next_deadline(self) -> float:
        """The time of the next call of `due`."""
        issue = min((pause.due for pause in self._pauses.values()), default=math.inf)
        return min(self._discovery, self._asked.next_deadline, issue)

    @property
    def silent(self) -> list[int]:
        """
        Producers that did not acknowledge: the latest command, or another before the next came; of
        the latter the last thousand.
        """
        now = {i for i, member in self.members.items() if member.response is Response.SILENT}
        return sorted(now.union(self._failed))

    # ── what the operator wants ──────────────────────────────────────────────────────────────

    def pause(self, filter: str, reason: Reason, until: float) -> None:
        """Requests a pause until then; `due` returns the commands."""
        self._pauses.setdefault((filter, reason), _WantedPause(until)).until = until

    def limit(self, filter: str, reason: Reason, none: Rates) -> None:
        """Requests a quota: writers that keep rates get `none` of it until they have a share."""
        before = self._limits.get((filter, reason), Rates())
        both = (a if b is None else b for a, b in zip(before, none, strict=True))
        self._limits[filter, reason] = Rates(*both)

    def unlimit(self) -> list[Key]:
        """Ends all quotas; returns those to lift, of which a producer that is there was told."""
        told = {key for member in self.members.values() for key in member.uses}
        limits, self._limits = self._limits, {}
        return [key for key in limits if key in told or key in self._pauses]

    def share(self, shares: Mapping[Key, Mapping[int, Rates]], now: float) -> list[Send]:
        """The commands that tell writers their shares, where these have changed."""
        sends: list[Send] = []
        for key, by_id in shares.items():
            for number, rates in by_id.items():
                member = self.members.get(number)
                if member is not None:
                    sends += self._share(member, key, rates, now)
        return sends

    def _share(self, member: Member, key: Key, rates: Rates, now: float) -> Iterator[Send]:
        use = member.use(key)
        told_s = now - use.told_at
        is_first = use.told is None or (not any(use.told) and any(rates))
        if told_s < _SECOND_S and not (
            is_first or (told_s >= _AGAIN_S and differ(use.told, rates))
        ):
            return
        use.told, use.told_at = rates, now
        yield self._tell(member, key, now + LEASE_S, now, rates)
        if now - use.unanswered_since >= _SECOND_S:
            use.unanswered_since = now
            yield self._ask(member, _WHOLE, now + _SECOND_S, now, last=True)
            member.whole_until = max(member.whole_until, now + _SECOND_S)

    def seek(self) -> None:
        """Requests a discovery at once, not within a second; `due` asks."""
        self._discovery = -math.inf

    def lift(self, filter: str, reason: Reason, now: float) -> list[Send]:
        """The commands that lift this, whoever paused it."""
        key = filter, reason
        self._pauses.pop(key, None)
        self._limits.pop(key, None)
        sends = [self._tell(member, key, now, now) for member in self._able]
        for member in self._able:
            if member.response is Response.WHOLE:  # it has no ear for this; it is not waited for
                self._asked.drop(member)
            if member.whole_until > now:
                member.whole_until = -math.inf
                sends.append(self._tell(member, _WHOLE, now, now))
        return sends

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def due(self, now: float) -> list[Send]:
        """Messages to publish now: fallbacks, discovery, commands that must be repeated."""
        sends = self._overdue(now)
        if now >= self._discovery:
            self._discovery = now + _SECOND_S
            self._forget(now)
            sends.append(Send(self.subject, 0, DISCOVER))
        for key, pause in list(self._pauses.items()):
            if pause.until <= now:
                del self._pauses[key]
            elif now >= pause.due:
                pause.issued = min(pause.until, now + _SECOND_S + MARGIN_S)
                able = [member for member in self._able if self._pauses_it(member, key)]
                sends += [self._tell(member, key, pause.issued, now) for member in able]
        return sends

    def receive_reply(self, token: int, status: int, data: bytes, now: float) -> list[Send]:
        """Takes a reply to what was sent with this token; returns what to publish now."""
        if status == NO_RESPONDERS:
            if token == 0:
                self.nobody = True
            elif token in self._asked:
                self._end(self._asked[token])
            return []
        try:
            said = understand(data)
        except ValueError:
            return []
        if isinstance(said, Producer):
            return self._found(said, now)
        if isinstance(said, Receipt) and said.request_id in self._asked:
            self._acknowledged(said, now)
        return []

    def receive_start(self, data: bytes, now: float) -> list[Send]:
        """
        Takes the message of a writer that begins, and holds its rows (B7); returns its commands,
        and the answer that these are all.

        The answer goes behind the commands, to the subject of commands: a writer cannot choose
        another. A message that names rates is of a writer that had begun before: it says that rows
        wait for these rates, or do not any more.
        """
        try:
            said = understand(data)
        except ValueError:
            said = None
        if not isinstance(said, Producer):
            return []
        known = self.members.get(said.producer_id)
        sends = self._found(said, now)
        if not said.supports_throttle or said.rates:
            return sends
        if known is not None:  # by discovery, or it has a new connection
            sends = self._in_force(known, now)
        to = f"{self.subject}.{said.producer_id}"
        return [*sends, Send(to, None, Active(len(sends)).encode())]

    def _found(self, producer: Producer, now: float) -> list[Send]:
        self.nobody = False
        known = self.members.get(producer.producer_id)
        if known is not None and known.producer.supports_throttle == producer.supports_throttle:
            self.news |= known.update(producer, now)
            return []
        response = Response.FOUND if producer.supports_throttle else Response.UNABLE
        member = self.members[producer.producer_id] = Member(producer, response, now)
        sends = self._in_force(member, now) if producer.supports_throttle else []
        self.news |= member.update(producer, now)
        return sends

    def _in_force(self, member: Member, now: float) -> list[Send]:
        """Commands to a producer that comes while pauses or quotas are in force."""
        sends: list[Send] = []
        for key, pause in self._pauses.items():
            if pause.issued > now and self._pauses_it(member, key):
                sends.append(self._tell(member, key, pause.issued, now))
        for key, none in self._limits.items() if member.keeps_rates else ():
            use = member.use(key)
            use.told, use.told_at = use.told or none, now
            sends.append(self._tell(member, key, now + LEASE_S, now, use.told))
        return sends

    def _pauses_it(self, member: Member, key: Key) -> bool:
        """Whether a producer gets this pause; one that keeps rates gets a rate instead."""
        return not (member.keeps_rates and key in self._limits)

    def _acknowledged(self, receipt: Receipt, now: float) -> None:
        number = receipt.request_id
        member = self._asked[number]
        if receipt.producer_id not in (None, member.producer.producer_id):
            return
        member.heard = now
        member.receipts += 1
        ask = member.asks[number]
        if ask.is_fallback:
            self._asked.drop(member)
            member.response = Response.WHOLE
            return
        if ask.command.rates is not None:
            member.use(ask.key).unanswered_since = math.inf
        self._asked.drop(member, ask.key)
        if all(other.is_fallback for other in member.asks.values()):
            self._asked.drop(member)
            if (member.response, ask.command.reason) != (Response.WHOLE, _FALLBACK):
                member.response = Response.ACKNOWLEDGED

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    @property
    def _able(self) -> list[Member]:
        return [member for member in self.members.values() if member.producer.supports_throttle]

    def _tell(
        self, member: Member, key: Key, until: float, now: float, rates: Rates | None = None
    ) -> Send:
        """A command to a producer; it replaces earlier ones of the same filter and reason."""
        if any(ask.last and ask.overdue for ask in member.asks.values()):
            member.missed += 1
            self._failed.pop(member.producer.producer_id, None)
            self._failed[member.producer.producer_id] = None
            if len(self._failed) > _MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._asked.drop(member)
        if member.response is Response.FOUND:
            member.response = Response.TOLD
        return self._ask(member, key, until, now, rates=rates)

    def _ask(
        self,
        member: Member,
        key: Key,
        until: float,
        now: float,
        last: bool = False,
        rates: Rates | None = None,
    ) -> Send:
        filter, reason = key
        to, pause_s = member.producer.producer_id, max(0.0, until - now)
        if not last:
            self._asked.drop(member, key)
        # A rate holds until its lease ends: its receipt has the time until it is said again.
        is_awaited = last or (reason.is_quota and rates is None)
        if rates is not None:
            use = member.use(key)
            use.unanswered_since = min(use.unanswered_since, now)
        ask = self._asked.add(
            member,
            lambda n: _Ask(ThrottleProducer(n, reason, pause_s, filter, to, rates), until, last),
            now + self._receipt_wait_s if is_awaited else math.inf,
        )
        self.told = member.told = True
        return Send(f"{self.subject}.{to}", ask.command.request_id, ask.command.encode())

    def _overdue(self, now: float) -> list[Send]:
        """The fallback of those whose receipt is missing (B23); a lift is told once more."""
        late: dict[int, Member] = {}
        for number in self._asked.overdue(now):
            member = self._asked[number]
            member.asks[number].overdue = True
            if member.asks[number].last:
                member.response = Response.SILENT
            else:
                late[member.producer.producer_id] = member
        sends = []
        for member in late.values():
            missing = [ask for ask in member.asks.values() if ask.overdue and not ask.last]
            until = max(ask.until for ask in missing)
            if until > now and not any(ask.is_fallback for ask in member.asks.values()):
                member.whole_until = max(member.whole_until, until)
                sends.append(self._ask(member, _WHOLE, until, now, last=True))
            lifts = [ask.key for ask in missing if ask.command.pause_s == 0]
            sends += [self._ask(member, key, now, now, last=True) for key in lifts]
        return sends

    # ── who is there ─────────────────────────────────────────────────────────────────────────

    def _end(self, member: Member) -> None:
        """Forgets a producer that is gone, with what it has not acknowledged."""
        self._asked.drop(member)
        gone = self.members.pop(member.producer.producer_id, None)
        self.news |= gone is not None and gone.keeps_rates
        if gone is not None and member.told:
            count, receipts, missed = self.ended.get(member.response, Ended(0, 0, 0))
            self.ended[member.response] = Ended(
                count + 1, receipts + member.receipts, missed + member.missed
            )

    def _forget(self, now: float) -> None:
        for member in list(self.members.values()):
            if member.heard < now - _FORGET_S and not member.asks:
                self._end(member)
