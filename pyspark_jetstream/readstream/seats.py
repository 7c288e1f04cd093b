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

Others may edit, pause or delete them: `fetch.assumptions` says what that means. Who may settle says
`holder`; a message that the driver was dealt together with its pin never moves a position (`pins`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from ..client.connection import Client
from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..errors import ApiError, OptionError
from ..fetch.assumptions import edit_of, gone
from ..fetch.durable import Durable, consumer_config, create, edited, refused
from ..fetch.layout import Layout
from ..fetch.owner import FILTER, Owner
from ..sanitize import get_logger
from .driver import PausedConsumers
from .fitting import check_fits, position_of, updated
from .offsets import Offset
from .options import SourceOptions
from .pins import Pins

logger = get_logger(__name__)


STANDBY_S: Final = 30.0
"""`priorityTimeout` of a query with `standby`, unless the option says another."""

_SERVERS_S: Final = 120.0
"""That of the server, unless a consumer says another."""

_EXISTS: Final = 10148
"""err_code of JSConsumerAlreadyExists."""


class Seats:
    """The consumers of all partitions of one query; several streams have none."""

    def __init__(
        self, js: JetStream, options: SourceOptions, layout: Layout, has_reset: bool
    ) -> None:
        """
        Args:
            has_reset: whether the server has CONSUMER.RESET; without, they stay where they began.
        """
        self.made: dict[int, str] = {}
        """
        By partition: when the consumers were made for which alone a stream keeps messages (not
        `limits`), in the server's text.
        """
        self.layout = layout
        self.term_s = options.priority_timeout_s or (STANDBY_S if options.standby else _SERVERS_S)
        """Seconds that the server keeps a pin for one that is silent."""
        self.pins = Pins(options.connection, options.priority_group, self.term_s / 3)
        self.me: Owner | None = None
        """This run of the query, once an offset says whose checkpoint it has."""
        self.prefix = ""
        """Beginning of the consumers' names."""
        self.is_prepared = False
        """Whether they are there, and this run's."""
        self._js = js
        self._options = options
        self._has_reset = has_reset
        self._settled: dict[int, int] = {}
        """By partition the sequence up to which this run has settled."""
        self._paused = PausedConsumers(options.connection.command)

    @cached_property
    def quick(self) -> JetStream:
        """What proves and settles: its requests end before anybody else can have the seats."""
        wait_s = min(self._options.connection.request_timeout_s, self.term_s / 3)
        return JetStream(Client(replace(self._options.connection, request_timeout_s=wait_s)))

    def close(self) -> None:
        """Ends what listens."""
        self.pins.close()
        if "quick" in self.__dict__:
            self.quick.client.close()

    @property
    def keeps_messages(self) -> bool:
        """Whether a stream keeps messages for one of them."""
        return bool(self.made)

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

    def durables(self, offset: Offset, infos: Mapping[str, StreamInfo]) -> Iterator[Durable]:
        """The consumers of the query that is at this offset."""
        options, owner = self._options, self.owner(offset.query)
        for partition in self.layout:
            info = infos[partition.stream]
            yield Durable(
                partition=partition.index,
                stream=partition.stream,
                filter=partition.filter,
                name=f"{offset.consumer}-{partition.index}",
                group=options.priority_group,
                retention=info.retention,
                replicas=info.replicas,
                priority_timeout_s=options.priority_timeout_s
                or (STANDBY_S if options.standby else None),
                metadata=owner.metadata | {FILTER: partition.filter or ""},
            )

    def owner(self, query: str) -> Owner:
        """This run of the query."""
        options = self._options
        name = options.query_name or ""
        return Owner(query, socket.gethostname(), os.getpid(), options.standby, name)

    def name(self, offset: Offset) -> None:
        """Notes whose checkpoint this is."""
        self.prefix, self.me = offset.consumer, self.owner(offset.query)

    def prepare(
        self,
        start: Offset,
        resumed: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
        admit: Callable[[ConsumerInfo | None, str], bool],
    ) -> bool:
        """
        Once a run, when the offsets are safe: every consumer exists and stands at `start`, and
        what the run before committed but could not settle is settled.

        Args:
            admit: waits for a seat of another query; returns whether it did.

        Returns:
            Whether this was the time.

        Raises:
            OptionError: A consumer of that name is of another kind, or another query's.
            ReadError: The server refuses to make one.
        """
        if self.is_prepared or self.layout.is_several:
            return False
        self.name(start)
        while True:
            first = self._js.consumer_infos(self.names[:1])[0]
            if admit(first, start.query):
                self._refuse_kept(start, infos)
            if self.sit(start, infos, resumed, lost) is not None:
                break
        self.place(start, resumed, infos)
        return True

    def sit(
        self,
        start: Offset,
        infos: Mapping[str, StreamInfo],
        resumed: bool,
        lost: Callable[[str, int, str], None],
    ) -> list[int | None] | None:
        """
        Makes all seats, or those that are there this run's. The first one says whose they are: a
        query that is new makes it last, one that takes them over takes it first.

        Returns:
            By partition where the seat stood, None of one that was missing; None if another query
            has the first one by now.

        Raises:
            OptionError: A consumer of that name is of another kind.
            ReadError: The server refuses to make one.
        """
        durables = list(self.durables(start, infos))
        found = self._js.consumer_infos(self.names)
        for durable, info in zip(durables, found, strict=True):
            if info is not None:
                check_fits(durable, info)
            self._paused.note(durable.partition, durable.stream, durable.name, info)
        self._know(start, resumed, dict(zip(durables, found, strict=True)), lost)
        if found[0] is not None:
            self._make(durables[:1], found[:1])
        self._make(durables[1:], found[1:])
        if found[0] is None:
            try:
                create(self._js, durables[0].stream, consumer_config(durables[0]), "create")
            except ApiError as error:
                if error.err_code == _EXISTS:
                    return None
                raise refused(durables[0].stream, 0, durables[0].name, error) from None
        there = self._js.consumer_infos(self.names)
        owner = Owner.of(there[0].config) if there[0] is not None else None
        if owner is None or self.me is None or not owner.is_run(self.me):
            return None
        self.unpin(there)  # a pin of this query's outlives its client
        return [
            None if was is None or now is None else position_of(durable, now, infos[durable.stream])
            for durable, was, now in zip(durables, found, there, strict=True)
        ]

    def place(self, start: Offset, resumed: bool, infos: Mapping[str, StreamInfo]) -> None:
        """Puts this run's seats at `start`, settles what is before it, and pulls at them."""
        durables = list(self.durables(start, infos))
        same = [d for d in durables if _is_of(start, d.partition, infos[d.stream])]
        at = {d.partition: start.sequences[d.partition] for d in same}
        # A server that came back has forgotten them: nobody answers, and no batch waits for it.
        moved = {d.partition for d in same if d.retention == "limits" and not self._options.standby}
        self._reset(self._js, {d: at[d.partition] for d in same if d.partition not in moved})
        queues = {d: at[d.partition] for d in same if resumed and d.retention == "workqueue"}
        self._purge(self._js, queues, start.streams)
        self._note_made(durables)
        self._settled, self.is_prepared = at, True
        begins = {p: sequence + 1 for p, sequence in at.items()} if self._has_reset else {}
        self.pins.begin(self.names, begins)
        self.pins.move({p: sequence for p, sequence in begins.items() if p in moved})

    def leave(self) -> None:
        """They are another run's: nothing is pulled, moved or settled any more."""
        self.is_prepared = False
        self.pins.leave()

    def unpin(self, infos: Collection[ConsumerInfo | None] = ()) -> None:
        """Takes the pins of whoever has them: at these, or at all."""
        wanted = zip(self.names, infos, strict=True) if infos else ((at, None) for at in self.names)
        pinned = [at for at, info in wanted if not infos or (info is not None and info.pinned_id)]
        self._js.unpins(pinned, self._options.priority_group)

    def _refuse_kept(self, start: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """
        Accepts the seats of another query, which is silent: of a `limits` stream they only showed
        its position.

        Raises:
            OptionError: A stream keeps messages for them.
        """
        for durable in self.durables(start, infos):
            info = self._js.consumer_infos([(durable.stream, durable.name)])[0]
            if info is None or durable.retention == "limits":
                continue
            removed = f"nats consumer rm {durable.stream} {durable.name}"
            raise OptionError(
                "consumer",
                f"'{durable.name}' is that of {Owner.of(info.config)}, which has another"
                " checkpoint: give this query another consumer. If that query is not to go on,"
                f" delete its consumers ({self._options.connection.command(removed)}); what only"
                " it had not read goes then",
            )

    def _make(self, durables: list[Durable], found: list[ConsumerInfo | None]) -> None:
        """Makes those that are missing, and gives the others this run's owner and timeout."""
        wanted = [
            (d.stream, consumer_config(d) if info is None else updated(d, info))
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
            made = self.made.get(durable.partition, info.created if info is not None else "")
            if what := gone(durable.name, info, made):
                lost(durable.stream, durable.partition, what)
                self.made.pop(durable.partition, None)

    def _note_made(self, durables: Collection[Durable]) -> None:
        """Notes when consumers were made of which that is not known."""
        new = [d for d in durables if d.retention != "limits" and d.partition not in self.made]
        infos = self._js.consumer_infos([(each.stream, each.name) for each in new])
        for durable, info in zip(new, infos, strict=True):
            if info is not None:
                self.made[durable.partition] = info.created

    # ── before each batch ────────────────────────────────────────────────────────────────────

    def watched(self, all_: bool) -> dict[int, tuple[str, str]]:
        """
        By partition stream and name of the consumers that are looked at: those for which alone a
        stream keeps messages, those that are paused, and the one that says who holds the query; or
        all of them.
        """
        if not self.prefix or self.layout.is_several:
            return {}
        at = {*self.made, *self._paused.until, *([0] if self._options.standby else [])}
        return {p: name for p, name in enumerate(self.names) if all_ or p in at}

    def expect(self, start: Offset) -> None:
        """Notes what a checkpoint knows of consumers that streams keep messages for."""
        if not self.is_prepared:
            self.made, self.prefix = dict(start.consumers), start.consumer

    def check(
        self,
        start: Offset,
        infos: Mapping[str, StreamInfo],
        seen: Mapping[int, ConsumerInfo | None],
        lost: Callable[[str, int, str], None],
    ) -> None:
        """
        Compares the consumers that were seen now with what they were; notes which are paused.

        Raises:
            DataLossError: One is gone for which alone a stream keeps messages (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        for durable in self.durables(start, infos) if seen else ():
            index = durable.partition
            if index not in seen:
                continue
            info = seen[index]
            self._paused.note(index, durable.stream, durable.name, info)
            made = self.made.get(index) if durable.retention == "interest" else None
            if made is not None and (what := gone(durable.name, info, made)):
                lost(durable.stream, index, what)
                del self.made[index]  # the one counts that is there now, or that is to be made
            if info is None:
                self.is_prepared = False  # it is made anew where the query is
            elif edit := edit_of(consumer_config(durable), info):
                raise edited(durable, edit)

    # ── settling ─────────────────────────────────────────────────────────────────────────────

    def settle(self, end: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """
        Settles what is at or before `end`, once. Of a stream that was made anew since, or taken
        back, nothing is settled: it holds other messages under these sequences.
        """
        if not self.is_prepared:
            return
        due = {
            durable: end.sequences[durable.partition]
            for durable in self.durables(end, infos)
            if _is_of(end, durable.partition, infos[durable.stream])
            and self._settled.get(durable.partition) != end.sequences[durable.partition]
        }
        by = self.quick
        limits = {d: at for d, at in due.items() if d.retention == "limits"}
        if self._options.standby:
            self._reset(by, limits)
        elif self._has_reset:
            self.pins.move({d.partition: at + 1 for d, at in limits.items()})
        queues = {d: at for d, at in due.items() if d.retention == "workqueue"}
        self._purge(by, queues, end.streams)
        interest = {d: at for d, at in due.items() if d.retention == "interest"}
        # A reset of a consumer that is gone is not answered at all.
        there = by.consumer_infos([(d.stream, d.name) for d in interest])
        self._reset(by, {d: interest[d] for d, i in zip(interest, there, strict=True) if i})
        self._settled |= {durable.partition: at for durable, at in due.items()}

    def _reset(self, by: JetStream, to: Mapping[Durable, int]) -> None:
        if self._has_reset:
            self.pins.moved({durable.partition: at + 1 for durable, at in to.items()})
            by.resets([(durable.stream, durable.name, at + 1) for durable, at in to.items()])

    @staticmethod
    def _purge(by: JetStream, to: Mapping[Durable, int], created: Mapping[str, str]) -> None:
        """
        Removes what was committed from work queues, if they still are the streams it was read from.
        One without a filter loses all, which is this query's alone if there is no other consumer.
        """
        if not to:
            return
        names = list(dict.fromkeys(durable.stream for durable in to))
        now = dict(zip(names, by.stream_infos(names), strict=True))
        for durable, at in to.items():
            info = now[durable.stream]
            if info.created != created[info.name]:
                continue
            if durable.filter is None and info.consumers > 1:
                raise OptionError(
                    "stream",
                    f"work queue '{info.name}' has {info.consumers} consumers, and this query reads"
                    " all of it: give it the subjects that are its own (subject)",
                )
            by.purge(durable.stream, durable.filter, at + 1)


def _is_of(offset: Offset, partition: int, info: StreamInfo) -> bool:
    """Whether the stream still holds, under the offset's sequences, what was read there."""
    same = info.created == offset.streams[info.name]
    return same and offset.sequences[partition] <= info.last_seq
