"""Checks of a write before a row moves: its columns, the servers and the target streams."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import TimestampType

from ..client.connection import borrow
from ..client.jetstream import JetStream
from ..errors import ColumnError, OptionError
from ..outbox.targets import Target, untaken
from ..publish.settings import SinkOptions
from ..subjects import bucket_prefix
from .columns import check_schema
from .creation import create_streams, stream_configs
from .exactlyonce.ledger import Ledger
from .streams import Streams, check_target

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def prepare(options: SinkOptions) -> None:
    """
    Everything that can be wrong with the servers, where a writer is made. A server that is not
    there has `requestTimeout`: Spark says of no write whether it is the first one of a running
    query.

    Raises:
        UnsupportedServerError: The server is too old.
        OptionError: The target stream, where it is known, cannot be written as the options say.
        LedgerError: There is no ledger, and none can be made.
    """
    with borrow(options.connection) as client:
        client.connection.ping(options.connection.request_timeout_s)
        js = JetStream(client)
        if options.create is not None:
            for config in stream_configs(options.create):
                check_target(Target.parse(config), options)
            create_streams(js, options.create)
        if options.ledger:
            Ledger(js).ensure()
        with closing(Streams(client, options)) as streams:
            subject, targets = options.rows.subject, streams.targets
            bucket = options.rows.bucket
            if bucket is not None:
                subject = f"{bucket_prefix(bucket)}_"
            if subject is None or options.rows.mapping is not None:
                return
            (place,) = targets.of(pa.array([subject])).to_pylist()
            if place is not None:
                check_target(targets[place], options)
            elif options.rows.require_stream and not targets.is_blind:
                if bucket is None:
                    raise OptionError("subject", untaken(subject))
                raise OptionError("bucket", _no_bucket(js, bucket))


def _no_bucket(js: JetStream, bucket: str) -> str:
    """Why nothing takes the keys of a bucket."""
    (info,) = js.stream_infos_there([f"KV_{bucket}"])
    mirror = info.config.get("mirror") if info is not None else None
    if mirror:
        return f"'{bucket}' is a mirror of stream '{mirror['name']}', which takes the writes"
    return f"there is no bucket '{bucket}' in this account; createStream=true makes it"


def check_rows(schema: StructType, options: SinkOptions) -> None:
    """
    Raises:
        ColumnError: The rows cannot be written as the options say.
    """
    types = pa.schema([(each.name, _arrow_type(each.dataType)) for each in schema.fields])
    named = {each.name: each.dataType.simpleString() for each in schema.fields}
    check_schema(types, options.rows.subject is not None, options.rows.bucket is not None, named)
    names = {name.lower() for name in schema.names}
    if "claims" in names and options.priorities.claim is None:
        raise ColumnError("claims", "does nothing without the option priorityClaim; drop it")
    commands = {"schedule_target", "increment"} & names
    if commands and options.dead_letter_subject is not None:
        raise ColumnError(
            min(commands), "cannot stand in a dead letter; drop it, or option deadLetterSubject"
        )


def _arrow_type(type: DataType) -> pa.DataType:
    """The Arrow type in which Spark hands values over; NULL, which no column has, for no type."""
    if isinstance(type, TimestampType):  # else it has the zone of the session
        return pa.timestamp("us", "UTC")
    try:
        return to_arrow_type(type)
    except PySparkTypeError:
        return pa.null()
