"""
A snapshot of a stream or a bucket as a source: planned once, then fetched chunk by chunk.

The plan is every message of the snapshot, by subject and sequence. It is kept whole beside the
output, so a later run fetches these very messages, without asking again what was the last of a
subject: an answer that deletions may change. What left the stream before it was fetched is
reported by the package, and never replaced by an older or a newer message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_jetstream.client.connection import borrow
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.buckets import JetStreamBucketReader
from pyspark_jetstream.read.options import BucketOptions, SnapshotOptions
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader, bounds
from pyspark_jetstream.read.snapshotplan import unpack
from pyspark_jetstream.read.snapshotread import PickRead
from pyspark_jetstream.tasks.rows import ReadTask, TaskRows

from .faults import BackfillError, UsageError
from .journal import Journal, Plan
from .ranges import check_streams, marked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NAME: Final = "jetstream-plan"
"""
Name of the data source that reads a chunk; always the same, so that Spark keeps no more than one.
"""


def snapshot_options(
    stream: str | None, bucket: str | None, subjects: str | None, as_of: str | None
) -> dict[str, str]:
    """The options of `spark.read` that these words stand for."""
    options = {}
    if stream is not None:
        options = {"stream": stream, "multiLast": subjects or ">"}
    elif bucket is not None:
        options = {"bucket": bucket} | ({"keys": subjects} if subjects is not None else {})
    if as_of is not None:
        plain = as_of.strip()
        options["upToSequence" if plain.isdigit() else "upToTime"] = plain
    return options


class SnapshotSource:
    """The last message of every subject, or the latest value of every key, at one sequence."""

    def __init__(self, options: Mapping[str, str], schema: StructType, chunk_messages: int) -> None:
        """
        Args:
            schema: of the rows.

        Raises:
            OptionError: A mistake in the options.
            UsageError: They describe no snapshot.
        """
        self._options = dict(options)
        self._schema = schema
        self._chunk_messages = chunk_messages
        parsed = parse_read(self._options)
        if not isinstance(parsed, SnapshotOptions):
            raise UsageError(
                "these options read no snapshot; use `pyspark-jetstream backfill range`"
            )
        if parsed.several is not None:
            raise UsageError(f"a backfill has one stream, these options several: {parsed.several}")
        if isinstance(parsed, BucketOptions) and parsed.history:
            raise UsageError(
                "option 'history' reads every revision, which is no snapshot; copy the stream"
                f" '{parsed.stream}' with `pyspark-jetstream backfill range`"
            )
        self._parsed = parsed
        self.fail_on_data_loss = parsed.fail_on_data_loss

    def plan(self, spark: SparkSession, journal: Journal) -> Plan:
        """Finds the messages of the snapshot, and keeps them in pieces, one a task."""
        parsed = self._parsed
        if parsed.min_partitions is None and parsed.max_records_per_partition is None:
            cores = spark.sparkContext.defaultParallelism
            maximum = max(1, -(-self._chunk_messages // cores))
            parsed = replace(parsed, max_records_per_partition=maximum)
        with borrow(parsed.connection, at_start=True) as client:
            # What is empty now has no task that tells its sequence.
            sequences = bounds(parsed)
            infos = JetStream(client).stream_infos(list(sequences))
        reader = (
            JetStreamBucketReader(parsed)
            if isinstance(parsed, BucketOptions)
            else JetStreamSnapshotReader(parsed)
        )
        chunks: list[dict[str, Any]] = []
        layout: Layout | None = None
        for number, task in enumerate(reader.partitions()):
            pick = task.work
            assert isinstance(pick, PickRead)
            sequences[pick.stream] = pick.end
            # In a place of this run: another one that plans now does not meet it.
            place = journal.scratch(f"piece-{number:05d}")
            journal.storage.write(place, pick.plan)
            piece = {
                "path": place,
                "messages": unpack(pick.plan).num_rows,
                "headers": pick.include_headers,
                "partition": pick.partition,
            }
            layout = pick.layout
            last = chunks[-1] if chunks else None
            if (
                last is None
                or last["stream"] != pick.stream
                or last["messages"] + piece["messages"] > self._chunk_messages
            ):
                chunks.append({"stream": pick.stream, "messages": 0, "pieces": []})
            chunks[-1]["messages"] += piece["messages"]
            chunks[-1]["pieces"].append(piece)
        return {
            "streams": {
                info.name: {
                    **marked(info),
                    "sequence": sequences[info.name],
                    "time": info.now.isoformat(),
                }
                for info in infos
            },
            "partition_subject": layout.partition_subject if layout is not None else None,
            "partitions": [[p.index, p.stream, p.filter] for p in layout or ()],
            "chunks": chunks,
        }

    def check(self, plan: Plan) -> None:
        """
        Raises:
            BackfillError: A stream was made anew since it was planned.
        """
        with borrow(self._parsed.connection, at_start=True) as client:
            check_streams(client, plan)

    def missing(self, chunk: dict[str, Any], rows: int) -> int:
        """Messages that were planned and not read; it cannot be told where some are left out."""
        parsed = self._parsed
        leaves_out = parsed.drop_markers
        return 0 if leaves_out else int(chunk["messages"]) - rows

    def rows(self, spark: SparkSession, journal: Journal, number: int) -> DataFrame:
        """The messages of a chunk, a task for each of its pieces."""
        tasks = [
            self._task(journal, journal.plan["chunks"][number]["stream"], piece)
            for piece in journal.plan["chunks"][number]["pieces"]
        ]
        task_rows = TaskRows.of(self._parsed, self._parsed.drop_markers)
        return _planned(spark, tasks, task_rows, self._schema)

    def _task(self, journal: Journal, stream: str, piece: dict[str, Any]) -> ReadTask:
        """A piece of the plan as the package's own task."""
        parsed, plan, storage = self._parsed, journal.plan, journal.storage
        packed = storage.read(piece["path"])
        if packed is None:
            raise BackfillError(
                f"{storage.path(piece['path'])} is gone; has another run of this backfill ended?"
            )
        of = tuple(SubjectPartition(*partition) for partition in plan["partitions"])
        work = PickRead(
            stream=stream,
            filter=None,
            start=0,
            end=int(plan["streams"][stream]["sequence"]),
            expected=None,
            plan=packed,
            include_headers=piece["headers"] or parsed.drop_markers,
            fail_on_data_loss=parsed.fail_on_data_loss,
            layout=Layout(of, plan["partition_subject"]),
            partition=piece["partition"],
            on_invalid_subject=parsed.on_invalid_subject,
        )
        return ReadTask(parsed.connection, work)


def _planned(
    spark: SparkSession, tasks: Sequence[ReadTask], rows: TaskRows, schema: StructType
) -> DataFrame:
    """
    Tasks as a DataFrame.

    By a data source made for them: of all ways from Arrow batches to rows it is the one that needs
    no pandas. Its classes are local, so that Spark ships them by value.
    """

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return tasks

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return rows.read(partition)

    class PlanSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return _NAME

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(PlanSource)
    return spark.read.format(_NAME).load()
