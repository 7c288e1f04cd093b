"""A server with a scripted capacity, and a window that publishes into it; the clock is a number."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyspark_jetstream.outbox.limits import Kind, Limit
from pyspark_jetstream.publish.lanes.answers import Outcome
from pyspark_jetstream.publish.lanes.frames import Publishes
from pyspark_jetstream.publish.lanes.window import Window

from .lanes import terms

SEED = int(os.environ.get("PRESSURE_SEED", "0"))
"""Added to the seed of every random test; set it to try others. Failures name theirs."""

TICK_S = 0.002
_WIDTH = 8
_BLOCK = 10_000


class Script(NamedTuple):
    """How a server behaves over time."""

    rtt_s: Callable[[float], float] = lambda now: 0.002
    """Of a publish that waits for nothing."""
    rate: Callable[[float], float] = lambda now: 50_000.0
    """Publishes it stores in a second."""
    queue: int = 1 << 30
    """Publishes that wait for that; one more is refused with 429."""


class Server:
    """The server's side, of one stream and any number of clients."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._queue: deque[tuple[Client, int, int]] = deque()
        self._queued = 0
        self._credit = 0.0

    def publish(self, client: Client, first: int, end: int, now: float) -> None:
        """Takes these ordinals, or refuses those that its queue has no room for."""
        at = now + self.script.rtt_s(now)
        taken = min(end, first + max(0, self.script.queue - self._queued))
        if taken > first:
            self._queue.append((client, first, taken))
            self._queued += taken - first
        if end > taken:
            client.answers.append((at, taken, end, False))

    def tick(self, now: float) -> None:
        """Stores what there is time for."""
        self._credit = min(self._credit, 1.0) + self.script.rate(now) * TICK_S
        at = now + self.script.rtt_s(now)
        while self._queue and self._credit >= 1:
            client, first, end = self._queue.popleft()
            stored = min(end, first + int(self._credit))
            self._credit -= stored - first
            self._queued -= stored - first
            client.answers.append((at, first, stored, True))
            if stored < end:
                self._queue.appendleft((client, stored, end))


class Client:
    """A task that has always more rows."""

    def __init__(self, limit: Limit, ack_timeout_s: float = 5.0) -> None:
        self.limit = limit
        self.window = Window(terms(limit, 1 << 40, ack_timeout_s, 1e9))
        self.answers: deque[tuple[float, int, int, bool]] = deque()
        self.track: list[tuple[float, int]] = []
        """The limit over time."""
        self.slowest_s = 0.0
        self._offered = 0

    def tick(self, server: Server, now: float) -> None:
        """Takes the answers that are due, and sends what it may."""
        window = self.window
        due = [answer for answer in self.answers if answer[0] <= now]
        self.answers = deque(answer for answer in self.answers if answer[0] > now)
        for _, first, end, stored in due:
            if stored:
                window.on_pubacks(list(range(first, end)), now)
            else:
                for ordinal in range(first, end):
                    window.on_answer(ordinal, Outcome(Kind.OVERLOADED, "full", 10167), now)
        window.expire(now)
        if window.wants_rows:
            window.append(_block(self._offered))
            self._offered += _BLOCK
        while (frames := window.ready(now, 1024 * _WIDTH)) is not None:
            for first, end in _runs(bytes(frames)):
                server.publish(self, first, end, now)
        self.track.append((now, window.limit))


def run(script: Script, *limits: Limit, until: float) -> list[Client]:
    """Publishes for so many seconds, one client a limit."""
    server = Server(script)
    clients = [Client(limit) for limit in limits]
    now = 0.0
    while now < until:
        server.tick(now)
        for client in clients:
            client.tick(server, now)
        now += TICK_S
    return clients


def _block(first: int) -> Publishes:
    wire = b"".join(b"%07d;" % (ordinal % 10**7) for ordinal in range(first, first + _BLOCK))
    offsets = range(0, _WIDTH * (_BLOCK + 1), _WIDTH)
    return Publishes(first, memoryview(wire), offsets, ("a",), bytes(_BLOCK))


def _runs(frames: bytes) -> list[tuple[int, int]]:
    """Consecutive ordinals among the frames."""
    count = len(frames) // _WIDTH
    first, last = int(frames[:7]), int(frames[-8:-1])
    if last - first == count - 1:
        return [(first, last + 1)]
    ordinals = [int(each) for each in frames.split(b";")[:-1]]
    return [(ordinal, ordinal + 1) for ordinal in ordinals]
