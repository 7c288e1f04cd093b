"""
Publishing the messages of one task: the lanes' decisions carried out on one connection.

No event loop and no policy: the task's own thread sends what a lane says is ready, reads replies
between two sends without waiting, and waits for them only when there is nothing to send. Rows come
from a thread of their own (`rowthread`), wait in `admission`, which says which go next, and go by
the lane of their stream. A connection that breaks, or is silent for two `ackTimeout`s though it was
asked (PING), is dialled again, and what was not acked goes out again with the same ids.

On `throttleSubject` the task listens to operators, and asks them first what is paused
(`operators`). A command to pause, or to keep a rate, is in force before its receipt goes out,
behind everything sent before: lanes give back what they have not sent, and admission keeps what is
paused, or goes on a few rows at a time (overload.md B12, B26). A subject that the server refuses
for want of room (10077 of its stream, 10002 of the account, 10023 of the server) waits in the same
way.

It is one loop over one connection (`run`, `_turn`), as all acts on the same lanes and queue.

With `throttleSubject=none` nobody reads replies, or answers a PING, while Spark computes the next
batch: a server that cuts the connection for that costs a reconnect and no row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import places
from ..client import wire
from ..client.connection import Client
from ..errors import (
    NotConnectedError,
    ProducerThrottledError,
    PublishError,
    PublishRejectedError,
    PublishTimeoutError,
)
from ..outbox.admission import AUTO_ROWS, Admission, Shed, queue_rows
from ..outbox.deadletters import DeadLetters
from ..outbox.limits import TRY_S, CpuShare, SubjectLimits
from ..outbox.messages import Messages
from ..outbox.operators import Operators
from ..outbox.targets import Targets
from ..outbox.throttle import PausedBy
from ..outbox.throttleprotocol import THROTTLE_SUBJECT
from ..sanitize import get_logger
from .lanes.answers import Refusal, is_ordinal
from .lanes.asynclane import absorb
from .lanes.lane import Lane, earliest
from .laneset import LaneSet
from .options import SinkOptions
from .rowthread import Supply
from .telemetry import Cause, Counts, Origin, Reporter, Telemetry, Totals, Watchdog

__all__ = ["Hooks", "publish"]

logger = get_logger(__name__)

_CHUNK_BYTES: Final = 1 << 19
"""Sent at one time: large enough for the system call not to matter, small enough to keep
reading replies."""

_PLAIN_ROWS: Final = AUTO_ROWS
"""Rows that lanes are handed at one time where nothing overtakes; a pause has them given back."""

_PIECE: Final = 1000
"""Rows that go at one time where it has to be asked of them whether they are fresh."""

_TOLD: Final[dict[object, Operators]] = {}
"""By servers and control subject: what this process's last task was told (overload.md B7)."""

_AT_LIMIT: Final = 10077
"""err_code of a message that a limit of its stream keeps out; tries of all subjects are said so."""

_ACTIVE: Final = "active"
"""In place of a lane's number: the server's word that no controller listens."""

_REFUSALS: Final = 1000
_LONGEST_WAIT_S: Final = 10.0
_SEND_TIMEOUT_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0
_NOBODY: Final = Origin()


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a publisher asks the task whose rows it publishes, and tells it."""

    watch: Callable[[], None] = lambda: None
    """Called all the time; what it raises ends the write."""
    fresh: Callable[[Messages], pa.Array] | None = None
    """Says of rows that are about to be sent which are not stored yet; the others do not go out."""
    repeated: Callable[[Messages], None] = lambda messages: None
    """Gets rows whose id a stream knew, though they were sent once."""
    on_pauses: Callable[[Callable[[str], bool] | None], None] | None = None
    """
    Called before a block is asked for with what says whether a subject is paused, None where
    nothing is.
    """
    unrecognised: Callable[[], int] = lambda: 0
    """Says how many values so far should name a priority and do not."""


_NONE: Final = Hooks()


def publish(
    client: Client,
    options: SinkOptions,
    batches: Iterable[Messages],
    targets: Targets | None = None,
    hooks: Hooks = _NONE,
    origin: Origin = _NOBODY,
    telemetry: Telemetry | None = None,
) -> Counts:
    """
    Publishes every message and returns when each is stored.

    Args:
        telemetry: counts what happens.

    Raises:
        OptionError: A target stream does not allow the publish mode.
        PublishError: A message was not stored; those before and behind it may be.
        ProducerThrottledError: Likewise, because its subject is paused.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    counting = telemetry or Telemetry(options.priorities.routes)
    publisher = _Publisher(client, options, targets, hooks, origin, counting)
    with Supply(batches, apart=options.throttle) as supply:
        return publisher.run(supply)


@dataclass(slots=True)
class _Elsewhere:
    """Rows that no lane has stored."""

    left_out: int = 0
    """Those that an earlier attempt has."""
    dropped: int = 0
    rejected: int = 0
    """Those that never will be stored."""
    unfit: int = 0
    """Of the rejected those that were never offered, as they can be no messages."""


class _Publisher:
    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        targets: Targets | None,
        hooks: Hooks,
        origin: Origin,
        telemetry: Telemetry,
    ) -> None:
        self._client = client
        self._connection = client.connection
        self._options = options
        self._targets = targets
        self._hooks = hooks
        self._elsewhere = _Elsewhere()
        self._dead_lane: Lane | None = None
        self._dead_letters = None
        if options.dead_letter_subject is not None:
            where = options.dead_letter_subject, origin.query_id, origin.batch_id
            limits = self._connection.max_payload, options.rows.reserved
            self._dead_letters = DeadLetters(*where, *limits)
        self._cpu = None
        if options.window.max_cpu_percent is not None:
            self._cpu = CpuShare(options.window.max_cpu_percent)
        self._inbox = self._connection.new_inbox()
        self._origin = origin
        self._telemetry = telemetry
        self._reporter = Reporter(
            origin,
            self._inbox.rpartition(".")[2],
            math.inf
            if options.metrics.metrics_subject is None
            else options.metrics.metrics_interval_s,
        )
        self._lanes = LaneSet(options, targets, self._inbox, self._telemetry)
        self._numbered, self._main = self._lanes.all, self._lanes.main
        subject = options.throttle_subject or THROTTLE_SUBJECT
        told = options.connection, subject
        before = _TOLD.get(told) if options.throttle else None
        self._operators = Operators(subject, origin.producer_id, time.monotonic(), before)
        if options.throttle:
            _TOLD[told] = self._operators
        self._throttle = self._operators.throttle
        rules = replace(options.rules, publish_timeout_s=options.window.publish_timeout_s)
        self._admission = Admission(rules, self._throttle)
        self._control: set[int] = set()
        """Subscriptions on which operators speak."""
        self._limited = SubjectLimits()
        self._watchdog = Watchdog(
            time.monotonic(),
            options.rules.overload_window_s,
            lambda: f"{self._admission!r}, {self._throttle!r}, lanes={self._numbered!r}",
        )
        self._refusals: dict[str, Refusal] = {}
        """The last one of each subject, as far as they are kept."""

    def run(self, supply: Supply) -> Counts:
        try:
            self._listen()
        except NotConnectedError as error:
            self._reconnect(error)
        try:
            while not supply.ended or self._busy:
                self._pull(supply)
                self._lanes.expect(not supply.ended or self._admission.waiting > 0)
                self._turn(supply)
        except PublishRejectedError:
            self._elsewhere.rejected += 1
            raise
        finally:
            self._report(final=True)
            self._say(ends=True)
        acked, duplicates, retries = (
            sum(getattr(lane, name) for lane in self._main)
            for name in ("acked", "duplicates", "retries")
        )
        apart = self._elsewhere
        offered = self._admission.offered + apart.unfit
        dead = self._dead_lane.acked if self._dead_lane is not None else 0
        dead_in = self._dead_lane.stored_in if self._dead_lane is not None else {}
        stored_in = earliest(lane.stored_in for lane in self._main)
        if offered != acked + apart.left_out + dead + apart.dropped:
            raise PublishError("*", f"{offered} messages but {acked} PubAcks; report this")
        try:
            for sid in (self._sid, *self._control):
                self._connection.unsubscribe(sid)
        except NotConnectedError as error:  # all is stored
            logger.info("the connection broke at the end: %s", error)
            self._client.drop()
        return Counts(offered, acked, duplicates, retries, dead, apart.dropped, stored_in, dead_in)

    @property
    def _acked(self) -> int:
        return sum(lane.acked for lane in self._numbered)

    @property
    def _busy(self) -> bool:
        lanes = self._numbered
        busy = (lane.busy or lane.rejected or lane.repeated for lane in lanes)
        return self._admission.waiting > 0 or any(busy)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def _pull(self, supply: Supply) -> None:
        """Asks for the next block when there is room, and takes it when it is there."""
        if not supply.asked and not supply.ended:
            if self._dead_lane is not None and not self._dead_lane.wants_rows:
                return  # A22: not more dead letters than their own window takes
            now = time.monotonic()
            if not self._admission.wants_rows(now, self._lanes.load()):
                self._telemetry.wants_rows(self._cause(), now)
                return
            self._telemetry.wants_rows(None, now)
            if self._hooks.on_pauses is not None:
                self._hooks.on_pauses(self._throttle.snapshot(now))
            supply.ask()
            if not self._options.throttle:
                self._drain_acks()
        block = supply.get()
        if block is not None:
            block, unfit = block.parted()
            if unfit is not None and unfit.faults is not None:
                self._elsewhere.unfit += len(unfit)
                self._reject(unfit, unfit.faults.to_pylist())
            self._shed(self._admission.offer(block, time.monotonic(), self._lanes.load()))

    def _cause(self) -> Cause:
        """Why there is no room."""
        if self._admission.is_parked_full:
            return "throttle"
        return "frozen" if any(lane.is_frozen for lane in self._main) else "queue"

    def _shed(self, shed: list[Shed]) -> None:
        """Counts rows that make room, and drops them or makes dead letters of them."""
        for rows, reason in shed:
            messages = self._unstored(rows)
            if not len(messages):
                continue
            self._telemetry.shed(messages, reason, not self._options.drops, self._lanes.way)
            if self._options.drops:
                self._elsewhere.dropped += len(messages)
            else:
                self._store_dead_letters(messages, reason)

    def _take_rejected(self) -> None:
        """Rows that the server will never store (`onReject=dead-letter`)."""
        for lane in self._main:
            if lane.rejected:
                parts, answers = zip(*lane.rejected, strict=True)
                lane.rejected.clear()
                why = [f"{answer.detail} (err_code {answer.err_code})" for answer in answers]
                self._reject(Messages.joined(parts), why)

    def _tell_repeated(self) -> None:
        """
        Rows whose id a stream knew; of dead letters it may.

        Raises:
            PublishError: It should not have known it.
        """
        for lane in self._numbered:
            repeated = list(lane.repeated)
            lane.repeated.clear()
            if not repeated or lane is self._dead_lane:
                continue
            try:
                self._hooks.repeated(Messages.joined(repeated))
            except NotConnectedError as error:  # as where rows are asked for (`_unstored`)
                detail = f"who has stored {len(repeated)} rows cannot be asked: {error}"
                raise PublishError("*", detail) from error

    def _reject(self, messages: Messages, why: Sequence[str]) -> None:
        """Makes dead letters of rows that can be no messages, or that the server will not store."""
        self._elsewhere.rejected += len(messages)
        self._telemetry.shed(messages, "Rejected", True, self._lanes.way)
        reasons = [f"Rejected: {' '.join(each.split())}" for each in why]
        self._store_dead_letters(messages, pa.array(reasons, pa.string()), rejected=True)

    def _store_dead_letters(
        self, messages: Messages, reason: str | pa.Array, rejected: bool = False
    ) -> None:
        if self._dead_letters is None:
            raise PublishError("*", f"{len(messages)} rows have nowhere to go; report this")
        if self._dead_lane is None:
            self._dead_lane = self._lanes.add_dead_letters()
        self._dead_lane.offer(self._dead_letters.of(messages, reason, rejected))

    def _feed(self) -> bool:
        """Hands rows to the lanes when all they had is on its way; whether any left the queue."""
        now = time.monotonic()
        if self._throttle.active(now):
            self._recall(now, unsent=False)
        if not self._admission.waiting or not all(lane.wants_rows for lane in self._main):
            return False
        maximum = max(1, self._lanes.load().limit)
        if self._admission.is_plain:
            maximum = max(maximum, _PLAIN_ROWS)
        if self._hooks.fresh is not None:
            maximum = min(maximum, _PIECE)
        rows = self._admission.take(maximum, now)
        if rows is None:
            return False
        rows = self._tried(self._unstored(rows, is_taken=True), now)
        self._operators.sent(rows.distinct)
        self._lanes.is_away(self._connection.round_trip_s)
        for lane, part in self._lanes.parts(rows):
            lane.offer(part)
        if count := len(rows):
            since = self._admission.since
            if count == len(since):
                self._telemetry.sent(rows, since, self._lanes.way, now)
        return True

    def _tried(self, rows: Messages, now: float) -> Messages:
        """Of subjects that were at their limit only some rows; the others wait a little more."""
        if not len(self._limited):
            return rows
        later: list[pa.Array] = []
        for code in pc.unique(rows.indices):
            subject = rows.distinct[code.as_py()]
            count = self._limited.tries(subject)
            if count is not None:
                later.append(pc.indices_nonzero(pc.equal(rows.indices, code)).slice(count))
                self._throttle.refused(_AT_LIMIT, subject, (), TRY_S, now)
        if not any(map(len, later)):
            return rows
        waits = pc.is_in(places(len(rows)), pa.concat_arrays(later).cast(pa.int64()))
        self._admission.give_back(rows.where(waits), now)
        return rows.where(pc.invert(waits))

    def _unstored(self, rows: Messages, is_taken: bool = False) -> Messages:
        """
        Those that no earlier attempt has stored; the others are neither sent nor shed.

        Args:
            is_taken: whether they come from the queue.
        """
        if self._hooks.fresh is None:
            return rows
        try:
            fresh = self._hooks.fresh(rows)
        except NotConnectedError as error:  # another connection's: to dial ours helps nobody
            detail = f"whether {len(rows)} rows are stored already cannot be asked: {error}"
            raise PublishError("*", detail) from error
        unstored = rows.where(fresh)
        self._elsewhere.left_out += len(rows) - len(unstored)
        if is_taken and len(unstored) < len(rows):
            self._admission.refund(rows.where(pc.invert(fresh)), time.monotonic())
        return unstored

    # ── pauses ───────────────────────────────────────────────────────────────────────────────

    def _recall(self, now: float, unsent: bool | None = True) -> None:
        """
        Takes back from the lanes what is not to be sent now.

        Args:
            unsent: whether all that was not sent comes back; None for where it has to.
        """
        known: dict[str, bool] = {}

        def is_paused(subject: str) -> bool:
            if subject not in known:
                sources: tuple[PausedBy, ...] = (PausedBy.OPERATOR,)
                if self._limited.is_waiting(subject, now):
                    sources = tuple(PausedBy)  # unless there are too many to keep
                known[subject] = self._throttle.is_paused(subject, now, sources)
            return known[subject]

        back: list[Messages] = []
        for lane in self._main:
            back += lane.recall(is_paused, lane.holds(is_paused) if unsent is None else unsent)
        if back:
            self._admission.give_back(Messages.joined(back), now)

    def _command(self, frame: wire.Frame) -> None:
        """Takes a message of the control subject, and answers it."""
        now, turn = time.monotonic(), self._throttle.turn
        command, answer = self._operators.heard(frame.data, now, self._admission.lately)
        if answer is None:
            return
        if command is not None and (command.rates is None or not command.pause_s):
            self._telemetry.commanded(command.reason, command.subject, command.pause_s, now)
        if self._throttle.active(now) or self._throttle.turn != turn:
            self._recall(now)
        if frame.reply:
            self._connection.answer(frame.reply, answer, _SEND_TIMEOUT_S)
            self._telemetry.bypassed()

    def _say(self, ends: bool = False) -> None:
        """Says which rates rows wait for, and counts for how long they do."""
        now = time.monotonic()
        word = self._operators.word(now, ends) if self._options.throttle else None
        for reason, filter, pause_s in self._throttle.waits:
            self._telemetry.commanded(reason, filter, pause_s, now)
        self._throttle.waits.clear()
        if word is None:
            return
        try:
            if self._connection.tell(self._operators.active, word, _SEND_TIMEOUT_S):
                self._telemetry.bypassed()
        except NotConnectedError as error:
            if not ends:
                raise
            logger.info("the last word to operators is lost: %s", error)

    def _apply_refusals(self, now: float) -> None:
        """What the server refused pauses what that is about."""
        if self._cpu is not None:
            self._cpu.used(time.process_time(), now)
            self._lanes.hold(self._cpu.is_over)
            if self._cpu.is_over:
                self._admission.busy(now)
                self._telemetry.busy(now)
        at_limit = False
        for place, at in self._lanes.push_backs(now):
            self._admission.pushed_back(place, at)
        for lane in self._main:
            streams = self._lanes.streams([refused.subject for refused in lane.refusals])
            for refusal, stream in zip(lane.refusals, streams, strict=True):
                subject, err_code, until, _ = refusal
                if subject in self._refusals or len(self._refusals) < _REFUSALS:
                    self._refusals[subject] = refusal
                if refusal.has_no_room:
                    until = self._limited.reached(subject, now)
                    at_limit = True
                pause_s = max(0.0, until - now)
                self._throttle.refused(err_code, subject, (), pause_s, now)
                self._telemetry.refused(refusal, pause_s, stream, now)
            lane.refusals.clear()
        if at_limit:
            self._recall(now, unsent=None)  # hardly ever: of such subjects few rows are tried
            self._shed(self._admission.give_up(now, self._lanes.publish_timeout_s))
        if self._dead_lane is not None:
            self._dead_lane.refusals.clear()  # they pause nothing

    # ── the loop ─────────────────────────────────────────────────────────────────────────────

    def _turn(self, supply: Supply) -> None:
        """Sends once, or waits once; hands every reply that has arrived to its lane."""
        self._hooks.watch()
        acked = self._acked
        try:
            connection = self._connection
            fed = self._feed()
            self._say()
            looked = self._lanes.look(time.monotonic())  # what has arrived meanwhile is read first
            says = self._operators
            held = connection.may_ask(says.active) and says.holds(time.monotonic())
            if held or looked or self._lanes.holds or not self._send():
                if connection.poll():
                    self._read()
                elif not (fed or looked) and (self._busy or supply.asked):
                    now = time.monotonic()
                    deadlines = [self._operators.next_deadline(now)]
                    if not held:  # else what is due, such as a ping, may not go yet
                        deadlines.append(self._lanes.next_deadline(now))
                    may_go = all(lane.wants_rows for lane in self._main)
                    deadlines += [self._admission.next_deadline(now, may_go), self._reporter.due]
                    deadlines.append(now + _LONGEST_WAIT_S)
                    connection.wait(min(deadlines), supply.fileno() if supply.asked else -1)
            while connection.poll():
                self._read()
            if any(lane.unanswered for lane in self._numbered):
                connection.check(time.monotonic(), self._options.window.ack_timeout_s)
            if self._acked > acked:
                self._throttle.acked()
            now = self._expire()
            self._shed(self._admission.expire(now, self._lanes.load()))
            self._take_rejected()
            self._tell_repeated()
            self._apply_refusals(now)
            self._watchdog.look(now, self._acked, self._elsewhere.dropped, self._busy)
            if now >= self._reporter.due:
                self._report()
        except NotConnectedError as error:
            self._reconnect(error)
        except PublishTimeoutError as error:
            now = time.monotonic()
            since = now - self._lanes.publish_timeout_s
            throttled = self._throttle.error(error.subject, since, now)
            detail, err_code = error.detail, error.err_code
            refusal = self._last_refusal(error.subject)
            if refusal is not None and not err_code:  # it is on the wire again
                detail, err_code = f"{detail}; last answer: {refusal.detail}", refusal.err_code
            if throttled is None:
                raise PublishTimeoutError(error.subject, detail, err_code) from None
            raise throttled.because(detail, err_code) from None
        except ProducerThrottledError as error:
            refusal = self._last_refusal(error.subject)
            if refusal is None or error.request_id:
                raise
            raise error.because(refusal.detail, refusal.err_code) from None

    def _last_refusal(self, subject: str) -> Refusal | None:
        """Of this subject; or else of another one, for want of room that all subjects share."""
        shared = (r for r in self._refusals.values() if r.has_no_room and r.err_code != _AT_LIMIT)
        return self._refusals.get(subject) or next(shared, None)

    def _expire(self) -> float:
        """Tells the lanes what time it is."""
        now = time.monotonic()
        for lane in self._numbered:
            lane.expire(now)
        return now

    def _report(self, final: bool = False) -> None:
        """
        Counts, and says so where somebody may listen. No limit holds for it (A27).

        The last one may be lost with its connection: what it says is in the task's result, too.
        """
        now, load = time.monotonic(), self._lanes.load()
        for number, (way, totals) in enumerate(self._lanes.totals()):
            self._telemetry.count(totals, way.stream, number)
        self._telemetry.count(
            Totals(
                rejected=self._elsewhere.rejected,
                invalid=self._throttle.invalid,
                unrecognised=self._hooks.unrecognised(),
            )
        )
        self._telemetry.passed(now)
        queue = queue_rows(self._options.rules.queue_size, load.limit)
        waiting = self._admission.messages()
        lanes = self._lanes
        self._telemetry.state(waiting, lanes.lately(), load.limit, queue, lanes.way)
        subject = self._options.metrics.metrics_subject
        if subject is None:
            return
        report = self._reporter.report(self._telemetry.snapshot(), now, final)
        if len(report) > self._connection.max_payload:  # the server would cut the connection
            logger.warning("metrics of %d bytes are more than max_payload", len(report))
            return
        try:
            if self._connection.tell(subject, report, _SEND_TIMEOUT_S):
                self._telemetry.bypassed()
        except NotConnectedError as error:
            if not final:
                raise
            logger.info("the last metrics are lost: %s", error)

    def _drain_acks(self) -> None:
        """Reads what came while Spark made the next batch; when it came nobody knows."""
        for lane in self._numbered:
            lane.unread()
        try:
            while self._connection.poll():
                self._read()
        except NotConnectedError as error:
            self._reconnect(error)

    def _send(self) -> bool:
        """
        What each lane has ready; False when none has, or the bytes on the wire are enough.

        Lanes share a quarter of `bufferMemory`. When all of it is on the wire nothing new goes out.
        Only if none of it would be answered (each batch lacks the row that is), one lane goes on:
        by what is between two acks, or by a batch, more than allowed.
        """
        sent = False
        timeout_s = min(_SEND_TIMEOUT_S, self._options.window.publish_timeout_s)
        in_flight = sum(lane.bytes_in_flight for lane in self._numbered)
        for lane in self._numbered:
            before = lane.bytes_in_flight
            room = self._options.window.max_in_flight_bytes - in_flight
            maximum = _CHUNK_BYTES
            if room <= 0 and len(self._numbered) > 1 and not self._lanes.is_stuck(lane):
                maximum = 0
            frames = lane.ready(time.monotonic(), maximum)
            if frames is not None:
                self._connection.send(frames, timeout_s)
                in_flight += lane.bytes_in_flight - before
                sent = True
        return sent

    def _read(self) -> None:
        """All complete frames of the buffer; runs of PubAcks without looking at each."""
        connection = self._connection
        buffer, start = connection.buffer, connection.pos
        end = buffer.rfind(b"}\r\n", start) + 3
        if end > start + 2 and absorb(
            self._numbered, self._sid, buffer, start, end, time.monotonic()
        ):
            connection.pos = end
        while (frame := connection.next_frame(-math.inf)) is not None:
            self._answer(frame)

    def _answer(self, frame: wire.Frame) -> None:
        if frame.sid in self._control:
            self._command(frame)
            return
        if frame.sid != self._sid or not frame.subject.startswith(self._subject_prefix):
            return  # a late frame of a subscription that has ended
        number, _, token = frame.subject[len(self._subject_prefix) :].partition(b".")
        status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
        if number == _ACTIVE.encode() and status == wire.NO_RESPONDERS:
            self._operators.nobody()
        place = int(number) if is_ordinal(number) else len(self._numbered)
        for lane in self._numbered[place : place + 1]:  # none where nobody awaits it
            lane.answered(token, status, description, frame.data, time.monotonic())

    # ── connections ──────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        self._connection = self._client.connection
        self._subject_prefix = f"{self._inbox}.".encode()
        self._sid = self._connection.subscribe(f"{self._inbox}.>")
        if self._options.throttle:
            says, connection = self._operators, self._connection
            self._control = {connection.subscribe(name, needed=False) for name in says.listens}
            word = says.begin(time.monotonic())
            connection.ask(says.active, f"{self._inbox}.{_ACTIVE}", word)

    def _reconnect(self, error: NotConnectedError) -> None:
        """Until there is a connection, or the oldest publish on its way has no time left."""
        for lane in self._numbered:
            lane.broken()
        now = time.monotonic()
        oldest = min((lane.give_up_at for lane in self._numbered), default=math.inf)
        deadline = min(oldest, now + self._options.window.publish_timeout_s)
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
