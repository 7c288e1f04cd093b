"""
The size of the window of publishes on the wire: it follows the capacity of the server.

Rule 1: nothing but PubAcks, their round trips and push-backs decides; who sends what is not known.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic).

Gradient2 of Netflix's concurrency-limits in spans of time, with slow start and a cut on push-back
(overload.md §5). A *span* lasts twice its shortest round trip, 100 ms at least and 1 s at most,
and until it has ten samples or a push-back. When it closes,

    pushed back           the size was cut to 0.7 when it began: a push-back begins a span
    half of it unused     stays: there is no evidence
    gradient = 1          doubles while in slow start, else grows by max(4, √size)
    gradient < 1 once     stays, while in slow start
    gradient < 1          slow start ends; 0.8 × size + 0.2 × (gradient × size + max(4, √size))

    gradient = 1.5 × long / short, within 0.5 … 1

where *short* is the span's mean round trip and *long* the mean of ten spans, then their moving
average over 600. Four things are ours, because without them the window collapses, or never grows,
where it need not:

- **An outage says nothing about capacity.** Push-backs with no PubAck between them cut the size
  again and again, down to the least; but slow start leads back to what the first cut had left.
- **A latency that is not our queue's.** Where the round trip grows for another reason (a leader far
  away, slower disks), gradient < 1 would shrink the window down to 8 until *long* has followed,
  hundreds of spans later. If halving the size has not made round trips a quarter shorter, they
  are the new *long*, and slow start begins again.
- **Round trips that are long by chance.** One span of them would end slow start, and from there
  the window takes seconds to grow as a server far away needs it. So it takes two in a row. (Not
  three, and not none while more is stored: of several writers one would go on at the others'
  expense.)
- **Round trips that are short anyway.** Near the server each doubling doubles them, as what is on
  the wire waits there; that ended slow start at some 600 publishes, where a queue of a few
  milliseconds is no load, and each of so small sendings costs both sides. So *long* counts as 20 ms
  at least.

What fails before it has a meaningful round trip (no responders, a broken connection, 10158) is not
handed in at all: Netflix's *ignore*.

Subjects at a limit of their stream (10077): when each is tried again, and with how many rows.

    refused ──pause, growing up to 1 s──▸ 1 row ──50 ms──▸ 2 rows ──▸ 4 … 512 ──▸ all
       ▴                                    │ a refusal, at any time
       └────────────────────────────────────┘

All that wait of a subject would be refused one by one, each second, at the cost of all the others.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

MINIMUM: Final = 1
"""Lower bound of the adaptive window, in publishes."""

INITIAL: Final = 64
"""The adaptive window in the first task of a worker process; slow start begins there."""

_MIN_WINDOW_S: Final = 0.1
_MAX_WINDOW_S: Final = 1.0
_MIN_SAMPLES: Final = 10

_TOLERANCE: Final = 1.5
"""A round trip may be so many times the long one before the window shrinks."""

_LEAST_LONG_S: Final = 0.02
"""Lower bound of the long round trip in the estimate: a shorter one shows no queue."""

_SMOOTHING: Final = 0.2
_CUT: Final = 0.7
"""Factor of the size after a push-back (β of botocore's CubicCalculator)."""

_WARM_UP: Final = 10
_LONG: Final = 600
"""Spans that make the long round trip: their mean at first, then their moving average."""

_RELIEF: Final = 0.75
"""Half of the size must bring round trips down to this part, else they are not our queue's."""


_CPU_WINDOW_S: Final = 0.5


_FORGET_S: Final = 5.0
"""A subject that was not refused for so long is at its limit for the first time."""

_MAX: Final = 10_000
"""Subjects at a limit that are paused at one time, each for itself; as many as `throttle` keeps."""

TRY_S: Final = 0.05
"""Time between a try and the next, larger one, unless the server refuses."""

_MAX_TRIED: Final = 1024


class Kind(Enum):
    """Kinds of answers to a publish, by their effect on the size of the window."""

    STORED = "stored"
    DUPLICATE = "stored before"
    OVERLOADED = "the server is overloaded"
    LIMITED = "a limit is reached"
    ABSENT = "nobody listens on the subject"
    IN_PROCESS = "another attempt is being stored"
    REJECTED = "rejected"


_FIRST_PAUSE_S: Final = {Kind.OVERLOADED: 0.01}
_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class _Samples:
    """Round trips and publishes of a span, between two changes of the size."""

    start: float
    samples: int = 0
    sum_s: float = 0.0
    min_s: float = math.inf
    in_flight: int = 0
    pushed_back: bool = False

    def is_over(self, now: float) -> bool:
        if self.samples < _MIN_SAMPLES and not self.pushed_back:
            return False
        shortest_s = self.min_s if self.samples else 0.0
        return now >= self.start + min(max(2 * shortest_s, _MIN_WINDOW_S), _MAX_WINDOW_S)


class GradientLimit:
    """
    The size of a window. It grows while round trips stay what they are, and shrinks when they do
    not.

    Args:
        minimum: never fewer publishes than this.
        initial: at the beginning, where slow start begins.
        maximum: never more than this (`maxInFlight`). Where all three are one, it stays.
    """

    def __init__(self, minimum: int, initial: int, maximum: int) -> None:
        self.maximum = maximum
        self.held = False
        """Whether it may not grow."""
        self.drops = 0
        """Number of push-backs."""
        self.trips: list[tuple[float, int]] = []
        """Round trips, in seconds, and of how many publishes; who counts them clears them."""
        self.long_s = 0.0
        """The long round trip; 0 before the first span has closed."""
        self._minimum = min(minimum, maximum)
        self._limit = float(min(max(initial, self._minimum), maximum))
        self._slow_start_to = math.inf
        self._acked_since = False  # the last cut
        self._doubted = False  # that slow start is over
        self._windows = 0  # in long_s, up to _WARM_UP
        self._descent: tuple[float, float] | None = (
            None  # the size where it began, the worst round trip since
        )
        self._window: _Samples | None = None

    def __repr__(self) -> str:
        phase = " in slow start" if self._limit < self._slow_start_to else ""
        return f"<GradientLimit {self.value}{phase}, long round trip {self.long_s * 1e3:.1f}ms>"

    @property
    def value(self) -> int:
        """The size now, in publishes."""
        return int(self._limit)

    def acked(self, count: int, rtt_s: float, in_flight: int, now: float) -> None:
        """
        PubAcks of publishes that were sent together have come.

        Args:
            rtt_s: seconds from that sending to now; never of a publish that was sent twice, for
                which of the two is answered cannot be told.
            in_flight: publishes on the wire before these PubAcks.
        """
        self.trips.append((rtt_s, count))
        window = self._open(now)
        self._acked_since = True
        window.samples += count
        window.sum_s += count * rtt_s
        window.min_s = min(window.min_s, rtt_s)
        window.in_flight = max(window.in_flight, in_flight)
        self._close(window, now)

    def dropped(self, now: float) -> None:
        """The server refused a publish for its load or a limit, or did not answer in time."""
        self.drops += 1
        self._close(self._open(now), now)
        if not self._open(now).pushed_back:
            self._window = _Samples(now, pushed_back=True)
            self._limit = max(self._minimum, self._limit * _CUT)
            self._descent = None
            if self._acked_since:
                self._slow_start_to = self._limit
                self._acked_since = False

    def reset_counts(self) -> None:
        """A task begins: what is counted for one starts anew."""
        self.held, self.drops = False, 0
        self.trips.clear()

    # ── spans ────────────────────────────────────────────────────────────────────────────────

    def _open(self, now: float) -> _Samples:
        if self._window is None:
            self._window = _Samples(now)
        return self._window

    def _close(self, window: _Samples, now: float) -> None:
        """Closes the span if it is time; the next one begins at once."""
        if not window.is_over(now):
            return
        self._window = _Samples(now)
        if not window.pushed_back:
            self._follow(window)

    def _follow(self, window: _Samples) -> None:
        short_s = window.sum_s / window.samples
        self._lengthen(short_s)
        limit = self._limit
        if window.in_flight < limit / 2:
            return
        long_s = max(self.long_s, _LEAST_LONG_S)
        gradient = min(max(_TOLERANCE * long_s / max(short_s, 1e-9), 0.5), 1.0)
        in_slow_start = limit < self._slow_start_to
        doubted, self._doubted = self._doubted, gradient < 1.0
        if in_slow_start and gradient == 1.0:
            limit = min(2 * limit, self._slow_start_to)
        elif in_slow_start and not doubted:
            return
        else:
            room = max(4, math.ceil(math.sqrt(limit)))
            if gradient < 1.0:
                limit += _SMOOTHING * (limit * gradient + room - limit)
            else:
                limit += room
            self._slow_start_to = min(self._slow_start_to, limit)
        if self.held:
            limit = min(limit, self._limit)
        self._descend(gradient, short_s)
        self._limit = min(max(limit, self._minimum), self.maximum)

    def _lengthen(self, short_s: float) -> None:
        """The span's round trip becomes part of the long one."""
        if self._windows < _WARM_UP:
            self._windows += 1
            self.long_s += (short_s - self.long_s) / self._windows
        else:
            self.long_s += (short_s - self.long_s) * 2 / (_LONG + 1)
        if self.long_s > 2 * short_s:
            self.long_s *= 0.95

    def _descend(self, gradient: float, short_s: float) -> None:
        """Whether shrinking does any good; if not, this is the long round trip."""
        if gradient == 1.0:
            self._descent = None
            return
        top, worst_s = self._descent or (self._limit, 0.0)
        # What made round trips longer shows in full only after a span or two.
        self._descent = top, max(worst_s, short_s)
        if self._limit <= top / 2:
            self._descent = None
            if short_s > _RELIEF * worst_s:
                self.long_s = short_s
                self._slow_start_to = math.inf


class CpuShare:
    """
    Share of a core that this process has used of late (A26).

    Args:
        max_percent: above it the writer has too much to do (`maxCpuPercent`).
    """

    def __init__(self, max_percent: float) -> None:
        self.is_over = False
        """Whether it was more in the last window of half a second."""
        self._maximum = max_percent / 100
        self._start: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return f"<CpuShare {'over' if self.is_over else 'within'} {self._maximum:.0%}>"

    def used(self, cpu_s: float, now: float) -> None:
        """Takes the process's CPU time so far, in seconds."""
        if self._start is None:
            self._start = cpu_s, now
            return
        cpu, at = self._start
        if now - at >= _CPU_WINDOW_S:
            self.is_over = (cpu_s - cpu) / (now - at) > self._maximum
            self._start = cpu_s, now


def pause_s(kind: Kind, refusals: int) -> float:
    """Pause before refused rows are sent again, by the reason of the refusal."""
    pause = _FIRST_PAUSE_S.get(kind, _PAUSE_S) * 2 ** min(refusals, 10)
    return float(min(pause, _MAX_PAUSE_S))


@dataclass(slots=True)
class _AtLimit:
    times: int
    """Number of refusals in a row."""
    until: float
    """End of the subject's pause."""
    tries: int = 1
    """Number of rows in the next try."""


class SubjectLimits:
    """The subjects of one task that were refused of late, the last refused last."""

    def __init__(self) -> None:
        self._known: dict[str, _AtLimit] = {}

    def __repr__(self) -> str:
        return f"<SubjectLimits {', '.join(list(self._known)[-5:])}>"

    def __len__(self) -> int:
        return len(self._known)

    def is_waiting(self, subject: str, now: float) -> bool:
        """Whether it is not to be tried now; False of those that are too many to be known."""
        known = self._known.get(subject)
        return known is not None and known.until > now

    def reached(self, subject: str, now: float) -> float:
        """The server refused it: when it is tried again. Pauses grow up to a second."""
        known = self._known.pop(subject, None) or _AtLimit(0, -math.inf)
        known.tries = 1
        if known.until <= now:
            known.times = known.times + 1 if now - known.until < _FORGET_S else 1
            known.until = now + pause_s(Kind.LIMITED, known.times - 1)
        oldest = next(iter(self._known), subject)
        if len(self._known) >= _MAX and self._known[oldest].until <= now:
            del self._known[oldest]  # tried again, it begins with the shortest pause
        if len(self._known) < _MAX:
            self._known[subject] = known
        return known.until

    def tries(self, subject: str) -> int | None:
        """
        Number of the subject's rows that may leave now, the others `TRY_S` later; None for all.
        """
        known = self._known.get(subject)
        if known is None:
            return None
        known.tries *= 2
        if known.tries > _MAX_TRIED:
            del self._known[subject]
        return known.tries // 2
