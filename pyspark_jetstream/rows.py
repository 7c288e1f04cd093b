"""
Messages into Arrow: from bytes as they came off the wire to record batches of a read's schema.

Two hot loops, one for the frames of a pinned consumer and one for those of a batched direct get.
Each takes the frames it knows from the buffer, a few slices a message, and stops at the first that
is anything else; the caller looks at that one with `wire`. What all messages have in common is
parsed a column at a time by Arrow, never a message at a time.

No I/O. Row order is wire order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from . import wire
from .errors import SubjectDecodeError

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_ROWS",
    "SERVER_HEADERS",
    "ConsumerFrames",
    "DirectFrames",
    "DirectLines",
    "RowBuilder",
    "arrow_schema",
    "user_headers",
]

MAX_BATCH_ROWS: Final = 10_000
"""Rows of one record batch at the most."""

MAX_BATCH_BYTES: Final = 4 << 20
"""A record batch is closed once it holds so many bytes; one message may exceed it."""

SERVER_HEADERS: Final = frozenset(
    {
        "nats-stream",
        "nats-subject",
        "nats-sequence",
        "nats-time-stamp",
        "nats-num-pending",
        "nats-last-sequence",
        "nats-upto-sequence",
        "nats-pin-id",
        "nats-stream-source",
    }
)
"""
Names of headers that servers add when they deliver, republish or source a message. They are left
out wherever they stand: a republished message that was stored again carries stale ones.
"""

_PREAMBLE: Final = b"NATS/1.0\r\n"
_SUBJECT_AT: Final = len(b"Nats-Subject: ")
_SEQUENCE_AT: Final = len(b"Nats-Sequence: ")
_TIME_AT: Final = len(b"Nats-Time-Stamp: ")
_PENDING_AT: Final = len(b"Nats-Num-Pending: ")
_SUBJECT_LINE: Final = b"\r\nNats-Subject: "
_SUBJECT_LINE_BYTES: Final = len(_SUBJECT_LINE)
_LINE_END: Final = 1 << 30
"""Beyond any line; Arrow 26 fails on a slice of binary without an end."""

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


def user_headers(block: bytes) -> list[tuple[str, list[str]]] | None:
    """Headers of a message, values in order under each name; None when there are none."""
    found: dict[str, list[str]] = {}
    for name, value in wire.parse_headers(block):
        if name.lower() not in SERVER_HEADERS:
            found.setdefault(name, []).append(value)
    return list(found.items()) or None


def _sizes(words: bytes, known: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    """`b"57 150"` → (header bytes + 2, total bytes + 2), remembered: few distinct ones recur."""
    header, total = words.split(b" ")
    if len(known) >= _SIZES_CACHED:
        known.clear()
    known[words] = sizes = (int(header) + 2, int(total) + 2)
    return sizes


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
        self.bytes = 0
        self._keep_headers = keep_headers
        self._sizes: dict[bytes, tuple[int, int]] = {}

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
            self.headers.append(frame.headers)
        self.bytes += len(frame.data)

    def scan(self, buffer: bytes, pos: int, sid: int, pin_tail: bytes) -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete, of another subscription, or whose header block
        does not end in `pin_tail` (`Nats-Pin-Id: <ours>` and the empty line), and when full. The
        server appends its header, so the end of the block is the server's word whatever headers
        the message was stored with.
        """
        find, startswith = buffer.find, buffer.startswith
        add_subject, add_reply = self.subjects.append, self.replies.append
        add_payload, add_headers = self.payloads.append, self.headers.append
        sizes, get_sizes, keep_headers = self._sizes, self._sizes.get, self._keep_headers
        tail_size, limit, want_sid = len(pin_tail), len(buffer), b"%d" % sid
        begin = pos
        for _ in range(MAX_BATCH_ROWS - len(self.replies)):
            eol = find(b"\r\n", pos)
            if eol < 0:
                break
            try:
                # HMSG <subject> <sid> <reply> <header bytes> <total bytes>
                _, subject, its_sid, reply, words = buffer[pos:eol].split(b" ", 4)
                header_size, total_size = get_sizes(words) or _sizes(words, sizes)
            except ValueError:
                break
            end = eol + total_size
            header_end = eol + header_size
            if (
                end + 2 > limit
                or its_sid != want_sid
                or not startswith(pin_tail, header_end - tail_size)
            ):
                break
            add_subject(subject)
            add_reply(reply)
            add_payload(buffer[header_end:end])
            if keep_headers:
                add_headers(buffer[eol + 2 : header_end])
            pos = end + 2
        self.bytes += pos - begin
        return pos


class DirectFrames:
    """
    Messages sent by a batched direct get, gathered until they become a record batch.

    The server appends six headers, in this order: Nats-Stream, Nats-Subject, Nats-Sequence,
    Nats-Time-Stamp, Nats-Num-Pending, Nats-Last-Sequence (ADR-31, "Response Format").
    """

    def __init__(self) -> None:
        self.headers: list[bytes] = []
        self.payloads: list[bytes] = []
        self.ordinals: list[int] = []
        """Which message of its request each is."""
        self.seen = 0
        """Messages of the request so far, the dropped ones included."""
        self.bytes = 0
        self._sizes: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.headers)

    def __repr__(self) -> str:
        return f"<DirectFrames {len(self)} messages, {self.bytes} bytes>"

    @property
    def full(self) -> bool:
        """Whether a record batch should be made of them now."""
        return len(self.headers) >= MAX_BATCH_ROWS or self.bytes >= MAX_BATCH_BYTES

    def clear(self) -> None:
        """Forgets the gathered messages."""
        self.headers, self.payloads, self.ordinals = [], [], []
        self.bytes = 0

    def begin(self) -> None:
        """A request begins: forgets what an earlier one left."""
        self.clear()
        self.seen = 0

    def scan(self, buffer: bytes, pos: int, prefix: bytes, mine: bytes = b"") -> int:
        """
        Takes messages from `pos` on and returns where it stopped.

        It stops at a frame that is incomplete or starts otherwise, at a status, and when full.

        Args:
            prefix: the constant beginning of the frames' lines, `HMSG <inbox> <sid> `.
            mine: subjects that do not begin so are counted and dropped, but for the request's
                first message, which the count is checked against.
        """
        find, rfind, startswith = buffer.find, buffer.rfind, buffer.startswith
        add_headers, add_payload = self.headers.append, self.payloads.append
        add_ordinal = self.ordinals.append
        sizes, get_sizes = self._sizes, self._sizes.get
        skip, limit, seen = len(prefix), len(buffer), self.seen
        room = MAX_BATCH_ROWS - len(self.headers)
        nbytes = 0
        while room and startswith(prefix, pos):
            eol = find(b"\r\n", pos + skip)
            if eol < 0:
                break
            words = buffer[pos + skip : eol]
            try:
                header_size, total_size = get_sizes(words) or _sizes(words, sizes)
            except ValueError:
                break
            end = eol + total_size
            if end + 2 > limit:
                break
            header_end = eol + header_size
            if mine:
                # The last occurrence is the server's; a message may be stored with a stale one.
                subject = rfind(_SUBJECT_LINE, eol, header_end)
                if subject < 0:
                    break
                if seen and not startswith(mine, subject + _SUBJECT_LINE_BYTES):
                    seen += 1
                    pos = end + 2
                    continue
            elif not startswith(_PREAMBLE, eol + 2):
                break
            add_headers(buffer[eol + 2 : header_end])
            add_payload(buffer[header_end:end])
            add_ordinal(seen)
            seen += 1
            room -= 1
            nbytes += total_size
            pos = end + 2
        self.seen = seen
        self.bytes += nbytes
        return pos


class DirectLines(NamedTuple):
    """What the server's header lines say of each message; names still stand before the bytes."""

    subject: list[bytes]
    sequence: pa.Array
    time: list[bytes]
    pending: pa.Array
    """How many more the request could bring after this one."""


class RowBuilder:
    """Record batches of one stream's messages, in the schema of the query."""

    def __init__(self, stream: str, include_headers: bool) -> None:
        self.stream = stream
        self.schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self._streams = pa.repeat(pa.scalar(stream, pa.string()), MAX_BATCH_ROWS)
        self._partitions: dict[int, pa.Array] = {}
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
            self._subjects(frames.subjects, partition, sequence),
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

    def direct_lines(self, frames: DirectFrames) -> DirectLines:
        """The header lines of the messages as columns."""
        blocks = frames.headers
        lines = b"".join(blocks).split(b"\r\n")
        width = blocks[0].count(b"\r\n")
        last_of_each = lines[width - 1 :: width]
        if len(lines) == width * len(blocks) + 1 and last_of_each.count(b"") == len(blocks):
            # All blocks have the same number of lines, so each line is a column.
            subject, sequence, time, pending = (
                lines[width - 1 - back :: width] for back in (5, 4, 3, 2)
            )
        else:
            rows = [block[:-4].rsplit(b"\r\n", 5)[1:] for block in blocks]
            subject, sequence, time, pending, _ = (
                list(column) for column in zip(*rows, strict=True)
            )
        return DirectLines(
            subject, _integers(sequence, _SEQUENCE_AT), time, _integers(pending, _PENDING_AT)
        )

    def direct_batch(
        self,
        frames: DirectFrames,
        lines: DirectLines,
        after: int,
        upto: int,
        partition: int | None,
        classify: Callable[[bytes], int | None] | None,
    ) -> pa.RecordBatch:
        """
        The messages with `after < sequence <= upto` that belong to `partition`, or with None to
        any partition.

        `classify` gives the partition of a subject as it stands in its header line; without it
        all messages belong to `partition`.
        """
        subject, sequence, time, _ = lines
        payloads, headers = frames.payloads, frames.headers
        rows = len(headers)
        wanted: list[bool] | None = None
        partitions: pa.Array | None = None
        if classify is not None:
            codes = [classify(each) for each in subject]
            if partition is None:
                wanted = [code is not None for code in codes]
                partitions = pa.array(codes, pa.int32())
            else:
                wanted = [code == partition for code in codes]
        if sequence[0].as_py() <= after or sequence[rows - 1].as_py() > upto:
            inside = [after < each <= upto for each in sequence.to_pylist()]
            wanted = inside if wanted is None else [a and b for a, b in zip(wanted, inside)]  # noqa: B905
        if wanted is not None and not all(wanted):
            mask = pa.array(wanted, pa.bool_())
            sequence = sequence.filter(mask)
            partitions = partitions.filter(mask) if partitions is not None else None
            subject, time, payloads, headers = (
                list(compress(column, wanted)) for column in (subject, time, payloads, headers)
            )
        rows = len(payloads)
        columns = [
            self._subjects([each[_SUBJECT_AT:] for each in subject], partition or 0, sequence),
            pa.array(payloads, pa.binary()),
            sequence,
            _values(time, _TIME_AT)
            .cast(pa.timestamp("ns", tz="UTC"))
            .cast(pa.timestamp("us", tz="UTC"), safe=False),
            partitions if partitions is not None else self._partition(partition or 0, rows),
            self._stream(rows),
        ]
        if self._include_headers:
            columns.append(self._headers(headers))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _subjects(self, subjects: list[bytes], partition: int, sequence: pa.Array) -> pa.Array:
        try:
            return pa.array(subjects, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            for subject, seq in zip(subjects, sequence.to_pylist(), strict=True):
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
        if partition not in self._partitions:
            scalar = pa.scalar(partition, pa.int32())
            self._partitions[partition] = pa.repeat(scalar, MAX_BATCH_ROWS)
        return self._partitions[partition].slice(0, rows)

    def _stream(self, rows: int) -> pa.Array:
        return self._streams.slice(0, rows)


def _values(lines: list[bytes], at: int) -> Any:
    return pc.binary_slice(pa.array(lines, pa.binary()), at, _LINE_END).cast(pa.string())


def _integers(lines: list[bytes], at: int) -> pa.Array:
    return _values(lines, at).cast(pa.int64())
