"""
Batched direct gets (ADR-31) over one connection, and the messages they bring, as they came.

`DirectGets` has one request open at a time. In a `Pipeline` several of them share a connection, so
that requests are sent while those before them are open. Whoever answers does so in the order of
the requests, if it is one server; then the bytes of each are read in one run. Where several answer,
what comes of one between another's is kept for it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..client import wire
from ..client.blocks import Direct, direct
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.versions import COUNTED, require, unsupported
from ..errors import NotConnectedError, ProtocolError, RequestTimeoutError
from ..sanitize import get_logger
from .decoding.replies import Messages, cut
from .mirrors import Held, Mirrors

__all__ = ["KEPT_BYTES", "DirectGets", "Ending", "ForeignAnswerError", "Pipeline"]

logger = get_logger(__name__)

KEPT_BYTES: Final = 2 << 20
"""A record batch is made once messages of so many bytes, as they came, have been gathered."""

_CAPABILITY: Final = "batched direct get"


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

    Args:
        beside: others over the same connection. Of those that are open the first that was asked is
            gathered first, and what was gathered is taken before the next.
    """

    def __init__(self, client: Client, stream: str, beside: DirectGets | None = None) -> None:
        self._connection = client.connection
        require(self._connection.version, COUNTED, _CAPABILITY)
        self._timeout_s = client.options.request_timeout_s
        self._stream = stream
        self._subject = f"{JetStream(client).prefix}.DIRECT.GET.{stream}"
        self._mirrors: Mirrors = beside._mirrors if beside else Mirrors(JetStream(client), stream)
        self._names = [stream]
        """Whose messages are kept: the stream's, and those of mirrors that brought the same."""
        self._inbox = self._connection.new_inbox()
        self._sid = self._connection.subscribe(self._inbox)
        self._prefix = f"HMSG {self._inbox} {self._sid} ".encode()
        self._open: dict[int, DirectGets] = beside._open if beside else {}
        """Those with an open request, by their subscriptions."""
        self._early = bytearray()
        """Of the open request, what came between the answers to one before it."""
        self._buffer: bytearray = beside._buffer if beside else bytearray(2 * KEPT_BYTES)
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
        """Ends the subscription; what still comes on it is nobody's."""
        self._open.pop(self._sid, None)
        try:
            self._connection.unsubscribe(self._sid)
        except NotConnectedError:
            logger.debug("unsubscribe failed", exc_info=True)

    def ask(self, query: Mapping[str, Any], after: int = 0) -> None:
        """Opens a request for messages beyond the sequence `after`."""
        self._after, self._filtered, self._early = after, "next_by_subj" in query, bytearray()
        self._open[self._sid] = self
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
            message = direct(frame.headers)
            code, text = wire.status_of(frame.headers) if message is None else (0, "")
            if not code or len(self._open) == 1:
                need = self._sift(behind)
            if message is not None:  # whatever status it was stored with
                if not message.batched:  # ADR-31: the first response, and nothing will follow
                    answering = message.stream.decode("utf-8", "replace")
                    if answering == self._stream:
                        raise unsupported(self._connection.version, COUNTED, _CAPABILITY)
                    self._end = self._begin
                    raise ForeignAnswerError(f"the mirror '{answering}' is on an old server")
            elif code:
                ending = Ending(code, text, dict(wire.parse_headers(frame.headers)))
                # What the server says next belongs to whoever reads on.
                connection = self._connection
                rest = bytes(memoryview(self._buffer)[behind : self._end])
                connection.buffer, connection.pos = rest + connection.buffer[connection.pos :], 0
                self._open.pop(self._sid, None)
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
        if self._early:
            chunk, self._early = bytes(self._early), bytearray()
        else:
            if connection.pos == len(connection.buffer) and not connection.fill(deadline, need):
                raise RequestTimeoutError(self._subject, self._timeout_s)
            chunk = connection.buffer[connection.pos :]
            connection.buffer, connection.pos = b"", 0
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
            if self._open:  # the stream can be asked about it when nothing else is under way
                self._end = self._begin
                raise ForeignAnswerError(f"the mirror '{answering}' answers")
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
        Takes what is none of our messages out of the bytes from `at` on, and keeps it for those it
        is for; says how many more are needed.
        """
        rest, pos, need = bytes(memoryview(self._buffer)[at : self._end]), 0, 1
        is_sorted = False
        try:
            while pos < len(rest):
                received, where = wire.next_frame(rest, pos)
                if received is None:
                    need = where
                    break
                begin, pos = pos, where
                if isinstance(received, wire.Control):
                    self._connection.control(received)
                elif received.sid in self._open and received.sid != self._sid:
                    if not is_sorted:  # what came before it belongs before it
                        at, is_sorted = self._sort(at), True
                    self._open[received.sid]._early += rest[begin:pos]
                elif received.sid == self._sid:  # its line is not as a server writes it
                    raise ProtocolError(f"no answer to a direct get: {received.subject[:128]!r}")
        finally:
            if pos:
                self._end -= pos
                self._buffer[at : self._end] = memoryview(rest)[pos:]
        return need

    def _sort(self, at: int) -> int:
        """Takes out what stands between our messages before `at`; says where they end now."""
        ours = self._sorted_out(bytes(memoryview(self._buffer)[self._begin : at]))
        gone = at - self._begin - len(ours)
        if gone:
            end = self._end - gone
            self._buffer[self._begin : end] = ours + self._buffer[at : self._end]
            self._end = end
        return at - gone

    def _sorted_out(self, frames: bytes) -> bytes:
        """
        The messages without what came between them, which is kept for those it is for.

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
            elif received.sid in self._open:
                self._open[received.sid]._early += frames[at:where]
            at = where
        return b"".join(kept)

    def _lost(self, after: int) -> NotConnectedError:
        return NotConnectedError(
            "the server", f"replies of a direct get were lost after sequence {after}"
        )


class Pipeline:
    """Requests of one read, answered in the order in which they were asked."""

    def __init__(self, client: Client, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._free: list[DirectGets] = []
        self._asked: deque[tuple[DirectGets, int]] = deque()
        self._front = DirectGets(client, stream)
        """What was gathered last, and is to be taken."""
        self.until = 0
        """Up to which sequence the request stood that was gathered last."""

    def __repr__(self) -> str:
        return f"<Pipeline of {self._stream}: {self.under_way} requests under way>"

    @property
    def under_way(self) -> int:
        """Requests that are not gathered."""
        return len(self._asked)

    @property
    def asked_until(self) -> int:
        """Up to which sequence the requests stand that are under way; 0 where none is."""
        return self._asked[-1][1] if self._asked else 0

    @property
    def kept(self) -> int:
        """Bytes of the messages that wait to be taken, as they came."""
        return self._front.kept

    def ask(self, query: Mapping[str, Any], after: int, until: int) -> None:
        """Opens one more request, for messages beyond `after` that should reach to `until`."""
        if not self._asked:
            gets = self._front
        elif self._free:
            gets = self._free.pop()
        else:
            gets = DirectGets(self._client, self._stream, self._front)
        self._asked.append((gets, until))
        gets.ask(query, after)

    def gather(self, deadline: float) -> Ending:
        """`DirectGets.gather` of the first request that is under way."""
        gets, self.until = self._asked[0]
        if gets is not self._front:
            self._free.append(self._front)
            self._front = gets
        ending = gets.gather(deadline)
        self._asked.popleft()
        return ending

    def take(self) -> Messages | None:
        """`DirectGets.take` of what was gathered last."""
        return self._front.take()

    def abandon(self) -> None:
        """Lets go of all that is under way; whatever still comes of it is dropped."""
        for gets, _ in self._asked:
            if gets is not self._front:  # of that all has come
                gets.close()
        self._asked.clear()

    def close(self) -> None:
        """Ends the subscriptions."""
        for gets in {self._front, *self._free, *(gets for gets, _ in self._asked)}:
            gets.close()
