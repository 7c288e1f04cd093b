"""
Messages that a consumer delivers: from bytes as they came off the wire to columns.

All of them have one shape: the line `HMSG <subject> <sid> <ack subject> <sizes>`, a header block,
the payload. The header block of a pinned consumer's ends with its pin. Any other consumer's
is what was stored, and what was stored without headers comes as `MSG` with one size and without a
block. The ack subject has the facts of a delivery (`client.acksubjects`).

**By the column.** `_cut` splits a window of bytes at what every such line has in its middle, and
takes all the rest by Arrow's kernels, in some twenty passes and without a turn of a loop for each
message. A payload may hold the same words, so nothing is believed for them. The window begins where
a message does. Where the sizes of a message say that it ends there must be a verb that suits the
sizes of the next, a subject and the words again, with nothing between: then that one begins there,
and so on from the first. At the first message of which that is not true the cut ends; a caller
takes that one by itself.

**In linear time.** A cut looks at all bytes of its window, but may take few of them: because of a
payload made for that, or because the server says something in between. So each byte that is taken
allows for a few bytes that are looked at, and while there are none left messages are taken one by
one.

No I/O. Row order is wire order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import (
    BINARY,
    INT32,
    between,
    bounds,
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
from ...client import wire
from ...client.acksubjects import ACKS, FACTS, Facts, ack_of
from ...client.blocks import stored_before
from ...client.wire import CRLF
from ...errors import ProtocolError

__all__ = ["MAX_BATCH_BYTES", "MAX_BATCH_ROWS", "Deliveries", "Delivered"]

MAX_BATCH_ROWS: Final = 10_000
"""Rows of one record batch at the most."""

MAX_BATCH_BYTES: Final = 4 << 20
"""A record batch is closed once it holds so many bytes; one message may exceed it."""

_WINDOW_BYTES: Final = 1 << 20
_MIN_WINDOW_BYTES: Final = 16 << 10
"""Bytes that are cut at one time: fewer after cuts that took little."""

_MIN_MESSAGES: Final = 64
"""Fewer are taken one by one, which is as fast."""

_CREDIT: Final = 2
"""Bytes that may be looked at for each that is taken."""

_MAX_CREDIT: Final = 4 << 20
_FIRST_CREDIT: Final = 256 << 10

_VERBS: Final = (b"HMSG", b"MSG")
"""How a message begins that has a header block, and one that has none."""

_NEXT: Final = tuple(CRLF + verb + b" " for verb in _VERBS)
"""Between a payload and the next subject."""

_NO_SUBJECT: Final = (b" ", b"\t", CRLF)
"""What ends a subject on a line, or the line."""

_LINE: Final = 160
"""Bytes that hold the rest of a line behind its first words: five numbers, a token, two sizes."""

_DIGITS: Final = 9
"""Digits of a size; what has more may not fit INT32."""

_PLAIN: Final = wire.HEADER_PREAMBLE + CRLF
"""What was stored of a message without headers, as `blocks` has it."""


class Delivered(NamedTuple):
    """Messages by the column, in the order they were delivered."""

    subjects: pa.Array
    """BINARY, as are payloads and what was stored."""
    payloads: pa.Array
    sequences: pa.Array
    """INT64: the sequences in the stream."""
    times: pa.Array
    """INT64: nanoseconds since 1970."""
    stored: pa.Array | None
    """What stands before the server's header line (`blocks`); None where nobody wants headers."""


class Deliveries:
    """Messages that a consumer delivers, gathered until they become a record batch."""

    def __init__(self, keep_headers: bool) -> None:
        self._keep_headers = keep_headers
        self._rows = 0
        self._bytes = 0
        self._parts: list[Delivered] = []
        self._single: list[tuple[wire.Frame, bytes, Facts]] = []
        """Taken one by one, behind all parts."""
        self._first: Facts | None = None
        self._last: Facts | None = None
        self._shape: tuple[bytes, int] | None = None
        """How the ack subjects begin, through the consumer, and how many tokens follow."""
        self._size = 0
        """Bytes of the latest message."""
        self._credit = _FIRST_CREDIT
        self._window = _WINDOW_BYTES

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return f"<Deliveries {len(self)} messages, {self._bytes} bytes>"

    @property
    def full(self) -> bool:
        """Whether a record batch should be made of them now."""
        return self._rows >= MAX_BATCH_ROWS or self._bytes >= MAX_BATCH_BYTES

    @property
    def first(self) -> Facts:
        """What the ack subject of the first message tells."""
        assert self._first is not None
        return self._first

    @property
    def last(self) -> Facts:
        """What the ack subject of the last message tells."""
        assert self._last is not None
        return self._last

    def reaches(self, end: int) -> bool:
        """Whether the last message is at `end` or beyond, or has none behind it."""
        return self.last.sequence >= end or self.last.pending == 0

    def clear(self) -> None:
        """Forgets the gathered messages."""
        self._parts, self._single, self._first, self._last = [], [], None, None
        self._rows = self._bytes = 0

    def columns(self) -> Delivered:
        """All gathered messages; one at least."""
        self._close()
        columns = zip(*self._parts, strict=True)
        return Delivered(*(None if c[0] is None else pa.concat_arrays(c) for c in columns))

    def add(self, frame: wire.Frame, stored: bytes) -> None:
        """
        Takes one message that the caller has parsed.

        Args:
            stored: what stands before the server's header line.

        Raises:
            ProtocolError: Its ack subject is none.
        """
        before, _, facts = ack_of(frame.reply)
        self._shape = before, frame.reply.count(b".") - before.count(b".")
        self._single.append((frame, stored, facts))
        self._note(facts, facts, 1, len(frame.data))

    def scan(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete, of another subscription, or whose header block
        does not end in `pin_tail` (`Nats-Pin-Id: <ours>` and the empty line), and when full. The
        server appends its header, so the end of the block is the server's word whatever the
        message was stored with (`blocks`). Of a consumer that is not pinned `pin_tail` is b"".
        """
        while not self.full:
            taken = self._scan_many(buffer, pos, sid, pin_tail)
            if not taken:
                taken = self._scan_one(buffer, pos, sid, pin_tail)
                if not taken:
                    break
            pos += taken
            self._credit = min(self._credit + _CREDIT * taken, _MAX_CREDIT)
        return pos

    def _scan_one(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """Takes one message; how many bytes that is."""
        try:
            frame, where = wire.next_frame(buffer, pos)
        except ProtocolError:
            return 0  # the caller meets it at the same place
        if (
            not isinstance(frame, wire.Frame)
            or frame.sid != sid
            or not frame.headers.endswith(pin_tail)
            or not frame.reply.startswith(ACKS)
        ):
            return 0
        headers = frame.headers
        self.add(frame, headers[: -len(pin_tail)] if pin_tail else stored_before(headers))
        self._size = where - pos
        return where - pos

    def _scan_many(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """Takes the messages of a window, but for its last one; how many bytes those are."""
        if self._shape is None or not self._size:
            return 0
        room = MAX_BATCH_ROWS - self._rows
        # Not much more than there is room for: what is cut in vain is cut again.
        size = min(self._window, len(buffer) - pos, (room + room // 64 + 2) * self._size)
        if size < _MIN_MESSAGES * self._size or size > self._credit:
            return 0
        self._credit -= size
        before, tokens = self._shape
        words = b" %d %b." % (sid, before)
        try:
            cut = _cut(buffer[pos : pos + size], words, tokens, pin_tail, room)
        except ValueError:  # Arrow's, too: facts that are no numbers, which one by one are an error
            cut = None
        taken = 0 if cut is None else cut[3]
        self._window = (
            max(_MIN_WINDOW_BYTES, 2 * _MIN_MESSAGES * self._size, self._window // 2)
            if 4 * taken < size
            else min(_WINDOW_BYTES, self._window * 2)
        )
        if cut is None:
            return 0
        messages, first, last, _ = cut
        self._close()
        self._parts.append(messages if self._keep_headers else messages._replace(stored=None))
        count = len(messages.sequences)
        self._note(first, last, count, taken)
        self._size = -(-taken // count)
        return taken

    def _note(self, first: Facts, last: Facts, count: int, size: int) -> None:
        self._first = self._first or first
        self._last = last
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
            Delivered(
                pa.array([frame.subject for frame in frames], BINARY),
                pa.array([frame.data for frame in frames], BINARY),
                pa.array(sequences, pa.int64()),
                pa.array(times, pa.int64()),
                pa.array(stored, BINARY) if self._keep_headers else None,
            )
        )


def _cut(
    window: bytes, words: bytes, tokens: int, pin_tail: bytes, room: int
) -> tuple[Delivered, Facts, Facts, int] | None:
    """
    The messages that the window begins with, what the first and the last of them say, and their
    bytes. The last in the window may not be among them, as it ends where the next one begins.

    Args:
        words: what stands on every line between the subject and the facts.
        tokens: of the ack subject that follow `words`.
        room: how many messages at the most.
    """
    pieces = pc.split_pattern(_value(window), words).values
    count = min(len(pieces) - 1, room)
    verb, _, subject = pieces[0].as_py().partition(b" ")
    if count < 1 or verb not in _VERBS or not subject or any(w in subject for w in _NO_SUBJECT):
        return None
    # Each is the rest of the line, header block, payload, and the beginning of the next line.
    starts = pc.binary_slice(pieces.slice(1, count), 0, _LINE)
    lines, count = _firsts(pc.split_pattern(starts, CRLF, max_splits=1), 2)
    lines = take(lines, every(2, count))
    if b"\t" in lines.buffers()[2].to_pybytes():  # a blank, too, which no server sends
        return None
    halves, count = _firsts(pc.split_pattern(lines, b" ", max_splits=1), 2)
    if not count:
        return None
    header, total = _sizes(take(halves, every(2, count, 1)))
    lines = lines[:count]
    begins = offsets(pieces)
    length = pc.subtract(begins[2 : count + 2], begins[1 : count + 1])
    used = pc.add(pc.binary_length(lines), int32(len(CRLF)))
    # No sum of these overflows: a size is at most what there is.
    possible = pc.and_(
        pc.less_equal(header, total),
        pc.less_equal(total, pc.subtract(length, pc.add(used, int32(len(_NEXT[0]))))),
    )
    count = _leading(possible)
    if not count:
        return None
    block = pc.add(begins[1 : count + 1], used[:count])
    payload = pc.add(block, header[:count])
    end = pc.add(block, total[:count])
    last = begins[2 : count + 2]
    text = pieces.buffers()[2]
    blocks = _texts(text, block, payload)
    following, proven = _after(text, end, header[:count], verb)
    subjects = _texts(text, following, last)
    if pin_tail:
        proven = pc.and_(proven, pc.ends_with(blocks, pin_tail))
    names = subjects.buffers()[2].to_pybytes()
    for each in _NO_SUBJECT:
        if each in names:
            # Not a subject alone: another line stands there, and our words in its payload.
            proven = pc.and_(proven, pc.less(pc.find_substring(subjects, each), int32(0)))
    proven = pc.and_(proven, pc.less(following, last))
    count = _leading(proven)
    facts, count = _firsts(pc.split_pattern(take(halves, every(2, count)), b"."), tokens)
    if not count or not _are_facts(facts, count, tokens):
        return None
    sequences = integers(take(facts, every(tokens, count, 1)))
    times = integers(take(facts, every(tokens, count, 3)))
    messages = Delivered(
        pa.concat_arrays([pa.array([subject], BINARY), subjects[: count - 1]]),
        _texts(text, payload[:count], end[:count]),
        sequences,
        times,
        _stored(blocks[:count], pin_tail),
    )
    first, latest = (
        Facts(*(int(facts[row * tokens + word].as_py()) for word in range(1, 5)))
        for row in (0, count - 1)
    )
    # The bytes before a place of the pieces, and the words that were cut out on the way there.
    taken = end[count - 1].as_py() + len(CRLF) + count * len(words)
    return messages, first, latest, taken


def _after(
    text: pa.Buffer, end: pa.Array, header: pa.Array, first: bytes
) -> tuple[pa.Array, pa.Array]:
    """
    Where the next subject begins behind the end of each message, and whether what stands between
    is a verb, and the verb before the message (of the first one `first`) suits its sizes.
    """
    long, short = (
        pc.equal(_texts(text, end, pc.add(end, int32(len(each)))), scalar(each)) for each in _NEXT
    )
    sizes = (int32(len(each)) for each in _NEXT)
    has_block = pa.concat_arrays([pa.array([first == _VERBS[0]]), long[:-1]])
    suits = pc.equal(pc.greater(header, int32(0)), has_block)
    return pc.add(end, pc.if_else(long, *sizes)), pc.and_(pc.or_(long, short), suits)


def _are_facts(words: pa.Array, count: int, tokens: int) -> bool:
    """Whether the first words of each of the ack subjects are numbers, as one by one they must."""
    if tokens > FACTS:  # a token that is none stands behind them
        words = take(words, woven([every(tokens, count, word) for word in range(FACTS)]))
    return is_digits(words)


def _stored(blocks: pa.Array, pin_tail: bytes) -> pa.Array:
    """What stands before the pin, or without one where a server's lines would (`blocks`)."""
    if is_all(pc.equal(blocks, scalar(_PLAIN + pin_tail if pin_tail else b""))):
        return pa.repeat(scalar(_PLAIN), len(blocks))
    if pin_tail:
        return pc.binary_slice(blocks, 0, -len(pin_tail))
    is_long = pc.greater(pc.binary_length(blocks), int32(len(CRLF)))
    return pc.if_else(is_long, pc.binary_slice(blocks, 0, -len(CRLF)), scalar(_PLAIN))


def _sizes(words: pa.Array) -> tuple[pa.Array, pa.Array]:
    """
    `57 150`, the sizes on a frame's line, as two numbers; of `93` 0 and that; of what are none 1
    and 0.
    """
    encoded = words.dictionary_encode()  # few distinct ones recur
    header, total = zip(*map(_pair, encoded.dictionary.to_pylist()), strict=True)
    codes = encoded.indices
    return take(pa.array(header, INT32), codes), take(pa.array(total, INT32), codes)


@lru_cache(maxsize=4096)
def _pair(word: bytes) -> tuple[int, int]:
    header, blank, total = word.partition(b" ")
    if not blank:
        header, total = b"0", header
    sound = all(size.isdigit() and len(size) <= _DIGITS for size in (header, total))
    # Two sizes of which one is 0 are not to be taken for one.
    return (int(header), int(total)) if sound and bool(int(header)) == bool(blank) else (1, 0)


def _texts(text: pa.Buffer, begins: pa.Array, ends: pa.Array) -> pa.Array:
    """BINARY: the bytes from each place to another, none before the one before."""
    borders = pa.concat_arrays([woven([begins, ends]), ends[len(ends) - 1 :]])
    return take(between(borders, text), every(2, len(ends)))


def _firsts(lists: pa.Array, length: int) -> tuple[pa.Array, int]:
    """The values of the first lists that have this length, and how many those are."""
    count = _leading(pc.equal(pc.list_value_length(lists), int32(length)))
    return lists.values.slice(0, count * length), count


def _leading(flags: pa.Array) -> int:
    """How many flags are true before the first that is not."""
    at = pc.index(flags, False).as_py()
    return len(flags) if at < 0 else int(at)


def _value(text: bytes) -> pa.Array:
    """One binary value that is these very bytes."""
    return between(bounds(pa.array([len(text)], INT32)), pa.py_buffer(text))
