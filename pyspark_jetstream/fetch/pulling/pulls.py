"""
The pulls of one consumer: how much is asked for, what has come, and what a status means.

What a status means stands in one table (`status_of`), for all that pull.
"""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Final

from ...client import wire
from ...client.acksubjects import DeliveryFacts
from ...client.connection import Client
from ...errors import NotConnectedError
from ...sanitize import get_logger
from ..pace import FAR_S, Appetite, busy_messages, publishers_of, pull_bytes, pulls_ahead

logger = get_logger(__name__)

PULL_EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 1.0

_PULL_MESSAGES: Final = 20_000
"""Messages of one pull at the most; two pulls are open, far from the server more (`pace`)."""

_SILENCE_S: Final = 4.0
"""Without a heartbeat for so long the server has forgotten the pulls, or never saw them."""


# ── what a status says ───────────────────────────────────────────────────────────────────────


class Status(Enum):
    """The server's statuses of a pull."""

    HEARTBEAT = "it is open"
    ENDED = "it brings no more: it expired, or has brought all there was, or all it asked for"
    TOO_LARGE = "the next message is larger than what it has left of its bytes"
    UNPINNED = "the consumer is pinned to somebody else, or to nobody"
    REFUSED = "the consumer takes no such pulls"
    MOVED = "the consumer goes to another server, or its server stops"
    AWAY = "nobody answers for the consumer: it is gone, or its leader is elected"
    ENDED_OTHERWISE = "it ended, for a reason that is not in the table"
    UNKNOWN = "nothing that a pull is answered"


_STATUSES: Final = (
    (100, "", Status.HEARTBEAT),
    (404, "", Status.ENDED),
    (408, "", Status.ENDED),
    (409, "Message Size Exceeds MaxBytes", Status.TOO_LARGE),
    (409, "Batch Completed", Status.ENDED),
    (409, "Exceeded", Status.REFUSED),
    (409, "push based", Status.REFUSED),
    (409, "Leadership Change", Status.MOVED),
    (409, "Server Shutdown", Status.MOVED),
    (409, "Consumer Deleted", Status.AWAY),
    (409, "", Status.ENDED_OTHERWISE),
    (423, "", Status.UNPINNED),
    (wire.NO_RESPONDERS, "", Status.AWAY),
)
"""Code, what is in the text, and what it means: the first row that fits counts."""


def status_of(code: int, text: str) -> Status:
    """Meaning of a status for its pull."""
    fits = (status for number, words, status in _STATUSES if number == code and words in text)
    return next(fits, Status.UNKNOWN)


# ── one session ──────────────────────────────────────────────────────────────────────────────


class Superseded(Exception):
    """The session cannot go on; another one of the same attempt may."""


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
        self._fields = {
            "expires": round(PULL_EXPIRES_S * 1e9),
            "idle_heartbeat": round(HEARTBEAT_S * 1e9),
            "group": group,
        }
        self._subject = f"{client.options.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = self.connection.new_inbox()
        self.sid = self.connection.subscribe(self._inbox)
        # A message of max_payload should fit; what is larger is asked for alone.
        largest = self.connection.max_payload + (64 << 10)
        self._largest = max(pull_bytes(self.connection.round_trip_s), largest)
        self._bytes = appetite.limit(self._largest)
        self._is_too_large = False
        """
        Whether the next message is larger than a pull's bytes: it was stored under a larger
        `max_payload`. The next pull is for it alone, without a limit.
        """
        self._publishers = publishers_of(client.options, stream)
        self._delay_s = client.options.max_publish_delay_s
        self._known = 0
        """Messages that the stream had for this consumer, those that were read included."""
        self._heard = self._quiet_since = time.monotonic()

    def close(self) -> None:
        """Lets go of what is open: the server forgets a pull that finds no interest."""
        try:
            self.connection.unsubscribe(self.sid)
        except NotConnectedError:
            logger.debug("unsubscribe failed", exc_info=True)

    def ask(self) -> None:
        """Sends the pulls that may be open now."""
        # As many if they are small because an answer broke off: all together are to be fewer.
        most, enough = self._most(), 0
        if not self._is_too_large:
            ahead = pulls_ahead(self.connection.round_trip_s, self._largest)
            enough = ahead * most + most // 4
        asked = b""
        while self.budget > 0 and self.open <= enough:
            batch = 1 if self._is_too_large else min(self.budget, most)
            body = {"batch": batch, **self._fields}
            if not self._is_too_large:
                body["max_bytes"] = self._bytes
            self._is_too_large = False
            asked += wire.pub(self._subject, json.dumps(body).encode(), self._inbox)
            self.open += batch
            self.budget -= batch
        if asked:
            self.connection.send(asked)

    def _most(self) -> int:
        """
        Messages that may be outstanding. From far away the line bounds them, unless somebody has
        said what publishers may wait.
        """
        is_calm = self._publishers.are_calm(self._quiet_since)
        if self._delay_s is None and (is_calm or self.connection.round_trip_s >= FAR_S):
            return _PULL_MESSAGES
        return min(_PULL_MESSAGES, busy_messages(self._delay_s))

    def count(self, messages: int, last: DeliveryFacts) -> None:
        """Counts messages that have come, by the facts of the last of them."""
        self.open -= messages
        self._quiet_since = time.monotonic()
        before, self._known = self._known, last.delivery + last.pending
        self._publishers.seen(before, self._known, self._quiet_since)

    def note_away(self) -> None:
        """Nobody has been waiting until now for what comes."""
        self._quiet_since = time.monotonic()

    def end_pull(self, status: Status, headers: bytes) -> None:
        """
        A pull has ended, with what it has not brought.

        Raises:
            Superseded: It should not have.
        """
        fields = dict(wire.parse_headers(headers))
        left = wire.number_of(fields.get("Nats-Pending-Messages", "0"))
        if status is Status.TOO_LARGE and fields.get("Nats-Pending-Bytes") == str(self._bytes):
            # It has brought nothing, so no pull of these bytes ever will.
            self._is_too_large = True
        self.open -= left
        self.budget += left
        if not left:
            self.beats()

    def beats(self) -> None:
        """
        A pull is open.

        Raises:
            Superseded: There have been nothing but heartbeats for long.
        """
        if time.monotonic() - self._quiet_since > 3 * HEARTBEAT_S:
            raise Superseded("nothing but heartbeats came")

    def wait(self, deadline: float, need: int) -> str:
        """
        Reads until `need` more bytes have come, for a heartbeat's time at the most.

        Returns:
            Why there is nothing to be waited for; "" where there may be.
        """
        connection, now = self.connection, time.monotonic()
        unread = len(connection.buffer) - connection.pos
        connection.fill(min(deadline, now + HEARTBEAT_S), need)
        if len(connection.buffer) - connection.pos > unread:
            self._heard = time.monotonic()
        elif now >= deadline:  # and nothing had come by then
            return LATE
        elif time.monotonic() - max(self._heard, self._quiet_since) > _SILENCE_S:
            return SILENT
        return ""


LATE: Final = "the deadline passed"
SILENT: Final = "the pulls stayed without an answer"
"""Not even heartbeats: they are forgotten."""
