"""The progress of a backfill: rows a second, and the time left."""

from __future__ import annotations

from collections import deque
from typing import Final

_MARKS: Final = 6


class ChunkRate:
    """
    Rate and time left, by the last chunks of this run: the first ones wait for Spark to warm up.

    Without a clock of its own: callers pass `now`.
    """

    def __init__(self, total: int, done: int, now: float) -> None:
        self.total = total
        self.done = done
        self.rows = 0
        self._whose = " in this run" if done else ""
        self._marks = deque([(now, done, 0)], maxlen=_MARKS)
        """Times, with the done part and the rows by then."""

    def __repr__(self) -> str:
        return f"<ChunkRate {self.done}/{self.total}, {self.rows} rows>"

    def add(self, weight: int, rows: int, now: float) -> None:
        """A chunk is done."""
        self.done += weight
        self.rows += rows
        self._marks.append((now, self.done, self.rows))

    def text(self) -> str:
        """Rows of this run, rows a second, time left."""
        (then, done, rows), (now, _, _) = self._marks[0], self._marks[-1]
        words = [f"{self.rows:,} rows{self._whose}"]
        if now > then and self.done > done:
            words.append(f"{(self.rows - rows) / (now - then):,.0f} rows/s")
            left = (now - then) * (self.total - self.done) / (self.done - done)
            words.append(f"{_clock(left)} left")
        return "  ".join(words)

    def percent(self) -> float:
        """The done part of everything, earlier runs included."""
        return 100 * self.done / self.total if self.total else 100.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
