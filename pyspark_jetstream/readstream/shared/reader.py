"""
`spark.readStream` with `priorityPolicy=overflow` or `prioritized`: several
queries, on different clusters, take their parts of one consumer.

One micro-batch:

1. *Claim.* `latestOffset` pulls: sequences, no payloads. They are the end offset (`claims`). Where
   there is a backlog they are pulled while the batch before runs (`ahead`). What is in another
   query's batch is left (`fence`).
2. *Record.* Spark writes the offset into its log. From here on the batch has these rows.
3. *Read.* The tasks fetch the messages by direct get, as often as they are run.
4. *Acknowledge.* Spark plans the next batch only when this one is in the commit log, so the
   `latestOffset` that begins at this offset acknowledges what it names.

From 1 to 4 a thread keeps the claims alive (`acks`). A query that dies loses them to the
others once the ack wait is over.

Guarantee: each message is in one batch of one query, however long one is away, and whatever a
server without replicas forgets. Limits: of a query that is away for longer than `abandonAfter`
others have the batch that it had recorded; what its sink had of it by then is there twice. Where
the record of open batches cannot be had (`claimsLedger`), `ackWait` takes the place of
`abandonAfter`, and what is recorded is run once more by a query that comes back.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from ...client.connection import Client
from ...client.info import ConsumerInfo, Mark, StreamInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import OffsetError, OptionError
from ...fetch.assumptions import Assumption
from ...fetch.survey import ServerView, Survey
from ...sanitize import get_logger
from ...tasks import ReadTask, WarmUp
from ..counts import ReadCounts
from ..driver import SETTLES_EVERY_S, SETTLES_S, Driver, StreamReader, may_pass
from ..offsets import check_layout, is_initial
from ..options import Sharing
from ..planner import messages_in
from .acks import IN_PROGRESS, Heartbeats, ack, keep
from .ahead import Ahead
from .claimant import Claimant, SharedConsumer
from .claimedread import ClaimedRead
from .claims import Claim, ClaimedOffset, gathered, pieces
from .openbatches import OpenBatches, Waits, entered
from .poison import Poison

__all__ = ["SharedStreamReader"]

logger = get_logger(__name__)

_MAX_CLAIMS: Final = 50_000
"""Claims of one batch without `maxRecordsPerTrigger`: all that waits would be one reader's."""

_WAIT_S: Final = 0.2
"""How long an idle `latestOffset` waits for a message; Spark calls it again after 10 ms."""

_BEATS: Final = 3
"""Heartbeats in one ack wait."""

_KEEP_S: Final = 10.0
_IN_TIME: Final = 3
"""Claims made ahead are given back after so long, and after this part, a third, of the ack wait."""

_SHORT: Final = 2
"""A batch that took this part, a half, of that time is likely to be over before it."""

_NO_SEQUENCE: Final = (1 << 63) - 1
"""A sequence that no message has."""


class SharedStreamReader(StreamReader["_Driver"]):
    """Reads what this query claims of shared consumers, micro-batch by micro-batch."""

    def _begin(self) -> _Driver:
        return _Driver(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited."""
        return ReadMaxRows(self._options.max_records or _MAX_CLAIMS)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        What is claimed for the batch after `start`, which is acknowledged; `start` itself when
        the server has nothing for this query.

        Raises:
            OffsetError: The checkpoint belongs to another layout or policy.
            OptionError: The trigger is `once`.
            DataLossError: The shared consumer, or a stream, is gone (`failOnDataLoss`).
        """
        if isinstance(limit, ReadAllAvailable):
            raise OptionError(
                "priorityPolicy",
                f"{self._options.sharing.policy if self._options.sharing else ''} does not go with"
                " trigger(once=True), which ends before its batch is acknowledged, so that others"
                " would have it as well; use trigger(availableNow=True)",
            )
        return self._run.latest(start)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: what Spark tells here, `latestOffset` knew a batch earlier."""


@dataclass(slots=True)
class _Joined:
    """What a query has once its consumers are there."""

    query: str
    """Names it as long as it has this checkpoint."""
    heartbeats: Heartbeats
    ahead: Ahead
    batches: OpenBatches | None
    """None where open batches are not noted."""


@dataclass(slots=True)
class _Budget:
    """How many claims a run may still make that ends at what is there (`availableNow`)."""

    freezes: bool = False
    left: int | None = None
    """None before the consumers were asked, and for a run that does not end."""

    def spend(self, claims: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - claims)

    def limit(self, maximum: int) -> int:
        """The most claims that may be made now."""
        return maximum if self.left is None else min(maximum, self.left)


class _Driver(Driver):
    """What the query has claimed."""

    def _enter(self) -> None:
        assert self._options.sharing is not None
        self._sharing: Sharing = self._options.sharing
        options, sharing = self._options, self._sharing
        self._survey = Survey(self._client, options)
        self._survey.require((2, 12), f"priorityPolicy={sharing.policy}")
        self._layout = self._survey.layout
        self._infos: Mapping[str, StreamInfo] = self._survey.streams()
        self._marks: Mapping[str, Mark] = {}
        """The streams as the last batch was planned by them."""
        self._check_streams()
        self._survey.check_coverage(self._infos)
        self._claimant = Claimant(
            self._client,
            [
                SharedConsumer(
                    p.index,
                    p.stream,
                    f"{options.consumer}-{p.index}",
                    p.filter,
                    replicated=int(self._infos[p.stream].config.get("num_replicas") or 1) > 1,
                )
                for p in self._layout
            ],
            sharing,
            options.priority_group,
        )
        self._poison: Poison | None = None
        if sharing.max_deliver is not None and sharing.dead_letter_subject is not None:
            self._poison = Poison(self._client, sharing.max_deliver, sharing.dead_letter_subject)
            self._poison.check(self._layout, self._infos)
        self._joined: _Joined | None = None
        self._budget = _Budget()
        self._open: tuple[dict[str, Any], ClaimedOffset, float] | None = None
        """
        The start and the end of what was claimed last, until Spark shows that it has it; when.
        """
        self._settled = -1
        """The serial of the last batch that is acknowledged."""
        self._lasted_s = math.inf
        """How long the batch took that was planned before, until Spark came for another."""
        self._ahead_of: dict[str, str] = {}
        """When the streams were made of which messages are claimed ahead."""

    def close(self) -> None:
        if self._joined is not None:
            self._joined.ahead.close()
            self._joined.heartbeats.close()
        super().close()

    def reported(self) -> dict[str, Any]:
        """
        For each partition, when the last batch was planned: the end of its stream, `lag` (messages
        that nobody has claimed), `ackPending` (claims of all readers together), `claimed` (this
        query's in the batch), how many of these are `redelivered`, and until when it is paused.
        """
        return super().reported()

    def freeze(self) -> None:
        """This run claims as many messages as wait now, at most: for the first time, or again."""
        self._budget.freezes = True

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        offset = self._offset(start)
        self._report_on(str(self._options.consumer))
        joined = self._join(offset)
        if self._budget.freezes and self._budget.left is None:
            waiting = self._claimant.infos().values()
            # What others hold is among them; of that nothing is dealt out.
            self._budget.left = sum(info.num_pending + info.num_ack_pending for info in waiting)
        if self._open is not None:
            began, end, planned_s = self._open
            if start == began:
                return end.to_json()  # asked once more: these claims are ours, and in no log yet
            self._open = None
            self._lasted_s = time.monotonic() - planned_s
        while True:
            dealt = self._claimed(joined, offset)
            look = self._look()
            claimed = self._fenced(joined, offset, dealt, look)
            if _count(claimed) or not (_count(dealt) or self._is_held_up(look)):
                break  # else all were others', or a pause is waited for
            time.sleep(0 if _count(dealt) else _WAIT_S)
        if self._poison is not None:
            kept = self._poison.removed(claimed, self._consumers)
            for index, taken in claimed.items():
                gone = {claim.sequence for claim in taken} - {c.sequence for c in kept[index]}
                joined.heartbeats.release(self._consumers[index], gone)
            claimed = kept
        claims = {index: gathered(taken) for index, taken in claimed.items() if taken}
        self._survey.check_coverage(self._infos)
        if not claims:
            self._note(None, look)
            return start
        self._marks = self._survey.marks(self._infos)
        end = ClaimedOffset(
            policy=self._sharing.policy,
            consumer=str(self._options.consumer),
            partitions=len(self._layout),
            streams={name: info.created for name, info in self._infos.items()},
            serial=self._next(offset),
            claims=claims,
            query=joined.query,
            marks=self._marks,
        )
        self._open = (dict(start), end, time.monotonic())
        self._note(end, look)
        return end.to_json()

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        if start == end:  # the first batch of a query that had nothing to claim
            return []
        upto = ClaimedOffset.from_json(end)
        self._fits(upto)
        self._report_on(str(self._options.consumer))
        replayed = self._open is None or self._open[1] != upto
        is_lost = False
        if replayed:  # a batch of the run before, from the write-ahead log
            self._look_at_streams()
            joined = self._join(upto)
            before = self._offset(start)
            if before is not None:
                self._settle(joined, before)
            is_lost = joined.batches is not None and joined.batches.has_lost(upto)
            if not is_lost:
                self._hold(joined, upto)
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                of = {index: upto.count(index) for index in upto.claims}
                counts.under_way({} if is_lost else of)
                counts.lost(of if is_lost else {})
            self._reporting.soon()
        tasks = self._tasks(upto, replayed)
        if is_lost:
            logger.warning(
                "consumer=%s: batch %d of %d messages was given up while this query was away for"
                " longer than abandonAfter, and is run without rows: others read them. What the"
                " sink had of it before is there twice",
                upto.consumer, upto.serial, sum(map(upto.count, upto.claims)),
            )  # fmt: skip
            # As many as there were: a sink's own records are of each task.
            return [ReadTask(self._options.connection, WarmUp()) for _ in tasks]
        return tasks

    def _tasks(self, upto: ClaimedOffset, replayed: bool) -> list[ReadTask]:
        """The tasks of a batch, which depend on its offset alone."""
        options = self._options
        total = max(1, sum(upto.count(index) for index in upto.claims))
        tasks = []
        for index in sorted(upto.claims):
            partition = self._layout.partitions[index]
            info = self._infos[partition.stream]
            if info.created != upto.streams.get(partition.stream):
                continue  # claims of a stream that is no more (failOnDataLoss=false)
            others_from = None
            if info.retention != "limits":
                # Of a replay any claim may have passed to somebody else; otherwise only one that
                # somebody had before, who may be back and acknowledge it.
                others_from = 1 if replayed else 2
            whole = ClaimedRead(
                partition=index,
                stream=partition.stream,
                filter=partition.filter,
                claims=upto.claims[index],
                include_headers=options.include_headers,
                fail_on_data_loss=options.fail_on_data_loss,
                on_invalid_subject=options.on_invalid_subject,
                others_from=others_from,
                mark=info.mark,
            )
            wanted = -(-(options.min_partitions or 0) * upto.count(index) // total)
            tasks += [
                ReadTask(options.connection, replace(whole, claims=part))
                for part in pieces(whole.claims, wanted, options.max_records_per_partition)
            ]
        return tasks

    # ── claims ───────────────────────────────────────────────────────────────────────────────

    @property
    def _consumers(self) -> dict[int, SharedConsumer]:
        """By partition."""
        return {consumer.partition: consumer for consumer in self._claimant.consumers}

    @staticmethod
    def _next(offset: ClaimedOffset | None) -> int:
        """The serial of the batch that follows."""
        return offset.serial + 1 if offset is not None else 0

    def _join(self, offset: ClaimedOffset | None) -> _Joined:
        """
        Once a run: every consumer is there, and of the kind that the options say.

        Args:
            offset: of the run before.
        """
        if self._joined is not None:
            return self._joined
        if offset is not None:
            for name, created in offset.streams.items():
                if self._infos[name].created != created:
                    self._lost(
                        name,
                        0,
                        f"the stream was made anew at {self._infos[name].created}; the checkpoint"
                        f" knows the one of {created}",
                    )
            for consumer in self._claimant.missing():
                self._lost(
                    consumer.stream,
                    consumer.partition,
                    f"the consumer '{consumer.name}' is gone, and with it what was acknowledged: a"
                    " new one delivers everything from startingOffsets on again",
                )
            self._marks = offset.marks
            self._check_taken_back()
        self._claimant.join(self._starts())
        for consumer in self._claimant.consumers:
            # It acknowledges no message: an error here says that this user may not publish acks.
            ack(self._client, consumer, [_NO_SEQUENCE], IN_PROGRESS)
        query = (offset.query if offset is not None else "") or os.urandom(5).hex()
        connection, ack_wait_s = self._options.connection, self._claimant.ack_wait_s
        sharing = self._sharing
        batches = None
        if sharing.claims_ledger != "false":
            key = f"{self._options.stream.replace('{partition}', '=')}.{self._options.consumer}"
            waits = Waits(ack_wait_s, sharing.abandon_after_s)
            streams = [partition.stream for partition in self._layout]
            batches = OpenBatches(self._client, key, query, streams, waits)
            batches = entered(batches, sharing.claims_ledger == "true")
        alive = batches.alive if batches is not None else None
        heartbeats = Heartbeats(connection, ack_wait_s / _BEATS, alive)
        keep_s = min(_KEEP_S, ack_wait_s / _IN_TIME)
        ahead = Ahead(connection, self._claimant, heartbeats, keep_s)
        self._joined = _Joined(query, heartbeats, ahead, batches)
        return self._joined

    def _starts(self) -> dict[int, int | None]:
        """Where a consumer begins that is missing."""
        if self._from_start:
            return dict.fromkeys(range(len(self._layout)))
        positions = self._survey.positions(self._options.starting, self._infos, "startingOffsets")
        return {index: position + 1 for index, position in enumerate(positions)}

    def _hold(self, joined: _Joined, upto: ClaimedOffset) -> None:
        """Keeps the claims of a batch that is run again."""
        for index in upto.claims:
            ack(self._client, self._consumers[index], upto.sequences(index), IN_PROGRESS)
        for index in upto.claims:
            joined.heartbeats.hold(self._consumers[index], upto.sequences(index))

    def _claimed(self, joined: _Joined, offset: ClaimedOffset | None) -> dict[int, list[Claim]]:
        """
        Claims for a batch, while that of `offset` is acknowledged.

        Those made ahead come first. Where they fill the batch, the next are made while this one is
        acknowledged and runs; otherwise what is missing is claimed now.
        """
        claimed, made = dict(joined.ahead.take()), self._ahead_of
        if claimed:
            self._look_at_streams()  # before a stream that was made anew meanwhile is claimed of
        maximum = self._budget.limit(self._maximum())
        full = 0 < maximum <= _count(claimed) and made == self._made()
        if full:
            self._budget.spend(_count(claimed))
            self._go_ahead(joined)
        if offset is not None:
            self._settle(joined, offset)
        if claimed and made != self._made():  # of a stream that is no more, as are the next
            self._forget(joined, claimed)
            self._forget(joined, joined.ahead.take())
            claimed, full = {}, False
        if full:
            return claimed
        waits = self._budget.left is None and not _count(claimed)
        more = self._kept(joined, max(0, maximum - _count(claimed)), _WAIT_S if waits else 0)
        claimed = {index: claimed.get(index, []) + taken for index, taken in more.items()}
        self._budget.spend(_count(claimed))
        if 0 < maximum <= _count(claimed):
            self._go_ahead(joined)
        return claimed

    def _kept(self, joined: _Joined, limit: int, wait_s: float) -> dict[int, list[Claim]]:
        """Claims now; goes on as long as all that is claimed is let go again."""
        while True:
            claimed = self._claimant.claim(limit, wait_s)
            kept = keep(self._client, self._claimant, claimed, joined.heartbeats)
            if self._poison is not None:
                self._poison.let_go(claimed, kept)
            if _count(kept) or not _count(claimed):
                return kept

    def _fenced(
        self,
        joined: _Joined,
        offset: ClaimedOffset | None,
        claimed: Mapping[int, Sequence[Claim]],
        look: ServerView,
    ) -> dict[int, list[Claim]]:
        """
        The claims that are this query's, which is noted: those of others' batches are left, those
        of committed ones acknowledged once more.
        """
        mine = {index: list(taken) for index, taken in claimed.items()}
        if joined.batches is not None:
            dealt = joined.batches.plan(offset, self._next(offset), claimed, look)
            mine |= dealt.mine
            for index, sequences in dealt.settled.items():
                ack(self._client, self._consumers[index], sequences)
            for reason, left in (("open", dealt.theirs), ("committed", dealt.settled)):
                self._leave(joined, reason, left)
            if self._poison is not None:
                self._poison.let_go(claimed, mine)
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                for index, taken in mine.items():
                    counts.claimed(index, [claim.deliveries for claim in taken])
        return mine

    def _leave(self, joined: _Joined, reason: str, left: Mapping[int, Sequence[int]]) -> None:
        for index, sequences in left.items():
            consumer = self._consumers[index]
            joined.heartbeats.release(consumer, sequences)
            logger.info(
                "consumer=%s: %d messages were dealt to this query and are in a batch of another"
                " one, which is %s; they are left to it", consumer.name, len(sequences), reason,
            )  # fmt: skip
            if self._reporting is not None:
                with self._reporting.counting() as counts:
                    counts.left(index, reason, len(sequences))

    def _forget(self, joined: _Joined, claimed: Mapping[int, Sequence[Claim]]) -> None:
        """Lets go of claims."""
        for index, taken in claimed.items():
            sequences = [claim.sequence for claim in taken]
            joined.heartbeats.release(self._consumers[index], sequences)

    def _go_ahead(self, joined: _Joined) -> None:
        """
        Claims for the batch after the one that is planned, where that is likely to be over in time.

        Not with `maxDeliver`: what is given back has been delivered once more, and did nothing.
        """
        limit = self._budget.limit(self._maximum())
        if limit and self._poison is None and self._lasted_s * _SHORT < joined.ahead.keep_s:
            self._ahead_of = self._made()
            joined.ahead.begin(limit)

    def _made(self) -> dict[str, str]:
        """When the streams were made."""
        return {name: info.created for name, info in self._infos.items()}

    def _look(self) -> ServerView:
        """The streams and the consumers as they are now, in one round trip."""
        asked_s = time.monotonic()
        of = {c.partition: (c.stream, c.name) for c in self._claimant.consumers}
        look = self._survey.look(of)
        self._take_in(look.streams)
        infos = {index: info for index, info in look.consumers.items() if info is not None}
        self._claimant.saw(infos.values(), asked_s)
        self._check_consumers(infos)
        return look

    def _look_at_streams(self) -> None:
        self._take_in(self._survey.streams())

    def _take_in(self, streams: Mapping[str, StreamInfo]) -> None:
        """
        Raises:
            DataLossError: A stream was made anew since the last look, or taken back to an older
                copy (`failOnDataLoss`).
        """
        before, self._infos = self._infos, streams
        for name, info in streams.items():
            if info.created != before[name].created:
                self._lost(
                    name,
                    0,
                    f"the stream was made anew at {info.created}, while the query ran; what was not"
                    f" read of the one of {before[name].created} is gone",
                )
        self._check_taken_back()

    def _check_taken_back(self) -> None:
        changes = self._survey.changed(self._marks, self._infos)
        patience = Patience(SETTLES_S, pause_s=SETTLES_EVERY_S)
        while not patience.over and may_pass(changes.values()):
            patience.pause()
            self._infos = self._survey.streams()
            changes = self._survey.changed(self._marks, self._infos)
        for name, change in changes.items():
            if change.of is not Assumption.SAME_STREAM:
                self._lost(name, 0, change.text)
        if changes:
            self._marks = self._survey.marks(self._infos)

    def _check_consumers(self, infos: Mapping[int, ConsumerInfo]) -> None:
        """
        Raises:
            DataLossError: One was made anew while the query ran (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        for index, info in infos.items():
            consumer = self._consumers[index]
            if info.created != self._claimant.joined[index].created:
                self._claimant.joined[index] = info
                self._lost(
                    consumer.stream,
                    index,
                    f"the consumer '{info.name}' was made anew at {info.created}, while the query"
                    " ran: what was acknowledged is forgotten, and comes again",
                )
            self._claimant.check_edited(consumer, info)

    def _is_held_up(self, look: ServerView) -> bool:
        """Whether a run that ends at what is there waits for a consumer that is paused."""
        return bool(self._budget.left) and any(
            info is not None and info.pause_s > 0 and info.num_pending + info.num_ack_pending > 0
            for info in look.consumers.values()
        )

    def _settle(self, joined: _Joined, offset: ClaimedOffset) -> None:
        """
        Acknowledges a batch that is in the commit log.

        Raises:
            RequestTimeoutError: The server took no acks for `requestTimeout`. The claims would
                return to other readers, so the query must not go on as if all were well.
        """
        late_s = joined.heartbeats.overdue_s
        if late_s > self._claimant.ack_wait_s and joined.batches is None:
            logger.warning(
                "consumer=%s: no heartbeat arrived for %.0f s, longer than its ack wait of %.0f s;"
                " what was claimed may have been given to other readers as well",
                self._options.consumer, late_s, self._claimant.ack_wait_s,
            )  # fmt: skip
        if offset.serial == self._settled:
            return
        self._look_at_streams()  # an ack in a stream of the same name could be of another's claim
        settles = joined.batches is None or joined.batches.settles(offset)
        for index in offset.claims:
            consumer, sequences = self._consumers[index], offset.sequences(index)
            created = self._infos[consumer.stream].created
            if settles and created == offset.streams.get(consumer.stream):
                ack(self._client, consumer, sequences)
            joined.heartbeats.release(consumer, sequences)
        self._settled = offset.serial

    def _maximum(self) -> int:
        """The most messages of a batch."""
        options = self._options
        maximum = options.max_records or _MAX_CLAIMS
        if options.max_bytes is not None:
            maximum = min(maximum, messages_in(options.max_bytes, self._infos))
        return maximum

    def _note(self, end: ClaimedOffset | None, look: ServerView) -> None:
        before, self.report = self.report, {}
        for partition in self._layout:
            index, info = partition.index, look.consumers[partition.index]
            claims = end.claims.get(index, {}) if end is not None else {}
            claimed = end.count(index) if end is not None else 0
            first = sum(b - a + 1 for a, b in claims.get(1, ()))
            self.report[str(index)] = report = {
                "stream": partition.stream,
                "latest": self._infos[partition.stream].last_seq,
                "lag": info.num_pending if info is not None else None,
                "ackPending": info.num_ack_pending if info is not None else None,
                "claimed": claimed,
                "redelivered": claimed - first,
            }
            if info is not None and info.pause_s > 0:
                report["pausedUntil"] = until = str(info.config.get("pause_until"))
                if before.get(str(index), {}).get("pausedUntil") != until:
                    logger.warning(
                        "stream=%s partition=%d waits: consumer %s is paused until %s (`nats"
                        " consumer resume %s %s` ends it)",
                        partition.stream, index, info.name, until, partition.stream, info.name,
                    )  # fmt: skip
            if self._poison is not None:
                report["deadLetters"] = self._poison.stored.total()
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                _stand(counts, {p: info for p, info in look.consumers.items() if info is not None})

    def _look_again(self, client: Client) -> None:
        consumers = self._claimant.consumers
        answers = JetStream(client).consumer_infos(
            [(consumer.stream, consumer.name) for consumer in consumers]
        )
        infos = {
            consumer.partition: info
            for consumer, info in zip(consumers, answers, strict=True)
            if info
        }
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                _stand(counts, infos)

    def _observe(self, counts: ReadCounts) -> None:
        counts.active(True)
        if self._poison is not None:
            counts.dead_letters(dict(self._poison.stored))

    # ── checks ───────────────────────────────────────────────────────────────────────────────

    def _check_streams(self) -> None:
        for info in self._infos.values():
            if not info.allow_direct:
                raise OptionError(
                    "stream",
                    f"'{info.name}' has direct get off, by which claimed messages are fetched; set"
                    f" allow_direct on it (`nats stream edit {info.name} --allow-direct`)",
                )
            self._check_start(info)

    def _offset(self, start: Mapping[str, Any]) -> ClaimedOffset | None:
        """The offset that `start` stands for; None at the beginning."""
        if is_initial(start):
            return None
        offset = ClaimedOffset.from_json(start)
        self._fits(offset)
        return offset

    def _fits(self, offset: ClaimedOffset) -> None:
        options, layout = self._options, self._layout
        if offset.consumer != options.consumer or offset.policy != self._sharing.policy:
            raise OffsetError(
                f"the checkpoint was written with consumer={offset.consumer} and priorityPolicy="
                f"{offset.policy}, this query has {options.consumer} and {self._sharing.policy};"
                " use those, or a new checkpointLocation"
            )
        check_layout(
            offset.partitions, offset.streams, layout.streams, len(layout),
            "drain the old layout with the old options and trigger(availableNow=True), then start"
            " with a new checkpointLocation",
        )  # fmt: skip


def _count(claimed: Mapping[int, Sequence[Claim]]) -> int:
    """How many claims they are."""
    return sum(map(len, claimed.values()))


def _stand(counts: ReadCounts, infos: Mapping[int, ConsumerInfo]) -> None:
    """Where the shared consumers stand: what nobody has claimed, and what is not acknowledged."""
    counts.lag({index: info.num_pending for index, info in infos.items()})
    counts.ack_pending({index: info.num_ack_pending for index, info in infos.items()})
