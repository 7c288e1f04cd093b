"""
Delete and TTL markers: messages that say a subject's value is gone.

A Key-Value bucket marks with `KV-Operation: DEL` or `PURGE` (ADR-8); a server that removes the
last message of a subject, with `Nats-Marker-Reason` (ADR-43), which a bucket takes for a purge or,
with `Remove`, for a delete (ADR-48). Any other `KV-Operation` counts as a put, as for the clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

PUT: Final = "PUT"
DELETE: Final = "DEL"
PURGE: Final = "PURGE"

_OPERATION: Final = "KV-Operation"
_REASON: Final = "Nats-Marker-Reason"
_ROLLUP: Final = "Nats-Rollup"

Headers = Iterable[tuple[str, list[str]]] | None
"""Headers of a message in the form of the column `headers`."""


def operation(headers: Headers) -> str:
    """Operation of a message with these headers on its key."""
    first_values = {name: values[0] for name, values in headers or () if values}
    if first_values.get(_OPERATION) in (DELETE, PURGE):
        return first_values[_OPERATION]
    if _REASON in first_values:
        return DELETE if first_values[_REASON] == "Remove" else PURGE
    return PUT


def purges(headers: Headers) -> bool:
    """Whether a message with these headers took the place of all before it."""
    return operation(headers) == PURGE or any(name == _ROLLUP for name, _ in headers or ())


def operations(column: pa.Array) -> pa.Array:
    """`operation` of each row of a column `headers`."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(PUT), len(column))
    known: dict[str, str] = {}
    found = []
    for headers in column.to_pylist():
        key = repr(headers)
        if key not in known:
            known[key] = operation(headers)
        found.append(known[key])
    return pa.array(found, pa.string())


def without_markers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are no markers, of a batch with the column `headers`."""
    column = batch.column("headers")
    if column.null_count == len(column):
        return batch
    return batch.filter(pc.equal(operations(column), PUT))
