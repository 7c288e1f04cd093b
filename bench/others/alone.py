"""
Spark alone: a streaming source in Python whose rows are in the workers' memory.

It asks nobody and computes nothing: as many tasks with as many rows of the same columns as a
streaming read of this package has, so what it takes is what any source in Python pays. What its
workers hold is taken out of the garbage collection that follows each task, as this package does:
without that a task takes 10 ms more. Spark's processes import it by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_jetstream.worker import spare_collections

_BATCH_ROWS: Final = 10_000
"""Of a record batch, as in a streaming read of this package."""

_COLUMNS: Final = (
    "subject string, data binary, sequence bigint, timestamp timestamp, partition int,"
    " stream string"
)
_SCHEMA: Final = pa.schema(
    [
        pa.field("subject", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("sequence", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("partition", pa.int32()),
        pa.field("stream", pa.string()),
    ]
)


class AloneSource(DataSource):
    """
    The format `alone`. Options: `rows` in all, their `size` in bytes, how many `partitions`, and at
    the most how many rows a `trigger`.
    """

    options: Mapping[str, str]  # type: ignore[assignment]  # a case-insensitive dictionary

    @classmethod
    def name(cls) -> str:
        return "alone"

    def schema(self) -> str:
        return _COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        rows, size, partitions = (int(self.options[n]) for n in ("rows", "size", "partitions"))
        return _Reader(rows, size, partitions, int(self.options.get("trigger", rows)))


class _Rows(InputPartition):
    """What one task has."""

    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are counts of rows over all partitions."""

    def __init__(self, rows: int, size: int, partitions: int, limit: int) -> None:
        self._rows, self._size, self._partitions, self._limit = rows, size, partitions, limit

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit) if self._limit < self._rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": min(self._rows, start["rows"] + self._limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        each, more = divmod(end["rows"] - start["rows"], self._partitions)
        return [_Rows(each + (number < more)) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        left = partition.rows
        while left:
            batch = _batch(self._size)[:left]
            left -= batch.num_rows
            yield batch
        spare_collections()


@cache
def _batch(size: int) -> pa.RecordBatch:
    """Rows of so many bytes, made once in each process."""

    def all_of(value: Any, name: str) -> pa.Array:
        return pa.repeat(pa.scalar(value, _SCHEMA.field(name).type), _BATCH_ROWS)

    columns = [
        all_of("payloads.0", "subject"),
        all_of(b"x" * size, "data"),
        pa.array(range(_BATCH_ROWS), pa.int64()),
        all_of(0, "timestamp"),
        all_of(0, "partition"),
        all_of("PAYLOADS", "stream"),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
