"""
The durable consumers of a query, from the driver: made, put where the checkpoint is, settled.

Nobody reads by them: they are how the query exists on the server. What was committed is settled
late or not at all (Spark commits a batch only when it builds the next one), so nothing here carries
a guarantee except that a restart settles what is left over. Per retention:

* `limits`: nothing to settle. They are moved along with each batch, without waiting for it, so that
  the lag the server shows is true.
* `interest`: a reset beyond the batch; what a reset skips counts as acknowledged.
* `workqueue`: a reset skips without removing, so the committed range is purged by its filter.
  Exactly that range: such a stream is always read from its beginning.

Others may edit, pause or delete them: `fetch.assumptions` says what that means.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..errors import ApiError, OptionError
from ..fetch.assumptions import Change, Made, changed_fields, consumer_changes, in_words
from ..fetch.durable import Durable, consumer_config, create, refused
from ..fetch.layout import Layout
from ..fetch.owner import FILTER, Owner
from ..sanitize import get_logger
from .driver import PausedConsumers
from .offsets import Offset
from .options import SourceOptions
from .wakeups import WakeUps

logger = get_logger(__name__)


class Seats:
    """The consumers of all partitions of one query; several streams have none."""

    def __init__(self, js: JetStream, options: SourceOptions, layout: Layout) -> None:
        self.made: dict[int, Made] = {}
        """By partition: consumers for which alone a stream keeps messages (not `limits`)."""
        self.wakeups = WakeUps(options.connection, options.priority_group)
        self._js = js
        self._options = options
        self._layout = layout
        self._prepared = False
        self._settled: dict[int, int] = {}
        """By partition the sequence up to which this run has settled."""
        self._prefix = ""
        """Beginning of the consumers' names."""
        self._paused = PausedConsumers[int](options.connection.command)

    def close(self) -> None:
        """Ends what listens."""
        self.wakeups.close()

    def report(self, partition: int) -> dict[str, Any]:
        """A partition's consumer for the progress: until when it is paused."""
        paused = self._paused.until.get(partition)
        return {"pausedUntil": paused} if paused else {}

    @property
    def paused(self) -> frozenset[int]:
        """The partitions whose consumers were paused when they were looked at last."""
        return frozenset(self._paused.until)

    def durables(self, offset: Offset, infos: Mapping[str, StreamInfo]) -> Iterator[Durable]:
        """The consumers of the query that is at this offset."""
        options, owner = self._options, self.owner(offset.query)
        for partition in self._layout:
            info = infos[partition.stream]
            yield Durable(
                partition=partition.index,
                stream=partition.stream,
                filter=partition.filter,
                name=f"{offset.consumer}-{partition.index}",
                group=options.priority_group,
                retention=info.retention,
                replicas=info.replicas,
                priority_timeout_s=options.priority_timeout_s,
                metadata=owner.metadata | {FILTER: partition.filter or ""},
            )

    def owner(self, query: str) -> Owner:
        """This run of the query."""
        options = self._options
        name = options.query_name or ""
        return Owner(query, socket.gethostname(), os.getpid(), options.standby, name)

    def check_last_reader(self, start: Offset, js: JetStream, was: bool) -> None:
        """
        Accepts that a query takes the lease: nobody else has read by the consumers without one.

        Args:
            js: the lease's connection, whose thread may ask.
            was: whether there was a lease: who read under it noted there how far.

        Raises:
            OptionError: Another query has read by them, which is to go on first.
        """
        if self._layout.is_several:
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
            ReadError: The server refuses to make one.
        """
        if self._prepared or self._layout.is_several:
            return False
        durables = list(self.durables(start, infos))
        found = self._js.consumer_infos([(each.stream, each.name) for each in durables])
        for durable, info in zip(durables, found, strict=True):
            if info is not None:
                _check(durable, info)
                self._check_owner(durable, info, start.query)
            self._paused.note(
                durable.partition, durable.stream, durable.partition, durable.name, info
            )
        self._know(start, resumed, dict(zip(durables, found, strict=True)), lost)
        self._make(durables, found)
        same = [d for d in durables if _is_of(start, d.partition, infos[d.stream])]
        at = {d.partition: start.sequences[d.partition] for d in same}
        self._reset({d: at[d.partition] for d in same})
        if resumed:
            self._purge({d: at[d.partition] for d in same if d.retention == "workqueue"})
        self._note_made(durables)
        self._settled = at
        self._prepared = True
        self.wakeups.begin([(each.stream, each.name) for each in durables])
        return True

    def _check_owner(self, durable: Durable, info: ConsumerInfo, query: str) -> None:
        """
        Accepts a consumer that nobody has, or this query. Two would settle what the other has not
        read; on a `limits` stream they would only show each other's position.

        Raises:
            OptionError: It is another query's, and a stream keeps messages for it.
        """
        other = Owner.of(info.config)
        if other is None or other.query in ("", query) or self._options.standby:
            return
        if durable.retention == "limits":
            logger.warning(
                "stream=%s: the consumer '%s' was that of %s; from now on it shows the position of"
                " this query",
                durable.stream, durable.name, other,
            )  # fmt: skip
            return
        removed = f"nats consumer rm {durable.stream} {durable.name}"
        raise OptionError(
            "consumer",
            f"'{durable.name}' is that of {other}, which has another checkpoint: give this query"
            " another consumer. If that query is not to go on, delete its consumers"
            f" ({self._options.connection.command(removed)}); what only it had not read goes then",
        )

    def _make(self, durables: list[Durable], found: list[ConsumerInfo | None]) -> None:
        """Makes those that are missing, and gives the others this run's owner and timeout."""
        wanted = [
            (d.stream, consumer_config(d) if info is None else _updated(d, info))
            for d, info in zip(durables, found, strict=True)
        ]
        try:
            self._js.create_consumers(wanted)
        except ApiError:
            for durable, (stream, config) in zip(durables, wanted, strict=True):
                try:  # one by one, to say which is refused and why
                    create(self._js, stream, config)
                except ApiError as error:
                    at = durable.stream, durable.partition, durable.name
                    raise refused(*at, error) from None

    def _know(
        self,
        start: Offset,
        resumed: bool,
        found: Mapping[Durable, ConsumerInfo | None],
        lost: Callable[[str, int, str], None],
    ) -> None:
        """
        Compares consumers that a stream keeps messages for with what the checkpoint knows of them.

        Raises:
            DataLossError: One is gone, or is another one (`failOnDataLoss`).
        """
        self.expect(start)
        for durable, info in found.items():
            if not resumed or durable.retention != "interest":
                continue
            # The first batch is planned before there are consumers: its offset knows of none.
            there = Made(info.created if info is not None else "", 0)
            made = self.made.get(durable.partition, there)
            for change in consumer_changes(consumer_config(durable), info, made):
                if change.of.is_loss:
                    lost(durable.stream, durable.partition, change.text)
                    self.made.pop(durable.partition, None)

    def _note_made(self, durables: Collection[Durable]) -> None:
        """Notes when consumers were made that are not known, and where their streams ended then."""
        new = [d for d in durables if d.retention != "limits" and d.partition not in self.made]
        if not new:
            return
        infos = self._js.consumer_infos([(each.stream, each.name) for each in new])
        names = list(dict.fromkeys(each.stream for each in new))
        ends = {info.name: info.last_seq for info in self._js.stream_infos(names)}
        for durable, info in zip(new, infos, strict=True):
            if info is not None:
                # A work queue keeps what comes also before there is a consumer.
                since = 0 if durable.retention == "workqueue" else ends[durable.stream]
                self.made[durable.partition] = Made(info.created, since)

    # ── before each batch ────────────────────────────────────────────────────────────────────

    def watched(self, all_: bool) -> dict[int, tuple[str, str]]:
        """
        By partition stream and name of the consumers that are looked at: those for which alone a
        stream keeps messages, and those that are paused; or all of them.
        """
        if not self._prefix or self._layout.is_several:
            return {}
        every = range(len(self._layout))
        at = every if all_ else self.made.keys() | self._paused.until.keys()
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
    ) -> dict[Durable, list[Change]]:
        """Changes of consumers that were seen now; notes which of them are paused."""
        changes = {}
        for durable in self.durables(start, infos) if seen else ():
            index = durable.partition
            if index not in seen:
                continue
            made = self.made.get(index) if durable.retention == "interest" else None
            changes[durable] = list(consumer_changes(consumer_config(durable), seen[index], made))
            self._paused.note(index, durable.stream, index, durable.name, seen[index])
        return changes

    def forget(self, partition: int, info: ConsumerInfo | None) -> None:
        """
        Forgets which consumer a stream kept messages for: the one that is there now counts, or the
        one that is to be made (`failOnDataLoss=false`).
        """
        self.made.pop(partition, None)
        if info is None:
            self._prepared = False

    # ── settling ─────────────────────────────────────────────────────────────────────────────

    def settle(self, end: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """
        Settles what is at or before `end`, once. Of a stream that was made anew since, or taken
        back, nothing is settled: it holds other messages under these sequences.
        """
        if not self._prepared:
            return
        due = {
            durable: end.sequences[durable.partition]
            for durable in self.durables(end, infos)
            if _is_of(end, durable.partition, infos[durable.stream])
            and self._settled.get(durable.partition) != end.sequences[durable.partition]
        }
        limits = {d.partition: at + 1 for d, at in due.items() if d.retention == "limits"}
        if limits:
            self.wakeups.move(limits)
        self._purge({d: at for d, at in due.items() if d.retention == "workqueue"})
        interest = {d: at for d, at in due.items() if d.retention == "interest"}
        # A reset of a consumer that is gone is not answered at all.
        there = self._js.consumer_infos([(d.stream, d.name) for d in interest])
        self._reset({d: interest[d] for d, i in zip(interest, there, strict=True) if i is not None})
        self._settled |= {durable.partition: at for durable, at in due.items()}

    def _reset(self, to: Mapping[Durable, int]) -> None:
        self._js.resets([(durable.stream, durable.name, at + 1) for durable, at in to.items()])

    def _purge(self, to: Mapping[Durable, int]) -> None:
        for durable, at in to.items():
            self._js.purge(durable.stream, durable.filter, at + 1)

    def remove(self, offset: Offset) -> None:
        """Deletes the consumers of a query; those of others, and those that are gone, are left."""
        of = [(p.stream, f"{offset.consumer}-{p.index}") for p in self._layout]
        there = zip(of, self._js.consumer_infos(of), strict=True)
        owners = {at: Owner.of(info.config) for at, info in there if info is not None}
        ours = [at for at, owner in owners.items() if owner and owner.query == offset.query]
        self._js.delete_consumers(ours)


def _is_of(offset: Offset, partition: int, info: StreamInfo) -> bool:
    """Whether the stream still holds, under the offset's sequences, what was read there."""
    same = info.created == offset.streams[info.name]
    return same and offset.sequences[partition] <= info.last_seq


def _check(durable: Durable, info: ConsumerInfo) -> None:
    """
    Refuses a consumer that is there already and is not one of a query, or of another kind.

    Raises:
        OptionError: What it has, and what this query needs.
    """
    for key, has, needs in changed_fields(consumer_config(durable), info.config):
        raise OptionError(
            "consumer",
            f"stream '{durable.stream}' has a consumer '{durable.name}' with {in_words(key, has)}"
            f" where this query needs {in_words(key, needs)}; {_way_out(durable, key)}",
        )


def _way_out(durable: Durable, key: str) -> str:
    """Remedy for a consumer that does not fit, which costs nobody a message."""
    if durable.retention == "limits":
        return (
            "choose another prefix, or delete it if no other program reads by it: this query's"
            " positions are in its checkpoint"
        )
    kept = (
        f"do not delete it, for what it has not read the stream (retention {durable.retention}) may"
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


def _updated(durable: Durable, info: ConsumerInfo) -> dict[str, Any]:
    """The configuration that is there, with the owner and the timeout of this run."""
    wanted = consumer_config(durable)
    mine = {"metadata": (info.config.get("metadata") or {}) | wanted["metadata"]}
    if "priority_timeout" in wanted:
        mine["priority_timeout"] = wanted["priority_timeout"]
    return info.config | mine
