"""
The pulls of one consumer: how much is asked for, what has come, and what a status means.

What a status means stands in one table (`status_of`), for all that pull.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from enum import Enum
from typing import Final

from ...client import wire
from ...client.blocks import DeliveryFacts
from ...client.connection import Client
from ...errors import NotConnectedError
from ..pace import Appetite, publishers_of, pull_bytes, pulls_ahead

_EXPIRES_S: Final = 30.0

_PULL_MESSAGES: Final = 20_000
"""Messages of one pull at the most; two pulls are open, far from the server more (`pace`)."""

_SILENCE_S: Final = 4.0
"""Without a byte for so long the server has forgotten the pulls, or never saw them."""

_LOOK_S: Final = 1.0
"""Longest wait for bytes at one time."""


# ── what a status says ───────────────────────────────────────────────────────────────────────


class Status(Enum):
    """What a status of the server says of its pull."""

    OPEN = "it is open"
    ENDED = "it brings no more: it expired, or has brought all there was, or all it asked for"
    LOST = "the consumer goes to another server, or nobody answers for it now"
    OTHER = "it ended, for a reason that is not in the table"
    REFUSED = "the consumer takes no such pulls"


_STATUSES: Final = (
    (100, "", Status.OPEN),
    (404, "", Status.ENDED),
    (408, "", Status.ENDED),
    (409, "Message Size Exceeds MaxBytes", Status.ENDED),
    (409, "Batch Completed", Status.ENDED),
    (409, "Exceeded", Status.REFUSED),
    (409, "push based", Status.REFUSED),
    (409, "Leadership Change", Status.LOST),
    (409, "Server Shutdown", Status.LOST),
    (409, "Consumer Deleted", Status.LOST),
    (409, "", Status.OTHER),
    (wire.NO_RESPONDERS, "", Status.LOST),
)
"""Code, what is in the text, and what it means: the first row that fits counts."""


def status_of(code: int, text: str) -> Status:
    """Meaning of a status for its pull."""
    fits = (status for number, words, status in _STATUSES if number == code and words in text)
    return next(fits, Status.REFUSED)


# ── one session ──────────────────────────────────────────────────────────────────────────────


class Pulls:
    """The pulls of one session: how much they may bring, and whether the server still has them."""

    def __init__(
        self, client: Client, stream: str, consumer: str, group: str, appetite: Appetite
    ) -> None:
        self.connection = client.connection
        self.open = 0
        """Messages that open pulls may still bring."""
        self.budget = 0
        """Messages that are still to be asked for."""
        self._fields = {"expires": round(_EXPIRES_S * 1e9), "group": group}
        self._subject = f"{client.options.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = self.connection.new_inbox()
        self.sid = self.connection.subscribe(self._inbox)
        self._bytes = appetite.limit(self._largest)
        self._is_vain = False
        """
        Whether a pull has ended without a message: the next one may have been stored under a larger
        `max_payload`. The next pull is for it alone, without a limit.
        """
        self._publishers = publishers_of(client.options, stream)
        self._known = 0
        """Messages that the stream had for this consumer, those that were read included."""
        self._heard = time.monotonic()
        """When bytes came last, or somebody began to wait for them."""

    def close(self) -> None:
        """Lets go of what is open: the server forgets a pull that finds no interest."""
        with suppress(NotConnectedError):
            self.connection.unsubscribe(self.sid)

    def ask(self) -> None:
        """Sends the pulls that may be open now."""
        # As many if they are small because an answer broke off: all together are to be fewer.
        allowed = self._publishers.allow(self._heard, self.connection.round_trip_s)
        most, enough = int(min(_PULL_MESSAGES, allowed)), 0
        if not self._is_vain:
            ahead = pulls_ahead(self.connection.round_trip_s, self._largest)
            enough = ahead * most + most // 4
        asked = b""
        while self.budget > 0 and self.open <= enough:
            batch = 1 if self._is_vain else min(self.budget, most)
            body = {"batch": batch, **self._fields}
            if not self._is_vain:
                body["max_bytes"] = self._bytes
            self._is_vain = False
            asked += wire.pub(self._subject, json.dumps(body).encode(), self._inbox)
            self.open += batch
            self.budget -= batch
        if asked:
            self.connection.send(asked)

    @property
    def _largest(self) -> int:
        """
        The most bytes of a pull. A message of max_payload should fit; what is larger is asked for
        alone.
        """
        largest = self.connection.max_payload + (64 << 10)
        return max(pull_bytes(self.connection.round_trip_s), largest)

    def count(self, messages: int, last: DeliveryFacts) -> None:
        """Counts messages that have come, by the facts of the last of them."""
        self.open -= messages
        self._heard = time.monotonic()
        before, self._known = self._known, last.delivery + last.pending
        self._publishers.seen(before, self._known, self._heard)

    def note_away(self) -> None:
        """Nobody has been waiting until now for what comes."""
        self._heard = time.monotonic()

    def end_pull(self, headers: bytes) -> None:
        """A pull has ended, with what it has not brought."""
        fields = dict(wire.parse_headers(headers))
        left = wire.number_of(fields.get("Nats-Pending-Messages", "0"))
        self._is_vain = fields.get("Nats-Pending-Bytes") == str(self._bytes)
        self.open -= left
        self.budget += left

    def wait(self, need: int, timeout_s: float) -> bool:
        """
        Reads until `need` more bytes have come, for a moment at the most.

        Returns:
            Whether more may come: not where nothing has for long, or for `timeout_s`.
        """
        now, silence_s = time.monotonic(), min(_SILENCE_S, timeout_s)
        if now - self._heard > silence_s:
            return False
        connection = self.connection
        unread = len(connection.buffer) - connection.pos
        connection.fill(now + min(_LOOK_S, silence_s), need)
        if len(connection.buffer) - connection.pos > unread:  # as of a large one on a slow line
            self._heard = time.monotonic()
        return True
