"""
One task's write: its rows become messages, go out once, and are accounted for.

Without a ledger a task publishes its rows and counts their PubAcks. With one (`exactlyOnce`):

1. The task's note is made before the first publish; it says where each target stream ends, and by
   which mapping rows go. If the ledger says that the whole batch is committed, there is nothing to
   do. If an earlier attempt went by another mapping, that is an error.
2. If there was a note of an earlier attempt, the ids behind the noted sequences are read, and rows
   that are there are left out (`recovery`).
3. The attempt looks from time to time whether the note is still its own (`watch`): one that was
   thought dead and comes back stops (`WriterFencedError`).
4. When every row is stored, it looks once more. The driver's commit follows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from ..client.connection import Client, away_s
from ..client.jetstream import JetStream
from ..errors import OptionError
from ..outbox.priority import Priorities
from ..outbox.targets import Targets
from ..publish.context import RowSignals, WriteContext
from ..publish.options import RowOptions, SinkOptions
from ..publish.outcome import Written
from ..publish.publisher import publish
from ..sanitize import get_logger
from .attempt import Task, TaskAttempt, TaskReport
from .exactlyonce.ids import Ids
from .exactlyonce.ledger import Ledger
from .exactlyonce.records import TaskName
from .rows import MessageBuilder
from .streams import Streams

if TYPE_CHECKING:
    from .reroutes import Reroutes

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
    look = None
    id_prefix = None if ids is None else ids.prefix
    if options.ledger:
        ledger = Ledger(JetStream(client))
        look = ledger.look(name, ids is not None and ids.keyed)
        if ids is not None:
            id_prefix = ledger.id_prefix(name, ids, look)
    task = Task(client, options, name, number, id_prefix, look)
    signals = RowSignals()
    reroutes = _reroutes(options, streams.targets, signals)
    builder = MessageBuilder(
        options=options.rows,
        partition=name.task,
        id_prefix=None if id_prefix is None else f"{id_prefix}-{name.task}",
        max_payload=connection.max_payload,
        targets=streams.targets,
        priorities=_priorities(options),
        reroutes=reroutes,
    )
    with closing(streams):
        if not options.ledger:
            telemetry = report.telemetry
            messages = map(builder.build, batches)
            # Its lookups may use the task's own connection: no PubAck comes there yet.
            first = list(islice(messages, 1))
            streams.publishing = True
            context = WriteContext(options, streams.targets, task.origin, telemetry, signals)
            counts = publish(client, context, chain(first, messages))
            report.seen = streams.holding(telemetry.stored_in)
            outcome: Written | None = counts._replace(rows=builder.rows, lost=builder.lost)
        else:
            digest = _mapping_digest(options.rows)
            attempt = TaskAttempt(task, builder, streams, report, digest, signals)
            outcome = attempt.run(iter(batches), reroutes is not None)
        if outcome is not None:
            report.left_out.update(builder.left_out)
    if builder.unrecognised:
        logger.warning(
            "%d values name no priority (critical, normal, non-critical) and count as normal",
            builder.unrecognised,
        )
    if reroutes is not None and reroutes.rows:
        logger.info("rows=%d went elsewhere than to paused subjects", reroutes.rows)
    return outcome


def _mapping_digest(options: RowOptions) -> str:
    """A digest of what decides a row's subject, beside its own subject and identity; "" of none."""
    if options.mapping is None:
        return ""
    text = json.dumps([options.mapping.text, options.mapping_key])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _reroutes(options: SinkOptions, targets: Targets, signals: RowSignals) -> Reroutes | None:
    mapping, key = options.rows.mapping, options.rows.mapping_key
    if mapping is None or not mapping.needs_identity or key is not None or targets.is_blind:
        return None  # a key's rows belong together, and a row moves only within its stream
    from .reroutes import Reroutes

    return Reroutes(mapping, options.rows.reroutes_weights, targets, signals)


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
