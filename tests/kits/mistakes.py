"""What people do wrong, done in Spark's order without Spark, and the line they see of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import JetStreamError

ERRORS = "pyspark_jetstream.errors."
"""What the line begins with that is ours, wherever Spark shows it."""


def source(options: dict[str, Any]) -> JetStreamDataSource:
    """The data source of these options, as `format("jetstream")` makes it."""
    return JetStreamDataSource(CaseInsensitiveDict({k: str(v) for k, v in options.items()}))


def read(**options: Any) -> int:
    """`spark.read`, and an action on it; how many rows it brings."""
    made = source(options)
    reader = made.reader(made.schema())
    return sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))


def stream(checkpoint: Any = None, **options: Any) -> int:
    """`spark.readStream`, and its next batch; how many rows it brings."""
    made = source(options)
    reader = made.streamReader(made.schema())
    try:
        reader.getDefaultReadLimit()
        start = reader.initialOffset() if checkpoint is None else checkpoint
        end = reader.latestOffset(start, ReadAllAvailable())
        tasks = reader.partitions(start, end)
        return sum(batch.num_rows for each in tasks for batch in reader.read(each))
    finally:
        reader.stop()


def rows(**columns: list[Any] | pa.Array) -> pa.RecordBatch:
    """Rows to write."""
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def write(
    batch: pa.RecordBatch, streaming: bool = False, overwrite: bool = False, **options: Any
) -> None:
    """`df.write`, in one task; of `df.writeStream` what comes before any task."""
    made, schema = source(options), from_arrow_schema(batch.schema)
    if streaming:
        made.streamWriter(schema, overwrite)
        return
    writer = made.writer(schema, overwrite)
    writer.commit([writer.write(iter([batch]))])


def told(call: Callable[[], object]) -> tuple[JetStreamError, str]:
    """The error of ours that a mistake ends in, and Spark's last line: ours, and alone."""
    with pytest.raises(JetStreamError) as caught:
        call()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    ours = [line for line in lines if line.startswith(ERRORS)]

    assert ours == lines[-1:], ours or lines
    assert lines[0] == "Traceback (most recent call last):"
    assert lines.count(lines[0]) == 1, "another error stands before it"
    return caught.value, lines[-1]
