"""
Acks of claims (done, in progress, given back), and the thread that keeps claims alive.

The thread says "in progress" for each, before its ack wait runs out.

It has a connection of its own in the source process. It ends with the process, and then the
claims return to the consumer's other readers: that is what tells a dead query from a slow one.

The thread and the driver's calls share what is held, under one lock.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Final

from ...client import wire
from ...client.connection import Client
from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...client.patience import Patience
from ...errors import JetStreamError, RequestTimeoutError, StreamNotFoundError
from ...sanitize import get_logger
from .claimant import Claimant
from .claims import Claim, SharedConsumer
from .openbatches import Alive

logger = get_logger(__name__)

_BURST: Final = 50_000
"""Acks in one write, with one answer; some 50 bytes each."""

_EACH: Final = 5_000
"""Acks in one write, each with its own answer."""

_ATTEMPT_S: Final = 3.0
"""Acks are sent again if the answer to the last of them takes longer."""

_PAUSE_S: Final = 0.05
"""Before acks are sent again that nobody was there to take."""

IN_PROGRESS: Final = b"+WPI"
"""ADR-13: the ack wait of the message begins anew."""

ACK: Final = b"+ACK"
TERM: Final = b"+TERM"
NAK: Final = b"-NAK"


def ack(
    client: Client, consumer: SharedConsumer, sequences: Iterable[int], kind: bytes = ACK
) -> None:
    """
    Acknowledges messages of one consumer; returns once the server has taken all.

    With the ack policy `explicit` the server looks only at the stream sequence in an ack's subject,
    and it takes acks from any connection (measured, nats-server 2.15.1). It handles those of a
    connection in their order, so the answer to the last one speaks for all; where the consumer may
    change its leader in between, each is answered for itself.

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
    send, most = (_each, _EACH) if consumer.replicated else (_burst, _BURST)
    while left:
        chunk = left[:most]
        try:
            missed = send(client, consumer, chunk, kind)
            if missed:  # the consumer was deleted, or its leader is being elected
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
            elif most > _EACH:  # they may have been longer on their way than the answer was awaited
                most = _EACH
            elif patience.over:
                raise
            continue
        left = left[most:]


def _burst(client: Client, consumer: SharedConsumer, chunk: list[int], kind: bytes) -> bool:
    """Acknowledges all with one answer; whether nobody was there."""
    last = f"{consumer.acks}.1.{chunk[-1]}.1.0.0"
    attempt_s = min(_ATTEMPT_S, client.options.request_timeout_s)
    burst = _unanswered(consumer, chunk[:-1], kind, 1)
    return client.publish_then_request(burst, last, kind, attempt_s).status == wire.NO_RESPONDERS


def _unanswered(
    consumer: SharedConsumer, sequences: Iterable[int], kind: bytes, delivery: int
) -> bytes:
    """Acks that want no answer, as one write."""
    before = f"PUB {consumer.acks}.1.".encode()
    behind = b".%d.0.0 %d\r\n%b\r\n" % (delivery, len(kind), kind)
    return b"".join([b"%b%d%b" % (before, sequence, behind) for sequence in sequences])


def _each(client: Client, consumer: SharedConsumer, chunk: list[int], kind: bytes) -> bool:
    """Acknowledges each with its own answer; whether for some nobody was there."""
    replies = client.requests([(f"{consumer.acks}.1.{sequence}.1.0.0", kind) for sequence in chunk])
    return any(reply.status == wire.NO_RESPONDERS for reply in replies)


def keep(
    client: Client,
    claimant: Claimant,
    claimed: Mapping[str, Sequence[Claim]],
    heartbeats: Heartbeats,
    ours: Mapping[SharedConsumer, Set[int]] | None = None,
) -> dict[str, list[Claim]]:
    """
    Keeps claims that were just made, and has the server note when that was; returns those that are
    not ours already.

    What we hold comes once more where the server took it for expired, as one that restarts in the
    midst of a claim does: it is in a batch already.

    Of a delivery it stores the time of its message (nats-server 2.15.1): a consumer that gets
    another leader, or is restarted, takes all claims of messages older than the ack wait for
    expired, and deals them out again. The time of an "in progress" it stores as it is. Claims of
    messages that are new it need not note: the heartbeats come before they would be expired.

    Args:
        claimant: whose last claim it is.
        ours: what was held when the claims began; without, what is held now.
    """
    ours = heartbeats.held() if ours is None else ours
    new: dict[str, list[Claim]] = {}
    kept: list[tuple[SharedConsumer, list[int]]] = []
    for consumer in claimant.consumers:
        held = ours.get(consumer, frozenset())
        taken = claimed.get(consumer.partition, ())
        mine = new[consumer.partition] = [c for c in taken if c.sequence not in held]
        if mine:
            kept.append((consumer, [claim.sequence for claim in mine]))
    try:
        for consumer, sequences in kept:
            heartbeats.hold(consumer, sequences)
        if kept and not claimant.is_young:
            for consumer, sequences in kept:
                ack(client, consumer, sequences, IN_PROGRESS)
            doubtful = claimant.doubtful()
            for consumer, sequences in kept:
                if consumer.partition in doubtful:
                    heartbeats.release(consumer, sequences)
                    new[consumer.partition] = []
                    logger.info(
                        "stream=%s consumer=%s: its leader changed, or the ack wait was over, amid"
                        " %d claims; they come again, to whoever it is",
                        consumer.stream, consumer.name, len(sequences),
                    )  # fmt: skip
    except BaseException:
        # The server may take them for expired, and somebody else may have them.
        for consumer, sequences in kept:
            heartbeats.release(consumer, sequences)
        raise
    return new


def give_back(
    client: Client,
    consumer: SharedConsumer,
    sequences: Sequence[int],
    delivery: int,
    delay_s: float = 0.0,
) -> None:
    """
    Has the server deal out these claims again, `delay_s` from now.

    Said once: when it is said again the claims may be somebody else's.

    Args:
        delivery: the number of the last delivery to us. The server takes no NAK of one that is
            behind its floor (nats-server 2.15.1), and does not look which it is.

    Raises:
        RequestTimeoutError: No answer; they were given back, or return after their ack wait.
        NotConnectedError: So as well.
    """
    connection = client.connection
    kind = NAK if not delay_s else b'%b {"delay": %d}' % (NAK, round(delay_s * 1e9))
    connection.send(_unanswered(consumer, sequences[:-1], kind, delivery))
    last = f"{consumer.acks}.1.{sequences[-1]}.{delivery}.0.0"
    connection.request(last, kind, min(_ATTEMPT_S, client.options.request_timeout_s))


class Heartbeats:
    """In-progress acks for what is held, each `interval_s`."""

    def __init__(
        self, options: ConnectionOptions, interval_s: float, alive: Alive | None = None
    ) -> None:
        """
        Args:
            alive: also beats, with each heartbeat; None where open batches are not noted.
        """
        # One consumer that does not answer must not keep the others waiting for long.
        timeout_s = min(options.request_timeout_s, max(1.0, interval_s))
        self._client = Client(replace(options, request_timeout_s=timeout_s))
        self._interval_s = interval_s
        self._alive = alive
        self._lock = threading.Lock()
        self._held: dict[SharedConsumer, set[int]] = {}
        self._confirmed = time.monotonic()
        self._woken, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="jetstream-heartbeats", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        with self._lock:
            return f"<Heartbeats of {sum(map(len, self._held.values()))} claims>"

    def hold(self, consumer: SharedConsumer, sequences: Iterable[int]) -> None:
        """From now on these claims are kept; they were delivered, or confirmed, just now."""
        with self._lock:
            if not any(self._held.values()):
                self._confirmed = time.monotonic()
            self._held.setdefault(consumer, set()).update(sequences)

    def release(self, consumer: SharedConsumer, sequences: Iterable[int]) -> None:
        """Ends the heartbeats of these sequences."""
        with self._lock:
            self._held.get(consumer, set()).difference_update(sequences)

    def keep_only(self, consumers: Iterable[SharedConsumer]) -> None:
        """Ends the heartbeats of all other consumers: they are gone with their streams."""
        with self._lock:
            for gone in self._held.keys() - set(consumers):
                del self._held[gone]

    def hurry(self, interval_s: float) -> None:
        """A consumer was joined, which may want heartbeats more often than the others."""
        if interval_s < self._interval_s:
            self._interval_s = interval_s
            self._woken.set()

    def held(self) -> dict[SharedConsumer, Set[int]]:
        """The sequences held at present."""
        with self._lock:
            return {consumer: frozenset(numbers) for consumer, numbers in self._held.items()}

    @property
    def overdue_s(self) -> float:
        """Seconds that the server has not confirmed the claims that are held; 0 without any."""
        with self._lock:
            held = any(self._held.values())
            return time.monotonic() - self._confirmed if held else 0.0

    def close(self) -> None:
        """Ends the thread; what is held returns to the others after its ack wait."""
        self._is_over = True
        self._woken.set()
        self._thread.join(5.0)

    @property
    def _pause_s(self) -> float:
        alive_s = self._alive.every_s if self._alive is not None else math.inf
        return min(self._interval_s, alive_s)

    def _run(self) -> None:
        try:
            pause_s = self._pause_s
            while True:
                self._woken.wait(pause_s)
                self._woken.clear()
                if self._is_over:
                    return
                pause_s = self._pause_s if self._beat() else min(1.0, self._pause_s)
        finally:
            self._client.close()

    def _beat(self) -> bool:
        """Whether all that is held is confirmed."""
        with self._lock:
            held = {
                consumer: sorted(numbers) for consumer, numbers in self._held.items() if numbers
            }
        beats: list[tuple[str, Callable[[], None]]] = []
        if self._alive is not None:
            beats.append(("the query", partial(self._alive.beat, self._client)))
        for consumer, sequences in held.items():
            beat = partial(ack, self._client, consumer, sequences, IN_PROGRESS)
            beats.append((f"stream={consumer.stream} consumer={consumer.name}", beat))
        began, failed = time.monotonic(), False
        for what, say in beats:
            try:
                say()
            except Exception as error:  # whatever it is: without this thread all claims expire
                failed = True
                logger.warning(
                    "%s: a heartbeat for claims failed, and is tried again. After ackWait without"
                    " one, other queries may read these messages: %r",
                    what, error, exc_info=not isinstance(error, JetStreamError),
                )  # fmt: skip
        if failed:
            return False
        with self._lock:
            self._confirmed = began
        return True
