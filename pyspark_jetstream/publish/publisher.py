"""
Publishing the messages of one task: the lanes' decisions carried out on one connection.

No event loop and no policy: the task's own thread sends the lanes' frames, reads replies between
two sends without waiting, and waits for them only when there is nothing to send. Rows behind the
first block come from a thread of their own (`rowthread`). All wait in `admission`, which says which
go next, and go by their lane. A connection that breaks, or is silent for two `ackTimeout`s though
it was asked (PING), is dialled again, and what was not acked goes out again with the same ids.

On `throttleSubject` the task listens to operators, and asks them first what is paused
(`Operators`). A command to pause is in force before its receipt goes out, behind everything sent
before: lanes give back what they have not sent, and admission keeps what is paused (overload.md
B12). A subject that the server refuses for want of room (10077 of its stream, 10002 of the account,
10023 of the server) waits in the same way, if others may go on (`pauses`). Rows that were sent wait
in their lane.

One loop reads acks, admits rows and sends, so lanes and queue need no locks. A write with a ledger
looks at it between two turns (`Gate`):

    while publisher.busy:
        for leaving in publisher.leaving():  # rows that leave the queue, to be sent or shed
            publisher.release(leaving)       # all of them, or those that are not stored yet
        publisher.turn()                     # sends once, or waits once, and reads what came
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..client.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, Client
from ..client.patience import Patience
from ..errors import (
    NotConnectedError,
    ProducerThrottledError,
    PublishRejectedError,
    PublishTimeoutError,
)
from ..outbox.admission import QUEUE_ROWS, Admission, Leaving
from ..outbox.messages import Messages
from ..sanitize import get_logger
from .context import WriteContext
from .lanes.lane import BROKEN
from .lanes.retries import gathered
from .laneset import LaneSet, Shedding
from .metrics import Written
from .pauses import WriterPauses
from .rowthread import Supply
from .sender import SEND_TIMEOUT_S, Sender
from .telemetry import Reporter, Watchdog

logger = get_logger(__name__)

_PIECE: Final = 1000
"""Rows that leave the queue at one time where each is looked up first."""

_LONGEST_WAIT_S: Final = 10.0


class Gate(Protocol):
    """A look at rows before they go out."""

    def may_go(self) -> bool:
        """Whether any may go now; if not, those that were not sent are judged anew."""

    def fresh(self, rows: Messages) -> pa.Array | None:
        """BOOL: which of these no earlier attempt has stored; None for all."""


def publish(
    client: Client, context: WriteContext, blocks: Iterable[Messages], gate: Gate | None = None
) -> Written:
    """
    Publishes every message and returns when each is stored.

    Raises:
        PublishError: A message was not stored; those before and behind it may be.
        ProducerThrottledError: Likewise, because its subject is paused.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    with Supply(blocks) as supply, Publisher(client, context, supply) as publisher:
        while publisher.busy:
            may_go = gate is None or gate.may_go()
            if not may_go:
                publisher.withhold()
            for leaving in publisher.leaving() if may_go else ():
                publisher.release(leaving, None if gate is None else gate.fresh(leaving.rows))
            publisher.turn()
    return publisher.finish()


class Publisher:
    """
    The publishing of one task's rows, turn by turn.

    Args:
        supply: the blocks of rows.
    """

    def __init__(self, client: Client, context: WriteContext, supply: Supply) -> None:
        options, now = context.options, context.clock.monotonic()
        connection = client.connection
        inbox = connection.new_inbox()
        self._context = context
        self._supply = supply
        self.lanes = LaneSet(options, context.targets, inbox)
        """Of rows, and of what goes elsewhere."""
        self.sender = Sender(client, inbox, self.lanes, options, context.clock)
        """Sends frames and reads replies."""
        self.pauses = WriterPauses(context)
        """Pauses that hold rows back."""
        self.admission = Admission(options.rules, self.pauses.throttle)
        """The queue of rows that wait to be sent."""
        self.shedding = Shedding(context, self.lanes, connection.max_payload)
        """Stores or drops rows that are shed or rejected."""
        self._stored_before = 0  # by an earlier attempt
        self._unreleased: list[Leaving] = []
        """Shed rows that the caller has not released."""
        self._goes_on = False  # whether rows have left the queue for this turn
        is_on = options.metrics.metrics_subject is not None
        self._reporter = Reporter(context.origin, is_on)
        self._watchdog = Watchdog(now)

    def __enter__(self) -> Publisher:
        try:
            self._listen()
        except NotConnectedError as error:
            self._reconnect(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Says for the last time what was counted."""
        if kind is not None and issubclass(kind, PublishRejectedError):
            self.shedding.rejected += 1
        self._report(final=True)
        if self.shedding.dropped:
            logger.warning(
                "dropped %d rows, as overloadPolicy=drop says: their streams pushed back, or were"
                " full", self.shedding.dropped,
            )  # fmt: skip

    def finish(self) -> Written:
        """Ends the subscriptions when no row is left; the outcomes of all rows."""
        rows = self.lanes.rows.tally
        letters, telemetry = self.lanes.letters.tally, self._context.telemetry
        telemetry.stored_in = rows.stored_in
        counts = Written(
            self.admission.offered + self.shedding.unfit,
            rows.acked,
            rows.duplicates,
            rows.retries,
            already_stored=self._stored_before,
            dead_letters=letters.acked,
            dropped=self.shedding.dropped,
        )
        try:
            self.sender.close()
            self.pauses.close(self.sender.connection)
        except NotConnectedError as error:  # all is stored
            logger.info("the connection broke at the end: %s", error)
            self.sender.drop()
        return counts

    @property
    def busy(self) -> bool:
        """Whether there are rows, or may be more, that are neither stored nor shed."""
        return not self._supply.ended or bool(self._unreleased) or self._has_rows

    @property
    def _has_rows(self) -> bool:
        busy = (lane.busy or lane.tally.rejected for lane in self.lanes.all)
        return self.admission.waiting > 0 or any(busy)

    @property
    def _lately(self) -> list[Sequence[str]]:
        """Subjects of the rows that wait, or went last."""
        held = self.lanes.rows.again.held.values()
        return [*self.admission.lately, [each.subject for each in held]]

    def _why_not(self) -> str:
        """Reason that nothing is stored: what waits, for what and how long, and what ends it."""
        now = self._now()
        said = [f"{self.admission.waiting + len(self.lanes.rows.again.held)} rows wait"]
        said += self.pauses.reasons(self._lately, now)
        for lane in self.lanes.all:
            if lane.unanswered:
                why = f": {lane.again.cause:.200}" if lane.again.cause else ""
                said.append(
                    f"{lane.unanswered} publishes have no PubAck (window {lane.limit}){why}"
                )
        left_s = min((lane.give_up_at for lane in self.lanes.all), default=math.inf) - now
        if left_s < math.inf:
            said.append(
                f"the write fails in {max(0.0, left_s):.0f}s, unless the row that waits longest is"
                " stored by then (publishTimeout, or a shorter duplicate_window)"
            )
        return "; ".join(said)

    def _now(self) -> float:
        return self._context.clock.monotonic()

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def leaving(self) -> list[Leaving]:
        """
        Takes the next block, or asks for it, and then rows out of the queue: those that are shed,
        and behind them those that are sent next. The caller releases each before the next turn.
        """
        self._take_block()
        leaving, self._unreleased = self._unreleased, []
        if (rows := self._take_next()) is not None:
            leaving.append(Leaving(rows))
        self._goes_on = bool(leaving)
        return leaving

    def release(self, leaving: Leaving, fresh: pa.Array | None = None) -> None:
        """
        Hands rows on: to their lanes, to where shed rows go, or back to the queue, where a limit
        has come up meanwhile.

        Args:
            fresh: BOOL, which of them no earlier attempt has stored: the others go nowhere. None
                for all.
        """
        rows, reason = leaving
        unstored = rows if fresh is None else rows.where(fresh)
        self._stored_before += len(rows) - len(unstored)
        if reason is not None:
            self.shedding.shed(unstored, reason)
            return
        now = self._now()
        wait = self.pauses.untried(unstored, now)
        if wait is not None:
            self.admission.give_back(unstored.where(wait), now)
            unstored = unstored.where(pc.invert(wait))
        self.pauses.operators.sent(unstored.distinct)
        self.lanes.offer(unstored)
        if len(unstored):
            self._context.telemetry.sent(unstored, unstored.since, now)

    def _take_block(self) -> None:
        """Asks for the next block when there is room, and takes it when it is there."""
        supply, now = self._supply, self._now()
        if not supply.asked and not supply.ended and self._has_room(now):
            self._context.is_paused = self.pauses.throttle.snapshot(now)
            supply.ask()
        block = supply.get()
        if block is not None:
            block = self.shedding.sort_out(block)
            is_full = not self.lanes.rows.wants_rows
            self._unreleased += self.admission.offer(block, self._now(), is_full)

    def _has_room(self, now: float) -> bool:
        """Whether the next block may come."""
        rows, letters = self.lanes.all
        held_bytes, is_full = rows.again.held_bytes, not rows.wants_rows
        may = self.admission.wants_rows(now, is_full, held_bytes)
        return not self._unreleased and letters.wants_rows and may

    def _take_next(self) -> Messages | None:
        """The rows to be sent next, when all that lanes had is on its way; None for none."""
        now = self._now()
        self._hold(now)
        if not self.admission.waiting or not self.lanes.rows.wants_rows:
            return None
        maximum = max(1, self.lanes.rows.limit)
        if self.admission.is_plain:  # nothing overtakes, and a pause has them given back
            maximum = max(maximum, QUEUE_ROWS)
        if self._context.is_checked:
            maximum = min(maximum, _PIECE)
        return self.admission.take(maximum, now)

    def _take_rejected(self) -> None:
        """Rows that the server will never store (`onReject=dead-letter`)."""
        if rejected := self.lanes.take("rejected"):
            parts, answers = zip(*rejected, strict=True)
            why = [f"{answer.detail} (err_code {answer.err_code})" for answer in answers]
            self.shedding.reject(Messages.joined(parts), why)

    def _hold(self, now: float, recalls: bool = False) -> None:
        """
        Has their lane hold rows to be sent again whose subjects wait, until these are free.

        Args:
            recalls: whether all that were not sent go back to the queue.
        """
        lane = self.lanes.rows
        self.pauses.hold(lane.again, now)
        if recalls and (back := lane.recall()):
            self.admission.give_back(Messages.joined(back), now)

    def withhold(self) -> None:
        """Takes back what was released and never sent: it is to be judged anew."""
        self._hold(self._now(), True)
        self._goes_on = True  # as soon as it may

    # ── a turn ───────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """Sends once, or waits once; hands every reply that has arrived to its lane."""
        try:
            acked = self.lanes.acked
            self._send_or_wait()
            while self.sender.connection.poll():
                self._read()
            self._apply_answers(self.lanes.acked > acked)
        except NotConnectedError as error:
            self._reconnect(error)
        except (PublishTimeoutError, ProducerThrottledError) as error:
            now = self._now()
            raise self.pauses.explained(error, now - self.lanes.publish_timeout_s, now) from None

    def _send_or_wait(self) -> None:
        connection, pauses = self.sender.connection, self.pauses
        # Replies that came meanwhile are read first.
        held = pauses.awaits_operators(connection, self._now())
        if self.sender.send(held):
            return
        if connection.poll():
            self._read()
        elif not self._goes_on and (self._has_rows or self._supply.asked):
            supply = self._supply
            connection.wait(self._deadline(held), supply.fileno() if supply.asked else -1)

    def _deadline(self, held: bool) -> float:
        """The time at which to act though nothing arrives."""
        now = self._now()
        # What is due of rows may not go while they are held.
        lanes = self.lanes.letters if held else self.lanes
        deadlines = [self.pauses.operators.next_deadline(now), lanes.next_deadline(now)]
        deadlines += [self.admission.next_deadline(now), self._reporter.due]
        if self.lanes.rows.again.held:
            deadlines.append(self.pauses.held_until)
        return min(*deadlines, now + _LONGEST_WAIT_S)

    def _apply_answers(self, is_news: bool) -> None:
        """
        Acts on what has arrived: on late, refused rows, and on what is to be told.

        Args:
            is_news: whether PubAcks have come in this turn.
        """
        lanes, options = self.lanes, self._context.options
        if any(lane.unanswered for lane in lanes.all):
            self.sender.connection.check(self._now(), options.window.ack_timeout_s)
        if is_news:
            self.pauses.throttle.table.acked()
        now = self._now()
        for lane in lanes.all:
            lane.expire(now)
        self._unreleased += self.admission.expire(now, not lanes.rows.wants_rows)
        self._take_rejected()
        self._apply_refusals(now)
        still_s = self._watchdog.look(now, lanes.acked, self._has_rows)
        if still_s:
            logger.warning("nothing stored for %.0fs: %s", still_s, self._why_not())
        if now >= self._reporter.due:
            self._report()

    def _apply_refusals(self, now: float) -> None:
        """Pauses the subjects of the server's refusals."""
        for place, at in self.lanes.push_backs(now):
            self.admission.overload.pushed_back(place, at)
        at_limit = False
        if refusals := self.lanes.take("refusals"):
            streams = self._context.targets.names([refused.subject for refused in refusals])
            for refusal, stream in zip(refusals, streams, strict=True):
                at_limit |= self.pauses.refuse(refusal, stream, now)
        if at_limit:
            # Hardly ever: of such subjects few rows are tried.
            is_paused = self.pauses.throttle.is_paused
            self._hold(now, self.lanes.rows.has_paused(lambda subject: is_paused(subject, now)))
            self._unreleased += self.shedding.give_up(self.admission, now)

    def _report(self, final: bool = False) -> None:
        """
        Counts, and says so where somebody may listen. No limit holds for it (A27).

        The last one may be lost with its connection: what it says is in the task's result, too.
        """
        options, telemetry = self._context.options, self._context.telemetry
        now = self._now()
        telemetry.count(self.lanes.totals() | {"rejected": self.shedding.rejected})
        telemetry.paused(self.pauses.throttle, now)
        held = gathered(self.lanes.rows.again.held.values())
        telemetry.waiting([*self.admission.messages(), *(messages for messages, _ in held)])
        subject = options.metrics.metrics_subject
        if subject is None:
            return
        connection = self.sender.connection
        report = self._reporter.report(telemetry.snapshot(), now, final)
        if len(report) > connection.max_payload:  # the server would cut the connection
            logger.warning(
                "no metrics are reported: their %d bytes are more than the server's max_payload of"
                " %d. Rows are written all the same. Raise max_payload, or give prioritySubjects"
                " fewer filters", len(report), connection.max_payload,
            )  # fmt: skip
            return
        try:
            if connection.offer(subject, report, "", SEND_TIMEOUT_S):
                telemetry.bypassed()
        except NotConnectedError as error:
            if not final:
                raise
            logger.info("the last metrics are lost: %s", error)

    # ── the connection ───────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        """Hands replies to their lanes, and answers operators."""
        for name, frame in self.sender.read():
            now = self._now()
            answer, recalls = self.pauses.on_frame(name, frame, self._lately, now)
            if recalls:
                self._hold(now, recalls)
            if answer is not None and frame.reply:
                self.sender.connection.answer(frame.reply, answer, SEND_TIMEOUT_S)
                self._context.telemetry.bypassed()

    def _listen(self) -> None:
        self.sender.listen()
        self.pauses.listen(self.sender.connection, self.sender.inbox)

    def _reconnect(self, error: NotConnectedError) -> None:
        """Dials until there is a connection, or the oldest publish on its way has no time left."""
        lanes = self.lanes.all
        for lane in lanes:
            lane.on_disconnect(f"{BROKEN}: {error.reason}")
        oldest = min((lane.give_up_at for lane in lanes), default=math.inf)
        patience = Patience(
            min(oldest - self._now(), self._context.options.window.publish_timeout_s),
            pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, clock=self._context.clock,
        )  # fmt: skip
        while True:
            self.sender.drop()
            if not error.retryable or patience.over:
                raise error
            logger.info("reconnecting lanes=%r reason=%s", lanes, error.reason)
            patience.pause()
            try:
                self._listen()
                return
            except NotConnectedError as again:
                error = again
