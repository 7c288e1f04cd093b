"""
Batched direct gets (ADR-31) of one stream over one connection: requests, one after the other.

A request is sent before what the one before it has brought is made rows, so server and client work
at the same time. Messages are kept as they came until all are taken, and cut into columns then
(`decoding.replies`).

What comes is proven to be whole. ADR-31 lets mirrors answer in their origin's place, and a mirror
may hold less, more, or something else. Each message names the stream that has answered: a mirror's
answer is a `ForeignAnswerError`, and whoever asked asks the stream's leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ..client import wire
from ..client.blocks import Direct, direct
from ..client.connection import Client
from ..client.info import Found, found_of
from ..client.jetstream import JetStream
from ..client.peer import OLDEST, unsupported
from ..errors import NotConnectedError, ProtocolError, ReadError, RequestTimeoutError
from .decoding.replies import Replies, cut

KEPT_BYTES: Final = 2 << 20
"""A record batch is made once messages of so many bytes, as they came, have been gathered."""

LEADERS: Final = 100
"""Messages that the leader is asked for one by one, where a mirror has answered in its place."""

_FIRST_BYTES: Final = 1 << 16
"""First size of the buffer, which grows with the answers."""


class ForeignAnswerError(Exception):
    """A mirror has answered in the stream's place: what it brought is dropped."""


class Ending(NamedTuple):
    """The status that ends a request."""

    code: int
    text: str
    headers: dict[str, str]

    @property
    def pending(self) -> int:
        """Number of messages behind those of the request."""
        return wire.number_of(self.headers.get("Nats-Num-Pending", "0"))

    @property
    def last(self) -> int:
        """The sequence of the last message that the request brought; 0 without any."""
        return wire.number_of(self.headers.get("Nats-Last-Sequence", "0"))

    @property
    def up_to(self) -> int | None:
        """`multi_last`: the sequence of the answer's point in time."""
        text = self.headers.get("Nats-UpTo-Sequence")
        return wire.number_of(text) if text is not None else None


class _Done(NamedTuple):
    """A request that has ended, with messages that are not taken yet."""

    after: int
    """It was for messages beyond this sequence."""
    ending: Ending


class Gets:
    """Requests of one stream over one connection."""

    def __init__(self, client: Client, stream: str) -> None:
        self._client = client
        self._connection = client.connection
        self._stream = stream
        self._subject = f"{client.options.api_prefix}.DIRECT.GET.{stream}"
        self._inbox = self._connection.new_inbox()
        self._sid = self._connection.subscribe(self._inbox)
        self._prefix = f"HMSG {self._inbox} {self._sid} ".encode()
        """First bytes of each message's line."""
        self._after = 0
        """The request that is under way is for messages beyond this sequence."""
        self._done: list[_Done] = []
        self._buffer = bytearray(_FIRST_BYTES)
        self._begin = 0
        """Place where the bytes of the request under way begin, behind those that are kept."""
        self._end = 0

    @property
    def kept(self) -> int:
        """Bytes of the messages that wait to be taken, as they came."""
        return self._begin

    def close(self) -> None:
        """Ends the subscription; what still comes on it is nobody's."""
        with suppress(NotConnectedError):
            self._connection.unsubscribe(self._sid)

    def ask(self, query: Mapping[str, Any]) -> None:
        """Sends a request, when the one before has ended."""
        self._after = int(query.get("seq", 1)) - 1
        self._connection.send(wire.pub(self._subject, json.dumps(query).encode(), self._inbox))

    def gather(self, deadline: float) -> Ending:
        """
        Reads all that the request brings.

        Raises:
            RequestTimeoutError: Its end did not come before `deadline`.
            NotConnectedError: The connection broke.
            ForeignAnswerError: A mirror answered; what it brought is dropped.
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
            code, text = wire.status_of(frame.headers) if message is None else (0, "")
            if message is not None:  # whatever status it was stored with
                if not message.batched:  # ADR-31: the first response, and nothing will follow
                    if message.stream != self._stream.encode():
                        raise self._foreign(message)
                    raise unsupported(self._connection.version, OLDEST, "batched direct get")
            elif code:
                # What the server says next belongs to whoever reads on.
                connection = self._connection
                rest = bytes(memoryview(self._buffer)[behind : self._end])
                connection.buffer, connection.pos = rest + connection.buffer[connection.pos :], 0
                ending = Ending(code, text, dict(wire.parse_headers(frame.headers)))
                self._complete(ending, at)
                return ending

    def take(self) -> Replies | None:
        """
        The messages of all requests that have ended, in order; None where there are none.

        Raises:
            NotConnectedError: Some were lost on their way.
        """
        done, self._done = self._done, []
        size, self._begin, self._end = self._begin, 0, 0
        if not done:
            return None
        frames = memoryview(self._buffer)[:size]
        replies = cut(frames, self._prefix, self._stream)
        if replies is None:
            ours = b"".join(frames[at:end] for at, end, _ in self._messages(bytes(frames)))
            replies = cut(ours, self._prefix, self._stream)
        if replies is None or not replies.ascending():
            raise _lost(done[0].after)
        row = 0
        for after, ending in done:
            # The server counts down what follows each message, and names the one before it.
            if row == len(replies) or replies.previous(row) > after:
                raise _lost(after)
            row += replies.pending(row) - ending.pending + 1
            if not 0 < row <= len(replies) or replies.sequence(row - 1) != ending.last:
                raise _lost(after)
        if row != len(replies):
            raise _lost(done[-1].after)
        return replies

    def take_each(self) -> list[Found]:
        """
        `take` of one request that has ended, a message at a time: quicker where there are few. Each
        is proven by the one before it that it names.

        Raises:
            NotConnectedError: Some were lost on their way.
        """
        done, self._done = self._done, []
        size, self._begin, self._end = self._begin, 0, 0
        found: list[Found] = []
        for after, ending in done:
            stream, previous = self._stream.encode(), 0
            frames = bytes(memoryview(self._buffer)[:size])
            for _, _, frame in self._messages(frames):
                got = direct(frame.headers)
                if got is None or got.stream != stream or got.previous != previous:
                    raise _lost(after)
                found.append(found_of(got, frame.data))
                previous = got.sequence
            if previous != ending.last:
                raise _lost(after)
        return found

    # ── bytes as they come ───────────────────────────────────────────────────────────────────

    def _receive(self, deadline: float, need: int) -> None:
        connection = self._connection
        if connection.pos == len(connection.buffer) and not connection.fill(deadline, need):
            raise RequestTimeoutError(self._subject, self._client.options.request_timeout_s)
        chunk = connection.buffer[connection.pos :]
        connection.buffer, connection.pos = b"", 0
        end = self._end + len(chunk)
        if end > len(self._buffer):
            self._buffer.extend(bytes(end))
        self._buffer[self._end : end] = chunk
        self._end = end

    def _foreign(self, message: Direct | None) -> ForeignAnswerError:
        """The error for an answer of another stream, which is dropped."""
        self._end = self._begin
        name = message.stream.decode("utf-8", "replace") if message is not None else ""
        return ForeignAnswerError(f"the mirror '{name}' answers in its place")

    def _complete(self, ending: Ending, at: int) -> None:
        """The request ends with the status at `at`."""
        self._end = at
        first = self._buffer.find(self._prefix, self._begin, at)
        if first < 0:
            between = bytes(memoryview(self._buffer)[self._begin : at])
            self._end = self._begin
            if any(self._messages(between)):
                raise _lost(self._after)
            return
        message = self._message(first)
        if message is None or message.stream != self._stream.encode():
            raise self._foreign(message)
        self._done.append(_Done(self._after, ending))
        self._begin = at

    def _message(self, at: int) -> Direct | None:
        """The header block of the message at `at`."""
        eol = self._buffer.find(wire.CRLF, at)
        size = bytes(self._buffer[at + len(self._prefix) : eol]).partition(b" ")[0]
        end = min(eol + 2 + wire.number_of(size.decode("latin-1")), self._end)
        return direct(bytes(memoryview(self._buffer)[eol + 2 : end]))

    def _sift(self, at: int) -> int:
        """
        Takes what is none of the request's out of the bytes from `at` on; returns how many more
        bytes are needed.
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

    def _messages(self, frames: bytes) -> Iterator[tuple[int, int, wire.Frame]]:
        """
        The messages, and from where to where each reaches; what came between them is left out.

        Raises:
            ProtocolError: Some of it is no frame.
        """
        at = 0
        while at < len(frames):
            received, where = wire.next_frame(frames, at)
            if received is None:
                raise ProtocolError(f"no frame: {frames[at : at + 128]!r}")
            if isinstance(received, wire.Control):
                self._connection.control(received)
            elif received.sid == self._sid:
                yield at, where, received
            at = where


def _lost(after: int) -> NotConnectedError:
    return NotConnectedError(
        "the server", f"replies of a direct get were lost after sequence {after}"
    )


def of_leader(js: JetStream, stream: str, query: Mapping[str, Any], most: int) -> list[Found]:
    """
    Up to `most` messages in order, one by one from the stream's leader.

    Args:
        query: where to begin (`seq`, `start_time`), and a filter (`next_by_subj`) or none.
    """
    fields = ("seq", "start_time", "next_by_subj")
    query = {"next_by_subj": ">"} | {name: query[name] for name in fields if name in query}
    found: list[Found] = []
    while len(found) < most:
        (message,) = js.messages_of([(stream, query)])
        if message is None:
            break
        found.append(message.found)
        query = {"next_by_subj": query["next_by_subj"], "seq": message.sequence + 1}
    return found


def check_on(js: JetStream, stream: str, partition: int = 0) -> None:
    """
    Accepts that nobody answers direct gets: no leader and no replica may be there right now.

    Raises:
        ReadError: They are off, by the stream's own word.
    """
    if not js.stream_info(stream).allow_direct:
        raise ReadError(
            stream,
            partition,
            f"direct get is off; set allow_direct on the stream (`nats stream edit {stream}"
            " --allow-direct`)",
        )
