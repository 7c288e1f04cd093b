"""
Cuts: the messages that a window of bytes begins with, by the column.

A consumer's message is the line `HMSG <subject> <sid> <ack subject> <sizes>`, a header block and
the payload, or `MSG` with one size and without a block. A window begins where a message does, and
where its sizes say that it ends the next one begins. All of this is looked at by Arrow's kernels,
in a few passes and without a turn of a loop for each message; the cut ends at the first message of
which not all is proven. A caller takes that one by itself.

**At line ends** (`lines` says how many a message has): nearly always all messages have as many,
two without a block, and no payload has any. Split there a window is a table of lines; each message
is one row of it if its first line is a message's and its sizes are those of its other lines.

**At words** (`lines` is 0): split at what every message has in its line between subject and
facts. It takes twice as long, but any payload, and any block. A payload may hold these words, too,
so nothing is believed for them: where the sizes of a message say that it ends there must be a verb
that suits the sizes of the next, a subject and the words again, with nothing between.

No I/O. Row order is wire order.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache, reduce
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import (
    BINARY,
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
from ...client import wire
from ...client.acksubjects import FACTS, Facts
from ...client.wire import CRLF

__all__ = ["MOST_LINES", "Cut", "Delivered", "Window", "cut"]

Window: TypeAlias = "bytes | memoryview"

MOST_LINES: Final = 16
"""Lines of a message that are cut at line ends; what has more has a block of many headers."""

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

_FACTS: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)\.(\d+)\.(\d+) ")
"""The facts of an ack subject that has nothing behind them, on their line."""


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


class Cut(NamedTuple):
    """What was cut."""

    messages: Delivered
    first: Facts
    """What the ack subject of the first message tells."""
    last: Facts
    size: int
    """Bytes of all these messages together."""


def cut(
    window: Window,
    words: bytes,
    tokens: int,
    pin_tail: bytes,
    room: int,
    keep: bool = True,
    lines: int = 0,
) -> Cut | None:
    """
    The messages that the window begins with; None if there is none that can be proven. The last in
    the window may not be among them.

    Args:
        words: what stands on every line between the subject and the facts.
        tokens: of the ack subject that follow `words`.
        pin_tail: how header blocks end; b"" of a consumer that is not pinned.
        room: how many messages at the most.
        keep: whether anybody wants what was stored.
        lines: of each message; 0 where they differ.

    Raises:
        ValueError: Some facts are no numbers; also Arrow's.
    """
    if lines and tokens == FACTS:
        return _cut_at_lines(window, words, pin_tail, room, keep, lines)
    return _cut_at_words(window, words, tokens, pin_tail, room, keep)


def _cut_at_lines(
    window: Window, words: bytes, pin_tail: bytes, room: int, keep: bool, width: int
) -> Cut | None:
    pieces = pc.split_pattern(_value(window), CRLF).values
    count = min((len(pieces) - 1) // width, room)
    ends = pin_tail.split(CRLF)[:-1]
    if count < 1 or width < len(ends) + 2:
        return None
    # Of each first line: verb and subject, and behind the words facts and sizes.
    halves, count = _firsts(pc.split_pattern(take(pieces, every(width, count)), words), 2)
    if not count:
        return None
    told = _told(take(halves, every(2, count, 1)))
    if told is None:
        return None
    verb = b"%b " % _VERBS[width == 2]
    names = take(halves, every(2, count))
    subjects = pc.binary_slice(names, len(verb), REST)
    payloads = take(pieces, every(width, count, width - 1))
    header, total = _sizes(told.sizes)
    proven = [
        pc.starts_with(names, verb),
        pc.not_equal(subjects, scalar(b"")),
        pc.equal(pc.subtract(total, header), pc.binary_length(payloads)),
    ]
    begins = offsets(pieces)
    if width == 2:
        proven.append(pc.equal(header, int32(0)))
        blocks = None
    else:
        # Lines of the block, without the CRLFs behind them.
        first, behind = (take(begins, every(width, count, at)) for at in (1, width - 1))
        crlfs = int32((width - 2) * len(CRLF))
        proven.append(pc.equal(header, pc.add(pc.subtract(behind, first), crlfs)))
        at = width - 1 - len(ends)
        proven += [
            pc.equal(take(pieces, every(width, count, at + place)), scalar(line))
            for place, line in enumerate(ends)
        ]
        blocks = (first, behind) if keep else None
    text = _text(subjects)
    proven += [
        pc.less(pc.find_substring(subjects, each), int32(0)) for each in _NO_SUBJECT if each in text
    ]
    count = _leading(reduce(pc.and_, proven))
    if not count:
        return None
    stored = None
    if blocks is not None:
        # Where they are in the window: so many CRLFs are before them.
        starts, stops = (
            pc.add(places[:count], every(2 * width, count, 2 * at))
            for places, at in zip(blocks, (1, width - 1), strict=True)
        )
        stored = _stored(_texts(pa.py_buffer(window), starts, stops), pin_tail)
    elif keep:
        stored = pa.repeat(scalar(_PLAIN), count)
    messages = Delivered(
        subjects[:count], payloads[:count], told.sequences[:count], told.times[:count], stored
    )
    size = begins[count * width].as_py() + count * width * len(CRLF)
    return Cut(messages, told.facts(0), told.facts(count - 1), size)


class _Told(NamedTuple):
    """Facts and sizes of the first lines."""

    rests: pa.Array
    """Both, as they stand there."""
    sizes: pa.Array
    sequences: pa.Array
    times: pa.Array

    def facts(self, row: int) -> Facts:
        """Of one message."""
        numbers = self.rests[row].as_py().partition(b" ")[0].split(b".")
        return Facts(*map(int, numbers[1:FACTS]))


def _told(rests: pa.Array) -> _Told | None:
    """What lines say behind the words; None if one says something else."""
    count = len(rests)
    first, last = (_FACTS.match(rests[row].as_py()) for row in (0, count - 1))
    if first is None or last is None or pc.max(pc.binary_length(rests)).as_py() > _LINE:
        return None
    # All but the last number nearly always are as long as in the first line.
    columns = [pc.binary_slice(rests, *first.span(group)) for group in range(1, FACTS)]
    if first.span(FACTS)[0] == last.span(FACTS)[0] and all(
        len(text) == count * (end - begin) and text.isdigit()
        for (begin, end), text in zip(
            map(first.span, range(1, FACTS)), map(_text, columns), strict=True
        )
    ):
        _, sequences, _, times = columns
        halves = pc.split_pattern(
            pc.binary_slice(rests, first.start(FACTS), REST), b" ", max_splits=1
        )
        values, whole = _firsts(halves, 2)
        # No other byte than those between the numbers is a dot.
        if whole == count and _text(rests).count(b".") == (FACTS - 1) * count:
            if is_digits(take(values, every(2, count))):
                return _Told(
                    rests, take(values, every(2, count, 1)), integers(sequences), integers(times)
                )
    values, whole = _firsts(pc.split_pattern(rests, b" ", max_splits=1), 2)
    if whole < count:
        return None
    facts, whole = _firsts(pc.split_pattern(take(values, every(2, count)), b"."), FACTS)
    if whole < count or not is_digits(facts):
        return None
    sequences, times = (integers(take(facts, every(FACTS, count, at))) for at in (1, 3))
    return _Told(rests, take(values, every(2, count, 1)), sequences, times)


def _text(texts: pa.Array) -> bytes:
    """All of them, behind each other."""
    ends = offsets(texts)
    begin, end = ends[0].as_py(), ends[-1].as_py()
    return bytes(texts.buffers()[2].slice(begin, end - begin).to_pybytes())


def _cut_at_words(
    window: Window, words: bytes, tokens: int, pin_tail: bytes, room: int, keep: bool
) -> Cut | None:
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
        _stored(blocks[:count], pin_tail) if keep else None,
    )
    first, latest = (
        Facts(*(int(facts[row * tokens + word].as_py()) for word in range(1, 5)))
        for row in (0, count - 1)
    )
    # The bytes before a place of the pieces, and the words that were cut out on the way there.
    taken = end[count - 1].as_py() + len(CRLF) + count * len(words)
    return Cut(messages, first, latest, taken)


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
    count = len(lists)
    if not lists.offsets.equals(every(length, count + 1)):
        count = _leading(pc.equal(lists.value_lengths(), int32(length)))
    return lists.values.slice(0, count * length), count


def _leading(flags: pa.Array) -> int:
    """How many flags are true before the first that is not."""
    if flags.true_count == len(flags):
        return len(flags)
    return int(pc.index(flags, False).as_py())


def _value(text: Window) -> pa.Array:
    """One binary value that is these very bytes."""
    held = pa.py_buffer(text)
    ends = pa.py_buffer(struct.pack("=ii", 0, held.size))
    return pa.Array.from_buffers(BINARY, 1, [None, ends, held])
