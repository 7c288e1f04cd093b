"""
The lanes of one task: one for rows, and one for the dead letters that become of some.

Rows are shed under overload (`overloadPolicy`), or rejected: they can be no messages, or the server
will never store them (`onReject`).

Rule 1: no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..outbox.admission import Admission, Leaving
from ..outbox.messages import Messages
from ..outbox.targets import Target, Targets
from .context import WriteContext
from .lanes.flight import Window
from .lanes.lane import Lane
from .lanes.retries import gathered
from .settings import SinkOptions

_LETTERS: Final = 64
"""Dead letters without a PubAck at one time (overload.md A22)."""

_PATIENCE: Final = 0.75
"""
The part of `publishTimeout` after which a refused row that may be shed is: what is left of it is
for the last try's answer.
"""


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


class Shedding:
    """
    Rows of one task that are dropped, or become dead letters.

    Args:
        max_payload: the largest headers and payload that the server takes together.
    """

    def __init__(self, context: WriteContext, lanes: LaneSet, max_payload: int) -> None:
        options, origin = context.options, context.origin
        self.dropped = 0
        self.rejected = 0
        """Rows that never will be stored where they should."""
        self.unfit = 0
        """Number of these that were never offered, as no message can hold them."""
        self._drops = options.drops
        self._lanes = lanes
        self._telemetry = context.telemetry
        self._letters = None
        if options.dead_letter_subject is not None:
            from ..outbox.deadletters import DeadLetters  # few writes make any

            where = options.dead_letter_subject, origin.query_id, origin.batch_id
            self._letters = DeadLetters(*where, max_payload, options.rows.reserved)

    def shed(self, messages: Messages, reason: str) -> None:
        """Rows make room: they are dropped, or become dead letters."""
        if not len(messages):
            return
        self._telemetry.shed(messages, reason, not self._drops)
        if self._drops:
            self.dropped += len(messages)
        else:
            self._store(messages, reason)

    def give_up(self, admission: Admission, now: float) -> list[Leaving]:
        """Takes out what waits for streams that have refused rows for most of their time (A13)."""
        again, overload = self._lanes.rows.again, admission.overload
        if not overload.is_felt(now):
            return []
        refused = [each for each in again.held.values() if not each.is_unsure]
        sent_by = now - _PATIENCE * self._lanes.publish_timeout_s
        parts = gathered(each for each in refused if each.first_sent <= sent_by)
        if not parts:
            return []
        late = Messages.joined([messages for messages, _ in parts])
        gone = [admission.give_up(late, now)]
        for messages, troubles in gathered(refused):
            mask = overload.to_give_up(messages, late, now)
            again.drop(compress([each.ordinal for each in troubles], mask.to_pylist()))
            gone.append(messages.where(mask))
        return [Leaving(rows, "PublishTimeout") for rows in gone if len(rows)]

    def reject(self, messages: Messages, why: Sequence[str]) -> None:
        """Rows that can be no messages, or that the server will not store, become dead letters."""
        self.rejected += len(messages)
        self._telemetry.shed(messages, "Rejected", True)
        reasons = [f"Rejected: {' '.join(each.split())}" for each in why]
        self._store(messages, pa.array(reasons, pa.string()), rejected=True)

    def sort_out(self, block: Messages) -> Messages:
        """The rows of a block that can be messages; the others are rejected."""
        fit, unfit = block.parted()
        if unfit is not None and unfit.faults is not None:
            self.unfit += len(unfit)
            self.reject(unfit, unfit.faults.to_pylist())
        return fit

    def _store(self, messages: Messages, reason: str | pa.Array, rejected: bool = False) -> None:
        assert self._letters is not None, "options without a subject for shed rows"
        letters = self._letters.of(messages, reason, rejected)
        self._lanes.letters.offer(letters)
