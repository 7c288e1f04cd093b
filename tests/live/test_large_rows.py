"""Messages of 1 MB and 8 MB: what a task holds of them at one time, read and written."""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.options import parse_read, parse_sink
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader
from pyspark_jetstream.write.sink import JetStreamBatchWriter

from ..kits.clients import serving

MIB = 1 << 20
MOST = 200 * MIB
"""A worker has 90 MB before its first row: together they are within 300 MB."""

SIZES = {"1 MB": MIB - 1_000, "8 MB": 8 * MIB - 1_000}
COUNTS = {"1 MB": 224, "8 MB": 28}
"""More than may be held."""


@pytest.fixture(scope="module")
def large() -> Iterator[tuple[str, JetStream]]:
    """A server that takes such messages, and a stream of each size."""
    with serving("max_payload: 9MB", {"R1": {}, "R8": {}}) as (server, js):
        for size, name in (("1 MB", "R1"), ("8 MB", "R8")):
            for number in range(COUNTS[size]):
                js.client.requests([(f"{name}.{number}", bytes(SIZES[size]))])
        yield server.url, js


def held(act: Callable[[], None]) -> int:
    """The most bytes that Python held while this ran, and the most that Arrow held."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    # Arrow's arrays point to their pool and do not keep it. Caches of the package have some of this
    # pool, and are freed after a test module's names: without the pool that is a segmentation fault
    # at exit (pyarrow 26). So nobody ever frees it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["range", "own", "snapshot"])
def test_a_read_holds_few_large_messages(large, monkeypatch, way, size):
    """By direct get, by a consumer of the attempt's own, and of a snapshot."""
    url, _ = large
    options = {"servers": url, "stream": f"R{size[0]}", "minPartitions": "1"}
    options["directBelow"] = "0" if way == "own" else "999999999"
    if way == "snapshot":
        source = JetStreamSnapshotReader(parse_read(options | {"multiLast": ">"}))
    else:
        source = JetStreamRangeReader(parse_read(options))
    rows = []

    def read() -> None:
        for task in source.partitions():
            rows.extend(batch.num_rows for batch in source.read(task))

    assert held(read) <= MOST
    assert sum(rows) == COUNTS[size]


@pytest.mark.parametrize("size", SIZES)
def test_a_write_holds_few_large_rows(large, size):
    """Rows come in blocks of 4 MiB, or of one row, as `conf/spark-defaults.conf` has it."""
    url, js = large
    name = f"W{size[0]}"
    allowed = {"allow_batched": True, "allow_atomic": True}
    js.create_stream({"name": name, "subjects": [f"{name}.>"]} | allowed)
    schema = StructType().add("subject", "string").add("data", "binary")
    options = {"servers": url, "throttleSubject": f"throttle.{name}"}
    together = max(1, 4 * MIB // SIZES[size])  # divides the counts

    def blocks() -> Iterator[pa.RecordBatch]:
        for low in range(0, COUNTS[size], together):
            data = pa.array([bytes(SIZES[size])], pa.binary()).take(pa.array([0] * together))
            names = [f"{name}.{low + place}" for place in range(together)]
            yield pa.record_batch({"subject": names, "data": data})

    writer = JetStreamBatchWriter(parse_sink(options), schema)

    assert held(lambda: writer.write(blocks())) <= MOST
    assert js.stream_info(name).messages == COUNTS[size]
    js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
