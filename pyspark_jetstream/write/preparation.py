"""
What a write is checked for before a row moves: its columns, the servers, the target streams.

Names of columns match whatever their case, as everywhere in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import TimestampType

from ..arrays import is_text
from ..client.connection import borrow
from ..client.jetstream import JetStream
from ..errors import ColumnError, OptionError
from ..outbox.targets import Target, untaken
from ..publish.settings import SinkOptions
from ..subjects import bucket_prefix
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
            from .creation import create_streams, stream_configs

            for config in stream_configs(options.create):
                check_target(Target.parse(config), options)
            create_streams(js, options.create)
        if options.ledger:
            from .exactlyonce.ledger import Ledger

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


# ── columns ──────────────────────────────────────────────────────────────────────────────────


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


class Column(NamedTuple):
    """A column of a write."""

    accepts: Callable[[pa.DataType], bool]
    """Whether it may have this type."""
    expected: str
    """The types, in Spark's words."""


def _is_bytes(type: pa.DataType) -> bool:
    kinds = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view
    return any(each(type) for each in kinds)


def _is_payload(type: pa.DataType) -> bool:
    return is_text(type) or _is_bytes(type)


def _is_claims(type: pa.DataType) -> bool:
    return bool(pa.types.is_map(type) and is_text(type.key_type) and is_text(type.item_type))


def _is_headers(type: pa.DataType) -> bool:
    if not pa.types.is_map(type) or not is_text(type.key_type):
        return False
    item = type.item_type
    if pa.types.is_list(item) or pa.types.is_large_list(item):
        item = item.value_type
    return is_text(item)


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) and type.tz is not None)


def _is_whole(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or (pa.types.is_decimal(type) and type.scale == 0))


_TEXT: Final = Column(is_text, "STRING")
_PAYLOAD: Final = Column(_is_payload, "BINARY or STRING")

COLUMNS: Final = {
    "data": _PAYLOAD,
    "subject": _TEXT,
    "headers": Column(_is_headers, "MAP<STRING,STRING> or MAP<STRING,ARRAY<STRING>>"),
    "msg_id": _TEXT,
    "priority": _TEXT,
    "claims": Column(_is_claims, "MAP<STRING,STRING>"),
    "ttl": _TEXT,
    "deliver_at": Column(_is_time, "TIMESTAMP"),
    "schedule": _TEXT,
    "schedule_target": _TEXT,
    "increment": Column(_is_whole, "BIGINT, or DECIMAL without a fraction"),
}
"""Of a row for a stream."""

KEYS: Final = {
    "key": _TEXT,
    "value": _PAYLOAD,
    "operation": _TEXT,
    "revision": Column(pa.types.is_integer, "BIGINT"),
    "ttl": _TEXT,
}
"""Of a row for a Key-Value bucket."""

_KAFKAS: Final = {"value": "data", "topic": "subject"}
"""Meaning of columns for Kafka's sink here."""


def _check_names(names: Sequence[str], subject_given: bool, bucket: bool) -> None:
    known = KEYS if bucket else COLUMNS
    lower = [name.lower() for name in names]
    for name, each in zip(names, lower, strict=True):
        if each not in known:
            raise ColumnError(name, f"unknown; {_advice(each, bucket)}")
        if lower.count(each) > 1:
            raise ColumnError(name, "there are two of this name, whatever its case; drop one")
    if bucket:
        if "key" not in lower:
            raise ColumnError("key", "required: the key in the bucket, STRING")
        if "value" not in lower and "operation" not in lower:
            raise ColumnError("value", "required: what the key has from now on, BINARY or STRING")
        return
    if "data" not in lower and "increment" not in lower:
        raise ColumnError("data", "required: the payload, BINARY or STRING")
    scheduled = {"deliver_at", "schedule"} & set(lower)
    if scheduled and "schedule_target" not in lower:
        raise ColumnError("schedule_target", "required: the subject that a schedule publishes on")
    if "schedule_target" in lower and not scheduled:
        why = "does nothing without deliver_at or schedule; drop it"
        raise ColumnError("schedule_target", why)
    if "subject" not in lower and not subject_given:
        raise ColumnError("subject", "required, unless the option 'subject' names one for all rows")


def _advice(name: str, bucket: bool) -> str:
    from difflib import get_close_matches  # where all is well nobody comes here

    known = list(KEYS if bucket else COLUMNS)
    own = {} if bucket else _KAFKAS
    near = [own[name]] if name in own else get_close_matches(name, known, n=1)
    what = "a row for a bucket" if bucket else "a row to write"
    consists = f"{what} consists of {', '.join(known)}"
    return f"rename it to {near[0]}, or drop it; {consists}" if near else f"drop it; {consists}"


def check_schema(
    schema: pa.Schema,
    subject_given: bool,
    bucket: bool = False,
    named: Mapping[str, str] | None = None,
) -> None:
    """
    Accepts the columns of a write by their names and types.

    Args:
        bucket: whether the rows are keys of a Key-Value bucket.
        named: Spark's names of the types, by column; without them an error has Arrow's.

    Raises:
        ColumnError: One is unknown, there twice or of another type than its own, or a required one
            is missing.
    """
    _check_names(schema.names, subject_given, bucket)
    for field in schema:
        accepts, expected = (KEYS if bucket else COLUMNS)[field.name.lower()]
        if not accepts(field.type):
            remedy = "cast it"
            if expected.startswith("MAP") and not pa.types.is_map(field.type):
                remedy = "make a map of it, such as map('name', value)"
            elif expected.endswith("STRING") and pa.types.is_nested(field.type):
                remedy = "make text of it with to_json"
            got = (named or {}).get(field.name, field.type)
            raise ColumnError(field.name, f"expected {expected}, got {got}; {remedy}")
