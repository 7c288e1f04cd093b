"""
The driver's pulls at its seats: by them it is pinned, hears when a message comes, and moves on.

A pull under the pin's id that allows one byte ends as soon as there is a message, which stays where
it is: it renews the pin, and wakes the driver. Where nobody is pinned, a pull without an id takes
the pin together with one message, headers only; the seat is put back at once.

Rule: what is heard is a hint. What a stream holds the driver asks of the server, when a pull ends
and every few seconds although none does. A thread has a connection of its own for this, so that the
driver never waits for an answer, and pins are renewed while a batch is long. An id that is refused
is forgotten, and nothing is pulled there until the driver has found that the seat is still its own.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..client import wire
from ..client.acksubjects import ack_of
from ..client.connection import Client, Connection
from ..client.options import ConnectionOptions
from ..errors import JetStreamError, PermissionsError
from ..sanitize import get_logger

logger = get_logger(__name__)

_SILENCE_S: Final = 5.0
"""After so long without a word the server is asked whether it is there."""

_PAUSE_S: Final = 1.0
"""Before another connection is made, and before a pull that has ended is sent again."""

_JOIN_S: Final = 2.0

_PENDING: Final = 100
_ENDED: Final = frozenset({404, 408})
_UNPINNED: Final = 423
_TOO_LARGE: Final = "Message Size Exceeds MaxBytes"
"""Statuses of a pull: it is open; it brings nothing; its id is none; there is a message (409)."""


class _Pull(NamedTuple):
    """One that is open."""

    partition: int
    id: str
    sent: float
    until: float


@dataclass(slots=True)
class _Seat:
    """A partition's seat."""

    where: tuple[str, str]
    """Stream and name."""
    at: int | None
    """The sequence at which it stands; None where it is not put back."""
    id: str = ""
    """The pin that this driver has, for all it knows."""
    move: int | None = None
    """The sequence to which it is still to be moved."""
    refused: bool = False
    """Whether its pin was refused since the driver knew that the seat is its own."""
    accepted: float = -math.inf
    """When the last pull was sent that the server took under our pin."""


class _Bell:
    """Wakes the thread."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def ring(self) -> None:
        with suppress(OSError):  # it has been rung, or the thread is over
            os.write(self._write_fd, b"\0")

    def heard(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 1 << 10)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)


class Pins:
    """The pulls of one driver, by partition, and which of them have ended."""

    def __init__(self, options: ConnectionOptions, group: str, renew_s: float) -> None:
        self.denied: PermissionsError | None = None
        """Why nothing is pulled, where the user may not."""
        self._options = options
        self._group = group
        self._renew_s = renew_s
        """Seconds that a pull is open; the server counts a pin's time from each."""
        self._changed = threading.Condition()
        """Held for all that follows."""
        self._seats: Sequence[_Seat] = ()
        """By partition."""
        self._rests_until = 0.0
        """Time until which a pull that has ended is not sent again, unless the driver waits."""
        self._open: dict[str, _Pull] = {}
        """By the last token of a pull's reply subject."""
        self._came = False
        self._begins_anew = False
        self._tokens = itertools.count(1)
        self._stopped = threading.Event()
        self._bell: _Bell | None = None
        self._thread: threading.Thread | None = None

    def begin(self, seats: Sequence[tuple[str, str]], at: Mapping[int, int]) -> None:
        """
        Pulls at these seats, which are there, and where nobody is pinned.

        Args:
            at: by partition the sequence at which its seat stands; without one it is not put back.
        """
        with self._changed:
            self._seats = [_Seat(where, at.get(index)) for index, where in enumerate(seats)]
            self._begins_anew = True
        if self._thread is None:
            self._bell = _Bell()
            self._thread = threading.Thread(
                target=self._run, args=(self._bell,), name="pins", daemon=True
            )
            self._thread.start()
        self._ring()

    def leave(self) -> None:
        """Pulls no more: the seats are another's."""
        if self._thread is not None:
            self.begin((), {})

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None and self._bell is not None:
            self._ring()
            self._thread.join(_JOIN_S)
            self._thread = None
            self._bell.close()

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    def id_of(self, partition: int) -> str:
        """The pin that this driver has there, for all it knows; "" for none."""
        with self._changed:
            return self._seats[partition].id if self._seats else ""

    def move(self, to: Mapping[int, int]) -> None:
        """Moves the seats of these partitions to sequences, without waiting for it."""
        with self._changed:
            for partition, at in to.items() if self._seats else ():
                self._seats[partition].at = self._seats[partition].move = at
        self._ring()

    def moved(self, to: Mapping[int, int]) -> None:
        """Notes that the driver moves them itself."""
        with self._changed:
            for partition, at in to.items() if self._seats else ():
                self._seats[partition].at, self._seats[partition].move = at, None

    def wait(self, timeout_s: float) -> bool:
        """
        Returns when a message has come, and after `timeout_s` at the latest; whether one has, as
        far as is heard.
        """
        if self._thread is None:
            time.sleep(timeout_s)
            return False
        with self._changed:
            is_resting, self._rests_until = self._rests_until > 0.0, 0.0
        if is_resting:
            self._ring()
        with self._changed:
            self._changed.wait_for(lambda: self._came, timeout_s)
            came, self._came = self._came, False
            return came

    @property
    def hears(self) -> bool:
        """Whether a pull is open at each partition, as far as is known."""
        with self._changed:
            there = {p.partition for p in self._open.values() if p.until > time.monotonic()}
            return len(there) == len(self._seats) > 0

    def is_fresh(self, partition: int, since: float) -> bool:
        """Whether a pull that was sent since then is open, or was taken under our pin."""
        with self._changed:
            of = [pull.sent for pull in self._open.values() if pull.partition == partition]
            accepted = self._seats[partition].accepted if self._seats else -math.inf
            return max(of, default=accepted) >= since

    def doubts(self, partition: int) -> bool:
        """Whether the pin was refused there."""
        with self._changed:
            return bool(self._seats) and self._seats[partition].refused

    def doubt(self, partition: int) -> None:
        """Takes the pin for lost, and lets go of what is open."""
        with self._changed:
            self._seats[partition].id, self._seats[partition].refused = "", True
            self._begins_anew = True
        self._ring()

    def trust(self) -> None:
        """Pulls again everywhere: the seats are this driver's."""
        with self._changed:
            for seat in self._seats:
                seat.refused = False
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self, bell: _Bell) -> None:
        client = Client(self._options)
        while not self._stopped.is_set():
            try:
                self._listen(client.connection, bell)
            except JetStreamError as error:
                logger.info("the driver hears nothing for a moment: %s", error)
                if isinstance(error, PermissionsError):
                    self.denied = error
                client.drop()
                self._stopped.wait(_PAUSE_S)
        client.close()

    def _listen(self, connection: Connection, bell: _Bell) -> None:
        """Pulls by one inbox: what was open by another the server forgets."""
        inbox = wire.new_inbox(self._options.inbox_prefix)
        sid = connection.subscribe(f"{inbox}.*")
        with self._changed:
            self._open.clear()
            self._begins_anew = False
            for seat in self._seats:  # one may have been dealt a message whose way here was cut
                seat.move = seat.at if seat.move is None and not seat.id else seat.move
        while not (self._stopped.is_set() or self._begins_anew):
            connection.send(self._due(inbox))
            while connection.poll():
                pass
            while (frame := connection.next_frame(float("-inf"))) is not None:
                if frame.sid == sid:
                    self._take(frame)
            if not self._is_pending():
                connection.check(time.monotonic(), _SILENCE_S)
                connection.wait(time.monotonic() + _PAUSE_S, bell.fd)
                bell.heard()
        connection.unsubscribe(sid)

    def _is_pending(self) -> bool:
        with self._changed:
            return any(seat.move is not None for seat in self._seats)

    def _due(self, inbox: str) -> bytes:
        """What is to be sent now."""
        now = time.monotonic()
        api, sent = f"{self._options.api_prefix}.CONSUMER", []
        with self._changed:
            for seat in self._seats:
                if seat.move is not None:  # the server ignores a reset that wants no answer
                    subject, body = f"{api}.RESET.{'.'.join(seat.where)}", b'{"seq":%d}' % seat.move
                    sent.append(wire.pub(subject, body, f"{inbox}.reset"))
                    seat.move = None
            self._open = {token: pull for token, pull in self._open.items() if pull.until > now}
            there = {pull.partition for pull in self._open.values()}
            if now >= self._rests_until and self.denied is None:
                for partition, seat in enumerate(self._seats):
                    if partition not in there and not seat.refused:
                        token = str(next(self._tokens))
                        self._open[token] = _Pull(partition, seat.id, now, now + self._renew_s)
                        subject = f"{api}.MSG.NEXT.{'.'.join(seat.where)}"
                        sent.append(wire.pub(subject, self._body(seat.id), f"{inbox}.{token}"))
        return b"".join(sent)

    def _body(self, id_: str) -> bytes:
        body: dict[str, Any] = {"batch": 1, "expires": round(self._renew_s * 1e9)}
        if id_:
            body |= {"max_bytes": 1, "id": id_}
        return json.dumps(body | {"group": self._group}).encode()

    def _token_of(self, frame: wire.Frame) -> str:
        """That of the pull which a frame answers; a message has its own subject."""
        if not frame.reply:
            return frame.subject.rsplit(b".", 1)[-1].decode("utf-8", "replace")
        where = tuple(ack_of(frame.reply).consumer.decode("utf-8", "replace").split(".")[-2:])
        open_ = [(token, pull) for token, pull in self._open.items() if not pull.id]
        return next((t for t, pull in open_ if self._seats[pull.partition].where == where), "")

    def _take(self, frame: wire.Frame) -> None:
        """Notes the end of a pull; ignores anything else, and what belongs to no open pull."""
        code, text = wire.status_of(frame.headers) if frame.headers else (0, "")
        with self._changed:
            if self._begins_anew or code == _PENDING:
                return
            pull = self._open.pop(self._token_of(frame), None)
            if pull is None or code in _ENDED:
                return
            seat = self._seats[pull.partition]
            self._came = True
            self._rests_until = time.monotonic() + _PAUSE_S
            if code == 0:  # the message that brings the pin
                seat.id = dict(wire.parse_headers(frame.headers)).get("Nats-Pin-Id", "")
                seat.move = seat.at
            if code == 0 or _TOO_LARGE in text:
                seat.accepted = pull.sent
            elif seat.id == pull.id:
                seat.id, seat.refused = "", code == _UNPINNED
            self._changed.notify_all()
