"""
One task's write: its rows become messages, go out once, and are accounted for.

Without a ledger a task publishes its rows and counts their PubAcks. With one (`exactlyOnce`):

1. Rows are mapped as the batch's first task has noted, whatever the option says now
   (`batchmapping`). The task's record is made before the first publish; it notes where each target
   stream ends. If the ledger says that the whole batch is committed, there is nothing to do.
2. If there was a record of an earlier attempt, the ids behind the noted sequences are read, and
   rows that are there are left out (`recovery`). As that attempt may still be alive somewhere, they
   are read again whenever half of the duplicate window has passed: what it stores in between is in
   the window, and the stream drops ours.
3. The attempt looks from time to time whether the record is still its own: one that was thought
   dead and comes back stops (`WriterFencedError`).
4. When every row is stored, it looks once more. The driver's commit follows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.peer import away_s
from ..errors import (
    ApiError,
    DuplicateIdError,
    JetStreamError,
    LedgerError,
    OptionError,
    PublishError,
    RowError,
    StreamNotFoundError,
    TargetChangedError,
)
from ..outbox.deadletters import SUBJECT as DESTINATION
from ..outbox.messages import Messages
from ..outbox.priority import Priorities
from ..outbox.targets import Target, Targets
from ..outbox.throttleprotocol import new_producer_id
from ..publish.lanes import atomiclane
from ..publish.lanes.lane import earliest
from ..publish.options import SinkOptions
from ..publish.publisher import Hooks, publish
from ..publish.telemetry import Counts, Origin, Telemetry
from ..sanitize import get_logger
from .batchmapping import BatchMapping, digest
from .changes import Seen
from .ids import Ids
from .ledger import BUCKET, Ledger, Look, Record, TaskName
from .recovery import Recovery
from .reroutes import Reroutes
from .rows import MessageBuilder

__all__ = ["Report", "Streams", "Written", "target_fault", "write_task"]

logger = get_logger(__name__)

_LOOK_S: Final = 1.0
"""How long a question may take whose answer the publishes wait for."""

_FENCE: Final = 0.25
_REFRESH: Final = 0.5
"""Parts of the shortest duplicate window after which the ledger and the streams are read again."""


class Written(NamedTuple):
    """What became of a task's rows."""

    rows: int
    acked: int
    duplicates: int
    """Of the acked: those a stream had already, by their `Nats-Msg-Id`."""
    retries: int
    """Publishes sent again."""
    lost: int
    """Rows that the mapping loses, as its weights say."""
    stored: int
    """Rows that an earlier attempt had stored; they were not published again."""
    dead_letters: int = 0
    """Rows that were shed or rejected and are stored elsewhere (`deadLetterSubject`)."""
    dropped: int = 0
    """Rows that were shed and are gone (`overloadPolicy=drop`)."""

    @property
    def adds_up(self) -> bool:
        """Whether it is known of every row where it is."""
        return self.rows == self.acked + self.lost + self.stored + self.dead_letters + self.dropped


@dataclass(slots=True)
class Report:
    """What a task says beside its counts; it grows while the task writes."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    seen: list[Seen] = field(default_factory=list)
    """The target streams as they were found, for the commit."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Names of headers that did not go out, and of how many rows."""
    fresh: int = 0
    """Rows that have a sequence of their own behind the ends of these streams, as far as known."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Who writes, and what of it is his."""

    client: Client
    options: SinkOptions
    name: TaskName
    number: int
    """Of the attempt."""
    id_prefix: str | None
    look: Look | None
    """At the ledger, before its first row was made."""

    @property
    def origin(self) -> Origin:
        """As operators see it."""
        producer_id = new_producer_id((self.name, self.number))
        return Origin(producer_id, self.name.write, self.name.batch)

    def counts_duplicates(self, builder: MessageBuilder, is_first: bool) -> bool:
        """
        Whether rows that a stream had already count as duplicates. In a fast batch they do not.

        Args:
            is_first: whether no other attempt has stored rows under ids that are made for them.
        """
        if self.options.publish_mode in ("async", "atomic"):
            return True
        return not builder.has_own_ids and (is_first or self.id_prefix is None)


def write_task(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    name: TaskName,
    ids: Ids | None,
    attempt: int = 0,
    report: Report | None = None,
) -> Written | None:
    """
    Writes the rows of one task and returns when each is stored; None if its batch was committed.

    Args:
        name: the same in every attempt of the task.
        ids: of what the `Nats-Msg-Id` of rows without one is made; None makes none.
        attempt: of the task; operators see it as a producer of its own.
        report: gets what is to be said of the task.

    Raises:
        RowError: A row cannot be a message.
        PublishError: A row was not stored; rows before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    report = report or Report()
    streams = Streams(client, options)
    connection = client.connection
    away_s(connection)  # now: while rows are made the PONG would lie in the socket
    own = way = _way(client, options)
    note, look = b"", None
    id_prefix = None if ids is None else f"{ids.prefix}-{name.task}"
    if options.ledger:
        ledger = Ledger(JetStream(client))
        look = ledger.look(name, ids is not None and ids.keyed, way.mapping is not None)
        if ids is not None:
            id_prefix = ledger.id_prefix(name, ids, look)
        if way.mapping is not None:
            way, note = _agreed(ledger, name, own, look)
    if options.dead_letter_subject is not None:
        streams.look_up_dead(
            options.dead_letter_subject.replace(DESTINATION, options.rows.subject or "_")
        )
    task = _Task(client, options, name, attempt, id_prefix, look)
    reroutes = _reroutes(options, way, streams.targets)
    builder = MessageBuilder(
        options=replace(options.rows, mapping=way.mapping, mapping_key=way.key),
        partition=name.task,
        cluster=way.cluster,
        id_prefix=id_prefix,
        max_payload=connection.max_payload
        - (atomiclane.HEADER_BYTES if options.publish_mode == "atomic" else 0),
        targets=streams.targets,
        priorities=_priorities(options),
        reroutes=reroutes,
    )
    if not options.ledger or streams.targets is None:
        with closing(streams):
            counts = _publish_all(task, batches, builder, streams, reroutes, report)
            report.seen += streams.holding(counts.stored_in)
            report.seen += streams.holding_dead(counts.dead_in)
            report.left_out.update(builder.left_out)
            done = _written(builder, 0, counts)
            if task.counts_duplicates(builder, is_first=False):
                report.fresh = _fresh(done, counts, streams.seen)
            return done
    one = _Attempt(task, builder, streams, streams.targets, digest(note))
    with closing(streams):
        try:
            written = one.run(iter(batches), report.telemetry, reroutes)
        except (OptionError, RowError) as error:
            if way == own:
                raise
            raise _begun_otherwise(error, name) from error
        if written is not None:
            report.seen += one.seen
            report.fresh = one.fresh
            report.left_out.update(builder.left_out)
        return written


def _publish_all(
    task: _Task,
    batches: Iterable[pa.RecordBatch],
    builder: MessageBuilder,
    streams: Streams,
    reroutes: Reroutes | None,
    report: Report,
) -> Counts:
    """Publishes all rows without a ledger."""
    messages = (builder.build(batch) for batch in batches)
    first = next(messages, None)
    streams.publishing = True
    hooks = _hooks(builder, reroutes)
    blocks = messages if first is None else chain((first,), messages)
    counts = publish(
        task.client, task.options, blocks, streams.targets, hooks, task.origin, report.telemetry
    )
    _say(reroutes)
    return counts


def _hooks(builder: MessageBuilder, reroutes: Reroutes | None, **others: Any) -> Hooks:
    return Hooks(
        on_pauses=reroutes.on_pauses if reroutes is not None else None,
        unrecognised=lambda: builder.unrecognised,
        **others,
    )


def _way(client: Client, options: SinkOptions) -> BatchMapping:
    mapping = options.rows.mapping
    of_cluster = mapping is not None and mapping.needs_cluster
    cluster = client.connection.info.get("cluster") if of_cluster else None
    return BatchMapping(mapping, options.rows.mapping_key, str(cluster) if cluster else None)


def _begun_otherwise(error: OptionError | RowError, name: TaskName) -> JetStreamError:
    """A fault that the rows may owe to a mapping that is not the options' any more."""
    told = (
        "Rows go by the subjectMapping that the batch was begun with, not by the one of today; if"
        f" that is the fault, `nats kv del {BUCKET} {name.write}.{name.batch}.mapping` lets the"
        " batch begin with this one, unless rows of it are stored"
    )
    if isinstance(error, RowError):
        return RowError(error.subject, f"{error.detail}. {told}")
    return OptionError(error.option, f"{error.reason}. {told}")


def _agreed(
    ledger: Ledger, name: TaskName, own: BatchMapping, look: Look
) -> tuple[BatchMapping, bytes]:
    """
    The mapping of the task's batch, and how the ledger has it.

    Raises:
        LedgerError: It cannot be read or noted.
    """
    note = ledger.agree(name, own.note(), look)
    try:
        mapping = BatchMapping.of(note)
    except ValueError as error:
        raise LedgerError(
            str(name),
            f"the mapping that its batch was begun with cannot be read: {error}; go on with the"
            " version of this package that wrote it until the batch is committed",
        ) from None
    if mapping != own:
        logger.warning(
            "task=%s: rows go by the subjectMapping that the batch was begun with; another one"
            " holds from the next batch on", name,
        )  # fmt: skip
    return mapping, note


def _reroutes(options: SinkOptions, way: BatchMapping, targets: Targets | None) -> Reroutes | None:
    if way.mapping is None or not way.mapping.needs_identity or way.key is not None:
        return None  # a key's rows belong together
    if options.rows.reroutes_weights or targets is not None:
        return Reroutes(way.mapping, options.rows.reroutes_weights, targets, way.cluster)
    return None


def _say(reroutes: Reroutes | None) -> None:
    if reroutes is not None and reroutes.rows:
        logger.info("rows=%d went elsewhere than to paused subjects", reroutes.rows)


def _priorities(options: SinkOptions) -> Priorities:
    """
    The rules, with the user's function.

    Raises:
        OptionError: There is none where the option says.
    """
    if options.priority_resolver is None:
        return options.priorities
    module, _, name = options.priority_resolver.partition(":")
    try:
        return replace(options.priorities, resolver=getattr(import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise OptionError("priorityResolver", f"{error}; executors must have it, too") from None


def target_fault(target: Target, options: SinkOptions) -> OptionError | None:
    """Why rows cannot be written into this stream as the options say."""
    fault = target.mode_fault(options.publish_mode)
    if fault is not None:
        return OptionError("publishMode", fault)
    mode = options.publish_mode
    if not options.ledger:
        return None
    fault = target.fault(options.window.ack_timeout_s, mode)
    if fault is None and options.dead_letter_subject:
        fault = target.later_rows_fault(
            "of rows that may be dead letters",
            "send them to a stream that keeps all its messages, leave deadLetterSubject out",
        )
    if fault is None and not options.rules.by_lane:
        fault = target.later_rows_fault(
            "where rows overtake each other (publishOrder=none)",
            "write into a stream that keeps all its messages, leave publishOrder out",
        )
    return None if fault is None else OptionError("exactlyOnce", fault)


class Streams:
    """
    Looks up which stream takes a subject, where the write depends on it.

    While publishes are under way, requests go over a second connection: on the first one PubAcks
    arrive.
    """

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self.publishing = False
        """Whether PubAcks are under way on the task's own connection."""
        self.seen: dict[str, Seen] = {}
        """Each stream at the moment it was found."""
        self._client = client
        self._control = Client(options.connection)
        # Of what is asked while PubAcks wait, in the one loop there is.
        brief_s = min(_LOOK_S, options.connection.request_timeout_s)
        self._hasty = Client(replace(options.connection, request_timeout_s=brief_s))
        self._options = options
        asks = options.rows.require_stream or options.publish_mode != "async"
        self._dead: set[str] = set()
        """Those of dead letters alone, as far as is known."""
        self.targets = Targets(self._find) if asks or options.rules.sheddable else None

    def close(self) -> None:
        """Closes the second connection."""
        self._control.close()
        self._hasty.close()

    @property
    def client(self) -> Client:
        """The connection for requests."""
        return self._control if self.publishing else self._client

    @property
    def hasty(self) -> Client:
        """Likewise, for what is not waited for."""
        return self._hasty

    def _find(self, subjects: list[str]) -> list[Target | None]:
        js = JetStream(self.client)
        try:
            names = js.streams_of(subjects)
            there = list(dict.fromkeys(name for name in names if name is not None))
            infos = dict(zip(there, js.stream_infos(there), strict=True)) if there else {}
        except JetStreamError as error:
            # Without the permission to ask, a PubAck for each message always works.
            batched = self._options.publish_mode in ("fast", "atomic")
            off = isinstance(error, ApiError) and error.is_off
            if self._options.ledger or batched or error.retryable or off:
                raise
            logger.info("publishing subject=%s mode=async reason=%s", subjects[0], error)
            if self.targets is not None:
                self.targets.is_blind = True
            return [None] * len(subjects)
        for name, info in infos.items():
            now = Seen.of(info)
            before = self.seen.setdefault(name, now)
            if now.created != before.created:
                raise TargetChangedError(name, before.made_anew(now))
        targets = {name: Target.parse(info.config) for name, info in infos.items()}
        return [None if name is None else targets[name] for name in names]

    def holding(self, stored_in: Mapping[str, int]) -> list[Seen]:
        """The streams as they were found, where they are known to have rows now."""
        return [
            seen.holding(stored_in.get(name, 0))
            for name, seen in self.seen.items()
            if name in stored_in or name not in self._dead
        ]

    def look_up_dead(self, subject: str) -> None:
        """
        Notes the stream of dead letters before there is one.

        Args:
            subject: of them; where rows' own stand in it, which are not known yet, one like them.
        """
        known = set(self.seen)
        self._find([subject])
        self._dead = set(self.seen) - known

    def holding_dead(self, stored_in: Mapping[str, int]) -> list[Seen]:
        """The streams of dead letters as they were found, or else as they are at the end."""
        js = JetStream(self._client)
        found = []
        for name, first in stored_in.items():
            if (before := self.seen.get(name)) is not None:
                found.append(replace(before.holding(first), is_target=False))
                continue
            try:
                now = Seen.of(js.stream_info(name))
            except StreamNotFoundError:
                now = Seen(name, "", first, "", keeps=True)  # the commit looks again
            except JetStreamError as error:
                logger.warning("stream=%s: what it has was not looked at: %s", name, error)
                continue
            end = max(first, now.end)
            found.append(replace(now, end=end, first=first, is_target=False))
        return found


class _Attempt:
    """One attempt of a task under the ledger."""

    def __init__(
        self,
        task: _Task,
        builder: MessageBuilder,
        streams: Streams,
        targets: Targets,
        mapping: str,
    ) -> None:
        """
        Args:
            mapping: digest of the mapping that rows go by.
        """
        self._task = task
        self._builder = builder
        self._streams = streams
        self._targets = targets
        self._mapping = mapping
        targets.again = self._as_they_are
        self._reached: dict[str, Target] = {}
        self._record: Record | None = None
        self._recovery: Recovery | None = None
        self._moves = False
        """Whether earlier attempts may have sent rows to other subjects."""
        self._earlier: list[Target] = []
        self._looked_at = 0.0
        self.seen: list[Seen] = []
        """The streams that rows of this attempt, or of earlier ones, went to; when it has ended."""
        self.fresh = 0
        """Rows that have a sequence of their own there, as far as known."""
        self._asking = threading.Lock()
        """Who makes rows and who publishes them both ask the ledger, over one connection."""

    def run(
        self,
        batches: Iterator[pa.RecordBatch],
        telemetry: Telemetry,
        reroutes: Reroutes | None,
    ) -> Written | None:
        """Publishes what is not stored; None if the batch was committed before."""
        task = self._task
        self._moves = reroutes is not None
        first = next((m for m in map(self._builder.build, batches) if len(m)), None)
        if first is None:  # the mapping loses all of its rows
            return _written(self._builder, 0, Counts(0, 0, 0, 0))
        new = self._new_targets(first)
        ledger = Ledger(JetStream(task.client))
        ids = task.id_prefix or ""
        record = ledger.begin(task.name, self._seen(new), self._mapping, ids, task.look)
        if record is None:
            logger.info("committed before task=%s", task.name)
            return None
        self._record, self._looked_at = record, time.monotonic()
        self._reached.update(new)
        if record.again:
            self._recover(record)
        self._streams.publishing = True
        fresh = self._unseen if self._recovery is not None else None
        asks = {"watch": self._look, "fresh": fresh, "repeated": self._check_repeated}
        hooks = _hooks(self._builder, reroutes, **asks)
        rows = self._rows(first, batches)
        counts = publish(
            task.client, task.options, rows, self._targets, hooks, task.origin, telemetry
        )
        _say(reroutes)
        self._streams.publishing = False
        stored, stored_in = 0, counts.stored_in
        if self._recovery is not None:
            self._recovery.check_end(self._builder.rows)
            stored = self._recovery.stored
            stored_in = earliest((stored_in, self._recovery.stored_in))
        written = _written(self._builder, stored, counts)
        self._check_reached(counts.stored_in)
        Ledger(JetStream(task.client)).check(record)
        found = [seen for seen in self._streams.seen.values() if seen.name in self._reached]
        self.seen = [
            seen.since(record.streams.get(seen.name, seen.before)).holding(
                stored_in.get(seen.name, 0)
            )
            for seen in found
        ]
        self.seen += [seen.since(record.streams[seen.name]) for seen in self._elsewhere(stored_in)]
        if task.counts_duplicates(self._builder, is_first=not record.forgotten):
            self.fresh = _fresh(written, counts, {seen.name for seen in self.seen})
        self.seen += self._streams.holding_dead(counts.dead_in)
        return written

    def _check_reached(self, stored_in: Iterable[str]) -> None:
        """
        Raises:
            TargetChangedError: A stream has rows that the ledger did not know to look in; the next
                attempt looks there.
        """
        names = [name for name in stored_in if name not in self._reached]
        if not names:
            return
        record = self._record
        try:
            if record is not None:
                found = self._elsewhere(names)
                Ledger(JetStream(self._task.client)).extend(record, found, late=True)
        except JetStreamError as error:
            logger.warning(
                "task=%s: that %s has rows is not noted: %s", self._task.name, names, error
            )
        known = ", ".join(self._reached)
        raise TargetChangedError(
            names[0],
            f"it has rows that were for {known}: it took their subjects over while rows"
            " were written (or the server maps subjects: set exactlyOnce=false then)",
        )

    def _elsewhere(self, names: Iterable[str]) -> list[Seen]:
        """Those of these streams that this attempt does not write to, as they are now."""
        others = [name for name in names if name not in self._reached]
        infos = JetStream(self._task.client).stream_infos_there(others) if others else []
        return [Seen.of(info) for info in infos if info is not None]

    def _rows(self, first: Messages, batches: Iterator[pa.RecordBatch]) -> Iterator[Messages]:
        """All messages; the ledger knows where they go."""
        yield first
        for batch in batches:
            with self._asking:
                messages = self._builder.build(batch)
                if len(messages):
                    self._admit(messages)
            yield messages

    def _look(self) -> None:
        """Stops this attempt when another one has taken the task over."""
        if not self._asking.acquire(blocking=False):
            return  # now somebody else asks; this is called all the time
        try:
            self._look_now()
        finally:
            self._asking.release()

    def _look_now(self) -> None:
        if time.monotonic() - self._looked_at < _FENCE * self._window_s():
            return
        self._looked_at = time.monotonic()
        try:
            if self._record is not None:
                Ledger(JetStream(self._streams.client)).check(self._record)
        except JetStreamError as error:
            if not error.retryable:
                raise
            # The publishes have their own deadline, and the last look is still to come.
            logger.info("no look into the ledger task=%s reason=%s", self._task.name, error)

    # ── targets ──────────────────────────────────────────────────────────────────────────────

    def _new_targets(self, messages: Messages) -> dict[str, Target]:
        """
        Streams these messages go to that none before went to.

        Raises:
            OptionError: One does not let a write be exactly once.
        """
        new: dict[str, Target] = {}
        for place in _places(messages).to_pylist():
            target = self._targets[place]
            if target.name in self._reached:
                continue
            fault = target_fault(target, self._task.options)
            if fault is not None:
                raise fault
            new[target.name] = target
        return new

    def _as_they_are(self, known: list[Target]) -> list[Target | None]:
        """Streams that rows go to, now, all asked at once; None for one that does not say."""
        names = [target.name for target in known]
        with self._asking:
            try:
                infos = JetStream(self._streams.hasty).stream_infos_there(names)
            except JetStreamError as error:
                asked = str(getattr(error, "subject", "")).rpartition(".")[2]
                silent = names.index(asked) if asked in names else 0
                logger.warning(
                    "task=%s: rows that may be stored wait until stream=%s can be looked at: %s",
                    self._task.name, names[silent], error,
                )  # fmt: skip
                return [None if i == silent else target for i, target in enumerate(known)]
        # One that is gone has no rows; publishes will hear so.
        return [
            target if info is None else Target.parse(info.config)
            for target, info in zip(known, infos, strict=True)
        ]

    def _seen(self, targets: dict[str, Target]) -> list[Seen]:
        return [self._streams.seen[name] for name in targets]

    def _admit(self, messages: Messages) -> None:
        """Tells the ledger where messages of a later batch go."""
        new = self._new_targets(messages)
        if new and self._record is not None:
            ledger = Ledger(JetStream(self._streams.client))
            ledger.extend(self._record, self._seen(new))
            self._looked_at = time.monotonic()
            self._reached.update(new)
            for name, target in new.items():
                since = self._record.streams[name]
                if self._recovery is not None and since.end < self._streams.seen[name].end:
                    self._earlier.append(target)  # it took subjects over under an earlier attempt
                    self._recovery.look_in(name, since)

    # ── what is stored already ───────────────────────────────────────────────────────────────

    def _recover(self, record: Record) -> None:
        self._streams.publishing = True
        js = JetStream(self._streams.client)
        for name in record.streams:
            try:
                self._earlier.append(Target.parse(js.stream_info(name).config))
            except StreamNotFoundError:
                logger.warning("task=%s: stream %s is gone", self._task.name, name)
        name, prefix = str(self._task.name), self._task.id_prefix
        self._recovery = Recovery(self._streams.client, name, record.streams, prefix, self._moves)

    def _unseen(self, messages: Messages) -> pa.Array:
        """BOOL: which of these, about to be sent, no earlier attempt has stored."""
        fresh = pa.array([True] * len(messages))
        recovery, targets = self._recovery, messages.targets
        if recovery is None or targets is None:
            return fresh
        with self._asking:
            recovery.refresh(self._earlier, _REFRESH * self._window_s())
        codes = targets.take(messages.indices)
        for place in _places(messages).to_pylist():
            own = pc.equal(codes, int32(place))
            unseen = recovery.fresh(messages.where(own), self._targets[place])
            fresh = pc.replace_with_mask(fresh, own, unseen)
        return fresh

    def _check_repeated(self, messages: Messages) -> None:
        """
        Rows that were sent once, and whose id their stream knew.

        Raises:
            DuplicateIdError: An id was made for its row, and no attempt before has stored that.
            WriterFencedError: One that came after this one has.
        """
        prefix, record, targets = self._task.id_prefix, self._record, messages.targets
        if prefix is None or messages.ids is None or targets is None:
            return
        if record is None or record.forgotten:
            return  # an operator wants it written again, by the same ids
        made = pc.fill_null(pc.starts_with(messages.ids, f"{prefix}-"), False)
        messages = messages.where(made)
        codes = targets.take(messages.indices)
        for place in _places(messages).to_pylist():
            own, target = messages.where(pc.equal(codes, int32(place))), self._targets[place]
            if self._recovery is not None:  # or has the attempt before stored it just now?
                with self._asking:
                    self._recovery.refresh(self._earlier, 0.0)
                own = own.where(self._recovery.missing(own, target))
            if len(own):
                Ledger(JetStream(self._streams.client)).check(record)
                raise DuplicateIdError(
                    own.distinct[own.codes[0]],
                    own.rows[0].as_py(),
                    own.ids[0].as_py().decode() if own.ids is not None else "",
                    target.name,
                    target.duplicate_window_s,
                )

    def _window_s(self) -> float:
        windows = [target.duplicate_window_s for target in self._reached.values()]
        return min(windows, default=self._task.options.window.publish_timeout_s)


def _places(messages: Messages) -> pa.Array:
    """The distinct target streams of the messages; those that can be none have none."""
    if messages.targets is None:
        return pa.nulls(0, pa.int32())
    return pc.unique(messages.targets.take(messages.indices)).drop_null()


def _fresh(written: Written, counts: Counts, seen: Container[str]) -> int:
    """Rows that have a sequence of their own in these streams; 0 where some may be elsewhere."""
    if not all(name in seen for name in counts.stored_in):
        return 0
    return written.acked - written.duplicates + written.stored


def _written(builder: MessageBuilder, stored: int, counts: Counts) -> Written:
    """
    The task's counts.

    Raises:
        PublishError: They do not add up.
    """
    written = Written(
        builder.rows,
        counts.acked,
        counts.duplicates,
        counts.retries,
        builder.lost,
        stored,
        counts.dead_letters,
        counts.dropped,
    )
    if not written.adds_up:
        raise PublishError("*", f"the rows do not add up, report this: {written}")
    return written
