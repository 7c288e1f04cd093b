"""The task of a read: Spark sends it to an executor, where it becomes rows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from ..sanitize import get_logger
from ..worker import log_for, spare_collections

if TYPE_CHECKING:
    import pyarrow as pa

    from ..client.connection import Client
    from ..client.options import ConnectionOptions
    from ..fetch.options import RowExtent, StreamOptions

logger = get_logger(__name__)


class Work(Protocol):
    """The range and the way of one task's read; a small dataclass, for it travels pickled."""

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
    from ..client.connection import borrow  # what plans comes without
    from ..fetch.decoding.rows import kept

    if isinstance(task, ReadTask):
        log_for(task.connection.log_level)
        with borrow(task.connection) as client:
            yield from kept(task.work.batches(client))
        spare_collections()


class TaskRows(NamedTuple):
    """The part of a reader that its tasks need: how messages become the rows of the read."""

    extent: RowExtent
    include_headers: bool
    is_keyed: bool = False
    """Whether rows are those of a Key-Value bucket."""
    drop_markers: bool = False

    @classmethod
    def of(cls, options: StreamOptions, drop_markers: bool = False) -> TaskRows:
        """The rows of a read with these options."""
        is_keyed = options.bucket is not None
        return cls(options.extent, options.include_headers, is_keyed, drop_markers)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        from .shape import shaped  # what plans has no rows to shape

        yield from shaped(read_task(partition), self)


class SentAsRows:
    """
    Mixed into a reader. Spark pickles a reader for its tasks alone, and it becomes its `rows`
    there: a task need not import what plans.
    """

    rows: TaskRows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self.rows.read(partition)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.rows,)
