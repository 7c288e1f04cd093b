"""
Reading a range through a consumer of one attempt: it is not shared, so it needs no fence.

It is made where the range begins, in memory, of one replica, without acks, and deleted when the
read ends, however it ends; where nobody comes back to do that, the server deletes it. It stands in
the query's priority group with the policy `overflow` and no thresholds: without a pin no message
has a header line of it, and the server spends a third less.

What makes the rows exactly the messages of the range: the server counts a consumer's deliveries,
without a gap, from 1 on. Where a number is missing, or the consumer is gone, its server is, or the
connection broke, the session ends, and another consumer is made behind the last row that was handed
on, until `requestTimeout` has passed without a message. Only streams with retention `limits` are
read so: elsewhere a consumer decides what the stream keeps.

Where the server makes none (`ConsumerRefusedError`), another way has to read the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import is_all
from ...client import wire
from ...client.blocks import ACKS, stored_before
from ...client.connection import Client, Connection
from ...client.patience import Patience
from ...errors import (
    ApiError,
    JetStreamError,
    NotConnectedError,
    PermissionsError,
)
from ...sanitize import get_logger
from ..dataloss import is_read
from ..decoding.deliveries import Deliveries
from ..decoding.rows import Builder
from ..durable import create
from ..layout import Slice
from ..own import GROUP, new_name, own_config
from ..sessions import Attempt, Superseded
from .pulls import Pulls, Status, status_of

logger = get_logger(__name__)

_FEW_MESSAGES: Final = 256
"""Messages of a pull where all counted messages have come, and the range is not read."""

_DELETE_S: Final = 3.0
"""Time-out of the consumer's deletion at the end of a read."""


class ConsumerRefusedError(Exception):
    """The server makes no consumer for this user, none any more, or none to be pulled from so."""


class OwnAttempt(Attempt):
    """
    The messages of a range, whatever happens to the consumer meanwhile.

    Args:
        group: the priority group of the consumer.
    """

    def __init__(
        self, client: Client, read: Slice, builder: Builder | None = None, group: str = GROUP
    ) -> None:
        super().__init__(client, read, builder)
        self._group = group
        self._consumer = ""
        """The consumer that was made and not deleted."""
        self._at: Connection | None = None
        """The connection on which it was made."""
        self._frames = Deliveries(read.include_headers)
        self._delivered = 0
        """Deliveries the consumer has made up to `last`."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            ConsumerRefusedError: The server makes no consumer, or takes no pulls from it.
        """
        try:
            yield from super().batches()
        except PermissionsError as error:
            raise ConsumerRefusedError(str(error)) from error
        finally:
            self._let_go()

    def _session(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        """Pulls until the range is read, or until something ends the session."""
        pending = self._make()
        if not pending and self._is_read():
            self.last = self._read.end
            return
        self._delivered = 0
        self._frames.clear()
        pulls = Pulls(self._client, self._read.stream, self._consumer, self._group, self._appetite)
        pulls.budget = self._wanted()
        try:
            yield from self._pull(pulls, patience.timeout_s)
        except (ConsumerRefusedError, NotConnectedError, Superseded) as error:
            if isinstance(error, NotConnectedError):
                self._appetite.shrink()
            if len(self._frames):  # what came before a status counts before what that says
                yield from self._flush()
            if self.last < self._read.end:
                raise
        finally:
            pulls.close()

    def _make(self) -> int:
        """
        Makes a consumer behind `last`; its messages, by the server's count.

        Raises:
            ConsumerRefusedError: The server makes none.
        """
        self._at = self._client.connection
        self._let_go()
        read, name = self._read, new_name()
        config = own_config(name, self._group, self.last)
        if read.filter is not None:
            config["filter_subject"] = read.filter
        try:
            info = create(self._js, read.stream, config)
        except (PermissionsError, ApiError) as error:
            raise ConsumerRefusedError(str(error)) from error
        self._consumer = name
        return info.num_pending

    def _let_go(self) -> None:
        """Deletes the consumer if the server can be asked now; else the server does in the end."""
        name, at, self._consumer = self._consumer, self._at, ""
        if not name or at is None:
            return
        subject = f"{self._js.prefix}.CONSUMER.DELETE.{self._read.stream}.{name}"
        try:
            at.request(subject, b"", _DELETE_S)
        except JetStreamError as error:
            logger.info("consumer %s is left to the server: %s", name, error)
            if isinstance(error, NotConnectedError):
                self._client.drop()

    def _wanted(self) -> int:
        """Number of messages to ask for; the answers show whether that is enough."""
        read = self._read
        if not read.expected or not self._builder.takes_all:
            return read.end - self.last
        return min(read.end - self.last, max(1, read.expected - self.rows))

    def _pull(self, pulls: Pulls, timeout_s: float) -> Iterator[pa.RecordBatch]:
        frames, connection = self._frames, pulls.connection
        may_scan = False
        """Whether a message has come, by which others are cut."""
        while True:
            pulls.ask()
            if frames.full or (len(frames) and pulls.open <= 0):
                yield from self._flush()
                if self.last >= self._read.end:
                    return
                pulls.note_away()  # while Spark had the batch nobody read what came
                if pulls.budget <= 0 and pulls.open <= 0:
                    # Fewer in the range than planned are left before `last`, more behind.
                    pulls.budget = min(self._read.end - self.last, _FEW_MESSAGES)
                continue
            if may_scan and self._scan(pulls):
                continue
            received, where = wire.next_frame(connection.buffer, connection.pos)
            if received is None:
                if len(frames) and frames.reaches(self._read.end):
                    yield from self._flush()
                    return
                if not pulls.wait(where, timeout_s):
                    from ..survey import check_answers  # of reads that stand still alone

                    check_answers(self._js, self._read.stream)
                    raise Superseded("the pulls stayed without an answer")
                continue
            connection.pos = where
            if isinstance(received, wire.Control):
                connection.control(received)
            elif received.sid == pulls.sid and received.reply.startswith(ACKS):
                may_scan = True
                frames.add(received, stored_before(received.headers))
                pulls.count(1, frames.last)
            elif received.sid == pulls.sid:
                self._heed(received, pulls)

    def _scan(self, pulls: Pulls) -> bool:
        """Takes what has come of messages; whether a batch is to be made of them."""
        frames, connection, had = self._frames, pulls.connection, len(self._frames)
        connection.pos = frames.scan(connection.buffer, connection.pos, pulls.sid)
        if len(frames) > had:
            pulls.count(len(frames) - had, frames.last)
        return frames.full or bool(len(frames) and pulls.open <= 0)

    def _heed(self, frame: wire.Frame, pulls: Pulls) -> None:
        """Does what a status asks for, or raises."""
        code, text = wire.status_of(frame.headers)
        status, words = status_of(code, text), f"{code} {text}".strip()
        if status is Status.ENDED:
            pulls.end_pull(frame.headers)
        elif status is Status.REFUSED:  # as where `max_request_batch` is small
            raise ConsumerRefusedError(f"consumer '{self._consumer}' refuses pulls: {words}")
        elif status is not Status.OPEN:
            raise Superseded(words)

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Gathered messages as a record batch, after the checks that make them ours."""
        frames, read, due = self._frames, self._read, self._delivered + 1
        first, last = frames.first, frames.last
        messages, rows = frames.columns(), len(frames)
        frames.clear()
        sequences = messages.sequences
        ascending = is_all(pc.less(sequences[:-1], sequences[1:]))
        if first.delivery != due or last.delivery != due + rows - 1 or not ascending:
            raise Superseded(
                f"deliveries {first.delivery} to {last.delivery} came where {due} to"
                f" {due + rows - 1} were due"
            )
        batch = self._builder.batch(messages, self.last, read.end)
        self._delivered = last.delivery
        self.last = max(self.last, min(last.sequence, read.end))
        self.rows += batch.num_rows
        self._appetite.grow()
        if batch.num_rows:
            yield batch
        if last.pending == 0 and self.last < self._read.end:
            if not self._is_read():
                raise Superseded(f"the consumer sees nothing after sequence {self.last} yet")
            self.last = read.end

    def _is_read(self) -> bool:
        """
        Whether the range has nothing more behind `last`, by the stream's leader.

        The consumer's leader delivers from its own replica of the stream, which may lag behind the
        one the range was planned by. And the server counts what a consumer has pending, which comes
        out too low where messages are deleted meanwhile (2.15.1); a pull brings
        them all the same.
        """
        return is_read(self._js, self._read, self.last)
