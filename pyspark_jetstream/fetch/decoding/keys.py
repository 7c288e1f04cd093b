"""
Messages of a Key-Value bucket's stream as rows of the bucket (ADR-8).

A bucket is the stream `KV_<bucket>` with a subject `$KV.<bucket>.<key>` for every key; a revision
is a sequence. Deletes and purges are messages, the server's own for keys that expire included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .markers import PUT, operations
from .rows import HEADERS

_PREFIX: Final = r"^\$KV\.[^.]*\."
"""Prefix of a key: that of the bucket itself, or of the one that it mirrors."""


def bucket_schema(include_headers: bool) -> pa.Schema:
    """The columns of a bucket."""
    fields = [
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("revision", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("operation", pa.string()),
    ]
    if include_headers:
        fields.append(pa.field("headers", HEADERS))
    return pa.schema(fields)


def keyed(
    batches: Iterator[pa.RecordBatch], include_headers: bool, drop_markers: bool = False
) -> Iterator[pa.RecordBatch]:
    """
    Messages with their headers as keys.

    Args:
        drop_markers: whether deletes and purges are left out.
    """
    schema = bucket_schema(include_headers)
    for batch in batches:
        operation = operations(batch.column("headers"))
        if drop_markers:
            puts = pc.equal(operation, PUT)
            batch, operation = batch.filter(puts), operation.filter(puts)
        if batch.num_rows:
            key = pc.replace_substring_regex(batch.column("subject"), _PREFIX, "")
            columns = [key, *batch.select(["data", "sequence", "timestamp"]).columns, operation]
            if include_headers:
                columns.append(batch.column("headers"))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
