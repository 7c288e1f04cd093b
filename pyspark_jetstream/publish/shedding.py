"""
Shed rows: dropped, or stored as dead letters by a lane of their own.

They are shed under overload (`overloadPolicy`), or rejected: they can be no messages, or the server
will never store them (`onReject`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

import pyarrow as pa

from ..client.connection import Connection
from ..outbox.admission import Admission, Leaving
from ..outbox.messages import Messages
from .context import WriteContext
from .lanes.retries import gathered
from .laneset import LaneSet

_PATIENCE: Final = 0.75
"""
The part of `publishTimeout` after which a refused row that may be shed is: what is left of it is
for the last try's answer.
"""


class Shedding:
    """
    Rows of one task that go elsewhere.

    Args:
        connection: of the task; what the server at its other end takes bounds dead letters.
    """

    def __init__(self, context: WriteContext, lanes: LaneSet, connection: Connection) -> None:
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
            limits = connection.max_payload, options.rows.reserved
            self._letters = DeadLetters(*where, *limits)

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
