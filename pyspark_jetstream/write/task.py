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

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from itertools import chain, islice

import pyarrow as pa

from ..client.connection import Client, away_s
from ..client.jetstream import JetStream
from ..errors import JetStreamError, LedgerError, OptionError, RowError
from ..outbox.lettersubjects import SUBJECT as DESTINATION
from ..outbox.priority import Priorities
from ..outbox.targets import Targets
from ..publish.context import RowSignals, WriteContext
from ..publish.options import SinkOptions
from ..publish.outcome import Written
from ..publish.publisher import publish
from ..sanitize import get_logger
from .attempt import Task, TaskAttempt, TaskReport, built, sequenced_rows
from .batchmapping import BatchMapping, digest
from .exactlyonce.ids import Ids
from .exactlyonce.ledger import BUCKET, Ledger
from .exactlyonce.records import LedgerLook, TaskName
from .reroutes import Reroutes
from .rows import MessageBuilder
from .streams import Streams

logger = get_logger(__name__)


def write_task(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    name: TaskName,
    ids: Ids | None,
    number: int = 0,
    report: TaskReport | None = None,
) -> Written | None:
    """
    Writes the rows of one task and returns when each is stored; None if its batch was committed.

    Args:
        name: the same in every attempt of the task.
        ids: of what the `Nats-Msg-Id` of rows without one is made; None makes none.
        number: of the attempt; operators see it as a producer of its own.
        report: gets what is to be said of the task.

    Raises:
        OptionError: The options are not for these rows.
        RowError: A row cannot be a message.
        PublishError: A row was not stored; rows before and behind it may be.
        NotConnectedError: The server could not be reached again within `publishTimeout`.
    """
    report = report or TaskReport()
    streams = Streams(client, options)
    connection = client.connection
    away_s(connection)  # now: while rows are made the PONG would lie in the socket
    wished = agreed = BatchMapping(options.rows.mapping, options.rows.mapping_key)
    note, look = b"", None
    id_prefix = None if ids is None else f"{ids.prefix}-{name.task}"
    if options.ledger:
        ledger = Ledger(JetStream(client))
        look = ledger.look(name, ids is not None and ids.keyed, wished.mapping is not None)
        if ids is not None:
            id_prefix = ledger.id_prefix(name, ids, look)
        if wished.mapping is not None:
            agreed, note = _agreed(ledger, name, wished, look)
    if options.dead_letter_subject is not None:
        streams.look_up_dead(
            options.dead_letter_subject.replace(DESTINATION, options.rows.subject or "_")
        )
    task = Task(client, options, name, number, id_prefix, look)
    signals = RowSignals()
    reroutes = _reroutes(options, agreed, streams.targets, signals)
    builder = MessageBuilder(
        options=replace(
            options.rows,
            mapping=agreed.mapping,
            mapping_key=agreed.key,
        ),
        partition=name.task,
        id_prefix=id_prefix,
        max_payload=connection.max_payload,
        targets=streams.targets,
        priorities=_priorities(options),
        reroutes=reroutes,
    )
    with closing(streams):
        if not options.ledger:
            telemetry = report.telemetry
            messages = (built(builder, signals, batch) for batch in batches)
            # Its lookups may use the task's own connection: no PubAck comes there yet.
            first = list(islice(messages, 1))
            streams.publishing = True
            context = WriteContext(options, streams.targets, task.origin, telemetry, signals)
            counts = publish(client, context, chain(first, messages))
            report.seen += streams.holding(telemetry.stored_in)
            report.seen += streams.holding_dead(telemetry.dead_in)
            outcome: Written | None = counts._replace(rows=builder.rows, lost=builder.lost)
            report.sequenced = sequenced_rows(counts, telemetry.stored_in, streams.seen)
        else:
            attempt = TaskAttempt(task, builder, streams, report, digest(note), signals)
            try:
                outcome = attempt.run(iter(batches), reroutes is not None)
            except (OptionError, RowError) as error:
                if agreed == wished:
                    raise
                raise _begun_otherwise(error, name) from error
        if outcome is not None:
            report.left_out.update(builder.left_out)
    if reroutes is not None and reroutes.rows:
        logger.info("rows=%d went elsewhere than to paused subjects", reroutes.rows)
    return outcome


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
    ledger: Ledger, name: TaskName, wished: BatchMapping, look: LedgerLook
) -> tuple[BatchMapping, bytes]:
    """
    The mapping of the task's batch, and how the ledger has it.

    Raises:
        LedgerError: It cannot be read or noted.
    """
    note = ledger.agree(name, wished.note(), look)
    try:
        mapping = BatchMapping.of(note)
    except ValueError as error:
        raise LedgerError(
            str(name),
            f"the mapping that its batch was begun with cannot be read: {error}; go on with the"
            " version of this package that wrote it until the batch is committed",
        ) from None
    if mapping != wished:
        logger.warning(
            "task=%s: subjectMapping has changed since the batch began. This batch keeps the old"
            " one; the new one holds from the next batch on", name,
        )  # fmt: skip
    return mapping, note


def _reroutes(
    options: SinkOptions, agreed: BatchMapping, targets: Targets, signals: RowSignals
) -> Reroutes | None:
    if agreed.mapping is None or not agreed.mapping.needs_identity or agreed.key is not None:
        return None  # a key's rows belong together
    weights = options.rows.reroutes_weights
    if weights or not targets.is_blind:
        return Reroutes(agreed.mapping, weights, targets, signals)
    return None


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
