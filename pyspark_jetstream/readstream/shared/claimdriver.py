"""
`spark.readStream` with `priorityPolicy=overflow` or `prioritized`: several queries, on different
clusters, take their parts of one consumer.

One micro-batch:

1. *Claim.* `latestOffset` pulls: sequences, no payloads. They are the end offset (`claims`).
2. *Record.* Spark writes the offset into its log. From here on the batch has these rows.
3. *Read.* The tasks fetch the messages by direct get, as often as they are run.
4. *Acknowledge.* Spark plans the next batch only when this one is in the commit log, so the
   `latestOffset` that begins at this offset acknowledges what it names.

From 1 to 4 a thread keeps the claims in progress (`acks`). A query that dies loses them to the
others once the ack wait is over.

Guarantee: each message is in a committed batch of one query at least. Limits: a message is in two
where a query is away for longer than `ackWait` with a batch that it has recorded, and where the
server forgets what was delivered or acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...client.info import ConsumerInfo, StreamInfo
from ...errors import OffsetError, OptionError
from ...fetch.survey import check_direct
from ...tasks.ranges import Reads
from ...tasks.rows import ReadTask
from ...values import Starting
from ..driver import Driver, PausedConsumers
from ..offsets import is_initial
from ..options import MAX_CLAIMS, Sharing
from ..planner import messages_in
from .acks import IN_PROGRESS, Heartbeats, ack
from .claimant import Claimant
from .claimedread import ClaimedRead
from .claims import Claim, ClaimedOffset, SharedConsumer, gathered, length, pieces
from .poison import Poison

_WAIT_S: Final = 0.2
"""Time for which an idle `latestOffset` waits for a message; Spark calls it again after 10 ms."""

_BEATS: Final = 3
"""Heartbeats in one ack wait."""

_NO_SEQUENCE: Final = (1 << 63) - 1
"""A sequence that no message has."""


class ClaimDriver(Driver):
    """The query's claims, and its plans by them."""

    @property
    def _sharing(self) -> Sharing:
        assert self._options.sharing is not None
        return self._options.sharing

    def _enter(self) -> None:
        options, sharing = self._options, self._sharing
        self._infos: Mapping[str, StreamInfo] = self._survey.streams()
        self._poison: Poison | None = None
        if sharing.max_deliver is not None and sharing.dead_letter_subject is not None:
            self._poison = Poison(self._client, sharing.max_deliver, sharing.dead_letter_subject)
            self._poison.check(self._layout, self._infos)
        for info in self._infos.values():
            check_direct(info)
            self._check_start(info)
        self._survey.check_coverage(self._infos)
        consumers = [
            SharedConsumer(p.index, p.stream, f"{options.consumer}-{p.index}", p.filter)
            for p in self._layout
        ]
        self.claimant = Claimant(self._client, consumers, sharing, options.priority_group)
        self.heartbeats: Heartbeats | None = None
        """None before the consumers are there."""
        self._seen: dict[int, ConsumerInfo] = {}
        """The consumers as last seen, by partition."""
        self._paused = PausedConsumers(options.connection.command)
        self._planned: tuple[dict[str, Any], ClaimedOffset] | None = None
        """The start of the last batch and its claims, until Spark shows that it is recorded."""
        self._settled = -1
        """The serial of the last batch that is acknowledged."""
        self._left: float | None = None
        """
        Claims that a run which ends at what waits (`availableNow`) may still make, unbounded before
        the consumers were asked; None of one that does not end.
        """

    def close(self) -> None:
        if self.heartbeats is not None:
            self.heartbeats.close()
        super().close()

    def freeze(self) -> None:
        """
        Ends this run at the messages that wait, for a first or for another delivery; the next
        `latest` counts them.
        """
        self._left = math.inf

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
        self._name_log(str(self._options.consumer))
        self._join(before)
        if self._planned is not None and start == self._planned[0]:
            return self._planned[1].to_json()  # asked once more: these are ours, and in no log yet
        self._planned = None
        if before is not None and before.serial != self._settled:
            self._look()  # an ack in another stream of that name would be of another claim
            self._settle(before)
        claims = self._claim()
        if not claims:
            return start
        end = ClaimedOffset(
            policy=self._sharing.policy,
            consumer=str(self._options.consumer),
            partitions=len(self._layout),
            streams={name: info.created for name, info in self._infos.items()},
            serial=before.serial + 1 if before is not None else 0,
            claims={str(index): gathered(taken) for index, taken in claims.items()},
        )
        self._planned = dict(start), end
        self._note(end, self._seen)
        return end.to_json()

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        upto = self._fitting(ClaimedOffset.from_json(end))
        if self._planned is None or self._planned[1] != upto:  # of the run before
            self._join(upto)
            before = self._offset(start)
            if before is not None:
                self._settle(before)
            for consumer in self._held_by(upto):
                sequences = upto.sequences(consumer.partition)
                ack(self._client, consumer, sequences, IN_PROGRESS)
                self._beats.hold(consumer, sequences)
        return self._tasks(upto)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: what Spark tells here, `latest` knew a batch earlier."""

    def _tasks(self, upto: ClaimedOffset) -> list[ReadTask]:
        """The tasks of a batch, which depend on its offset alone."""
        options = self._options
        total = max(1, sum(map(upto.count, upto.claims)))
        tasks = []
        for name in sorted(upto.claims, key=int):
            consumer = self.claimant.consumers[int(name)]
            info = self._infos[consumer.stream]
            whole = ClaimedRead(
                partition=consumer.number,
                stream=consumer.stream,
                filter=consumer.filter,
                start=0,
                end=0,
                expected=0,
                claims=upto.claims[name],
                layout=self._layout,
                include_headers=options.needs_headers,
                fail_on_data_loss=options.fail_on_data_loss,
                on_invalid_subject=options.on_invalid_subject,
            )
            is_there = info.created == upto.streams.get(consumer.stream)
            wanted = -(-(options.cut.min_partitions or 0) * upto.count(name) // total)
            tasks += [
                # Of a stream that is no more nothing is read (failOnDataLoss=false), and the others
                # keep their tasks.
                ReadTask(options.connection, Reads((whole.of(part),) if is_there else ()))
                for part in pieces(whole.claims, wanted, options.cut.max_records_per_partition)
            ]
        return tasks

    # ── claims ───────────────────────────────────────────────────────────────────────────────

    def _claim(self) -> dict[int, list[Claim]]:
        """Claims for the next batch, by partition, without those that became dead letters."""
        if self._left == math.inf:
            waiting = self.claimant.infos().values()
            # What others hold is among them; of that nothing is dealt out.
            self._left = sum(info.num_pending + info.num_ack_pending for info in waiting)
        while True:
            claimed = self.claimant.claim(self._maximum(), _WAIT_S if self._left is None else 0.0)
            count = sum(map(len, claimed.values()))
            self._hold(claimed)
            if not self._look():
                self._beats.forget()
                return {}
            if self._left is not None:
                self._left = max(0, self._left - count)
            if self._poison is not None:
                claimed = self._poison.divert(claimed, self.claimant.consumers)
                self._beats.forget()
                self._hold(claimed)
            mine = {index: taken for index, taken in claimed.items() if taken}
            if mine or not count:
                return mine

    def _hold(self, claimed: Mapping[int, list[Claim]]) -> None:
        """Keeps these claims, which are all that there are, in progress."""
        for consumer in self.claimant.consumers:
            self._beats.hold(consumer, [claim.sequence for claim in claimed[consumer.number]])

    def _maximum(self) -> int:
        """The most messages that a batch may claim now."""
        maximum = self._options.max_records or MAX_CLAIMS
        if self._options.max_bytes is not None:
            maximum = min(maximum, messages_in(self._options.max_bytes, self._infos))
        return maximum if self._left is None else int(min(maximum, self._left))

    def _settle(self, offset: ClaimedOffset) -> None:
        """
        Acknowledges a batch that is in the commit log.

        Raises:
            RequestTimeoutError: The server took no acks for `requestTimeout`. The claims would
                return to other readers, so the query must not go on as if all were well.
        """
        if offset.serial == self._settled:
            return
        for consumer in self._held_by(offset):
            sequences = offset.sequences(consumer.partition)
            ack(self._client, consumer, sequences)
            self._beats.release(consumer, sequences)
        self._settled = offset.serial

    def _held_by(self, offset: ClaimedOffset) -> Iterable[SharedConsumer]:
        """The consumers of a batch's claims whose streams are still those of the batch."""
        for consumer in self.claimant.consumers:
            created = self._infos[consumer.stream].created
            is_same = offset.streams.get(consumer.stream) == created
            if is_same and consumer.partition in offset.claims:
                yield consumer

    # ── the consumers ────────────────────────────────────────────────────────────────────────

    @property
    def _beats(self) -> Heartbeats:
        assert self.heartbeats is not None, "joined"
        return self.heartbeats

    def _join(self, offset: ClaimedOffset | None) -> None:
        """
        Once a run: every consumer is there, and of the kind that the options say.

        Args:
            offset: of the run before.

        Raises:
            DataLossError: A stream or a consumer is not the one of the run before
                (`failOnDataLoss`).
        """
        if self.heartbeats is not None:
            return
        if offset is not None:
            self._check_same({name: offset.streams.get(name, "") for name in self._infos})
            for consumer in self.claimant.missing():
                self._lost_consumer(consumer, "is gone")
        self._make()
        for consumer in self.claimant.consumers:
            # It acknowledges no message: an error here says that this user may not publish acks.
            ack(self._client, consumer, [_NO_SEQUENCE], IN_PROGRESS)
        self.heartbeats = Heartbeats(self._options.connection, self.claimant.ack_wait_s / _BEATS)

    def _make(self) -> None:
        """Joins the consumers; one that is missing begins where the options say."""
        start = self._options.starting
        at = self._survey.positions(start, self._infos, "startingOffsets")
        self.claimant.join([None if start == Starting() else begin + 1 for begin in at])

    def _check_same(self, created: Mapping[str, str]) -> None:
        """
        Args:
            created: creation times of the streams, by name, as they were.

        Raises:
            DataLossError: One was made anew since (`failOnDataLoss`).
        """
        for name, made in created.items():
            now = self._infos[name].created
            if now != made:
                self._lost(
                    name,
                    0,
                    f"the stream was made anew at {now}; what was not read of the one of {made} is"
                    " gone",
                )

    def _lost_consumer(self, consumer: SharedConsumer, what: str) -> None:
        self._lost(
            consumer.stream,
            consumer.number,
            f"the consumer '{consumer.name}' {what}, and with it what was acknowledged: a new one"
            " delivers everything from startingOffsets on again",
        )

    def _look(self) -> bool:
        """
        Looks at streams and consumers, behind a claim; whether they are still those that were
        claimed of.

        Raises:
            DataLossError: One is not what it was (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what a consumer delivers.
        """
        consumers, names = self.claimant.consumers, list(self._layout.streams)
        infos, seen = self._survey.js.look(names, [(c.stream, c.name) for c in consumers])
        before = {name: info.created for name, info in self._infos.items()}
        self._infos = {info.name: info for info in infos}
        self._check_same(before)
        anew = any(self._infos[name].created != created for name, created in before.items())
        joined = self.claimant.joined
        for consumer, info in zip(consumers, seen, strict=True):
            if info is None or info.created != joined[consumer.number].created:
                anew = True
                self._lost_consumer(consumer, "is gone" if info is None else "was made anew")
            else:
                self.claimant.check(consumer, info)
        if anew:
            self._make()
        self._seen = {
            consumer.number: info
            for consumer, info in zip(consumers, seen, strict=True)
            if info is not None
        }
        self._note(None, self._seen)
        return not anew

    def _note(self, end: ClaimedOffset | None, seen: Mapping[int, ConsumerInfo]) -> None:
        """
        Notes for progress what the batch was planned by. For each partition: the end of its stream,
        `lag` (messages that nobody was dealt), `ackPending` (claims of all readers together, and
        what waits for redelivery), `claimed` (this query's in the batch), how many of these are
        `redelivered`, and until when it is paused.
        """
        self.report = {}
        for consumer in self.claimant.consumers:
            info = seen.get(consumer.number)
            claims = end.claims.get(consumer.partition, {}) if end is not None else {}
            claimed = sum(map(length, claims.values()))
            self.report[consumer.partition] = report = {
                "stream": consumer.stream,
                "latest": self._infos[consumer.stream].last_seq,
                "lag": info.num_pending if info is not None else None,
                "ackPending": info.num_ack_pending if info is not None else None,
                "claimed": claimed,
                "redelivered": claimed - length(claims.get(1, ())),
            }
            number = consumer.number
            self._paused.note(number, consumer.stream, consumer.name, info)
            if number in self._paused.until:
                report["pausedUntil"] = self._paused.until[number]
            if self._poison is not None:
                report["deadLetters"] = self._poison.stored

    # ── offsets ──────────────────────────────────────────────────────────────────────────────

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
        then, now = sorted(offset.streams), sorted(layout.streams)
        if (offset.partitions, then) != (len(layout), now):
            raise OffsetError(
                f"the checkpoint was written for {offset.partitions} partitions of stream"
                f" {', '.join(then)}; this query has {len(layout)} of {', '.join(now)}. Drain the"
                " old layout with the old options and trigger(availableNow=True), then start with a"
                " new checkpointLocation"
            )
        return offset
