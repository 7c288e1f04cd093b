"""A connection whose bytes are given, and counters of the work that decoders do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Connection
from pyspark_jetstream.fetch.decoding import deliveries

from ..kits.messages import INBOX, SID
from .cases import Fault


class Socket:
    """What a server says, a piece at a time; then it has closed the connection."""

    def __init__(self) -> None:
        self.pieces: Iterator[bytes] = iter(())
        self.taken = 0

    def say(self, pieces: Iterable[bytes]) -> None:
        """What comes next."""
        self.pieces = iter(pieces)

    def recv(self, size: int) -> bytes:
        """The next piece."""
        self.taken += 1
        return next(self.pieces, b"")

    def settimeout(self, seconds: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to close."""


class Feed(Connection):
    """A connection with one subscription, on a socket that says what it is told to."""

    def __init__(self) -> None:
        self.socket = Socket()
        super().__init__(self.socket, {"server_name": "fuzz", "version": "2.15.1"})

    def new_inbox(self) -> str:
        """The one of all streams."""
        return INBOX.decode()

    def subscribe(self, subject: str, needed: bool = True) -> int:
        """The one of all streams."""
        return SID


class Work:
    """Calls and bytes of the package's inner parts."""

    def __init__(self) -> None:
        self.frames = 0
        """Calls of `next_frame`."""
        self.looked = 0
        """Bytes that cuts by the column looked at."""

    def check(self, size: int, frames: int, pieces: int) -> None:
        """A `Fault` where the work is more than linear in bytes, frames and pieces."""
        if self.looked > 3 * size + (2 << 20):
            raise Fault(f"cuts look at {self.looked} bytes of {size}")
        if self.frames > 4 * frames + 4 * pieces + 100:
            raise Fault(f"{self.frames} frames are looked for in {frames}, in {pieces} pieces")


@contextmanager
def counted(**small: Any) -> Iterator[Work]:
    """Counts what is done within; with other sizes of windows, if given."""
    work = Work()
    next_frame, cut = wire.next_frame, deliveries.cut

    def counting_frames(buffer: bytes, pos: int) -> Any:
        work.frames += 1
        return next_frame(buffer, pos)

    def counting_cuts(window: bytes, *rest: Any) -> Any:
        work.looked += len(window)
        return cut(window, *rest)

    with (
        mock.patch.object(wire, "next_frame", counting_frames),
        mock.patch.object(deliveries, "cut", counting_cuts),
        mock.patch.multiple(deliveries, **(small or {"_CREDIT": deliveries._CREDIT})),
    ):
        yield work
