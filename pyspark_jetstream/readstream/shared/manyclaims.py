"""
Claims of a backlog, many at one time: cut by the column where nothing about them is unusual.

A window of deliveries to one pull is cut by `fetch.decoding.cuts`, which ends at the first frame of
which not all is proven. It is taken only where each of them is the first delivery of its message.
Everything else is left to the caller, who takes it one by one.

**In linear time.** A window looks at all of its bytes and may take none. So each byte that is
taken allows for one that is looked at, and while there are too few left no window is cut. Another
pull's deliveries between them, and ones that are not the first, show before anything is cut.

No I/O.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final, NamedTuple

import pyarrow.compute as pc

from ...client.acksubjects import FACTS
from ...fetch.decoding.cuts import cut
from .claims import Claim

WINDOW_BYTES: Final = 256 << 10
"""Cut at one time, and worth a short wait."""

_MIN_BYTES: Final = 16 << 10
"""Fewer are taken one by one, which is as fast."""

_MOST_CREDIT: Final = 4 * WINDOW_BYTES

_LEAST: Final = 3
"""A window is cut where three quarters of it, by the size of its first frame, are one pull's."""


class Many(NamedTuple):
    """Messages that were all delivered to one pull for the first time, one at least."""

    claims: list[Claim]
    delivery: int
    """The number of the last delivery."""
    oldest_ns: int
    """Time when the oldest message was stored."""
    size: int
    """Bytes of all of them."""


class ManyClaims:
    """Cuts windows, as long as that is worth it."""

    def __init__(self) -> None:
        self._credit = _MOST_CREDIT

    def __repr__(self) -> str:
        return f"<ManyClaims {self._credit} bytes>"

    def add_credit(self, size: int) -> None:
        """Counts bytes that were taken, in whatever way."""
        self._credit = min(self._credit + size, _MOST_CREDIT)

    def cut(
        self, buffer: bytes, pos: int, frame: int, sid: int, acks: bytes, room: int
    ) -> Many | None:
        """
        The claims that stand at `pos`, up to `room`; None where they have to be taken one by one.

        Args:
            frame: the size of the first.
            acks: how the consumer's ack subjects begin, through its name.
        """
        size = min(WINDOW_BYTES, len(buffer) - pos, (room + 2) * frame)
        if size < _MIN_BYTES or size > self._credit:
            return None
        self._credit -= size
        words = b" %d %b." % (sid, acks)
        firsts = words + b"1."
        count = buffer.count(firsts, pos, pos + size)
        # The last may be there in part.
        if count * frame * 4 < size * _LEAST or buffer.count(words, pos, pos + size) > count + 1:
            return None
        try:
            found = cut(memoryview(buffer)[pos : pos + size], words, FACTS, b"", room, keep=False)
        except ValueError:  # facts that are no numbers, or too large: an error, one by one
            return None
        if found is None:
            return None
        messages, end = found.messages, pos + found.size
        # Each has the words once on its line. Where somebody stored them in a header, too, it is
        # not known by this which ones stand on the lines.
        count = len(messages.sequences)
        if not count == buffer.count(words, pos, end) == buffer.count(firsts, pos, end):
            return None
        claims = list(map(Claim, messages.sequences.to_pylist(), repeat(1)))
        return Many(claims, found.last.delivery, pc.min(messages.times).as_py(), found.size)
