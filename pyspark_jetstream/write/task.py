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

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from secrets import randbits
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ..client.connection import Client, away_s
from ..client.jetstream import JetStream
from ..outbox.throttling.throttleprotocol import ID_BITS
from ..publish.context import WriteContext
from ..publish.metrics import Written
from ..publish.publisher import publish
from ..publish.settings import SinkOptions
from ..publish.telemetry import Origin, Telemetry
from ..sanitize import get_logger
from ..serverheaders import left_out_because
from ..worker import MAX_NAME, query_name
from .exactlyonce.ids import Ids, TaskName
from .rows import MessageBuilder
from .streams import FoundStream, Streams

if TYPE_CHECKING:
    from .reroutes import Reroutes

logger = get_logger(__name__)

_SAID: Final[set[str]] = set()
"""Headers that this process has warned of: it writes a task of each batch of a query."""


@dataclass(slots=True)
class TaskReport:
    """Facts that a task reports beside its counts; they grow while the task writes."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    seen: list[FoundStream] = field(default_factory=list)
    """The target streams as they were found, for the commit."""


def write_task(
    client: Client,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    name: TaskName,
    ids: Ids | None,
    report: TaskReport | None = None,
) -> Written | None:
    """
    Writes the rows of one task and returns when each is stored; None if its batch was committed.

    Args:
        name: the same in every attempt of the task.
        ids: of what the `Nats-Msg-Id` of rows without one is made; None makes none.
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
        from .exactlyonce.ledger import Ledger

        ledger = Ledger(JetStream(client))
        look = ledger.look(name)
        if ids is not None:
            id_prefix = ledger.id_prefix(name, ids, look)
    query = (options.metrics.query_name or query_name())[:MAX_NAME]
    origin = Origin(randbits(ID_BITS), name.write, name.batch, query)
    context = WriteContext(options, streams.targets, origin, report.telemetry)
    reroutes = _reroutes(context)
    builder = MessageBuilder(
        options,
        partition=name.task,
        id_prefix=None if id_prefix is None else f"{id_prefix}-{name.task}",
        max_payload=connection.max_payload,
        targets=streams.targets,
        reroutes=reroutes,
    )
    with closing(streams):
        if look is None:
            messages = map(builder.build, batches)
            # Its lookups may use the task's own connection: no PubAck comes there yet.
            first = list(islice(messages, 1))
            streams.publishing = True
            counts = publish(client, context, chain(first, messages))
            report.seen = streams.holding(report.telemetry.stored_in)
            outcome: Written | None = counts._replace(rows=builder.rows, lost=builder.lost)
        else:
            from .attempt import TaskAttempt

            attempt = TaskAttempt(client, context, name, id_prefix, look, builder, streams)
            outcome = attempt.run(iter(batches), reroutes is not None)
            report.seen = attempt.seen
    for header in sorted(builder.left_out - _SAID):
        logger.warning("the header %s of rows is not sent: %s", header, left_out_because(header))
    _SAID.update(builder.left_out)
    if builder.unrecognised:
        logger.warning(
            "%d values name no priority (critical, normal, non-critical) and count as normal",
            builder.unrecognised,
        )
    if reroutes is not None and reroutes.rows:
        logger.info("rows=%d went elsewhere than to paused subjects", reroutes.rows)
    return outcome


def _reroutes(context: WriteContext) -> Reroutes | None:
    rows = context.options.rows
    mapping, has_key = rows.mapping, rows.mapping_key is not None
    if mapping is None or not mapping.needs_identity or has_key or context.targets.is_blind:
        return None  # a key's rows belong together, and a row moves only within its stream
    from .reroutes import Reroutes

    return Reroutes(mapping, rows.reroutes_weights, context)
