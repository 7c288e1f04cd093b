"""What the tests of reading ranges share: full streams, and reads by a consumer of one's own."""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark_jetstream.client.options import ConnectionOptions
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.tasks.ranges import RangeRead

from .options import connection_of


def options(server, **changes) -> ConnectionOptions:
    return connection_of(server.url, **{"request_timeout_s": 20.0} | changes)


def ranged(stream, end, start=0, partition=None, layout=None, **changes) -> RangeRead:
    """A read of `(start, end]` by direct get."""
    layout = layout or Layout((SubjectPartition(0, stream),))
    fields = {"expected": None, "include_headers": False, "fail_on_data_loss": True} | changes
    return RangeRead(partition, stream, None, start, end, layout=layout, **fields)


def reading(stream, end, filter_=None, **fields) -> RangeRead:
    """A read of `(start, end]` by a consumer of one's own."""
    read = ranged(stream, end, **fields)
    return replace(read, filter=filter_, group="spark")


def rows(client, read) -> list[dict]:
    return [row for batch in read.batches(client) for row in batch.to_pylist()]


def sequences(batches) -> list[int]:
    return [seq for batch in batches for seq in batch.column("sequence").to_pylist()]


def delete(js, stream, *seqs) -> None:
    for seq in seqs:
        js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})


def fill(js, stream, count, payload=b"x" * 200, subject="a") -> None:
    """Publishes `count` messages fast; the last sequence tells that all are stored."""
    connection = js.client.connection
    frame = b"PUB %b.%b %d\r\n%b\r\n" % (stream.encode(), subject.encode(), len(payload), payload)
    last = js.stream_info(stream).last_seq + count
    for low in range(0, count, 1000):
        connection.send(frame * min(1000, count - low))
    while js.stream_info(stream).last_seq < last:
        time.sleep(0.01)
