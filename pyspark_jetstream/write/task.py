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
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.peer import away_s
from ..errors import (
    ApiError,
    JetStreamError,
    LedgerError,
    OptionError,
    PublishError,
    StreamNotFoundError,
)
from ..outbox.messages import Messages
from ..outbox.priority import Priorities
from ..outbox.targets import Target, Targets
from ..outbox.throttleprotocol import new_producer_id
from ..publish import atomiclane
from ..publish.options import SinkOptions
from ..publish.publisher import publish
from ..publish.telemetry import Counts, Origin, Telemetry
from ..sanitize import get_logger
from .batchmapping import BatchMapping, digest
from .changes import Seen
from .ledger import BUCKET, Ledger, Record, TaskName
from .recovery import Recovery
from .reroutes import Reroutes
from .rows import MessageBuilder

__all__ = ["Streams", "Written", "target_fault", "write_task"]

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


def write_task(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    name: TaskName,
    id_prefix: str | None,
    attempt: int = 0,
    telemetry: Telemetry | None = None,
    seen: list[Seen] | None = None,
) -> Written | None:
    """
    Writes the rows of one task and returns when each is stored; None if its batch was committed.

    Args:
        name: the same in every attempt of the task.
        id_prefix: `<id_prefix>-<row number>` is the `Nats-Msg-Id` of a row without one; None
            makes no ids.
        attempt: of the task; operators see it as a producer of its own.
        telemetry: counts what happens.
        seen: gets the target streams as they were found, for the commit.

    Raises:
        RowError: A row cannot be a message.
        PublishError: A row was not stored; rows before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    streams = Streams(client, options)
    connection = client.connection
    away_s(connection)  # now: while rows are made the PONG would lie in the socket
    own = way = _way(client, options)
    note = b""
    if options.ledger and way.mapping is not None:
        way, note = _agreed(client, name, own)
    reroutes = _reroutes(options, way, streams.targets)
    builder = MessageBuilder(
        partition=name.task,
        subject=options.subject,
        mapping=way.mapping,
        mapping_key=way.key,
        cluster=way.cluster,
        id_prefix=id_prefix,
        max_payload=connection.max_payload
        - (atomiclane.HEADER_BYTES if options.publish_mode == "atomic" else 0),
        targets=streams.targets,
        priorities=_priorities(options),
        reroutes=reroutes,
        api_prefix=options.connection.api_prefix,
    )
    if not options.ledger or streams.targets is None:
        messages = (builder.build(batch) for batch in batches)
        with closing(streams):
            first = next(messages, None)
            streams.publishing = True
            batches_out = messages if first is None else chain((first,), messages)
            counts = publish(
                client,
                options,
                batches_out,
                streams.targets,
                origin=_origin(name, attempt),
                telemetry=telemetry,
                on_pauses=reroutes.on_pauses if reroutes is not None else None,
                unrecognised=lambda: builder.unrecognised,
            )
            _say(reroutes)
            if seen is not None:
                seen += streams.seen.values()
            return _written(builder, 0, counts)
    one = _Attempt(
        client, options, name, attempt, id_prefix, builder, streams, streams.targets, digest(note)
    )
    with closing(streams):
        try:
            written = one.run(iter(batches), telemetry, reroutes)
        except OptionError as error:
            if way == own:
                raise
            raise _begun_otherwise(error, name) from error
        if seen is not None and written is not None:
            seen += one.seen()
        return written


def _way(client: Client, options: SinkOptions) -> BatchMapping:
    mapping = options.mapping
    of_cluster = mapping is not None and mapping.needs_cluster
    cluster = client.connection.info.get("cluster") if of_cluster else None
    return BatchMapping(mapping, options.mapping_key, str(cluster) if cluster else None)


def _begun_otherwise(error: OptionError, name: TaskName) -> OptionError:
    """An option's fault, which the rows may owe to a mapping that is not the options' any more."""
    return OptionError(
        error.option,
        f"{error.reason}. Rows go by the subjectMapping that the batch was begun with, not by the"
        f" one of today; if that is the fault, `nats kv del {BUCKET} {name.write}.{name.batch}"
        ".mapping` lets the batch begin with this one, unless rows of it are stored",
    )


def _agreed(client: Client, name: TaskName, own: BatchMapping) -> tuple[BatchMapping, bytes]:
    """
    The mapping of the task's batch, and how the ledger has it.

    Raises:
        LedgerError: It cannot be read or noted.
    """
    note = Ledger(JetStream(client)).agree(name, own.note())
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
    if options.reroutes_weights or targets is not None:
        return Reroutes(way.mapping, options.reroutes_weights, targets, way.cluster)
    return None


def _say(reroutes: Reroutes | None) -> None:
    if reroutes is not None and reroutes.rows:
        logger.info("rows=%d went elsewhere than to paused subjects", reroutes.rows)


def _origin(name: TaskName, attempt: int) -> Origin:
    return Origin(new_producer_id((name, attempt)), name.write, name.batch)


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


def target_fault(target: Target | None, options: SinkOptions, subject: str) -> OptionError | None:
    """Why rows on this subject cannot be written as the options say."""
    if target is None:
        if not options.ledger:
            return None
        return OptionError(
            "exactlyOnce",
            f"no stream of this account takes subject '{subject}', so nothing can be said of what"
            " it stores; create the stream (createStream does), check the subject, or set"
            " exactlyOnce=false",
        )
    fault = target.mode_fault(options.publish_mode)
    if fault is not None:
        return OptionError("publishMode", fault)
    mode = options.publish_mode
    fault = target.fault(options.ack_timeout_s, mode) if options.ledger else None
    if options.ledger and options.dead_letter_subject and fault is None:
        fault = target.dead_letters_fault()
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
        needed = options.ledger or options.publish_mode != "async" or options.rules.sheddable
        self.targets = Targets(self._find) if needed else None

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

    def _find(self, subject: str) -> Target | None:
        js = JetStream(self.client)
        try:
            name = js.stream_of(subject)
            if name is None:
                return None
            info = js.stream_info(name)
        except JetStreamError as error:
            # Without the permission to ask, a PubAck for each message always works.
            batched = self._options.publish_mode in ("fast", "atomic")
            off = isinstance(error, ApiError) and error.is_off
            if self._options.ledger or batched or error.retryable or off:
                raise
            logger.info("publishing subject=%s mode=async reason=%s", subject, error)
            return None
        self.seen[name] = Seen.of(info)
        return Target.parse(info.config)


class _Attempt:
    """One attempt of a task under the ledger."""

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        name: TaskName,
        number: int,
        id_prefix: str | None,
        builder: MessageBuilder,
        streams: Streams,
        targets: Targets,
        mapping: str,
    ) -> None:
        """
        Args:
            mapping: digest of the mapping that rows go by.
        """
        self._client = client
        self._options = options
        self._name = name
        self._number = number
        self._id_prefix = id_prefix
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
        self._asking = threading.Lock()
        """Who makes rows and who publishes them both ask the ledger, over one connection."""

    def run(
        self,
        batches: Iterator[pa.RecordBatch],
        telemetry: Telemetry | None,
        reroutes: Reroutes | None,
    ) -> Written | None:
        """Publishes what is not stored; None if the batch was committed before."""
        self._moves = reroutes is not None
        first = next((m for m in map(self._builder.build, batches) if len(m)), None)
        if first is None:  # the mapping loses all of its rows
            return _written(self._builder, 0, Counts(0, 0, 0, 0))
        new = self._new_targets(first)
        ledger = Ledger(JetStream(self._client))
        record = ledger.begin(self._name, self._seen(new), self._mapping)
        if record is None:
            logger.info("committed before task=%s", self._name)
            return None
        self._record, self._looked_at = record, time.monotonic()
        self._reached.update(new)
        if record.again:
            self._recover(record)
        self._streams.publishing = True
        counts = publish(
            self._client,
            self._options,
            self._rows(first, batches),
            self._targets,
            self._look,
            self._unseen if self._recovery is not None else None,
            _origin(self._name, self._number),
            telemetry,
            reroutes.on_pauses if reroutes is not None else None,
            lambda: self._builder.unrecognised,
        )
        _say(reroutes)
        self._streams.publishing = False
        stored = 0
        if self._recovery is not None:
            self._recovery.check_end(self._builder.rows)
            stored = self._recovery.stored
        written = _written(self._builder, stored, counts)
        Ledger(JetStream(self._client)).check(record)
        return written

    def seen(self) -> list[Seen]:
        """The streams that rows of this attempt, or of earlier ones, went to."""
        since = self._record.streams if self._record is not None else {}
        streams = self._streams.seen
        found = [streams[name] for name in self._reached]
        return [stream.since(since.get(stream.name, stream.before)) for stream in found]

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
            logger.info("no look into the ledger task=%s reason=%s", self._name, error)

    # ── targets ──────────────────────────────────────────────────────────────────────────────

    def _new_targets(self, messages: Messages) -> dict[str, Target]:
        """
        Streams these messages go to that none before went to.

        Raises:
            OptionError: One does not let a write be exactly once.
        """
        new: dict[str, Target] = {}
        for place in _places(messages).to_pylist():
            target = self._targets[place] if place is not None else None
            if target is not None and target.name in self._reached:
                continue
            fault = target_fault(target, self._options, _example(messages, place))
            if fault is not None:
                raise fault
            if target is not None:
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
                    self._name, names[silent], error,
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

    # ── what is stored already ───────────────────────────────────────────────────────────────

    def _recover(self, record: Record) -> None:
        self._streams.publishing = True
        js = JetStream(self._streams.client)
        for name in record.streams:
            try:
                self._earlier.append(Target.parse(js.stream_info(name).config))
            except StreamNotFoundError:
                logger.warning("task=%s: stream %s is gone", self._name, name)
        self._recovery = Recovery(
            self._streams.client, str(self._name), record.streams, self._id_prefix, self._moves
        )

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

    def _window_s(self) -> float:
        return min(target.duplicate_window_s for target in self._reached.values())


def _places(messages: Messages) -> pa.Array:
    """The distinct target streams of the messages; null for none."""
    if messages.targets is None:
        return pa.nulls(1, pa.int32())
    return pc.unique(messages.targets.take(messages.indices))


def _example(messages: Messages, place: int | None) -> str:
    codes = messages.targets.take(messages.indices) if messages.targets is not None else None
    row = 0
    if codes is not None:
        own = pc.is_null(codes) if place is None else pc.equal(codes, int32(place))
        row = pc.index(pc.fill_null(own, False), True).as_py()
    return messages.distinct[messages.codes[row]]


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
