"""Tasks of reads: what Spark sends to an executor, and how it becomes rows there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from .client.connection import borrow
from .client.options import ConnectionOptions
from .fetch.consumer import ConsumerRead, read_consumer
from .fetch.directget import DirectRead, read_direct
from .fetch.layout import Layout
from .fetch.markers import without_markers

__all__ = ["Task", "direct_tasks", "read_task", "shaped"]


class Task(InputPartition):
    """One Spark task: what to read, and what the rows' partitions are."""

    def __init__(
        self, connection: ConnectionOptions, read: ConsumerRead | DirectRead, layout: Layout
    ) -> None:
        super().__init__(None)
        self.connection = connection
        self.read = read
        self.layout = layout

    def __repr__(self) -> str:
        return f"<Task {self.read}>"


def read_task(task: Task) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as record batches bounded in rows and bytes."""
    with borrow(task.connection) as client:
        if isinstance(task.read, ConsumerRead):
            yield from read_consumer(client, task.read)
        else:
            yield from read_direct(
                client,
                task.read,
                task.layout.classifier(),
                task.layout.beginning(task.read.partition),
            )


def direct_tasks(
    connection: ConnectionOptions,
    layout: Layout,
    read: DirectRead,
    ranges: Sequence[tuple[int, int]],
    counts: Sequence[int | None],
) -> list[Task]:
    """`read` as tasks over contiguous ranges of sequences, each with what it must find."""
    return [
        Task(connection, replace(read, start=low, end=high, expected=count), layout)
        for (low, high), count in zip(ranges, counts, strict=True)
    ]


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
    for batch in batches:
        if drop_markers:
            batch = without_markers(batch)
        if not include_headers and batch.schema.names[-1] == "headers":
            batch = batch.select(batch.schema.names[:-1])
        if not batch.num_rows:
            continue
        if classify is not None:
            codes = [classify(each) for each in batch.column("subject").to_pylist()]
            partitions = pa.array(codes, pa.int32())
        else:
            partitions = pa.repeat(pa.scalar(partition or 0, pa.int32()), batch.num_rows)
        at = batch.schema.names.index("partition")
        yield batch.set_column(at, batch.schema.field(at), partitions)
