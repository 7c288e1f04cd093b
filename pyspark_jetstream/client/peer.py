"""
The server at the other end: its greeting, its version, what it refuses, and how far away it is.

Rule 1: one deadline holds for the greeting (`connectTimeout`), however little is said at a time,
and a line has an end.
Rule 2: where an option asks for TLS, nothing is written before it has begun.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..errors import AuthenticationError, NotConnectedError, TlsError, UnsupportedServerError
from ..sanitize import get_logger
from .wire import is_inbox

if TYPE_CHECKING:
    import ssl

    from .options import ConnectionOptions

logger = get_logger(__name__)

Version = tuple[int, ...]
"""
Of nats-server. A cluster may have servers of several: the one we are connected to says its own in
INFO, but a request may be answered by an older one, which shows in what its answer lacks.
"""

OLDEST: Version = (2, 12)
"""
Version since which reads and writes work. Among what they need is how many messages follow the
first of several: 2.11 counts that one, too.
"""

RESETS: Final = (2, 14)
"""Version since which a consumer can be reset (CONSUMER.RESET)."""

_VERSION: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)

_FORBIDDEN: Final = re.compile(r'(?i)permissions violation for (subscription|publish) to "([^"]*)')

_SOCKET_BUFFER: Final = 4 << 20
_UNREACHED: Final = (
    "check host and port in option servers (4222 is for clients, 8222 for monitoring), that a"
    " server runs there, that this host may reach it, that max_connections of server and account"
    " leave room, and whether it wants tlsHandshakeFirst"
)

_RECORD_BYTES: Final = 1 << 14
"""The most that TLS gives at one time; a server's records may have half a KiB each."""

_MAX_LINE: Final = 1 << 20
"""A line without an end; INFO is some KiB, more in a cluster of hundreds."""


def refused(options: ConnectionOptions, text: str) -> AuthenticationError | None:
    """
    The error for what a server said, if that was about the login; that none arrived in time is
    about the network.
    """
    lowered = text.lower()
    if "authentication timeout" in lowered:
        return None
    if "authorization" in lowered or "authentication" in lowered or "user jwt" in lowered:
        return AuthenticationError(options.where, text)
    return None


def was_refused(error: NotConnectedError) -> bool:
    """Whether the server refused the login; what is wrong on our side names its remedy."""
    return isinstance(error, AuthenticationError) and not error.remedy


def unreached(options: ConnectionOptions, failures: Mapping[str, Exception]) -> NotConnectedError:
    """The error when no server was entered; `failures` has what came of each, by name."""
    words = {name: str(error) or type(error).__name__ for name, error in failures.items()}
    text = "; ".join(f"{name}: {error}" for name, error in words.items())
    return NotConnectedError(options.where, f"{text}; {_UNREACHED}")


def version_of(text: str) -> Version:
    """
    Major, minor and patch of what a server says it is, without the suffix of a pre-release.

    Zeros where it says nothing that is a version, as one that somebody built may: it is then too
    old for whatever needs one.
    """
    found = _VERSION.match(text)
    return tuple(int(word or 0) for word in found.groups()) if found else (0, 0, 0)


def require(found: Version, needed: Version, capability: str) -> None:
    """
    Accepts the server of this version.

    Raises:
        UnsupportedServerError: It is older than the capability.
    """
    if found[: len(needed)] < needed:
        raise unsupported(found, needed, capability)


def unsupported(found: Version, needed: Version, capability: str) -> UnsupportedServerError:
    """
    The error for a missing capability. The server's version may be new enough, when another one
    answered for it.
    """
    words = _dotted(found)
    if found[: len(needed)] >= needed:
        words += ", but an older one has answered"
    return UnsupportedServerError(capability, _dotted(needed), words)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def is_early(error: OSError) -> bool:
    """
    Whether it only says that nothing has arrived yet. Those of TLS are told by their names, for who
    has no TLS has not imported ssl.
    """
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return True
    return type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def received(sock: socket.socket, most: int) -> bytes:
    """
    Bytes that have arrived, about `most` of them; waits for the first as `sock` does, and leaves it
    not waiting. TLS gives one record at a time: those that are there as well are added.
    """
    if not hasattr(sock, "pending"):
        return sock.recv(most)
    chunks = [sock.recv(_RECORD_BYTES)]
    got = len(chunks[0])
    sock.settimeout(0)
    with suppress(OSError):  # what breaks now is met again by who reads next
        while chunks[-1] and got < most:
            chunks.append(sock.recv(_RECORD_BYTES))
            got += len(chunks[-1])
    return b"".join(chunks)


class Peer:
    """
    A blocking socket to one server after the other.

    It reads no byte beyond what a line needs from the kernel's point of view: what came along
    with the last line stays in `leftover` for the connection that takes the socket over.

    Args:
        timeout_s: how long one server may take in all.
        tls_asked_by: the options that ask for TLS; if there are any, nothing is written without.
    """

    def __init__(self, timeout_s: float, tls_asked_by: tuple[str, ...] = ()) -> None:
        self.sock: socket.socket | None = None
        self.leftover = b""
        self.name = ""
        """The server that is tried, or was tried last."""
        self.encrypted = False
        """Whether what is said and heard now goes through TLS."""
        self._tls_asked_by = tls_asked_by
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def dial(self, host: str | None, port: int | None) -> None:
        """Connects to another server; without a port to that of NATS, 4222."""
        self.close()
        port = port or 4222
        self.leftover = b""
        self.encrypted = False
        self.name = f"[{host}]:{port}" if host is not None and ":" in host else f"{host}:{port}"
        self._deadline = time.monotonic() + self._timeout_s
        name: Any = host.encode() if host is not None and host.isascii() else host  # no codec
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        # Each of the host's addresses has a share of the time.
        sock = socket.create_connection((name, port), self.left_s() / len(addresses))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        self.sock = sock

    def wrap(self, context: ssl.SSLContext, host: str | None) -> None:
        """
        Begins TLS with the server, whose certificate has to be that of `host`.

        Raises:
            OSError: It fails; of ssl's kinds where it is about TLS.
        """
        self.sock = context.wrap_socket(self.open(), server_hostname=host)
        self.encrypted = True

    def send(self, data: bytes) -> None:
        """
        Says all of this.

        Raises:
            TlsError: An option asks for TLS, which has not begun.
        """
        if self._tls_asked_by and not self.encrypted:
            raise self.not_offered()
        self.open().sendall(data)

    def not_offered(self) -> TlsError:
        """The error where TLS is asked for by an option and not offered by the server."""
        return TlsError(
            self.name,
            f"its INFO does not offer it, and {', '.join(self._tls_asked_by)} asks for it;"
            " configure tls { } in that server, or, if it has that, find the proxy on the way that"
            " strips tls_required",
        )

    def line(self) -> bytes:
        """The server's next line."""
        self.left_s()
        while b"\n" not in self.leftover:
            if len(self.leftover) > _MAX_LINE:
                raise ConnectionResetError(
                    f"a line of more than {_MAX_LINE} bytes; is {self.name} a NATS server?"
                )
            chunk = self.open().recv(1 << 16)
            if not chunk:
                raise ConnectionResetError("the server closed the connection during the handshake")
            self.leftover += chunk
        line, _, self.leftover = self.leftover.partition(b"\n")
        return line + b"\n"

    def close(self) -> None:
        """Ends what there is."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def open(self) -> socket.socket:
        """The socket; what is asked of it ends at the deadline."""
        if self.sock is None:
            raise ConnectionResetError("not connected")
        self.sock.settimeout(self.left_s())
        return self.sock

    def left_s(self) -> float:
        """
        Seconds until the deadline.

        Raises:
            TimeoutError: It has passed.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"{self.name} did not end the handshake within {self._timeout_s:g}s"
                " (connectTimeout)"
            )
        return left_s


class Permissions:
    """
    Refused subjects of one connection: those it can do without, and those that are errors. The
    server says so some time after the publish or the subscription, in a line of its own.

    Args:
        inbox_prefix: under which inboxes are, beside `_INBOX`.
    """

    def __init__(self, inbox_prefix: str) -> None:
        self._inbox_prefix = inbox_prefix
        self._unneeded: dict[str, int] = {}
        """By subject, level at which the log says that it is forbidden; 0 where it has."""

    def may(self, subject: str, level: int = logging.INFO) -> bool:
        """Whether the server has not forbidden what nobody needs; `subject` is one of a few."""
        return self._unneeded.setdefault(subject, level) > 0

    def forgives(self, text: str) -> bool:
        """Whether the connection can do without what the server forbids by these words."""
        match = _FORBIDDEN.search(text)
        verb, subject = match.groups() if match is not None else ("", "")
        level = self._unneeded.get(subject)
        if level is not None:
            self._unneeded[subject] = 0
        elif verb.lower() == "publish" and is_inbox(subject, self._inbox_prefix):
            level = logging.INFO  # an answer: whatever a stranger has put into the subject
        else:
            return False
        logger.log(level, "forbidden, and left out from now on; the query goes on: %s", text)
        return True


class Presence:
    """
    Whether the peer is there, and how far away: when it was heard, and asked, last; its PINGs and
    their PONGs, which come in the same order.
    """

    def __init__(self, now: float) -> None:
        self.shortest_s = 0.0
        """The shortest round trip so far; 0 before the first PONG."""
        self._pings: deque[float] = deque()
        self.heard = now
        """Time of the last bytes from the server, on the monotonic clock."""

        self._asked = -math.inf
        """Time when `must_ask` last was true."""

    @property
    def under_way(self) -> int:
        """Number of PINGs without a PONG."""
        return len(self._pings)

    def asked(self, now: float) -> None:
        """A PING was sent."""
        self._pings.append(now)

    def answered(self, now: float) -> None:
        """A PONG has come by now."""
        if self._pings:
            trip_s = max(1e-6, now - self._pings.popleft())
            self.shortest_s = min(self.shortest_s or trip_s, trip_s)

    def must_ask(self, now: float, silence_s: float) -> bool:
        """
        Whether a PING is to be sent now: nothing came for `silence_s`, and none was sent since.

        Raises:
            TimeoutError: For as long again nothing came.
        """
        if now - self.heard < silence_s:
            return False
        if self._asked <= self.heard:
            self._asked = now
            return True
        if now - self._asked >= silence_s:
            raise TimeoutError(f"silent for {now - self.heard:.1f}s, and no PONG to a PING")
        return False
