"""What tests of snapshots share: reading one, and the same by brute force."""

from __future__ import annotations

from pyspark_jetstream import subjects
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader

from .reading import batch_reader


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
