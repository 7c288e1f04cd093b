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

Guarantee: each message is in one batch of one query, though it is away for up to `abandonAfter`,
and whatever a server without replicas forgets. Limits: of a query that is away for longer than that
others have the batch that it had recorded; what its sink had of it by then is there twice. Where
the record of open batches cannot be had (`claimsLedger`), `ackWait` takes the place of
`abandonAfter`, and what is recorded is run once more by a query that comes back.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...client.connection import Client
from ...client.info import ConsumerInfo, StreamInfo
from ...client.jetstream import JetStream
from ...errors import DataLossError, JetStreamError, OffsetError, OptionError
from ...fetch.layout import Layout
from ...fetch.survey import ServerView, check_direct
from ...sanitize import get_logger
from ...tasks.rows import ReadTask, WarmUp
from ..driver import Driver, PausedConsumers
from ..offsets import check_layout, check_several, is_initial
from ..options import Sharing
from .acks import IN_PROGRESS, ack
from .claimant import Claimant
from .claimedread import ClaimedRead
from .claims import ClaimedOffset, gathered, length, pieces
from .fence import Dealt
from .member import WAIT_S, GroupMember, count, next_serial
from .openbatches import OpenBatches
from .poison import Poison
from .streams import SharedStreams

if TYPE_CHECKING:
    from ..counts import ReadCounts

logger = get_logger(__name__)

_FEW: Final = 8
"""Consumers up to which an idle query waits at all of them."""

_LOOKS_A_SECOND: Final = 50
"""Consumers looked at a second, of more, once all that their streams hold is acknowledged."""

_NO_SEQUENCE: Final = (1 << 63) - 1
"""A sequence that no message has."""


class _Planned(NamedTuple):
    """The last claims, until Spark shows that it has recorded them."""

    start: dict[str, Any]
    end: ClaimedOffset
    at: float
    """Time, by `time.monotonic`."""


class ClaimDriver(Driver):
    """The query's claims, and its plans by them."""

    @property
    def _needs(self) -> tuple[tuple[int, int], str]:
        return (2, 12), f"priorityPolicy={self._sharing.policy}"

    @property
    def _sharing(self) -> Sharing:
        assert self._options.sharing is not None
        return self._options.sharing

    def _enter(self) -> None:
        options, sharing = self._options, self._sharing
        infos = self._survey.streams()
        if options.several is not None:
            self._survey.set_layout(Layout.of_streams(infos))
        self._poison: Poison | None = None
        if sharing.max_deliver is not None and sharing.dead_letter_subject is not None:
            self._poison = Poison(self._client, sharing.max_deliver, sharing.dead_letter_subject)
        self._check_streams(infos)
        self._survey.check_coverage(infos)
        self.claimant = Claimant(self._client, [], sharing, options.priority_group)
        self._streams = SharedStreams(
            options, self._survey, infos, self.claimant, self._check_streams, self._lost
        )
        self._query = ""
        """Names the query as long as it has this checkpoint; known once it has joined."""
        self.member: GroupMember | None = None
        """None before the consumers are there."""
        self._acked: tuple[dict[str, tuple[str, int]], float] | None = None
        """The ends of the streams when all that they held was acknowledged, and when that was."""
        self._paused = PausedConsumers[str](options.connection.command)
        self._planned: _Planned | None = None
        self._noted_at = -math.inf
        """Time of the look at the server for the last progress, by `time.monotonic`."""

    def close(self) -> None:
        if self.member is not None:
            self.member.close()
        super().close()

    def freeze(self) -> None:
        """
        Ends this run at the messages that wait, for a first or for another delivery; the next
        `latest` counts them.
        """
        self._streams.is_closed = True

    # ── what Spark asks for each batch ───────────────────────────────────────────────────────

    def latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        """The end of the batch after `start`, which is acknowledged; `start` if there is none."""
        if unlimited:
            raise OptionError(
                "priorityPolicy",
                f"{self._sharing.policy} does not go with trigger(once=True), which ends before its"
                " batch is acknowledged, so that others would have it as well; use"
                " trigger(availableNow=True)",
            )
        before = self._offset(start)
        self._begin_reports(str(self._options.consumer))
        member = self._join(before)
        if self._is_idle():
            return start
        if self._streams.is_closed and member.left is None:
            waiting = self.claimant.infos().values()
            # What others hold is among them; of that nothing is dealt out.
            member.left = sum(info.num_pending + info.num_ack_pending for info in waiting)
        if self._planned is not None:
            if start == self._planned.start:
                # Asked once more: these claims are ours, and in no log yet.
                return self._planned.end.to_json()
            member.lasted_s = time.monotonic() - self._planned.at
            self._planned = None
        others: set[tuple[str, int]] = set()
        while True:
            claimed, of = member.claim(before), self._streams.stores
            look = self._look(member)
            claimed = member.drop_gone(claimed, of)
            dealt = member.fence(before, claimed, look)
            self._count(partial(_count_dealt, dealt=dealt))
            if count(dealt.mine) or not (count(claimed) or member.is_held_up(look)):
                break  # else all were others', or a pause is waited for
            theirs = {(p, sequence) for p, taken in dealt.theirs.items() for sequence in taken}
            if theirs and theirs <= others:
                break  # they are dealt out again before those behind them are
            others |= theirs
            time.sleep(0 if count(claimed) else WAIT_S)
        mine = member.divert_poison(dealt.mine)
        claims = {index: gathered(taken) for index, taken in mine.items() if taken}
        self._survey.check_coverage(self._streams.infos)
        if not claims:
            self._note(None, look)
            is_acked = _are_acked(self._layout, look)
            self._acked = (_ends(self._streams.infos), look.at) if is_acked else None
            return start
        end = ClaimedOffset(
            policy=self._sharing.policy,
            consumer=str(self._options.consumer),
            partitions=len(self._layout),
            streams=self._streams.created,
            serial=next_serial(before),
            claims=claims,
            query=self._query,
            marks=self._streams.mark(),
            several=self._layout.is_several,
        )
        self._planned = _Planned(dict(start), end, time.monotonic())
        self._note(end, look)
        return end.to_json()

    def _look(self, member: GroupMember) -> ServerView[str]:
        """The streams and the consumers as they are now; what they have lost is told once."""
        try:
            return self._streams.look()
        except DataLossError:
            if member.batches is not None:
                with suppress(JetStreamError):
                    member.batches.forget_consumers(self._made(self._streams.created))
            raise

    def _made(self, streams: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """By partition of these streams the creation times of stream and consumer, as joined."""
        joined = self.claimant.joined
        return {
            consumer.partition: (consumer.created, joined[consumer.partition].created)
            for consumer in self.claimant.consumers
            if consumer.stream in streams and consumer.partition in joined
        }

    def _is_idle(self) -> bool:
        """
        Whether nothing has come to many streams since all that they held was acknowledged: then
        there is nothing to claim, for whatever reason. Waits a moment if so.
        """
        if self._acked is None or len(self._layout) <= _FEW:
            return False
        ends, at = self._acked
        if time.monotonic() - at < len(self._layout) / _LOOKS_A_SECOND:
            self._streams.look_at_streams()
            if _ends(self._streams.infos) == ends:
                time.sleep(WAIT_S)
                return True
        self._acked = None
        return False

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        if start == end:  # the first batch of a query that had nothing to claim
            return []
        upto = self._fitting(ClaimedOffset.from_json(end))
        self._begin_reports(str(self._options.consumer))
        replayed = self._planned is None or self._planned.end != upto
        is_lost = replayed and self._replay(start, upto)
        there = {name: upto.count(name) for name in upto.claims}
        self._count(lambda counts: _count_batch(counts, there, is_lost), soon=True)
        tasks = self._tasks(upto, replayed)
        if is_lost:
            logger.warning(
                "consumer=%s: batch %d of %d messages was given up, because this query was away"
                " for longer than abandonAfter. The query runs this batch without rows, and the"
                " other queries read its messages. If the sink had stored rows of the batch, these"
                " rows are there twice",
                upto.consumer, upto.serial, sum(map(upto.count, upto.claims)),
            )  # fmt: skip
            # As many as there were: a sink's own records are of each task.
            return [ReadTask(self._options.connection, WarmUp()) for _ in tasks]
        return tasks

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: what Spark tells here, `latest` knew a batch earlier."""

    def _replay(self, start: Mapping[str, Any], upto: ClaimedOffset) -> bool:
        """
        Takes up a batch of the run before, from the write-ahead log; whether it was given up while
        the query was away.
        """
        self._streams.look_at_streams()
        member = self._join(upto)
        before = self._offset(start)
        if before is not None:
            self._streams.check_between(before, upto)
            member.settle(before)
        is_lost = member.batches is not None and member.batches.resume(upto)
        if not is_lost:
            member.hold(upto)
        return is_lost

    def _tasks(self, upto: ClaimedOffset, replayed: bool) -> list[ReadTask]:
        """The tasks of a batch, which depend on its offset alone."""
        options = self._options
        total = max(1, sum(upto.count(name) for name in upto.claims))
        tasks = []
        for name in upto.ordered:
            consumer = self.claimant.by_partition[name]
            info = self._streams.infos.get(consumer.stream)
            is_there = info is not None and info.created == upto.streams.get(consumer.stream)
            others_from = None
            if info is not None and info.retention != "limits":
                # Of a replay any claim may have passed to somebody else; otherwise only one that
                # somebody had before, who may be back and acknowledge it.
                others_from = 1 if replayed else 2
            whole = ClaimedRead(
                partition=consumer.number,
                stream=consumer.stream,
                filter=consumer.filter,
                start=0,
                end=0,
                expected=None,
                claims=upto.claims[name],
                include_headers=options.needs_headers,
                fail_on_data_loss=options.fail_on_data_loss,
                on_invalid_subject=options.on_invalid_subject,
                others_from=others_from,
                mark=info.mark if info is not None else None,
            )
            wanted = -(-(options.min_partitions or 0) * upto.count(name) // total)
            tasks += [
                # Of a stream that is no more nothing is read (failOnDataLoss=false), and the others
                # keep their tasks.
                ReadTask(options.connection, whole.of(part) if is_there else WarmUp())
                for part in pieces(whole.claims, wanted, options.max_records_per_partition)
            ]
        return tasks

    # ── joining ──────────────────────────────────────────────────────────────────────────────

    def _join(self, offset: ClaimedOffset | None) -> GroupMember:
        """
        Once a run: every consumer is there, and of the kind that the options say.

        Args:
            offset: of the run before.
        """
        if self.member is not None:
            return self.member
        if offset is not None:
            self._check_joined(offset)
        self._streams.join(offset.streams if offset is not None else None)
        for consumer in self.claimant.consumers:
            # It acknowledges no message: an error here says that this user may not publish acks.
            ack(self._client, consumer, [_NO_SEQUENCE], IN_PROGRESS)
        self._query = (offset.query if offset is not None else "") or os.urandom(5).hex()
        batches = self._open_batches()
        if batches is not None and offset is not None:
            batches.drop_unrecorded(offset.serial)
            anew = batches.forget_consumers(self._made(offset.streams))
            self._streams.check_made_anew(anew)
            self._streams.check_since(batches.marks)
        self.member = GroupMember(
            self._client,
            self._options,
            self.claimant,
            self._streams,
            self._poison,
            batches,
        )
        return self.member

    def _check_joined(self, offset: ClaimedOffset) -> None:
        """
        Raises:
            DataLossError: A stream or a consumer is gone, or not the one that the run before had
                joined (`failOnDataLoss`).
        """
        self._streams.check_there(self._streams.infos, offset.streams)
        for consumer in self.claimant.missing():
            if consumer.stream not in offset.streams:
                continue  # it came since
            self._lost(
                consumer.stream,
                consumer.number,
                f"the consumer '{consumer.name}' is gone, and with it what was acknowledged: a"
                " new one delivers everything from startingOffsets on again",
            )
        self._streams.marks = offset.marks
        self._streams.check_taken_back()

    def _open_batches(self) -> OpenBatches | None:
        """The record of open batches; None where they are not noted."""
        options, sharing = self._options, self._sharing
        if sharing.claims_ledger == "false":
            return None
        key, streams = str(options.consumer), {}
        if options.several is None:
            key = f"{options.stream.replace('{partition}', '=')}.{key}"
            streams = {name: p.stream for name, p in self._streams.partitions.items()}
        ack_wait_s, abandon_s = self.claimant.ack_wait_s, sharing.abandon_after_s
        batches = OpenBatches(self._client, key, self._query, streams, ack_wait_s, abandon_s)
        return batches if batches.enter(must=sharing.claims_ledger == "true") else None

    # ── progress and metrics ─────────────────────────────────────────────────────────────────

    def _note(self, end: ClaimedOffset | None, look: ServerView[str]) -> None:
        """
        Notes for progress and metrics what the batch was planned by. For each partition: the end of
        its stream, `lag` (messages that nobody was dealt), `ackPending` (claims of all readers
        together, and what waits for redelivery), `awaitingRedelivery` (the latter), `claimed` (this
        query's in the batch), how many of these are `redelivered`, and until when it is paused.
        """
        self.report = {}
        awaiting = self.member.awaiting_redelivery(look) if self.member is not None else {}
        for name, partition in self._streams.partitions.items():
            index, info = str(partition.index), look.consumers.get(name)
            claims = end.claims.get(name, {}) if end is not None else {}
            claimed = end.count(name) if end is not None else 0
            first = length(claims.get(1, ()))
            self.report[index] = report = {
                "stream": partition.stream,
                "latest": self._streams.infos[partition.stream].last_seq,
                "lag": info.num_pending if info is not None else None,
                "ackPending": info.num_ack_pending if info is not None else None,
                "awaitingRedelivery": awaiting.get(name),
                "claimed": claimed,
                "redelivered": claimed - first,
            }
            of = self.claimant.by_partition[name]
            self._paused.note(name, of.stream, of.number, of.name, info)
            if name in self._paused.until:
                report["pausedUntil"] = self._paused.until[name]
            if self._poison is not None:
                report["deadLetters"] = self._poison.stored.total()
        self._noted_at = look.at
        infos = {name: info for name, info in look.consumers.items() if info is not None}
        self._count(lambda counts: _count_consumers(counts, infos, awaiting))

    def _measure(self, client: Client) -> None:
        if time.monotonic() - self._noted_at < self._options.metrics_interval_s:
            return  # the driver itself has just looked
        consumers = self.claimant.consumers
        answers = JetStream(client).consumer_infos(
            [(consumer.stream, consumer.name) for consumer in consumers]
        )
        infos = {c.partition: info for c, info in zip(consumers, answers, strict=True) if info}
        self._count(lambda counts: _count_consumers(counts, infos))

    def _observe(self, counts: ReadCounts) -> None:
        counts.set_active(True)
        if self._poison is not None:
            counts.set_dead_letters(dict(self._poison.stored))  # the driver adds to it meanwhile

    # ── checks ───────────────────────────────────────────────────────────────────────────────

    def _check_streams(self, infos: Mapping[str, StreamInfo]) -> None:
        for info in infos.values():
            check_direct(info)
            self._check_start(info)
        if self._poison is not None:
            of = self._survey.layout
            self._poison.check(of if not of.is_several else Layout.of_streams(infos), infos)

    def _offset(self, start: Mapping[str, Any]) -> ClaimedOffset | None:
        """The offset that `start` stands for; None at the beginning."""
        if is_initial(start):
            return None
        return self._fitting(ClaimedOffset.from_json(start))

    def _fitting(self, offset: ClaimedOffset) -> ClaimedOffset:
        """
        An offset of this query.

        Raises:
            OffsetError: It is one of other partitions, or of another consumer.
        """
        options, layout = self._options, self._layout
        if offset.consumer != options.consumer or offset.policy != self._sharing.policy:
            raise OffsetError(
                f"the checkpoint was written with consumer={offset.consumer} and priorityPolicy="
                f"{offset.policy}, this query has {options.consumer} and {self._sharing.policy};"
                " use those, or a new checkpointLocation"
            )
        check_several(
            offset.streams if offset.several else None,
            options.several,
            "go on without it by trigger(availableNow=True) with all of them, and then a new"
            " checkpointLocation: what is acknowledged does not come again",
        )
        if offset.several:
            self._streams.remember(offset.streams)
            return offset
        check_layout(
            offset.partitions, offset.streams, layout.streams, len(layout),
            "drain the old layout with the old options and trigger(availableNow=True), then start"
            " with a new checkpointLocation",
        )  # fmt: skip
        return offset


def _ends(streams: Mapping[str, StreamInfo]) -> dict[str, tuple[str, int]]:
    return {name: (info.created, info.last_seq) for name, info in streams.items()}


def _are_acked(layout: Layout, look: ServerView[str]) -> bool:
    """Whether the consumers have delivered all that their streams hold, and nothing is open."""

    def is_acked(name: str, stream: str) -> bool:
        info, of = look.consumers.get(name), look.streams.get(stream)
        is_at_end = info is not None and of is not None and info.stream_seq >= of.last_seq
        return is_at_end and info is not None and not info.num_ack_pending

    return all(is_acked(name, p.stream) for name, p in zip(layout.names, layout, strict=True))


def _count_dealt(counts: ReadCounts, dealt: Dealt) -> None:
    """Whose the messages are that the query was dealt."""
    mine = dealt.mine.items()
    counts.add_claims({name: [claim.deliveries for claim in taken] for name, taken in mine})
    for reason, left in (("open", dealt.theirs), ("committed", dealt.settled)):
        counts.add_left(reason, {name: left.get(name, ()) for name in dealt.mine})


def _count_batch(counts: ReadCounts, messages: Mapping[str, int], is_lost: bool) -> None:
    """A batch of so many messages, by partition, begins, or was given up."""
    counts.set_under_way({} if is_lost else messages)
    counts.add_lost(messages if is_lost else {})


def _count_consumers(
    counts: ReadCounts,
    infos: Mapping[str, ConsumerInfo],
    awaiting: Mapping[str, int] | None = None,
) -> None:
    """
    Counts at the shared consumers: messages that nobody was dealt, those not acknowledged, and, if
    that is known now, those that wait for redelivery.
    """
    counts.set_awaiting(awaiting or {})
    counts.set_lag({name: info.num_pending for name, info in infos.items()})
    counts.set_ack_pending({name: info.num_ack_pending for name, info in infos.items()})
    for name, info in infos.items():
        counts.set_paused(name, info.pause_s > 0)
