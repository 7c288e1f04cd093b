"""
The lane of fast-ingest batches (ADR-50): many messages, an acknowledgement for hundreds at a time.

Rule 1: what a batch needs is decided here; rows that a batch leaves undecided go one by one
(`detour.OneByOne`), and only behind them comes the next batch.
Rule 2: no I/O and no clock; callers pass `now` and put on the wire what `ready` returns.

A batch is a run of rows, all for one stream, subjects mixed. Their frames are made some at a time
while those before are on their way. A batch waits a round trip for its first reply, more until the
server lets it have its share of the flow, and one for its end. So it stays open for the rows of
the next offers while somebody drives the lane and says that there may be some (`expect`); else its
last row commits it. One that is open is ended by a commit without a row: when there are no more, or
none have come for a while, or so few that they brought no ack for a while, as what is behind the
last ack is stored for all one knows only then. A row's reply subject says all:

    <prefix>.<batch id>.<flow>.fail.<sequence>.<operation>.$FI
    operation: 0 start | 1 append | 2 commit | 3 commit without a row | 4 ping

Any number of tokens may stand before the id. What comes back there, on the subject of the row that
caused it (measured on nats-server 2.15.1):

    {"type":"ack","seq":0,"msgs":500}          to the first row: go on; "msgs" rows an ack from now
    {"type":"ack","seq":500,"msgs":500}        all up to 500 are stored
    {"type":"gap","last_seq":3,"seq":4}        3 did not arrive; the end follows
    {"type":"err","seq":3,"error":{…}}         3 is refused (Nats-Expected-*, TTL, limits of the
                                               stream); the end follows
    {"stream":"S","seq":9,"batch":"…","count":2}    the end: 2 rows are stored and none behind them
    {"error":{"code":400,"err_code":10208,…},…}     no such batch: it ended, or 10 s are over, or
                                               another server leads now: stored or not, who knows
    {"error":{…},…}                            any other: this row was refused before the batch
                                               looked at it (429, 503, max_msg_size, API level)

- The end's `seq` is 0 if the batch stored nothing new. Success is `count` = rows, nothing less.
- A duplicate (`Nats-Msg-Id`) is acknowledged like any other row and not marked; so `duplicates`
  counts only those that went one by one.
- With replicas, so is an id that waits for its quorum, or that this leader proposed in vain before
  it lost and regained the lead: a plain publish gets 10158 then, a batch counts the row as stored,
  and it may never be. So no row goes in a batch that may have been sent before; a lane cannot know
  what *other* attempts sent.
- A ping with the last sequence sent is answered by the last ack, or by gap and end, or by 10208.
  It says that all before it was looked at, not that it is stored: acks come at multiples of `msgs`.
- Messages of others interleave. Open batches share 500 between them: the first starts with
  `msgs` of 500, others at 1, doubling with each ack.
- A new leader sends an ack of where it stands, lower than the last one if duplicates were acked;
  rows lost on the way show as a gap. With nothing lost the batch goes on.
- A stream without `allow_batched` refuses the first row with 10205.
- A row that fails only when it is stored (`Nats-Expected-Last-Msg-Id`; a limit of the account that
  another stream reached at this moment) gets an error PubAck, and the batch goes on and counts it
  (by source: processJetStreamMsgWithBatch). So a row that was refused once is not stored, whatever
  an ack or the end says; and rows with that header go one by one from the beginning.

**Flow.** Two acks may be outstanding (ADR-50), so 2 × `msgs` rows; to a server far away as many as
come in a round trip, within `maxInFlight`, as the server does not count them. There are never more
rows than `maxInFlightBytes`; the flow asked for is small enough that so many bytes always bring an
ack. The limit (`limits`) is one above the server's own: it bounds the flow asked for when a batch
begins, and holds a batch down to one outstanding ack. Acks tell it round trips; gaps, refusals and
silence are push-backs.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...client import wire
from ...errors import PublishRejectedError, PublishTimeoutError
from ...outbox.limits import Kind, Limit, pause_s
from ...outbox.messages import Messages, sizes
from .answers import Answer, Outcome, Says, is_ordinal, understand
from .detour import BatchLane, batch_name, unfit
from .frames import Frames, Publishes, frame, numbered

__all__ = ["FastLane"]

MAX_FLOW: Final = 500
"""What the server acknowledges at one time at most (checkFlowControl), whatever is asked for."""

OUTSTANDING: Final = 2
"""ADR-50: "Outstanding acks 1 or 2 will work best for most use cases"."""

_FAR_S: Final = 0.004
"""A round trip from which on more than two acks are outstanding."""

_ACK_S: Final = 0.001
"""
For each of these of a round trip one more is. Where two batches share the flow an ack stands for
250 rows, so 40 ms are 10,000 and `maxInFlight` the bound.
"""

_BATCH_BYTES: Final = 8 << 20
"""Rows, about, whose frames are made at one time."""

_OPEN_S: Final = 0.1
"""For so long, and two round trips, a batch without rows to send stays open."""

_MAX_PING_S: Final = 3.0
"""Silence after which the server is asked; well below the 10 s in which it forgets a batch."""

_FIRST_STRETCH: Final = 500
"""
Rows that go one by one, at least, when two batches in a row fail; twice as many after each further
one, so that a stream that takes no batches now costs little more than one that takes none at all.
"""

_MAX_STRETCH: Final = 1 << 16

_DISABLED: Final = 10205
"""err_code of JSBatchPublishDisabledErr."""


class _Batch:
    """
    One fast-ingest batch, from its first row to its end.

        started → open → ended              rows go out as the server's acks allow
                   ↓  ↑
                  doubted                   something may be missing: nothing goes out but pings

    Args:
        stays: whether more rows may follow these, for which it stays open.
    """

    def __init__(
        self,
        prefix: str,
        number: int,
        messages: Messages,
        limit: Limit,
        max_bytes: int,
        rejects: bool,
        outstanding: int,
        stays: bool,
    ) -> None:
        self._rejects = rejects
        self._outstanding = outstanding
        self.size = 0
        self.settled = 0
        """Rows whose lane has been told that they are stored."""
        self.sent = 0
        self.acked = 0
        self.unsure: float | None = None
        """When it has ended, since when what it left undecided may be stored; infinite for not."""
        self.pushed_back = False
        """Whether the server pushed back; who looks at it says it is told."""
        self.unread = False
        """Whether what is heard before the next sending may have come long ago."""
        self.name = batch_name(prefix, number)
        self._limit = limit
        self._max_bytes = max_bytes
        flow = max(1, min(MAX_FLOW, limit.value // OUTSTANDING))
        self._asked_flow = _flow(messages, flow, max_bytes)
        self._reply = f"{prefix}.{self.name}.{self._asked_flow}.fail"
        self._runs: deque[Publishes] = deque()  # all that were sent are in those before the last
        self._flow = 0  # 0: the first reply has not come
        self._doubted = False
        self._is_cut = False  # whether a commit without a row ends it
        self._commits = False  # whether that is to be sent
        self._sendings: deque[tuple[int, float]] = deque()  # up to which row, when
        self._quiet_since = math.inf  # the last answer, or row sent
        self._ping_at = math.inf
        self._refusals = 0  # of rows and pings, in a row
        self._sent_at = math.inf  # the last row
        self._closed_at = -math.inf  # a commit without a row
        self.extend(messages, stays)

    def __repr__(self) -> str:
        return f"{self.acked}/{self.sent}/{self.size} acked/sent/rows"

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
        return not self._doubted and 0 < self.sent < min(self.acked + self._flow, self.size)

    @property
    def is_idle(self) -> bool:
        """Whether it is open for more rows, and all it has are sent."""
        return self._stays and not self._is_cut and self.is_sent

    @property
    def idle_since(self) -> float:
        """When the last row was sent, if it is idle; else infinite."""
        return self._sent_at if self.is_idle else math.inf

    @property
    def subject(self) -> str:
        """Of one of its rows; the others are of the same stream."""
        return self._runs[-1].subject(self._runs[-1].first)

    @property
    def nbytes(self) -> int:
        """The bytes on the wire."""
        return sum(
            run.nbytes(max(run.first, self.acked), min(run.end, self.sent))
            for run in self._runs
            if run.first < self.sent and self.acked < run.end
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def takes(self, messages: Messages) -> bool:
        """Whether the flow it has asked for is small enough for these rows, too."""
        return self._asked_flow == _flow(messages, self._asked_flow, self._max_bytes)

    def extend(self, messages: Messages, stays: bool) -> None:
        """These rows follow; all before them are sent."""
        while self._runs and self._runs[0].end <= self.acked:
            self._runs.popleft()
        first, self.size = self.size, self.size + len(messages)
        self._stays = stays
        self._refused = self.size + 1  # the first row known to be refused
        replies = _replies(self._reply, first + 1, len(messages), not stays)
        self._runs.append(frame(messages, first, replies))

    def close(self) -> None:
        """No row follows: a commit without one ends it."""
        self._is_cut = self._commits = True

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def ready(self, now: float, max_bytes: int, ping_interval_s: float) -> Frames | None:
        """The rows to send now, none with `max_bytes` of 0, or a ping."""
        self.unread = False
        start = self.sent
        end = start if self._doubted or max_bytes <= 0 else self._sendable(max_bytes)
        if self._commits and not self._doubted:
            self._commits = False
            self._quiet_since = self._closed_at = now
            self._ping_at = now + ping_interval_s
            return wire.pub(self.subject, reply=f"{self._reply}.{start + 1}.3.$FI")
        if end == start:
            return self._ping(now, ping_interval_s) if now >= self._ping_at else None
        self.sent = end
        self._sendings.append((end, now))
        self._quiet_since = self._sent_at = now
        self._ping_at = now + ping_interval_s
        return self._runs[-1].slice(start, end)

    def _sendable(self, max_bytes: int) -> int:
        start, run = self.sent, self._runs[-1]
        if not start:
            return 1
        # ADR-50: "The client MUST wait for the first reply".
        # Less than one ack's worth would never bring the ack.
        allowed = max(self._flow, min(self._outstanding * self._flow, self._limit.value))
        allowed = allowed if self._flow else 0
        allowed = min(self.acked + allowed, self.size)
        if start >= allowed:
            return start
        room, place = self._max_bytes - self.nbytes, start - run.first
        maximum = run.offsets[place] + min(room, max_bytes)
        end = min(bisect.bisect_right(run.offsets, maximum, place) - 1 + run.first, allowed)
        if end > start:
            return end
        # One that is larger than what may go at one time, or than all that may be under way.
        return start + 1 if run.nbytes(start, start + 1) <= room or start == self.acked else start

    def cut(self) -> None:
        """Only the rows that were sent are in it; a commit without a row ends it."""
        if self.sent < self.size:
            self.size = self.sent
            self._refused = min(self._refused, self.size + 1)
            self.close()

    def _ping(self, now: float, ping_interval_s: float) -> bytes:
        if math.isinf(self._quiet_since):  # the first word on a new connection
            self._quiet_since = now
        self._ping_at = now + ping_interval_s
        # ADR-50: its sequence is "the highest batch sequence the client has sent".
        return wire.pub(self.subject, reply=f"{self._reply}.{self.sent}.4.$FI")

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def answered(
        self, sequence: int, pinged: bool, answer: Answer, now: float, ping_interval_s: float
    ) -> None:
        """
        A reply came on the subject of this row, or of a ping.

        Raises:
            PublishRejectedError: The server will never store this row.
        """
        if answer.says is not Says.REFUSED:
            self._quiet_since = now
        if answer.says is Says.GAP or answer.outcome.is_push_back:
            self._drop(now)
        elif not (pinged or self._doubted or self.unread):
            # What a commit without a row answers was asked some time after the last row was sent.
            since = self._closed_at if answer.says is Says.END else -math.inf
            self._sample(answer.sequence, since, now)
        match answer.says:
            case Says.ACK:
                is_news = answer.sequence > self.acked or not self._flow
                self._stored(answer.sequence)
                self._flow = max(1, answer.flow)
                self._ping_at = now + ping_interval_s
                if sequence == self.sent:
                    if self._is_cut and (pinged or self._doubted):
                        self._commits = True  # it is open: if the commit was sent, it is lost
                    self._doubted = False
                    self.unsure = -math.inf if self._refused <= self.size else None
                elif not is_news:  # from a new leader: did all that was sent reach it?
                    self._ping_at = now
            case Says.GAP:
                self._doubted = True
                self._ping_at = now + ping_interval_s
            case Says.ERR:
                self._ping_at = now + ping_interval_s
                self._check(answer.outcome, answer.sequence)
                self._refused = min(self._refused, answer.sequence)
                self._doubted = True
            case Says.END:
                self._stored(answer.sequence)
                # None behind these is stored, unless one was refused before them.
                self.unsure = math.inf if answer.sequence <= self.acked else -math.inf
            case Says.UNKNOWN:
                self.unsure = -math.inf
            case Says.REFUSED:
                self._check(answer.outcome, self.acked + 1 if pinged else sequence)
                if not pinged:
                    self._refused = min(self._refused, sequence)
                if sequence == 1 and not pinged:
                    # Never begun, or ended before its second row.
                    may_be = not answer.outcome.has_no_room or self.sent > 1
                    self.unsure = -math.inf if may_be else math.inf
                elif pinged or not self._doubted:
                    # Which rows before this one are stored? A ping will tell.
                    self._doubted = True
                    self._ping_at = now + pause_s(answer.outcome.kind, self._refusals)
                    self._refusals += 1

    def _drop(self, now: float) -> None:
        self._limit.dropped(now)
        self.pushed_back = True

    def _sample(self, sequence: int, since: float, now: float) -> None:
        """The limit hears of the rows up to this one."""
        at = next((at for end, at in self._sendings if sequence <= end), None)
        if at is not None and sequence > self.acked:
            trip_s = now - max(at, since)
            self._limit.acked(sequence - self.acked, trip_s, self.sent - self.acked, now)

    def _stored(self, sequence: int) -> None:
        # A new leader may know of fewer than the old one had acknowledged (duplicates).
        self.acked = max(self.acked, min(sequence, self.sent, self._refused - 1))
        while self._sendings and self._sendings[0][0] <= self.acked:
            self._sendings.popleft()

    def _check(self, outcome: Outcome, sequence: int) -> None:
        if outcome.kind is not Kind.REJECTED:
            return
        if self._rejects and outcome.err_code not in (0, _DISABLED):
            return  # it is one of those the batch leaves undecided
        row = min(max(sequence, 1), self.size) - 1
        hint = ""
        if outcome.err_code == _DISABLED:
            hint = "; set allow_batched on the stream, or publishMode=async"
        run = self._run(row)
        raise PublishRejectedError(
            run.subject(row), f"row {run.row(row)}: {outcome.detail}{hint}", outcome.err_code
        )

    def _run(self, row: int) -> Publishes:
        """Where this row is, or the first whose frames are kept, as all before it are stored."""
        return next(run for run in self._runs if row < run.end)

    def broken(self) -> None:
        """The connection broke: the first word on the next one is a ping."""
        if self.sent:
            self._doubted = True
            self._quiet_since = math.inf
            self._ping_at = -math.inf

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    @property
    def oldest(self) -> float:
        """When the oldest row on the wire was sent; infinite when there is none."""
        return self._sendings[0][1] if self._sendings else math.inf

    def expire(self, now: float, ack_timeout_s: float, publish_timeout_s: float) -> None:
        """
        A batch of which nothing is heard for `ackTimeout` is given up.

        Raises:
            PublishTimeoutError: The server answers, but a row is not stored after `publishTimeout`.
        """
        if self._quiet_since + ack_timeout_s <= now:
            self._drop(now)
            self.unsure = -math.inf
        elif self.oldest + publish_timeout_s <= now:
            row = self.acked
            run = self._run(row)
            raise PublishTimeoutError(
                run.subject(row),
                f"row {run.row(row)}: not stored {now - self.oldest:.1f}s after it was"
                " first sent; the server answers, but stores nothing (have its replicas a quorum?)",
            )

    def next_deadline(self, ack_timeout_s: float, publish_timeout_s: float) -> float:
        """When something is to be done if nothing is heard."""
        return min(
            self._ping_at, self._quiet_since + ack_timeout_s, self.oldest + publish_timeout_s
        )


class FastLane(BatchLane[_Batch]):
    """The fast-ingest batches of one task into one stream, one after the other."""

    _more = False
    """Whether more rows may come, and whoever drives the lane does so until they have."""
    _round_trip_s = 0.0
    _stretch = 0
    """Rows that go one by one, at least, when the next batch fails."""
    _outstanding = OUTSTANDING
    """Acks that may be outstanding."""

    @property
    def wants_rows(self) -> bool:
        if self._batch is None:
            return super().wants_rows
        return self._batch.is_sent and not self._waiting(self._batch)

    def expect(self, more: bool) -> None:
        self._more = more

    def set_round_trip(self, round_trip_s: float) -> None:
        self._round_trip_s = round_trip_s
        self._outstanding = OUTSTANDING + math.ceil(max(0.0, round_trip_s - _FAR_S) / _ACK_S)

    def _next(self) -> tuple[Messages, _Batch | None]:
        rows = self._backlog.head(1 << 31, _BATCH_BYTES)
        if unfit(rows):
            return rows, None
        self._batches += 1
        return rows, _Batch(
            self._prefix,
            self._batches,
            rows,
            self._limit,
            self._max_bytes,
            self._rejects,
            self._outstanding,
            self._stays(rows, 0),
        )

    def _stays(self, rows: Messages, before: int) -> bool:
        """
        Whether the batch stays open behind these, the backlog's behind so many. A single row starts
        a batch and commits it at one time.
        """
        if before + len(rows) == 1:
            return False
        return self._more or len(self._backlog) > before + len(rows)

    def _waiting(self, batch: _Batch) -> int:
        """Rows behind those of the batch."""
        return len(self._backlog) - (batch.size - batch.settled)

    def _go_on(self, batch: _Batch, now: float) -> None:
        """The rows that have come go into a batch that is open for them, or it ends."""
        if not self._waiting(batch):
            if not self._more or now >= self._close_at(batch):
                batch.close()
            return
        self._backlog.drop(batch.acked - batch.settled)
        batch.settled = batch.acked
        before = batch.size - batch.settled
        rows = self._backlog.head(1 << 31, _BATCH_BYTES, before)
        is_late = now >= batch.oldest + self._ping_interval_s
        if is_late or unfit(rows) or not batch.takes(rows):
            batch.close()
        else:
            batch.extend(rows, self._stays(rows, before))

    def _close_at(self, batch: _Batch) -> float:
        open_s = min(_OPEN_S + 2 * self._round_trip_s, self._ping_interval_s)
        return batch.idle_since + open_s

    def _ready(self, batch: _Batch, now: float, max_bytes: int) -> Frames | None:
        if batch.is_idle:
            self._go_on(batch, now)
        return batch.ready(now, max_bytes, self._ping_interval_s)

    def _heard(self, batch: _Batch, token: bytes, said: tuple[int, str, bytes], now: float) -> None:
        name, *words = token.split(b".")
        if name != batch.name.encode() or len(words) != 5 or not is_ordinal(words[2]):
            return  # of a batch that has ended, or of nobody
        sequence, operation = words[2:4]
        is_ping, answer = operation == b"4", understand(*said)
        self._ignored += answer.outcome.is_ignored
        batch.answered(int(sequence), is_ping, answer, now, self._ping_interval_s)
        if answer.says is Says.END and answer.outcome.kind is Kind.STORED:
            self._ended(answer.outcome, answer.sequence)
        if answer.says is Says.UNKNOWN:
            self._ignored += batch.sent - batch.acked
        self._settle(batch, now)

    def broken(self) -> None:
        super().broken()
        if self._batch is not None:
            self._batch.broken()

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """Gives back what was not sent; a batch that is open is committed as it is."""
        # What a batch left to the detour may be paused by now; nothing behind it may overtake it.
        unsent = unsent or self._detour.holds(is_paused)
        back = self._detour.recall(is_paused, unsent)
        if not unsent:
            return back
        batch = self._batch
        if batch is not None and not batch.sent:
            batch = self._batch = None
        if batch is not None:
            batch.cut()
        return back + self._backlog.cut(batch.size - batch.settled if batch is not None else 0)

    def expire(self, now: float) -> None:
        if self._batch is not None:
            self._batch.expire(now, self._ack_timeout_s, self._publish_timeout_s)
            self._settle(self._batch, now)
        super().expire(now)  # of the rows of a batch that was given up, too: before they go again

    def next_deadline(self, now: float) -> float:
        if self._batch is None:
            return super().next_deadline(now)
        batch_s = self._batch.next_deadline(self._ack_timeout_s, self._publish_timeout_s)
        return min(batch_s, self._close_at(self._batch))

    def unread(self) -> None:
        super().unread()
        if self._batch is not None:
            self._batch.unread = True

    @property
    def _ping_interval_s(self) -> float:
        return min(self._ack_timeout_s / 3, _MAX_PING_S)

    def _settle(self, batch: _Batch, now: float) -> None:
        """Of a batch that has ended, what is stored is done and what is not goes one by one."""
        if batch.pushed_back:
            batch.pushed_back = False
            self.push_backs[batch.subject] = now
        if batch.unsure is None:
            return
        self._batch = None
        self._acked += batch.acked
        self._backlog.drop(batch.acked - batch.settled)
        undecided = batch.sent - batch.acked
        if batch.acked == batch.size:
            self._stretch = 0
            return
        self._retries += undecided
        stretch = min(max(undecided, self._stretch), batch.size - batch.acked)
        self._stretch = min(max(2 * self._stretch, _FIRST_STRETCH), _MAX_STRETCH)
        rows, served = self._backlog.first(stretch), self.acked > 0
        self._detour.take(rows, served, undecided, batch.oldest, batch.unsure)
        self._backlog.drop(stretch)


def _replies(prefix: str, first: int, count: int, commits: bool) -> pa.Array:
    """The reply subjects of rows of a batch; a start that commits is a commit."""
    starts = int(first == 1 and not (commits and count == 1))
    runs = [
        (first, starts, ".0.$FI"),
        (first + starts, count - starts - commits, ".1.$FI"),
        (first + count - 1, int(commits), ".2.$FI"),
    ]
    return pa.concat_arrays([numbered(f"{prefix}.", at, rows, end) for at, rows, end in runs])


def _flow(messages: Messages, flow: int, max_bytes: int) -> int:
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
