"""
Reading a range of a stream by batched direct get (ADR-31).

A request names the sequence to begin at and how much may come; the server sends that much without
flow control and ends with a 204 EOB. So both bounds are always given, and the range's end is cut
off here, because the server ignores `up_to_seq` in these requests.

While it answers a request, the server keeps writers of the stream waiting. So a request is small
and a record batch is made of many. The next one is sent before a batch is made of those before it,
and read to its end before Spark gets the batch: server and worker work at one time, and nothing
waits in a socket while Spark takes its time.

A direct get may be answered by a replica that lags, or by a mirror. What looks like the end of the
stream before the range's end is therefore asked of the leader, and only its word counts. What a
mirror brings counts where it is proven to be what the stream holds there (`mirrors`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ..client import wire
from ..client.blocks import Direct, direct
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..client.versions import COUNTED, require, unsupported
from ..errors import (
    NotConnectedError,
    ProtocolError,
    ReadError,
    ReadTimeoutError,
    RequestTimeoutError,
)
from .appetite import appetite_of
from .dataloss import check_loss
from .decoding.replies import Columns, Messages, cut
from .decoding.rows import RowBuilder
from .mirrors import Held, Mirrors

__all__ = [
    "MAX_REQUEST_BYTES",
    "Builder",
    "DirectGets",
    "DirectRead",
    "Ending",
    "ForeignAnswerError",
    "of_bytes",
    "read_direct",
]

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 8 << 20
"""
The most one request may bring. The server counts stored bytes, not its ~190 B of headers a
message, and cuts a reader off that lags more than 64 MiB.
"""

_REQUEST_BYTES: Final = 2 << 20
"""What a request asks for."""

_REQUEST_MESSAGES: Final = 1_000
"""
What a request asks for. The server stores nothing in the stream while it answers one: larger ones
hold up whoever publishes, smaller ones the read (docs/bench.md).
"""

_FILTERED_MESSAGES: Final = 10_000
"""The same where the server filters: it counts all matches for each request, which takes longer."""

_KEPT_BYTES: Final = 2 << 20
"""A record batch is made once messages of so many bytes, as they came, have been gathered."""

_AGAIN_PAUSES_S: Final = (0.0, 0.0, 0.0, 0.0, 0.001, 0.005, 0.02)
"""Before the stream is asked again when an answer did not count; the last one from then on."""

_CAPABILITY: Final = "batched direct get"

_KNOWN_SUBJECTS: Final = 200_000


@dataclass(frozen=True, slots=True)
class DirectRead:
    """`(start, end]` of a stream: of one partition, or of all with `partition=None`."""

    partition: int | None
    stream: str
    filter: str | None
    """Filter for the server to apply; None to read everything and drop rows here."""
    start: int
    end: int
    expected: int | None
    include_headers: bool
    fail_on_data_loss: bool

    @staticmethod
    def whole(stream: str, start: int, end: int, include_headers: bool = False) -> DirectRead:
        """All that the stream still holds of `(start, end]`, however much that is."""
        return DirectRead(0, stream, None, start, end, None, include_headers, False)


class Builder(Protocol):
    """What makes a record batch of messages: `RowBuilder`, or another for another purpose."""

    def direct_batch(
        self,
        messages: Columns,
        after: int,
        upto: int,
        partition: int | None,
        classify: Callable[[bytes], int | None] | None,
        mine: bytes = b"",
    ) -> pa.RecordBatch: ...


def read_direct(
    client: Client,
    read: DirectRead,
    classify: Callable[[str], int | None] | None,
    mine: str = "",
    builder: Builder | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    The messages of the range, in order, each exactly once.

    `classify` tells a subject's partition where `filter` leaves it open. `mine` is how the subjects
    of `partition` begin: what begins otherwise is dropped before it costs much. Where `builder` is
    given, what comes is its work and not rows for Spark.

    Raises:
        ReadTimeoutError: No progress within `requestTimeout`.
        DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        ReadError: Direct get is off, or the server refuses the request.
    """
    builder = builder or RowBuilder(read.stream, read.include_headers)
    reader = _Reader(client, read, classify, mine.encode(), builder)
    patience = Patience(client.options.request_timeout_s, reader.last)
    while reader.last < read.end:
        try:
            yield from reader.requests(patience.deadline)
            why = "the replies end before the range"
        except ForeignAnswerError as foreign:
            why = str(foreign)
        except (NotConnectedError, RequestTimeoutError) as error:
            client.drop()
            why = str(error)
            if not error.retryable:
                raise
        if patience.progress(reader.last):
            continue
        if patience.over:
            raise ReadTimeoutError(
                read.stream,
                read.partition or 0,
                f"no progress beyond sequence {reader.last} of ({read.start}, {read.end}] within"
                f" {patience.timeout_s:.0f}s (requestTimeout): {why}",
            )
        patience.pause()
    check_loss(JetStream(client), read, read.partition or 0, reader.rows)


class Ending(NamedTuple):
    """The status that ends a request."""

    code: int
    text: str
    headers: dict[str, str]

    @property
    def pending(self) -> int:
        """How many messages there are beyond those that the request brought."""
        return wire.number_of(self.headers.get("Nats-Num-Pending", "0"))

    @property
    def last(self) -> int:
        """The sequence of the last message that the request brought; 0 without any."""
        return wire.number_of(self.headers.get("Nats-Last-Sequence", "0"))


class ForeignAnswerError(Exception):
    """A mirror answered something else than the stream; the next request may fare better."""


class _Request(NamedTuple):
    """A complete request that brought messages."""

    after: int
    ending: Ending
    held: Held | None = None
    """What the stream holds, where a mirror answered whose messages are to be compared with it."""


class DirectGets:
    """
    Batched direct gets of one stream, one after another over one connection.

    Their messages are kept as they come, until all are taken at once.
    """

    def __init__(self, client: Client, stream: str) -> None:
        self._connection = client.connection
        require(self._connection.version, COUNTED, _CAPABILITY)
        self._timeout_s = client.options.request_timeout_s
        self._stream = stream
        self._subject = f"{JetStream(client).prefix}.DIRECT.GET.{stream}"
        self._mirrors = Mirrors(JetStream(client), stream)
        self._names = [stream]
        """Whose messages are kept: the stream's, and those of mirrors that brought the same."""
        self._inbox = self._connection.new_inbox()
        self._sid = self._connection.subscribe(self._inbox)
        self._prefix = f"HMSG {self._inbox} {self._sid} ".encode()
        self._buffer = bytearray(2 * _KEPT_BYTES)
        self._begin = 0
        """Where the bytes of the open request begin. Before it are the messages that are kept."""
        self._end = 0
        self._after = 0
        self._filtered = False
        self._done: list[_Request] = []

    def __repr__(self) -> str:
        return f"<DirectGets of {self._stream}: {len(self._done)} requests, {self._begin} bytes>"

    @property
    def kept(self) -> int:
        """Bytes of the messages that wait to be taken, as they came."""
        return self._begin

    def close(self) -> None:
        """Ends the subscription."""
        try:
            self._connection.unsubscribe(self._sid)
        except NotConnectedError:
            logger.debug("unsubscribe failed", exc_info=True)

    def ask(self, query: Mapping[str, Any], after: int = 0) -> None:
        """Opens a request for messages beyond the sequence `after`."""
        self._after, self._filtered = after, "next_by_subj" in query
        self._connection.send(wire.pub(self._subject, json.dumps(query).encode(), self._inbox))

    def gather(self, deadline: float) -> Ending:
        """
        Reads all that the open request brings.

        Raises:
            RequestTimeoutError: Its end did not come before `deadline`.
            NotConnectedError: The connection broke.
            ForeignAnswerError: A mirror answered, and nothing proves that the stream would have
                answered the same; what it brought is dropped.
        """
        need = 1
        while True:
            self._receive(deadline, need)
            # Only the last frame is looked at now; those before it, when messages are taken.
            at = self._buffer.rfind(self._prefix, self._begin, self._end)
            if at < 0:
                need = self._sift(self._begin)
                continue
            frame, need = wire.next_frame(bytes(memoryview(self._buffer)[at : self._end]), 0)
            if not isinstance(frame, wire.Frame):
                continue
            behind = at + need
            need = self._sift(behind)
            message = direct(frame.headers)
            if message is not None:  # whatever status it was stored with
                if not message.batched:  # ADR-31: the first response, and nothing will follow
                    answering = message.stream.decode("utf-8", "replace")
                    if answering == self._stream:
                        raise unsupported(self._connection.version, COUNTED, _CAPABILITY)
                    self._end = self._begin
                    raise ForeignAnswerError(f"the mirror '{answering}' is on an old server")
                continue
            code, text = wire.status_of(frame.headers)
            if code:
                ending = Ending(code, text, dict(wire.parse_headers(frame.headers)))
                # The beginning of what the server says next belongs to whoever reads on.
                connection = self._connection
                rest = bytes(memoryview(self._buffer)[behind : self._end])
                connection.buffer, connection.pos = rest + connection.buffer[connection.pos :], 0
                self._complete(ending, at)
                return ending

    def take(self) -> Messages | None:
        """
        The messages of all complete requests, in order; None where there are none.

        Raises:
            NotConnectedError: Some were lost on their way.
        """
        done, self._done = self._done, []
        size, self._begin, self._end = self._begin, 0, 0
        if not done:
            return None
        frames = memoryview(self._buffer)[:size]
        names, self._names = self._names, [self._stream]
        messages = cut(frames, self._prefix, *names)
        if messages is None:
            messages = cut(self._sorted_out(bytes(frames)), self._prefix, *names)
        if messages is None or not messages.ascending():
            raise self._lost(done[0].after)
        row = 0
        for after, ending, held in done:
            begin = row
            # The server counts down what follows each message, and names the one before it.
            if row == len(messages) or messages.previous(row) > after:
                raise self._lost(after)
            row += messages.pending(row) - ending.pending + 1
            if not 0 < row <= len(messages) or messages.sequence(row - 1) != ending.last:
                raise self._lost(after)
            if held is not None and held.lacks(messages.sequences(begin, row)):
                raise self._lost(after)  # the mirror has as many, but not the same
        if row != len(messages):
            raise self._lost(done[-1].after)
        return messages

    def _receive(self, deadline: float, need: int) -> None:
        connection = self._connection
        if not connection.fill(deadline, need):
            raise RequestTimeoutError(self._subject, self._timeout_s)
        chunk, connection.buffer = connection.buffer, b""
        end = self._end + len(chunk)
        if end > len(self._buffer):
            self._buffer.extend(bytes(end))
        self._buffer[self._end : end] = chunk
        self._end = end

    def _complete(self, ending: Ending, at: int) -> None:
        """The open request ends with the status at `at`."""
        self._end = at
        first = self._buffer.find(self._prefix, self._begin, at)
        if first < 0:
            between = bytes(memoryview(self._buffer)[self._begin : at])
            self._end = self._begin
            if self._sorted_out(between):
                raise self._lost(self._after)
            return
        message = self._message(first)
        held: Held | None = None
        answering = message.stream.decode("utf-8", "replace") if message is not None else ""
        if answering != self._stream:
            held = self._mirrors.held(answering)
            if message is None or held is None or not self._counts(held, message, ending):
                self._end = self._begin
                raise ForeignAnswerError(
                    f"stream '{answering}' answers in its place, a mirror with other messages; if"
                    " it is older than the stream, make it again"
                )
            if answering not in self._names:
                self._names.append(answering)
        self._done.append(_Request(self._after, ending, held))
        self._begin = at

    def _counts(self, held: Held, first: Direct, ending: Ending) -> bool:
        """
        Whether the request that a mirror answered, with `first` and more, is what the stream's
        answer would be. That nothing of it is lost on its way, and that it has the same messages
        and not only as many, shows when it is taken.
        """
        if held.is_part(first.sequence, ending.last):
            return True
        count = first.pending - ending.pending + 1
        return not self._filtered and held.is_run(self._after, first.sequence, ending.last, count)

    def _message(self, at: int) -> Direct | None:
        """The header block of the message at `at`."""
        eol = self._buffer.find(wire.CRLF, at)
        size = bytes(self._buffer[at + len(self._prefix) : eol]).partition(b" ")[0]
        end = min(eol + 2 + wire.number_of(size.decode("latin-1")), self._end)
        return direct(bytes(memoryview(self._buffer)[eol + 2 : end]))

    def _sift(self, at: int) -> int:
        """
        Takes what is none of our messages out of the bytes from `at` on; says how many more are
        needed.
        """
        rest, pos, need = bytes(memoryview(self._buffer)[at : self._end]), 0, 1
        try:
            while pos < len(rest):
                received, where = wire.next_frame(rest, pos)
                if received is None:
                    need = where
                    break
                pos = where
                if isinstance(received, wire.Control):
                    self._connection.control(received)
                elif received.sid == self._sid:  # its line is not as a server writes it
                    raise ProtocolError(f"no answer to a direct get: {received.subject[:128]!r}")
        finally:
            if pos:
                self._end -= pos
                self._buffer[at : self._end] = memoryview(rest)[pos:]
        return need

    def _sorted_out(self, frames: bytes) -> bytes:
        """
        The messages without what came between them.

        Raises:
            ProtocolError: Some of it is no frame.
        """
        kept, at = [], 0
        while at < len(frames):
            received, where = wire.next_frame(frames, at)
            if received is None:
                raise ProtocolError(f"no frame: {frames[at : at + 128]!r}")
            if isinstance(received, wire.Control):
                self._connection.control(received)
            elif received.sid == self._sid:
                kept.append(frames[at:where])
            at = where
        return b"".join(kept)

    def _lost(self, after: int) -> NotConnectedError:
        return NotConnectedError(
            "the server", f"replies of a direct get were lost after sequence {after}"
        )


class _Reader:
    """How far the range is read, and the requests that read it."""

    def __init__(
        self,
        client: Client,
        read: DirectRead,
        classify: Callable[[str], int | None] | None,
        mine: bytes,
        builder: Builder,
    ) -> None:
        self.last = read.start
        """All up to here has become rows."""
        self.rows = 0
        self._client = client
        self._appetite = appetite_of(client.options)
        self._js = JetStream(client)
        self._read = read
        self._builder = builder
        self._classify = of_bytes(classify) if classify is not None else None
        self._mine = mine

    def requests(self, deadline: float) -> Iterator[pa.RecordBatch]:
        """Requests and what they bring, to the range's end or to what seems the stream's."""
        gets = DirectGets(self._client, self._read.stream)
        ready: list[pa.RecordBatch] = []
        reached, idle = self.last, 0
        try:
            self._ask(gets, reached)
            while True:
                try:
                    ending = gets.gather(deadline)
                except (ForeignAnswerError, NotConnectedError, RequestTimeoutError) as error:
                    if isinstance(error, ForeignAnswerError) and time.monotonic() < deadline:
                        idle = _again(idle)
                        self._ask(gets, reached)
                        continue
                    if not isinstance(error, ForeignAnswerError):
                        self._appetite.cut()
                    yield from ready
                    yield from self._rows(gets, reached)
                    raise
                self._appetite.fed()
                # Nothing is under way while Spark has these.
                yield from ready
                ready = []
                before, reached = reached, self._reached(ending, reached)
                goes_on = reached < self._read.end
                if reached > before:
                    idle = 0
                    deadline = time.monotonic() + self._client.options.request_timeout_s
                elif goes_on and time.monotonic() >= deadline:
                    goes_on = False
                if goes_on:
                    if not ending.pending:  # whoever answered has less than the leader
                        idle = _again(idle)
                    self._ask(gets, reached)
                if not goes_on or gets.kept >= _KEPT_BYTES:
                    ready = list(self._rows(gets, reached))
                if not goes_on:
                    yield from ready
                    return
        finally:
            gets.close()

    def _ask(self, gets: DirectGets, reached: int) -> None:
        read = self._read
        messages = _REQUEST_MESSAGES if read.filter is None else _FILTERED_MESSAGES
        query: dict[str, Any] = {
            "seq": reached + 1,
            "batch": min(self._appetite.of(messages), read.end - reached),
            # The server ends with the message that reaches it, however large that is.
            "max_bytes": self._appetite.of(
                min(MAX_REQUEST_BYTES, max(_REQUEST_BYTES, 2 * self._client.connection.max_payload))
            ),
        }
        if read.filter is not None:
            query["next_by_subj"] = read.filter
        gets.ask(query, reached)

    def _rows(self, gets: DirectGets, reached: int) -> Iterator[pa.RecordBatch]:
        """The rows of what is gathered, up to the sequence that was `reached`."""
        read = self._read
        messages = gets.take()
        if messages is not None:
            batch = self._builder.direct_batch(
                messages.columns(read.include_headers),
                self.last,
                read.end,
                read.partition,
                self._classify,
                self._mine,
            )
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch
        self.last = reached

    def _reached(self, ending: Ending, reached: int) -> int:
        """How far the range is read when a request beyond `reached` ends so."""
        read = self._read
        if ending.code == 204:
            # Beyond the last row kept there may be dropped ones.
            reached = max(reached, min(ending.last, read.end))
            if ending.pending > 0 or reached >= read.end:
                return reached
        elif ending.code == wire.NO_RESPONDERS:
            # Off, or no leader and no replica right now: the stream's own word decides.
            if not self._js.stream_info(read.stream).allow_direct:
                raise ReadError(
                    read.stream,
                    read.partition or 0,
                    "direct get is off; set allow_direct on the stream, or readMode=consumer",
                )
            return reached
        elif ending.code != 404:
            raise ReadError(
                read.stream,
                read.partition or 0,
                f"direct get answers {ending.code} {ending.text}".strip(),
            )
        # Nothing (more) up to the stream's end, says whoever answered. Only the leader knows.
        following = self._js.message_get(
            read.stream, seq=reached + 1, next_by_subj=read.filter or ">"
        )
        return read.end if following is None or following[0] > read.end else reached


def _again(idle: int) -> int:
    """Waits before the stream is asked again after `idle` answers in a row that did not count."""
    time.sleep(_AGAIN_PAUSES_S[min(idle, len(_AGAIN_PAUSES_S) - 1)])
    return idle + 1


def of_bytes(classify: Callable[[str], int | None]) -> Callable[[bytes], int | None]:
    """`classify` for subjects as they come, remembered."""
    known: dict[bytes, int | None] = {}

    def of_bytes(subject: bytes) -> int | None:
        try:
            return known[subject]
        except KeyError:
            if len(known) >= _KNOWN_SUBJECTS:
                known.clear()
            known[subject] = code = classify(subject.decode("utf-8", "replace"))
            return code

    return of_bytes
