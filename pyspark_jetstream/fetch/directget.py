"""
Reading a range of a stream by batched direct get (ADR-31).

A request names the sequence to begin at and how much may come; the server sends that much without
flow control and ends with a 204 EOB. So both bounds are always given, and the range's end is cut
off here, because the server ignores `up_to_seq` in these requests.

Publishers into the stream wait for all that was asked for (`pace`). So a request is small,
and a record batch is made of many. The next request is sent before a batch is made, and its answer
is read to the end before Spark gets the batch: server and worker work at the same time, and nothing
waits in a socket while Spark takes its time.

A replica that lags, or a mirror, may answer a direct get. If the stream seems to end before the
range does, the leader is asked, and only its answer counts. If a mirror has answered, the leader is
asked for the messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from ..client import wire
from ..client.connection import Client, away_s
from ..client.jetstream import behind
from ..client.patience import Patience
from ..errors import (
    JetStreamError,
    NotConnectedError,
    ReadError,
    RequestTimeoutError,
)
from ..sanitize import get_logger
from .dataloss import is_read
from .decoding.replies import Columns
from .decoding.rows import Builder
from .gets import KEPT_BYTES, LEADERS, Ending, ForeignAnswerError, Gets, check_on, of_leader
from .layout import Slice
from .pace import FAR_S, busy_messages
from .sessions import Attempt, Superseded

logger = get_logger(__name__)

MAX_REQUEST_BYTES: Final = 8 << 20
"""
The most one request may bring. The server counts stored bytes, not its ~190 B of headers a
message, and cuts a reader off that lags more than 64 MiB.
"""

_REQUEST_BYTES: Final = 2 << 20
"""Bytes that a request asks for."""

_REQUEST_MESSAGES: Final = 1_000
"""
Messages that a request asks for at the most: larger ones hold up publishers, much smaller
ones the read (docs/bench.md).
"""

_FAR_MESSAGES: Final = 20_000
"""Messages of a request to a server far away, with as many bytes as one may bring."""

_FILTERED_MESSAGES: Final = 10_000
"""Messages of a request with a filter: the server counts all matches for each, which takes long."""

_LOOK_S: Final = 1.0
"""Time-out of a look at the stream, beside the round trip."""


def read_direct(
    client: Client, read: Slice, builder: Builder | None = None
) -> Iterator[pa.RecordBatch]:
    """
    The messages of the range, in order, each exactly once.

    Args:
        builder: makes something else of them than rows of `read.partition`.

    Raises:
        ReadTimeoutError: No progress within `requestTimeout`.
        DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        ReadError: Direct get is off, or the server refuses the request.
    """
    return _RangeReader(client, read, builder).batches()


class _RangeReader(Attempt):
    """Reads a range by requests, up to the position that is proven."""

    def _session(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        """Requests and what they bring, to the range's end or to what seems the stream's."""
        try:
            yield from self._requests(patience)
        except ForeignAnswerError as foreign:
            yield from self._of_leader()
            raise Superseded(str(foreign)) from foreign

    def _requests(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        is_far = away_s(self._client.connection) >= FAR_S
        gets = Gets(self._client, self._read.stream)
        ready: list[pa.RecordBatch] = []
        reached = self.last
        try:
            self._ask(gets, reached, is_far)
            while True:
                try:
                    ending = gets.gather(patience.deadline)
                except (ForeignAnswerError, NotConnectedError, RequestTimeoutError) as error:
                    if not isinstance(error, ForeignAnswerError):
                        self._appetite.shrink()
                    yield from ready
                    ready = []
                    yield from self._rows(gets, reached)
                    raise
                self._appetite.grow()
                yield from ready  # nothing is under way while Spark has these
                ready = []
                before, reached = reached, self._reached(ending, reached)
                goes_on = reached < self._read.end
                if reached > before:
                    patience.renew()
                elif goes_on and patience.over:
                    goes_on = False
                if goes_on:
                    if not ending.pending:  # whoever answered has less than the leader
                        patience.pause()
                    self._ask(gets, reached, is_far)
                if not goes_on or gets.kept >= KEPT_BYTES:
                    ready = list(self._rows(gets, reached))
                if not goes_on:
                    yield from ready
                    ready = []
                    return
        except JetStreamError:
            # They count as read (`last`): whatever broke since, nobody asks for them again.
            yield from ready
            raise
        finally:
            gets.close()

    def _of_leader(self) -> Iterator[pa.RecordBatch]:
        """What follows, where a mirror answers in its place: of many by a consumer's deliveries."""
        from .pulling.alone import ConsumerRefusedError, OwnAttempt  # of mirrored streams alone

        read, js = self._read, self._js
        if read.end - self.last > LEADERS and js.stream_info(read.stream).retention == "limits":
            rest = replace(read, start=self.last, expected=0)
            attempt = OwnAttempt(self._client, rest, self._builder)
            try:
                yield from attempt.batches()
            except ConsumerRefusedError as refused:
                logger.info("stream=%s is read from its leader: %s", read.stream, refused)
            finally:
                self.last, self.rows = attempt.last, self.rows + attempt.rows
            if self.last == read.end:
                return
        found = of_leader(js, read.stream, behind(self.last, read.filter), LEADERS)
        reached = found[-1].sequence if len(found) == LEADERS else read.end
        columns = Columns.of(found) if found else None
        yield from self._handed_on(columns, min(reached, read.end))

    def _ask(self, gets: Gets, reached: int, is_far: bool) -> None:
        """Sends the next request."""
        read, options = self._read, self._client.options
        most = _FAR_MESSAGES if is_far else _REQUEST_MESSAGES
        most = most if read.filter is None else _FILTERED_MESSAGES
        if options.max_publish_delay_s is not None:
            most = min(most, busy_messages(options.max_publish_delay_s))
        usual = MAX_REQUEST_BYTES if is_far else _REQUEST_BYTES
        # The server ends with the message that reaches it, however large that is.
        max_bytes = min(MAX_REQUEST_BYTES, max(usual, 2 * self._client.connection.max_payload))
        limits = {
            "batch": min(self._appetite.limit(most), read.end - reached),
            "max_bytes": self._appetite.limit(max_bytes),
        }
        gets.ask(behind(reached, read.filter) | limits)

    def _rows(self, gets: Gets, reached: int) -> Iterator[pa.RecordBatch]:
        """The rows of what is gathered, up to the sequence that was `reached`."""
        replies = gets.take()
        columns = replies.columns(self._read.include_headers) if replies is not None else None
        yield from self._handed_on(columns, reached)

    def _handed_on(self, columns: Columns | None, reached: int) -> Iterator[pa.RecordBatch]:
        if columns is not None:
            batch = self._builder.batch(columns, self.last, self._read.end)
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch
        self.last = reached

    def _reached(self, ending: Ending, reached: int) -> int:
        """Position up to which the range is read, when a request beyond `reached` ends so."""
        read = self._read
        if ending.code == 204:
            # Beyond the last row kept there may be dropped ones.
            reached = max(reached, min(ending.last, read.end))
            if ending.pending > 0 or reached >= read.end:
                return reached
        elif ending.code == wire.NO_RESPONDERS:
            check_on(self._js, read.stream, read.partition or 0)
            return reached
        elif ending.code != 404:
            raise ReadError(
                read.stream,
                read.partition or 0,
                f"direct get answers {ending.code} {ending.text}".strip(),
            )
        # Nothing (more) up to the stream's end, says whoever answered. Only the leader knows.
        return read.end if is_read(self._js, read, reached) else reached
