"""
The driver's listener: advisories about pins of its consumers, and announcements of its attempts.

One thread with a connection of its own, because Spark calls the driver only now and then, and a
connection that nobody reads is cut. It decides nothing: `ownership.Pins` keeps what came. It also
answers the question whether this run of the query is alive (`fetch.owner`), and receives the ends
of the driver's pulls (`arrivals`).
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import Any, Final

from ...client.connection import Client, Connection
from ...client.options import ConnectionOptions
from ...errors import JetStreamError, PermissionsError
from ...fetch.owner import STRANGER, Owner
from ...foreign import read_json
from ...sanitize import get_logger
from ..arrivals import Arrivals
from .ownership import Pins

logger = get_logger(__name__)

_LOOK_S: Final = 1.0
"""Between two looks for pins that nobody has announced in time."""

_JOIN_S: Final = 2.0
_EVENTS: Final = ("PINNED", "UNPINNED", "LEADER_ELECTED")


class PinWatch:
    """
    Listens for as long as a run of the query lasts.

    Without the permission to listen to advisories it says so once, and goes on with announcements.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        owner: Owner,
        pins: Pins,
        lock: threading.Lock,
        arrivals: Arrivals,
    ) -> None:
        """Args: lock: held for every use of `pins`."""
        self._client = Client(options)
        self._owner = owner
        self._arrivals = arrivals
        self._pins = pins
        self._lock = lock
        self._forbidden = False
        self._closed = False
        self._ready = threading.Event()
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="pins", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Waits until it listens, up to `timeout_s`: it goes on trying."""
        self._ready.wait(timeout_s)

    def close(self) -> None:
        """Ends the thread; never raises."""
        if self._closed:
            return
        self._closed = True
        os.write(self._writer, b"x")
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            os.close(self._reader)
            os.close(self._writer)

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    connection = self._client.connection
                    self._subscribe(connection)
                    self._ready.set()
                    self._listen(connection)
                except Exception as error:  # without this thread the query would pass for dead
                    is_known = isinstance(error, JetStreamError)
                    logger.log(
                        logging.INFO if is_known else logging.WARNING,
                        "the driver does not hear of pins, and connects again. The query goes on:"
                        " %r",
                        error, exc_info=not is_known,
                    )  # fmt: skip
                    self._client.drop()
                    self._arrivals.set_listening(False)
                    with self._lock:
                        self._pins.break_off()
                    select.select([self._reader], [], [], _LOOK_S)
        finally:
            self._client.close()

    def _subscribe(self, connection: Connection) -> None:
        timeout_s = self._client.options.connect_timeout_s
        connection.subscribe(f"{self._owner.inbox}.*")
        connection.subscribe(f"{self._arrivals.inbox}.*")
        if not self._forbidden:
            for stream, consumer in self._pins.consumers:
                for event in _EVENTS:
                    connection.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.{event}.{stream}.{consumer}")
        while True:
            try:
                connection.ping(timeout_s)
                break
            except PermissionsError as error:
                if not self._forbidden:
                    logger.warning(
                        "the progress does not show who was pinned, until this user may subscribe,"
                        " and the query is started again. The query goes on: %s",
                        error,
                    )
                self._forbidden = True
        self._arrivals.set_listening(True, is_warned=not self._forbidden)
        # Comes back if attempts, which have the same user, may announce their pins.
        connection.tell(f"{self._owner.inbox}.pins", b'{"hello": true}')

    def _listen(self, connection: Connection) -> None:
        while not self._closed:
            arrived = connection.poll()
            while True:
                try:
                    frame = connection.next_frame(0.0)
                except PermissionsError as error:
                    logger.info("not allowed: %s", error)
                    continue
                if frame is None:
                    break
                self._take(connection, frame.subject.decode("utf-8", "replace"), frame)
            self._judge()
            if not arrived:
                connection.wait(time.monotonic() + _LOOK_S, self._reader)

    def _take(self, connection: Connection, subject: str, frame: Any) -> None:
        inbox, _, token = subject.rpartition(".")
        if inbox == self._arrivals.inbox:
            self._arrivals.end_pull(token, frame.headers)
            return
        if subject == f"{self._owner.inbox}.owner":
            if frame.reply:
                connection.answer(frame.reply, self._owner.query.encode())
            return
        try:
            content = read_json(frame.data)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            return
        if subject == f"{self._owner.inbox}.whose":
            with self._lock:
                if content.get("verdict"):
                    answer = self._pins.verdict(content)
                else:
                    answer = STRANGER if self._pins.is_announced(content) is False else b""
            if frame.reply:
                connection.answer(frame.reply, answer)
            return
        with self._lock:
            if subject == f"{self._owner.inbox}.pins":
                self._pins.add_announcement(content)
                return
            line = self._pins.add_advisory(content, time.monotonic())
            elected = self._pins.elected(content)
        if elected is not None:
            self._arrivals.doubt(elected)
        if line is not None:
            logger.info("%s", line)

    def _judge(self) -> None:
        """Notes which pins have turned out to be strangers', and says so."""
        with self._lock:
            strangers = self._pins.strangers(time.monotonic())
        for partition, pin, count in strangers:
            logger.warning(
                "partition=%d: another client pulls from this query's consumer: no attempt of the"
                " query took the pin with id=%s (%d so far; said once a minute). Messages that the"
                " client takes are late, or the query ends with ForeignClientError. Stop that"
                " client, or give the query another consumer", partition, pin, count,
            )  # fmt: skip
