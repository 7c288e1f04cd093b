"""
The format `jetstream`: the reader or writer for each of Spark's calls.

Spark sends the data source to every task as well. So each call imports what it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import JetStreamError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )

_COLUMNS = [
    StructField("subject", StringType()),
    StructField("data", BinaryType()),
    StructField("sequence", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("partition", IntegerType()),
    StructField("stream", StringType()),
]
_BUCKET_COLUMNS = [
    StructField("key", StringType()),
    StructField("value", BinaryType()),
    StructField("revision", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("operation", StringType()),
]
_DELIVERIES = StructField("deliveries", IntegerType())
_COUNT = StructField("count", DecimalType(38, 0))
_HEADERS = StructField("headers", MapType(StringType(), ArrayType(StringType())))


def columns_of(options: Mapping[str, str]) -> StructType:
    """
    The columns of a read with these options, a case-insensitive dictionary that is not checked:
    `headers` and `count` only with `includeHeaders` and `includeCount`, `deliveries` only where the
    consumer is shared (`priorityPolicy`), no `data` with `includeData=false`.
    """
    from .readstream.options import POLICIES

    def said(name: str) -> str:
        return str(options.get(name, "")).strip().lower()

    columns = _BUCKET_COLUMNS if "bucket" in options else _COLUMNS
    return StructType(
        [
            *[each for each in columns if each.name != "data" or said("includeData") != "false"],
            *[_HEADERS] * (said("includeHeaders") == "true"),
            *[_DELIVERIES] * (said("priorityPolicy") in POLICIES),
            *[_COUNT] * (said("includeCount") == "true"),
        ]
    )


def _check_spark() -> None:
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        raise JetStreamError(f"needs Spark 4.1 or newer; this is {pyspark.__version__}")


def _check_schema(schema: StructType, wanted: StructType) -> None:
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
        """
        The columns of a read. Spark asks for them at `load()`, so that is where mistakes in the
        options are said.

        Raises:
            OptionError: The options are those of no read.
        """
        from .options import check_reads

        _check_spark()
        check_reads(dict(self.options))
        return columns_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read: a snapshot, one direct get, a bucket, or a range."""
        from .options import parse_read
        from .read.options import CallOptions, SnapshotOptions
        from .read.pushdown import pushes_filters
        from .worker import log_for

        options = parse_read(dict(self.options))
        log_for(options.connection.log_level)
        _check_schema(schema, columns_of(self.options))
        filtered = pushes_filters()
        if isinstance(options, SnapshotOptions):
            from .read.snapshot import FilteredSnapshotReader, JetStreamSnapshotReader

            return (FilteredSnapshotReader if filtered else JetStreamSnapshotReader)(options)
        if isinstance(options, CallOptions):
            from .read.singleget import JetStreamCallReader

            return JetStreamCallReader(options)
        from .read.ranges import FilteredRangeReader, JetStreamRangeReader

        return (FilteredRangeReader if filtered else JetStreamRangeReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """
        A streaming read, through consumers of its own or shared ones. Never raises: what `schema`
        could not know is said by the reader, when Spark first asks it something.
        """
        from .options import parse_stream
        from .worker import log_for

        try:
            from .readstream.reader import StreamReader as Reader
        except ModuleNotFoundError:  # pyspark.sql.streaming.datasource is new in Spark 4.2
            from .readstream.earlier import EarlierReader as Reader  # type: ignore[assignment]
        try:
            options = parse_stream(dict(self.options))
            log_for(options.connection.log_level, options.query_name or options.consumer)
            _check_schema(schema, columns_of(self.options))
        except OptionError as error:
            from .readstream.refused import RefusedReader

            return RefusedReader(error)
        return Reader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch write."""
        from .options import parse_sink
        from .worker import log_for

        _check_spark()
        from .write.sink import JetStreamBatchWriter

        options = parse_sink(dict(self.options))
        log_for(options.connection.log_level, options.metrics.query_name)
        return JetStreamBatchWriter.prepared(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A streaming write."""
        from .options import parse_sink
        from .worker import log_for

        _check_spark()
        from .write.sink import JetStreamStreamWriter

        options = parse_sink(dict(self.options), streaming=True)
        log_for(options.connection.log_level, options.metrics.query_name)
        return JetStreamStreamWriter.prepared(options, schema, overwrite)
