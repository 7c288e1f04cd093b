"""
The wake-up of an idle driver when a message comes: by open pulls that a message ends, and that
cannot bring it.

A pull from a consumer of the query that allows one byte, under the id of the query's last pin, ends
as soon as there is a message: the server says that it is too large or, if that pin has ended, that
the id is none. The message stays where it is, whatever the stream's retention, and nobody is
pinned. A pull whose inbox is gone, or whose time is over, the server forgets: so who listens anew,
and does not know any more what is open, does so on another inbox.

Rule: the end of a pull is a hint. What a stream holds the driver asks of the server: when a pull
ends, and now and then although none does. Where pulls are not allowed, or end without a message, it
asks as often as without them. Of a partition whose pull is open it asks seldom (`unheard`), if it
would also be told that the pull was lost: a pull is in the memory of the consumer's leader.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ..client import wire

_EXPIRES_S: Final = 30.0
"""Seconds that a pull is open, at least; of many partitions one each, so one a second ends."""

_ENDED_IN_TIME: Final = frozenset({404, 408})

_ARRIVED: Final = frozenset({(409, "Message Size Exceeds MaxBytes"), (423, "Nats-Wrong-Pin-Id")})
"""Statuses that such a pull ends with when there is a message."""

_NOBODY: Final = "-"
"""A pin id that nobody has."""


class Arrivals:
    """
    The pulls of one driver, and which of them have ended.

    The driver's thread sends pulls and waits; the listener's thread receives their ends on
    `<inbox>.*`.
    """

    def __init__(self, new_inbox: Callable[[], str]) -> None:
        self._new_inbox = new_inbox
        self.inbox = new_inbox()
        self._changed = threading.Condition()
        """Held for all that follows."""
        self._listening = False
        self._tokens = itertools.count(1)
        self._open: dict[str, tuple[int, float]] = {}  # token → partition, and until when
        self._is_warned = False
        """Whether the driver learns that a consumer's leader is gone, and its pulls with it."""
        self._doubtful: set[int] = set()
        """Partitions about whose consumer or stream something was heard."""
        self._came = False
        self._woken: tuple[int, ...] | None = None
        """The driver's sequences when a pull last ended its wait."""
        self._quiet: tuple[int, ...] | None = None
        """The sequences at which the driver waits, until a pull ends."""

    # ── the listener ─────────────────────────────────────────────────────────────────────────

    def set_listening(self, does: bool, is_warned: bool = True) -> None:
        """
        Notes that a listener has subscribed to `inbox`, or has lost its connection. The pulls that
        were open then are lost: to the server they would be open for their whole time, so the next
        listener gets another inbox.

        Args:
            is_warned: whether it hears of the consumers' leaders, too.
        """
        with self._changed:
            if self._listening and not does:
                self.inbox = self._new_inbox()
            self._listening, self._is_warned = does, is_warned
            self._open.clear()
            self._quiet = None
            self._changed.notify_all()

    def end_pull(self, token: str, headers: bytes) -> None:
        """
        Notes the end of a pull; ignores anything else, and what belongs to no open pull. A pull
        that ended without a message, as under the pin before the last, is sent again at the next
        wait.
        """
        status = wire.status_of(headers) if headers else (0, "")
        with self._changed:
            if token not in self._open or status[0] < 400:
                return
            partition, _ = self._open.pop(token)
            if status in _ARRIVED:
                self._came, self._quiet = True, None
            elif status[0] not in _ENDED_IN_TIME:
                self._doubtful.add(partition)
            self._changed.notify_all()

    def doubt(self, partition: int) -> None:
        """Something has become of the partition's consumer: its pull may be lost."""
        self.forget_pulls([partition], came=self._came)
        with self._changed:
            self._doubtful.add(partition)

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    def is_quiet(self, where: object) -> bool:
        """Whether `wait` was called with these sequences last, and nothing has come since."""
        with self._changed:
            return self._quiet is not None and list(self._quiet) == where

    def is_open(self, partition: int) -> bool:
        """Whether a pull of ours waits at the server, as far as the driver knows."""
        with self._changed:
            return any(partition == other for other, _ in self._open.values())

    def unheard(self, partitions: int) -> set[int]:
        """
        Partitions, of so many, that may have messages, or that somebody may have changed, without
        word from a pull; they are going to be looked at now.
        """
        with self._changed:
            unheard = set(range(partitions)) - self.quiet
            self._doubtful.clear()
            return unheard

    @property
    def quiet(self) -> set[int]:
        """The partitions that have no message, as far as was heard."""
        with self._changed:
            if not (self._listening and self._is_warned):
                return set()
            now = time.monotonic()
            told = {partition for partition, until in self._open.values() if until > now}
            return told - self._doubtful

    def forget_pulls(self, partitions: Sequence[int], came: bool = False) -> None:
        """
        Forgets the pulls of these partitions: a batch has messages of them, so the pulls have ended
        although nobody may have heard that.
        """
        with self._changed:
            self._came = came
            gone = [token for token, (other, _) in self._open.items() if other in partitions]
            for token in gone:
                del self._open[token]

    def due(
        self, where: tuple[int, ...], now: float, of: Collection[int] | None = None
    ) -> dict[int, str]:
        """
        The partitions to pull from before the driver waits at `where`, each with its reply subject.
        None if the driver was woken at this place before, and has found no message there.

        Args:
            of: those to wait for; None for all.
        """
        with self._changed:
            self._open = {token: pull for token, pull in self._open.items() if pull[1] > now}
            if not self._listening or self._woken == where:
                return {}
            there = {partition for partition, _ in self._open.values()}
            due = {}
            for partition in range(len(where)):
                if partition not in there and (of is None or partition in of):
                    token = str(next(self._tokens))
                    self._open[token] = partition, now + expires_s(len(where))
                    due[partition] = f"{self.inbox}.{token}"
            return due

    def wait(self, where: tuple[int, ...], timeout_s: float) -> bool:
        """
        Returns when a message has come behind `where`, one sequence a partition, and after
        `timeout_s` at the latest; False if none has, by all that can be heard.
        """
        with self._changed:
            deaf = self._woken == where
            self._came = self._came and not deaf
            self._changed.wait_for(lambda: self._came, timeout_s)
            if self._came and not deaf:
                self._came, self._woken, self._quiet = False, where, None
                return True
            everywhere = len({partition for partition, _ in self._open.values()}) == len(where)
            hears = self._listening and everywhere and not deaf
            self._quiet = where if hears else None
            return not hears


def expires_s(partitions: int) -> float:
    """Time for which pulls stay open, by the driver's number of partitions."""
    return max(_EXPIRES_S, float(partitions))


def pull_body(group: str, pin: str, open_s: float = _EXPIRES_S) -> bytes:
    """The body of such a pull; `pin` is the last id known, "" for none."""
    body = {
        "batch": 1,
        "max_bytes": 1,
        "expires": round(open_s * 1e9),
        "group": group,
        "id": pin or _NOBODY,
    }
    return json.dumps(body).encode()
