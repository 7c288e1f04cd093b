"""
Spark's calls to write: one write for each task, and a commit that checks their counts.

JetStream has no transaction over tasks: a message is in its stream from its PubAck on, whether
Spark commits or not. What makes a write exactly once is that every attempt gives the same row the
same `Nats-Msg-Id`, that streams drop the second copy of an id within their `duplicate_window`, and
that beyond it the ledger says what an earlier attempt may have stored (`recovery`). It holds while
the input of a task is the same rows in the same order at every attempt; else give rows a `msg_id`
of their own.

A streaming batch has the same ids, and the same place in the ledger, when the query starts again
from its checkpoint. A batch write has both in every attempt of its tasks, and new ones when the
job is run again; that goes for a write inside `foreachBatch`, too.

The driver's plan, a task and the commit run in processes of their own, which get a writer. Each
imports what it alone needs itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from ..client.connection import borrow
from ..client.jetstream import JetStream
from ..errors import CommitError, JetStreamError, OptionError, TargetChangedError
from ..publish.metrics import MetricsSnapshot, Written
from ..publish.settings import SinkOptions
from ..sanitize import get_logger
from ..worker import log_for
from .streams import FoundStream, check_unchanged

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .exactlyonce.ids import Ids

logger = get_logger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets on the tasks of a streaming query."""


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """The result of one task's write."""

    write_id: str
    """The query's id, or that of a `df.write`."""
    written: Written | None
    """None when the ledger says that the batch was written before."""
    metrics: MetricsSnapshot = MetricsSnapshot({})
    """The counts of the task."""
    streams: tuple[FoundStream, ...] = ()
    """Its target streams as it found them, as far as it looked them up."""


class _Sink:
    """What both kinds of writes have in common."""

    mode: ClassVar[str]
    """Spark's name of what has to be append."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        from .preparation import check_rows

        check_rows(schema, options)
        self.options = options

    @classmethod
    def prepared(cls, options: SinkOptions, schema: StructType, overwrite: bool) -> Self:
        """
        The writer, on the driver: before any row moves, and, for a streaming batch, once more in
        the process of its commit, when all rows are stored.

        Raises:
            OptionError: An option does not go with the servers, or the mode is not append.
            ColumnError: The rows do not fit.
            NotConnectedError: No server lets us in.
        """
        if overwrite:
            why = f"a stream is append-only, nothing is replaced; use {cls.mode}('append')"
            raise OptionError(cls.mode, why)
        from .preparation import prepare

        writer = cls(options, schema)
        prepare(options)
        return writer

    def _log_for(self, name: str | None, batch: int | None = None) -> None:
        name = self.options.metrics.query_name or name
        log_for(self.options.connection.log_level, name, batch)


class JetStreamBatchWriter(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame once; its tasks' attempts share the ids of their rows."""

    mode = "mode"

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.write_id = os.urandom(8).hex()
        """Made once on the driver: every attempt of a task makes the same ids of it."""

    def __repr__(self) -> str:
        return f"<JetStreamBatchWriter {self.write_id}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task; returns when each has its PubAck."""
        from .exactlyonce.ids import Ids

        return _write(self.options, iterator, self.write_id, 0, Ids(self.write_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Checks the counts, and the streams, in which the rows are already."""
        self._log_for(self.write_id)
        tasks = _checked(messages, self.options)
        total = _sum(tasks)
        _check_targets(self.options, tasks)
        if total is not None:
            _log(f"write={self.write_id}", tasks, total)
        self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what stays: nothing that a stream has stored can be taken back."""
        self._log_for(self.write_id)
        logger.warning(
            "write=%s was aborted by Spark, whose error says why. %d rows of it stay in their"
            " streams. If the write is run again, they are stored twice",
            self.write_id, _stored_rows(_reported(messages)),
        )  # fmt: skip
        self._forget()

    def _forget(self) -> None:
        """Drops the tasks' records; the rows are stored, so that they stay is no failure."""
        try:
            if self.options.ledger:
                from .exactlyonce.ledger import Ledger

                with borrow(self.options.connection) as client:
                    Ledger(JetStream(client)).forget(self.write_id, 0)
        except JetStreamError as error:
            logger.warning(
                "write=%s: all rows are stored. The write could not delete its records in the"
                " ledger; they stay until somebody deletes them: %s", self.write_id, error,
            )  # fmt: skip


class JetStreamStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes one micro-batch; every attempt, after a restart as well, makes the same ids."""

    mode = "outputMode"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task; returns when each has its PubAck."""
        from .exactlyonce.ids import of_query

        query, batch = _query_and_batch()
        ids = of_query(query, batch)
        return _write(self.options, iterator, query, batch, ids)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Checks the counts and the streams, and marks the batch as written."""
        self._log_for(_write_of(_reported(messages)), batchId)
        tasks = _checked(messages, self.options)
        total = _sum(tasks)
        targets = _check_targets(self.options, tasks)
        if total is None:
            logger.info("batch=%d was written before a restart, as the ledger says", batchId)
        else:
            _log(f"batch={batchId}", tasks, total)
        if not tasks or not self.options.ledger:
            return
        from .exactlyonce.ledger import Ledger

        query = tasks[0].write_id
        with borrow(self.options.connection) as client:
            ledger = Ledger(JetStream(client))
            if total is None:
                ledger.forget(query, batchId)
            else:
                ledger.commit(query, batchId, len(messages), total._asdict(), targets)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Says what stays: the batch runs again with the same ids."""
        tasks = _reported(messages)
        self._log_for(_write_of(tasks), batchId)
        logger.warning(
            "batch=%d was aborted by Spark, whose error says why. Tasks that had ended have stored"
            " %d rows, and the others may have stored some. The batch runs again, with the same"
            " ids, when the query is started again",
            batchId, _stored_rows(tasks),
        )  # fmt: skip


def _reported(messages: list[WriterCommitMessage | None]) -> list[Published]:
    """The reports of those tasks that have one."""
    return [message for message in messages if isinstance(message, Published)]


def _write_of(tasks: list[Published]) -> str | None:
    return tasks[0].write_id if tasks else None


def _checked(messages: list[WriterCommitMessage | None], options: SinkOptions) -> list[Published]:
    """
    The reports of all tasks.

    Raises:
        CommitError: A task has none, or it is not known where all of its rows are.
    """
    subject, tasks = options.rows.subject or "*", _reported(messages)
    if len(tasks) < len(messages):
        raise CommitError(
            subject,
            f"{len(messages) - len(tasks)} of {len(messages)} tasks report nothing: Spark never ran"
            " them. With Trigger.Continuous Spark drops every row of a Python sink; use another"
            " trigger",
        )
    for task in tasks:
        if task.written is not None and not task.written.adds_up:
            raise CommitError(subject, f"the rows do not add up, report this: {task.written}")
    return tasks


def _sum(tasks: list[Published]) -> Written | None:
    """All tasks together; None when the ledger had the batch already."""
    counts = [task.written for task in tasks if task.written is not None]
    total = Written(*map(sum, zip(Written(0, 0, 0, 0, 0, 0), *counts, strict=True)))
    return total if len(counts) == len(tasks) else None


def _write(
    options: SinkOptions, iterator: Iterator[pa.RecordBatch], write_id: str, batch: int, ids: Ids
) -> Published:
    log_for(options.connection.log_level, options.metrics.query_name)
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    first = next(iterator, None)
    if first is None:  # as after a shuffle, where most partitions may be empty
        return Published(write_id, Written(0, 0, 0, 0, 0, 0))
    from ..publish.telemetry import Telemetry
    from ..worker import spare_collections
    from .exactlyonce.ids import TaskName
    from .task import TaskReport, write_task

    report = TaskReport(Telemetry(options.priorities.routes))
    with borrow(options.connection) as client:
        written = write_task(
            client,
            options,
            chain((first,), iterator),
            TaskName(write_id, batch, partition),
            ids if options.message_ids else None,
            report,
        )
    spare_collections()
    return Published(write_id, written, report.telemetry.snapshot(), tuple(report.seen))


def _check_targets(options: SinkOptions, tasks: list[Published]) -> list[FoundStream]:
    """
    The target streams as they are now, but for where they do not say it.

    Raises:
        TargetChangedError: Rows that were acknowledged are gone.
    """
    seen = [stream for task in tasks for stream in task.streams]
    if not seen:
        return []
    remedy = "Look what has become of it, and run the write again"
    with borrow(options.connection) as client:
        js = JetStream(client)
        if options.ledger:
            from .exactlyonce.ledger import Ledger

            remedy = Ledger(js).remedy(tasks[0].write_id)
        try:
            return [FoundStream.of(info) for info in check_unchanged(js, seen, remedy).values()]
        except TargetChangedError:
            raise
        except JetStreamError as error:
            logger.warning(
                "the commit goes on without the check whether target streams still have the rows"
                " of this batch: %s", error,
            )  # fmt: skip
            return []


def _log(where: str, tasks: list[Published], total: Written) -> None:
    counts = " ".join(f"{name}={value}" for name, value in total._asdict().items())
    metrics = MetricsSnapshot.merged(task.metrics.ended() for task in tasks)
    logger.info("written %s tasks=%d %s: %s", where, len(tasks), counts, metrics.summary())


def _query_and_batch() -> tuple[str, int]:
    """
    Query and batch of this task.

    Raises:
        CommitError: Spark does not say.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if query is None or batch is None:
        raise CommitError("*", "Spark does not tell the task its query and batch; no stable ids")
    return query, int(batch)


def _stored_rows(tasks: list[Published]) -> int:
    return sum(task.written.acked for task in tasks if task.written is not None)
