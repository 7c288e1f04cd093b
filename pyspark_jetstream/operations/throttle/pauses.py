"""
Pauses that an operator wants, producers that were told, and those that acknowledged.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and publish what is returned.
Rule 2: the operator's side of `throttleprotocol`; the writer's is `operators`.

Each producer gets its commands by name, on `<subject>.<producer_id>`:

    found ──command──▸ told ──receipt──▸ acknowledged
                        │ receipt wait is over: told again, as a pause of its connection
                        ├──receipt──▸ paused as a whole
                        └──silence──▸ silent, until a receipt comes after all

A producer that does not know the protocol is sent nothing. If a producer is gone, the server says
so at once (503, nobody listens): it is not counted as silent. Receipts for reasons about a
connection count, but nobody waits for them, as in PIP-385, except for the receipt of the fallback.

A command pauses for the current second and `MARGIN_S`. While the pause is wanted, the command is
issued again each second, so no gap opens. If the operator's program dies, the pause ends soon. A
producer that begins in between announces itself, is told at once for the rest of the second, and
holds its rows until then: so a task shorter than a second is paused as well (overload.md B7, B21
to B24).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from ...client.wire import NO_RESPONDERS
from ...outbox.throttling.throttleprotocol import (
    DISCOVER,
    THROTTLE_SUBJECT,
    Active,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)
from ...subjects import REST

MARGIN_S: Final = 0.5
"""
Time that a command pauses beyond its second: the next one may be so late.

Measured on the loopback interface: 2 ms at most, 26 ms with six busy processes for each core. The
rest is for slow networks. What is too much does no harm, for the end of a pause is told.
"""

_SECOND_S: Final = 1.0
_EXACT_S: Final = 0.001
"""Resolution of durations on the wire; a shorter difference is ignored."""

_FORGET_S: Final = 10.0
"""A producer that has been silent for so long, and owes no receipt, has ended."""

_MAX_SILENT: Final = 1_000
"""Upper bound of the silent producers that are named."""

Key: TypeAlias = tuple[str, Reason]
"""The filter and the reason of a command."""

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


class _Ask(NamedTuple):
    """A command to one producer that it has not acknowledged."""

    key: Key
    until: float
    is_lift: bool
    is_last: bool
    """Whether it is the last try: a producer that does not acknowledge it is silent."""

    @property
    def is_fallback(self) -> bool:
        return self.is_last and not self.is_lift


@dataclass(slots=True)
class Member:
    """A producer, as far as this operator knows it."""

    producer: Producer
    response: Response
    heard: float
    """Time of the producer's last answer."""
    receipts: int = 0
    has_missed: bool = False
    """Whether it left a command without a receipt before the next one came."""
    whole_until: float = -math.inf
    """End of its pause as a whole, if it listened to the fallback."""
    asks: dict[int, _Ask] = field(default_factory=dict)
    """By request_id; oldest first."""


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


class Pauses:
    """
    The pauses of one operator.

    Args:
        subject: the control subject.
        receipt_wait_s: how long a receipt may take before the fallback (B22).
    """

    def __init__(self, subject: str = THROTTLE_SUBJECT, receipt_wait_s: float = 0.1) -> None:
        self.members: dict[int, Member] = {}
        """Producers that are there, by producer_id."""
        self.told = False
        """Whether anybody ever got a command."""
        self.ended = 0
        """Number of producers that were told and have ended."""
        self.silent: dict[int, str] = {}
        """Queries of the producers that left a command and its fallback without a receipt."""
        self.nobody = False
        """Whether the server says that nobody listens on the control subject."""
        self.subject = subject
        self._receipt_wait_s = receipt_wait_s
        self._wanted: dict[Key, _WantedPause] = {}
        self._asked: dict[int, Member] = {}  # by request_id, as in their `asks`
        self._waits: deque[tuple[float, int]] = deque()  # until when for which; in this order
        self._ids = itertools.count(1)
        self._discovery = -math.inf

    @property
    def waiting(self) -> bool:
        """Whether a receipt may still come in time."""
        return self._next_overdue < math.inf

    @property
    def next_deadline(self) -> float:
        """The time of the next call of `due`."""
        issue = min((pause.due for pause in self._wanted.values()), default=math.inf)
        return min(self._discovery, self._next_overdue, issue)

    # ── what the operator wants ──────────────────────────────────────────────────────────────

    def pause(self, filter: str, reason: Reason, until: float) -> None:
        """Requests a pause until then; `due` returns the commands."""
        self._wanted.setdefault((filter, reason), _WantedPause(until)).until = until

    def seek(self) -> None:
        """Requests a discovery at once, not within a second; `due` asks."""
        self._discovery = -math.inf

    def lift(self, filter: str, reason: Reason, now: float) -> list[Send]:
        """The commands that lift this pause, from any operator."""
        key = filter, reason
        self._wanted.pop(key, None)
        sends = [self._tell(member, key, now, now) for member in self._able]
        for member in self._able:
            if member.response is Response.WHOLE:  # it has no ear for this; it is not waited for
                self._drop(member)
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
            for member in list(self.members.values()):
                if member.heard < now - _FORGET_S and not member.asks:
                    self._end(member)
            sends.append(Send(self.subject, 0, DISCOVER))
        for key, pause in list(self._wanted.items()):
            if pause.until <= now:
                del self._wanted[key]
            elif now >= pause.due:
                pause.issued = min(pause.until, now + _SECOND_S + MARGIN_S)
                sends += [self._tell(member, key, pause.issued, now) for member in self._able]
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
        another.
        """
        try:
            said = understand(data)
        except ValueError:
            said = None
        if not isinstance(said, Producer):
            return []
        known = self.members.get(said.producer_id)
        sends = self._found(said, now)
        if not said.supports_throttle:
            return sends
        if known is not None:  # by discovery, or it has a new connection
            sends = self._in_force(known, now)
        to = f"{self.subject}.{said.producer_id}"
        return [*sends, Send(to, None, Active(len(sends)).encode())]

    def _found(self, producer: Producer, now: float) -> list[Send]:
        self.nobody = False
        known = self.members.get(producer.producer_id)
        if known is not None and known.producer.supports_throttle == producer.supports_throttle:
            known.producer, known.heard = producer, now
            return []
        response = Response.FOUND if producer.supports_throttle else Response.UNABLE
        member = self.members[producer.producer_id] = Member(producer, response, now)
        return self._in_force(member, now) if producer.supports_throttle else []

    def _in_force(self, member: Member, now: float) -> list[Send]:
        """Commands to a producer that comes while pauses are in force."""
        return [
            self._tell(member, key, pause.issued, now)
            for key, pause in self._wanted.items()
            if pause.issued > now
        ]

    def _acknowledged(self, receipt: Receipt, now: float) -> None:
        member = self._asked[receipt.request_id]
        if receipt.producer_id not in (None, member.producer.producer_id):
            return
        self._unname(member)
        member.heard = now
        member.receipts += 1
        ask = member.asks[receipt.request_id]
        if ask.is_fallback:
            self._drop(member)
            member.response = Response.WHOLE
            return
        self._drop(member, ask.key)
        if all(other.is_fallback for other in member.asks.values()):
            self._drop(member)
            if (member.response, ask.key[1]) != (Response.WHOLE, _FALLBACK):
                member.response = Response.ACKNOWLEDGED

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    @property
    def _able(self) -> list[Member]:
        return [member for member in self.members.values() if member.producer.supports_throttle]

    def _tell(self, member: Member, key: Key, until: float, now: float) -> Send:
        """A command to a producer; it replaces earlier ones of the same filter and reason."""
        if member.response is Response.SILENT:
            member.has_missed = True
            self._drop(member)
        if member.response is Response.FOUND:
            member.response = Response.TOLD
        self._drop(member, key)
        return self._ask(member, key, until, now)

    def _ask(
        self, member: Member, key: Key, until: float, now: float, is_last: bool = False
    ) -> Send:
        (filter, reason), number, to = key, next(self._ids), member.producer.producer_id
        pause_s = max(0.0, until - now)
        member.asks[number] = _Ask(key, until, pause_s == 0, is_last)
        self._asked[number] = member
        if is_last or reason.is_quota:
            self._waits.append((now + self._receipt_wait_s, number))
        self.told = True
        command = ThrottleProducer(number, reason, pause_s, filter, to)
        return Send(f"{self.subject}.{to}", number, command.encode())

    @property
    def _next_overdue(self) -> float:
        """When the first receipt that is waited for is late; infinite where there is none."""
        while self._waits and self._waits[0][1] not in self._asked:
            self._waits.popleft()
        return self._waits[0][0] if self._waits else math.inf

    def _overdue(self, now: float) -> list[Send]:
        """The fallback of those whose receipt is missing (B23); a lift is told once more."""
        late: dict[int, list[_Ask]] = {}
        while self._next_overdue <= now:
            number = self._waits.popleft()[1]
            member = self._asked[number]
            ask, of = member.asks[number], member.producer
            if not ask.is_last:
                late.setdefault(of.producer_id, []).append(ask)
                continue
            member.response = Response.SILENT
            if len(self.silent) < _MAX_SILENT:
                self.silent[of.producer_id] = of.query
        sends = []
        for id, asks in late.items():
            member = self.members[id]
            until = max(ask.until for ask in asks)
            if until > now and not any(ask.is_fallback for ask in member.asks.values()):
                member.whole_until = max(member.whole_until, until)
                sends.append(self._ask(member, _WHOLE, until, now, is_last=True))
            sends += [
                self._ask(member, ask.key, now, now, is_last=True) for ask in asks if ask.is_lift
            ]
        return sends

    def _drop(self, member: Member, key: Key | None = None) -> None:
        """A producer's commands of this filter and reason, or all, are not waited for any more."""
        for number, ask in list(member.asks.items()):
            if key in (None, ask.key):
                del member.asks[number], self._asked[number]

    def _unname(self, member: Member) -> None:
        """Its receipt came after all, or it is gone: it may not have been silent."""
        if member.response is Response.SILENT and not member.has_missed:
            self.silent.pop(member.producer.producer_id, None)

    def _end(self, member: Member) -> None:
        """Forgets a producer that is gone, with what it has not acknowledged."""
        self._unname(member)
        self._drop(member)
        if self.members.pop(member.producer.producer_id, None) is not None:
            self.ended += member.response not in (Response.FOUND, Response.UNABLE)
