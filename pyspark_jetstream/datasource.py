"""The format `jetstream`: which reader and writer Spark gets for which call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError
from .options import parse_range, parse_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JetStreamDataSource"]

_COLUMNS = [
    StructField("subject", StringType()),
    StructField("data", BinaryType()),
    StructField("sequence", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("partition", IntegerType()),
    StructField("stream", StringType()),
]
_HEADERS = StructField("headers", MapType(StringType(), ArrayType(StringType())))


def _columns(include_headers: bool) -> StructType:
    return StructType([*_COLUMNS, _HEADERS] if include_headers else list(_COLUMNS))


def _check_schema(schema: StructType, include_headers: bool) -> None:
    wanted = _columns(include_headers)
    if schema != wanted:
        raise OptionError(
            "schema",
            f"a read has the columns {wanted.simpleString()}; leave .schema(…) out and select"
            " from them",
        )


class JetStreamDataSource(DataSource):
    """
    NATS JetStream as a Spark data source.

    >>> spark.readStream.format("jetstream").option("stream", "FLIGHTS").load()  # doctest: +SKIP
    """

    options: Mapping[str, str]  # type: ignore[assignment]  # a case-insensitive dictionary

    @classmethod
    def name(cls) -> str:
        """The name after `format(…)`."""
        return "jetstream"

    def schema(self) -> StructType:
        """The columns of a read; `headers` only with `includeHeaders=true`."""
        return _columns(str(self.options.get("includeHeaders", "false")).strip().lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        """A range read."""
        from .ranges import JetStreamRangeReader

        options = parse_range(dict(self.options))
        _check_schema(schema, options.include_headers)
        return JetStreamRangeReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read."""
        from .source import JetStreamStreamReader

        options = parse_stream(dict(self.options))
        _check_schema(schema, options.include_headers)
        return JetStreamStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch write."""
        from .sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A streaming write."""
        from .sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
