"""
One fast-ingest batch: its rows, the server's answers, and its end (`fastlane` says all).

Rule 1: no I/O and no clock; callers pass `now` and send what `frames_to_send` returns.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...client import wire
from ...errors import PublishRejectedError, PublishTimeoutError
from ...outbox.limits import Kind, pause_s
from ...outbox.messages import Messages, sizes
from .answers import Answer, Outcome, Says
from .detour import batch_name
from .frames import Frames, Publishes, frame, numbered
from .lane import LaneTerms

MAX_FLOW: Final = 500
"""
Upper bound of the rows that the server acknowledges together (checkFlowControl), whatever the
request.
"""

OUTSTANDING: Final = 2
"""ADR-50: "Outstanding acks 1 or 2 will work best for most use cases"."""

_MAX_PING_S: Final = 3.0
"""Silence after which the server is asked; well below the 10 s in which it forgets a batch."""

_SINCE_SENT: Final = -math.inf
"""The time since which rows may be stored that were sent: each since its own sending."""

_DISABLED: Final = 10205
"""err_code of JSBatchPublishDisabledErr."""


class _CommitState(Enum):
    """State of a batch's commit."""

    OPEN = "more rows may follow"
    LAST_ROW = "its last row commits it"
    COMMIT_DUE = "a commit without a row is to be sent"
    COMMIT_SENT = "a commit without a row was sent"


@dataclass(slots=True)
class _Contact:
    """Times of the last sending, the last reply and the next ping."""

    sent_at: float = math.inf
    """The last row."""
    closed_at: float = -math.inf
    """A commit without a row."""
    quiet_since: float = math.inf
    """The last answer, or row sent; infinite while nothing was sent on this connection."""
    ping_at: float = math.inf
    refusals: int = 0
    """Number of refusals in a row, of rows and pings."""
    sendings: deque[tuple[int, float]] = field(default_factory=deque)
    """Ends and times of sendings of rows; those that are stored are gone."""

    def send_rows(self, end: int, now: float, ping_interval_s: float) -> None:
        """The rows before this one go out."""
        self.sendings.append((end, now))
        self.sent_at = now
        self.send(now, ping_interval_s)

    def store(self, count: int) -> None:
        """Counts rows as stored."""
        while self.sendings and self.sendings[0][0] <= count:
            self.sendings.popleft()

    def send(self, now: float, ping_interval_s: float) -> None:
        """Something goes out that is answered."""
        self.quiet_since, self.ping_at = now, now + ping_interval_s


class _BatchRows:
    """
    The rows of a batch as publishes, by their places in it; frames of stored ones are let go.

    Args:
        flow: rows an ack, at most, that the batch may ask for.
    """

    def __init__(self, prefix: str, name: str, messages: Messages, flow: int, max_bytes: int):
        self.size = 0
        self._max_bytes = max_bytes
        self._asked = largest_flow(messages, flow, max_bytes)
        self._reply = f"{prefix}.{name}.{self._asked}.fail"
        self._runs: deque[Publishes] = deque()  # all that were sent are in those before the last

    @property
    def last(self) -> Publishes:
        """Rows that were added last; all before them are sent."""
        return self._runs[-1]

    @property
    def subject(self) -> str:
        """Subject of one of the rows; the others are of the same stream."""
        return self.last.subject(self.last.first)

    def run(self, row: int) -> Publishes:
        """
        The run with this row, or the first whose frames are kept, as all before it are stored.
        """
        return next(run for run in self._runs if row < run.end)

    def nbytes(self, start: int, end: int) -> int:
        """The size of these rows' frames."""
        if start == end:
            return 0
        return sum(
            run.nbytes(max(run.first, start), min(run.end, end))
            for run in self._runs
            if run.first < end and start < run.end
        )

    def has_flow_for(self, messages: Messages) -> bool:
        """Whether the flow asked for is small enough for these rows, too."""
        return self._asked == largest_flow(messages, self._asked, self._max_bytes)

    def add(self, messages: Messages, stored: int, commits: bool) -> None:
        """
        These rows follow.

        Args:
            stored: so many rows of the batch are.
            commits: whether the last of these ends the batch.
        """
        while self._runs and self._runs[0].end <= stored:
            self._runs.popleft()
        first, self.size = self.size, self.size + len(messages)
        replies = _replies(self._reply, first + 1, len(messages), commits)
        self._runs.append(frame(messages, first, replies))

    def word(self, place: int, operation: int) -> bytes:
        """A publish without a row: a commit, or a ping."""
        return wire.pub(self.subject, reply=f"{self._reply}.{place}.{operation}.$FI")


_COMMIT: Final = 3
_PING: Final = 4
"""Operations of a publish without a row."""


class FastBatch:
    """
    One fast-ingest batch, from its first row to its end.

        started → open → ended              rows go out as the server's acks allow
                   ↓  ↑
                  doubted                   something may be missing: nothing goes out but pings

    Args:
        outstanding: acks that may be outstanding.
        stays: whether more rows may follow these, for which it stays open.
    """

    def __init__(
        self,
        prefix: str,
        number: int,
        messages: Messages,
        terms: LaneTerms,
        outstanding: int,
        stays: bool,
    ) -> None:
        self.name = batch_name(prefix, number)
        self.sent = 0
        self.acked = 0
        """Number of its rows that are stored."""
        self.unsure_since: float | None = None
        """
        Time since which sent rows without an ack may be stored: `_SINCE_SENT`, or infinite if none
        of them is. None before the end: an answer is awaited still.
        """
        self.is_disabled = False
        """Whether the stream takes no batches."""
        self.pushed_back = False
        """Whether the server pushed back; who looks at it says it is told."""
        flow = max(1, min(MAX_FLOW, terms.limit.value // OUTSTANDING))
        self._terms = terms
        self._outstanding = outstanding
        self.rows = _BatchRows(prefix, self.name, messages, flow, terms.max_bytes)
        self._contact = _Contact()
        self._granted = 0  # 0: the first reply has not come
        self._doubted = False
        self.extend(messages, stays)

    def __repr__(self) -> str:
        return f"{self.acked}/{self.sent}/{self.size} acked/sent/rows"

    @property
    def size(self) -> int:
        """Its rows so far."""
        return self.rows.size

    @property
    def ping_interval_s(self) -> float:
        """Silence after which the server is asked."""
        return min(self._terms.deadlines.ack_timeout_s / 3, _MAX_PING_S)

    @property
    def is_sent(self) -> bool:
        """Whether all rows are sent and none is known to be missing."""
        return self.sent == self.size and not self._doubted

    @property
    def is_frozen(self) -> bool:
        """Whether something of it may be missing."""
        return self._doubted

    @property
    def is_midway(self) -> bool:
        """Whether the row that brings the next ack is not sent."""
        return not self._doubted and 0 < self.sent < min(self.acked + self._granted, self.size)

    @property
    def is_idle(self) -> bool:
        """Whether it is open for more rows, and all it has are sent."""
        return self._commit is _CommitState.OPEN and self.is_sent

    @property
    def idle_since(self) -> float:
        """Time of the last row's sending, if the batch is idle; else infinite."""
        return self._contact.sent_at if self.is_idle else math.inf

    @property
    def nbytes(self) -> int:
        """The bytes on the wire."""
        return self.rows.nbytes(self.acked, self.sent)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def extend(self, messages: Messages, stays: bool) -> None:
        """These rows follow; all before them are sent."""
        self._commit = _CommitState.OPEN if stays else _CommitState.LAST_ROW
        self.rows.add(messages, self.acked, commits=not stays)
        self._refused = self.size + 1  # the first row known to be refused

    def close(self) -> None:
        """No row follows: a commit without one ends it."""
        self._commit = _CommitState.COMMIT_DUE

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def frames_to_send(self, now: float, max_bytes: int) -> Frames | None:
        """The rows to send now, none with `max_bytes` of 0, or a ping."""
        contact, start = self._contact, self.sent
        end = start if self._doubted or max_bytes <= 0 else self._sendable(max_bytes)
        if self._commit is _CommitState.COMMIT_DUE and not self._doubted:
            self._commit = _CommitState.COMMIT_SENT
            contact.closed_at = now
            contact.send(now, self.ping_interval_s)
            return self.rows.word(start + 1, _COMMIT)
        if end == start:
            return self._ping(now) if now >= contact.ping_at else None
        self.sent = end
        contact.send_rows(end, now, self.ping_interval_s)
        return self.rows.last.slice(start, end)

    def _sendable(self, max_bytes: int) -> int:
        start, run = self.sent, self.rows.last
        if not start:
            return 1
        # ADR-50: "The client MUST wait for the first reply".
        # Less than one ack's worth would never bring the ack.
        allowed = max(
            self._granted, min(self._outstanding * self._granted, self._terms.limit.value)
        )
        allowed = allowed if self._granted else 0
        allowed = min(self.acked + allowed, self.size)
        if start >= allowed:
            return start
        room, place = self._terms.max_bytes - self.nbytes, start - run.first
        maximum = run.offsets[place] + min(room, max_bytes)
        end = min(bisect.bisect_right(run.offsets, maximum, place) - 1 + run.first, allowed)
        if end > start:
            return end
        # One that is larger than what may go at one time, or than all that may be under way.
        return start + 1 if run.nbytes(start, start + 1) <= room or start == self.acked else start

    def drop_unsent(self) -> None:
        """Only the rows that were sent are in it; a commit without a row ends it."""
        if self.sent < self.size:
            self.rows.size = self.sent
            self._refused = min(self._refused, self.size + 1)
            self.close()

    def _ping(self, now: float) -> bytes:
        if math.isinf(self._contact.quiet_since):  # the first word on a new connection
            self._contact.quiet_since = now
        self._contact.ping_at = now + self.ping_interval_s
        # ADR-50: its sequence is "the highest batch sequence the client has sent".
        return self.rows.word(self.sent, _PING)

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def on_answer(self, sequence: int, pinged: bool, answer: Answer, now: float) -> None:
        """
        A reply came on the subject of this row, or of a ping.

        Raises:
            PublishRejectedError: The server will never store this row.
        """
        contact, ping_interval_s = self._contact, self.ping_interval_s
        if answer.says is not Says.REFUSED:
            contact.quiet_since = now
        if answer.says is Says.GAP or answer.outcome.is_push_back:
            self._drop(now)
        elif not (pinged or self._doubted):
            # What a commit without a row answers was asked some time after the last row was sent.
            since = contact.closed_at if answer.says is Says.END else -math.inf
            self._sample(answer.sequence, since, now)
        match answer.says:
            case Says.ACK:
                is_news = answer.sequence > self.acked or not self._granted
                self._stored(answer.sequence)
                self._granted = max(1, answer.flow)
                contact.ping_at = now + ping_interval_s
                if sequence == self.sent:
                    if self._commit is _CommitState.COMMIT_SENT and (pinged or self._doubted):
                        # It is open: if the commit was sent, it is lost.
                        self._commit = _CommitState.COMMIT_DUE
                    self._doubted = False
                    if self._refused <= self.size:
                        self.unsure_since = _SINCE_SENT
                elif not is_news:  # from a new leader: did all that was sent reach it?
                    contact.ping_at = now
            case Says.GAP:
                self._doubted = True
                contact.ping_at = now + ping_interval_s
            case Says.ERR:
                contact.ping_at = now + ping_interval_s
                self._check(answer.outcome, answer.sequence)
                self._refused = min(self._refused, answer.sequence)
                self._doubted = True
            case Says.END:
                self._stored(answer.sequence)
                # None behind these is stored, unless one was refused before them.
                self.unsure_since = math.inf if answer.sequence <= self.acked else _SINCE_SENT
            case Says.UNKNOWN:
                self.unsure_since = _SINCE_SENT
            case Says.REFUSED:
                self._check(answer.outcome, self.acked + 1 if pinged else sequence)
                if not pinged:
                    self._refused = min(self._refused, sequence)
                if self.is_disabled or (sequence == 1 and not pinged):
                    # Never begun, or ended before its second row; or it ended with `allow_batched`.
                    is_of_stream = answer.outcome.has_no_room or self.is_disabled
                    may_be = not is_of_stream or self.sent > 1
                    self.unsure_since = _SINCE_SENT if may_be else math.inf
                elif pinged or not self._doubted:
                    # Which rows before this one are stored? A ping will tell.
                    self._doubted = True
                    contact.ping_at = now + pause_s(answer.outcome.kind, contact.refusals)
                    contact.refusals += 1

    def _drop(self, now: float) -> None:
        self._terms.limit.dropped(now)
        self.pushed_back = True

    def _sample(self, sequence: int, since: float, now: float) -> None:
        """The limit hears of the rows up to this one."""
        at = next((at for end, at in self._contact.sendings if sequence <= end), None)
        if at is not None and sequence > self.acked:
            trip_s = now - max(at, since)
            self._terms.limit.acked(sequence - self.acked, trip_s, self.sent - self.acked, now)

    def _stored(self, sequence: int) -> None:
        # A new leader may know of fewer than the old one had acknowledged (duplicates).
        self.acked = max(self.acked, min(sequence, self.sent, self._refused - 1))
        self._contact.store(self.acked)

    def _check(self, outcome: Outcome, sequence: int) -> None:
        if outcome.kind is not Kind.REJECTED:
            return
        if outcome.err_code == _DISABLED and self._terms.falls_back:
            self.is_disabled = True
            return
        if self._terms.rejects and outcome.err_code not in (0, _DISABLED):
            return  # it is one of those the batch leaves undecided
        row = min(max(sequence, 1), self.size) - 1
        hint = ""
        if outcome.err_code == _DISABLED:
            hint = "; set allow_batched on the stream, or publishMode=async"
        run = self.rows.run(row)
        raise PublishRejectedError(
            run.subject(row), f"row {run.row(row)}: {outcome.detail}{hint}", outcome.err_code
        )

    def on_disconnect(self) -> None:
        """The connection broke: the first word on the next one is a ping."""
        if self.sent:
            self._doubted = True
            self._contact.quiet_since = math.inf
            self._contact.ping_at = -math.inf

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    @property
    def oldest(self) -> float:
        """Time at which the oldest row on the wire was sent; infinite when there is none."""
        sendings = self._contact.sendings
        return sendings[0][1] if sendings else math.inf

    def expire(self, now: float) -> None:
        """
        A batch of which nothing is heard for `ackTimeout` is given up.

        Raises:
            PublishTimeoutError: The server answers, but a row is not stored after `publishTimeout`.
        """
        deadlines = self._terms.deadlines
        if self._contact.quiet_since + deadlines.ack_timeout_s <= now:
            self._drop(now)
            self.unsure_since = _SINCE_SENT
        elif self.oldest + deadlines.publish_timeout_s <= now:
            row = self.acked
            run = self.rows.run(row)
            raise PublishTimeoutError(
                run.subject(row),
                f"row {run.row(row)}: not stored {now - self.oldest:.1f}s after it was"
                " first sent; the server answers, but stores nothing (have its replicas a quorum?)",
            )

    def next_deadline(self) -> float:
        """The time at which the batch has to act though nothing arrives."""
        contact, deadlines = self._contact, self._terms.deadlines
        return min(
            contact.ping_at,
            contact.quiet_since + deadlines.ack_timeout_s,
            self.oldest + deadlines.publish_timeout_s,
        )


def _replies(prefix: str, first: int, count: int, commits: bool) -> pa.Array:
    """The reply subjects of rows of a batch; a start that commits is a commit."""
    starts = int(first == 1 and not (commits and count == 1))
    runs = [
        (first, starts, ".0.$FI"),
        (first + starts, count - starts - commits, ".1.$FI"),
        (first + count - 1, int(commits), ".2.$FI"),
    ]
    return pa.concat_arrays([numbered(f"{prefix}.", at, rows, end) for at, rows, end in runs])


def largest_flow(messages: Messages, flow: int, max_bytes: int) -> int:
    """
    The largest flow, `flow` at most, of which no run of rows in a batch is more than `max_bytes`.

    A run may begin among the last of some rows, go on through all of others, and end among the
    first of yet others, each of which have passed here: none of the three is to be more than a
    third. Rows that are fewer than a run count as if more like them made it one.
    """
    ends = pc.cumulative_sum(sizes(messages))
    while flow > 1:
        run = min(flow, len(messages))
        widths = pc.subtract(ends.slice(run), ends.slice(0, len(ends) - run))
        largest = max(ends[run - 1].as_py(), pc.max(widths).as_py() or 0)
        if largest * flow <= max_bytes // 3 * run:
            break
        flow //= 2
    return flow
