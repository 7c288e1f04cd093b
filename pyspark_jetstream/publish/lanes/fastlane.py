"""
The lane of fast-ingest batches (ADR-50): many messages, an acknowledgement for hundreds at a time.

Rule 1: what a batch needs is decided here; rows that a batch leaves undecided go one by one
(`detour.OneByOne`), and only behind them comes the next batch.
Rule 2: no I/O and no clock; callers pass `now` and send what `frames_to_send` returns.

A batch is a run of rows, all for one stream, subjects mixed. Their frames are made some at a time
while those before are on their way. A batch waits a round trip for its first reply, more until the
server lets it have its share of the flow, and one for its end. So it stays open for the rows of
the next offers while there may be some (`Outlook.more`); else its last row commits it. One that is
open is ended by a commit without a row: when there are no more, or none have come for a while, or
so few that they brought no ack for a while, as what is behind the last ack is stored for all one
knows only then. A row's reply subject says all:

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
- A stream without `allow_batched` refuses each row and ping with 10205. Under `auto` a batch ends
  with that: the stream was edited amid the write, and `nats stream edit` of natscli 0.3.0 does not
  know the field, so it takes it away.
- A row that fails only when it is stored (`Nats-Expected-Last-Msg-Id`; a limit of the account that
  another stream reached at this moment) gets an error PubAck, and the batch goes on and counts it
  (by source: processJetStreamMsgWithBatch). So a row that was refused once is not stored, whatever
  an ack or the end says; and rows with that header go one by one from the beginning.

**Flow.** Two acks may be outstanding (ADR-50), so 2 × `msgs` rows; to a server far away as many as
come in a round trip, within `maxInFlight`, as the server does not count them. There are never more
rows than a quarter of `bufferMemory`; the flow asked for is small enough that so many bytes always
bring an ack. The limit (`limits`) is one above the server's own: it bounds the flow asked for when
a batch begins, and holds a batch down to one outstanding ack. Acks tell it round trips; gaps,
refusals and silence are push-backs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ...outbox.limits import Kind
from ...outbox.messages import Messages
from ...sanitize import get_logger
from .answers import Says, is_ordinal, understand
from .detour import BatchLane, unfit
from .fastbatch import OUTSTANDING, FastBatch
from .frames import Frames
from .lane import BROKEN

logger = get_logger(__name__)

_MORE_ACKS_S: Final = 0.004
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

_FIRST_STRETCH: Final = 500
"""
Rows that go one by one, at least, when two batches in a row fail; twice as many after each further
one, so that a stream that takes no batches now costs little more than one that takes none at all.
"""

_MAX_STRETCH: Final = 1 << 16


class FastLane(BatchLane[FastBatch]):
    """The fast-ingest batches of one task into one stream, one after the other."""

    _stretch = 0
    """Rows that go one by one, at least, when the next batch fails."""
    _said = False
    """Whether it was said that the stream takes no batches."""

    def _next(self) -> tuple[Messages, FastBatch | None]:
        rows = self._backlog.head(1 << 31, _BATCH_BYTES)
        if unfit(rows):
            return rows, None
        self._batches += 1
        stays = self._stays(rows, 0)
        far_s = max(0.0, self.terms.outlook.round_trip_s - _MORE_ACKS_S)
        outstanding = OUTSTANDING + math.ceil(far_s / _ACK_S)
        batch = FastBatch(self._prefix, self._batches, rows, self.terms, outstanding, stays)
        return rows, batch

    def _stays(self, rows: Messages, before: int) -> bool:
        """
        Whether the batch stays open behind these, the backlog's behind so many. A single row starts
        a batch and commits it at one time.
        """
        if before + len(rows) == 1:
            return False
        return self.terms.outlook.more or len(self._backlog) > before + len(rows)

    def _waiting(self, batch: FastBatch) -> int:
        """Rows behind those of the batch."""
        return len(self._backlog) - (batch.size - batch.acked)

    def _go_on(self, batch: FastBatch, now: float) -> None:
        """The rows that have come go into a batch that is open for them, or it ends."""
        if not self._waiting(batch):
            if not self.terms.outlook.more or now >= self._close_at(batch):
                batch.close()
            return
        before = batch.size - batch.acked
        rows = self._backlog.head(1 << 31, _BATCH_BYTES, before)
        is_late = now >= batch.oldest + batch.ping_interval_s
        if is_late or unfit(rows) or not batch.rows.has_flow_for(rows):
            batch.close()
        else:
            batch.extend(rows, self._stays(rows, before))

    def _close_at(self, batch: FastBatch) -> float:
        open_s = min(_OPEN_S + 2 * self.terms.outlook.round_trip_s, batch.ping_interval_s)
        return batch.idle_since + open_s

    def _batch_frames(self, batch: FastBatch, now: float, max_bytes: int) -> Frames | None:
        if batch.is_idle:
            self._go_on(batch, now)
        return batch.frames_to_send(now, max_bytes)

    def _on_batch_reply(
        self, batch: FastBatch, token: bytes, said: tuple[int, str, bytes], now: float
    ) -> None:
        name, *words = token.split(b".")
        if name != batch.name.encode() or len(words) != 5 or not is_ordinal(words[2]):
            return  # of a batch that has ended, or of nobody
        sequence, operation = words[2:4]
        is_ping, answer = operation == b"4", understand(*said)
        self.tally.ignored += answer.outcome.is_ignored
        acked = batch.acked
        batch.on_answer(int(sequence), is_ping, answer, now)
        self._store(batch.acked - acked)
        if answer.says is Says.END and answer.outcome.kind is Kind.STORED:
            self._ended(answer.outcome, answer.sequence)
        if answer.says is Says.UNKNOWN:
            self.tally.ignored += batch.sent - batch.acked
        self._settle(batch, now)

    def on_disconnect(self, why: str = BROKEN) -> None:
        super().on_disconnect(why)
        if self._batch is not None:
            self._batch.on_disconnect()

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """Gives back what was not sent; a batch that is open is committed as it is."""
        # What a batch left to the detour may be paused by now; nothing behind it may overtake it.
        unsent = unsent or self._detour.has_paused(is_paused)
        back = self._detour.recall(is_paused, unsent)
        if not unsent:
            return back
        batch = self._batch
        if batch is not None and not batch.sent:
            batch = self._batch = None
        if batch is not None:
            batch.drop_unsent()
        return back + self._backlog.cut(batch.size - batch.acked if batch is not None else 0)

    def expire(self, now: float) -> None:
        if self._batch is not None:
            self._batch.expire(now)
            self._settle(self._batch, now)
        super().expire(now)  # of the rows of a batch that was given up, too: before they go again

    def next_deadline(self, now: float) -> float:
        if self._batch is None:
            return super().next_deadline(now)
        return min(self._batch.next_deadline(), self._close_at(self._batch))

    def _settle(self, batch: FastBatch, now: float) -> None:
        """Ends a batch: its stored rows are done, the others go one by one."""
        if batch.pushed_back:
            batch.pushed_back = False
            self.tally.push_backs[batch.rows.subject] = now
        if batch.unsure_since is None:
            return
        if batch.is_disabled and not self._said:
            self._said = True
            logger.warning(
                "publish to %s: its stream takes no fast batches any more (allow_batched was set to"
                " false amid the write). The rows go one by one, until it takes batches again",
                batch.rows.subject,
            )
        self._batch = None
        undecided = batch.sent - batch.acked
        if batch.acked == batch.size:
            self._stretch = 0
            return
        self.tally.retries += undecided
        stretch = min(max(undecided, self._stretch), batch.size - batch.acked)
        self._stretch = min(max(2 * self._stretch, _FIRST_STRETCH), _MAX_STRETCH)
        if stretch:
            rows, served = self._backlog.first(stretch), self.tally.acked > 0
            self._detour.take(rows, served, undecided, batch.oldest, batch.unsure_since)
            self._backlog.drop(stretch)
