"""The shape of a read's rows: their columns, and the messages that are no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ReadError
from ..fetch.decoding.keys import keyed
from ..fetch.decoding.markers import without_markers

if TYPE_CHECKING:
    from .rows import TaskRows

COUNT: Final = pa.field("count", pa.decimal128(38, 0))
_INCREMENT: Final = "Nats-Incr"
"""Header of a counter's messages alone: other streams take none with it."""

_SUM: Final = r'^\{"val":"(?P<count>-?[0-9]+)"\}$'
"""The payload of a message of a counter (ADR-49)."""


def shaped(batches: Iterator[pa.RecordBatch], of: TaskRows) -> Iterator[pa.RecordBatch]:
    """Messages as the rows of a read."""
    if of.is_keyed:
        return keyed(batches, of.include_headers, of.drop_markers)
    return _trimmed(batches, of)


def _trimmed(batches: Iterator[pa.RecordBatch], of: TaskRows) -> Iterator[pa.RecordBatch]:
    """
    Batches with the rows (`dropMarkers`) and columns that the read has: `count`
    behind the others (`includeCount`), and `data` not with `includeData=false`. Headers, which all
    of them go by, stay if `includeHeaders` wants them.

    Raises:
        ReadError: A counter has more digits than a DECIMAL.
    """
    extent = of.extent
    for batch in batches:
        if of.drop_markers:
            batch = without_markers(batch)
        counts = _count(batch) if extent.include_count else None
        if not of.include_headers and "headers" in batch.schema.names:
            batch = batch.drop_columns(["headers"])
        if not extent.include_data:
            batch = batch.drop_columns(["data"])
        if batch.num_rows:
            yield batch if counts is None else batch.append_column(COUNT, counts)


def numbered(
    batches: Iterator[pa.RecordBatch], by: str, number: Callable[[str], int | None]
) -> Iterator[pa.RecordBatch]:
    """Batches with the column `partition` made of another one of text."""
    for batch in batches:
        of = batch.column(by).dictionary_encode()
        numbers = pa.array(map(number, of.dictionary.to_pylist()), pa.int32())
        at = batch.schema.names.index("partition")
        yield batch.set_column(at, batch.schema.field(at), numbers.take(of.indices))


def _count(batch: pa.RecordBatch) -> pa.Array:
    found = pc.struct_field(pc.extract_regex(batch.column("data"), _SUM), "count")
    counts = pc.is_valid(pc.map_lookup(batch.column("headers"), _INCREMENT, "first"))
    counts = pc.and_not(counts, pc.equal(found, b""))
    texts = pc.if_else(counts, found, pa.scalar(None, pa.binary())).cast(pa.string())
    digits = pc.utf8_length(pc.utf8_ltrim(texts, "-"))
    if (pc.max(digits).as_py() or 0) > COUNT.type.precision:
        at = pc.index(pc.greater(digits, COUNT.type.precision), True).as_py()
        row = batch.slice(at, 1).to_pylist()[0]
        raise ReadError(
            row["stream"],
            row["partition"],
            f"the counter on '{row['subject']}' has {digits[at]} digits at sequence"
            f" {row['sequence']}, and a DECIMAL has {COUNT.type.precision}; leave includeCount out,"
            " it stands in data as text",
        )
    return texts.cast(COUNT.type)
