"""Which messages are delete and TTL markers."""

import pyarrow as pa
import pytest

from pyspark_jetstream.fetch.decoding.markers import operation, operations, purges, without_markers
from pyspark_jetstream.fetch.decoding.rows import arrow_schema

CASES = [
    (None, "PUT", False),
    ([("Mine", ["1"])], "PUT", False),
    ([("KV-Operation", ["DEL"])], "DEL", False),
    ([("KV-Operation", ["PURGE"]), ("Nats-Rollup", ["sub"])], "PURGE", True),
    ([("KV-Operation", ["PUT"])], "PUT", False),
    ([("Nats-Marker-Reason", ["MaxAge"]), ("Nats-Rollup", ["sub"])], "PURGE", True),
    ([("Nats-Marker-Reason", ["Purge"])], "PURGE", True),
    ([("Nats-Marker-Reason", ["Remove"])], "DEL", False),
    ([("Nats-Rollup", ["sub"])], "PUT", True),
]


@pytest.mark.parametrize(("headers", "what", "purge"), CASES)
def test_operations(headers, what, purge):
    """Headers say whether a message puts, deletes or purges, and what is before it."""
    assert operation(headers) == what
    assert purges(headers) is purge


def test_columns():
    """A whole column is told at once, and its markers left out."""
    schema = arrow_schema(include_headers=True)
    headers = [case[0] for case in CASES]
    rows = len(headers)
    batch = pa.record_batch(
        [
            pa.nulls(rows, field.type) if field.name not in ("sequence", "headers")
            else pa.array(range(rows) if field.name == "sequence" else headers, field.type)
            for field in schema
        ],
        schema=schema,
    )  # fmt: skip
    puts = [number for number, (_, what, _) in enumerate(CASES) if what == "PUT"]

    assert operations(batch.column("headers")).to_pylist() == [what for _, what, _ in CASES]
    assert without_markers(batch).column("sequence").to_pylist() == puts
    assert without_markers(batch.slice(0, 1)).num_rows == 1
    assert operations(batch.column("headers").slice(0, 1)).to_pylist() == ["PUT"]
