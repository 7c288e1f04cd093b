"""What tests of snapshots share: reading one, and the same by brute force."""

from __future__ import annotations

from pyspark_jetstream import subjects
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader


def reduced(messages, filters, up_to) -> dict[str, tuple[int, bytes]]:
    """The last message of each subject at or below a sequence, by brute force."""
    last = {}
    for seq in sorted(messages):
        subject = messages[seq]["subject"]
        if seq <= up_to and any(subjects.matches(each, subject) for each in filters):
            last[subject] = (seq, messages[seq]["data"])
    return last


def reader(server, **options) -> JetStreamSnapshotReader:
    texts = {name: str(value) for name, value in options.items()}
    return JetStreamSnapshotReader(parse_read({"servers": server.url} | texts))


def rows(source) -> list[dict]:
    return [
        row for task in source.partitions() for batch in source.read(task)
        for row in batch.to_pylist()
    ]  # fmt: skip


def as_dict(found) -> dict[str, tuple[int, bytes]]:
    assert len({row["subject"] for row in found}) == len(found)
    return {row["subject"]: (row["sequence"], row["data"]) for row in found}
