"""
The driver's ear at its consumers: it hears when a message comes, and moves them along.

A pull that allows one byte, under an id that nobody has, ends as soon as there is a message: the
server says that it is too large or that the id is none. The message stays where it is, whatever the
stream's retention, and nobody is pinned.

Rule: what is heard is a hint. What a stream holds the driver asks of the server, when a pull ends
and every few seconds although none does. A thread has a connection of its own for this, so that the
driver never waits for an answer.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from ..client import wire
from ..client.connection import Client, Connection
from ..client.options import ConnectionOptions
from ..errors import JetStreamError, PermissionsError
from ..sanitize import get_logger

logger = get_logger(__name__)

_EXPIRES_S: Final = 30.0
"""Seconds that a pull is open, at least; of many partitions one each, so one a second ends."""

_SILENCE_S: Final = 5.0
"""After so long without a word the server is asked whether it is there."""

_PAUSE_S: Final = 1.0
"""Before another connection is made, and before a pull that has ended is sent again."""

_JOIN_S: Final = 2.0

_NOBODY: Final = "-"
"""A pin id that nobody has."""

_ENDED_IN_TIME: Final = frozenset({404, 408})
"""
Statuses of a pull that has ended without a message. With any other there is one, or something has
become of the consumer: then the driver looks.
"""


class WakeUps:
    """The pulls of one driver, by partition, and which of them have ended."""

    def __init__(self, options: ConnectionOptions, group: str) -> None:
        self._options = options
        self._group = group
        self._consumers: Sequence[tuple[str, str]] = ()
        """Stream and name, by partition."""
        self._changed = threading.Condition()
        """Held for all that follows."""
        self._rests_until = 0.0
        """Time until which a pull that has ended is not sent again, unless the driver waits."""
        self._open: dict[str, tuple[int, float]] = {}
        """Partition and time of the end, by the last token of a pull's reply subject."""
        self._resets: dict[int, int] = {}
        """By partition the sequence to which its consumer is still to be moved."""
        self._came = False
        self._is_denied = False
        self._tokens = itertools.count(1)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._read_fd, self._write_fd = -1, -1

    def __repr__(self) -> str:
        return f"<WakeUps of {len(self._consumers)} consumers, {len(self._open)} open>"

    def begin(self, consumers: Sequence[tuple[str, str]]) -> None:
        """Starts to listen at these consumers, which are there."""
        self._consumers = consumers
        if self._thread is None:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)
            self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._ring()
            self._thread.join(_JOIN_S)
            self._thread = None
            os.close(self._read_fd)
            os.close(self._write_fd)

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    def move(self, to: Mapping[int, int]) -> None:
        """Moves the consumers of these partitions to sequences, without waiting for it."""
        with self._changed:
            self._resets.update(to)
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
            now = time.monotonic()
            there = {partition for partition, until in self._open.values() if until > now}
            return len(there) == len(self._consumers) > 0

    def _ring(self) -> None:
        with suppress(OSError):  # it has been rung, or the thread is over
            os.write(self._write_fd, b"\0")

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        client = Client(self._options)
        while not self._stopped.is_set():
            try:
                self._listen(client.connection)
            except PermissionsError as error:
                logger.info("the driver is not told when messages come: %s", error)
                self._is_denied = True
            except JetStreamError as error:
                logger.info("the driver hears nothing for a moment: %s", error)
                client.drop()
                self._stopped.wait(_PAUSE_S)
            finally:
                with self._changed:
                    self._open.clear()
        client.close()

    def _listen(self, connection: Connection) -> None:
        # What was open on another inbox the server has forgotten, or will.
        inbox = wire.new_inbox(self._options.inbox_prefix)
        sid = connection.subscribe(f"{inbox}.*")
        while not self._stopped.is_set():
            connection.send(self._due(inbox))
            while connection.poll():
                pass
            while (frame := connection.next_frame(float("-inf"))) is not None:
                if frame.sid == sid:
                    self._take(frame)
            if not self._is_pending():
                connection.check(time.monotonic(), _SILENCE_S)
                connection.wait(time.monotonic() + _PAUSE_S, self._read_fd)
                with suppress(BlockingIOError):
                    os.read(self._read_fd, 1 << 10)

    def _is_pending(self) -> bool:
        with self._changed:
            return bool(self._resets)

    def _due(self, inbox: str) -> bytes:
        """What is to be sent now."""
        now, expires_s = time.monotonic(), max(_EXPIRES_S, float(len(self._consumers)))
        body = json.dumps(
            {
                "batch": 1,
                "max_bytes": 1,
                "expires": round(expires_s * 1e9),
                "group": self._group,
                "id": _NOBODY,
            }
        ).encode()
        api = f"{self._options.api_prefix}.CONSUMER"
        with self._changed:
            # The server ignores a reset that wants no answer.
            sent = [
                wire.pub(f"{api}.RESET.{'.'.join(where)}", b'{"seq":%d}' % at, f"{inbox}.reset")
                for where, at in (
                    (self._consumers[partition], at) for partition, at in self._resets.items()
                )
            ]
            self._resets.clear()
            self._open = {token: pull for token, pull in self._open.items() if pull[1] > now}
            there = {partition for partition, _ in self._open.values()}
            if now >= self._rests_until and not self._is_denied:
                for partition, at in enumerate(self._consumers):
                    if partition not in there:
                        token = str(next(self._tokens))
                        self._open[token] = partition, now + expires_s
                        subject = f"{api}.MSG.NEXT.{'.'.join(at)}"
                        sent.append(wire.pub(subject, body, f"{inbox}.{token}"))
        return b"".join(sent)

    def _take(self, frame: wire.Frame) -> None:
        """Notes the end of a pull; ignores anything else, and what belongs to no open pull."""
        status = wire.status_of(frame.headers)[0] if frame.headers else 0
        token = frame.subject.rsplit(b".", 1)[-1].decode("utf-8", "replace")
        with self._changed:
            if token not in self._open or status < 400:
                return
            del self._open[token]
            if status not in _ENDED_IN_TIME:
                self._came = True
                self._rests_until = time.monotonic() + _PAUSE_S
                self._changed.notify_all()
