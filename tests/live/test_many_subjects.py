"""Reads and writes of very many subjects: what is kept of them does not grow with their number."""

from __future__ import annotations

import gc
import json

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.write.sink import JetStreamBatchWriter

from ..kits.ranges import reader
from ..kits.reading import batch_reader
from ..kits.streams import fill

# What tests before left open shows here, where everything is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SUBJECTS = 60_000
BLOCK = 5_000
MOST = 20_000
"""Entries of one container: the largest bound of a cache, 10,000, and what is on its way."""


def largest(prefix):
    """How many subjects that begin so the container has that has most of them."""
    begin, most = prefix, 0
    gc.collect()
    for held in gc.get_objects():
        if isinstance(held, dict | set | frozenset | list | tuple) and len(held) > most:
            named = sum(
                1 for each in list(held)
                if (isinstance(each, str) and each.startswith(begin))
                or (isinstance(each, bytes) and each.startswith(begin.encode()))
            )  # fmt: skip
            most = max(most, named)
    return most


def test_a_write_keeps_few_subjects(nats_server, new_stream):
    """A write of rows of different subjects keeps no more of them than its caches may have."""
    stream = new_stream(storage="memory")
    mapping = {f"{stream}.in.*": f"{stream}.out.{{{{wildcard(1)}}}}"}
    options = {
        "servers": nats_server.url,
        "subjectMapping": json.dumps(mapping),
        "throttleSubject": f"{stream}.throttle",
    }
    schema = StructType().add("subject", "string").add("data", "binary")
    seen: list[int] = []

    def blocks():
        for low in range(0, SUBJECTS, BLOCK):
            names = [f"{stream}.in.{number:08d}" for number in range(low, low + BLOCK)]
            yield pa.record_batch({"subject": names, "data": [b"x"] * BLOCK})
            del names
        seen.append(largest(f"{stream}."))

    JetStreamBatchWriter(parse_sink(options), schema).write(blocks())

    assert len(seen) == 1
    assert seen[0] <= MOST


def test_reads_keep_few_subjects(js, nats_server, new_stream):
    """Snapshots and ranges keep no more subjects in Python than are on their way."""
    stream = new_stream(storage="memory")
    fill(js, [f"{stream}.{number:08d}" for number in range(SUBJECTS)])
    fill(js, [f"{stream}.00000000"])
    snapshots = reader(nats_server, stream=stream, multiLast=">")
    (task,) = snapshots.partitions()
    rows = 0
    for batch in snapshots.read(task):
        rows += batch.num_rows
        most = largest(f"{stream}.")
        assert most <= MOST
    assert rows == SUBJECTS

    ranges = batch_reader(nats_server, JetStreamRangeReader, stream=stream)
    rows = 0
    for task in ranges.partitions():
        for batch in ranges.read(task):
            rows += batch.num_rows
    assert rows == SUBJECTS + 1
    assert largest(f"{stream}.") <= MOST
