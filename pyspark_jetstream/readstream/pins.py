"""
The driver's pulls at its seats: by them it is pinned, hears when a message comes, and moves on.

A pull under the pin's id that allows one byte ends as soon as there is a message, which stays where
it is: it renews the pin, and wakes the driver. Where nobody is pinned, a pull without an id takes
the pin together with one message, headers only; the seat is put back at once.

Rule: what is heard is a hint. What a stream holds the driver asks of the server, when a pull ends
and every few seconds although none does. A thread has a connection of its own for this, so that the
driver never waits for an answer, and pins are renewed while a batch is long. An id that is refused
is forgotten, and no pin is asked for until the driver has found that the seats are still its own.
"""

from __future__ import annotations

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
from ..client.blocks import ack_of
from ..client.connection import Client, Connection
from ..errors import JetStreamError, PermissionsError
from ..sanitize import get_logger
from .options import SourceOptions

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
    """The last one at a seat."""

    token: str = ""
    """The last one of its reply subject; "" once it has ended."""
    id: str = ""
    sent: float = -math.inf
    until: float = -math.inf
    """When it ends by itself; of one that has ended, when the next one is due."""

    @property
    def is_open(self) -> bool:
        """Whether it waits at the server, as far as is known."""
        return self.token != "" and self.until > time.monotonic()


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
    accepted: float = -math.inf
    """When the last pull was sent that the server took under our pin."""
    pull: _Pull = _Pull()


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

    def __init__(self, options: SourceOptions) -> None:
        self.denied: PermissionsError | None = None
        """Why nothing is pulled, where the user may not."""
        self.doubted: float | None = None
        """Time since which a pin is known to be gone, and none is asked for."""
        self._options = options
        self._changed = threading.Condition()
        """Held for all that follows."""
        self._seats: list[_Seat] = []
        """By partition; a new list is a new beginning."""
        self._came = False
        self._bell: _Bell | None = None
        self._thread: threading.Thread | None = None

    def begin(self, seats: Sequence[tuple[str, str]], at: Mapping[int, int]) -> None:
        """
        Pulls at these seats, which are there, and where nobody is pinned.

        Args:
            at: by partition the sequence at which its seat stands; without one it is not put back.
        """
        with self._changed:
            self._seats = [_Seat(where, at.get(p), move=at.get(p)) for p, where in enumerate(seats)]
            self.doubted = None
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
        thread, self._thread = self._thread, None
        self._ring()
        if thread is not None:
            thread.join(_JOIN_S)
        if self._bell is not None and thread is not None and not thread.is_alive():
            self._bell.close()
        self._bell = None

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        """The pin that this driver has at the first seat, for all it knows; "" for none."""
        with self._changed:
            return self._seats[0].id if self._seats else ""

    def is_fresh(self, since: float) -> bool:
        """Whether a pull of then or later is open at the first seat, or was taken by our pin."""
        with self._changed:
            for seat in self._seats[:1]:
                return (seat.pull.sent if seat.pull.is_open else seat.accepted) >= since
            return False

    def move(self, to: Mapping[int, int], is_done: bool = False) -> None:
        """
        Moves the seats of these partitions to sequences, without waiting for it.

        Args:
            is_done: whether the driver does that itself.
        """
        with self._changed:
            for partition, at in to.items() if self._seats else ():
                seat = self._seats[partition]
                seat.at, seat.move = at, None if is_done else at
        self._ring()

    def wait(self, timeout_s: float) -> bool:
        """
        Returns when a message has come, and after `timeout_s` at the latest; whether one has, as
        far as is heard.
        """
        if self._thread is None:
            time.sleep(timeout_s)
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._came, timeout_s)
            came, self._came = self._came, False
        if came:
            self._ring()  # for the next one
        return came

    @property
    def hears(self) -> bool:
        """Whether a pull is open at each partition, as far as is known."""
        with self._changed:
            return bool(self._seats) and all(seat.pull.is_open for seat in self._seats)

    def doubt(self) -> None:
        """Takes the first seat's pin for lost, and lets go of all that is open."""
        with self._changed:
            self._seats = list(self._seats)
            self._seats[0].id, self.doubted = "", time.monotonic()
        self._ring()

    def trust(self) -> None:
        """Asks for pins again: the seats are this driver's."""
        self.doubted = None
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self, bell: _Bell) -> None:
        client = Client(self._options.connection)
        while self._thread is not None and self.denied is None:
            try:
                self._listen(client.connection, bell)
            except PermissionsError as error:
                logger.info("the driver hears nothing from now on: %s", error)
                self.denied = error
            except JetStreamError as error:
                logger.info("the driver hears nothing for a moment: %s", error)
                client.drop()
                time.sleep(_PAUSE_S)
        client.close()

    def _listen(self, connection: Connection, bell: _Bell) -> None:
        """Pulls by one inbox: what was open by another the server forgets."""
        inbox = wire.new_inbox(self._options.connection.inbox_prefix)
        sid = connection.subscribe(f"{inbox}.*")
        with self._changed:
            seats = self._seats
            for seat in seats:  # what was sent or dealt may have been lost with the connection
                seat.pull, seat.accepted = _Pull(), -math.inf
        while self._thread is not None and self._seats is seats:
            self._send_due(connection, seats, inbox)
            while connection.poll():
                pass
            while (frame := connection.next_frame(float("-inf"))) is not None:
                if frame.sid == sid:
                    self._take(seats, frame)
            if all(seat.move is None for seat in seats):
                connection.check(time.monotonic(), _SILENCE_S)
                connection.wait(time.monotonic() + _PAUSE_S, bell.fd)
                bell.heard()
        connection.unsubscribe(sid)

    def _send_due(self, connection: Connection, seats: Sequence[_Seat], inbox: str) -> None:
        """
        Sends what is due now. The lock is held until it is sent: a reset that the driver makes
        itself comes behind it.
        """
        now, open_s = time.monotonic(), self._options.term_s / 3
        group, sent = self._options.priority_group, list[bytes]()
        api = f"{self._options.connection.api_prefix}.CONSUMER"
        with self._changed:
            for partition, seat in enumerate(seats):
                of = ".".join(seat.where)
                if seat.move is not None:  # the server ignores a reset that wants no answer
                    body = b'{"seq":%d}' % seat.move
                    sent.append(wire.pub(f"{api}.RESET.{of}", body, f"{inbox}.reset"))
                    seat.move = None
                rests = seat.pull.until > now and (seat.pull.is_open or self._came)
                if rests or (self.doubted is not None and not seat.id):
                    continue
                seat.pull = _Pull(f"{partition}-{now * 1e6:.0f}", seat.id, now, now + open_s)
                asked: dict[str, Any] = {"batch": 1, "expires": round(open_s * 1e9), "group": group}
                asked |= {"max_bytes": 1, "id": seat.id} if seat.id else {}
                body = json.dumps(asked).encode()
                sent.append(wire.pub(f"{api}.MSG.NEXT.{of}", body, f"{inbox}.{seat.pull.token}"))
            connection.send(b"".join(sent))

    def _take(self, seats: Sequence[_Seat], frame: wire.Frame) -> None:
        """Notes the end of a pull; ignores anything else, and what belongs to no open pull."""
        code, text = wire.status_of(frame.headers) if frame.headers else (0, "")
        with self._changed:
            seat = _seat_of(seats, frame)
            if seat is None or code == _PENDING or self._seats is not seats:
                return
            pull, seat.pull = seat.pull, _Pull()
            if code in _ENDED:
                return
            seat.pull = _Pull(until=time.monotonic() + _PAUSE_S)
            self._came = True
            if code == 0:  # the message that brings the pin
                seat.id = dict(wire.parse_headers(frame.headers)).get("Nats-Pin-Id", "")
            if code == 0 or _TOO_LARGE in text:
                if code == 0 or seat.accepted == -math.inf:  # nobody else has the seat
                    seat.move = seat.at
                seat.accepted = pull.sent
            elif seat.id == pull.id:
                seat.id = ""
                if code == _UNPINNED:
                    self.doubted = time.monotonic()
            self._changed.notify_all()


def _seat_of(seats: Sequence[_Seat], frame: wire.Frame) -> _Seat | None:
    """That whose open pull a frame answers; a message has a subject of its own."""
    if not frame.reply:
        token = frame.subject.rsplit(b".", 1)[-1].decode("utf-8", "replace")
        return next((seat for seat in seats if seat.pull.token == token), None)
    where = tuple(ack_of(frame.reply).consumer.decode("utf-8", "replace").split(".")[-2:])
    free = (seat for seat in seats if seat.pull.token and not seat.pull.id)
    return next((seat for seat in free if seat.where == where), None)
