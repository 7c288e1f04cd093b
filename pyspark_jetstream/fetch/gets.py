"""
Batched direct gets (ADR-31) of one stream over one connection: open requests and their replies.

Requests may be sent while those before them are open; their answers are handed on in the order in
which they were asked for. One server answers in that order, and then the bytes of each answer are
read in one run. Where several servers answer, what comes of one between another's is kept for it.

Messages are kept as they came until all are taken, and cut into columns then (`decoding.replies`).
What comes is proven to be whole. ADR-31 lets mirrors answer in their origin's place, and a mirror
may hold less, more, or something else. Each message names the stream that has answered: a mirror's
answer is a `ForeignAnswerError`, and whoever asked asks the stream's leader.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..client import wire
from ..client.blocks import Direct, direct
from ..client.connection import Client
from ..client.info import Found, found_of
from ..client.jetstream import JetStream
from ..client.versions import OLDEST, require, unsupported
from ..errors import NotConnectedError, ProtocolError, ReadError, RequestTimeoutError
from ..sanitize import get_logger
from .decoding.replies import Replies, cut

logger = get_logger(__name__)

KEPT_BYTES: Final = 2 << 20
"""A record batch is made once messages of so many bytes, as they came, have been gathered."""

_FIRST_BYTES: Final = 1 << 16
"""First size of the buffer, which grows with the answers."""

_CAPABILITY: Final = "batched direct get"


class ForeignAnswerError(Exception):
    """A mirror has answered in the stream's place: what it brought is dropped."""


class Ending(NamedTuple):
    """The status that ends a request."""

    code: int
    text: str
    headers: dict[str, str]
    until: int = 0
    """Sequence that its messages should reach."""
    took_s: float = 0.0
    """
    Seconds since the answer before it; if none was under way then, since it was sent, without the
    round trip.
    """

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


class _Inbox(NamedTuple):
    """Inbox of a request."""

    subject: str
    sid: int

    @property
    def prefix(self) -> bytes:
        """First bytes of each message's line."""
        return f"HMSG {self.subject} {self.sid} ".encode()


@dataclass(slots=True)
class _Request:
    """A request: under way, or ended with messages that are not taken yet."""

    query: Mapping[str, Any]
    inbox: _Inbox
    until: int
    early: bytearray = field(default_factory=bytearray)
    """Frames of its answer that came between the answers to an earlier request."""
    ending: Ending | None = None

    @property
    def after(self) -> int:
        """The request is for messages beyond this sequence."""
        return int(self.query.get("seq", 1)) - 1


class Gets:
    """
    Requests of one stream over one connection.

    While others are under way a request has an inbox of its own. Otherwise it has that of the one
    before, so that the messages of both can be cut at one time; so what was gathered of requests
    that were under way together is taken before the next is gathered.
    """

    def __init__(self, client: Client, stream: str) -> None:
        self._client = client
        self._connection = client.connection
        self._stream = stream
        require(self._connection.version, OLDEST, _CAPABILITY)
        self._inbox = self._new_inbox()
        """Inbox of the request that is gathered, or was gathered last."""
        self._free: list[_Inbox] = []
        self._under_way: dict[int, _Request] = {}
        """By the subscriptions of their inboxes, in the order in which they were asked."""
        self._done: list[_Request] = []
        self._buffer = bytearray(_FIRST_BYTES)
        self._begin = 0
        """Place where the bytes of the first open request begin, behind those that are kept."""
        self._end = 0
        self._since = 0.0
        """Time of the previous answer, or the earliest for the next one."""

    def __repr__(self) -> str:
        return f"<Gets of {self._stream}: {self.under_way} under way, {self.kept} bytes kept>"

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._under_way)

    @property
    def asked_until(self) -> int:
        """Sequence that the requests under way should reach; 0 where none is."""
        return next(reversed(self._under_way.values())).until if self._under_way else 0

    @property
    def kept(self) -> int:
        """Bytes of the messages that wait to be taken, as they came."""
        return self._begin

    def close(self) -> None:
        """Ends the subscriptions; what still comes on them is nobody's."""
        open_ = (request.inbox for request in self._under_way.values())
        for inbox in {self._inbox, *self._free, *open_}:
            self._unsubscribe(inbox)
        self._under_way.clear()

    def ask(self, query: Mapping[str, Any], until: int = 0) -> None:
        """Sends a request, for messages that should reach to the sequence `until`."""
        inbox = self._inbox
        if not self._under_way:
            self._since = time.monotonic() + self._connection.round_trip_s
        else:
            inbox = self._free.pop() if self._free else self._new_inbox()
        self._under_way[inbox.sid] = _Request(query, inbox, until)
        data = json.dumps(query).encode()
        self._connection.send(wire.pub(self._subject, data, inbox.subject))

    def gather(self, deadline: float) -> Ending:
        """
        Reads all that the first request brings that is under way.

        Raises:
            RequestTimeoutError: Its end did not come before `deadline`.
            NotConnectedError: The connection broke.
            ForeignAnswerError: A mirror answered; what it brought is dropped.
        """
        request = next(iter(self._under_way.values()))
        if request.inbox is not self._inbox:
            self._free.append(self._inbox)
            self._inbox = request.inbox
        prefix, need = request.inbox.prefix, 1
        while True:
            self._receive(request, deadline, need)
            # Only the last frame is looked at now; those before it, when messages are taken.
            at = self._buffer.rfind(prefix, self._begin, self._end)
            if at < 0:
                need = self._sift(self._begin)
                continue
            frame, need = wire.next_frame(bytes(memoryview(self._buffer)[at : self._end]), 0)
            if not isinstance(frame, wire.Frame):
                continue
            behind = at + need
            message = direct(frame.headers)
            code, text = wire.status_of(frame.headers) if message is None else (0, "")
            if not code or len(self._under_way) == 1:
                need = self._sift(behind)
            if message is not None:  # whatever status it was stored with
                if not message.batched:  # ADR-31: the first response, and nothing will follow
                    raise self._unbatched(request, message)
            elif code:
                now = time.monotonic()
                took_s, self._since = now - self._since, now
                # What the server says next belongs to whoever reads on.
                connection = self._connection
                rest = bytes(memoryview(self._buffer)[behind : self._end])
                connection.buffer, connection.pos = rest + connection.buffer[connection.pos :], 0
                headers = dict(wire.parse_headers(frame.headers))
                request.ending = Ending(code, text, headers, request.until, took_s)
                self._complete(request, at)
                return request.ending

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
        frames, prefix = memoryview(self._buffer)[:size], done[0].inbox.prefix
        replies = cut(frames, prefix, self._stream)
        if replies is None:
            replies = cut(self._sorted_out(bytes(frames), done[0].inbox.sid), prefix, self._stream)
        if replies is None or not replies.ascending():
            raise self._lost(done[0])
        row = 0
        for request in done:
            ending = request.ending
            assert ending is not None
            # The server counts down what follows each message, and names the one before it.
            if row == len(replies) or replies.previous(row) > request.after:
                raise self._lost(request)
            row += replies.pending(row) - ending.pending + 1
            if not 0 < row <= len(replies) or replies.sequence(row - 1) != ending.last:
                raise self._lost(request)
        if row != len(replies):
            raise self._lost(done[-1])
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
        for request in done:
            stream, previous = self._stream.encode(), 0
            frames = bytes(memoryview(self._buffer)[:size])
            for _, _, frame in self._messages(frames, request.inbox.sid):
                got = direct(frame.headers)
                if got is None or got.stream != stream or got.previous != previous:
                    raise self._lost(request)
                found.append(found_of(got, frame.data))
                previous = got.sequence
            if request.ending is None or previous != request.ending.last:
                raise self._lost(request)
        return found

    def abandon(self) -> None:
        """Lets go of all that is under way; whatever still comes of it is dropped."""
        for request in self._under_way.values():
            self._unsubscribe(request.inbox)
            if request.inbox is self._inbox:
                self._inbox = self._new_inbox()
        self._under_way.clear()

    # ── bytes as they come ───────────────────────────────────────────────────────────────────

    @property
    def _subject(self) -> str:
        return f"{self._client.options.api_prefix}.DIRECT.GET.{self._stream}"

    def _new_inbox(self) -> _Inbox:
        subject = self._connection.new_inbox()
        return _Inbox(subject, self._connection.subscribe(subject))

    def _unsubscribe(self, inbox: _Inbox) -> None:
        try:
            self._connection.unsubscribe(inbox.sid)
        except NotConnectedError:
            logger.debug("unsubscribe failed", exc_info=True)

    def _receive(self, request: _Request, deadline: float, need: int) -> None:
        connection = self._connection
        if request.early:
            chunk, request.early = bytes(request.early), bytearray()
        else:
            if connection.pos == len(connection.buffer) and not connection.fill(deadline, need):
                raise RequestTimeoutError(self._subject, self._client.options.request_timeout_s)
            chunk = connection.buffer[connection.pos :]
            connection.buffer, connection.pos = b"", 0
        end = self._end + len(chunk)
        if end > len(self._buffer):
            self._buffer.extend(bytes(end))
        self._buffer[self._end : end] = chunk
        self._end = end

    def _drop(self, request: _Request) -> None:
        """Drops the first request and the frames of its answer."""
        self._under_way.pop(request.inbox.sid, None)
        self._end = self._begin

    def _unbatched(self, request: _Request, message: Direct) -> Exception:
        """The error for a message of a server that is too old for batches."""
        if message.stream == self._stream.encode():
            return unsupported(self._connection.version, OLDEST, _CAPABILITY)
        return self._foreign(request, message)

    def _foreign(self, request: _Request, message: Direct | None) -> ForeignAnswerError:
        """The error for an answer of another stream, which is dropped."""
        self._drop(request)
        name = message.stream.decode("utf-8", "replace") if message is not None else ""
        return ForeignAnswerError(f"the mirror '{name}' answers in its place")

    def _complete(self, request: _Request, at: int) -> None:
        """The first request ends with the status at `at`."""
        self._under_way.pop(request.inbox.sid)
        self._end = at
        first = self._buffer.find(request.inbox.prefix, self._begin, at)
        if first < 0:
            between = bytes(memoryview(self._buffer)[self._begin : at])
            self._end = self._begin
            if self._sorted_out(between, request.inbox.sid):
                raise self._lost(request)
            return
        message = self._message(first, request.inbox.prefix)
        if message is None or message.stream != self._stream.encode():
            raise self._foreign(request, message)
        self._done.append(request)
        self._begin = at

    def _message(self, at: int, prefix: bytes) -> Direct | None:
        """The header block of the message at `at`."""
        eol = self._buffer.find(wire.CRLF, at)
        size = bytes(self._buffer[at + len(prefix) : eol]).partition(b" ")[0]
        end = min(eol + 2 + wire.number_of(size.decode("latin-1")), self._end)
        return direct(bytes(memoryview(self._buffer)[eol + 2 : end]))

    def _sift(self, at: int) -> int:
        """
        Takes what is none of the first request's out of the bytes from `at` on, and keeps it for
        the requests it is for; returns how many more bytes are needed.
        """
        rest, pos, need = bytes(memoryview(self._buffer)[at : self._end]), 0, 1
        ours, is_sorted = self._inbox.sid, False
        try:
            while pos < len(rest):
                received, where = wire.next_frame(rest, pos)
                if received is None:
                    need = where
                    break
                begin, pos = pos, where
                if isinstance(received, wire.Control):
                    self._connection.control(received)
                elif received.sid == ours:  # its line is not as a server writes it
                    raise ProtocolError(f"no answer to a direct get: {received.subject[:128]!r}")
                elif received.sid in self._under_way:
                    if not is_sorted:  # what came before it belongs before it
                        at, is_sorted = self._sort(at), True
                    self._under_way[received.sid].early += rest[begin:pos]
        finally:
            if pos:
                self._end -= pos
                self._buffer[at : self._end] = memoryview(rest)[pos:]
        return need

    def _sort(self, at: int) -> int:
        """Takes out what stands between our messages before `at`; returns where they end now."""
        before = bytes(memoryview(self._buffer)[self._begin : at])
        ours = self._sorted_out(before, self._inbox.sid)
        gone = at - self._begin - len(ours)
        if gone:
            end = self._end - gone
            self._buffer[self._begin : end] = ours + self._buffer[at : self._end]
            self._end = end
        return at - gone

    def _sorted_out(self, frames: bytes, ours: int) -> bytes:
        """The bytes of `_messages`."""
        return b"".join(frames[at:end] for at, end, _ in self._messages(frames, ours))

    def _messages(self, frames: bytes, ours: int) -> Iterator[tuple[int, int, wire.Frame]]:
        """
        The messages of one subscription, and from where to where each reaches. What came between
        them is kept for the requests it is for.

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
            elif received.sid == ours:
                yield at, where, received
            elif received.sid in self._under_way:
                self._under_way[received.sid].early += frames[at:where]
            at = where

    def _lost(self, request: _Request) -> NotConnectedError:
        return NotConnectedError(
            "the server", f"replies of a direct get were lost after sequence {request.after}"
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
