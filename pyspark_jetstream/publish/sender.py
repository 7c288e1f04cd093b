"""
The lanes' publishes on the task's connection, and the replies to them handed to their lanes.

Rule 1: the one place that sends frames of lanes and reads what the server answers; lanes say what
goes, and when again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import ne
from typing import Final, NamedTuple

from ..client import wire
from ..client.connection import Client
from ..client.patience import Clock
from .lanes.answers import classify
from .lanes.flight import ORDINAL_DIGITS, is_ordinal
from .lanes.lane import Lane
from .laneset import LaneSet
from .settings import SinkOptions

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
        self, client: Client, inbox: str, lanes: LaneSet, options: SinkOptions, clock: Clock
    ) -> None:
        self.connection = client.connection
        """The one that is subscribed to replies; another after each reconnect."""
        self.lanes = lanes
        self._client = client
        self.inbox = inbox
        """Beginning of the subjects of replies."""
        self._prefix = f"{inbox}.".encode()
        self._sid = -1
        self._clock = clock
        self._max_bytes = options.window.max_in_flight_bytes
        self._timeout_s = min(SEND_TIMEOUT_S, options.window.publish_timeout_s)

    def listen(self) -> None:
        """
        Subscribes to replies, on a new connection if the last one was dropped.

        Raises:
            NotConnectedError: There is none.
        """
        self.connection = self._client.connection
        self._sid = self.connection.subscribe(f"{self.inbox}.>")

    def drop(self) -> None:
        """Closes the connection; the next `listen` dials."""
        self._client.drop()

    def close(self) -> None:
        """Ends the subscription."""
        self.connection.unsubscribe(self._sid)

    def send(self, held: bool = False) -> bool:
        """
        Sends frames of each lane; False when none has any, or the bytes on the wire are enough.

        Lanes share a quarter of `bufferMemory`. When all of it is on the wire nothing new goes out.

        Args:
            held: whether the lane of rows sends nothing.
        """
        sent = False
        lanes = self.lanes.all
        by_lane = [lane.bytes_in_flight for lane in lanes]
        in_flight = sum(by_lane)
        for lane, before in zip(lanes, by_lane, strict=True):
            if held and lane is self.lanes.rows:
                continue
            maximum = _CHUNK_BYTES if in_flight < self._max_bytes else 0
            frames = lane.frames_to_send(self._clock.monotonic(), maximum)
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
        # To find out that a buffer has nothing for a lane takes more than to read what it has.
        awaiting = [lane for lane in lanes if lane.unanswered]
        if end > start + 2 and absorb(
            awaiting, self._sid, buffer, start, end, self._clock.monotonic()
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


# ── runs of PubAcks ──────────────────────────────────────────────────────────────────────────


_NUMBER: Final = re.compile(rb"[0-9]{1,19}")


@lru_cache(maxsize=16)
def puback_pattern(inbox: str, sid: int, duplicate: bool = False) -> re.Pattern[bytes]:
    """
    Matches the frame of a plain PubAck on `<inbox>.<ordinal>`; captures the ordinal, the size on
    the frame's line, the payload, which may have another, and in it the stream's name.

    Plain is what the server writes when it has stored a message: a stream name, perhaps a domain,
    a sequence, perhaps a counter's sum; with `duplicate`, also that mark. Everything else is for
    `classify`.
    """
    name = rb"[ !#-\[\]-~]*+"
    mark = rb',"duplicate": ?true' if duplicate else rb'(?:,"val":"-?[0-9]++")?'
    return re.compile(
        rb"(?<![^\n])MSG %b\.(\d{1,%d}) %d (\d{1,9})\r\n"
        % (re.escape(inbox.encode()), ORDINAL_DIGITS, sid)
        + rb'(\{"stream":"(%b)",(?: ?"domain":"%b",)? ?"seq":[1-9]\d{0,17}+%b\})\r\n'
        % (name, name, mark)
    )


@lru_cache(maxsize=256)
def _alike_pattern(
    inbox: str, sid: int, size: bytes, before: bytes, digits: int, after: bytes
) -> re.Pattern[bytes]:
    """
    Matches the frame of a PubAck on `<inbox>.<ordinal>` whose payload has this size, and so many
    digits of a sequence between these bytes; captures the ordinal.
    """
    parts = (re.escape(inbox.encode()), ORDINAL_DIGITS, sid, size, re.escape(before), digits - 1)
    return re.compile(
        rb"MSG %b\.(\d{1,%d}) %d %b\r\n%b[1-9]\d{%d}%b\r\n" % (*parts, re.escape(after))
    )


class _Alike(NamedTuple):
    """PubAcks that have all but their numbers in common."""

    head: bytes
    """First bytes of their payloads, through the field name of the sequence."""
    parts: tuple[str, int, bytes, bytes, int, bytes]
    """Parts of which `_alike_pattern` makes the pattern of their frames."""
    size: int
    """Bytes of a frame without the ordinal."""
    stream: str
    duplicate: bool

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """Their frames; captures the ordinal. Compiled when first asked for, which takes long."""
        return _alike_pattern(*self.parts)

    def last(self, buffer: bytes, start: int, end: int) -> int:
        """The sequence of the last of them in `buffer[start:end]`."""
        found = _NUMBER.match(buffer, buffer.rfind(self.head, start, end) + len(self.head))
        return int(found[0]) if found is not None else 0


def absorb(
    lanes: Sequence[Lane], sid: int, buffer: bytes, start: int, end: int, now: float
) -> bool:
    """
    Takes the frames of `buffer[start:end]` at one go, if all are plain PubAcks; that is the usual
    case, and so is that they are those of one lane, and alike but for their numbers. That there is
    nothing else shows in the bytes that these take, or in the number of lines: two a PubAck. Those
    of several streams are not alike, which is told by counting before any is taken apart.

    Returns:
        Whether all of it was taken; if not, nothing was.
    """
    lines = buffer.count(b"\n", start, end)
    alike = _alike(lanes[0], sid, buffer, start, end) if len(lanes) == 1 else None
    if alike is not None and 2 * buffer.count(alike.head, start, end) == lines:
        found = alike.pattern.findall(buffer, start, end)
        if alike.size * len(found) + sum(map(len, found)) == end - start:
            if not alike.duplicate:
                lanes[0].tally.stored_in[alike.stream] = alike.last(buffer, start, end)
            lanes[0].on_pubacks(list(map(int, found)), now, alike.duplicate)
            return True
    for duplicate in (False, True):
        by_lane = [_plain(lane, sid, buffer, start, end, duplicate) for lane in lanes]
        if 2 * sum(map(len, by_lane)) == lines:
            for lane, ordinals in zip(lanes, by_lane, strict=True):
                if ordinals:
                    lane.on_pubacks(ordinals, now, duplicate)
            return True
    return False


def _plain(
    lane: Lane, sid: int, buffer: bytes, start: int, end: int, duplicate: bool = False
) -> list[int]:
    """
    The ordinals of this lane's plain PubAcks among the frames of `buffer[start:end]`.

    Plain is what the server writes when it has stored a message, or, with `duplicate`, had it.
    Notes the last of each stream (`stored_in`).
    """
    found = puback_pattern(lane.prefix, sid, duplicate).findall(buffer, start, end)
    ordinals, sizes, payloads, names = zip(*found, strict=True) if found else ((),) * 4
    if any(map(ne, map(int, sizes), map(len, payloads))):
        return []  # sizes that are not those of the bytes: for whoever looks at each frame
    if not duplicate:
        for name, payload in dict(zip(names, payloads, strict=True)).items():
            lane.tally.stored_in[name.decode()] = classify(0, "", payload).sequence
    return list(map(int, ordinals))


def _alike(lane: Lane, sid: int, buffer: bytes, start: int, end: int) -> _Alike | None:
    """The pattern of PubAcks that differ from this lane's first plain one in numbers alone."""
    for duplicate in (False, True):
        first = puback_pattern(lane.prefix, sid, duplicate).search(buffer, start, end)
        if first is not None and int(first[2]) == len(first[3]):
            before, key, rest = first[3].rpartition(b'"seq":')
            after = rest.lstrip(b"0123456789")
            head, digits = before + key, len(rest) - len(after)
            parts = lane.prefix, sid, first[2], head, digits, after
            size = len(first[0]) - len(first[1])
            return _Alike(head, parts, size, first[4].decode(), duplicate)
    return None
