"""The task of a read: what Spark sends to an executor, and how it becomes rows there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from .client.connection import Client, borrow
from .client.options import ConnectionOptions
from .errors import JetStreamError
from .fetch.decoding.markers import without_markers
from .fetch.directget import DirectRead, read_direct
from .fetch.layout import Layout
from .worker import settle

__all__ = [
    "RangeRead",
    "ReadTask",
    "WarmUp",
    "Work",
    "direct_tasks",
    "read_task",
    "shaped",
    "trimmed",
]

logger = logging.getLogger(__name__)


class Work(Protocol):
    """What one task is to read; a small dataclass, for it travels pickled."""

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows, as record batches bounded in rows and bytes."""
        ...


class ReadTask(InputPartition):
    """One Spark task: where to connect, and what to read there."""

    def __init__(self, connection: ConnectionOptions, work: Work) -> None:
        super().__init__(None)
        self.connection = connection
        self.work = work

    def __repr__(self) -> str:
        return f"<ReadTask {self.work}>"


def read_task(task: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of one task; Spark makes a task of None where there are no partitions."""
    if isinstance(task, ReadTask):
        with borrow(task.connection) as client:
            yield from task.work.batches(client)
        settle()


@dataclass(frozen=True, slots=True)
class WarmUp:
    """
    No rows: what counts is that a Python worker is there, with this package and a connection, for
    the task that comes next.
    """

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """None; that the server cannot be reached is for a task with rows to say."""
        try:
            _ = client.connection  # dials
        except JetStreamError as error:
            logger.info("a worker has no connection yet: %s", error)
        return iter(())


@dataclass(frozen=True, slots=True)
class RangeRead(DirectRead):
    """The work of a direct read: a range, and which partitions its subjects belong to."""

    layout: Layout = field(repr=False)

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        layout = self.layout
        return read_direct(client, self, layout.classifier(), layout.beginning(self.partition))


def direct_tasks(
    connection: ConnectionOptions,
    read: RangeRead,
    ranges: Sequence[tuple[int, int]],
    counts: Sequence[int | None],
) -> list[ReadTask]:
    """`read` as tasks over contiguous ranges of sequences, each with what it must find."""
    return [
        ReadTask(connection, replace(read, start=low, end=high, expected=count))
        for (low, high), count in zip(ranges, counts, strict=True)
    ]


def trimmed(
    batches: Iterator[pa.RecordBatch], drop_markers: bool, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Batches with or without markers, which show in the headers, and headers."""
    for batch in batches:
        if drop_markers:
            batch = without_markers(batch)
        if not include_headers and batch.schema.names[-1] == "headers":
            batch = batch.select(batch.schema.names[:-1])
        if batch.num_rows:
            yield batch


def shaped(
    batches: Iterator[pa.RecordBatch],
    layout: Layout,
    drop_markers: bool,
    include_headers: bool,
    partition: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Batches with the partitions of their subjects (or all with `partition`), with or without
    markers and headers. A subject that belongs to no partition has null there.
    """
    classify = layout.classifier() if partition is None else None
    for batch in trimmed(batches, drop_markers, include_headers):
        if classify is not None:
            codes = [classify(subject) for subject in batch.column("subject").to_pylist()]
            partitions = pa.array(codes, pa.int32())
        else:
            partitions = pa.repeat(pa.scalar(partition or 0, pa.int32()), batch.num_rows)
        at = batch.schema.names.index("partition")
        yield batch.set_column(at, batch.schema.field(at), partitions)
