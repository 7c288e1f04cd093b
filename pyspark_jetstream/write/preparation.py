"""Checks of a write before a row moves: its columns, the servers and the target streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import TimestampType

from ..client.connection import borrow
from ..client.jetstream import JetStream
from ..client.versions import Version, require
from ..errors import ColumnError, OptionError
from ..outbox.targets import Target, untaken
from ..publish.options import SinkOptions
from ..subjects import bucket_prefix
from .commandlines import column_fault
from .creation import create_streams, stream_configs
from .exactlyonce.ledger import Ledger
from .rows import check_names, check_schema
from .streams import Streams, target_fault

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def _needs(options: SinkOptions, schema: StructType) -> Iterator[tuple[Version, str]]:
    """Features of this write that older servers lack: version and feature."""
    if options.ledger:
        yield (2, 10), "exactlyOnce"
    if options.create is not None:
        yield (2, 10), "createStream"
    if "ttl" in schema.names:  # taken for any header, and never acted on
        yield (2, 11), "the column ttl"
    if "schedule_target" in schema.names:
        yield (2, 12), "the columns deliver_at and schedule"
    if "increment" in schema.names:
        yield (2, 12), "the column increment"
    config = options.create.config if options.create is not None else {}
    if config.get("allow_atomic"):
        yield (2, 12), "allow_atomic in streamConfig"
    if config.get("allow_batched"):
        yield (2, 14), "allow_batched in streamConfig"


def prepare(options: SinkOptions, schema: StructType) -> None:
    """
    Everything that can be wrong with the servers, before a row moves. A server that is not there
    has `requestTimeout`: Spark says of no write whether it is the first one of a running query.

    Raises:
        UnsupportedServerError: The server is too old for one of the options or columns.
        OptionError: The target stream, where it is known, cannot be written as the options say.
        ColumnError: It does not take what a column says.
        LedgerError: There is no ledger, and none can be made.
    """
    with borrow(options.connection) as client:
        client.connection.ping(options.connection.request_timeout_s)
        for needed, capability in _needs(options, schema):
            require(client.connection.version, needed, capability)
        js = JetStream(client)
        if options.create is not None:
            for config in stream_configs(options.create):
                _check_target(Target.parse(config), schema, options)
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
                _check_target(targets[place], schema, options)
            elif options.rows.require_stream and not targets.is_blind:
                if bucket is None:
                    raise OptionError("subject", untaken(subject))
                raise OptionError(
                    "bucket",
                    f"there is no bucket '{bucket}' in this account; createStream=true makes it",
                )


def _check_target(target: Target, schema: StructType, options: SinkOptions) -> None:
    """
    Raises:
        OptionError: The stream cannot be written as the options say.
        ColumnError: It does not take what a column says.
    """
    names = schema.names
    fault = target_fault(target, options) or column_fault(names, target, options.ledger)
    if fault is not None:
        raise fault


def check_rows(schema: StructType, options: SinkOptions) -> None:
    """The columns by name first: the type of an unknown one may have no Arrow form."""
    subject_given, bucket = options.rows.subject is not None, options.rows.bucket is not None
    check_names(schema.names, subject_given, bucket)
    if "claims" in schema.names and options.priorities.claim is None:
        raise ColumnError("claims", "does nothing without the option priorityClaim; drop it")
    commands = {"schedule_target", "increment"} & set(schema.names)
    if commands and options.dead_letter_subject is not None:
        raise ColumnError(
            min(commands), "cannot stand in a dead letter; drop it, or option deadLetterSubject"
        )
    fields = []
    for each in schema.fields:
        try:
            fields.append(pa.field(each.name, _arrow_type(each.dataType)))
        except Exception as error:
            raise ColumnError(
                each.name, f"the type {each.dataType.simpleString()} cannot be written"
            ) from error
    named = {each.name: each.dataType.simpleString() for each in schema.fields}
    check_schema(pa.schema(fields), subject_given, bucket, named)


def _arrow_type(type: DataType) -> pa.DataType:
    """The Arrow type in which Spark hands values over; the zone of a TIMESTAMP is the session's."""
    return pa.timestamp("us", "UTC") if isinstance(type, TimestampType) else to_arrow_type(type)
