"""
The lane of atomic batches (ADR-50): a thousand rows at most, stored together or not at all.

Rule 1: a batch that may go through another time is sent again as a whole; only one of which some
rows are stored already goes one by one (`detour.OneByOne`).
Rule 2: no I/O and no clock; callers pass `now` and send what `frames_to_send` returns.

Each message of a batch says so in its headers, which the server stores with it: `Nats-Batch-Id`,
`Nats-Batch-Sequence`, and in the last `Nats-Batch-Commit: 1`. The server keeps them aside until
that one comes, checks them all, and stores them in one go; nothing stands between them then.
One batch of a lane is on its way at one time: the next may overtake nothing, and sending its rows
ahead of its commit made no difference that could be measured on a loopback.

What comes back (measured on nats-server 2.15.1), on the reply subject of a message if it has one:

    an empty message                         set aside
    {"stream":"S","seq":9,"batch":"…","count":3}    to the last: all are stored
    {"error":{…}} to the last                nothing is stored; it does not say which row it was
    {"error":{…}} to another                 this row cannot be set aside (10054, 10210, 429, …);
                                             the last then gets 10176, incomplete

- 10201: an id of the batch is in the stream already, or twice in the batch. So the batch, or an
  earlier attempt of some of its rows, *was* stored, or the rows themselves repeat. All its rows go
  one by one then; those that are there are duplicates, those that are not are stored.
- 10176: something was lost on the way, or a new leader knows nothing of the batch. It goes again,
  with a reply to every row, which tells a row that the server cannot take.
- 10199: the server takes smaller batches (`limits { batch { max_msgs } }`): they are halved.
- 429: the stream's queue is full, and the more rows a batch has the less likely it gets through: it
  goes again with half of them, and batches grow again as they succeed.
- 10077: a limit of the stream, maybe one a subject; it does not say which. It is halved until
  it is one row, whose subject waits then, and nothing else with it.
- 10002, 10023: account or server have no room. As with 10077; but where that answers the last row,
  a stream without replicas may have stored some of the rows before it (by source: it looks again
  before each that it stores). Where it stores some and then meets another row than the last one, it
  answers nothing.
- 10071: a row expected another message on its subject, or in the stream. Of a batch that may be
  stored (its ids are forgotten by then, else it was 10201) somebody looks whether it is what stands
  there.
- 10210: 50 batches of the stream are open, or 1,000 of the server.
- Open batches are forgotten after 10 s.

Order: batches in the order of the rows, and within a batch the rows in theirs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from ...arrays import NOTHING, join
from ...errors import PublishError, PublishRejectedError, PublishTimeoutError
from ...outbox.limits import Kind, pause_s
from ...outbox.messages import Messages
from . import asynclane
from .answers import SUBJECT_IN_PROCESS, Outcome, Refusal, classify, is_ordinal, parsed
from .detour import BatchLane, batch_name
from .frames import Frames, Publishes, frame, numbered
from .lane import BROKEN, Doubted, LaneTerms
from .retries import HINTS, not_stored

MAX_ROWS: Final = 1000
"""The server's default limit."""

HEADER_BYTES: Final = 192
"""
Upper bound of the bytes that a batch adds to a row's headers; `max_payload` has to leave room for
it.
"""

_DISABLED: Final = 10174
_INCOMPLETE: Final = 10176
_TOO_LARGE: Final = 10199
_DUPLICATE: Final = 10201
_QUEUE_FULL: Final = 10167
_AT_LIMIT: Final = 10077
_OF_A_BATCH: Final = frozenset({0, _DISABLED, _TOO_LARGE, _INCOMPLETE})
"""Refusals of a batch that tell nothing of one of its rows."""

_SILENCE: Final = "no answer within ackTimeout (is the stream's no_ack set?)"


class AtomicBatch:
    """Some rows and the attempts to store them."""

    acked = 0
    """None of its rows, as none is stored before all are."""

    def __init__(self, prefix: str, number: int, messages: Messages) -> None:
        self.messages = messages
        """Its rows; fewer, once it was halved."""
        self.name = batch_name(prefix, number)
        self.attempt = 0
        self.sent = 0
        self.asks = False
        """Whether every row asks for a reply."""
        self.oldest = math.inf
        """Time of the first attempt's sending; infinite before."""
        self.last_sent = math.inf
        self.unsure = math.inf
        """Time since which the rows may be stored."""
        self.refusals = 0
        self.cause = Outcome(Kind.REJECTED, "")
        """Outcome of the last attempt."""
        self.absent_since: float | None = None
        self.resume_at: float | None = -math.inf
        """Earliest start of the next attempt; None while one is under way."""
        self._prefix = prefix
        self._frames = Publishes(0, memoryview(b""), (0,), messages)

    def __repr__(self) -> str:
        return f"{self.sent}/{self.size}, {self.attempt}. sent/rows, attempt"

    @property
    def size(self) -> int:
        """Number of its rows."""
        return len(self.messages.data)

    @property
    def waiting(self) -> bool:
        """Whether it is to be sent (again)."""
        return self.resume_at is not None

    @property
    def is_sent(self) -> bool:
        """Whether all rows are on the wire, and the commit with them."""
        return not self.waiting and self.sent == self.size

    @property
    def is_frozen(self) -> bool:
        """Whether it was refused or lost before."""
        return self.refusals > 0

    @property
    def is_midway(self) -> bool:
        """Whether it lacks its commit, which is what is answered."""
        return not self.waiting and 0 < self.sent < self.size

    @property
    def nbytes(self) -> int:
        """The bytes on the wire."""
        return 0 if self.waiting else self._frames.nbytes(0, self.sent)

    def start_attempt(self, now: float) -> None:
        """The next attempt, under another id: the server may still keep the last one."""
        self.attempt += 1
        self.resume_at = None
        self.sent = 0
        self.oldest = min(self.oldest, now)
        name = f"{self.name}-{self.attempt}"
        self._frames = frame(
            self.messages,
            0,
            _replies(f"{self._prefix}.{name}.", self.size, self.asks),
            _lines(name, self.messages),
        )

    def send(self, now: float, max_bytes: int) -> Frames:
        """The next rows of this attempt, one at least."""
        start, offsets = self.sent, self._frames.offsets
        end = bisect.bisect_right(offsets, offsets[start] + max_bytes, start) - 1
        self.sent = max(end, start + 1)
        self.last_sent = now
        return self._frames.slice(start, self.sent)

    def lost(self, cause: str, now: float = -math.inf) -> None:
        """No word of this attempt: it is over, but if its commit was sent it may be stored."""
        if self.is_sent:
            self.unsure = min(self.unsure, self.last_sent)
        self.again(Outcome(Kind.IN_PROCESS, cause), now)

    def again(self, cause: Outcome, now: float = -math.inf) -> None:
        """This attempt is over; the next one follows after a pause."""
        self.cause = cause
        self.resume_at = now + pause_s(cause.kind, self.refusals)
        self.refusals += 1
        if cause.kind is not Kind.ABSENT:
            self.absent_since = None
        elif self.absent_since is None:
            self.absent_since = now

    def where(self, row: int | None) -> str:
        """Name of this row, or of the batch, in errors."""
        rows = self.messages.rows
        if row is not None or self.size == 1:
            return f"row {rows[row or 0].as_py()}"
        return f"rows {rows[0].as_py()} to {rows[self.size - 1].as_py()}, an atomic batch"

    def subject(self, row: int | None) -> str:
        """The subject of this row, or of the first."""
        return self.messages.distinct[self.messages.codes[row or 0]]


class AtomicLane(BatchLane[AtomicBatch]):
    """
    The atomic batches of one task into one stream, one after the other.

    The highest value of its limit is the rows of a batch, as far as the server allows.
    """

    def __init__(self, prefix: str, terms: LaneTerms) -> None:
        super().__init__(prefix, terms)
        self._max_rows = min(terms.limit.maximum, MAX_ROWS)
        self._rows = self._max_rows  # of the next batch, at most

    @property
    def limit(self) -> int:
        return self._rows

    def _next(self) -> tuple[Messages, AtomicBatch | None]:
        rows = self._backlog.head(self._rows, self.terms.max_bytes)
        if rows.was_sent:
            return rows, None
        self._batches += 1
        return rows, AtomicBatch(self._prefix, self._batches, rows)

    def _batch_frames(self, batch: AtomicBatch, now: float, max_bytes: int) -> Frames | None:
        # With 0 bytes allowed its first row goes again, so that a pause that is over is not waited
        # for any more.
        if batch.resume_at is not None:
            if now < batch.resume_at:
                return None
            if now - batch.unsure > self.terms.deadlines.forgets_s:
                self.tally.late_retries += batch.size
            batch.start_attempt(now)
        elif max_bytes <= 0:
            return None
        return batch.send(now, max_bytes) if batch.sent < batch.size else None

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def _on_batch_reply(
        self, batch: AtomicBatch, token: bytes, said: tuple[int, str, bytes], now: float
    ) -> None:
        id, _, row = token.partition(b".")
        name, _, attempt = id.rpartition(b"-")
        if name != batch.name.encode() or not (is_ordinal(attempt) and is_ordinal(row)):
            return  # of a batch that is settled, or of nobody
        if said == (0, "", b""):
            return  # set aside
        outcome = _understand(*said, batch.size)
        if outcome.kind is Kind.STORED:
            is_commit = int(row) == batch.size
            if not is_commit or parsed(said[2]).get("batch") != id.decode():
                return  # to a row that commits nothing, or of another batch
        if outcome.kind is Kind.STORED:  # by this attempt, or by one whose answer took long
            if batch.attempt == 1:
                self.terms.limit.acked(batch.size, now - batch.last_sent, batch.size, now)
            self._ended(outcome, batch.size)
            self._end(batch)
        elif int(attempt) == batch.attempt and not batch.waiting:
            self._refused(batch, int(row) - 1 if int(row) < batch.size else None, outcome, now)

    def _end(self, batch: AtomicBatch) -> None:
        """The batch is stored."""
        self._store(batch.size)
        self._rows = min(2 * self._rows, self._max_rows)
        self._batch = None

    def settle(self, doubted: Doubted, is_stored: bool, now: float) -> None:
        batch = self._batch
        if batch is None:
            super().settle(doubted, is_stored, now)
        elif is_stored:
            self._end(batch)
        else:
            batch.unsure = math.inf  # it was not: what is refused stores nothing
            self._refused(batch, None, doubted.outcome, now)

    def _refused(self, batch: AtomicBatch, row: int | None, outcome: Outcome, now: float) -> None:
        """
        Handles a refusal of this row, or, with None, of the batch. The rows go one by one, or
        together again, all or half of them; what never can be stored fails the write.
        """
        if outcome.may_be_its_own and batch.unsure < math.inf:
            self.tally.doubted.append(Doubted(batch.messages, outcome))
            return
        self._count_refusal(batch, row, outcome, now)
        code = outcome.err_code
        leaves = self.terms.rejects and outcome.kind is Kind.REJECTED and code not in _OF_A_BATCH
        if code == _DUPLICATE or leaves:
            self.tally.retries += batch.sent
            if batch.cause.has_no_room:  # a limit that was set at that moment stores it in part
                batch.unsure = min(batch.unsure, batch.oldest)
            self._part(batch)
        elif code == _INCOMPLETE:
            self._again(batch, Outcome(Kind.OVERLOADED, outcome.detail, code), now)
            batch.asks = True
        elif code == _TOO_LARGE and batch.size > 1:
            self._max_rows = batch.size // 2
            self._again(batch, outcome, -math.inf)
            self._halve(batch)
        elif outcome.kind is Kind.REJECTED:
            hint = "; set allow_atomic on the stream, or publishMode=async"
            detail = f"{outcome.detail}{hint if code == _DISABLED else ''}"
            raise PublishRejectedError(batch.subject(row), f"{batch.where(row)}: {detail}", code)
        elif outcome.has_no_room and batch.size > 1:
            if row is None and code != _AT_LIMIT:
                batch.unsure = min(batch.unsure, batch.last_sent)
            self._again(batch, outcome, -math.inf)
            self._halve(batch)
        else:
            self._wait(batch, outcome, now)

    def _count_refusal(
        self, batch: AtomicBatch, row: int | None, outcome: Outcome, now: float
    ) -> None:
        if outcome.is_push_back:
            self.terms.limit.dropped(now)
            pause = pause_s(outcome.kind, batch.refusals)
            self.tally.push_backs[batch.subject(row)] = now + pause
        if outcome.is_ignored or outcome.err_code == _INCOMPLETE:  # a leader that is new, it seems
            self.tally.ignored += batch.sent

    def _wait(self, batch: AtomicBatch, outcome: Outcome, now: float) -> None:
        """The batch goes again after a pause, for as long as `publishTimeout` allows."""
        self._again(batch, outcome, now)
        if outcome.err_code == _QUEUE_FULL:
            self._halve(batch)
        elif outcome.has_no_room:
            resume_at = now if batch.resume_at is None else batch.resume_at
            self.tally.refusals.add(Refusal(batch.subject(None), outcome, resume_at))
        grace_s = min(self.terms.deadlines.publish_timeout_s, asynclane.NO_STREAM_GRACE_S)
        absent_since = batch.absent_since
        if not self.tally.acked and absent_since is not None and now - absent_since >= grace_s:
            raise self._timeout(batch, now)

    def _part(self, batch: AtomicBatch) -> None:
        """The rows go one by one."""
        self._batch = None
        self._detour.take(batch.messages, True, batch.size, batch.oldest, batch.unsure)
        self._backlog.drop(batch.size)

    def _halve(self, batch: AtomicBatch) -> None:
        """
        Only half of the rows go again; the rest follows, as rows that were never sent. So those of
        a batch that may be stored go one by one.
        """
        if batch.unsure < math.inf:
            self._part(batch)
        elif batch.size > 1:
            self._rows = batch.size // 2
            batch.sent, batch.messages = 0, self._backlog.head(self._rows, self.terms.max_bytes)

    def _again(self, batch: AtomicBatch, cause: Outcome, now: float) -> None:
        self.tally.retries += batch.sent
        batch.again(cause, now)

    def on_disconnect(self, why: str = BROKEN) -> None:
        super().on_disconnect(why)
        if self._batch is not None and not self._batch.waiting:
            self.tally.retries += self._batch.sent
            self.tally.ignored += self._batch.sent
            self._batch.lost(why)

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """
        Gives back what was not sent, and a batch without its commit: nothing of that is stored. One
        that is to be sent again comes back if a subject of it is paused.
        """
        batch = self._batch
        if batch is None:
            keep, is_over = 0, self._detour.has_paused(is_paused)
        elif batch.waiting:
            keep, is_over = batch.size, any(map(is_paused, batch.messages.subjects))
        else:
            keep, is_over = batch.size, unsent and batch.sent < batch.size
        # What is behind rows that are given back must not overtake them.
        unsent = unsent or is_over
        back = self._detour.recall(is_paused, unsent)
        if batch is not None and is_over:
            self._batch = None
            keep = 0
            if batch.attempt > 1 or batch.waiting:  # with its commit, once at least
                times = pa.repeat(pa.scalar(batch.oldest), batch.size)
                unsure = pa.repeat(pa.scalar(batch.unsure), batch.size)
                back.append(replace(batch.messages, sent=times, unsure=unsure))
                self._backlog.drop(batch.size)
        return back + self._backlog.cut(keep) if unsent else back

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> None:
        super().expire(now)
        batch = self._batch
        if batch is None:
            return
        if batch.oldest + self.terms.deadlines.publish_timeout_s <= now:
            raise self._timeout(batch, now)
        if self._unanswered_at(batch) <= now:
            self.tally.retries += batch.sent
            batch.lost(_SILENCE, now)
            self.terms.limit.dropped(now)
            self.tally.push_backs[batch.subject(None)] = now

    def _unanswered_at(self, batch: AtomicBatch) -> float:
        if batch.waiting or batch.sent < batch.size:
            return math.inf
        return batch.last_sent + self.terms.deadlines.ack_timeout_s

    def next_deadline(self, now: float) -> float:
        batch = self._batch
        if batch is None:
            return super().next_deadline(now)
        give_up_at = batch.oldest + self.terms.deadlines.publish_timeout_s
        if batch.resume_at is not None:
            return min(give_up_at, max(batch.resume_at, now))
        return min(give_up_at, self._unanswered_at(batch))

    def _timeout(self, batch: AtomicBatch, now: float) -> PublishError:
        cause, hint = batch.cause, HINTS.get(batch.cause.kind, "")
        return PublishTimeoutError(
            batch.subject(None),
            f"{batch.where(None)}: {not_stored(now - batch.oldest, batch.attempt)};"
            f" {cause.detail or _SILENCE}{hint}",
            cause.err_code,
        )


def _understand(status: int, description: str, data: bytes, size: int) -> Outcome:
    """Outcome of a batch of this size, by the reply to one of its messages."""
    outcome = classify(status, description, data)
    if outcome.err_code == SUBJECT_IN_PROCESS:
        return outcome._replace(kind=Kind.REJECTED)
    if outcome.kind is not Kind.STORED:
        return outcome
    answer = parsed(data)
    if type(answer.get("count")) is int and answer["count"] == size:
        return outcome
    if "batch" in answer:
        return Outcome(Kind.REJECTED, f"{answer.get('count')} of {size} rows are stored; report it")
    return Outcome(
        Kind.REJECTED,
        "the server does not know atomic batches: it needs nats-server 2.12; use publishMode=async",
    )


def _replies(prefix: str, size: int, every: bool) -> pa.Array:
    """
    The reply subjects: of the first row, which tells early that the stream takes no batch, and of
    the last; of every row if so wished.
    """
    if every or size < 3:
        return numbered(prefix, 1, size)
    return pa.concat_arrays(
        [numbered(prefix, 1, 1), pa.repeat(NOTHING, size - 2), numbered(prefix, size, 1)]
    )


def _lines(name: str, messages: Messages) -> pa.Array:
    """The header lines of a batch's rows; its own first, for the first of a name counts."""
    size = len(messages)
    head = f"Nats-Batch-Id: {name}\r\nNats-Batch-Sequence: "
    lines = pa.concat_arrays(
        [
            numbered(head, 1, size - 1, "\r\n"),
            numbered(head, size, 1, "\r\nNats-Batch-Commit: 1\r\n"),
        ]
    )
    if messages.lines is None:
        return lines
    return join(lines, messages.lines)
