"""
The lanes' publishes on the task's connection, and the replies to them handed to their lanes.

Rule 1: the one place that sends what lanes have ready and reads what the server answers; what goes,
and when again, is the lanes' to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ..client import wire
from ..client.connection import Client
from .context import WriterClock
from .lanes.answers import is_ordinal
from .lanes.pubacks import absorb
from .laneset import LaneSet
from .options import SinkOptions

SEND_TIMEOUT_S: Final = 30.0
"""Upper bound of the time in which the socket takes nothing."""

_CHUNK_BYTES: Final = 1 << 19
"""Sent at one time: large enough for the system call not to matter, small enough to keep
reading replies."""


class Sender:
    """
    Args:
        inbox: replies to the n-th lane come on `<inbox>.<n>.>`.
    """

    def __init__(
        self, client: Client, inbox: str, lanes: LaneSet, options: SinkOptions, clock: WriterClock
    ) -> None:
        self.connection = client.connection
        """The one that is subscribed to replies; another after each reconnect."""
        self.lanes = lanes
        self._client = client
        self._inbox = inbox
        self._prefix = f"{inbox}.".encode()
        self._sid = -1
        self._clock = clock
        self._max_bytes = options.window.max_in_flight_bytes
        self._timeout_s = min(SEND_TIMEOUT_S, options.window.publish_timeout_s)

    def __repr__(self) -> str:
        return f"<Sender of {self.lanes.all}>"

    def listen(self) -> None:
        """
        Subscribes to replies, on a new connection if the last one was dropped.

        Raises:
            NotConnectedError: There is none.
        """
        self.connection = self._client.connection
        self._sid = self.connection.subscribe(f"{self._inbox}.>")

    def drop(self) -> None:
        """Closes the connection; the next `listen` dials."""
        self._client.drop()

    def close(self) -> None:
        """Ends the subscription."""
        self.connection.unsubscribe(self._sid)

    def send(self) -> bool:
        """
        What each lane has ready; False when none has, or the bytes on the wire are enough.

        Lanes share a quarter of `bufferMemory`. When all of it is on the wire nothing new goes out.
        Only if none of it would be answered (each batch lacks the row that is), one lane goes on:
        by what is between two acks, or by a batch, more than allowed.
        """
        sent = False
        lanes = self.lanes.all
        in_flight = sum(lane.bytes_in_flight for lane in lanes)
        for lane in lanes:
            before = lane.bytes_in_flight
            maximum = _CHUNK_BYTES
            is_full = in_flight >= self._max_bytes
            if is_full and len(lanes) > 1 and not self.lanes.is_stuck(lane):
                maximum = 0
            frames = lane.ready(self._clock.monotonic(), maximum)
            if frames is not None:
                self.connection.send(frames, self._timeout_s)
                in_flight += lane.bytes_in_flight - before
                sent = True
        return sent

    def read(self) -> Iterator[tuple[bytes, wire.Frame]]:
        """
        Hands all complete frames of the buffer to their lanes; runs of PubAcks without looking at
        each.

        Returns:
            One after the other, the frames that are no lane's: of other subscriptions, with an
            empty name, and those on `<inbox>.<name>`.
        """
        connection, lanes = self.connection, self.lanes.all
        buffer, start = connection.buffer, connection.pos
        end = buffer.rfind(b"}\r\n", start) + 3
        if end > start + 2 and absorb(
            lanes, self._sid, buffer, start, end, self._clock.monotonic()
        ):
            connection.pos = end
        while (frame := connection.next_frame(-math.inf)) is not None:
            if frame.sid != self._sid or not frame.subject.startswith(self._prefix):
                yield b"", frame
                continue
            number, _, token = frame.subject[len(self._prefix) :].partition(b".")
            if not is_ordinal(number):
                yield number, frame
                continue
            status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
            place = int(number)
            for lane in lanes[place : place + 1]:  # none where nobody awaits it
                lane.on_reply(token, status, description, frame.data, self._clock.monotonic())
