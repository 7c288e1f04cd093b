"""
The columns of which a row to write may consist: their names and types.

Names match whatever their case, as everywhere in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ..arrays import is_text
from ..errors import ColumnError


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
