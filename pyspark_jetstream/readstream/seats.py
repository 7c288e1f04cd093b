"""
The durable consumers of a query, from the driver: made, put where the checkpoint is, settled.

Nobody reads by them: they are how the query exists on the server. What was committed is settled
late or not at all (Spark commits a batch only when it builds the next one), so nothing here carries
a guarantee except that a restart settles what is left over. Per retention:

* `limits`: nothing to settle. They are moved along with each batch, so that the lag the server
  shows is true, and a standby knows where to go on.
* `interest`: a reset beyond the batch; what a reset skips counts as acknowledged.
* `workqueue`: a reset skips without removing, so the committed range is purged by its filter.
  Exactly that range: such a stream is always read from its beginning.

Others may edit, pause or delete them: `fetch.durable` says what that means. Who may settle says
`holder`; a message that the driver was dealt together with its pin never moves a position (`pins`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from ..client.connection import Client
from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..client.peer import RESETS
from ..errors import ApiError, ConsumerEditedError, OptionError
from ..fetch.durable import (
    FILTER,
    Durable,
    Owner,
    consumer_config,
    create,
    gone,
    misfit_of,
    refused,
    way_back,
)
from ..fetch.layout import Layout
from ..sanitize import get_logger
from .driver import PausedConsumers
from .offsets import Offset
from .options import SourceOptions
from .pins import Pins

logger = get_logger(__name__)

_EXISTS: Final = 10148
"""err_code of JSConsumerAlreadyExists."""


class Seats:
    """
    The consumers of all partitions of one query.

    Args:
        layout: without partitions where several streams are read.
        lost: told of each loss, as that of `WatchedStreams`.
    """

    def __init__(
        self,
        js: JetStream,
        options: SourceOptions,
        layout: Layout,
        lost: Callable[[str, int, str], None],
    ) -> None:
        self.made: dict[int, str] = {}
        """By partition when a consumer was made without which its stream drops messages."""
        self.layout = layout
        self.pins = Pins(options)
        self.me = Owner("", "", 0)
        """This run of the query, once an offset says whose checkpoint it has."""
        self.prefix = ""
        """Beginning of the consumers' names."""
        self.keeps_messages = False
        """Whether a stream keeps messages for one of them."""
        self.is_prepared = False
        """Whether they are there, and this run's."""
        self._js = js
        self._options = options
        self._lost = lost
        self._settled: dict[int, int] = {}
        """By partition the sequence up to which this run has settled."""
        self._paused = PausedConsumers(options.connection.command)

    @cached_property
    def quick(self) -> JetStream:
        """What proves and settles: its requests end before anybody else can have the seats."""
        connection = self._options.connection
        wait_s = min(connection.request_timeout_s, self._options.term_s / 3)
        return JetStream(Client(replace(connection, request_timeout_s=wait_s)))

    def close(self) -> None:
        """Ends what listens."""
        self.pins.close()
        if "quick" in self.__dict__:
            self.quick.client.close()

    @property
    def names(self) -> list[tuple[str, str]]:
        """Stream and name, by partition."""
        return [(p.stream, f"{self.prefix}-{p.index}") for p in self.layout]

    def report(self, partition: int) -> dict[str, Any]:
        """A partition's consumer for the progress: until when it is paused."""
        paused = self._paused.until.get(partition)
        return {"pausedUntil": paused} if paused else {}

    @property
    def paused(self) -> frozenset[int]:
        """The partitions whose consumers were paused when they were looked at last."""
        return frozenset(self._paused.until)

    def expect(self, start: Offset) -> None:
        """Notes whose checkpoint this is, and what it knows of the consumers, until they are."""
        if self.is_prepared:
            return
        options = self._options
        name = options.query_name or ""
        self.made, self.prefix = dict(start.consumers), start.consumer
        self.me = Owner(start.query, socket.gethostname(), os.getpid(), options.standby, name)

    def durables(self, infos: Mapping[str, StreamInfo]) -> Iterator[Durable]:
        """The consumers of the query."""
        for partition in self.layout:
            info = infos[partition.stream]
            yield Durable(
                partition=partition.index,
                stream=partition.stream,
                filter=partition.filter,
                name=f"{self.prefix}-{partition.index}",
                group=self._options.priority_group,
                retention=info.retention,
                replicas=info.replicas,
                priority_timeout_s=self._options.term_s,
                metadata=self.me.metadata | {FILTER: partition.filter or ""},
            )

    def other(self, first: ConsumerInfo | None) -> Owner | None:
        """The query whose the first seat is, if that is another one."""
        owner = Owner.of(first.config) if first is not None else None
        return owner if owner is not None and owner.query not in ("", self.me.query) else None

    def sit(
        self, start: Offset, infos: Mapping[str, StreamInfo], resumed: bool, over: Owner | None
    ) -> list[int | None] | None:
        """
        Makes all seats, or those that are there this run's. The first one says whose they are: a
        query that is new makes it last, one that takes them over takes it first.

        Args:
            over: the query whose place it may take.

        Returns:
            By partition where the seat stood, None of one that was missing; None if another query
            has the first one by now.

        Raises:
            OptionError: A consumer of that name is of another kind.
            DataLossError: One is gone, or is another one, for which its stream kept messages
                (`failOnDataLoss`).
            ReadError: The server refuses to make one.
        """
        durables = list(self.durables(infos))
        found = self._js.consumer_infos(self.names)
        if self.other(found[0]) not in (None, over):
            return None
        self.made = self.made if resumed else {}
        for durable, info in zip(durables, found, strict=True):
            made = self.made.get(durable.partition)
            if made is None and resumed and durable.retention == "interest":
                # The first batch is planned before there are consumers: its offset knows of none.
                made = info.created if info is not None else ""
            self._check(durable, info, made)
        first, others = (durables[:1], found[:1]), (durables[1:], found[1:])
        if found[0] is not None:
            self._make(*first)
        self._make(*others)
        if found[0] is None:
            self._make(*first, action="create")
        there = self._js.consumer_infos(self.names)
        owner = Owner.of(there[0].config) if there[0] is not None else None
        if owner is None or not owner.is_run(self.me):
            return None
        self.unpin()  # a pin of this query's outlives its client
        for durable, now in zip(durables, there, strict=True):
            if now is not None and durable.retention == "interest":
                self.made.setdefault(durable.partition, now.created)
        return [
            None if was is None or now is None else _stood_at(durable, now, infos[durable.stream])
            for durable, was, now in zip(durables, found, there, strict=True)
        ]

    def place(self, start: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """Puts this run's seats at `start`, settles what is before it, and pulls at them."""
        self.keeps_messages = any(info.retention != "limits" for info in infos.values())
        self._settled, self.is_prepared = {}, True
        at = {
            p.index: start.sequences[p.index] + 1
            for p in self.layout
            if self._has_reset and _is_of(start, p.index, infos[p.stream])
        }
        self.pins.begin(self.names, at)
        self.settle(start, infos, self._js)

    def leave(self) -> None:
        """They are another run's: nothing is pulled, moved or settled any more."""
        self.is_prepared = False
        self.pins.leave()

    def unpin(self) -> None:
        """Takes the pins of whoever has them."""
        self._js.unpins(self.names, self._options.priority_group)

    def _make(
        self, durables: list[Durable], found: list[ConsumerInfo | None], action: str = ""
    ) -> None:
        """
        Makes those that are missing, and gives the others this run's owner and timeout. One that is
        there by now stays as it is where the action is `create`.
        """
        wanted = [
            (d.stream, consumer_config(d) if info is None else _updated(d, info))
            for d, info in zip(durables, found, strict=True)
        ]
        try:
            self._js.create_consumers(wanted, action)
        except ApiError:
            for durable, (stream, config) in zip(durables, wanted, strict=True):
                try:  # one by one, to say which is refused and why
                    create(self._js, stream, config, action)
                except ApiError as error:
                    if error.err_code != _EXISTS:
                        at = durable.stream, durable.partition, durable.name
                        raise refused(*at, error) from None

    # ── before each batch ────────────────────────────────────────────────────────────────────

    def watched(self, all_: bool) -> dict[int, tuple[str, str]]:
        """
        By partition stream and name of the consumers that are looked at: those for which alone a
        stream keeps messages, those that are paused, and the one that says who holds the query; or
        all of them.
        """
        if not self.prefix:
            return {}
        at = {*self._paused.until, *([0] if self._options.standby else [])}
        is_whole = all_ or self.keeps_messages or bool(self.made)
        return {p: name for p, name in enumerate(self.names) if is_whole or p in at}

    def check(
        self, infos: Mapping[str, StreamInfo], seen: Mapping[int, ConsumerInfo | None]
    ) -> None:
        """
        Compares consumers as they were seen now with what they were made as; notes which are
        paused.

        Raises:
            DataLossError: One is gone for which alone a stream keeps messages (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        for durable in self.durables(infos) if seen else ():
            index = durable.partition
            if index in seen:
                self._check(durable, seen[index], self.made.get(index))
                if seen[index] is None and durable.retention != "interest":
                    self.is_prepared = False  # it is made anew where the query is

    def _check(self, of: Durable, info: ConsumerInfo | None, made: str | None) -> None:
        self._paused.note(of.partition, of.stream, of.name, info)
        if made is not None and (what := gone(of.name, info, made)):
            self._lost(of.stream, of.partition, what)
            if info is not None:
                self.made[of.partition] = info.created
            else:  # the one counts that is to be made
                self.made.pop(of.partition, None)
                self.is_prepared = False
        if info is not None and (misfit := misfit_of(consumer_config(of), info)):
            what = f"{misfit}; {way_back(of.stream, of.name, of.retention == 'limits')}"
            if self.is_prepared:
                raise ConsumerEditedError(of.stream, of.partition, what)
            raise OptionError("consumer", f"stream '{of.stream}': {what}")

    # ── settling ─────────────────────────────────────────────────────────────────────────────

    def settle(
        self, end: Offset, infos: Mapping[str, StreamInfo], by: JetStream | None = None
    ) -> None:
        """
        Settles what is at or before `end`, once. Of a stream that was made anew since, or taken
        back, nothing is settled: it holds other messages under these sequences.
        """
        if not self.is_prepared:
            return
        by = by or self.quick
        due = {
            durable: end.sequences[durable.partition]
            for durable in self.durables(infos)
            if _is_of(end, durable.partition, infos[durable.stream])
            and self._settled.get(durable.partition) != end.sequences[durable.partition]
        }
        limits = {d: at for d, at in due.items() if d.retention == "limits"}
        if self._options.standby:
            self._reset(by, limits)
        elif self._has_reset:
            self.pins.move({d.partition: at + 1 for d, at in limits.items()})
        kept = {d: at for d, at in due.items() if d.retention != "limits"}
        self._acknowledge(by, kept, end.streams)
        self._settled |= {durable.partition: at for durable, at in due.items()}

    @property
    def _has_reset(self) -> bool:
        """Whether the server has CONSUMER.RESET; without, they stay where they began."""
        return self._js.client.connection.version >= RESETS

    def _reset(self, by: JetStream, to: Mapping[Durable, int]) -> None:
        if self._has_reset:
            self.pins.move({durable.partition: at + 1 for durable, at in to.items()}, is_done=True)
            by.resets([(durable.stream, durable.name, at + 1) for durable, at in to.items()])

    def _acknowledge(
        self, by: JetStream, to: Mapping[Durable, int], created: Mapping[str, str]
    ) -> None:
        """
        Settles up to these sequences where the consumer is there, and the stream that was read. A
        work queue is purged by the consumer's filter: as long as that is there, the server lets
        nobody else read what matches it. (A reset of a consumer that is gone is not answered.)
        """
        if not to:
            return
        names = list(dict.fromkeys(durable.stream for durable in to))
        streams, seats = by.look(names, [(durable.stream, durable.name) for durable in to])
        now = {info.name: info for info in streams}
        there = {
            d: at
            for (d, at), info in zip(to.items(), seats, strict=True)
            if info is not None and info.config.get("filter_subject") == d.filter
            and now[d.stream].created == created[d.stream]
        }  # fmt: skip
        self._reset(by, {d: at for d, at in there.items() if d.retention == "interest"})
        for durable, at in there.items():
            if durable.retention == "workqueue" and at >= now[durable.stream].first_seq:
                by.purge(durable.stream, durable.filter, at + 1)


def _is_of(offset: Offset, partition: int, info: StreamInfo) -> bool:
    """Whether the stream still holds, under the offset's sequences, what was read there."""
    same = info.created == offset.streams[info.name]
    return same and offset.sequences[partition] <= info.last_seq


def _stood_at(durable: Durable, info: ConsumerInfo, stream: StreamInfo) -> int:
    """The last sequence that the query of a seat has committed and settled, or an earlier one."""
    if durable.retention == "workqueue":
        return max(0, stream.first_seq - 1)
    if durable.retention == "interest":
        return info.ack_floor
    return max(0, info.stream_seq - (1 if info.consumer_seq else 0))  # dealt with the pin


def _updated(durable: Durable, info: ConsumerInfo) -> dict[str, Any]:
    """The configuration that is there, with the owner and the timeout of this run."""
    wanted = consumer_config(durable)
    metadata = (info.config.get("metadata") or {}) | wanted["metadata"]
    timeout = wanted["priority_timeout"]
    return info.config | {"metadata": metadata, "priority_timeout": timeout}
