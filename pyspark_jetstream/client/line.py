"""What is known of the line to a server: how long a round trip takes, what waits to be sent."""

from __future__ import annotations

import socket
import sys
from collections import deque
from typing import Protocol

try:
    import fcntl
    import termios
except ImportError:  # Windows
    _TIOCOUTQ = None
else:
    _TIOCOUTQ = termios.TIOCOUTQ

__all__ = ["RoundTrips", "away_s", "unsent"]


class _Asked(Protocol):
    """What is asked how far away it is."""

    @property
    def round_trip_s(self) -> float:
        """The shortest time a PING took; 0 while that is not known."""

    def ping(self, timeout_s: float) -> None:
        """Asks, and waits for the answer."""


class RoundTrips:
    """The PINGs of one connection and their PONGs, which come in the same order."""

    def __init__(self) -> None:
        self.shortest_s = 0.0
        """The shortest one so far; 0 before the first PONG."""
        self._asked: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<RoundTrips of {self.shortest_s * 1e3:.1f}ms, {len(self._asked)} under way>"

    @property
    def under_way(self) -> int:
        """How many PINGs have no PONG yet."""
        return len(self._asked)

    def asked(self, now: float) -> None:
        """A PING was sent."""
        self._asked.append(now)

    def answered(self, now: float) -> None:
        """A PONG has come by now."""
        if self._asked:
            trip_s = max(1e-6, now - self._asked.popleft())
            self.shortest_s = min(self.shortest_s or trip_s, trip_s)


def away_s(connection: _Asked, timeout_s: float = 5.0) -> float:
    """How far away the server is; asked if it is not known, so only while nothing is under way."""
    if not connection.round_trip_s:
        connection.ping(timeout_s)
    return connection.round_trip_s


def unsent(sock: socket.socket) -> int:
    """Bytes that were sent and the peer's host has not taken; 0 where the system can't say."""
    if _TIOCOUTQ is None:
        return 0
    try:
        waiting = fcntl.ioctl(sock.fileno(), _TIOCOUTQ, b"\0" * 4)
    except OSError:
        return 0
    return int.from_bytes(waiting, sys.byteorder)
