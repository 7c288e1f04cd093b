"""
Pauses that an operator wants, producers that were told, and those that acknowledged.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic) and publish what is returned.
Rule 2: the operator's side of `throttleprotocol`, which has the writer's.

Each producer gets its commands by name, on `<subject>.<producer_id>`:

    found ──command──▸ told ──receipt──▸ acknowledged
                        └──receipt wait is over──▸ silent, until a receipt comes after all

A producer that does not know the protocol is sent nothing. If a producer is gone, the server says
so at once (503, nobody listens): it is not counted as silent. Receipts for reasons about a
connection count, but nobody waits for them, as in PIP-385.

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

MARGIN_S: Final = 0.5
"""
Time that a command pauses beyond its second: the next one may be so late.

Measured on the loopback interface: 2 ms at most, 26 ms with six busy processes for each core. The
rest is for slow networks. What is too much does no harm, for the end of a pause is told.
"""

_SECOND_S: Final = 1.0
_AGAIN_S: Final = 0.005
"""Interval of discovery while nobody listens: a task with few rows listens for ten milliseconds."""

_EXACT_S: Final = 0.001
"""Resolution of durations on the wire; a shorter difference is ignored."""

_FORGET_S: Final = 10.0
"""A producer that has been silent for so long, and owes no receipt, has ended."""

_MAX_SILENT: Final = 1_000
"""Upper bound of the silent producers that are named."""

Key: TypeAlias = tuple[str, Reason]
"""The filter and the reason of a command."""


class Send(NamedTuple):
    """A message to publish: a discovery, a command, or an answer."""

    subject: str
    token: int | None
    """Identifies the replies; None where no reply is expected."""
    data: bytes


@dataclass(slots=True)
class Member:
    """A producer, as far as this operator knows it."""

    producer: Producer
    heard: float
    """Time of the producer's last answer."""
    receipts: int = 0
    asks: dict[int, Key] = field(default_factory=dict)
    """Commands without a receipt, by request_id; oldest first."""


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
        receipt_wait_s: how long a receipt may take before who owes it is silent (B22).
    """

    def __init__(self, subject: str = THROTTLE_SUBJECT, receipt_wait_s: float = 0.1) -> None:
        self.members: dict[int, Member] = {}
        """Producers that are there, by producer_id."""
        self.told = False
        """Whether anybody ever got a command."""
        self.silent: dict[int, str] = {}
        """Queries of the producers that left a command without a receipt."""
        self.nobody = False
        """Whether the server says that nobody listens on the control subject."""
        self.patient = False
        """Whether to ask on at once while nobody listens."""
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
        return [self._tell(member, key, now, now) for member in self._able]

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def due(self, now: float) -> list[Send]:
        """Messages to publish now: discovery, commands that must be repeated."""
        self._overdue(now)
        sends = []
        if now >= self._discovery:
            self._discovery = now + (_AGAIN_S if self.nobody and self.patient else _SECOND_S)
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
        member = self.members[producer.producer_id] = Member(producer, now)
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
        member.heard = now
        member.receipts += 1
        self._drop(member, member.asks[receipt.request_id])
        if not member.asks:
            self.silent.pop(member.producer.producer_id, None)

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    @property
    def _able(self) -> list[Member]:
        return [member for member in self.members.values() if member.producer.supports_throttle]

    def _tell(self, member: Member, key: Key, until: float, now: float) -> Send:
        """A command to a producer; it replaces earlier ones of the same filter and reason."""
        self._drop(member, key)
        (filter, reason), number, to = key, next(self._ids), member.producer.producer_id
        member.asks[number] = key
        self._asked[number] = member
        if reason.is_quota:
            self._waits.append((now + self._receipt_wait_s, number))
        self.told = True
        command = ThrottleProducer(number, reason, max(0.0, until - now), filter, to)
        return Send(f"{self.subject}.{to}", number, command.encode())

    @property
    def _next_overdue(self) -> float:
        """When the first receipt that is waited for is late; infinite where there is none."""
        while self._waits and self._waits[0][1] not in self._asked:
            self._waits.popleft()
        return self._waits[0][0] if self._waits else math.inf

    def _overdue(self, now: float) -> None:
        """Names those whose receipt is missing (B23)."""
        while self._next_overdue <= now:
            member = self._asked[self._waits.popleft()[1]]
            if len(self.silent) < _MAX_SILENT:
                self.silent[member.producer.producer_id] = member.producer.query

    def _drop(self, member: Member, key: Key | None = None) -> None:
        """A producer's commands of this filter and reason, or all, are not waited for any more."""
        for number, of in list(member.asks.items()):
            if key in (None, of):
                del member.asks[number], self._asked[number]

    def _end(self, member: Member) -> None:
        """Forgets a producer that is gone, with what it has not acknowledged."""
        self.silent.pop(member.producer.producer_id, None)
        self._drop(member)
        self.members.pop(member.producer.producer_id, None)
