"""
One query among those that share consumers: its claims are made, kept alive, left and acknowledged.

Its state is that of one run, from the moment its consumers are there. The driver
(`claimdriver`) says when a batch begins, and makes tasks of what is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from ...client.connection import Client
from ...client.info import Mark
from ...fetch.survey import ServerView
from ...sanitize import get_logger
from ..options import MAX_CLAIMS, SourceOptions
from ..planner import messages_in
from .acks import IN_PROGRESS, Heartbeats, ack, keep
from .ahead import Ahead
from .claimant import Claimant
from .claims import Claim, ClaimedOffset, SharedConsumer
from .fence import Dealt
from .openbatches import OpenBatches
from .poison import Poison
from .streams import SharedStreams

logger = get_logger(__name__)

Stores: TypeAlias = Mapping[str, tuple[SharedConsumer, Mark | None]]
"""The streams of claims, as `SharedStreams.stores` has them."""

WAIT_S: Final = 0.2
"""Time for which an idle `latestOffset` waits for a message; Spark calls it again after 10 ms."""

_BEATS: Final = 3
"""Heartbeats in one ack wait."""

_KEEP_S: Final = 10.0
_KEEP_PART: Final = 3
"""
Claims made ahead are given back after so many seconds, or after this part, a third, of the ack wait
if that is sooner.
"""

_SHORT: Final = 2
"""A batch that took this part, a half, of that time is likely to be over before it."""


class GroupMember:
    """
    The claims of one run of a query.

    Args:
        claimant: joined.
        poison: makes dead letters; None without `maxDeliver`.
        batches: the record of open batches; None where they are not noted.
    """

    def __init__(
        self,
        client: Client,
        options: SourceOptions,
        claimant: Claimant,
        streams: SharedStreams,
        poison: Poison | None,
        batches: OpenBatches | None,
    ) -> None:
        self.batches = batches
        self.heartbeats = Heartbeats(
            options.connection,
            claimant.ack_wait_s / _BEATS,
            batches.alive if batches is not None else None,
        )
        keep_s = min(_KEEP_S, claimant.ack_wait_s / _KEEP_PART)
        self.ahead = Ahead(options.connection, claimant, self.heartbeats, keep_s)
        self.left: int | None = None
        """
        Number of claims that may still be made, if the run ends at the present end
        (`availableNow`); None before the consumers were asked, and for a run that does not end.
        """
        self.lasted_s = math.inf
        """Duration of the batch that was planned before, until Spark came for another."""
        self._client = client
        self._options = options
        self._claimant = claimant
        self._streams = streams
        self._poison = poison
        self._ahead_of: Stores = {}
        """The streams when claims ahead were begun."""
        self._settled = -1
        """The serial of the last batch that is acknowledged."""

    def __repr__(self) -> str:
        return f"<GroupMember of {self._options.consumer}: {self.heartbeats!r}, {self.ahead!r}>"

    def close(self) -> None:
        """Gives back what is in no batch; what is held returns after its ack wait."""
        self.ahead.close()
        self.heartbeats.close()

    # ── claiming ─────────────────────────────────────────────────────────────────────────────

    def claim(self, before: ClaimedOffset | None) -> dict[str, list[Claim]]:
        """
        Acknowledges the batch before, and claims for the next.

        Claims made ahead come first. Where they fill the batch, those of the batch after it are
        claimed meanwhile; otherwise what is missing is claimed now.
        """
        maximum = self._maximum()
        claimed, of = dict(self.ahead.take()), self._ahead_of
        self._spend(count(claimed))
        if claimed:
            self._streams.look_at_streams()  # before one that was made anew is claimed of
            claimed = self.drop_gone(claimed, of)
        is_full = 0 < maximum <= count(claimed)
        if is_full:
            self._go_ahead()
        if before is not None:
            self.settle(before)
            claimed = self.drop_gone(claimed, of)
        if is_full:
            return claimed
        waits = self.left is None and not count(claimed)
        more = self._claim_and_keep(max(0, maximum - count(claimed)), WAIT_S if waits else 0)
        self._spend(count(more))
        claimed = {p: claimed.get(p, []) + taken for p, taken in more.items()}
        if 0 < maximum <= count(claimed):
            self._go_ahead()
        return claimed

    def drop_gone(self, claimed: Mapping[str, list[Claim]], of: Stores) -> dict[str, list[Claim]]:
        """
        Drops claims whose streams are gone, or were taken back to an older copy, and their
        heartbeats; the other claims. From then on heartbeats keep to the shortest ack wait.

        Args:
            of: the streams when the claims were made.
        """
        there = self._streams.stores
        gone = {partition for partition, store in of.items() if there.get(partition) != store}
        for partition in gone & claimed.keys():
            consumer, _ = of[partition]
            self.heartbeats.release(consumer, [c.sequence for c in claimed[partition]])
        if gone:
            self.heartbeats.keep_only(consumer for consumer, _ in there.values())
        self.heartbeats.hurry(self._claimant.ack_wait_s / _BEATS)
        # Of a stream that was taken back the same consumer deals them out again.
        again = {
            partition: claimed[partition]
            for partition in gone & claimed.keys() & there.keys()
            if there[partition][0] == of[partition][0]
        }
        if self._poison is not None:
            self._poison.discount(again, dict.fromkeys(again, ()))
        self._spend(-count(again))
        return {p: taken for p, taken in claimed.items() if p not in gone}

    def is_held_up(self, look: ServerView[str]) -> bool:
        """Whether a run that ends at what is there waits for a consumer that is paused."""
        return bool(self.left) and any(
            info is not None and info.pause_s > 0 and info.num_pending + info.num_ack_pending > 0
            for info in look.consumers.values()
        )

    def _claim_and_keep(self, limit: int, wait_s: float) -> dict[str, list[Claim]]:
        """Claims, and keeps what is claimed alive; again as long as all of it is let go."""
        while True:
            claimed = self._claimant.claim(limit, wait_s)
            kept = keep(self._client, self._claimant, claimed, self.heartbeats)
            if self._poison is not None:
                self._poison.discount(claimed, kept)
            if count(kept) or not count(claimed):
                return kept

    def _go_ahead(self) -> None:
        """
        Claims for the batch after the one that is planned, where that is likely to be over in time.

        Not with `maxDeliver`: what is given back has been delivered once more, and did nothing.
        """
        limit = self._maximum()
        if limit and self._poison is None and self.lasted_s * _SHORT < self.ahead.keep_s:
            self._ahead_of = self._streams.stores
            self.ahead.start(limit)

    def _maximum(self) -> int:
        """The most messages that a batch may claim now."""
        maximum = self._options.max_records or MAX_CLAIMS
        if self._options.max_bytes is not None:
            maximum = min(maximum, messages_in(self._options.max_bytes, self._streams.infos))
        return maximum if self.left is None else min(maximum, self.left)

    def _spend(self, claims: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - claims)

    def awaiting_redelivery(self, look: ServerView[str]) -> dict[str, int]:
        """
        By partition, messages that wait for redelivery: those that somebody was dealt, and that are
        neither acknowledged nor held. Claims that others make ahead of their batches are among
        them. Nothing where open batches are not noted: nobody knows then what others hold.
        """
        batches = self.batches
        if batches is None:
            return {}
        held, unheld = self.heartbeats.held(), {}
        for partition, info in look.consumers.items():
            consumer = self._claimant.by_partition[partition]
            if info is not None:
                created = look.streams[consumer.stream].created
                open_ = info.num_ack_pending - len(held.get(consumer, ()))
                if open_ != batches.of_others(partition, created):
                    batches.look()
                unheld[partition] = max(0, open_ - batches.of_others(partition, created))
        return unheld

    # ── whose the messages are ───────────────────────────────────────────────────────────────

    def fence(
        self,
        before: ClaimedOffset | None,
        claimed: Mapping[str, list[Claim]],
        look: ServerView[str],
    ) -> Dealt:
        """
        Whose the claimed messages are. Those that are this query's are noted; those of others'
        batches are left, those of committed ones acknowledged once more.

        Args:
            look: at streams and consumers, behind the claim.
        """
        if self.batches is None:
            return Dealt(dict(claimed), {}, {})
        is_needed = count(claimed) or (before is not None and self.batches.settles(before))
        if is_needed:
            self.batches.read()
            of = self._streams.stores
            self._streams.check_since(self.batches.marks)
            claimed = self.drop_gone(claimed, of)
        self.batches.forget(self._streams.forgotten, self._streams.holding)
        mine = dict(claimed)
        if not is_needed:
            return Dealt(mine, {}, {})
        if before is not None:
            claims = {p: each for p, each in before.claims.items() if self._holds(before, p)}
            before = replace(before, claims=claims)
        dealt = self.batches.plan(before, next_serial(before), claimed, look)
        dealt = dealt._replace(mine=mine | dealt.mine)
        for partition, sequences in dealt.settled.items():
            ack(self._client, self._claimant.by_partition[partition], sequences)
        self._spend(-sum(map(len, dealt.theirs.values())))  # they are dealt out again
        self._let_go("are in another query's open batch; they are left to it", dealt.theirs)
        self._let_go("are in a committed batch; they were acknowledged again", dealt.settled)
        if self._poison is not None:
            self._poison.discount(claimed, dealt.mine)
        return dealt

    def _let_go(self, why: str, dealt: Mapping[str, Sequence[int]]) -> None:
        for partition, sequences in dealt.items():
            consumer = self._claimant.by_partition[partition]
            self.heartbeats.release(consumer, sequences)
            logger.info(
                "stream=%s consumer=%s: %d messages were dealt to this query and %s",
                consumer.stream, consumer.name, len(sequences), why,
            )  # fmt: skip

    def divert_poison(self, claimed: dict[str, list[Claim]]) -> dict[str, list[Claim]]:
        """Makes dead letters of claims that were delivered too often; the other claims."""
        if self._poison is None:
            return claimed
        kept = self._poison.divert(claimed, self._claimant.by_partition)
        for partition, taken in claimed.items():
            gone = {claim.sequence for claim in taken} - {c.sequence for c in kept[partition]}
            self.heartbeats.release(self._claimant.by_partition[partition], gone)
        return kept

    # ── batches ──────────────────────────────────────────────────────────────────────────────

    def hold(self, upto: ClaimedOffset) -> None:
        """Keeps the claims of a batch that is run again."""
        consumers = self._claimant.by_partition
        for partition in upto.claims:
            if self._holds(upto, partition):
                sequences = upto.sequences(partition)
                ack(self._client, consumers[partition], sequences, IN_PROGRESS)
                self.heartbeats.hold(consumers[partition], sequences)

    def settle(self, offset: ClaimedOffset) -> None:
        """
        Acknowledges a batch that is in the commit log.

        Raises:
            RequestTimeoutError: The server took no acks for `requestTimeout`. The claims would
                return to other readers, so the query must not go on as if all were well.
        """
        late_s = self.heartbeats.overdue_s
        if late_s > self._claimant.ack_wait_s and self.batches is None:
            logger.warning(
                "consumer=%s: for %.0f s no heartbeat reached the server, as when the driver or the"
                " server stood still. That is longer than ackWait (%.0f s), so other queries may"
                " have got messages of this batch as well. The query goes on",
                self._options.consumer, late_s, self._claimant.ack_wait_s,
            )  # fmt: skip
        if offset.serial == self._settled:
            return
        self._streams.look_at_streams()  # an ack in another stream of that name is of another claim
        self.heartbeats.keep_only(self._claimant.consumers)
        settles = self.batches is None or self.batches.settles(offset)
        for partition in offset.claims:
            consumer = self._claimant.by_partition[partition]
            sequences = offset.sequences(partition)
            if settles and self._holds(offset, partition):
                ack(self._client, consumer, sequences)
            if consumer.created == offset.streams.get(consumer.stream):
                self.heartbeats.release(consumer, sequences)
        self._settled = offset.serial

    def _holds(self, offset: ClaimedOffset, partition: str) -> bool:
        """Whether the claims of a batch are of messages that its stream still has there."""
        stream = self._claimant.by_partition[partition].stream
        return self._streams.has_claims_of(offset, stream)


def count(claimed: Mapping[str, Sequence[Claim]]) -> int:
    """Number of claims."""
    return sum(map(len, claimed.values()))


def next_serial(before: ClaimedOffset | None) -> int:
    """The serial of the batch that follows."""
    return before.serial + 1 if before is not None else 0
