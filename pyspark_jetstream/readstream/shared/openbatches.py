"""
The record of open batches as one query uses it: what the fence decides, done by compare-and-set.

It is a key of the Key-Value bucket `SPARK_CLAIMS`, `<stream>.<consumer>` (`=` for `{partition}`),
or `<consumer>` where queries read several streams. Beside it each query says that it is there,
`<key>.alive.<query>`, from the thread that keeps its claims alive: one that has not said so for
`abandonAfter`, by the server's clock, loses its open batch to whoever is dealt a message of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from ...client.connection import Client
from ...client.info import Mark, parse_time
from ...client.jetstream import JetStream
from ...client.keyvalue import ROOM, Bucket
from ...errors import JetStreamError, OffsetError, OptionError, PermissionsError, RecordError
from ...fetch.survey import ServerView
from ...sanitize import get_logger
from .claims import Claim, ClaimedOffset, Ranges, ranges_of
from .fence import AckFloor, Dealt, Fence, HeldClaims

logger = get_logger(__name__)

BUCKET: Final = "SPARK_CLAIMS"

_TRIES: Final = 50
"""Tries of one change of the record, while others are faster."""

_ALIVE_EVERY: Final = 6
"""A query renews its notice so often in the time after which it counts as gone."""

_LONGEST_ALIVE_S: Final = 60.0
"""The longest between two renewals."""

_ALIVE_IN_ACK_WAIT: Final = 3
"""Renewals in an ack wait: another query may have a shorter `abandonAfter`, of two ack waits."""

_KEEP_ACK_WAITS: Final = 2
_KEEP_S: Final = 60.0
"""
Ack waits, and seconds more, for which what is settled is kept: a server that has forgotten an ack
deals the message out again within one, once it is back.
"""

_LOOK_S: Final = 1.0
"""Between two looks at the record that nothing but the progress depends on."""


def _bucket(client: Client) -> Bucket:
    return Bucket(JetStream(client), BUCKET, "open batches of queries that share a consumer")


class Alive:
    """The notice that a query is there, renewed now and then."""

    def __init__(self, key: str, query: str, abandon_s: float, ack_wait_s: float) -> None:
        self.key = f"{key}.alive.{query}"
        self.every_s = min(
            abandon_s / _ALIVE_EVERY, _LONGEST_ALIVE_S, ack_wait_s / _ALIVE_IN_ACK_WAIT
        )
        """Seconds between two renewals."""
        self._next = -float("inf")
        self._count = 0

    def beat(self, client: Client) -> None:
        """
        Renews the notice if it is time to.

        Raises:
            JetStreamError: It could not be stored.
        """
        if time.monotonic() < self._next:
            return
        bucket = _bucket(client)
        (before,) = bucket.last(self.key)
        self._count += 1
        data = f"{self._count} {time.time_ns()}".encode()  # no two are the same bytes
        bucket.replace(self.key, data, before.sequence)
        self._next = time.monotonic() + self.every_s


class OpenBatches:
    """One query's part in the record."""

    def __init__(
        self,
        client: Client,
        key: str,
        query: str,
        streams: Mapping[str, str],
        ack_wait_s: float,
        abandon_s: float,
    ) -> None:
        """
        Args:
            key: the record's.
            streams: by partition the stream that it is of, where it is not called by its stream.
            ack_wait_s: time after which the server deals out again what a query was dealt.
            abandon_s: time after which others take what a query has noted (`abandonAfter`).
        """
        self.query = query
        self.alive = Alive(key, query, abandon_s, ack_wait_s)
        self._bucket = _bucket(client)
        self._key = key
        self._streams = streams
        self._keep_s = _KEEP_ACK_WAITS * ack_wait_s + _KEEP_S
        self._abandon_s = abandon_s
        self._fence = Fence()
        self._forgotten: dict[str, object] = {}
        """Streams of which it was forgotten what is settled, and why."""
        self._looked_at = -math.inf
        self._sequence = 0
        """Sequence of the record in the bucket, as far as known."""

    def __repr__(self) -> str:
        return f"<OpenBatches of {self.query}, {len(self._fence.open)} queries>"

    @property
    def marks(self) -> Mapping[str, Mark]:
        """The streams when one of the queries planned a batch of each last, as far as was read."""
        return self._fence.marks

    def enter(self, must: bool) -> bool:
        """
        Reads the record, and says that this query is there; whether the record can be had.

        Args:
            must: an error where it cannot be used, and not a warning.

        Raises:
            OptionError: It must, and the bucket cannot keep records.
            RecordError, OffsetError: The record is none.
        """
        try:
            unfit = self._bucket.ensure()
            if unfit is not None:
                raise OptionError("claimsLedger", unfit)
            self.alive.beat(self._bucket.js.client)
            self.read()
        except JetStreamError as error:
            unusable = isinstance(error, PermissionsError | OptionError) or not error.retryable
            if must or not unusable or isinstance(error, RecordError | OffsetError):
                raise
            logger.warning(
                "consumer=%s: queries that share it do not see each other's open batches. If one of"
                " them is away for longer than ackWait, its last batch is read twice, because"
                " others read it as well. To end this, mend the fault below, and start the query"
                " again: %s", self.alive.key, error,
            )  # fmt: skip
            return False
        return True

    def settles(self, offset: ClaimedOffset) -> bool:
        """Whether a batch that Spark has committed is to be acknowledged."""
        return self._fence.settles(self.query, offset.serial)

    def resume(self, offset: ClaimedOffset) -> bool:
        """
        Takes up a batch that is to run again; whether it was given up while the query was away. It
        is made empty in the record then, and runs without rows.

        Where somebody else took the batch out of the record, it is noted again, with a warning:
        others may have its messages, too.
        """
        self.read()
        held: dict[str, HeldClaims] = {}
        if offset.claims and not self._fence.has(self.query, offset.serial):
            logger.warning(
                "consumer=%s: batch %d of this query is not in bucket=%s: the record was deleted,"
                " or the batch was planned with claimsLedger=false. If messages of it were dealt"
                " to other queries since, they are read twice", self._key, offset.serial, BUCKET,
            )  # fmt: skip
            held = {p: self._held(offset, p) for p in offset.claims}

        def resumed(fence: Fence) -> Fence:
            if held and not fence.has(self.query, offset.serial):
                return fence.restored(self.query, offset.serial, held)
            if fence.is_lost(self.query, offset.serial):
                return fence.emptied(self.query, offset.serial)
            return fence  # stored again: whoever has just found this query away looks once more

        self._change(resumed)
        return self._fence.is_lost(self.query, offset.serial)

    def drop_unrecorded(self, serial: int) -> None:
        """
        Gives up what the run before had planned behind the batch of this serial, the last one in
        Spark's log.
        """
        if self._fence.dropped(self.query, serial) != self._fence:
            self._change(lambda fence: fence.dropped(self.query, serial))

    def plan(
        self,
        before: ClaimedOffset | None,
        serial: int,
        claimed: Mapping[str, Sequence[Claim]],
        look: ServerView[str],
    ) -> Dealt:
        """
        Notes the next batch before it is recorded, and that the one before is acknowledged.

        Args:
            before: the batch before, which is.
            claimed: what the query was dealt, by partition.
            look: at streams and consumers, behind that.

        Returns:
            Whose the messages are; those that are `mine` are noted.
        """
        infos = {p: info for p, info in look.consumers.items() if info is not None}
        streams = {p: look.streams[self._stream(p)].created for p in infos}
        marks = {(name := self._stream(p)): look.streams[name].mark for p in infos}
        ack_floors = {
            p: AckFloor(streams[p], info.created, info.ack_floor, info.pause_s > 0)
            for p, info in infos.items()
        }
        now = max((info.now.timestamp() for info in infos.values() if info.now), default=0.0)
        wanted = {p: _sequences(taken) for p, taken in claimed.items()}
        dealt = Dealt({}, {}, {})

        def planned(fence: Fence) -> Fence:
            nonlocal dealt
            fence = fence.after(now, ack_floors, self._keep_s).marked(marks)
            if before is not None:
                held = {p: self._held(before, p) for p in before.claims}
                fence = fence.committed(self.query, before.serial, held)
            owners = fence.owners(self.query, wanted)
            fence = fence.voided(self._away(owners, now)) if owners else fence
            dealt = fence.dealt_to(self.query, claimed, wanted)
            if any(dealt.mine.values()):
                mine = {
                    p: wanted[p] if len(taken) == len(claimed[p]) else _sequences(taken)
                    for p, taken in dealt.mine.items()
                }
                fence = fence.opened(self.query, serial, mine)
            return fence

        self._change(planned)
        return dealt

    def forget(
        self,
        streams: Mapping[str, object],
        holding: Callable[[Mapping[str, Mark]], Collection[str]],
    ) -> None:
        """
        Forgets what is settled of streams that were deleted, or taken back to older copies: once of
        each for the same reason, and not where another query has done so.

        Args:
            holding: which of these marks hold: what was settled up to them is settled.
        """
        new = {name for name, why in streams.items() if self._forgotten.get(name) != why}
        known: dict[tuple[str, Mark], bool] = {}

        def forgotten(fence: Fence) -> Fence:
            marks = {name: mark for name, mark in fence.marks.items() if name in new}
            asked = {name: mark for name, mark in marks.items() if (name, mark) not in known}
            if asked:  # once: it may take seconds, in which others change the record
                held = holding(asked)
                known.update(((name, mark), name in held) for name, mark in asked.items())
            gone = {name for name in new if name not in marks or not known[name, marks[name]]}
            return fence.forgotten({p for p in fence.settled if self._stream(p) in gone}, gone)

        if new and forgotten(self._fence) != self._fence:
            self._change(forgotten)
        self._forgotten = dict(streams)

    def forget_consumers(self, made: Mapping[str, tuple[str, str]]) -> list[str]:
        """
        Forgets what is settled of consumers that were made anew on their streams.

        Args:
            made: by partition the creation times of its stream and its consumer.

        Returns:
            Their partitions.
        """
        known = {p: each for p, each in self._fence.settled.items() if p in made}
        of = {p: (each.stream, each.consumer) for p, each in known.items()}
        anew = [p for p in of if made[p][0] == of[p][0] and made[p] != of[p]]
        if anew:
            self._change(lambda fence: fence.forgotten(anew, ()))
        return anew

    def of_others(self, partition: str, stream: str) -> int:
        """Number of a partition's messages in batches of others, when the record was read last."""
        return self._fence.count(partition, stream, but=self.query)

    def look(self) -> None:
        """Reads what others have noted, if that was not just done; this is called all the time."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self.read()

    def _stream(self, partition: str) -> str:
        return self._streams.get(partition, partition)

    def _held(self, batch: ClaimedOffset, partition: str) -> HeldClaims:
        created = batch.streams.get(self._stream(partition), "")
        return HeldClaims(created, batch.ranges(partition))

    def _away(self, queries: Collection[str], now: float) -> list[str]:
        """Queries that have not said for `abandonAfter` that they are there."""
        names = sorted(queries)
        keys = [self.alive.key.rpartition(".")[0] + f".{name}" for name in names]
        away = []
        for name, message in zip(names, self._bucket.last(*keys), strict=True):
            silent_s = now - parse_time(message.time).timestamp() if message.data else None
            if silent_s is None or silent_s > self._abandon_s:
                away.append(name)
                logger.warning(
                    "consumer=%s: query %s is away for longer than abandonAfter (%s of %gs)."
                    " The other queries get its recorded batch. If the query comes back, it runs"
                    " this batch without rows", self._key, name,
                    "its key was deleted" if silent_s is None else f"{silent_s:.0f}s",
                    self._abandon_s,
                )  # fmt: skip
        return away

    def read(self) -> None:
        """Reads the record; one that somebody deleted is what this query knows of it."""
        (message,) = self._bucket.last(self._key)
        self._looked_at = time.monotonic()
        before, self._sequence = self._sequence, message.sequence
        if message.data and message.sequence > before:
            self._fence = Fence.from_bytes(message.data)
        elif message.sequence != before and self._fence.open:
            logger.warning(
                "consumer=%s: the record of open batches was %s (bucket=%s). This query writes it"
                " again with its own batches. If messages that another query has planned are dealt"
                " to this one, they are read twice", self._key,
                "taken back to an older one" if message.data else "deleted", BUCKET,
            )  # fmt: skip

    def _change(self, change: Callable[[Fence], Fence]) -> None:
        """
        Changes the record by compare-and-set, as often as others are faster.

        Raises:
            JetStreamError: They always are, or the record would be too large.
        """
        largest = self._bucket.js.client.connection.max_payload - ROOM
        for _ in range(_TRIES):
            fence = change(self._fence)
            data = fence.to_bytes()
            if len(data) > largest:
                logger.warning(
                    "bucket=%s key=%s: the record of open batches makes %d bytes, and the server"
                    " takes %d. The messages of batches that were committed lately are left out."
                    " If the server has forgotten acks of them, they are read twice",
                    BUCKET, self._key, len(data), largest,
                )  # fmt: skip
                fence = fence.shortened()
                data = fence.to_bytes()
            if len(data) > largest:
                raise JetStreamError(
                    f"bucket {BUCKET}, key '{self._key}': the open batches of its queries make"
                    f" {len(data)} bytes, and the server takes {largest}; give these queries a"
                    " smaller maxRecordsPerTrigger"
                )
            sequence = self._bucket.replace(self._key, data, self._sequence)
            if sequence is not None:
                self._fence, self._sequence = fence, sequence
                return
            self.read()
        raise JetStreamError(
            f"bucket {BUCKET}, key '{self._key}': others changed it {_TRIES} times in a row; give"
            " these queries larger batches, or set claimsLedger=false"
        )


def _sequences(claims: Iterable[Claim]) -> Ranges:
    return ranges_of(claim.sequence for claim in claims)
