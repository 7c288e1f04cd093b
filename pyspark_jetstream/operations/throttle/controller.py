"""
The operator's side of the throttle: finds producers, pauses them, and says who acknowledged.

Owns: one connection and its inbox. What is to be said to whom, and when, is decided in `pauses`.

A pause holds for as long as this runs and reaches the servers. Without them for longer than
`pauses.MARGIN_S` it lapses, as it does when this process dies; back again, it is issued anew.
While it pauses it answers writers that begin (`<subject>.active`); they wait for that.
Nothing here enforces: who ignores commands goes on publishing, and is named (`Pauses.silent`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...client import wire
from ...client.connection import Client, Connection
from ...errors import NotConnectedError
from ...outbox.throttling.throttleprotocol import Reason, active_subject
from ...sanitize import get_logger
from .pauses import MARGIN_S, Pauses, Send

logger = get_logger(__name__)

_LOOK_S: Final = 0.1
"""Interval between two calls of `show`."""

_LAST_S: Final = MARGIN_S - 0.1
"""Seconds before the end of a discovery when producers are asked for the last time."""


class Controller:
    """
    An operator, for one thread.

    Args:
        client: of its own; replies to others' requests would be lost on it.
        pauses: what is wanted.
        show: called whenever something may have changed, some times a second.
        stopped: whether to end early; pauses are lifted all the same.
    """

    def __init__(
        self,
        client: Client,
        pauses: Pauses,
        show: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._pauses = pauses
        self._show = show
        self._stopped = stopped
        self._connection: Connection | None = None
        self._inbox = ""
        self._sid = 0
        self._pausing = False
        self._active_sid = 0

    def discover(self, wait_s: float, patient: bool = False) -> None:
        """
        Finds the producers that answer within this time. At its end all are asked again: a pause of
        an operator's holds for little longer than the second after which it is issued anew.

        Args:
            patient: asks on while nobody listens; else that is the end.

        Raises:
            NotConnectedError: No server can be reached; so do all methods.
        """
        until, self._pauses.patient = time.monotonic() + wait_s, patient
        self._serve(until - min(_LAST_S, wait_s / 2), lambda: self._pauses.nobody and not patient)
        if patient or not self._pauses.nobody:
            self._pauses.seek()
            self._serve(until)

    def pause(self, filter: str, reason: Reason, for_s: float) -> None:
        """Pauses these subjects for so long, then lifts that; answers writers that begin."""
        self._pausing = True
        self._connected()  # which may take its time
        until = time.monotonic() + for_s
        self._pauses.pause(filter, reason, until)
        self._serve(until)
        self.lift([filter], [reason])

    def lift(self, filters: Sequence[str], reasons: Sequence[Reason]) -> None:
        """Lifts pauses of exactly these filters, for these reasons, with all producers found."""
        now = time.monotonic()
        of = [(filter_, reason) for filter_ in filters for reason in reasons]
        sends = [send for each in of for send in self._pauses.lift(*each, now)]
        self._serve(math.inf, lambda: not self._pauses.waiting, sends, stoppable=False)

    def _serve(
        self,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        first: Sequence[Send] = (),
        stoppable: bool = True,
    ) -> None:
        """Sends what is due and takes what comes, until then or until it is enough."""
        sends, look = list(first), -math.inf
        while (now := time.monotonic()) < until and not (stoppable and self._stopped()):
            if now >= look:
                self._show()
                look = now + _LOOK_S
            connection = self._connected()
            try:
                sends += self._pauses.due(now)
                self._send(connection, sends)
                sends = []
                if enough():
                    break
                frame = connection.next_frame(min(until, self._pauses.next_deadline, look))
                if frame is not None:  # at once, be it the last: a writer that begins waits for it
                    self._send(connection, self._heard(frame))
            except NotConnectedError as error:
                # What was said is lost; receipts that do not come are dealt with in time.
                logger.warning("the connection broke, and is dialled again: %s", error.reason)
                self._client.drop()
                sends = []
        self._show()

    def _connected(self) -> Connection:
        """The connection, with our inbox on it; dialled again for as long as `requestTimeout`."""
        connection = self._client.connection
        if connection is not self._connection:
            self._inbox = connection.new_inbox()
            self._sid = connection.subscribe(f"{self._inbox}.*")
            self._connection, self._active_sid = connection, 0
        if self._pausing and not self._active_sid:
            self._active_sid = connection.subscribe(active_subject(self._pauses.subject))
        return connection

    def _send(self, connection: Connection, sends: Sequence[Send]) -> None:
        replies = ["" if each.token is None else f"{self._inbox}.{each.token}" for each in sends]
        of = zip(sends, replies, strict=True)
        if sends:
            connection.send(b"".join(wire.pub(each.subject, each.data, to) for each, to in of))

    def _heard(self, frame: wire.Frame) -> list[Send]:
        if frame.sid == self._active_sid:
            return self._pauses.receive_start(frame.data, time.monotonic())
        token = frame.subject.rpartition(b".")[2]
        if frame.sid != self._sid or not token.isdigit():
            return []
        status = wire.status_of(frame.headers)[0] if frame.headers else 0
        return self._pauses.receive_reply(int(token), status, frame.data, time.monotonic())
