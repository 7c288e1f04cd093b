"""
Servers whose capacity is scripted, and a window that publishes into them; the clock is a number.

A server stores what waits, oldest first, at the rate of its script; answers take a round trip. With
no room for a publish it refuses it (429), which costs it a share of a store. What the limiter makes
of that, the retries, their pauses and the publishes sent again for silence are our own `Window`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.limits import Kind, Limit
from pyspark_jetstream.publish.lanes.answers import Outcome
from pyspark_jetstream.publish.lanes.frames import Publishes
from pyspark_jetstream.publish.lanes.lane import LaneTerms, Outlook
from pyspark_jetstream.publish.lanes.retries import Deadlines
from pyspark_jetstream.publish.lanes.window import Window

__all__ = ["SCRIPTS", "Script", "stored"]

_TICK_S: Final = 0.001
_BLOCK: Final = 10_000
_WIDTH: Final = 8
"""Bytes of a publish, which is its number."""

_MAX_BYTES: Final = 1 << 19
"""Sent at one time, as by the publisher."""

_WINDOW: Final = parse_sink({}).window
"""The options of a write that sets none."""

_REFUSAL: Final = 0.2
"""What refusing a publish costs the server, of what storing one does."""

_FULL: Final = Outcome(Kind.OVERLOADED, "full", 10167)


class Script(NamedTuple):
    """How a server behaves over time."""

    name: str
    rtt_s: Callable[[float], float] = lambda now: 0.002
    """Of a publish that waits for nothing."""
    rate: Callable[[float], float] = lambda now: 50_000.0
    """Publishes it stores in a second."""
    room: int = 1 << 30
    """Publishes that may wait for that."""
    seconds: float = 9.0


SCRIPTS: Final = (
    Script("near and fast", rtt_s=lambda now: 0.001, rate=lambda now: 100_000),
    Script("80 ms away", rtt_s=lambda now: 0.08, rate=lambda now: 40_000),
    Script("slow disk, stalls", rate=lambda now: 0 if now % 1 < 0.2 else 600, seconds=18.0),
    Script("room for 50", rate=lambda now: 20_000, room=50, seconds=4.5),
    Script("latency ×10 amid", rtt_s=lambda now: 0.004 if now < 3 else 0.04),
    Script(
        "capacity cut to 1/25 and back",
        rate=lambda now: 2_000 if 3 <= now < 6 else 50_000,
        room=1_000,
    ),
)


def stored(script: Script, limit: Limit) -> int:
    """How many publishes a writer that has always more gets stored in the time of the script."""
    server = _Server(script)
    deadlines = Deadlines(_WINDOW.ack_timeout_s, 1e9)
    window = Window(LaneTerms(limit, _WINDOW.max_in_flight_bytes, deadlines, Outlook()))
    offered = 0
    for tick in range(round(script.seconds / _TICK_S)):
        now = tick * _TICK_S
        server.store(now)
        for publishes, are_stored in server.answers(now):
            if are_stored:
                window.on_pubacks(publishes, now)
            else:
                for number in publishes:
                    window.on_answer(number, _FULL, now)
        window.expire(now)
        if window.wants_rows:
            window.append(_block(offered))
            offered += _BLOCK
        while (frames := window.ready(now, _MAX_BYTES)) is not None:
            wire = b"".join(frames) if isinstance(frames, list) else frames
            server.publish(memoryview(wire).cast("q").tolist(), now)
    return window.tally.acked


class _Server:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._waiting: deque[int] = deque()
        self._answers: deque[tuple[float, list[int], bool]] = deque()
        self._credit = 0.0

    def publish(self, publishes: list[int], now: float) -> None:
        """Takes what it has room for, and refuses the others."""
        room = max(0, self._script.room - len(self._waiting))
        self._waiting.extend(publishes[:room])
        if refused := publishes[room:]:
            self._credit -= _REFUSAL * len(refused)
            self._answers.append((now + self._script.rtt_s(now), refused, False))

    def store(self, now: float) -> None:
        """Stores what there is time for."""
        # Time without work is lost; of a publish half done the rest is done later.
        self._credit = min(self._credit, 1.0) + self._script.rate(now) * _TICK_S
        count = min(int(self._credit), len(self._waiting))
        if count > 0:
            done = [self._waiting.popleft() for _ in range(count)]
            self._credit -= count
            self._answers.append((now + self._script.rtt_s(now), done, True))

    def answers(self, now: float) -> Iterator[tuple[list[int], bool]]:
        """What has arrived by now: which publishes, and whether they are stored."""
        due = sum(1 for at, _, _ in self._answers if at <= now)
        # One connection: an answer does not overtake those before it.
        for _, publishes, are_stored in list(islice(self._answers, due)):
            self._answers.popleft()
            yield publishes, are_stored


def _block(first: int) -> Publishes:
    numbers = memoryview(b"".join(n.to_bytes(8, "little") for n in range(first, first + _BLOCK)))
    offsets = range(0, _WIDTH * (_BLOCK + 1), _WIDTH)
    return Publishes(first, numbers, offsets, ("a",), bytes(_BLOCK))
