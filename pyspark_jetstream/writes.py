"""
One task's write: its rows become messages, go out once, and are accounted for.

Without a ledger a task publishes its rows and counts their PubAcks. With one (`exactlyOnce`):

1. The task's record is made before the first publish; it notes where each target stream ends. If
   the ledger says that the whole batch is committed, there is nothing to do.
2. If there was a record of an earlier attempt, the ids behind the noted sequences are read, and
   rows that are there are left out (`recovery`). As that attempt may still be alive somewhere, they
   are read again whenever half of the duplicate window has passed: what it stores in between is in
   the window, and the stream drops ours.
3. The attempt looks from time to time whether the record is still its own: one that was thought
   dead and comes back stops (`WriterFencedError`).
4. When every row is stored, it looks once more. The driver's commit follows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from . import atomic
from .client import Client
from .errors import JetStreamError, OptionError, PublishError
from .jetstream import JetStream
from .ledger import Ledger, Record, TaskName
from .messages import MessageBuilder, Messages
from .options import SinkOptions
from .publisher import publish
from .recovery import Recovery
from .targets import Target, Targets

__all__ = ["Written", "target_fault", "write_task"]

logger = logging.getLogger(__name__)

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


def write_task(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    name: TaskName,
    id_prefix: str | None,
) -> Written | None:
    """
    Writes the rows of one task and returns when each is stored; None if its batch was committed.

    Args:
        name: the same in every attempt of the task.
        id_prefix: `<id_prefix>-<row number>` is the `Nats-Msg-Id` of a row without one; None
            makes no ids.

    Raises:
        RowError: A row cannot be a message.
        PublishError: A row was not stored; rows before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    streams = _streams(client, options)
    targets = None if streams is None else Targets(config for config, _ in streams)
    connection = client.connection
    builder = MessageBuilder(
        partition=name.task,
        subject=options.subject,
        mapping=options.mapping,
        mapping_key=options.mapping_key,
        cluster=str(connection.info.get("cluster") or "") or None,
        id_prefix=id_prefix,
        max_payload=connection.max_payload
        - (atomic.HEADER_BYTES if options.publish_mode == "atomic" else 0),
        targets=targets,
    )
    if not options.ledger or targets is None or streams is None:
        counts = publish(client, options, (builder.build(batch) for batch in batches), targets)
        return _written(builder, 0, *counts[1:])
    ends = {str(config["name"]): end for config, end in streams}
    attempt = _Attempt(client, options, name, id_prefix, builder, targets, ends)
    try:
        return attempt.run(iter(batches))
    finally:
        attempt.close()


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
    fault = target.fault(options.ack_timeout_s) if options.ledger else None
    return None if fault is None else OptionError("exactlyOnce", fault)


def _streams(client: Client, options: SinkOptions) -> list[tuple[dict[str, object], int]] | None:
    """Configuration and last sequence of each stream, where the write depends on them."""
    if not options.ledger and options.publish_mode == "async":
        return None
    try:
        return [(info.config, info.last_seq) for info in JetStream(client).stream_list()]
    except JetStreamError as error:
        # Without the permission to list streams, a PubAck for each message always works.
        if options.ledger or options.publish_mode != "auto" or error.retryable:
            raise
        logger.info("publishing stream=* mode=async reason=%s", error)
        return None


class _Attempt:
    """One attempt of a task under the ledger."""

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        name: TaskName,
        id_prefix: str | None,
        builder: MessageBuilder,
        targets: Targets,
        ends: dict[str, int],
    ) -> None:
        self._client = client
        self._options = options
        self._name = name
        self._id_prefix = id_prefix
        self._builder = builder
        self._targets = targets
        self._ends = ends
        self._reached: dict[str, Target] = {}
        self._record: Record | None = None
        self._recovery: Recovery | None = None
        self._checked_at = 0.0
        # While publishes are under way, requests have a connection of their own: on the other
        # one PubAcks arrive.
        self._control = Client(options.connection)

    def close(self) -> None:
        """Closes the second connection."""
        self._control.close()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written | None:
        """Publishes what is not stored; None if the batch was committed before."""
        first = next((m for m in map(self._builder.build, batches) if len(m)), None)
        if first is None:  # the mapping loses all of its rows
            return _written(self._builder, 0, 0, 0, 0)
        new = self._new_targets(first)
        record = Ledger(JetStream(self._client)).begin(self._name, self._sequences(new))
        if record is None:
            logger.info("committed before task=%s", self._name)
            return None
        self._record, self._checked_at = record, time.monotonic()
        self._reached.update(new)
        if record.again:
            self._recovery = Recovery(
                self._control, str(self._name), record.streams, self._id_prefix
            )
        later = (self._admitted(m) for m in map(self._builder.build, batches) if len(m))
        batches_out = (self._fresh(each) for each in chain((first,), later))
        counts = publish(self._client, self._options, batches_out, self._targets)
        stored = self._recovery.stored if self._recovery is not None else 0
        written = _written(self._builder, stored, *counts[1:])
        Ledger(JetStream(self._client)).check(record)
        return written

    # ── targets ──────────────────────────────────────────────────────────────────────────────

    def _new_targets(self, messages: Messages) -> dict[str, Target]:
        """
        Streams these messages go to that none before went to.

        Raises:
            OptionError: One does not let a write be exactly once.
        """
        new: dict[str, Target] = {}
        places = _places(messages)
        for place in places.to_pylist():
            target = self._targets[place] if place is not None else None
            if target is not None and target.name in self._reached:
                continue
            fault = target_fault(target, self._options, _example(messages, place))
            if fault is not None:
                raise fault
            if target is not None:
                new[target.name] = target
        return new

    def _sequences(self, targets: dict[str, Target]) -> dict[str, int]:
        return {name: self._ends[name] for name in targets}

    def _admitted(self, messages: Messages) -> Messages:
        """Messages of a later batch, once the ledger knows where they go."""
        new = self._new_targets(messages)
        record = self._open_record()
        ledger = Ledger(JetStream(self._control))
        if new:
            ledger.extend(record, self._sequences(new))
            self._reached.update(new)
            self._checked_at = time.monotonic()
        elif time.monotonic() - self._checked_at > _FENCE * self._window_s():
            ledger.check(record)
            self._checked_at = time.monotonic()
        return messages

    def _fresh(self, messages: Messages) -> Messages:
        """Those that no earlier attempt has stored."""
        if self._recovery is None:
            return messages
        if messages.ids is None:
            raise PublishError("*", "rows without message ids under a ledger; report this")
        streams = {target.name: target for target in self._targets.streams}
        self._recovery.refresh(streams, _REFRESH * self._window_s())
        codes = messages.targets.take(messages.indices) if messages.targets is not None else None
        fresh = pa.array([True] * len(messages))
        for place in _places(messages).to_pylist():
            target = self._targets[place]
            own = pc.equal(codes, pa.scalar(place, pa.int32()))
            part = messages.where(own)
            unseen = self._recovery.fresh(part, part.ids, target)
            fresh = pc.replace_with_mask(fresh, own, unseen)
        return messages.where(fresh)

    def _window_s(self) -> float:
        return min(target.duplicate_window_s for target in self._reached.values())

    def _open_record(self) -> Record:
        if self._record is None:
            raise PublishError("*", "a publish before the ledger's record; report this")
        return self._record


def _places(messages: Messages) -> pa.Array:
    """The distinct target streams of the messages; null for none."""
    if messages.targets is None:
        return pa.nulls(1, pa.int32())
    return pc.unique(messages.targets.take(messages.indices))


def _example(messages: Messages, place: int | None) -> str:
    codes = messages.targets.take(messages.indices) if messages.targets is not None else None
    row = 0
    if codes is not None:
        own = pc.is_null(codes) if place is None else pc.equal(codes, pa.scalar(place, pa.int32()))
        row = pc.index(pc.fill_null(own, False), True).as_py()
    return messages.distinct[messages.codes[row]]


def _written(
    builder: MessageBuilder, stored: int, acked: int, duplicates: int, retries: int
) -> Written:
    """
    The task's counts.

    Raises:
        PublishError: They do not add up.
    """
    written = Written(builder.rows, acked, duplicates, retries, builder.lost, stored)
    if written.rows != acked + written.lost + stored:
        raise PublishError("*", f"the rows do not add up, report this: {written}")
    return written
