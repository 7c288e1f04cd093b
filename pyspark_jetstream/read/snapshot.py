"""
`spark.read` with `multiLast`: the last message of every subject, all as of one sequence.

The plan is made on the driver (`snapshotplanner`), so every task of a read, and every attempt of a
task, delivers the messages of the same snapshot (`snapshotread`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..client.connection import Client, borrow
from ..client.jetstream import JetStream
from ..client.options import ConnectionOptions
from ..fetch.layout import Layout
from ..fetch.survey import Survey, check_direct, check_subjects
from ..tasks import shaped
from . import snapshotplan
from .narrowing import Interval, Narrowing
from .options import SnapshotOptions
from .pushdown import NarrowedReader, TakesFilters
from .snapshotplanner import Snapshot, Snapshots
from .snapshotread import PickRead, read_picks

__all__ = ["JetStreamSnapshotReader", "PickTask", "pick_tasks", "bounds"]


class PickTask(InputPartition):
    """One task: planned messages, and which partition their subjects belong to."""

    def __init__(
        self,
        connection: ConnectionOptions,
        read: PickRead,
        layout: Layout,
        partition: int | None,
        drop_markers: bool,
    ) -> None:
        super().__init__(None)
        self.connection = connection
        self.read = read
        self.layout = layout
        self.partition = partition
        """None where the subject decides."""
        self.drop_markers = drop_markers

    def __repr__(self) -> str:
        return f"<PickTask {self.read}>"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        read = self.read
        with borrow(self.connection) as client:
            yield from shaped(
                # Markers show in the headers.
                read_picks(
                    client, replace(read, include_headers=read.include_headers or self.drop_markers)
                ),
                self.layout,
                self.drop_markers,
                read.include_headers,
                self.partition,
            )


class JetStreamSnapshotReader(NarrowedReader):
    """Reads the last message of every subject at one point."""

    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """
        The tasks of the read.

        Raises:
            OptionError: The bound lies in the future, a filter matches nothing that the stream
                takes, or direct get is off.
            SnapshotLossError: The stream no longer holds what it held then (`failOnDataLoss`).
        """
        options = self._options
        with borrow(options.connection) as client:
            survey = Survey(client, options)
            survey.require((2, 11), "a snapshot (multi-subject direct get)")
            layout, infos = survey.layout, survey.streams()
            for info in infos.values():
                check_direct(info)
            if len(infos) == 1:
                check_subjects(info, "multiLast", options.filters)
            tasks: list[InputPartition] = []
            streams = {} if layout.partition_subject else {p.stream: p.index for p in layout}
            for stream in layout.streams:
                partition = streams.get(stream)
                if partition is None or partition in self.narrowing.partitions:
                    snapshot = take(client, stream, options, self.narrowing)
                    tasks += pick_tasks(options, snapshot, layout, partition, self.narrowing)
            return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; Spark makes a task of None where there are no partitions."""
        return partition.batches() if isinstance(partition, PickTask) else iter(())


def bounds(options: SnapshotOptions) -> dict[str, int]:
    """
    The sequence of each stream that a snapshot with these options would be as of, now.

    Raises:
        OptionError: A bound in the future.
    """
    with borrow(options.connection) as client:
        pins = {}
        for stream in Survey(client, options).layout.streams:
            bound = Snapshots(client, stream, options.filters, True).bound(
                options.up_to_sequence, options.up_to_time
            )
            pins[stream] = (
                JetStream(client).stream_info(stream).last_seq if bound is None else bound
            )
        return pins


class FilteredSnapshotReader(TakesFilters, JetStreamSnapshotReader):
    """The same, for a query with filters."""


def take(client: Client, stream: str, options: SnapshotOptions, narrowing: Narrowing) -> Snapshot:
    """The plan that the options ask for, as far as the query needs it."""
    filters = [each for each in narrowing.within(options.filters) if each is not None]
    if not filters:
        return Snapshot(stream, "", 0, snapshotplan.LastOfEach().table())
    return Snapshots(client, stream, filters, options.fail_on_data_loss).take(
        options.up_to_sequence, options.up_to_time
    )


def pick_tasks(
    options: SnapshotOptions,
    snapshot: Snapshot,
    layout: Layout,
    partition: int | None,
    narrowing: Narrowing,
) -> list[InputPartition]:
    """The snapshot's plan as tasks, as far as the query needs it."""
    plan, sequences = snapshot.plan, narrowing.sequences
    if sequences != Interval():
        inside = [each in sequences for each in plan["sequence"].to_pylist()]
        plan = plan.filter(pa.array(inside, pa.bool_()))
    classify = layout.classifier() if partition is None else None
    if classify is not None and narrowing.partitions != Interval():
        codes = [classify(each) for each in plan["subject"].to_pylist()]
        inside = [each is not None and each in narrowing.partitions for each in codes]
        plan = plan.filter(pa.array(inside, pa.bool_()))
    return [
        PickTask(
            options.connection,
            PickRead(
                stream=snapshot.stream,
                plan=snapshotplan.pack(piece),
                up_to=snapshot.sequence,
                include_headers=options.include_headers,
                fail_on_data_loss=options.fail_on_data_loss,
                created=snapshot.created,
            ),
            layout,
            partition,
            options.drop_markers,
        )
        for piece in snapshotplan.split(
            plan, options.min_partitions, options.max_records_per_partition
        )
    ]
