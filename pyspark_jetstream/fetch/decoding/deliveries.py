"""
Messages that a consumer delivers: from bytes as they came off the wire to columns.

A header block is what was stored; what was stored without headers comes without a block. The ack
subject has the facts of a delivery (`client.blocks`).

**By the column.** A window of bytes is cut at one time (`cuts`). At a message of which not all is
proven the cut ends, and it is taken by itself.

**In linear time.** A cut looks at all bytes of its window, but may take few of them: because of a
payload made for that, or because the server says something in between. So each byte that is taken
allows for a few bytes that are looked at, and while there are none left messages are taken one by
one.

No I/O. Row order is wire order.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ...arrays import BINARY
from ...client import wire
from ...client.blocks import ACKS, FACTS, DeliveryFacts, ack_of, stored_before
from ...client.wire import CRLF
from ...errors import ProtocolError
from .cuts import cut
from .replies import Columns

MAX_BATCH_ROWS: Final = 10_000
"""A record batch is closed once it holds so many rows."""

_MOST_ROWS: Final = 2 * MAX_BATCH_ROWS
"""
Upper bound of its messages: what came at one time is nearly always cut at one time, and no few
messages of it are left over, which cost as much as many.
"""

MAX_BATCH_BYTES: Final = 4 << 20
"""A record batch is closed once it holds so many bytes; one message may exceed it."""

_WINDOW_BYTES: Final = 2 << 20
"""Bytes that are cut at one time at the most."""

_MIN_MESSAGES: Final = 64
"""Fewer are taken one by one, which is as fast."""

_REST: Final = 4
"""A window is cut to its end where no more messages than these, by their mean size, are left."""

_CREDIT: Final = 2
"""Bytes that may be looked at for each that is taken."""

_NOTHING: Final = DeliveryFacts(0, 0, 0, 0)

_MAX_CREDIT: Final = 4 << 20
_FIRST_CREDIT: Final = _WINDOW_BYTES


class Deliveries:
    """Messages that a consumer delivers, gathered until they become a record batch."""

    def __init__(self, keep_headers: bool) -> None:
        self._keep_headers = keep_headers
        self._rows = 0
        self._bytes = 0
        self._parts: list[Columns] = []
        self._single: list[tuple[wire.Frame, bytes, DeliveryFacts]] = []
        """Taken one by one, behind all parts."""
        self.first = self.last = _NOTHING
        """Facts of the first message's delivery, and of the last one's."""
        self._before = b""
        """
        Common beginning of the ack subjects, through the consumer; b"" where they are not cut.
        """
        self._size = 0
        """Bytes of the latest message."""
        self._halted = False
        """Whether the latest cut ended at a message of which not all was proven."""
        self._credit = _FIRST_CREDIT

    def __len__(self) -> int:
        return self._rows

    @property
    def full(self) -> bool:
        """Whether a record batch should be made of them now."""
        return self._rows >= MAX_BATCH_ROWS or self._bytes >= MAX_BATCH_BYTES

    def reaches(self, end: int) -> bool:
        """Whether the last message is at `end` or beyond, or has none behind it."""
        return self.last.sequence >= end or self.last.pending == 0

    def clear(self) -> None:
        """Forgets the gathered messages."""
        self._parts, self._single = [], []
        self._rows = self._bytes = 0

    def columns(self) -> Columns:
        """All gathered messages; one at least."""
        self._close()
        columns = zip(*self._parts, strict=True)
        return Columns(*(None if c[0] is None else pa.concat_arrays(c) for c in columns))

    def add(self, frame: wire.Frame, stored: bytes) -> None:
        """
        Takes one message that the caller has parsed.

        Args:
            stored: what stands before the server's header line.

        Raises:
            ProtocolError: Its ack subject is none.
        """
        before, _, facts = ack_of(frame.reply)
        is_plain = frame.reply.count(b".") - before.count(b".") == FACTS
        self._before = before if is_plain else b""
        self._single.append((frame, stored, facts))
        self._note(facts, facts, 1, len(frame.data))

    def scan(self, buffer: bytes, pos: int, sid: int) -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete or of another subscription, and when full.
        """
        while not self.full:
            taken = self._scan_many(buffer, pos, sid)
            if not taken:
                taken = self._scan_one(buffer, pos, sid)
                if not taken:
                    break
            pos += taken
            self._credit = min(self._credit + _CREDIT * taken, _MAX_CREDIT)
        return pos

    def _scan_one(self, buffer: bytes, pos: int, sid: int) -> int:
        """Takes one message; how many bytes that is."""
        try:
            frame, where = wire.next_frame(buffer, pos)
        except ProtocolError:
            return 0  # the caller meets it at the same place
        if (
            not isinstance(frame, wire.Frame)
            or frame.sid != sid
            or not frame.reply.startswith(ACKS)
        ):
            return 0
        self.add(frame, stored_before(frame.headers))
        self._size = where - pos
        return where - pos

    def _scan_many(self, buffer: bytes, pos: int, sid: int) -> int:
        """Takes the messages of a window, but for its last one; how many bytes those are."""
        halted, self._halted = self._halted, False
        if not self._before or not self._size or halted:
            return 0
        room = _MOST_ROWS - self._rows
        # Not much more than there is room for: what is cut in vain is cut again.
        most = min(_WINDOW_BYTES, (room + room // 64 + 2) * self._size)
        size = min(most, self._credit, len(buffer) - pos)
        if size < _MIN_MESSAGES * self._size:
            return 0
        words = b" %d %b." % (sid, self._before)
        if buffer.find(words, pos, max(0, buffer.find(CRLF, pos))) < 0:
            return 0  # something else that the server says stands here
        self._credit -= size
        try:
            window = memoryview(buffer)[pos : pos + size]
            found = cut(window, words, room, self._keep_headers)
        except ValueError:  # Arrow's, too: facts that are no numbers, which one by one are an error
            found = None
        if found is None:
            return 0
        self._close()
        self._parts.append(found.messages)
        count = len(found.messages.sequences)
        self._note(found.first, found.last, count, found.size)
        self._size = -(-found.size // count)
        self._halted = size - found.size > _REST * self._size
        return found.size

    def _note(self, first: DeliveryFacts, last: DeliveryFacts, count: int, size: int) -> None:
        self.first = self.first if self._rows else first
        self.last = last
        self._rows += count
        self._bytes += size

    def _close(self) -> None:
        """Makes columns of the messages that were taken one by one."""
        if not self._single:
            return
        frames, stored, facts = zip(*self._single, strict=True)
        self._single = []
        sequences, _, times, _ = zip(*facts, strict=True)
        self._parts.append(
            Columns(
                pa.array([frame.subject for frame in frames], BINARY),
                pa.array(sequences, pa.int64()),
                pa.array(times, pa.int64()),
                pa.array([frame.data for frame in frames], BINARY),
                pa.array(stored, BINARY) if self._keep_headers else None,
            )
        )
