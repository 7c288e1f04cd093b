"""
Acks of claims, and the thread that says "in progress" for each before its ack wait runs out.

It has a connection of its own in the source process. It ends with the process, and then the
claims return to the consumer's other readers: that is what tells a dead query from a slow one.

The thread and the driver's calls share what is held, under one lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...client import wire
from ...client.connection import Client
from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...client.patience import Patience
from ...errors import (
    JetStreamError,
    NotConnectedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...sanitize import get_logger
from .claims import SharedConsumer

logger = get_logger(__name__)

_BURST: Final = 50_000
_FEW: Final = 5_000
"""Acks in one write, with one answer; some 50 bytes each. And where an answer takes too long."""

_ATTEMPT_S: Final = 3.0
"""Acks are sent again if the answer to the last of them takes longer."""

_PAUSE_S: Final = 0.05
"""Before acks are sent again that nobody was there to take."""

IN_PROGRESS: Final = b"+WPI"
"""ADR-13: the ack wait of the message begins anew."""

ACK: Final = b"+ACK"
TERM: Final = b"+TERM"


def ack(
    client: Client, consumer: SharedConsumer, sequences: Iterable[int], kind: bytes = ACK
) -> None:
    """
    Acknowledges messages of one consumer; returns once the server has taken all.

    With the ack policy `explicit` the server looks only at the stream sequence in an ack's subject,
    and it takes acks from any connection (measured, nats-server 2.15.1). It handles those of a
    connection in their order, so the answer to the last one speaks for all; what a leader that
    changes in between has missed is delivered once more.

    A sequence beyond what the consumer has delivered is not answered: a server that was killed may
    have forgotten its last deliveries. Those are left out with a warning, and delivered once more.

    Of a stream that was deleted nothing is to be acknowledged: the consumer is gone with it.

    Raises:
        RequestTimeoutError: No answer within `requestTimeout`.
        NotConnectedError: No server in that time.
        ConsumerNotFoundError: The consumer was deleted.
    """
    left = sorted(sequences)
    timeout_s = client.options.request_timeout_s
    patience = Patience(timeout_s, pause_s=_PAUSE_S)
    most = _BURST
    while left:
        chunk = left[:most]
        try:
            if _burst(client, consumer, chunk, kind):  # it was deleted, or has no leader right now
                patience.pause()
                raise RequestTimeoutError(consumer.acks, timeout_s)
        except RequestTimeoutError:
            try:
                info = JetStream(client).consumer_info(consumer.stream, consumer.name)
            except StreamNotFoundError:
                return
            if info.stream_seq < chunk[-1]:
                known = bisect_right(left, info.stream_seq)
                logger.warning(
                    "stream=%s consumer=%s: the server has forgotten %d deliveries after sequence"
                    " %d. A server that is killed may do so. These messages are delivered again. A"
                    " stream with replicas keeps deliveries",
                    consumer.stream, consumer.name, len(left) - known, info.stream_seq,
                )  # fmt: skip
                left = left[:known]
            elif most > _FEW:  # they may have been longer on their way than the answer was awaited
                most = _FEW
            elif patience.over:
                raise
            continue
        left = left[most:]


def _burst(client: Client, consumer: SharedConsumer, chunk: list[int], kind: bytes) -> bool:
    """Acknowledges all with one answer; whether nobody was there."""
    last = f"{consumer.acks}.1.{chunk[-1]}.1.0.0"
    attempt_s = min(_ATTEMPT_S, client.options.request_timeout_s)
    connection = client.connection
    try:
        connection.send(_unanswered(consumer, chunk[:-1], kind))
        return connection.request(last, kind, attempt_s).status == wire.NO_RESPONDERS
    except (NotConnectedError, RequestTimeoutError):
        client.drop()
        raise RequestTimeoutError(last, attempt_s) from None


def _unanswered(consumer: SharedConsumer, sequences: Iterable[int], kind: bytes) -> bytes:
    """Acks that want no answer, as one write."""
    before = f"PUB {consumer.acks}.1.".encode()
    behind = b".1.0.0 %d\r\n%b\r\n" % (len(kind), kind)
    return b"".join([b"%b%d%b" % (before, sequence, behind) for sequence in sequences])


class Heartbeats:
    """In-progress acks for what is held, each `interval_s`."""

    def __init__(self, options: ConnectionOptions, interval_s: float) -> None:
        # The answers of one beat are awaited no longer than until the next one is due.
        timeout_s = min(options.request_timeout_s, max(1.0, interval_s))
        self._client = Client(replace(options, request_timeout_s=timeout_s))
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._held: dict[SharedConsumer, set[int]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jetstream-heartbeats", daemon=True)
        self._thread.start()

    def hold(self, consumer: SharedConsumer, sequences: Iterable[int]) -> None:
        """From now on these claims are kept; they were delivered, or confirmed, just now."""
        with self._lock:
            self._held.setdefault(consumer, set()).update(sequences)

    def release(self, consumer: SharedConsumer, sequences: Iterable[int]) -> None:
        """Ends the heartbeats of these sequences."""
        with self._lock:
            self._held.get(consumer, set()).difference_update(sequences)

    def forget(self) -> None:
        """Ends the heartbeats of all that is held: it is another's, or gone."""
        with self._lock:
            self._held.clear()

    def close(self) -> None:
        """Ends the thread; what is held returns to the others after its ack wait."""
        self._is_over.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            pause_s = self._interval_s
            while not self._is_over.wait(pause_s):
                pause_s = self._interval_s
                with self._lock:
                    held = {c: sorted(numbers) for c, numbers in self._held.items() if numbers}
                try:
                    self._beat(held)
                except Exception as error:  # whatever it is: without this thread all claims expire
                    self._client.drop()
                    pause_s = min(1.0, self._interval_s)
                    logger.warning(
                        "a heartbeat for claims failed, and is tried again. After ackWait without"
                        " one, other queries get these messages as well: %r",
                        error, exc_info=not isinstance(error, JetStreamError),
                    )  # fmt: skip
        finally:
            self._client.close()

    def _beat(self, held: Mapping[SharedConsumer, Sequence[int]]) -> None:
        """
        Says it for all consumers before any answer is awaited: one that does not answer keeps no
        other waiting. The answers tell that the connection still reaches them.

        Raises:
            RequestTimeoutError: A consumer does not answer.
        """
        connection = self._client.connection
        for consumer, sequences in held.items():
            for at in range(0, len(sequences) - 1, _BURST):
                chunk = sequences[at : min(at + _BURST, len(sequences) - 1)]
                connection.send(_unanswered(consumer, chunk, IN_PROGRESS), self._timeout_s)
        lasts = [
            (f"{c.acks}.1.{sequences[-1]}.1.0.0", IN_PROGRESS) for c, sequences in held.items()
        ]
        for (subject, _), reply in zip(
            lasts, connection.requests(lasts, self._timeout_s), strict=True
        ):
            if reply.status == wire.NO_RESPONDERS:
                raise RequestTimeoutError(subject, self._timeout_s)
