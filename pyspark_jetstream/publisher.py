"""
Publishing the messages of one task: the lanes' decisions carried out on one connection.

No thread, no event loop, no policy: the task's own thread sends what a lane says is ready, reads
replies between two sends without waiting, and waits for them only when there is nothing to send.
A connection that breaks is dialled again, and what was not acked goes out again with the same ids.

While Spark computes the next batch nobody reads replies and nobody answers a PING. Replies wait in
the socket; a server that cuts the connection in that time (after two unanswered PINGs, minutes by
default) costs a reconnect and no row.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from . import wire
from .atomic import AtomicLane
from .client import Client
from .errors import NotConnectedError, OptionError, PublishError
from .fastlane import FastLane
from .lanes import AsyncLane, Lane
from .limits import FixedLimit, GradientLimit, Limit, Limits
from .messages import Messages
from .options import SinkOptions
from .targets import Target, Targets

__all__ = ["Counts", "publish"]

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 19
"""Sent at one time: large enough for the system call not to matter, small enough to keep
reading replies."""

_LANES: Final[dict[str, Callable[..., Lane]]] = {
    "async": AsyncLane,
    "fast": FastLane,
    "atomic": AtomicLane,
}
"""By publish mode."""

_LIMITS: Final = Limits()
"""
What this worker process knows of servers and streams: how much each could take when last written
to. The one thing a task leaves behind; Spark's workers run many tasks, one at a time.
"""

_FAST_LANES: Final = 32
"""So many streams of a task get fast batches under `auto`; open ones share the server's flow."""

_SEND_TIMEOUT_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0


class Counts(NamedTuple):
    """What became of a task's messages."""

    offered: int
    acked: int
    duplicates: int
    """Of the acked: those the stream had already, by their `Nats-Msg-Id`, as far as it says."""
    retries: int
    """Publishes sent again."""


def publish(
    client: Client,
    options: SinkOptions,
    batches: Iterable[Messages],
    targets: Targets | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Counts:
    """
    Publishes every message and returns when each is stored.

    Args:
        watch: called all the time; what it raises ends the write.

    Raises:
        OptionError: A target stream does not allow the publish mode.
        PublishError: A message was not stored; those before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    return _Publisher(client, options, targets, watch).run(batches)


class _Publisher:
    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        targets: Targets | None,
        watch: Callable[[], None],
    ) -> None:
        self._client = client
        self._connection = client.connection
        self._options = options
        self._targets = targets
        self._watch = watch
        self._inbox = self._connection.new_inbox()
        self._lanes: dict[int | None, Lane] = {}
        """By the place of the target stream; None is the lane of all that go asynchronously."""
        self._numbered: list[Lane] = []
        """Replies to lane n come on `<inbox>.<n>.>`."""

    def run(self, batches: Iterable[Messages]) -> Counts:
        try:
            self._listen()
        except NotConnectedError as error:
            self._reconnect(error)
        offered = 0
        for batch in batches:
            self._catch_up()
            for lane, messages in self._parts(batch):
                lane.offer(messages)
                offered += len(messages)
            while not all(lane.wants_rows for lane in self._numbered):
                self._turn()
        for lane in self._numbered:
            lane.finish()
        while any(lane.busy for lane in self._numbered):
            self._turn()
        acked, duplicates, retries = (
            sum(getattr(lane, name) for lane in self._numbered)
            for name in ("acked", "duplicates", "retries")
        )
        if offered != acked:
            raise PublishError("*", f"{offered} messages but {acked} PubAcks; report this")
        try:
            self._connection.unsubscribe(self._sid)
        except NotConnectedError as error:  # all rows are stored
            logger.info("broken behind the last PubAck reason=%s", error.reason)
            self._client.drop()
        return Counts(offered, acked, duplicates, retries)

    # ── lanes ────────────────────────────────────────────────────────────────────────────────

    def _parts(self, messages: Messages) -> Iterator[tuple[Lane, Messages]]:
        """The messages by the lane they go through, in order within each."""
        if not len(messages):
            return
        targets = messages.targets
        if self._targets is None or targets is None:
            yield self._lane(None, None), messages
            return
        codes = targets.take(messages.indices)
        for place in pc.unique(codes).to_pylist():
            target = self._targets[place] if place is not None else None
            lane = self._lane(place, target)
            if self._options.ledger and target is not None:
                # Sent again for the last time, a message must still find its id in the window.
                lane.narrow(target.duplicate_window_s - self._options.ack_timeout_s)
            if lane is not self._lanes.get(None):
                own = pc.fill_null(pc.equal(codes, pa.scalar(place, pa.int32())), False)
                yield lane, messages if pc.all(own).as_py() else messages.where(own)
        slow = self._lanes.get(None)
        if slow is not None:
            places = [each for each in self._lanes if each is not None]
            if not places:
                yield slow, messages
            else:
                rest = pc.invert(pc.is_in(codes, pa.array(places, pa.int32())))
                if pc.any(rest).as_py():
                    yield slow, messages.where(rest)

    def _lane(self, place: int | None, target: Target | None) -> Lane:
        mode = self._mode(target)
        key = place if mode != "async" else None
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._new_lane(mode, target if mode != "async" else None)
            self._numbered.append(lane)
            if len(self._lanes) == 1 or logger.isEnabledFor(logging.DEBUG):
                name = target.name if target is not None else "*"
                logger.debug("publishing stream=%s mode=%s", name, mode)
        return lane

    def _mode(self, target: Target | None) -> str:
        mode = self._options.publish_mode
        if mode == "auto":
            if target is None or not target.allow_batched:
                return "async"
            if target.counts_ids_early and self._options.message_ids:
                return "async"
            known = self._targets is not None and target in self._targets.streams[:_FAST_LANES]
            return "fast" if known else "async"
        if mode != "async" and target is not None:
            fault = target.mode_fault(mode)
            if fault is not None:
                raise OptionError("publishMode", fault)
        return mode if target is not None else "async"

    def _new_lane(self, mode: str, target: Target | None) -> Lane:
        options = self._options
        return _LANES[mode](
            f"{self._inbox}.{len(self._numbered)}",
            self._limit(mode, target),
            options.max_in_flight_bytes,
            options.ack_timeout_s,
            options.publish_timeout_s,
        )

    def _limit(self, mode: str, target: Target | None) -> Limit:
        options = self._options
        most = options.max_in_flight
        if options.limiter == "fixed":
            return FixedLimit(most)
        # The server has a slow start of its own for fast batches.
        initial = options.initial_in_flight if mode == "async" else most
        settings = options.min_in_flight, initial, most
        name = target.name if target is not None else None
        key = options.connection.servers, name, mode, settings
        return _LIMITS.of(key, lambda: GradientLimit(*settings))

    # ── the loop ─────────────────────────────────────────────────────────────────────────────

    def _turn(self) -> None:
        """Sends once, or waits once; hands every reply that has arrived to its lane."""
        self._watch()
        try:
            connection = self._connection
            if not self._send():
                now = time.monotonic()
                deadline = min(lane.next_deadline(now) for lane in self._numbered)
                connection.fill(min(deadline, now + self._options.publish_timeout_s))
                self._read()
            while connection.poll():
                self._read()
            now = time.monotonic()
            for lane in self._numbered:
                lane.expire(now)
        except NotConnectedError as error:
            self._reconnect(error)

    def _catch_up(self) -> None:
        """Reads what came while Spark made the next batch; when it came nobody knows."""
        for lane in self._numbered:
            lane.unread()
        try:
            while self._connection.poll():
                self._read()
        except NotConnectedError as error:
            self._reconnect(error)

    def _send(self) -> bool:
        """What each lane has ready; False when none has, or the bytes on the wire are enough."""
        sent = False
        timeout_s = min(_SEND_TIMEOUT_S, self._options.publish_timeout_s)
        in_flight = sum(lane.bytes_in_flight for lane in self._numbered)
        for lane in self._numbered:
            before = lane.bytes_in_flight
            room = self._options.max_in_flight_bytes - in_flight
            if room <= 0 and len(self._numbered) > 1 and not lane.owes:
                continue
            frames = lane.ready(time.monotonic(), _CHUNK_BYTES)
            if frames is not None:
                self._connection.send(frames, timeout_s)
                in_flight += lane.bytes_in_flight - before
                sent = True
        return sent

    def _read(self) -> None:
        """All complete frames of the buffer; runs of PubAcks without looking at each."""
        connection = self._connection
        if len(self._numbered) == 1:
            buffer, start = connection.buffer, connection.pos
            end = buffer.rfind(b"}\r\n", start) + 3
            now = time.monotonic()
            if end > start + 2 and self._numbered[0].absorb(self._sid, buffer, start, end, now):
                connection.pos = end
        while (frame := connection.next_frame(-math.inf)) is not None:
            self._answer(frame)

    def _answer(self, frame: wire.Frame) -> None:
        if frame.sid != self._sid or not frame.subject.startswith(self._subject_prefix):
            return  # a late frame of a subscription that has ended
        number, _, token = frame.subject[len(self._subject_prefix) :].partition(b".")
        status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
        lane = self._numbered[int(number)]
        lane.answered(token, status, description, frame.data, time.monotonic())

    # ── connections ──────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        self._connection = self._client.connection
        self._subject_prefix = f"{self._inbox}.".encode()
        self._sid = self._connection.subscribe(f"{self._inbox}.>")

    def _reconnect(self, error: NotConnectedError) -> None:
        """Until there is a connection, or the oldest publish on its way has no time left."""
        for lane in self._numbered:
            lane.broken()
        now = time.monotonic()
        oldest = min((lane.give_up_at for lane in self._numbered), default=math.inf)
        deadline = min(oldest, now + self._options.publish_timeout_s)
        backoff = _FIRST_BACKOFF_S
        while True:
            self._client.drop()
            if not error.retryable or time.monotonic() + backoff > deadline:
                raise error
            logger.info("reconnecting lanes=%r reason=%s", self._numbered, error.reason)
            time.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_S)
            try:
                self._listen()
                return
            except NotConnectedError as again:
                error = again
