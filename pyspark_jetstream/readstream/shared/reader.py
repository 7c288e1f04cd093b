"""
`spark.readStream` with `priorityPolicy=overflow` or `prioritized`: several
queries, on different clusters, take their parts of one consumer.

One micro-batch:

1. *Claim.* `latestOffset` pulls: sequences, no payloads. They are the end offset (`claims`). Where
   there is a backlog they are pulled while the batch before runs (`ahead`).
2. *Record.* Spark writes the offset into its log. From here on the batch has these rows.
3. *Read.* The tasks fetch the messages by direct get, as often as they are run.
4. *Acknowledge.* Spark plans the next batch only when this one is in the commit log, so the
   `latestOffset` that begins at this offset acknowledges what it names.

From 1 to 4 a thread keeps the claims alive (`acks`). A query that dies loses them to the
others once the ack wait is over.

Guarantee: each message is in one batch of one query, as long as a query that dies is back within
the ack wait. Limit: of one that comes back later, or never, others have the batch that was recorded
last; if it was committed already, or is run once more by a query that is back, it is read twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from ...client.connection import Client
from ...client.info import ConsumerInfo
from ...client.jetstream import JetStream
from ...errors import OffsetError, OptionError
from ...fetch.survey import Survey
from ...sanitize import get_logger
from ...tasks import ReadTask
from ..counts import ReadCounts
from ..driver import Driver, StreamReader
from ..offsets import check_layout, is_initial
from ..options import Sharing
from ..planner import messages_in
from .acks import IN_PROGRESS, Heartbeats, ack, keep
from .ahead import Ahead
from .claimant import Claimant, SharedConsumer
from .claimedread import ClaimedRead
from .claims import Claim, ClaimedOffset, gathered, pieces
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


class _Driver(Driver):
    """What the query has claimed."""

    def _enter(self) -> None:
        assert self._options.sharing is not None
        self._sharing: Sharing = self._options.sharing
        self._heartbeats: Heartbeats | None = None
        self._ahead: Ahead | None = None
        options, sharing = self._options, self._sharing
        self._survey = Survey(self._client, options)
        self._survey.require((2, 12), f"priorityPolicy={sharing.policy}")
        self._layout = self._survey.layout
        self._infos = self._survey.streams()
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
        self._consumers = {consumer.partition: consumer for consumer in self._claimant.consumers}
        self._poison: Poison | None = None
        if sharing.max_deliver is not None and sharing.dead_letter_subject is not None:
            self._poison = Poison(self._client, sharing.max_deliver, sharing.dead_letter_subject)
            self._poison.check(self._layout, self._infos)
        self._joined = False
        self._freezes = False
        self._left: int | None = None
        """Claims that this run may still make (availableNow)."""
        self._open: tuple[dict[str, Any], ClaimedOffset] | None = None
        """The start and the end of what was claimed last, until Spark shows that it has it."""
        self._settled = -1
        """The serial of the last batch that is acknowledged."""
        self._planned = -math.inf
        """When the last batch was planned."""
        self._lasted_s = math.inf
        """How long the batch took that was planned before, until Spark came for another."""
        self._ahead_of: dict[str, str] = {}
        """When the streams were made of which messages are claimed ahead."""

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        if self._heartbeats is not None:
            self._heartbeats.close()
        super().close()

    def reported(self) -> dict[str, Any]:
        """
        For each partition, when the last batch was planned: the end of its stream, `lag` (messages
        that nobody has claimed), `ackPending` (claims of all readers together), `claimed` (this
        query's in the batch) and how many of these are `redelivered`.
        """
        return super().reported()

    def freeze(self) -> None:
        """This run claims as many messages as are waiting now, at most."""
        self._freezes = True

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        offset = self._offset(start)
        self._report_on(str(self._options.consumer))
        self._join(offset)
        if self._freezes and self._left is None:
            self._left = sum(info.num_pending for info in self._claimant.infos().values())
        if self._open is not None:
            began, end = self._open
            if start == began:
                return end.to_json()  # asked once more: these claims are ours, and in no log yet
            self._open = None
            self._lasted_s = time.monotonic() - self._planned
        claimed = self._claimed(offset)
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                for index, taken in claimed.items():
                    counts.claimed(index, [claim.deliveries for claim in taken])
        if self._poison is not None:
            assert self._heartbeats is not None
            kept = self._poison.removed(claimed, self._consumers)
            for index, taken in claimed.items():
                gone = {claim.sequence for claim in taken} - {c.sequence for c in kept[index]}
                self._heartbeats.release(self._consumers[index], gone)
            claimed = kept
        claims = {index: gathered(taken) for index, taken in claimed.items() if taken}
        self._look()
        self._survey.check_coverage(self._infos)
        if not claims:
            self._note(None)
            return start
        end = ClaimedOffset(
            policy=self._sharing.policy,
            consumer=str(self._options.consumer),
            partitions=len(self._layout),
            streams={name: info.created for name, info in self._infos.items()},
            serial=offset.serial + 1 if offset is not None else 0,
            claims=claims,
        )
        self._open = (dict(start), end)
        self._note(end)
        self._planned = time.monotonic()
        return end.to_json()

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        if start == end:  # the first batch of a query that had nothing to claim
            return []
        upto = ClaimedOffset.from_json(end)
        self._fits(upto)
        self._report_on(str(self._options.consumer))
        replayed = self._open is None or self._open[1] != upto
        if replayed:  # a batch of the run before, from the write-ahead log
            self._look()
            self._join(upto)
            before = self._offset(start)
            if before is not None:
                self._settle(before)
            for index in upto.claims:
                ack(self._client, self._consumers[index], upto.sequences(index), IN_PROGRESS)
            self._hold({index: upto.sequences(index) for index in upto.claims})
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                counts.under_way({index: upto.count(index) for index in upto.claims})
            self._reporting.soon()
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
            )
            wanted = -(-(options.min_partitions or 0) * upto.count(index) // total)
            tasks += [
                ReadTask(options.connection, replace(whole, claims=part))
                for part in pieces(whole.claims, wanted, options.max_records_per_partition)
            ]
        return tasks

    # ── claims ───────────────────────────────────────────────────────────────────────────────

    def _join(self, offset: ClaimedOffset | None) -> None:
        """
        Once a run: every consumer is there, and of the kind that the options say.

        Args:
            offset: of the run before.
        """
        if self._joined:
            return
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
        self._claimant.join(self._starts())
        for consumer in self._claimant.consumers:
            # It acknowledges no message: an error here says that this user may not publish acks.
            ack(self._client, consumer, [_NO_SEQUENCE], IN_PROGRESS)
        connection, ack_wait_s = self._options.connection, self._claimant.ack_wait_s
        self._heartbeats = Heartbeats(connection, ack_wait_s / _BEATS)
        keep_s = min(_KEEP_S, ack_wait_s / _IN_TIME)
        self._ahead = Ahead(connection, self._claimant, self._heartbeats, keep_s)
        self._joined = True

    def _starts(self) -> dict[int, int | None]:
        """Where a consumer begins that is missing."""
        if self._from_start:
            return dict.fromkeys(range(len(self._layout)))
        positions = self._survey.positions(self._options.starting, self._infos, "startingOffsets")
        return {index: position + 1 for index, position in enumerate(positions)}

    def _hold(self, sequences: Mapping[int, Sequence[int]]) -> None:
        """Keeps claims, by partition."""
        assert self._heartbeats is not None
        for index, held in sequences.items():
            self._heartbeats.hold(self._consumers[index], held)

    def _claimed(self, offset: ClaimedOffset | None) -> dict[int, list[Claim]]:
        """
        Claims for a batch, while that of `offset` is acknowledged.

        Those made ahead come first. Where they fill the batch, the next are made while this one is
        acknowledged and runs; otherwise what is missing is claimed now.
        """
        assert self._heartbeats is not None and self._ahead is not None
        claimed, made = dict(self._ahead.take()), self._ahead_of
        if claimed:
            self._look()  # before anything is claimed of a stream that was made anew meanwhile
        maximum = self._limit()
        full = 0 < maximum <= _count(claimed) and made == self._made()
        if full:
            self._spend(claimed)
            self._go_ahead()
        if offset is not None:
            self._settle(offset)
        if claimed and made != self._made():  # of a stream that is no more, as are the next
            self._forget(claimed)
            self._forget(self._ahead.take())
            claimed, full = {}, False
        if full:
            return claimed
        waits = self._left is None and not _count(claimed)
        more = self._kept(max(0, maximum - _count(claimed)), _WAIT_S if waits else 0)
        claimed = {index: claimed.get(index, []) + taken for index, taken in more.items()}
        self._spend(claimed)
        if 0 < maximum <= _count(claimed):
            self._go_ahead()
        return claimed

    def _kept(self, limit: int, wait_s: float) -> dict[int, list[Claim]]:
        """Claims now; goes on as long as all that is claimed is let go again."""
        assert self._heartbeats is not None
        while True:
            claimed = self._claimant.claim(limit, wait_s)
            kept = keep(self._client, self._claimant, claimed, self._heartbeats)
            if self._poison is not None:
                self._poison.let_go(claimed, kept)
            if _count(kept) or not _count(claimed):
                return kept

    def _forget(self, claimed: Mapping[int, Sequence[Claim]]) -> None:
        """Lets go of claims."""
        assert self._heartbeats is not None
        for index, taken in claimed.items():
            sequences = [claim.sequence for claim in taken]
            self._heartbeats.release(self._consumers[index], sequences)

    def _limit(self) -> int:
        """The most messages that the next batch may have, in this run."""
        maximum = self._maximum()
        return maximum if self._left is None else min(maximum, self._left)

    def _spend(self, claimed: Mapping[int, Sequence[Claim]]) -> None:
        """Counts claims of what was waiting when this run began (availableNow)."""
        if self._left is not None:
            first = sum(claim.deliveries == 1 for taken in claimed.values() for claim in taken)
            self._left = max(0, self._left - first)

    def _go_ahead(self) -> None:
        """
        Claims for the batch after the one that is planned, where that is likely to be over in time.

        Not with `maxDeliver`: what is given back has been delivered once more, and did nothing.
        """
        assert self._ahead is not None
        limit = self._limit()
        if limit and self._poison is None and self._lasted_s * _SHORT < self._ahead.keep_s:
            self._ahead_of = self._made()
            self._ahead.begin(limit)

    def _made(self) -> dict[str, str]:
        """When the streams were made."""
        return {name: info.created for name, info in self._infos.items()}

    def _look(self) -> None:
        """
        The streams as they are now.

        Raises:
            DataLossError: One was made anew since the last look (`failOnDataLoss`).
        """
        before, self._infos = self._infos, self._survey.streams()
        for name, info in self._infos.items():
            if info.created != before[name].created:
                self._lost(
                    name,
                    0,
                    f"the stream was made anew at {info.created}, while the query ran; what was not"
                    f" read of the one of {before[name].created} is gone",
                )

    def _settle(self, offset: ClaimedOffset) -> None:
        """
        Acknowledges a batch that is in the commit log.

        Raises:
            RequestTimeoutError: The server took no acks for `requestTimeout`. The claims would
                return to other readers, so the query must not go on as if all were well.
        """
        assert self._heartbeats is not None
        late_s = self._heartbeats.overdue_s
        if late_s > self._claimant.ack_wait_s:
            logger.warning(
                "consumer=%s: no heartbeat arrived for %.0f s, longer than its ack wait of %.0f s;"
                " what was claimed may have been given to other readers as well",
                self._options.consumer, late_s, self._claimant.ack_wait_s,
            )  # fmt: skip
        if offset.serial == self._settled:
            return
        self._look()  # an ack in a stream of the same name could be of somebody else's claim
        for index in offset.claims:
            consumer, sequences = self._consumers[index], offset.sequences(index)
            created = self._infos[consumer.stream].created
            if created == offset.streams.get(consumer.stream):
                ack(self._client, consumer, sequences)
            self._heartbeats.release(consumer, sequences)
        self._settled = offset.serial

    def _maximum(self) -> int:
        """The most messages of a batch."""
        options = self._options
        maximum = options.max_records or _MAX_CLAIMS
        if options.max_bytes is not None:
            maximum = min(maximum, messages_in(options.max_bytes, self._infos))
        return maximum

    def _note(self, end: ClaimedOffset | None) -> None:
        infos = self._claimant.infos()
        self.report = {}
        for partition in self._layout:
            index, info = partition.index, infos.get(partition.index)
            if info is not None and info.created != self._claimant.created[index]:
                self._claimant.created[index] = info.created
                self._lost(
                    partition.stream,
                    index,
                    f"the consumer '{info.name}' was made anew at {info.created}, while the query"
                    " ran: what was acknowledged is forgotten, and comes again",
                )
            claims = end.claims.get(index, {}) if end is not None else {}
            claimed = end.count(index) if end is not None else 0
            first = sum(b - a + 1 for a, b in claims.get(1, ()))
            self.report[str(index)] = {
                "stream": partition.stream,
                "latest": self._infos[partition.stream].last_seq,
                "lag": info.num_pending if info is not None else None,
                "ackPending": info.num_ack_pending if info is not None else None,
                "claimed": claimed,
                "redelivered": claimed - first,
            }
            if self._poison is not None:
                self.report[str(index)]["deadLetters"] = self._poison.stored.total()
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                _stand(counts, infos)

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
