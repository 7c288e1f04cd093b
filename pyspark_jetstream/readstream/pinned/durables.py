"""
The durable consumers of a query, from the driver: made, put where the checkpoint is, settled.

What was committed is settled late or not at all (Spark commits a batch only when it builds the
next one), so nothing here carries a guarantee except that a restart settles what is left over.
Per retention, each O(1) a partition:

* `limits`: nothing to settle. A consumer is moved along only when a batch was read without it, so
  that the lag the server shows stays true; amid a backlog far away, at the next look at them.
* `interest`: a reset beyond the batch; what a reset skips counts as acknowledged.
* `workqueue`: a reset skips without removing, so the committed range is purged by its filter.
  Exactly that range: such a stream is always read from its beginning.

Others may edit, pause or delete them: `fetch.assumptions` says what that means.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...client.info import ConsumerInfo, StreamInfo
from ...client.jetstream import JetStream
from ...client.wire import new_inbox
from ...errors import ApiError, JetStreamError, OptionError
from ...fetch.assumptions import (
    Assumption,
    Change,
    Made,
    changed_fields,
    consumer_changes,
    in_words,
)
from ...fetch.consumer import ConsumerRead
from ...fetch.durable import consumer_config, edited, refused
from ...fetch.layout import Layout, SubjectPartition
from ...fetch.owner import Owner
from ...fetch.pace import seldom_s
from ...fetch.survey import ServerView
from ...sanitize import get_logger
from ..arrivals import Arrivals, expires_s, pull_body
from ..driver import PausedConsumers
from ..offsets import Offset
from ..options import SourceOptions
from .neighbours import Neighbours

logger = get_logger(__name__)

_LOOK_EVERY_S: Final = 1.0
"""Interval of looks at some consumers, whatever is heard of them; far away it is longer."""

_A_TURN: Final = 8
"""Partitions that are looked at in one turn."""


@dataclass(slots=True)
class Rotation:
    """Looks in turns at partitions, or others that are many, whatever is heard of them."""

    first: int = 0
    """The partition with which the next turn begins."""
    planned: float = 0.0
    """Time of the last turn."""
    before_tasks: float = 0.0
    """Time of the last look at those that a batch goes around, after it was planned."""

    def take(self, partitions: int, every_s: float) -> set[int]:
        """The next turn, if it is time."""
        now = time.monotonic()
        if now - self.planned < every_s:
            return set()
        self.planned, first = now, self.first
        self.first = (first + _A_TURN) % partitions
        return {(first + i) % partitions for i in range(_A_TURN)}

    def is_time_before_tasks(self, every_s: float) -> bool:
        """Whether a batch that was planned waits for another look; if so, notes that it is now."""
        now = time.monotonic()
        is_time = now - self.before_tasks >= every_s
        if is_time:
            self.before_tasks = now
        return is_time


class Durables:
    """The consumers of all partitions of one query."""

    def __init__(self, js: JetStream, options: SourceOptions, layout: Layout) -> None:
        self._js = js
        self._options = options
        self._layout = layout
        self._prepared = False
        self._prefix = ""
        """Beginning of the consumers' names."""
        self._host = socket.gethostname()
        self._inbox = new_inbox(options.connection.inbox_prefix)
        self.arrivals = Arrivals(lambda: new_inbox(options.connection.inbox_prefix))
        """The pulls that tell when a message comes."""
        self._neighbours = Neighbours(options, self.arrivals)
        self._behind: set[int] = set()
        """
        Partitions of `limits` streams whose consumers are to be moved along: they were read without
        them.
        """
        self.made: dict[int, Made] = {}
        """By partition: consumers for which alone a stream keeps messages (not `limits`)."""
        self._paused = PausedConsumers[int](options.connection.command)
        self._rotation = Rotation()

    def close(self) -> None:
        """Ends what listens for pins."""
        self._neighbours.close()

    def report(self, partition: int) -> dict[str, Any]:
        """
        A partition's consumer for the progress: its pin, and until when it is paused; empty before
        there is one.
        """
        paused = self._paused.until.get(partition)
        return self._neighbours.report(partition) | ({"pausedUntil": paused} if paused else {})

    def read_of(
        self,
        partition: SubjectPartition,
        offset: Offset,
        info: StreamInfo,
        end: int = 0,
        expected: int | None = None,
    ) -> ConsumerRead:
        """A task's read of `partition`, from `offset` on, through its consumer."""
        options = self._options
        return ConsumerRead(
            partition=partition.index,
            stream=partition.stream,
            filter=partition.filter,
            consumer=f"{offset.consumer}-{partition.index}",
            group=options.priority_group,
            priority_timeout_s=options.priority_timeout_s,
            retention=info.retention,
            start=offset.sequences[partition.index],
            end=end,
            expected=expected,
            include_headers=options.needs_headers,
            fail_on_data_loss=options.fail_on_data_loss,
            mark=info.mark,
            owner=self.owner(offset.query),
            # A purge of what is settled moves a consumer on, which is then put back in any case.
            pin=self._neighbours.pin(partition.index) if info.retention != "workqueue" else "",
            on_invalid_subject=options.on_invalid_subject,
        )

    def owner(self, query: str) -> Owner:
        """This run of the query."""
        name = self._options.query_name or self._neighbours.query_name
        return Owner(query, self._host, os.getpid(), self._inbox, self._options.standby, name)

    def check_last_reader(self, start: Offset, js: JetStream, was: bool) -> None:
        """
        Accepts that a query takes the lease: nobody else has read by the consumers without one.
        A query that reads without consumers has none to tell, and may not be allowed to ask.

        Args:
            js: the lease's connection, whose thread may ask.
            was: whether there was a lease: who read under it noted there how far.

        Raises:
            OptionError: Another query has read by them, which is to go on first.
        """
        if self._options.read_mode == "direct":
            return
        names = [(p.stream, f"{start.consumer}-{p.index}") for p in start.layout or self._layout]
        infos = js.consumer_infos(names)
        for (stream, name), info in zip(names, infos, strict=True):
            other = Owner.of(info.config) if info is not None else None
            if other is None or (was and other.standby):
                continue
            if other.query not in ("", start.query):
                inspected = self._options.connection.command("pyspark-jetstream inspect")
                removed = self._options.connection.command(f"nats consumer rm {stream} {name}")
                raise OptionError(
                    "standby",
                    f"consumer '{name}' is that of {other}, and no lease says how far that query"
                    " has read. Start that query first, over its checkpoint and with standby=true;"
                    f" start this one when {inspected} shows who reads. If that query is not to go"
                    f" on, delete its consumers ({removed}): then this one goes on where its own"
                    " checkpoint is, or begins at startingOffsets",
                )

    def prepare(
        self,
        start: Offset,
        resumed: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
    ) -> bool:
        """
        Once a run, when the offsets are safe: every consumer exists and stands at `start`, and
        what the run before committed but could not settle is settled.

        Returns:
            Whether this was the time.

        Raises:
            OptionError: A consumer of that name is of another kind.
            ForeignClientError: It belongs to another query, whose driver lives.
            ReadError: The server refuses to make one.
        """
        if self._prepared:
            return False
        reads = [self.read_of(p, start, infos[p.stream]) for p in self._layout]
        self._neighbours.listen(reads, self.owner(start.query))
        consumers = self._js.consumer_infos([(read.stream, read.consumer) for read in reads])
        for read, info in zip(reads, consumers, strict=True):
            if info is not None:
                _check(read, info)
        self._neighbours.check_owners(reads, consumers)
        self.changes(start, infos, {r.partition: i for r, i in zip(reads, consumers, strict=True)})
        self._know(start, resumed, reads, consumers, lost)
        missing = [read for read, info in zip(reads, consumers, strict=True) if info is None]
        made = iter(self._made(missing))
        for read, info in zip(reads, consumers, strict=True):
            if info is None:
                info = next(made)
            else:
                self._js.create_consumer(read.stream, _updated(read, info))
            if not _is_of(start, read.partition, infos[read.stream]):
                continue  # what was read is of another stream; of this one nothing is settled
            # A reset also settles what an interest stream still keeps of the run before.
            if info.stream_seq != read.start or (read.retention == "interest" and resumed):
                self._js.reset(read.stream, read.consumer, read.start + 1)
            if read.retention == "workqueue" and resumed:
                self._js.purge(read.stream, read.filter, read.start + 1)
        self._note_made(reads)
        self._prepared = True
        self._neighbours.begin_run()
        return True

    def _know(
        self,
        start: Offset,
        resumed: bool,
        reads: Sequence[ConsumerRead],
        consumers: Sequence[ConsumerInfo | None],
        lost: Callable[[str, int, str], None],
    ) -> None:
        """
        Compares consumers that a stream keeps messages for with what the checkpoint knows of them.

        Raises:
            DataLossError: One is gone, or is another one (`failOnDataLoss`).
        """
        self.expect(start)
        for read, info in zip(reads, consumers, strict=True):
            if not resumed or read.retention != "interest":
                continue
            # Checkpoints of version 0.1.0 know only that there was one.
            there = Made(info.created, 0) if info is not None else Made("", 0)
            made = self.made.get(read.partition, there)
            for change in consumer_changes(consumer_config(read), info, made):
                if change.of.is_loss:
                    lost(read.stream, read.partition, change.text)
                    self.made.pop(read.partition, None)

    def _note_made(self, reads: Sequence[ConsumerRead]) -> None:
        """Notes when consumers were made that are not known, and where their streams ended then."""
        new = [r for r in reads if r.retention != "limits" and r.partition not in self.made]
        if not new:
            return
        infos = self._js.consumer_infos([(read.stream, read.consumer) for read in new])
        names = list(dict.fromkeys(read.stream for read in new))
        ends = {info.name: info.last_seq for info in self._js.stream_infos(names)}
        for read, info in zip(new, infos, strict=True):
            if info is not None:
                # A work queue keeps what comes also before there is a consumer.
                since = 0 if read.retention == "workqueue" else ends[read.stream]
                self.made[read.partition] = Made(info.created, since)

    # ── before each batch ────────────────────────────────────────────────────────────────────

    def due(self, around: Collection[int] = ()) -> set[int]:
        """
        The partitions that are looked at now whatever is heard of them: some, in turns.

        Args:
            around: those that are read without their consumers, which may be paused: all of them.
        """
        due = self._rotation.take(len(self._layout), self._every_s) if self._prepared else set()
        return due.union(around) if due else due

    @property
    def _every_s(self) -> float:
        return seldom_s(_LOOK_EVERY_S, self._js.client.connection.round_trip_s)

    def watched(
        self, partitions: Collection[int], due: Collection[int]
    ) -> dict[int, tuple[str, str]]:
        """
        By partition stream and consumer of those that are looked at along with these partitions:
        where a stream keeps messages for them alone; and in any case those that are paused, or due.
        """
        at = {p for p in partitions if p in self.made} | self._paused.until.keys() | {*due}
        return {
            p.index: (p.stream, f"{self._prefix}-{p.index}") for p in self._layout if p.index in at
        }

    def expect(self, start: Offset) -> None:
        """Notes what a checkpoint knows of consumers that streams keep messages for."""
        if not self._prepared:
            self.made, self._prefix = dict(start.consumers), start.consumer

    def changes(
        self,
        start: Offset,
        infos: Mapping[str, StreamInfo],
        seen: Mapping[int, ConsumerInfo | None],
    ) -> dict[int, list[Change]]:
        """Changes of consumers that were seen now, by partition; notes which of them are paused."""
        changes = {}
        for index, info in seen.items():
            partition = self._layout.partitions[index]
            read = self.read_of(partition, start, infos[partition.stream])
            made = self.made.get(index) if read.retention == "interest" else None
            changes[index] = list(consumer_changes(consumer_config(read), info, made))
            self._paused.note(index, read.stream, index, read.consumer, info)
        return changes

    def forget(self, partition: int, info: ConsumerInfo | None) -> None:
        """
        Forgets which consumer a stream kept messages for: the one that is there now counts, or the
        one that is to be made (`failOnDataLoss=false`).
        """
        self.made.pop(partition, None)
        if info is None:
            self._prepared = False

    @property
    def paused(self) -> frozenset[int]:
        """The partitions whose consumers were paused when they were looked at last."""
        return frozenset(self._paused.until)

    def check(self, start: Offset, view: ServerView[int], around: Collection[int]) -> None:
        """
        Checks, while no attempt of this query runs, that the consumers which were seen when a batch
        was planned, or are `due`, are as they were made, and that nobody else is at them. It looks
        again at those that the batch goes around: nothing else tells that they were paused since.

        Raises:
            ForeignClientError: Another query has taken one over, or another client pulls from it.
            ConsumerEditedError: Somebody has changed what it delivers.
        """
        gap_s = self._neighbours.measure_gap_s()
        infos, seen, due = view.streams, dict(view.consumers), self.due(around)
        if around and self._rotation.is_time_before_tasks(self._every_s):
            due.update(around)
            seen = {index: info for index, info in seen.items() if index not in around}
        reads = [
            self.read_of(p, start, infos[p.stream])
            for p in self._layout
            if p.index in seen or p.index in due
        ]
        asked = [read for read in reads if read.partition not in seen]
        answers = self._js.consumer_infos([(read.stream, read.consumer) for read in asked])
        now = seen | {r.partition: info for r, info in zip(asked, answers, strict=True)}
        changes = self.changes(start, infos, now)
        consumers = [now[read.partition] for read in reads]
        for read, info in zip(reads, consumers, strict=True):
            if info is None:
                continue  # the attempt makes it again, or says that it cannot
            for change in changes[read.partition]:
                if change.of is Assumption.CONSUMER_AS_MADE:
                    raise edited(read, change)
            self._neighbours.check(read, info, self._inbox, gap_s)
            owner = Owner.of(info.config)
            if owner is not None and read.owner is not None and owner.name != read.owner.name:
                self._js.create_consumer(read.stream, _updated(read, info))  # known by now
        self._catch_up(start, infos, reads, consumers)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def wait(self, start: Offset, infos: Mapping[str, StreamInfo], timeout_s: float) -> bool:
        """
        Waits for a message behind `start`, up to `timeout_s`; False if none has come, as far as
        pulls can tell (`arrivals`).
        """
        self.pull(start, infos, range(len(self._layout)))
        return self.arrivals.wait(start.sequences, timeout_s)

    def pull(
        self, start: Offset, infos: Mapping[str, StreamInfo], partitions: Collection[int]
    ) -> None:
        """Asks to be told when one of these partitions has a message behind `start`."""
        if self._prepared:
            reads = [self.read_of(p, start, infos[p.stream]) for p in self._layout]
            try:
                self._pull(reads, start.sequences, partitions)
            except JetStreamError as error:
                logger.info("the driver is not told when messages come: %s", error)
                self.arrivals.forget_pulls(range(len(reads)))

    def _pull(
        self,
        reads: Sequence[ConsumerRead],
        where: tuple[int, ...],
        partitions: Collection[int],
    ) -> None:
        connection = self._js.client.connection
        subjects = [f"{self._js.prefix}.CONSUMER.MSG.NEXT.{r.stream}.{r.consumer}" for r in reads]
        if not all(map(connection.may_ask, subjects)):
            self.arrivals.set_listening(False)
        for index, inbox in self.arrivals.due(where, time.monotonic(), partitions).items():
            pin = self._neighbours.pin(index)
            body = pull_body(reads[index].group, pin, expires_s(len(reads)))
            connection.ask(subjects[index], inbox, body)

    # ── settling ─────────────────────────────────────────────────────────────────────────────

    def settle(
        self, end: Offset, infos: Mapping[str, StreamInfo], around: set[int], is_deep: bool = False
    ) -> None:
        """
        Settles what is at or before `end`. Of a stream that was made anew since, or taken back,
        nothing is settled: it holds other messages under these sequences.

        Args:
            around: partitions that were read without their consumers.
            is_deep: whether the batch lies amid a backlog. Consumers of `limits` streams are moved
                along at the next look then: only the lag that the server shows depends on it.
        """
        same = [p for p in self._layout if _is_of(end, p.index, infos[p.stream])]
        reads = [self.read_of(p, end, infos[p.stream]) for p in same]
        due = around | self._behind
        self._behind = {r.partition for r in reads if is_deep and r.retention == "limits"} & due
        due -= self._behind
        resets = [r for r in reads if r.retention == "interest" or r.partition in due]
        # A reset of a consumer that is gone is not answered at all.
        consumers = self._js.consumer_infos([(r.stream, r.consumer) for r in resets])
        there = {r.partition for r, info in zip(resets, consumers, strict=True) if info is not None}
        for read in reads:
            if read.retention == "workqueue":
                self._js.purge(read.stream, read.filter, read.start + 1)
        at = [read for read in reads if read.partition in there and read.retention != "workqueue"]
        self._js.resets([(read.stream, read.consumer, read.start + 1) for read in at])

    def _catch_up(
        self,
        start: Offset,
        infos: Mapping[str, StreamInfo],
        reads: Sequence[ConsumerRead],
        consumers: Sequence[ConsumerInfo | None],
    ) -> None:
        """Moves those that are behind to `start`, where the next batch begins; never raises."""
        behind = self._behind.intersection(read.partition for read in reads)
        self._behind -= behind
        at = [
            (read.stream, read.consumer, read.start + 1)
            for read, info in zip(reads, consumers, strict=True)
            if info is not None
            and read.partition in behind
            and _is_of(start, read.partition, infos[read.stream])
        ]
        try:
            self._js.resets(at)
        except JetStreamError as error:
            logger.warning(
                "the positions of consumers were not moved; the next batch moves them. No row is"
                " lost: %s",
                error,
            )

    def remove(self, offset: Offset) -> None:
        """
        Deletes the consumers of a query that has left these partitions; never raises. Streams that
        keep messages for them are none that a query leaves.
        """
        of = [(p.stream, f"{offset.consumer}-{p.index}") for p in self._layout]
        try:
            there = zip(of, self._js.consumer_infos(of), strict=True)
            owners = {at: Owner.of(info.config) for at, info in there if info is not None}
            ours = [at for at, owner in owners.items() if owner and owner.query == offset.query]
            self._js.delete_consumers(ours)
        except JetStreamError as error:
            logger.warning(
                "the consumers of the old layout were not deleted. Nobody reads by them, and they"
                " stay until somebody deletes them (`nats consumer rm`): %s",
                error,
            )

    def _made(self, reads: Sequence[ConsumerRead]) -> list[ConsumerInfo]:
        """These consumers, made in one round trip; one by one where one is refused, to say why."""
        try:
            return self._js.create_consumers([(r.stream, consumer_config(r)) for r in reads])
        except ApiError:
            return list(map(self._create, reads))

    def _create(self, read: ConsumerRead) -> ConsumerInfo:
        try:
            return self._js.create_consumer(read.stream, consumer_config(read))
        except ApiError as error:
            raise refused(read.stream, read.partition, read.consumer, error) from None


def _is_of(offset: Offset, partition: int, info: StreamInfo) -> bool:
    """Whether the stream still holds, under the offset's sequences, what was read there."""
    same = info.created == offset.streams[info.name]
    return same and offset.sequences[partition] <= info.last_seq


def _check(read: ConsumerRead, info: ConsumerInfo) -> None:
    """
    Refuses a consumer that is there already and could not be read, or would give other rows.

    Raises:
        OptionError: What it has, and what this query needs.
    """
    for key, has, needs in changed_fields(consumer_config(read), info.config):
        raise OptionError(
            "consumer",
            f"stream '{read.stream}' has a consumer '{read.consumer}' with {in_words(key, has)}"
            f" where this query needs {in_words(key, needs)}; {_way_out(read, key)}",
        )


def _way_out(read: ConsumerRead, key: str) -> str:
    """Remedy for a consumer that does not fit, which costs nobody a message."""
    if read.retention == "limits":
        return (
            "choose another prefix, or delete it if no other program reads by it: this query's"
            " positions are in its checkpoint"
        )
    kept = (
        f"do not delete it, for what it has not read the stream (retention {read.retention}) may"
        " keep for it alone"
    )
    if key == "ack_policy":
        return (
            f"{kept}: set back the stream's retention, which was another one when the consumer was"
            " made; or begin anew under another prefix, with a new checkpointLocation and"
            " startingOffsets=earliest, which reads all that the stream still holds, and delete"
            " this one afterwards"
        )
    return f"{kept}; choose another prefix"


def _updated(read: ConsumerRead, info: ConsumerInfo) -> dict[str, Any]:
    """The configuration that is there, with the owner and the timeout of this run."""
    wanted = consumer_config(read)
    mine = {"metadata": (info.config.get("metadata") or {}) | wanted.get("metadata", {})}
    if "priority_timeout" in wanted:
        mine["priority_timeout"] = wanted["priority_timeout"]
    return info.config | mine
