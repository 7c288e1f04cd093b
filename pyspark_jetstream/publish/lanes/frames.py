"""
Messages as publishes: the bytes of each on the wire, and a run of them that a lane can cut.

Rule 1: no I/O and no loop over rows; the frames of a part of a batch are one Arrow array.
Rule 2: a frame is final: what is sent again is the same bytes, `Nats-Msg-Id` included.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import CRLF, digits, is_all, join, offsets, places, scalar, view
from ...outbox.messages import FRAMING_BYTES, Messages

_PREAMBLE: Final = b"NATS/1.0\r\n"
_BLANK: Final = scalar(" ")


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
