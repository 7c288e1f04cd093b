"""
Messages into Arrow: from bytes as they came off the wire to record batches of a read's schema.

Two hot loops, one for the frames of a pinned consumer and one for those of a batched direct get.
Each takes the frames it knows from the buffer, a few slices a message, and stops at the first that
is anything else; the caller looks at that one with `wire`. What all messages have in common is
parsed a column at a time by Arrow, never a message at a time.

No I/O. Row order is wire order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ..client import wire
from ..errors import ProtocolError, SubjectDecodeError
from ..serverheaders import NOT_READ
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

MAX_BATCH_ROWS: Final = 10_000
"""Rows of one record batch at the most."""

MAX_BATCH_BYTES: Final = 4 << 20
"""A record batch is closed once it holds so many bytes; one message may exceed it."""

SERVER_HEADERS: Final = NOT_READ
"""Names of headers that are left out wherever they stand (`serverheaders`)."""

_PREAMBLE: Final = b"NATS/1.0\r\n"
_SIZES_CACHED: Final = 4096
_HEADERS_CACHED: Final = 4096

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


def user_headers(lines: bytes) -> list[tuple[str, list[str]]] | None:
    """Header lines of a message as names with their values in order; None without any."""
    found: dict[str, list[str]] = {}
    for name, value in wire.parse_headers(_PREAMBLE + lines):
        if name not in SERVER_HEADERS:
            found.setdefault(name, []).append(value)
    return list(found.items()) or None


class _Texts(dict[bytes, int]):
    """
    `b"57 150"`, the sizes on a frame's line, → bytes of its payload with the CRLF behind.

    Looked up, not parsed: few distinct ones recur.
    """

    def __missing__(self, words: bytes) -> int:
        header, total = words.split(b" ")
        if len(self) >= _SIZES_CACHED:
            self.clear()
        self[words] = size = int(total) - int(header) + 2
        return size


class _Cutter:
    """
    Cuts a buffer into frames in one pass of a pattern, instead of one loop turn a frame.

    The pattern matches all of a frame before its payload. Splitting by it gives its groups and what
    stands between two matches in turn. That is a payload only if it is as long as the sizes on the
    frame's line say; if so, the next match begins where the next frame does, and so on from the
    first. If one is not, because a payload looks like a frame or something else stands in between,
    nothing is taken and the caller goes frame by frame.

    There are two patterns, since most streams hold messages without headers and matching header
    lines costs twice: `line` and `headers` around nothing, or around the lines of any headers.
    """

    def __init__(self, line: bytes, sizes_at: int, headers: bytes) -> None:
        preamble = rb" ([^\r]+)\r\nNATS/1\.0\r\n"
        self._patterns = [
            re.compile(line + preamble + rb"()" + headers),
            re.compile(line + preamble + rb"((?:[^\r\n]+\r\n){0,64}?)" + headers),
        ]
        self.width = self._patterns[0].groups + 1
        self._sizes_at = sizes_at
        self._texts = _Texts()

    def cut(self, buffer: bytes, pos: int, room: int) -> tuple[list[bytes], int] | None:
        """
        The pieces of at most `room` frames from `pos` on, and where the frame behind them begins.
        """
        for pattern in self._patterns:
            found = self._cut(pattern, buffer, pos, room)
            if found is not None:
                if pattern is not self._patterns[0]:
                    self._patterns.reverse()
                return found
        return None

    def _cut(
        self, pattern: re.Pattern[bytes], buffer: bytes, pos: int, room: int
    ) -> tuple[list[bytes], int] | None:
        pieces = pattern.split(buffer[pos:] if pos else buffer)
        width, texts = self.width, self._texts
        count = len(pieces) // width
        if not count or pieces.pop(0):
            return None
        lengths = list(map(len, pieces[width - 1 :: width]))
        try:
            sizes = [texts[words] for words in pieces[self._sizes_at :: width]]
        except ValueError:
            return None
        rest = lengths[-1] - sizes[-1]
        lengths[-1] = sizes[-1]
        if lengths != sizes:
            return None
        whole = min(count - (rest < 0), room)
        if whole < count:  # the last one is not complete yet, or there is no room
            head = pattern.match(buffer, pos)
            assert head is not None  # it was the first of the split
            # What the pattern matches outside its groups is as long in every frame.
            bare = head.end() - pos - sum(map(len, head.groups()))
            del pieces[whole * width :]
            return pieces, pos + whole * bare + sum(map(len, pieces))
        if rest:
            pieces[-1] = pieces[-1][:-rest]
        return pieces, len(buffer) - rest


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
        self.headers: list[bytes] = []
        """Header lines without the server's pin id; empty unless they are kept."""
        self.bytes = 0
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

    def add(self, frame: wire.Frame) -> None:
        """Takes one message that the caller has parsed."""
        self.subjects.append(frame.subject)
        self.replies.append(frame.reply)
        self.payloads.append(frame.data)
        if self._keep_headers:
            self.headers.append(frame.headers[len(_PREAMBLE) : -2])
        self.bytes += len(frame.data)

    def scan(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete, of another subscription, or whose header block
        does not end in `pin_tail` (`Nats-Pin-Id: <ours>` and the empty line), and when full. The
        server appends its header, so the end of the block is the server's word whatever headers
        the message was stored with.
        """
        if self._cutter is None or (sid, pin_tail) != self._cuts:
            self._cuts = (sid, pin_tail)
            self._cutter = _Cutter(rb"HMSG ([^ ]+) %d ([^ ]+)" % sid, 2, re.escape(pin_tail))
        while not self.full:
            cut = self._cutter.cut(buffer, pos, MAX_BATCH_ROWS - len(self))
            if cut is None:
                return self._scan_each(buffer, pos, sid, pin_tail)
            pieces, end = cut
            if not pieces:
                break
            self.subjects += pieces[::5]
            self.replies += pieces[1::5]
            self.payloads += [text[:-2] for text in pieces[4::5]]
            if self._keep_headers:
                self.headers += pieces[3::5]
            self.bytes += end - pos
            pos = end
        return pos

    def _scan_each(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """`scan`, a frame at a time."""
        while not self.full:
            try:
                found, where = wire.next_frame(buffer, pos)
            except ProtocolError:
                break  # the caller meets it at the same place
            if (
                not isinstance(found, wire.Frame)
                or found.sid != sid
                or not found.headers.startswith(_PREAMBLE)
                or not found.headers.endswith(pin_tail)
                or not found.reply
            ):
                break
            self.add(found._replace(headers=found.headers[: -len(pin_tail)] + b"\r\n"))
            pos = where
        return pos


class RowBuilder:
    """Record batches of one stream's messages, in the schema of the query."""

    def __init__(self, stream: str, include_headers: bool) -> None:
        self.stream = stream
        self.schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self._parsed_headers: dict[bytes, list[tuple[str, list[str]]] | None] = {}

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
        if self._include_headers:
            columns.append(self._headers(frames.headers))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if sequence[0].as_py() <= after or sequence[-1].as_py() > upto:
            inside = pc.and_(pc.greater(sequence, after), pc.less_equal(sequence, upto))
            batch = batch.filter(inside)
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
            mine: how the subjects of `partition` begin, which is cheaper to see.
        """
        subjects, sequences, *texts = (column for column in messages if column is not None)
        partitions: pa.Array | None = None
        wanted: list[pa.Array] = []
        if sequences[0].as_py() <= after or sequences[-1].as_py() > upto:
            wanted += [pc.greater(sequences, after), pc.less_equal(sequences, upto)]
        if mine:
            wanted.append(pc.starts_with(subjects, mine))
        if classify is not None:
            found = subjects.dictionary_encode()
            codes = pa.array(map(classify, found.dictionary.to_pylist()), pa.int32())
            partitions = codes.take(found.indices)
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
            found = texts[2].dictionary_encode()
            arrays.append(self._headers(found.dictionary.to_pylist()).take(found.indices))
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

    def _headers(self, blocks: list[bytes]) -> pa.Array:
        parsed = self._parsed_headers
        values = []
        for block in blocks:
            if block not in parsed:
                if len(parsed) >= _HEADERS_CACHED:
                    parsed.clear()
                parsed[block] = user_headers(block)
            values.append(parsed[block])
        return pa.array(values, _HEADERS_TYPE)

    def _partition(self, partition: int, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(partition, pa.int32()), rows)

    def _stream(self, rows: int) -> pa.Array:
        return pa.repeat(pa.scalar(self.stream, pa.string()), rows)
