"""
Reading a range of a stream by batched direct get (ADR-31).

A request names the sequence to begin at and how much may come; the server sends that much without
flow control and ends with a 204 EOB. So both bounds are always given, and the range's end is cut
off here, because the server ignores `up_to_seq` in these requests.

A direct get may be answered by a replica that lags. What looks like the end of the stream before
the range's end is therefore asked of the leader, and only its word counts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from . import wire
from .client import Client, Connection
from .errors import (
    NotConnectedError,
    ReadError,
    ReadTimeoutError,
    RequestTimeoutError,
)
from .jetstream import JetStream
from .loss import check_loss
from .rows import DirectFrames, RowBuilder, integers

__all__ = ["MAX_REQUEST_BYTES", "DirectRead", "read_direct"]

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 8 << 20
"""
The most one request may bring. The server counts stored bytes, not its ~190 B of headers a
message, and cuts a reader off that lags more than 64 MiB.
"""

_REQUEST_BYTES: Final = 2 << 20
"""What a request asks for: as fast as the most, and writers wait less behind it."""

_REQUEST_MESSAGES: Final = 10_000
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


def read_direct(
    client: Client,
    read: DirectRead,
    classify: Callable[[str], int | None] | None,
    mine: str = "",
) -> Iterator[pa.RecordBatch]:
    """
    The messages of the range, in order, each exactly once.

    `classify` tells a subject's partition where `filter` leaves it open. `mine` is how the subjects
    of `partition` begin: what begins otherwise is dropped before it costs much.

    Raises:
        ReadTimeoutError: No progress within `requestTimeout`.
        DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        ReadError: Direct get is off, or the server refuses the request.
    """
    reader = _Reader(client, read, classify, mine.encode())
    timeout_s = client.options.request_timeout_s
    deadline = time.monotonic() + timeout_s
    while reader.last < read.end:
        before = reader.last
        try:
            yield from reader.request(deadline)
            why = "the replies end before the range"
        except _ForeignAnswerError as foreign:
            why = str(foreign)
        except (NotConnectedError, RequestTimeoutError) as error:
            client.drop()
            why = str(error)
            if not error.retryable:
                raise
        if reader.last > before:
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() >= deadline:
            raise ReadTimeoutError(
                read.stream,
                read.partition or 0,
                f"no progress beyond sequence {reader.last} of ({read.start}, {read.end}] within"
                f" {timeout_s:.0f}s (requestTimeout): {why}",
            )
        else:
            time.sleep(0.05)
    check_loss(JetStream(client), read, read.partition or 0, reader.rows)


class _ForeignAnswerError(Exception):
    """A mirror answered, which may hold less than the stream; the next request may fare better."""


class _Reader:
    """How far the range is read, and the requests that read it."""

    def __init__(
        self,
        client: Client,
        read: DirectRead,
        classify: Callable[[str], int | None] | None,
        mine: bytes,
    ) -> None:
        self.last = read.start
        self.rows = 0
        self._client = client
        self._js = JetStream(client)
        self._read = read
        self._builder = RowBuilder(read.stream, read.include_headers)
        self._frames = DirectFrames(read.stream, read.include_headers)
        self._classify = _of_bytes(classify) if classify is not None else None
        self._mine = mine
        self._total: int | None = None
        """What a message's place in its request and its pending count add up to."""

    def request(self, deadline: float) -> Iterator[pa.RecordBatch]:
        """One request and all it brings."""
        read, frames = self._read, self._frames
        connection = self._client.connection
        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)
        frames.begin()
        self._total = None
        try:
            connection.send(wire.pub(
                f"{self._js.prefix}.DIRECT.GET.{read.stream}", self._query(connection), inbox
            ))  # fmt: skip
            prefix = f"HMSG {inbox} {sid} ".encode()
            while True:
                connection.pos = frames.scan(connection.buffer, connection.pos, prefix, self._mine)
                if frames.full:
                    yield from self._flush()
                    deadline = time.monotonic() + self._client.options.request_timeout_s
                    continue
                found, where = wire.next_frame(connection.buffer, connection.pos)
                if found is None:
                    if not connection.fill(deadline, where):
                        raise RequestTimeoutError(
                            f"DIRECT.GET.{read.stream}", self._client.options.request_timeout_s
                        )
                    continue
                connection.pos = where
                if isinstance(found, wire.Control):
                    connection.control(found)
                elif found.sid == sid:
                    if len(frames):
                        yield from self._flush()
                    self._end(found)
                    return
        finally:
            try:
                connection.unsubscribe(sid)
            except NotConnectedError:
                logger.debug("unsubscribe failed", exc_info=True)

    def _query(self, connection: Connection) -> bytes:
        read = self._read
        query: dict[str, Any] = {
            "seq": self.last + 1,
            "batch": min(_REQUEST_MESSAGES, read.end - self.last),
            # At least two of the largest messages, or a request could come back empty.
            "max_bytes": min(MAX_REQUEST_BYTES, max(_REQUEST_BYTES, 2 * connection.max_payload)),
        }
        if read.filter is not None:
            query["next_by_subj"] = read.filter
        return json.dumps(query).encode()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        read, frames = self._read, self._frames
        # The server counts down what follows each message: a jump was lost on its way.
        totals = pc.add(integers(frames.pendings), pa.array(frames.ordinals, pa.int64()))
        if self._total is None:
            self._total = totals[0].as_py()
        if not pc.all(pc.equal(totals, self._total)).as_py():
            frames.clear()
            raise NotConnectedError(
                "the server", f"replies of a direct get were lost after sequence {self.last}"
            )
        last = int(frames.sequences[-1])
        batch = self._builder.direct_batch(
            frames, self.last, read.end, read.partition, self._classify
        )
        frames.clear()
        self.last = max(self.last, min(last, read.end))
        self.rows += batch.num_rows
        if batch.num_rows:
            yield batch

    def _end(self, frame: wire.Frame) -> None:
        """What the reply that ends a request says."""
        read = self._read
        code, text = wire.status_of(frame.headers)
        if code == 0:
            answering = dict(wire.parse_headers(frame.headers)).get("Nats-Stream")
            if answering != read.stream:
                raise _ForeignAnswerError(
                    f"stream '{answering}' answers in its place, a mirror; set mirror_direct=false"
                    " on it, or read it by its own name"
                )
        if code == 204:
            headers = dict(wire.parse_headers(frame.headers))
            pending = int(headers.get("Nats-Num-Pending", 0))
            if self._total is not None and self._total != pending + self._frames.seen - 1:
                raise NotConnectedError("the server", "the last replies of a direct get were lost")
            # Beyond the last row kept there may be dropped ones.
            last = int(headers.get("Nats-Last-Sequence", self.last))
            self.last = max(self.last, min(last, read.end))
            if pending > 0 or self.last >= read.end:
                return
        elif code == wire.NO_RESPONDERS:
            # Off, or no leader and no replica right now: the stream's own word decides.
            if not self._js.stream_info(read.stream).allow_direct:
                raise ReadError(
                    read.stream,
                    read.partition or 0,
                    "direct get is off; set allow_direct on the stream, or readMode=consumer",
                )
            return
        elif code != 404:
            raise ReadError(
                read.stream, read.partition or 0, f"direct get answers {code} {text}".strip()
            )
        # Nothing (more) up to the stream's end, says whoever answered. Only the leader knows.
        following = self._js.message_get(
            read.stream, seq=self.last + 1, next_by_subj=read.filter or ">"
        )
        if following is None or following[0] > read.end:
            self.last = read.end


def _of_bytes(classify: Callable[[str], int | None]) -> Callable[[bytes], int | None]:
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
