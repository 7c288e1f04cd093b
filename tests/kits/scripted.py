"""
Servers whose capacity is scripted, and windows that publish into them; the clock is a number.

A server stores what waits, oldest first, at the rate of its script; answers take a round trip. With
no room for a publish it refuses it (429), which costs it a share of a store. What the limiter makes
of that, the retries, their pauses and the publishes sent again for silence are our own lane's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.fates import Fate
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.window import Window
from pyspark_jetstream.publish.lanes.answers import Outcome
from pyspark_jetstream.publish.lanes.frames import Publishes
from pyspark_jetstream.publish.lanes.lane import Lane

_BLOCK: Final = 10_000
_WIDTH: Final = 8
"""Bytes of a publish, which is its number."""

_ROWS: Final = Messages(
    subject=pa.repeat(pa.scalar(b"a"), _BLOCK),
    lines=None,
    data=pa.repeat(pa.scalar(b""), _BLOCK),
    distinct=("a",),
    indices=pa.repeat(pa.scalar(0, pa.int32()), _BLOCK),
    targets=pa.nulls(1, pa.int32()),
    rows=pa.array(range(_BLOCK), pa.int64()),
)
"""What the publishes of a block are of."""

_MAX_BYTES: Final = 1 << 13
"""Sent at one time."""

_WINDOW: Final = parse_sink({}).window
"""The options of a write that sets none."""

_FULL: Final = Outcome(Fate.OVERLOADED, "full", 10167)


class Script(NamedTuple):
    """How a server behaves over time."""

    rtt_s: Callable[[float], float] = lambda now: 0.002
    """Of a publish that waits for nothing."""
    rate: Callable[[float], float] = lambda now: 50_000.0
    """Publishes it stores in a second."""
    room: int = 1 << 30
    """Publishes that may wait for that."""
    refusal: float = 0.0
    """What refusing a publish costs the server, of what storing one does."""


class Server:
    """One stream, for any number of writers."""

    def __init__(self, script: Script, tick_s: float) -> None:
        self._script = script
        self._tick_s = tick_s
        self._waiting: deque[tuple[Writer, range]] = deque()
        self._credit = 0.0

    def publish(self, writer: Writer, publishes: range, now: float) -> None:
        """Takes what it has room for, and refuses the others."""
        room = max(0, self._script.room - sum(len(those) for _, those in self._waiting))
        if taken := publishes[:room]:
            self._waiting.append((writer, taken))
        if refused := publishes[room:]:
            self._credit -= self._script.refusal * len(refused)
            writer.answers.append((now + self._script.rtt_s(now), refused, False))

    def store(self, now: float) -> None:
        """Stores what there is time for."""
        # Time without work is lost; of a publish half done the rest is done later.
        self._credit = min(self._credit, 1.0) + self._script.rate(now) * self._tick_s
        while self._waiting and self._credit >= 1:
            writer, publishes = self._waiting.popleft()
            stored, left = publishes[: int(self._credit)], publishes[int(self._credit) :]
            self._credit -= len(stored)
            writer.answers.append((now + self._script.rtt_s(now), stored, True))
            if left:
                self._waiting.appendleft((writer, left))


class Writer:
    """A task that has always more rows."""

    def __init__(self, limit: Window) -> None:
        self.window = Lane("_INBOX.0", limit, replace(_WINDOW, publish_timeout_s=1e9))
        self.answers: deque[tuple[float, range, bool]] = deque()
        """When which publishes are answered, and whether they are stored."""
        self.track: list[tuple[float, int]] = []
        """The limit over time."""
        self._offered = 0

    def turn(self, server: Server, now: float) -> None:
        """Takes the answers that are due, and sends what it may."""
        window = self.window
        due = [answer for answer in self.answers if answer[0] <= now]
        self.answers = deque(answer for answer in self.answers if answer[0] > now)
        for _, publishes, are_stored in due:
            if are_stored:
                window.on_pubacks(list(publishes), now)
                continue
            for number in publishes:
                window.on_answer(number, _FULL, now)
        window.expire(now)
        if window.wants_rows:
            window.append(_block(self._offered))
            self._offered += _BLOCK
        while (frames := window.frames_to_send(now, _MAX_BYTES)) is not None:
            wire = frames
            for publishes in _runs(memoryview(wire).cast("q").tolist()):
                server.publish(self, publishes, now)
        self.track.append((now, window.limit))


def run(script: Script, *limits: Window, until: float, tick_s: float = 0.002) -> list[Writer]:
    """Publishes for so many seconds, one writer a limit."""
    server, writers = Server(script, tick_s), [Writer(limit) for limit in limits]
    for tick in range(round(until / tick_s)):
        server.store(tick * tick_s)
        for writer in writers:
            writer.turn(server, tick * tick_s)
    return writers


def _block(first: int) -> Publishes:
    numbers = memoryview(b"".join(n.to_bytes(8, "little") for n in range(first, first + _BLOCK)))
    offsets = range(0, _WIDTH * (_BLOCK + 1), _WIDTH)
    return Publishes(first, numbers, offsets, _ROWS)


def _runs(numbers: list[int]) -> Iterator[range]:
    """The numbers as ranges; those sent again may be any."""
    whole = range(numbers[0], numbers[0] + len(numbers))
    if numbers == list(whole):
        yield whole
    else:
        yield from (range(number, number + 1) for number in numbers)
