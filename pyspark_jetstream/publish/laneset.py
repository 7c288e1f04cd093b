"""
The lanes of one task: one for rows, and one for dead letters.

Rule 1: no I/O and no clock.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..outbox.messages import Messages
from ..outbox.targets import Target, Targets
from .lanes.flight import Window
from .lanes.lane import Lane
from .settings import SinkOptions

_LETTERS: Final = 64
"""Dead letters without a PubAck at one time (overload.md A22)."""


class LaneSet:
    """
    The lanes of one task.

    Args:
        inbox: replies to the n-th lane come on `<inbox>.<n>.>`.
    """

    def __init__(self, options: SinkOptions, targets: Targets, inbox: str) -> None:
        self.publish_timeout_s = options.window.publish_timeout_s
        """The least that any row has."""
        self._options = options
        self._targets = targets
        window = options.window
        size = Window(window.max_in_flight, window.min_in_flight)
        self.rows = Lane(f"{inbox}.0", size, window, options.rows.rejects)
        """The lane of rows."""
        self.letters = Lane(f"{inbox}.1", Window(_LETTERS, _LETTERS), window)
        """The lane of dead letters."""
        self.all = self.rows, self.letters
        """In the order of their numbers."""

    def push_backs(self, now: float) -> list[tuple[int | None, float]]:
        """
        The streams of rows that pushed back since the last call, by their places, None for one that
        is not known; and when, or until when nothing is tried there.
        """
        said = dict(self.rows.tally.push_backs)
        for lane in self.all:
            lane.tally.push_backs.clear()
        if not said:
            return []
        places = self._targets.known(pa.array([*said], pa.string())).to_pylist()
        return [(place, max(now, at)) for place, at in zip(places, said.values(), strict=True)]

    def take(self, kind: str) -> list[Any]:
        """Entries of this field in the tally of rows' lane; those of other lanes are dropped."""
        found = list(getattr(self.rows.tally, kind))
        for lane in self.all:
            getattr(lane.tally, kind).clear()
        return found

    @property
    def acked(self) -> int:
        """Messages stored, dead letters among them."""
        return sum(lane.tally.acked for lane in self.all)

    def totals(self) -> dict[str, int]:
        """Counts of this task, as `Telemetry.count` takes them."""
        rows, letters = self.rows.tally, self.letters.tally
        return {
            "success": rows.acked,
            "pushed_back": rows.pushed_back,
            "bypassed": letters.acked,
            "retries": rows.retries + letters.retries,
            "ignored": rows.ignored + letters.ignored,
        }

    def next_deadline(self, now: float) -> float:
        """The time at which a lane has to act though nothing arrives."""
        return min(lane.next_deadline(now) for lane in self.all)

    def offer(self, messages: Messages) -> None:
        """Hands rows to their lane."""
        if not len(messages):
            return
        for place in pc.unique(messages.row_targets).drop_null().to_pylist():
            self._apply_window(self._targets[place])
        self.rows.offer(messages)

    def _apply_window(self, target: Target) -> None:
        """Lowers the lane's time-out to what the stream's duplicate window allows."""
        if self._options.ledger:
            # Sent again for the last time, a message must still find its id in the window.
            max_s = max(0.0, target.duplicate_window_s - self._options.window.ack_timeout_s)
            self.rows.lower_timeout(max_s)
            self.publish_timeout_s = min(self.publish_timeout_s, max_s)
