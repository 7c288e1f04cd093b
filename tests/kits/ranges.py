"""What tests of batch reads share: ranges, snapshots and the same by brute force."""

from __future__ import annotations

from dataclasses import replace

from pyspark_jetstream import subjects
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader
from pyspark_jetstream.tasks.ranges import RangeRead

from . import streams
from .reading import batch_reader


def ranged(stream, end, start=0, partition=None, layout=None, **changes) -> RangeRead:
    """A read of `(start, end]` by direct get."""
    layout = layout or Layout((SubjectPartition(0, stream),))
    fields = {"expected": 0, "include_headers": False, "fail_on_data_loss": True} | changes
    return RangeRead(partition, stream, None, start, end, layout=layout, **fields)


def reading(stream, end, filter_=None, **fields) -> RangeRead:
    """A read of `(start, end]` by a consumer of one's own."""
    read = ranged(stream, end, **fields)
    return replace(read, filter=filter_, group="spark")


def rows(client, read) -> list[dict]:
    return [row for batch in read.batches(client) for row in batch.to_pylist()]


def sequences(batches) -> list[int]:
    return [seq for batch in batches for seq in batch.column("sequence").to_pylist()]


def fill(js, stream, count, payload=b"x" * 200, subject="a") -> None:
    """Publishes `count` messages fast."""
    streams.fill(js, [f"{stream}.{subject}"] * count, payload)


def reduced(messages, filters, up_to) -> dict[str, tuple[int, bytes]]:
    """The last message of each subject at or below a sequence, by brute force."""
    last = {}
    for seq in sorted(messages):
        subject = messages[seq]["subject"]
        if seq <= up_to and any(subjects.matches(each, subject) for each in filters):
            last[subject] = (seq, messages[seq]["data"])
    return last


def reader(server, **options) -> JetStreamSnapshotReader:
    return batch_reader(server, JetStreamSnapshotReader, **options)


def as_dict(found) -> dict[str, tuple[int, bytes]]:
    assert len({row["subject"] for row in found}) == len(found)
    return {row["subject"]: (row["sequence"], row["data"]) for row in found}
