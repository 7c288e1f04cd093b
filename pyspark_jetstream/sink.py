"""
What Spark calls to write: one publisher a task, and a commit that checks their counts.

JetStream has no transaction over tasks: a message is in the stream from its PubAck on, whether
Spark commits or not. What makes a write exactly once is that every attempt gives the same row the
same `Nats-Msg-Id`, so that the stream drops the second copy. That holds

- within the stream's `duplicate_window` (two minutes unless the stream says otherwise), and
- while the input of a task is the same rows in the same order at every attempt; else give rows a
  `msg_id` of their own.

A streaming batch has the same ids when the query starts again from its checkpoint. A batch write
has the same ids in every attempt of its tasks, and new ones when the job is run again; that goes
for a write inside `foreachBatch`, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import xxhash
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.taskcontext import TaskContext

from .client import Client, borrow
from .errors import ColumnError, CommitError, OptionError
from .options import ConnectionOptions, SinkOptions, parse_sink
from .publisher import publish
from .publishes import check_names, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "JetStreamBatchWriter",
    "JetStreamStreamWriter",
    "Published",
    "batch_writer",
    "stream_writer",
]

logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets on the tasks of a streaming query."""

_reached: set[ConnectionOptions] = set()
"""Servers this driver process has entered: a streaming query asks at every micro-batch."""


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What one task has written."""

    partition: int
    rows: int
    acked: int
    duplicates: int
    retries: int


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> JetStreamBatchWriter:
    """
    The writer of `df.write`; on the driver, before any row moves.

    Raises:
        OptionError: An option is wrong, or the mode is not append.
        ColumnError: The rows do not fit.
        NotConnectedError: No server lets us in.
    """
    if overwrite:
        raise OptionError(
            "mode", "a stream is append-only, nothing is replaced; use mode('append')"
        )
    writer = JetStreamBatchWriter(parse_sink(options), schema)
    _enter(writer.options.connection)
    return writer


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> JetStreamStreamWriter:
    """
    The writer of one micro-batch of `df.writeStream`; on the driver, before any row moves.

    Raises:
        OptionError: An option is wrong, or the output mode is not append.
        ColumnError: The rows do not fit.
        NotConnectedError: No server lets us in; asked once a process.
    """
    if overwrite:
        raise OptionError(
            "outputMode", "a stream is append-only, 'complete' replaces; use outputMode('append')"
        )
    writer = JetStreamStreamWriter(parse_sink(options), schema)
    if writer.options.connection not in _reached:
        _enter(writer.options.connection)
        _reached.add(writer.options.connection)
    return writer


def _enter(connection: ConnectionOptions) -> None:
    client = Client(connection)
    try:
        client.connection.ping(connection.request_timeout_s)
    finally:
        client.close()


def _check(schema: StructType, options: SinkOptions) -> None:
    """The columns by name first: the type of an unknown one may have no Arrow form."""
    subject_given = options.subject is not None
    check_names(schema.names, subject_given)
    fields = []
    for field in schema.fields:
        try:
            fields.append(pa.field(field.name, to_arrow_type(field.dataType)))
        except Exception as error:
            raise ColumnError(
                field.name, f"the type {field.dataType.simpleString()} cannot be written"
            ) from error
    check_schema(pa.schema(fields), subject_given)


def _sum(messages: list[WriterCommitMessage | None], options: SinkOptions) -> Published:
    """
    All tasks together.

    Raises:
        CommitError: A task's message is missing, or its rows and PubAcks differ.
    """
    to = options.subject or "*"
    rows = acked = duplicates = retries = 0
    for partition, message in enumerate(messages):
        if not isinstance(message, Published):
            raise CommitError(
                to,
                f"task {partition} of {len(messages)} reports nothing: Spark never ran it. With"
                " Trigger.Continuous Spark drops every row of a Python sink; use another trigger",
            )
        if message.rows != message.acked:
            raise CommitError(
                to, f"task {partition} had {message.rows} rows but {message.acked} PubAcks"
            )
        rows += message.rows
        acked += message.acked
        duplicates += message.duplicates
        retries += message.retries
    return Published(len(messages), rows, acked, duplicates, retries)


def _write(
    options: SinkOptions, iterator: Iterator[pa.RecordBatch], prefix: str | None
) -> Published:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    first = next(iterator, None)
    if first is None:  # as after a shuffle, where most partitions may be empty
        return Published(partition, 0, 0, 0, 0)
    with borrow(options.connection) as client:
        counts = publish(
            client,
            options,
            chain((first,), iterator),
            partition=partition,
            id_prefix=f"{prefix}-{partition}" if prefix else None,
        )
    return Published(partition, *counts)


class JetStreamBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; its tasks' attempts share the ids of their rows."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _check(schema, options)
        self.options = options
        self.write_id = os.urandom(8).hex()
        """Made once on the driver: every attempt of a task makes the same ids of it."""

    def __repr__(self) -> str:
        return f"<JetStreamBatchWriter {self.write_id}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task; returns when each has its PubAck."""
        prefix = self.write_id if self.options.message_ids else None
        return _write(self.options, iterator, prefix)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Checks the counts; the rows are in their streams already."""
        total = _sum(messages, self.options)
        logger.info(
            "written write=%s tasks=%d rows=%d duplicates=%d retries=%d",
            self.write_id,
            total.partition,
            total.rows,
            total.duplicates,
            total.retries,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what stays: nothing that a stream has stored can be taken back."""
        logger.warning("aborted write=%s rows_left=%d", self.write_id, _left(messages))


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch; every attempt, after a restart as well, makes the same ids."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _check(schema, options)
        self.options = options

    def __repr__(self) -> str:
        return "<JetStreamStreamWriter>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task; returns when each has its PubAck."""
        prefix = _batch_prefix() if self.options.message_ids else None
        return _write(self.options, iterator, prefix)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Checks the counts; the rows are in their streams already."""
        total = _sum(messages, self.options)
        logger.info(
            "written batch=%d tasks=%d rows=%d duplicates=%d retries=%d",
            batchId,
            total.partition,
            total.rows,
            total.duplicates,
            total.retries,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Says what stays: the batch runs again with the same ids."""
        logger.warning("aborted batch=%d rows_left=%d", batchId, _left(messages))


def _batch_prefix() -> str:
    """
    The same for every attempt of this micro-batch, and for no other one.

    Raises:
        CommitError: Spark does not say which query and batch this task belongs to.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if query is None or batch is None:
        raise CommitError("*", "Spark does not tell the task its query and batch; no stable ids")
    return str(xxhash.xxh3_64_hexdigest(f"{query}/{batch}".encode()))


def _left(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Published))
