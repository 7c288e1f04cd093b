"""
Connections: dialling, the owner of the socket, and the reply to each request.

Once hands are shaken (`handshake`) the socket is ours, blocking, with one owner thread and no event
loop. That is what makes the data plane fast: a read is `recv` and one pass over the bytes.

`Connection` is one socket. `Client` dials, and dials again when a connection broke, within
`requestTimeout`; one that reaches nobody at the start of a query gives up after `connectTimeout`.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..errors import (
    NotConnectedError,
    PermissionsError,
    ProtocolError,
    RequestTimeoutError,
    UnsupportedServerError,
)
from ..sanitize import get_logger
from . import wire
from .handshake import shake_hands
from .patience import Patience
from .peer import (
    OLDEST,
    Permissions,
    Presence,
    Version,
    is_early,
    received,
    require,
    version_of,
    was_refused,
)
from .wire import INBOX, is_inbox, new_inbox

if TYPE_CHECKING:
    from .options import ConnectionOptions

logger = get_logger(__name__)

T = TypeVar("T")
Request = tuple[str, bytes] | tuple[str, bytes, bytes]
"""Subject, payload and, if there are any, the header block."""

_RECV_BYTES: Final = 1 << 20
_LATE_BYTES: Final = 4 << 20
"""Upper bound of the bytes read after a deadline: the socket cannot have held more by then."""

_ATTEMPT_S: Final = 3.0
"""Time-out of a request's first attempt; each later attempt has twice the time."""

_NO_ANSWER: Final = "is JetStream up, and may this user publish there?"

_LONGEST_WAIT_S: Final = 3600.0
_LEAST_SEND_S: Final = 1.0
_RECENT_S: Final = 1.0
_LOGINS: Final = 4
"""Tries to log in where each is refused."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""The first pause between tries to connect, and the longest."""


class Reply(NamedTuple):
    """Reply to a request: status (0 when there is none), headers and payload."""

    status: int
    description: str
    headers: bytes
    data: bytes


class Connection:
    """
    One authenticated NATS connection, read and written by one thread.

    The data plane works on `buffer` from `pos` on and calls `fill` when it needs more; requests
    and everything that is not a data frame go through `next_frame`.
    """

    def __init__(
        self,
        sock: socket.socket,
        info: dict[str, Any],
        leftover: bytes = b"",
        inbox_prefix: str = INBOX,
    ) -> None:
        self.buffer = leftover
        """Bytes read and not yet consumed start at `pos`."""
        self.pos = 0
        self.info = info
        """The server's INFO."""
        self.pid = os.getpid()
        self._sock = sock
        self._presence = Presence(time.monotonic())
        self._late = 0  # bytes read after the last deadline
        self._inbox_prefix = inbox_prefix
        self._sids = itertools.count(1)
        self._inbox = self.new_inbox()
        self.permissions = Permissions(inbox_prefix)
        try:
            self._reply_sid = self.subscribe(f"{self._inbox}.*")
            self._send_ping(30.0)  # how far away the server is shows with its first words
        except BaseException:  # it is gone again, and nobody else has the socket
            self.close()
            raise

    @property
    def max_payload(self) -> int:
        """The largest payload the server takes, headers included, in bytes."""
        return int(self.info.get("max_payload", 1 << 20))

    @property
    def round_trip_s(self) -> float:
        """The shortest time a PING took so far, there and back; 0 while that is not known."""
        return self._presence.shortest_s

    @property
    def version(self) -> Version:
        """The server's version, as `version_of` reads it."""
        return version_of(str(self.info.get("version", "")))

    def close(self) -> None:
        """Closes the socket; never raises."""
        with suppress(OSError):
            self._sock.close()

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes | memoryview, timeout_s: float = 30.0) -> None:
        """
        Writes all of `data`.

        Raises:
            NotConnectedError: The peer is gone, or took nothing for `timeout_s`.
        """
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def subscribe(self, subject: str, needed: bool = True) -> int:
        """The new subscription's id; `needed` says whether it is an error if the user may not."""
        sid = next(self._sids)
        if not needed:
            self.permissions.may(subject)
        self.send(wire.sub(subject, sid))
        return sid

    def answer(self, reply: bytes, data: bytes, timeout_s: float = 30.0) -> None:
        """
        Answers whoever asked; that the user may not is no error.

        A stranger may ask: on anything but an inbox the answer would be a message in a stream,
        a record or a command, by the rights of this user. There is none then; nor one above
        max_payload, for which the server would cut the connection.
        """
        subject = reply.decode("utf-8", "replace")
        if is_inbox(subject, self._inbox_prefix) and len(data) <= self.max_payload:
            self.send(wire.pub(subject, data), timeout_s)
        else:
            logger.info("%r is no inbox, or %d bytes too large for an answer", subject, len(data))

    def offer(self, subject: str, data: bytes, reply: str = "", timeout_s: float = 30.0) -> bool:
        """
        Publishes what nobody depends on, on one of a few subjects. That the user may not is a line
        of the log, a warning if no answer is wanted; nothing is sent there from then on.

        Returns:
            Whether it was sent.
        """
        may = self.permissions.may(subject, logging.INFO if reply else logging.WARNING)
        if may:
            self.send(wire.pub(subject, data, reply), timeout_s)
        return may

    def unsubscribe(self, sid: int) -> None:
        """Ends a subscription; frames under way may still arrive."""
        self.send(wire.unsub(sid))

    def new_inbox(self) -> str:
        """A subject nobody else uses, nor can guess."""
        return new_inbox(self._inbox_prefix)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def fill(self, deadline: float, need: int = 1) -> bool:
        """
        Reads until at least `need` more bytes are in `buffer`; False when `deadline` came first.

        `deadline` is on the monotonic clock. What has arrived counts even when it has passed: a
        process that got no time on its machine is not to take that for the server's silence. At
        `-math.inf` nothing is read.

        Raises:
            NotConnectedError: The peer closed the connection.
        """
        if deadline == -math.inf:
            return False
        chunks, got = [self.buffer[self.pos :]] if self.pos < len(self.buffer) else [], 0
        try:
            while got < need:
                remaining = max(0.0, deadline - time.monotonic())
                if remaining:
                    self._late = 0
                elif self._late >= _LATE_BYTES:
                    return False
                self._sock.settimeout(remaining)  # 0 waits for nothing
                chunk = received(self._sock, _RECV_BYTES)
                if not chunk:
                    raise NotConnectedError(self._peer(), "the server closed the connection")
                chunks.append(chunk)
                got += len(chunk)
                self._late += 0 if remaining else len(chunk)
                self._presence.heard = time.monotonic()
        except OSError as error:
            if is_early(error):
                return False
            raise self._broken(error) from None
        finally:
            self.buffer = b"".join(chunks) if len(chunks) != 1 else chunks[0]
            self.pos = 0
        return True

    def poll(self) -> bool:
        """
        Adds to `buffer` what has arrived, without waiting; False when nothing had.

        Raises:
            NotConnectedError: The peer closed the connection.
        """
        self._late = 0  # nothing was waited for
        return self.fill(0.0)

    def wait(self, deadline: float, other: int = -1) -> None:
        """
        Returns when `poll` may have something, when this other file descriptor is readable, or at
        the deadline on the monotonic clock. Call `poll` first: it must have had nothing.
        """
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if other >= 0:
            poll.register(other, select.POLLIN)
        left_s = max(0.0, min(deadline - time.monotonic(), _LONGEST_WAIT_S))
        poll.poll(math.ceil(left_s * 1000))

    def next_frame(self, deadline: float) -> wire.Frame | None:
        """
        The next message of any subscription; None when `deadline` came first.

        PING is answered, INFO noted, -ERR raised.
        """
        while isinstance(came := self._next(deadline), wire.Control):
            self.control(came)
        return came

    def _next(self, deadline: float) -> wire.Frame | wire.Control | None:
        """The next frame or control line; None when `deadline` came first."""
        while True:
            came, where = wire.next_frame(self.buffer, self.pos)
            if came is not None:
                self.pos = where
                return came
            if not self.fill(deadline, where):
                return None

    def request(self, subject: str, data: bytes, timeout_s: float) -> Reply:
        """
        One request, one reply.

        Raises:
            RequestTimeoutError: Nothing came within `timeout_s`.
            NotConnectedError: The connection broke.
        """
        return self.requests([(subject, data)], timeout_s)[0]

    def requests(
        self, requests: Sequence[Request], timeout_s: float, max_bytes: float = math.inf
    ) -> list[Reply]:
        """
        Sends all requests at once and returns their replies in the order of the requests, which
        are to have `max_bytes` at the most.

        Each has a reply subject of its own that cannot be guessed: who was asked once, or saw one
        request, knows nothing of the next.
        """
        deadline = time.monotonic() + timeout_s
        inboxes = [f"{self._inbox}.{secrets.token_hex(8)}" for _ in requests]
        indexes = {inbox.encode(): index for index, inbox in enumerate(inboxes)}
        self.send(
            b"".join(
                wire.pub(subject, data, inbox, *headers)
                for (subject, data, *headers), inbox in zip(requests, inboxes, strict=True)
            ),
            timeout_s,
        )
        replies: dict[int, Reply] = {}
        while len(replies) < len(requests):
            try:
                frame = self.next_frame(deadline)
            except PermissionsError:
                self.ping(timeout_s, forgiving=True)  # others may be forbidden, too
                raise
            if frame is None:
                missing = next(i for i in range(len(requests)) if i not in replies)
                raise RequestTimeoutError(requests[missing][0], timeout_s, _NO_ANSWER)
            if frame.sid != self._reply_sid:
                continue  # a late frame of a subscription that has ended
            index = indexes.get(frame.subject)
            # A batched direct get answers more than once; the first reply is the one that counts.
            if index is not None and index not in replies:
                status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
                replies[index] = Reply(status, description, frame.headers, frame.data)
                max_bytes -= len(frame.headers) + len(frame.data)
                if max_bytes < 0:
                    raise ProtocolError(f"{len(replies)} of {len(requests)} replies are too much")
        return [replies[index] for index in range(len(requests))]

    def ping(self, timeout_s: float, forgiving: bool = False) -> None:
        """
        One round trip: what was read before is stale, the peer is there.

        Args:
            forgiving: whether it is no error that what was sent before is forbidden.

        Raises:
            NotConnectedError: It is not.
        """
        self._send_ping(timeout_s)
        deadline = time.monotonic() + timeout_s
        while self._presence.under_way:
            came = self._next(deadline)
            if came is None:
                raise NotConnectedError(self._peer(), f"no PONG within {timeout_s:.1f}s")
            if isinstance(came, wire.Control):
                try:
                    self.control(came)
                except PermissionsError:
                    if not forgiving:
                        raise

    def awake(self, timeout_s: float) -> None:
        """`ping`, where nothing has come from the peer of late; else a look whether it has left."""
        if time.monotonic() - self._presence.heard >= _RECENT_S:
            self.ping(timeout_s)
        while self.poll():
            pass

    def check(self, now: float, silence_s: float) -> None:
        """
        Whether the peer is there, without waiting; call it when all that came is read.

        It is asked (PING) when nothing came for `silence_s`, and has as long again to say anything.

        Raises:
            NotConnectedError: It is not: the connection is half open.
        """
        try:
            to_ask = self._presence.must_ask(now, silence_s)
        except TimeoutError as error:
            raise self._broken(error) from None
        if to_ask:
            self._send_ping(max(silence_s, _LEAST_SEND_S))

    def _send_ping(self, timeout_s: float) -> None:
        self._presence.asked(time.monotonic())
        self.send(wire.PING, timeout_s)

    def control(self, control: wire.Control) -> None:
        """Answers a PING, notes a PONG and an INFO, raises an -ERR."""
        if control.verb == b"PING":
            self.send(wire.PONG)
        elif control.verb == b"PONG":
            self._presence.answered(self._presence.heard)
        elif control.verb == b"INFO":
            self.info.update(wire.info_of(control.argument))
        elif control.verb == b"-ERR":
            text = control.argument.decode("utf-8", "replace").strip(" '")
            if text.lower().startswith("permissions violation"):
                if self.permissions.forgives(text):
                    return
                raise PermissionsError(text)
            raise NotConnectedError(self._peer(), text)

    def _peer(self) -> str:
        return str(self.info.get("server_name") or self.info.get("host") or "the server")

    def _broken(self, error: OSError) -> NotConnectedError:
        return NotConnectedError(self._peer(), str(error) or type(error).__name__)


def away_s(connection: Connection, timeout_s: float = 5.0) -> float:
    """
    Round trip to the server; measured if not known, so call it only while nothing is under way.
    """
    if not connection.round_trip_s:
        connection.ping(timeout_s)
    return connection.round_trip_s


class Client:
    """
    A connection that comes back: every call may dial again until `requestTimeout` has passed.

    Only for requests that may be repeated; all of JetStream's that this package makes may.

    Args:
        at_start: whether nothing was reached before, so that a server that is not there is rather
            a mistake in the options than one that comes back: told after `connectTimeout`.
    """

    def __init__(self, options: ConnectionOptions, at_start: bool = False) -> None:
        self.options = options
        self.unreached = at_start
        """Whether it is still so."""
        self.unanswered = at_start
        """Whether JetStream, too, is still to answer for the first time."""
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The open connection; dials when there is none."""
        return self._open or self._retrying("connect", lambda connection, _: connection)

    @property
    def _open(self) -> Connection | None:
        """The connection, if this process has opened it."""
        found = self._connection
        return found if found is not None and found.pid == os.getpid() else None

    def request(self, subject: str, data: bytes = b"", headers: bytes = b"") -> Reply:
        """One request and its reply; see `requests`."""
        return self.requests([(subject, data, headers)])[0]

    def requests(self, requests: Sequence[Request], max_bytes: float = math.inf) -> list[Reply]:
        """
        Requests sent together, replies in their order. Where the connection breaks, fewer are sent
        at one time: their replies may be more than the server holds for us.

        Raises:
            ProtocolError: The replies have more than `max_bytes`.
            RequestTimeoutError: A reply is missing after `requestTimeout`, reconnects included.
            NotConnectedError: No server could be reached in that time.
            AuthenticationError: A login was refused, four times in a row.
            UnsupportedServerError: The server is too old.
        """
        attempt_s, most, replies = _ATTEMPT_S, len(requests), list[Reply]()

        def once(connection: Connection, left_s: float) -> list[Reply]:
            nonlocal attempt_s, most
            try:  # one sent while a leader is elected is never answered: ask again, elsewhere
                while len(replies) < len(requests):
                    some = requests[len(replies) : len(replies) + most]
                    replies.extend(connection.requests(some, min(attempt_s, left_s), max_bytes))
                return replies
            except (NotConnectedError, RequestTimeoutError):
                attempt_s, most = 2 * attempt_s, max(1, most // 2)
                raise

        return self._retrying(requests[0][0], once)

    def drop(self) -> None:
        """Closes the connection; the next call dials again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    close = drop

    def _retrying(self, what: str, call: Callable[[Connection, float], T]) -> T:
        """Calls `call` with a connection and the seconds left, again after each disconnect."""
        options, told, refusals = self.options, False, 0
        patience = Patience(options.request_timeout_s, None, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        early_s = min(options.connect_timeout_s, options.request_timeout_s)
        early = Patience(early_s, None, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                connection = self._open
                if connection is None:
                    socket_and_info = shake_hands(options)
                    connection = Connection(*socket_and_info, options.inbox_prefix)
                    self._connection, self.unreached = connection, False
                    require(connection.version, OLDEST, "pyspark-jetstream")
                return call(connection, max(0.001, patience.left_s))
            except NotConnectedError as error:
                self.drop()
                waits = early if self.unreached else patience
                # A server that takes its configuration anew refuses every login for a moment.
                refusals += was_refused(error)
                goes_on = error.retryable or (was_refused(error) and refusals < _LOGINS)
                if waits.over or not goes_on:
                    raise
                late = not told and early.over
                logger.log(
                    logging.WARNING if late else logging.INFO,
                    "no connection for %s; it is dialled again for %.0fs more, then this fails: %s",
                    what, waits.left_s, error,
                )  # fmt: skip
                told |= late
                waits.pause()
            except RequestTimeoutError as error:
                self.drop()
                if patience.over:
                    waited_s = options.request_timeout_s
                    raise RequestTimeoutError(error.subject, waited_s, error.hint) from None
            except (ProtocolError, UnsupportedServerError):
                self.drop()
                raise


_KEPT: Final = 4
"""Connections of a thread that wait for a task with their options: those that were used last."""


class _Idle(threading.local):
    """Connections of finished tasks, kept for the next task of this worker process and thread."""

    def __init__(self) -> None:
        self.clients: dict[ConnectionOptions, Client] = {}


_idle = _Idle()


@contextmanager
def borrow(options: ConnectionOptions, at_start: bool = False) -> Iterator[Client]:
    """
    A client for one task; its connection outlives the task when the task ended well. `at_start`
    is `Client`'s.

    Spark reuses Python workers, so the next task of this process finds it open. A connection on
    which anything failed is closed instead.
    """
    client = _idle.clients.pop(options, None)
    if client is not None:
        try:
            client.connection.awake(min(2.0, options.request_timeout_s))
        except (NotConnectedError, ProtocolError):
            client.drop()
    else:
        client = Client(options, at_start)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    other = _idle.clients.get(options)
    if other is not None:  # two were out at one time; one is enough to keep
        other.close()
    _idle.clients[options] = client
    while len(_idle.clients) > _KEPT:
        _idle.clients.pop(next(iter(_idle.clients))).close()
