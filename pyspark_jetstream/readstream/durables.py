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
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..client.connection import Client
from ..client.inboxes import is_inbox, new_inbox
from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..errors import ApiError, ForeignClientError, JetStreamError, OptionError, ReadError
from ..fetch.consumer import ConsumerRead, consumer_config
from ..fetch.layout import Layout, SubjectPartition
from ..fetch.owner import Owner
from ..fetch.pace import seldom_s
from ..sanitize import get_logger
from .arrivals import Arrivals, pull
from .offsets import Offset
from .options import SourceOptions
from .ownership import ConsumerView, foreign_client
from .pinwatch import PinWatch

__all__ = ["Durables"]

logger = get_logger(__name__)

_SERVER_PRIORITY_TIMEOUT_S: Final = 120.0
"""JsDefaultPinnedTTL."""

_ALIVE_WITHIN_S: Final = 2.0
"""A driver that is asked whether it is alive answers within it."""

_LOOK_EVERY_S: Final = 1.0
"""The consumers are not looked at more often, however short batches are; far away less often."""

_MARGIN_S: Final = 5.0


class Durables:
    """The consumers of all partitions of one query."""

    def __init__(self, js: JetStream, options: SourceOptions, layout: Layout) -> None:
        self._js = js
        self._options = options
        self._layout = layout
        self._prepared = False
        self._host = socket.gethostname()
        self._inbox = new_inbox(options.connection.inbox_prefix)
        self._watch: PinWatch | None = None
        self._arrivals = Arrivals(lambda: new_inbox(options.connection.inbox_prefix))
        self._began = self._looked = self._planned = time.monotonic()
        self._heard = ""
        """The query's name, as of the last look."""
        self._waiting_since: dict[int, float] = {}
        self._lapses_told = False
        self._behind: set[int] = set()
        """
        Partitions of `limits` streams that were read without their consumers, which still are to be
        moved along.
        """

    def close(self) -> None:
        """Ends what listens for pins."""
        if self._watch is not None:
            self._watch.close()

    def report(self, partition: int) -> dict[str, Any]:
        """The pin of a partition's consumer for the progress; empty before there is one."""
        return self._watch.report(partition) if self._watch is not None else {}

    def read(
        self,
        partition: SubjectPartition,
        offset: Offset,
        info: StreamInfo,
        end: int = 0,
        expected: int | None = None,
    ) -> ConsumerRead:
        """What a task reads of `partition`, from `offset` on, through its consumer."""
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
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
            owner=self.owner(offset.query),
            on_invalid_subject=options.on_invalid_subject,
        )

    def owner(self, query: str) -> Owner:
        """This run of the query."""
        heard = self._watch.query_name if self._watch is not None else ""
        name = self._options.query_name or heard
        return Owner(query, self._host, os.getpid(), self._inbox, self._options.standby, name)

    def prepare(
        self,
        start: Offset,
        resumed: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
    ) -> None:
        """
        Once a run, when the offsets are safe: every consumer exists and stands at `start`, and
        what the run before committed but could not settle is settled.

        Raises:
            OptionError: A consumer of that name is of another kind.
            ForeignClientError: It belongs to another query, whose driver lives.
            ReadError: The server refuses to make one.
        """
        if self._prepared:
            return
        reads = [self.read(p, start, infos[p.stream]) for p in self._layout]
        self._listen(reads)
        consumers = self._js.consumer_infos([(read.stream, read.consumer) for read in reads])
        self._refuse(reads, consumers)
        missing = [read for read, info in zip(reads, consumers, strict=True) if info is None]
        for read in missing:
            if resumed and read.retention == "interest":
                lost(
                    read.stream,
                    read.partition,
                    f"the consumer '{read.consumer}' is gone, and with it the stream's interest"
                    " in what came since",
                )
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
        self._prepared = True
        self._began = self._looked = self._planned = time.monotonic()

    # ── whose they are ───────────────────────────────────────────────────────────────────────

    def _listen(self, reads: Sequence[ConsumerRead]) -> None:
        if self._watch is None and reads[0].owner is not None:
            connection = self._options.connection
            names = [(read.stream, read.consumer, read.partition) for read in reads]
            self._watch = PinWatch(connection, reads[0].owner, names, self._arrivals)
            if not self._watch.wait(connection.connect_timeout_s):
                logger.warning("nobody listens for pins yet; the query goes on")

    def _refuse(
        self, reads: Sequence[ConsumerRead], consumers: Sequence[ConsumerInfo | None]
    ) -> None:
        """Every check of consumers that are there already, before any of them is touched."""
        asked: dict[str, bool] = {}
        for read, info in zip(reads, consumers, strict=True):
            if info is None:
                continue
            _check(read, info)
            other = Owner.of(info.config)
            mine = read.owner.query if read.owner is not None else ""
            if other is None or not other.query or not mine or other.query == mine:
                continue
            if other.standby and self._options.standby:
                continue  # the lease has decided
            if other.inbox not in asked:
                asked[other.inbox] = self._is_alive(other)
            if asked[other.inbox]:
                raise ForeignClientError(
                    read.stream,
                    read.partition,
                    f"consumer '{read.consumer}' belongs to {other}, which is running with another"
                    " checkpoint: two queries cannot read through one consumer. Give this query"
                    " another name in option consumer, or stop that one (standby=true lets one wait"
                    " for the other)",
                )
            logger.warning(
                "stream=%s consumer=%s taken over from %s, which does not answer",
                read.stream, read.consumer, other,
            )  # fmt: skip

    def _is_alive(self, other: Owner) -> bool:
        """Whether the driver of that run answers; one that names no inbox is not asked."""
        if not is_inbox(f"{other.inbox}.owner", self._options.connection.inbox_prefix):
            return False
        client = Client(self._options.connection)
        try:
            reply = client.connection.request(f"{other.inbox}.owner", b"", _ALIVE_WITHIN_S)
            return reply.status == 0
        except JetStreamError as error:
            logger.info("no answer from %s: %s", other, error)
            return False
        finally:
            client.close()

    def look(self, start: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """
        Before a batch, while no attempt of this query runs: is anybody else at its consumers?

        Raises:
            ForeignClientError: Another query has taken one over, or another client pulls from it.
        """
        now = time.monotonic()
        gap_s, self._planned = now - self._planned, now
        timeout_s = self._options.priority_timeout_s or _SERVER_PRIORITY_TIMEOUT_S
        if gap_s > timeout_s and not self._lapses_told:
            self._lapses_told = True
            logger.info(
                "pins end between batches: gap=%.0fs priorityTimeout=%.0fs", gap_s, timeout_s
            )
        if self._watch is None:
            return
        name = self._watch.query_name
        often_s = seldom_s(_LOOK_EVERY_S, self._js.client.connection.round_trip_s)
        if now - self._looked < often_s and name == self._heard:
            return
        self._looked, self._heard = now, name
        patience_s = self._options.connection.request_timeout_s + _MARGIN_S
        reads = [self.read(p, start, infos[p.stream]) for p in self._layout]
        consumers = self._js.consumer_infos([(read.stream, read.consumer) for read in reads])
        for read, info in zip(reads, consumers, strict=True):
            if info is None:
                continue  # the attempt makes it again, or says that it cannot
            owner = Owner.of(info.config)
            if owner is not None and owner.inbox != self._inbox:
                raise ForeignClientError(
                    read.stream,
                    read.partition,
                    f"{owner} has taken consumer '{read.consumer}' over from this run; stop one of"
                    " them, or give each a name of its own in option consumer",
                )
            if owner is not None and read.owner is not None and owner.name != read.owner.name:
                self._js.create_consumer(read.stream, _updated(read, info))  # known by now
            self._watch.seen(read.partition, info.pinned_id, info.pinned_ts)
            waiting = max(0, info.num_waiting - self._arrivals.is_open(read.partition))
            since = self._waiting_since.setdefault(read.partition, now)
            if not waiting:
                since = now
                del self._waiting_since[read.partition]
            why = foreign_client(
                ConsumerView(
                    pinned=info.pinned_id,
                    stranger=self._watch.is_stranger(read.partition, info.pinned_id),
                    waiting=waiting,
                    waiting_for_s=now - since,
                    settles=read.retention != "limits",
                    gap_s=gap_s,
                    timeout_s=timeout_s,
                    age_s=now - self._began,
                    patience_s=patience_s,
                )
            )
            if why is not None:
                raise ForeignClientError(
                    read.stream, read.partition, f"consumer '{read.consumer}': {why}"
                )
        self._catch_up(start, infos, reads, consumers)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def wait(self, start: Offset, infos: Mapping[str, StreamInfo], timeout_s: float) -> bool:
        """
        Returns when there is a message behind `start`, after `timeout_s` at the latest; False if
        there is none, by all that can be heard (`arrivals`).
        """
        if self._prepared and self._watch is not None:
            reads = [self.read(p, start, infos[p.stream]) for p in self._layout]
            try:
                self._pull(reads, start.sequences, self._watch)
            except JetStreamError as error:
                logger.info("not heard when messages come: %s", error)
                self._arrivals.found(range(len(reads)))
        return self._arrivals.wait(start.sequences, timeout_s)

    def _pull(self, reads: Sequence[ConsumerRead], where: tuple[int, ...], watch: PinWatch) -> None:
        connection = self._js.client.connection
        subjects = [f"{self._js.prefix}.CONSUMER.MSG.NEXT.{r.stream}.{r.consumer}" for r in reads]
        if not all(map(connection.may_ask, subjects)):
            self._arrivals.listens(False)
        for index, inbox in self._arrivals.due(where, time.monotonic()).items():
            connection.ask(subjects[index], inbox, pull(reads[index].group, watch.pin(index)))

    def is_quiet(self, where: object) -> bool:
        """Whether nothing was heard since `wait` was called with a start of these sequences."""
        return self._arrivals.is_quiet(where)

    def found(self, partitions: Sequence[int]) -> None:
        """A batch has messages of these."""
        self._arrivals.found(partitions)

    # ── settling ─────────────────────────────────────────────────────────────────────────────

    def settle(
        self, end: Offset, infos: Mapping[str, StreamInfo], without: set[int], amid: bool = False
    ) -> None:
        """
        Settles what is at or before `end`; `without` are partitions read without these. Of a stream
        that was made anew since, or taken back, nothing is: it holds other messages under these
        sequences.

        Args:
            amid: whether as much again is to come: what nothing but the server's own view of a lag
                hangs on is done at the next look then.
        """
        same = [p for p in self._layout if _is_of(end, p.index, infos[p.stream])]
        reads = [self.read(p, end, infos[p.stream]) for p in same]
        without = without | self._behind
        self._behind = {r.partition for r in reads if amid and r.retention == "limits"} & without
        without = without - self._behind
        resets = [r for r in reads if r.retention == "interest" or r.partition in without]
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
        behind, self._behind = self._behind, set()
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
            logger.warning("consumers are not moved along, the next batch will: %s", error)

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
            raise ReadError(
                read.stream,
                read.partition,
                f"the server refuses the consumer '{read.consumer}': {error.description} (err_code"
                f" {error.err_code}); see `nats consumer ls {read.stream}` for one in its way",
            ) from None


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
    wanted = consumer_config(read)
    settling = {key: None for key in ("max_ack_pending", "ack_wait") if key in wanted}
    for key, default in (_MATTERS | settling).items():
        has, needs = info.config.get(key, default), wanted.get(key, default)
        if has != needs and not (key in _UNLIMITED and has in (0, -1)):
            raise OptionError(
                "consumer",
                f"stream '{read.stream}' has a consumer '{read.consumer}' with {_words(key, has)}"
                f" where this query needs {_words(key, needs)}; {_way_out(read, key)}",
            )


def _way_out(read: ConsumerRead, key: str) -> str:
    """What can be done about a consumer that does not fit, and costs nobody a message."""
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


def _words(key: str, value: Any) -> str:
    if key == "deliver_subject":
        return f"deliver_subject '{value}', a push consumer" if value else "a pull consumer"
    return f"{key} {value!r}" if value is not None else f"no {key}"


_MATTERS: Final[dict[str, Any]] = {
    "deliver_subject": None,
    "filter_subject": None,
    "filter_subjects": None,
    "ack_policy": "explicit",
    "priority_policy": None,
    "priority_groups": None,
    "deliver_policy": "all",
    "replay_policy": "instant",
    "headers_only": False,
    "max_deliver": -1,
    "max_batch": 0,
    "max_expires": 0,
    "max_bytes": 0,
    "rate_limit_bps": 0,
}
"""What a consumer's configuration must agree in, and what a missing field stands for."""

_UNLIMITED: Final = frozenset({"max_deliver", "max_batch", "max_expires", "max_bytes"})
"""Where 0 and -1 both mean no limit."""
