"""
Cuts: the whole messages at the start of a window of bytes, by the column.

A consumer's message is the line `HMSG <subject> <sid> <ack subject> <sizes>`, a header block and
the payload, or `MSG` with one size and without a block. A window begins where a message does, and
where its sizes say that it ends the next one begins. All of this is looked at by Arrow's kernels,
in a few passes and without a turn of a loop for each message; the cut ends at the first message of
which not all is proven. A caller takes that one by itself.

It is split at what every message has in its line between subject and facts. A payload may hold
these words, too, so nothing is believed for them: where the sizes of a message say that it ends
there must be a verb that suits the sizes of the next, a subject and the words again, with nothing
between.

Alike are the lines of nearly all windows: their facts are as long as the first's, so numbers stand
where the first's do. At one with longer or shorter facts the cut ends.

No I/O. Row order is wire order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import (
    BINARY,
    INT32,
    REST,
    STRING,
    between,
    every,
    int32,
    is_all,
    offsets,
    scalar,
    take,
    woven,
)
from ...client import wire
from ...client.blocks import FACTS, DeliveryFacts
from ...client.wire import CRLF
from .replies import Columns, size_pair, whole

Window: TypeAlias = "bytes | memoryview"

_VERBS: Final = (b"HMSG", b"MSG")
"""Verbs of a message with a header block, and of one without."""

_NEXT: Final = tuple(CRLF + verb + b" " for verb in _VERBS)
"""Between a payload and the next subject."""

_FOLLOWS: Final = int32(len(_NEXT[0]))
"""Bytes that a piece has behind its payload at the least."""

_NO_SUBJECT: Final = (b" ", b"\t", CRLF)
"""Bytes that end a subject, or the line."""

_LINE: Final = 160
"""Bytes that hold the rest of a line behind its first words: five numbers, a token, two sizes."""

_SIZES: Final = 32
"""Bytes that hold the sizes on a line, and what ends it."""

_PLAIN: Final = wire.HEADER_PREAMBLE + CRLF
"""Stored block of a message without headers, as `blocks` has it."""

_NUMERALS: Final = b"0123456789"

_FACTS: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)\.(\d+)\.(\d+) ")
"""The facts of an ack subject that has nothing behind them, on their line."""


class Cut(NamedTuple):
    """Messages cut from a buffer."""

    messages: Columns
    first: DeliveryFacts
    """Facts of the first message's delivery."""
    last: DeliveryFacts
    size: int
    """Bytes of all these messages together."""


def cut(
    window: Window,
    words: bytes,
    room: int,
    keep: bool = True,
) -> Cut | None:
    """
    The messages that the window begins with; None if there is none that can be proven. The last in
    the window may not be among them.

    Args:
        words: what stands on every line between the subject and the facts.
        room: how many messages at the most.
        keep: whether anybody wants what was stored.

    Raises:
        ValueError: Some facts are no numbers; also Arrow's.
    """
    pieces = pc.split_pattern(whole(window), words).values
    verb, _, subject = pieces[0].as_py().partition(b" ")
    if verb not in _VERBS or not subject or any(w in subject for w in _NO_SUBJECT):
        return None
    lines = _lines_alike(pieces, room)
    if lines is None:
        return None
    text, last = pieces.buffers()[2], offsets(pieces)[2 : len(lines.end) + 2]
    # Behind each message: the beginning of the next line, through its subject.
    tails = _texts(text, lines.end, last)
    long, short = (pc.starts_with(tails, each) for each in _NEXT)
    if 0 < long.true_count < len(long):
        subjects = pc.if_else(long, *(pc.binary_slice(tails, len(each), REST) for each in _NEXT))
    else:
        subjects = pc.binary_slice(tails, len(_NEXT[0 if long.true_count else 1]), REST)
    has_block = pa.concat_arrays([pa.array([verb == _VERBS[0]]), long[:-1]])
    proven = [
        pc.or_(long, short),
        pc.equal(pc.less(lines.block, lines.payload), has_block),
        pc.greater(pc.binary_length(subjects), int32(0)),
    ]
    names = _text(subjects)
    # Not a subject alone: another line stands there, and our words in its payload.
    proven += [
        pc.less(pc.find_substring(subjects, each), int32(0))
        for each in _NO_SUBJECT
        if each in names
    ]
    count = _leading(reduce(pc.and_, proven))
    if not count:
        return None
    facts = lines.facts(count)
    stored = _stored(_texts(text, lines.block[:count], lines.payload[:count])) if keep else None
    messages = Columns(
        pa.concat_arrays([pa.array([subject], BINARY), subjects[: count - 1]]),
        facts.sequences,
        facts.times,
        _texts(text, lines.payload[:count], lines.end[:count]),
        stored,
    )
    # The bytes before a place of the pieces, and the words that were cut out on the way there.
    taken = lines.end[count - 1].as_py() + len(CRLF) + count * len(words)
    return Cut(messages, facts.first, facts.last, taken)


class _Facts(NamedTuple):
    """Facts of deliveries."""

    sequences: pa.Array
    times: pa.Array
    first: DeliveryFacts
    last: DeliveryFacts


class _Lines(NamedTuple):
    """The lines of messages, by what they say: where in the text of all pieces each begins."""

    block: pa.Array
    """INT32, as are the others: where its header block begins, its payload, and where that ends."""
    payload: pa.Array
    end: pa.Array
    facts: Callable[[int], _Facts]
    """Facts of so many of them."""


def _text(texts: pa.Array) -> bytes:
    """All of them, behind each other."""
    ends = offsets(texts)
    begin, end = ends[0].as_py(), ends[-1].as_py()
    return bytes(texts.buffers()[2].slice(begin, end - begin).to_pybytes())


def _lines_alike(pieces: pa.Array, room: int) -> _Lines | None:
    count = min(len(pieces) - 2, room)
    if count < 1:
        return None
    # Each is the rest of the line, header block, payload, and the beginning of the next line.
    rests = pieces.slice(1, count)
    first = _FACTS.match(rests[0].as_py())
    if first is None or first.end() > _LINE:
        return None
    width = first.end()
    facts = pc.binary_slice(rests, 0, width)
    if not _are_alike(_text(facts), first, count):
        count = _leading(pc.match_substring_regex(facts, _pattern(first)))
        rests, facts = rests[:count], facts[:count]
    # The sizes with what ends the line, and a byte more for some of a digit more.
    stop = first.string.find(CRLF, width) + len(CRLF) + 1
    heads = pc.binary_slice(rests, width, stop).dictionary_encode()
    places = [*map(_places, heads.dictionary.to_pylist())]
    if min(place[2] for place in places) < 0:  # some are longer
        starts = pc.binary_slice(rests, width, width + _SIZES)
        words = pc.list_element(pc.split_pattern(starts, CRLF, max_splits=1), 0)
        heads = words.dictionary_encode()
        places = [_places(word + CRLF) for word in heads.dictionary.to_pylist()]
    begins = offsets(pieces)
    base = pc.add(begins[1 : count + 1], int32(width))
    block, payload, end = (
        pc.add(base, take(pa.array(each, INT32), heads.indices))
        for each in zip(*places, strict=True)
    )
    fits = pc.less_equal(pc.add(end, _FOLLOWS), begins[2 : count + 2])
    count = _leading(pc.and_(fits, pc.greater_equal(end, block)))

    def told(count: int) -> _Facts:
        some = facts[:count]
        sequences, times = (_numbers(pc.binary_slice(some, *first.span(at))) for at in (2, 4))
        return _Facts(sequences, times, _facts_of(some[0].as_py()), _facts_of(some[-1].as_py()))

    return _Lines(block[:count], payload[:count], end[:count], told) if count else None


def _are_alike(text: bytes, first: re.Match[bytes], count: int) -> bool:
    """Whether so many lines tell facts that are as long as the first's, each of them."""
    width = first.end()
    marks = [first.end(group) for group in range(1, FACTS + 1)]
    told = b"".join(first.string[at : at + 1] for at in marks)
    return (
        len(text) == count * width
        and text.translate(None, _NUMERALS) == told * count
        and all(text[at::width] == first.string[at : at + 1] * count for at in marks)
    )


def _pattern(first: re.Match[bytes]) -> bytes:
    """Regular expression of facts that are as long."""
    widths = (first.end(group) - first.start(group) for group in range(1, FACTS + 1))
    return b"^" + rb"\.".join(b"[0-9]{%d}" % width for width in widths) + b" "


def _numbers(digits: pa.Array) -> pa.Array:
    """INT64: what digits make, which they are."""
    return digits.view(STRING).cast(pa.int64())


def _facts_of(line: bytes) -> DeliveryFacts:
    """Facts of a delivery from a line, behind its verb and subject."""
    return DeliveryFacts(*map(int, line.partition(b" ")[0].split(b".")[1:FACTS]))


@lru_cache(maxsize=4096)
def _places(head: bytes) -> tuple[int, int, int]:
    """
    Offsets of a frame's block, its payload and its end, behind the sizes on its line; impossible
    ones where these are no sizes.
    """
    words, crlf, _ = head.partition(CRLF)
    header, total = size_pair(words)
    block = len(words) + len(CRLF)
    return (block, block + header, block + total) if crlf and header <= total else (0, 0, -1)


def _stored(blocks: pa.Array) -> pa.Array:
    """Lines before a server's lines (`blocks`)."""
    if is_all(pc.equal(blocks, scalar(b""))):
        return pa.repeat(scalar(_PLAIN), len(blocks))
    is_long = pc.greater(pc.binary_length(blocks), int32(len(CRLF)))
    return pc.if_else(is_long, pc.binary_slice(blocks, 0, -len(CRLF)), scalar(_PLAIN))


def _texts(text: pa.Buffer, begins: pa.Array, ends: pa.Array) -> pa.Array:
    """BINARY: the bytes from each place to another, none before the one before."""
    return take(between(woven([begins, ends]), text), every(2, len(ends)))


def _leading(flags: pa.Array) -> int:
    """Number of true flags before the first false one."""
    if flags.true_count == len(flags):
        return len(flags)
    return int(pc.index(flags, False).as_py())
