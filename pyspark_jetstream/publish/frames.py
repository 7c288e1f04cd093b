"""
Messages as publishes: the bytes of each on the wire, and a run of them that a window can cut.

Rule 1: no I/O and no loop over rows; the frames of a batch are one Arrow array.
Rule 2: a frame is final: what is sent again is the same bytes, `Nats-Msg-Id` included.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import CRLF, digits, is_all, join, offsets, scalar, view
from ..outbox.messages import FRAMING_BYTES, Messages

__all__ = ["Publishes", "frame", "numbered", "size_of"]

_PREAMBLE: Final = b"NATS/1.0\r\n"
_BLANK: Final = scalar(" ")


def frame(
    messages: Messages, first: int, reply: pa.Array | pa.Scalar, lines: pa.Array | None = None
) -> Publishes:
    """
    The frames of the messages.

    Args:
        first: ordinal of the first one.
        reply: BINARY, the reply subject of each, empty for none.
        lines: header lines to write instead of the messages' own.
    """
    lines = messages.lines if lines is None else lines
    # The server takes two blanks as one, so an empty reply needs no other form.
    to: list[Any] = [messages.subject, _BLANK, reply, _BLANK]
    plain = None if lines is None else pc.equal(pc.binary_length(lines), 0)
    if lines is None or is_all(plain):
        frames = _pub(to, messages.data)
    else:
        frames = _hpub(to, lines, messages.data)
        if pc.any(plain).as_py():
            frames = pc.if_else(plain, _pub(to, messages.data), frames)
    return Publishes(
        first,
        memoryview(frames.buffers()[2] or b""),
        view(offsets(frames)) if len(messages) else (0,),
        messages.distinct,
        messages.codes,
        view(messages.rows),
    )


def numbered(prefix: str, first: int, count: int, suffix: str = "") -> pa.Array:
    """BINARY: `<prefix><number><suffix>` for `count` numbers from `first` on."""
    numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=first - 1)
    return join(scalar(prefix), digits(numbers), scalar(suffix))


def _pub(to: list[Any], data: pa.Array) -> pa.Array:
    return join(scalar("PUB "), *to, digits(pc.binary_length(data)), CRLF, data, CRLF)


def _hpub(to: list[Any], lines: pa.Array, data: pa.Array) -> pa.Array:
    header_sizes = pc.add(pc.binary_length(lines), FRAMING_BYTES)
    return join(
        scalar("HPUB "),
        *to,
        digits(header_sizes),
        _BLANK,
        digits(pc.add(header_sizes, pc.binary_length(data))),
        scalar(b"\r\n" + _PREAMBLE),
        lines,
        CRLF,
        data,
        CRLF,
    )


class Publishes(NamedTuple):
    """A run of publishes in wire format: the frames of the ordinals from `first` on."""

    first: int
    wire: memoryview
    """The frames back to back."""
    offsets: Sequence[int]
    """Frame i is wire[offsets[i] : offsets[i + 1]]."""
    subjects: Sequence[str]
    """The distinct subjects."""
    codes: Sequence[int]
    """Frame i goes to subjects[codes[i]]."""
    rows: Sequence[int] = ()
    """Frame i is this row of the task's input; empty where that is the ordinal."""

    @property
    def end(self) -> int:
        """The ordinal behind the last one."""
        return self.first + len(self.offsets) - 1

    def slice(self, start: int, end: int) -> memoryview:
        """The frames of these ordinals."""
        offsets, first = self.offsets, self.first
        return self.wire[offsets[start - first] : offsets[end - first]]

    def nbytes(self, start: int, end: int) -> int:
        """The size of these ordinals' frames."""
        return self.offsets[end - self.first] - self.offsets[start - self.first]

    def before(self, end: int) -> Publishes:
        """Those before this ordinal."""
        count = end - self.first
        rows = self.rows[:count] if len(self.rows) else self.rows
        return self._replace(offsets=self.offsets[: count + 1], codes=self.codes[:count], rows=rows)

    def subject(self, ordinal: int) -> str:
        """Where this ordinal goes."""
        return self.subjects[self.codes[ordinal - self.first]]

    def row(self, ordinal: int) -> int:
        """Which row of the task's input this ordinal is."""
        return self.rows[ordinal - self.first] if len(self.rows) else ordinal


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
