"""
Publishing the batches of one task: the window's decisions carried out on one connection.

No thread, no event loop, no policy: the task's own thread sends what `Window.ready` says, reads
PubAcks between two sends without waiting, and waits for them only when there is nothing to send.
A connection that breaks is dialled again, and what was not acked goes out again with the same ids.

While Spark computes the next batch nobody reads PubAcks and nobody answers a PING. Acks wait in
the socket; a server that cuts the connection in that time (after two unanswered PINGs, minutes by
default) costs a reconnect and no row.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from . import wire
from .client import Client, Connection
from .errors import NotConnectedError, PublishError
from .options import SinkOptions
from .publishes import Encoder
from .window import Window, classify, puback_pattern

__all__ = ["Counts", "publish"]

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 17
"""Sent at one time: large enough for the system call not to matter, small enough to keep
reading PubAcks."""

_SEND_TIMEOUT_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0


class Counts(NamedTuple):
    """What became of a task's rows."""

    rows: int
    acked: int
    duplicates: int
    """Of the acked: those the stream had already, by their `Nats-Msg-Id`."""
    retries: int
    """Publishes sent again."""


def publish(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    *,
    partition: int = 0,
    id_prefix: str | None = None,
) -> Counts:
    """
    Publishes every row and returns when each has its PubAck.

    Args:
        partition: the task's, for what errors say.
        id_prefix: `<id_prefix>-<row number>` is the `Nats-Msg-Id` of a row without one; None
            makes no ids.

    Raises:
        PublishError: A row was not stored; rows before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    return _Publisher(client, options, partition, id_prefix).run(batches)


class _Publisher:
    def __init__(
        self, client: Client, options: SinkOptions, partition: int, id_prefix: str | None
    ) -> None:
        self._client = client
        self._connection = client.connection
        self._inbox = self._connection.new_inbox()
        self._subject_prefix = f"{self._inbox}.".encode()
        self._publish_timeout_s = options.publish_timeout_s
        self._window = Window(
            options.max_in_flight,
            options.max_in_flight_bytes,
            options.ack_timeout_s,
            options.publish_timeout_s,
        )
        self._encoder = Encoder(
            self._inbox,
            partition=partition,
            subject=options.subject,
            mapping=options.mapping,
            id_prefix=id_prefix,
            max_payload=self._connection.max_payload,
        )

    def run(self, batches: Iterable[pa.RecordBatch]) -> Counts:
        window = self._window
        try:
            self._listen(self._connection)
        except NotConnectedError as error:
            self._reconnect(error)
        for batch in batches:
            window.offer(self._encoder.encode(batch))
            while not window.wants_rows:
                self._turn()
        while window.busy:
            self._turn()
        counts = Counts(self._encoder.rows, window.acked, window.duplicates, window.retries)
        if counts.rows != counts.acked:
            raise PublishError("*", f"{counts.rows} rows but {counts.acked} PubAcks; report this")
        self._connection.unsubscribe(self._sid)
        return counts

    def _turn(self) -> None:
        """Sends once, or waits once; hands every answer that has arrived to the window."""
        try:
            window, connection = self._window, self._connection
            frames = window.ready(time.monotonic(), _CHUNK_BYTES)
            if frames is not None:
                connection.send(frames, min(_SEND_TIMEOUT_S, self._publish_timeout_s))
            else:
                now = time.monotonic()
                connection.fill(min(window.next_deadline(now), now + self._publish_timeout_s))
                self._read()
            while connection.poll():
                self._read()
            window.expire(time.monotonic())
        except NotConnectedError as error:
            self._reconnect(error)

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        """All complete frames of the buffer; runs of PubAcks without looking at each."""
        connection = self._connection
        buffer, start = connection.buffer, connection.pos
        end = buffer.rfind(b"}\r\n", start) + 3
        if end > start + 2:
            lines = buffer.count(b"\r\n", start, end)
            for pattern, duplicates in self._patterns:
                ordinals = pattern.findall(buffer, start, end)
                # Two lines a PubAck: when all lines are theirs, nothing else is in between.
                if 2 * len(ordinals) == lines:
                    connection.pos = end
                    self._window.stored(list(map(int, ordinals)), duplicates)
                    break
        while (frame := connection.next_frame(-math.inf)) is not None:
            self._answer(frame)

    def _answer(self, frame: wire.Frame) -> None:
        if frame.sid != self._sid or not frame.subject.startswith(self._subject_prefix):
            return  # a late frame of a subscription that has ended
        ordinal = int(frame.subject[len(self._subject_prefix) :])
        status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
        outcome = classify(status, description, frame.data)
        self._window.answered(ordinal, outcome, time.monotonic())

    # ── connections ──────────────────────────────────────────────────────────────────────────

    def _listen(self, connection: Connection) -> None:
        self._connection = connection
        self._encoder.max_payload = connection.max_payload
        self._sid = connection.subscribe(f"{self._inbox}.*")
        self._patterns = [
            (puback_pattern(self._inbox, self._sid, duplicates), duplicates)
            for duplicates in (False, True)
        ]

    def _reconnect(self, error: NotConnectedError) -> None:
        """Until there is a connection, or the oldest publish on its way has no time left."""
        self._window.broken()
        deadline = min(self._window.give_up_at, time.monotonic() + self._publish_timeout_s)
        backoff = _FIRST_BACKOFF_S
        while True:
            self._client.drop()
            if not error.retryable or time.monotonic() + backoff > deadline:
                raise error
            logger.info("reconnecting window=%r reason=%s", self._window, error.reason)
            time.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_S)
            try:
                self._listen(self._client.connection)
                return
            except NotConnectedError as again:
                error = again
