"""
Messages into Arrow: from bytes as they came off the wire to record batches of a read's schema.

Two hot loops, one for the frames of a pinned consumer and one for those of a batched direct get.
Each takes the frames it knows from the buffer, a few slices a message, and stops at the first that
is anything else; the caller looks at that one with `wire`. What all messages have in common is
parsed a column at a time by Arrow, never a message at a time.

No I/O. Row order is wire order.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ..client import wire
from ..client.blocks import lines_of
from ..errors import ProtocolError, SubjectDecodeError
from ..serverheaders import BAD_NAME, BAD_VALUE, NOT_READ
from .replies import Columns

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_ROWS",
    "SERVER_HEADERS",
    "ConsumerFrames",
    "RowBuilder",
    "arrow_schema",
    "user_headers",
]

logger = logging.getLogger(__name__)

MAX_BATCH_ROWS: Final = 10_000
"""Rows of one record batch at the most."""

MAX_BATCH_BYTES: Final = 4 << 20
"""A record batch is closed once it holds so many bytes; one message may exceed it."""

SERVER_HEADERS: Final = NOT_READ
"""Names of headers that are left out wherever they stand (`serverheaders`)."""

_PREAMBLE: Final = b"NATS/1.0\r\n"
_CLEAN: Final = re.compile(rb"(?:[!-9;-~]++:[^\r\n]*+\r\n)*+")
"""Header lines as nearly all messages have them; others are looked at one by one."""

_BAD_NAME: Final = re.compile(BAD_NAME)
_BAD_VALUE: Final = re.compile(BAD_VALUE)
_SIZES_CACHED: Final = 4096
_HEADERS_CACHED: Final = 4096

_MAX_LINES: Final = 64
"""Header lines of a message that is cut with others; what has more is taken alone."""

_WINDOW_BYTES: Final = 1 << 20
_MIN_WINDOW_BYTES: Final = 16 << 10
"""
Bytes that are cut at one time. After a cut in vain as many are taken frame by frame before the next
one, which is small again: so all cuts together look at twice the bytes that came, at the most.
"""

_NAMED: Final = 20
"""Sequences that one line of the log names."""

_HEADERS_TYPE: Final = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The columns of a read, exactly as Spark 4.2+ demands them (nullable, UTC, no large types)."""
    fields = [
        pa.field("subject", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("sequence", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("partition", pa.int32()),
        pa.field("stream", pa.string()),
    ]
    if include_headers:
        fields.append(pa.field("headers", _HEADERS_TYPE))
    return pa.schema(fields)


def user_headers(lines: bytes | None) -> list[tuple[str, list[str]]] | None:
    """Header lines of a message as names with their values in order; None without any."""
    if lines is None:
        return None
    headers: dict[str, list[str]] = {}
    clean = _CLEAN.fullmatch(lines) is not None
    for name, value in wire.parse_headers(_PREAMBLE + lines):
        if name not in SERVER_HEADERS and (clean or not _is_none(name, value)):
            headers.setdefault(name, []).append(value)
    return list(headers.items()) or None


def _is_none(name: str, value: str) -> bool:
    """Whether this is no header, though a server has stored it."""
    return bool(_BAD_NAME.search(name) or _BAD_VALUE.search(value))


def _has_others(lines: bytes) -> bool:
    """Whether any of the lines is no header."""
    if _CLEAN.fullmatch(lines):
        return False
    if any(b":" not in line for line in lines.split(b"\r\n")[:-1]):
        return True
    return any(_is_none(*each) for each in wire.parse_headers(_PREAMBLE + lines))


class _Sizes(dict[bytes, int]):
    """
    `b"57 150"`, the sizes on a frame's line, → bytes of its payload with the CRLF behind.

    Looked up, not parsed: few distinct ones recur. What can be no sizes is a ValueError.
    """

    def __init__(self, minimum: int) -> None:
        """
        Args:
            minimum: bytes of a header block without any lines of its own.
        """
        self.headers: dict[bytes, int] = {}
        """Bytes of the header block, of the same keys."""
        self._minimum = minimum

    def __missing__(self, words: bytes) -> int:
        header, total = map(int, words.split(b" "))
        if not self._minimum <= header <= total:
            raise ValueError("sizes that cannot be")
        self.headers[words] = header
        self[words] = size = total - header + 2
        return size

    def shrink(self) -> None:
        """Forgets all of them, once they are many."""
        if len(self) >= _SIZES_CACHED:
            self.clear()
            self.headers.clear()


class _Cutter:
    """
    Cuts bytes into frames in one pass of a pattern, instead of one loop turn a frame.

    The pattern matches all of a frame before its payload. Splitting by it gives its groups and what
    stands between two matches in turn. That is a payload only if it is as long as the sizes on the
    frame's line say; if so, the next match begins where the next frame does, and so on from the
    first. If one is not, because a payload looks like a frame or something else stands in between,
    nothing is taken and the caller goes frame by frame.

    There are two patterns, since most streams hold messages without headers and matching header
    lines costs twice: `line` and `headers` around nothing, or around the lines of any headers.

    A payload may look like many beginnings of frames, and a search tries each. Yet it is linear in
    the bytes, whatever they are: the words of the line end at the next blank, and the header lines
    that one beginning tries end where those of the next would begin, at `NATS/1.0`.
    """

    def __init__(self, line: bytes, sizes_at: int, headers: bytes, minimum: int) -> None:
        preamble = rb" (\d+ \d+)\r\nNATS/1\.0\r\n"
        self._plain = re.compile(line + preamble + rb"()" + headers)
        lines = rb"((?:(?!NATS/1\.0\r)[^\r\n]++\r\n){0,%d}?)" % _MAX_LINES
        self._patterns = [self._plain, re.compile(line + preamble + lines + headers)]
        self.width = self._plain.groups + 1
        self._sizes_at = sizes_at
        self._minimum = minimum
        self._sizes = _Sizes(minimum)

    def cut(self, window: bytes, room: int) -> tuple[list[bytes], int] | None:
        """
        The pieces of at most `room` whole frames that the bytes begin with, and how many bytes
        those are; no pieces if not even the first is whole.
        """
        for pattern in self._patterns:
            head = pattern.match(window)
            cut = self._cut(pattern, head, window, room) if head is not None else None
            if cut is not None:
                if pattern is not self._patterns[0]:
                    self._patterns.reverse()
                return cut
        return None

    def _cut(
        self, pattern: re.Pattern[bytes], head: re.Match[bytes], window: bytes, room: int
    ) -> tuple[list[bytes], int] | None:
        pieces = pattern.split(window)
        width, known = self.width, self._sizes
        count = len(pieces) // width
        del pieces[0]  # before the first match: nothing
        words = pieces[self._sizes_at :: width]
        known.shrink()
        try:
            sizes = list(map(known.__getitem__, words))
        except ValueError:
            return None
        lengths = list(map(len, pieces[width - 1 :: width]))
        rest = lengths[-1] - sizes[-1]
        lengths[-1] = sizes[-1]
        if lengths != sizes or not self._are_headers(pattern, words, pieces):
            return None
        whole = min(count - (rest < 0), room)
        if whole < count:  # the last one is not complete yet, or there is no room
            # What the pattern matches outside its groups is as long in every frame.
            bare = head.end() - sum(map(len, head.groups()))
            del pieces[whole * width :]
            return pieces, whole * bare + sum(map(len, pieces))
        if rest:
            pieces[-1] = pieces[-1][:-rest]
        return (pieces, len(window) - rest) if pieces[-1].endswith(b"\r\n") else None

    def _are_headers(
        self, pattern: re.Pattern[bytes], words: list[bytes], pieces: list[bytes]
    ) -> bool:
        """Whether what was matched as header blocks is as long as the sizes say."""
        headers, minimum = self._sizes.headers, self._minimum
        if pattern is self._plain:
            return all(headers[word] == minimum for word in set(words))
        lines = map(len, pieces[self._sizes_at + 1 :: self.width])
        return list(map(headers.__getitem__, words)) == [minimum + length for length in lines]


class ConsumerFrames:
    """
    Messages delivered by a pinned consumer, gathered until they become a record batch.

    The delivery facts (sequence, time, how many are pending) stand in the reply subject:
    `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<timestamp>.<pending>`.
    """

    def __init__(self, keep_headers: bool) -> None:
        self.subjects: list[bytes] = []
        self.replies: list[bytes] = []
        self.payloads: list[bytes] = []
        self.headers: list[bytes | None] = []
        """
        Header lines without the server's pin id, None where there is something else (`blocks`);
        empty unless they are kept.
        """
        self.bytes = 0
        self._window = _WINDOW_BYTES
        self._singly = 0
        """Bytes that are still to be taken frame by frame."""
        self._keep_headers = keep_headers
        self._cutter: _Cutter | None = None
        self._cuts: tuple[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.replies)

    def __repr__(self) -> str:
        return f"<ConsumerFrames {len(self)} messages, {self.bytes} bytes>"

    @property
    def full(self) -> bool:
        """Whether a record batch should be made of them now."""
        return len(self.replies) >= MAX_BATCH_ROWS or self.bytes >= MAX_BATCH_BYTES

    def reaches(self, end: int) -> bool:
        """Whether the last message is at `end` or beyond, or has none behind it."""
        facts = self.replies[-1].split(b".")[self.first_fact :]
        return int(facts[0]) >= end or facts[3] == b"0"

    @property
    def first_fact(self) -> int:
        """
        Which token of the reply subjects is the stream sequence; dseq, time, pending follow.

        There are 9 tokens; with a domain and an account hash in front 11 or 12.
        """
        return 5 if self.replies[0].count(b".") == 8 else 7

    def clear(self) -> None:
        """Forgets the gathered messages."""
        self.subjects, self.replies, self.payloads, self.headers = [], [], [], []
        self.bytes = 0

    def add(self, frame: wire.Frame, stored: bytes) -> None:
        """
        Takes one message that the caller has parsed.

        Args:
            stored: what stands before the server's header line.
        """
        self.subjects.append(frame.subject)
        self.replies.append(frame.reply)
        self.payloads.append(frame.data)
        if self._keep_headers:
            self.headers.append(lines_of(stored))
        self.bytes += len(frame.data)

    def scan(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete, of another subscription, or whose header block
        does not end in `pin_tail` (`Nats-Pin-Id: <ours>` and the empty line), and when full. The
        server appends its header, so the end of the block is the server's word whatever the
        message was stored with (`blocks`).
        """
        if self._cutter is None or (sid, pin_tail) != self._cuts:
            self._cuts = (sid, pin_tail)
            minimum = len(_PREAMBLE) + len(pin_tail)
            line = rb"HMSG ([^ ]+) %d ([^ ]+)" % sid
            self._cutter = _Cutter(line, 2, re.escape(pin_tail), minimum)
        while not self.full:
            if self._singly > 0:
                before = pos
                pos = self._scan_each(buffer, pos, sid, pin_tail, pos + self._singly)
                self._singly -= pos - before
                if self._singly > 0:
                    break
                continue
            size = self._window
            window = buffer[pos : pos + size] if pos or len(buffer) > size else buffer
            cut = self._cutter.cut(window, MAX_BATCH_ROWS - len(self))
            if cut is None:
                before = pos
                pos = self._scan_each(buffer, pos, sid, pin_tail, pos + len(window))
                if pos == before:
                    break
                self._singly = len(window) - (pos - before)
                self._window = _MIN_WINDOW_BYTES
                continue
            self._window = min(2 * size, _WINDOW_BYTES)
            pieces, taken = cut
            if pieces:
                self._take(pieces, taken)
                pos += taken
            elif len(buffer) - pos <= size:
                break
            else:  # the first frame is longer than the window
                before = pos
                pos = self._scan_each(buffer, pos, sid, pin_tail, pos + 1)
                if pos == before:
                    break
        return pos

    def _take(self, pieces: list[bytes], taken: int) -> None:
        """Adds whole frames as the cutter gives them, `taken` bytes in all."""
        self.subjects += pieces[::5]
        self.replies += pieces[1::5]
        self.payloads += [text[:-2] for text in pieces[4::5]]
        if self._keep_headers:
            self.headers += pieces[3::5]
        self.bytes += taken

    def _scan_each(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes, upto: int) -> int:
        """`scan`, a frame at a time, of frames that begin before `upto`."""
        while pos < upto and not self.full:
            try:
                frame, where = wire.next_frame(buffer, pos)
            except ProtocolError:
                break  # the caller meets it at the same place
            if (
                not isinstance(frame, wire.Frame)
                or frame.sid != sid
                or not frame.headers.endswith(pin_tail)
                or not frame.reply
            ):
                break
            self.add(frame, frame.headers[: -len(pin_tail)])
            pos = where
        return pos


class RowBuilder:
    """Record batches of one stream's messages, in the schema of the query."""

    def __init__(self, stream: str, include_headers: bool) -> None:
        self.stream = stream
        self.schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self.odd = 0
        """Rows so far whose message was stored with something else than headers."""
        self._parsed_headers: dict[bytes | None, list[tuple[str, list[str]]] | None] = {}
        self._odd: set[bytes | None] = set()

    def deliveries(self, frames: ConsumerFrames) -> pa.Table:
        """
        The facts of each delivery as columns `sseq`, `dseq`, `timestamp` (ns), `pending`, int64.
        """
        first = frames.first_fact
        names = ("sseq", "dseq", "timestamp", "pending")
        wanted = [f"f{first + i}" for i in range(4)]
        text = b"\n".join([*frames.replies, b""])
        table = csv.read_csv(
            pa.py_buffer(text),
            csv.ReadOptions(
                autogenerate_column_names=True, use_threads=False, block_size=len(text) + 1
            ),
            csv.ParseOptions(delimiter=".", quote_char=False, escape_char=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.int64()), include_columns=wanted
            ),
        )
        return table.rename_columns(list(names)).combine_chunks()

    def consumer_batch(
        self, frames: ConsumerFrames, facts: pa.Table, partition: int, after: int, upto: int
    ) -> pa.RecordBatch:
        """The messages with `after < sequence <= upto`."""
        sequence = facts.column("sseq").combine_chunks()
        micros = pc.divide(facts.column("timestamp").combine_chunks(), 1000)
        columns = [
            self._text(pa.array(frames.subjects, pa.binary()), partition, sequence),
            pa.array(frames.payloads, pa.binary()),
            sequence,
            micros.cast(pa.timestamp("us", tz="UTC")),
            self._partition(partition, len(frames)),
            self._stream(len(frames)),
        ]
        odd: list[int] = []
        if self._include_headers:
            values, odd = self._headers(frames.headers)
            columns.append(values)
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        inside: pa.Array | None = None
        if sequence[0].as_py() <= after or sequence[-1].as_py() > upto:
            inside = pc.and_(pc.greater(sequence, after), pc.less_equal(sequence, upto))
            batch = batch.filter(inside)
        if odd:
            rows = pa.array(odd, pa.int64())
            self._note(sequence.take(rows if inside is None else rows.filter(inside.take(rows))))
        return batch

    def direct_batch(
        self,
        messages: Columns,
        after: int,
        upto: int,
        partition: int | None,
        classify: Callable[[bytes], int | None] | None,
        mine: bytes = b"",
    ) -> pa.RecordBatch:
        """
        The messages with `after < sequence <= upto` that belong to `partition`, or with None to
        any partition.

        Args:
            classify: gives the partition of a subject; without it all belong to `partition`.
            mine: how the subjects of `partition` begin, which is cheaper to compare.
        """
        subjects, sequences, *texts = (column for column in messages if column is not None)
        partitions: pa.Array | None = None
        wanted: list[pa.Array] = []
        if sequences[0].as_py() <= after or sequences[-1].as_py() > upto:
            wanted += [pc.greater(sequences, after), pc.less_equal(sequences, upto)]
        if mine:
            wanted.append(pc.starts_with(subjects, mine))
        if classify is not None:
            distinct = subjects.dictionary_encode()
            codes = pa.array(map(classify, distinct.dictionary.to_pylist()), pa.int32())
            partitions = codes.take(distinct.indices)
            of = pc.is_valid(partitions) if partition is None else pc.equal(partitions, partition)
            wanted.append(of)
        if wanted:
            mask = reduce(pc.and_kleene, wanted)
            subjects, sequences = subjects.filter(mask), sequences.filter(mask)
            texts = [text.filter(mask) for text in texts]
            partitions = partitions.filter(mask) if partitions is not None else None
        rows = len(sequences)
        arrays = [
            self._text(subjects, partition or 0, sequences),
            texts[1],
            sequences,
            texts[0]
            .cast(pa.string())
            .cast(pa.timestamp("ns", tz="UTC"))
            .cast(pa.timestamp("us", tz="UTC"), safe=False),
            partitions if partitions is not None else self._partition(partition or 0, rows),
            self._stream(rows),
        ]
        if self._include_headers:
            distinct = texts[2].dictionary_encode()
            values, odd = self._headers(
                [lines_of(stored) for stored in distinct.dictionary.to_pylist()]
            )
            arrays.append(values.take(distinct.indices))
            if odd:
                codes = pa.array(odd, distinct.indices.type)
                self._note(sequences.filter(pc.is_in(distinct.indices, codes)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _text(self, subjects: pa.Array, partition: int, sequences: pa.Array) -> pa.Array:
        try:
            return subjects.cast(pa.string())
        except pa.ArrowInvalid:
            for subject, seq in zip(subjects.to_pylist(), sequences.to_pylist(), strict=True):
                try:
                    subject.decode()
                except UnicodeDecodeError:
                    raise SubjectDecodeError(
                        self.stream,
                        partition,
                        f"the subject of sequence {seq} is not UTF-8: {subject!r};"
                        " delete that message, or read around it",
                    ) from None
            raise

    def _headers(self, blocks: Sequence[bytes | None]) -> tuple[pa.Array, list[int]]:
        """The values of header lines, and which of them are not all headers."""
        parsed, odd = self._parsed_headers, self._odd
        if len(parsed) >= _HEADERS_CACHED:
            parsed.clear()
            odd.clear()
        values = []
        for block in blocks:
            if block not in parsed:
                parsed[block] = user_headers(block)
                if block is None or _has_others(block):
                    odd.add(block)
            values.append(parsed[block])
        odd_blocks = [at for at, block in enumerate(blocks) if block in odd] if odd else []
        return pa.array(values, _HEADERS_TYPE), odd_blocks

    def _note(self, sequences: pa.Array) -> None:
        """Counts and logs rows whose messages were stored with something else than headers."""
        count = len(sequences)
        if not count:
            return
        self.odd += count
        logger.warning(
            "stream=%s: what %d messages were stored with are no headers, or not all of it; that"
            " is left out: sequences=%s%s, %d so far",
            self.stream, count, ",".join(map(str, sequences[:_NAMED].to_pylist())),
            ",…" if count > _NAMED else "", self.odd,
        )  # fmt: skip

    def _partition(self, partition: int, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(partition, pa.int32()), rows)

    def _stream(self, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(self.stream, pa.string()), rows)
