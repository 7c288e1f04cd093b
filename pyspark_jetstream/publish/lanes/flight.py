"""
The publishes of one lane in flight: their frames, their ordinals, how many there may be.

Rule 1: no I/O and no clock; the frames of a part of a batch are one Arrow array, without a loop.
Rule 2: a frame is final: what is sent again is the same bytes, `Nats-Msg-Id` included.
Rule 3: what goes, and what goes again, is the lane's to say.

    low ≤ … < next ≤ … < end        below `low` all are done with, from `next` on none was sent

What is to be sent again is done with here: it is in `retries`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import CRLF, digits, is_all, join, offsets, places, scalar, view
from ...outbox.messages import FRAMING_BYTES, Messages

_PREAMBLE: Final = b"NATS/1.0\r\n"
_BLANK: Final = scalar(" ")

ORDINAL_DIGITS: Final = 18
"""Upper bound of the digits of a number in a reply subject."""

_INITIAL: Final = 256
"""Publishes; each task begins with them."""

_CUT: Final = 0.7
"""Factor of the size after a push-back."""


def framed(messages: Messages, first: int, prefix: str) -> Publishes:
    """The messages with PubAcks to `<prefix>.<ordinal>`, the first one's ordinal being `first`."""
    lines = messages.lines
    ordinals = digits(pc.add(places(len(messages)), first))
    to: list[Any] = [messages.subject, _BLANK, scalar(f"{prefix}."), ordinals, _BLANK]
    plain = None if lines is None else pc.equal(pc.binary_length(lines), 0)
    sizes = pc.binary_length(messages.data)
    end = [messages.data, CRLF]
    if lines is None or is_all(plain):
        frames = _pub(to, sizes, end)
    else:
        frames = _hpub(to, lines, sizes, end)
        if pc.any(plain).as_py():
            frames = pc.if_else(plain, _pub(to, sizes, end), frames)
    at = view(offsets(frames)) if len(messages) else (0,)
    return Publishes(first, memoryview(frames.buffers()[2] or b""), at, messages)


def _pub(to: list[Any], sizes: pa.Array, end: list[Any]) -> pa.Array:
    return join(scalar("PUB "), *to, digits(sizes), CRLF, *end)


def _hpub(to: list[Any], lines: pa.Array, sizes: pa.Array, end: list[Any]) -> pa.Array:
    header_sizes = pc.add(pc.binary_length(lines), FRAMING_BYTES)
    return join(
        scalar("HPUB "),
        *to,
        digits(header_sizes),
        _BLANK,
        digits(pc.add(header_sizes, sizes)),
        scalar(b"\r\n" + _PREAMBLE),
        lines,
        CRLF,
        *end,
    )


class Publishes(NamedTuple):
    """A run of publishes in wire format: the frames of the ordinals from `first` on."""

    first: int
    wire: memoryview
    """The frames back to back."""
    offsets: Sequence[int]
    """Frame i is the bytes from offsets[i] to offsets[i + 1]."""
    messages: Messages
    """Frame i is that of the i-th."""

    @property
    def end(self) -> int:
        """The ordinal behind the last one."""
        return self.first + len(self.offsets) - 1

    def slice(self, start: int, end: int) -> memoryview:
        """The frames of these ordinals."""
        offsets = self.offsets
        return self.wire[offsets[start - self.first] : offsets[end - self.first]]

    def nbytes(self, start: int, end: int) -> int:
        """The size of these ordinals' frames."""
        return self.offsets[end - self.first] - self.offsets[start - self.first]

    def before(self, end: int) -> Publishes:
        """Publishes before this ordinal."""
        count = end - self.first
        messages = self.messages.slice(0, count)
        return self._replace(offsets=self.offsets[: count + 1], messages=messages)


def size_of(blocks: Iterable[Publishes], ordinals: Sequence[int]) -> int:
    """The bytes of the frames of these ordinals, which ascend; the blocks follow each other."""
    size = start = 0
    for block in blocks:
        if start == len(ordinals):
            break
        end = bisect.bisect_left(ordinals, block.end, start)
        own, at = ordinals[start:end], block.offsets.__getitem__
        if own and own[-1] - own[0] + 1 == len(own):
            size += block.nbytes(own[0], own[-1] + 1)
        else:
            first = block.first
            size += sum(map(at, [ordinal - first + 1 for ordinal in own]))
            size -= sum(map(at, [ordinal - first for ordinal in own]))
        start = end
    return size


# ── ordinals ─────────────────────────────────────────────────────────────────────────────────


def is_ordinal(word: bytes) -> bool:
    """Whether it is a number of a reply subject; anybody may send on others."""
    return word.isdigit() and len(word) <= ORDINAL_DIGITS


class _Sending(NamedTuple):
    """Ordinals sent for the first time together."""

    first: int
    end: int
    at: float


class Flight:
    """The publishes of one lane, from the offer to the answer of their first sending."""

    def __init__(self) -> None:
        self.low = 0
        """Every ordinal below is done with."""
        self.next = 0
        """The first ordinal never sent."""
        self.end = 0
        """The first ordinal not offered."""
        self.nbytes = 0
        """Bytes of everything sent and not done."""
        self._blocks: deque[Publishes] = deque()
        self._done: set[int] = set()  # above `low`
        self._sendings: deque[_Sending] = deque()  # oldest first; those done with may linger

    @property
    def outstanding(self) -> int:
        """Publishes that were sent and are not done with."""
        return self.next - self.low - len(self._done)

    @property
    def oldest_at(self) -> float | None:
        """Time of the oldest sending without a reply; None if there is none."""
        return self._sendings[0].at if self._sendings else None

    def is_outstanding(self, ordinal: int) -> bool:
        """Whether it was sent and is not done with."""
        return self.low <= ordinal < self.next and ordinal not in self._done

    def block(self, ordinal: int) -> Publishes:
        """The block that has this ordinal."""
        return next(block for block in self._blocks if ordinal < block.end)

    def first_sent(self, ordinal: int) -> float:
        """Time at which this ordinal, which was sent once, was sent."""
        return next(run.at for run in self._sendings if ordinal < run.end)

    # ── offers ───────────────────────────────────────────────────────────────────────────────

    def append(self, block: Publishes) -> None:
        """Takes the publishes that follow those offered before."""
        if block.end > block.first:
            self._blocks.append(block)
            self.end = block.end

    @property
    def unsent(self) -> list[Messages]:
        """The messages that were never sent, the last ones offered."""
        blocks = (block for block in self._blocks if block.end > self.next)
        return [block.messages.slice(max(0, self.next - block.first)) for block in blocks]

    def drop_unsent(self) -> None:
        """Forgets the publishes that were never sent."""
        while self._blocks and self._blocks[-1].end > self.next:
            block = self._blocks.pop()
            if block.first < self.next:
                self._blocks.append(block.before(self.next))
        self.end = self.next

    # ── sendings ─────────────────────────────────────────────────────────────────────────────

    def note_sent(self, end: int, nbytes: int, now: float) -> None:
        """Notes that the ordinals before this one go out for the first time."""
        self._sendings.append(_Sending(self.next, end, now))
        self.next = end
        self.nbytes += nbytes

    def drop_sendings(self, now: float, after_s: float) -> list[tuple[int, float]]:
        """
        Forgets sendings of so long ago, or longer; those of their publishes that are not done with,
        and when they were sent.
        """
        found: list[tuple[int, float]] = []
        while self._sendings and self._sendings[0].at + after_s <= now:
            run = self._sendings.popleft()
            ordinals = range(max(run.first, self.low), run.end)
            found += [(ordinal, run.at) for ordinal in ordinals if ordinal not in self._done]
        return found

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def follows(self, ordinals: list[int]) -> bool:
        """Whether these are the lowest that are out, in order, and none behind them is done."""
        end = self.low + len(ordinals)
        return not self._done and end <= self.next and ordinals == list(range(self.low, end))

    def advance(self, count: int) -> None:
        """Finishes the lowest ordinals that are out: the fast path."""
        end = self.low + count
        while self.low < end:
            block = self._blocks[0]
            upto = min(end, block.end)
            self.nbytes -= block.nbytes(self.low, upto)
            self.low = upto
            self._retire()

    def undone(self, ordinals: Iterable[int]) -> list[int]:
        """Ordinals of these, in any order, that were sent and are not done with; ascending."""
        places = sorted(set(ordinals).difference(self._done))
        if places and not self.low <= places[0] <= places[-1] < self.next:
            places = [ordinal for ordinal in places if self.is_outstanding(ordinal)]
        return places

    def finish(self, places: Sequence[int]) -> None:
        """
        Finishes ordinals that ascend and are not done with: any of them, as acks of several streams
        come in any order.
        """
        self.nbytes -= size_of(self._blocks, places)
        self._done.update(places)
        low = self.low
        self.low = next(itertools.filterfalse(self._done.__contains__, itertools.count(low)))
        self._done.difference_update(range(low, self.low))
        self._retire()

    def _retire(self) -> None:
        while self._blocks and self._blocks[0].end <= self.low:
            self._blocks.popleft()
        while self._sendings and self._sendings[0].end <= self.low:
            self._sendings.popleft()


# ── the window ───────────────────────────────────────────────────────────────────────────────


class Window:
    """
    How many publishes may be in flight: it grows until the server pushes back.

    Nothing but PubAcks and push-backs decides; who sends what is not known.

        PubAcks, before the first cut    by as many: the size doubles in a round trip
        PubAcks, after it                by one in a round trip
        push-back                        to 0.7 of it, if a PubAck came since the last cut

    Where half of the window is unused it stays: there is no evidence. So it does where PubAcks come
    late: what came next were silence. An outage says nothing about capacity: its push-backs have no
    PubAck between them, and cut once. What fails for another cause than load (no responders, a
    broken connection, 10158) is not handed in at all.

    Args:
        maximum: it never becomes larger.
        minimum: it never becomes smaller, but for the maximum.
    """

    def __init__(self, maximum: int, minimum: int = 1) -> None:
        self._minimum = min(minimum, maximum)
        self._maximum = maximum
        self._size = float(min(max(_INITIAL, self._minimum), maximum))
        self._doubles_to = math.inf
        """Size from which on it grows by one in a round trip: that of the last cut."""
        self._acked = False
        """Whether a PubAck came since the last cut."""

    def __repr__(self) -> str:
        return f"<Window {self.value} of {self._maximum}>"

    @property
    def value(self) -> int:
        """The size now, in publishes."""
        return int(self._size)

    def acked(self, count: int, in_flight: int, is_slow: bool = False) -> None:
        """
        PubAcks came.

        Args:
            in_flight: publishes on the wire before them.
            is_slow: whether they came so late that nothing is to be gained.
        """
        self._acked = True
        if is_slow or in_flight < self._size / 2:
            return
        step = count if self._size < self._doubles_to else count / self._size
        self._size = min(self._size + step, self._maximum)

    def pushed_back(self) -> bool:
        """
        The server refused a publish for its load or a limit, or did not answer in time.

        Returns:
            Whether the size was cut.
        """
        if not self._acked:
            return False
        self._size = max(self._minimum, self._size * _CUT)
        self._doubles_to = self._size
        self._acked = False
        return True
