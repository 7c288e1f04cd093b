"""
Replies of batched direct gets, cut into columns.

A request's messages come as frames of one shape (ADR-31, "Response Format"): the line
`HMSG <inbox> <sid> <header bytes> <all bytes>`, what a message was stored with for headers, six
lines that the server appends (`blocks`), an empty line, the payload. A caller gathers frames as
they come; Arrow then cuts all of them at once, in a few passes and without a turn of a loop for
each.

The pieces are trusted only if the sizes on the frames' lines prove every cut. If they do not, there
is something else between the messages, and the caller has to look at one frame after another.

No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import (
    INT32,
    REST,
    between,
    every,
    int32,
    integers,
    is_all,
    is_digits,
    offsets,
    scalar,
    take,
    woven,
)
from ...client.blocks import DIRECT_NAMES as _NAMES
from ...client.info import Found
from ...client.wire import CRLF, number_of
from ...errors import ProtocolError

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_WIDTH: Final = len(_NAMES)
"""Pieces of a message's header block."""

_MIN_HEADER: Final = sum(map(len, _NAMES)) + (len(_NAMES) + 1) * len(CRLF)
"""Bytes of the server's lines without their values: no header block is smaller."""

_DIGITS: Final = 9
"""Digits of a size; what has more may not fit INT32."""

_FIRST_LINE: Final = 24
"""Longer than the two sizes on a frame's line and what ends it."""


class Columns(NamedTuple):
    """Messages in the order they came, by the column."""

    subjects: pa.Array
    """BINARY, as are payloads and what was stored."""
    sequences: pa.Array
    """INT64: the sequences in the stream."""
    times: pa.Array
    """INT64: nanoseconds since 1970; BINARY: RFC 3339, as a direct get brings them."""
    payloads: pa.Array
    stored: pa.Array | None
    """Lines before the server's header lines (`blocks`); None where nobody wants them."""

    @classmethod
    def of(cls, found: Sequence[Found]) -> Columns:
        """Messages that came one by one."""
        return cls(
            subjects=pa.array([message.subject for message in found], pa.binary()),
            sequences=pa.array([message.sequence for message in found], pa.int64()),
            times=pa.array([message.time for message in found], pa.binary()),
            payloads=pa.array([message.data for message in found], pa.binary()),
            stored=pa.array([message.stored for message in found], pa.binary()),
        )


class Replies:
    """Whole messages as they were cut, and what their headers say of each and of the stream."""

    def __init__(self, pieces: pa.Array, payloads: pa.Array, stream: str) -> None:
        """
        Args:
            pieces: the server's lines of each message. The first holds what was stored, too, which
                need not end in a CRLF.

        Raises:
            ValueError: There are other lines than those that servers add for this stream.
        """
        self._pieces = pieces
        self._payloads = payloads
        # A stored line of the same beginning cannot end in ours: a stream's name holds no blank.
        self._stream_line = _NAMES[0] + stream.encode()
        self._first = take(pieces, every(_WIDTH, len(payloads)))
        if not is_all(pc.ends_with(self._first, self._stream_line)):
            raise ValueError("a message of another stream")
        self._subjects = self._values(1)
        sequences = self._values(2)
        if not is_digits(sequences):
            raise ValueError("a sequence that is none")
        self._sequences = integers(sequences)
        self._times = self._values(3)

    def __len__(self) -> int:
        return len(self._payloads)

    def columns(self, with_headers: bool) -> Columns:
        """All messages, as the columns that rows are built of."""
        return Columns(
            self._subjects,
            self._sequences,
            self._times,
            self._payloads,
            self._stored() if with_headers else None,
        )

    def sequence(self, row: int) -> int:
        """Its place in the stream."""
        return int(self._sequences[row].as_py())

    def pending(self, row: int) -> int:
        """Number of messages that its request can bring behind this one."""
        return self._number(row, 4)

    def previous(self, row: int) -> int:
        """The sequence of the message before it in its request; 0 of the first."""
        return self._number(row, 5)

    def ascending(self) -> bool:
        """Whether each sequence is above the one before."""
        return is_all(pc.greater(self._sequences[1:], self._sequences[:-1]))

    def _stored(self) -> pa.Array:
        return pc.binary_slice(self._first, 0, -len(self._stream_line))

    def _values(self, header: int) -> pa.Array:
        name = _NAMES[header]
        lines = take(self._pieces, every(_WIDTH, len(self), header))
        if not is_all(pc.starts_with(lines, name)):
            raise ValueError(f"no {name!r} where it should be")
        return pc.binary_slice(lines, len(name), REST)

    def _number(self, row: int, header: int) -> int:
        """
        Raises:
            ProtocolError: There is none where it should be.
        """
        line: bytes = self._pieces[row * _WIDTH + header].as_py()
        if not line.startswith(_NAMES[header]):
            raise ProtocolError(f"no {_NAMES[header]!r} but {line[:64]!r}")
        return number_of(line[len(_NAMES[header]) :].decode("latin-1"))


def cut(frames: Buffer, prefix: bytes, stream: str) -> Replies | None:
    """
    The messages of `frames`, or None if there is anything but whole messages of `stream` in it.

    They are copies: the bytes of `frames` may change afterwards.

    Args:
        prefix: what the frames' lines begin with, `HMSG <inbox> <sid> `. The inbox should be one
            that nobody else can know, or a payload could imitate it, and the cut would fail.
    """
    try:
        return _cut(frames, prefix, stream)
    except ValueError:  # also Arrow's, of a number that is none
        return None


def _cut(frames: Buffer, prefix: bytes, stream: str) -> Replies | None:
    """Cuts where frames begin, then by their sizes."""
    rests = pc.split_pattern(whole(frames), prefix).values
    count = len(rests) - 1
    if count < 1 or len(rests[0].as_py()):
        return None
    rests = rests[1:]
    lines = pc.split_pattern(pc.binary_slice(rests, 0, _FIRST_LINE), CRLF, max_splits=1).values
    if len(lines) != 2 * count:
        return None
    words = take(lines, every(2, count))
    header, total = sizes(words)
    if not is_all(pc.greater_equal(header, int32(_MIN_HEADER))) or not is_all(
        pc.greater_equal(total, header)
    ):
        return None  # no server sends these
    # Each is the rest of the frame's line, a CRLF, header block and payload, and a CRLF. Nothing is
    # cut by sizes that do not add up to exactly that.
    there = pc.subtract(
        pc.subtract(pc.binary_length(rests), pc.binary_length(words)), int32(2 * len(CRLF))
    )
    if not is_all(pc.equal(total, there)) or not is_all(pc.ends_with(rests, CRLF)):
        return None
    begins = pc.add(offsets(rests)[:-1], pc.add(pc.binary_length(words), int32(len(CRLF))))
    ends = pc.add(begins, total)
    # Of each frame the header block without the empty line at its end, that, and the payload.
    crlfs = int32(2 * len(CRLF))
    bodies = pc.add(begins, header)
    borders = woven([begins, pc.subtract(bodies, crlfs), bodies, ends])
    parts = between(borders, rests.buffers()[2])
    if not is_all(pc.equal(take(parts, every(4, count, 1)), scalar(2 * CRLF))):
        return None
    blocks, payloads = (take(parts, every(4, count, at)) for at in (0, 2))
    pieces = pc.split_pattern(blocks, CRLF, max_splits=_WIDTH - 1, reverse=True)
    if not is_all(pc.equal(pc.list_value_length(pieces), int32(_WIDTH))):
        return None
    return Replies(pieces.values, payloads, stream)


def sizes(words: pa.Array) -> tuple[pa.Array, pa.Array]:
    """
    `57 150`, the sizes on a frame's line, as two numbers; of `93` 0 and that; of what are none 1
    and 0.
    """
    encoded = words.dictionary_encode()  # few distinct ones recur
    header, total = zip(*map(size_pair, encoded.dictionary.to_pylist()), strict=True)
    codes = encoded.indices
    return take(pa.array(header, INT32), codes), take(pa.array(total, INT32), codes)


@lru_cache(maxsize=4096)
def size_pair(word: bytes) -> tuple[int, int]:
    """`sizes` of one."""
    header, blank, total = word.partition(b" ")
    if not blank:
        header, total = b"0", header
    sound = all(size.isdigit() and len(size) <= _DIGITS for size in (header, total))
    # Two sizes of which one is 0 are not to be taken for one.
    return (int(header), int(total)) if sound and bool(int(header)) == bool(blank) else (1, 0)


def whole(text: Buffer) -> pa.Array:
    """One binary value that is these very bytes."""
    view = pa.py_buffer(text)
    return between(pa.array([0, view.size], INT32), view)
