"""What tests of snapshots share: reading one, and the same by brute force."""

from __future__ import annotations

import base64
import json
import time

from pyspark_jetstream import subjects
from pyspark_jetstream.client import wire
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader


def stored(js, stream) -> dict[int, dict]:
    """Every message of the stream by its sequence, one by one from the leader."""
    last = js.stream_info(stream).last_seq
    subject = f"{js.prefix}.STREAM.MSG.GET.{stream}"
    found = {}
    for low in range(1, last + 1, 500):
        asked = range(low, min(low + 500, last + 1))
        replies = js.client.requests([(subject, b'{"seq":%d}' % seq) for seq in asked])
        for seq, reply in zip(asked, replies, strict=True):
            answer = json.loads(reply.data)
            if "message" in answer:
                message = answer["message"]
                found[seq] = {
                    "subject": message["subject"],
                    "data": base64.b64decode(message.get("data", "")),
                    "headers": base64.b64decode(message.get("hdrs", "")),
                }
    return found


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


def delete(js, stream, *seqs) -> None:
    for seq in seqs:
        js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})


def fill(js, stream, names, payload=b"x") -> None:
    """Publishes to all subjects, fast: without replies, but never far ahead of the server."""
    connection = js.client.connection
    start = js.stream_info(stream).last_seq
    for low in range(0, len(names), 5000):
        part = names[low : low + 5000]
        connection.send(b"".join(wire.pub(name, payload) for name in part))
        while js.stream_info(stream).last_seq < start + low + len(part) - 20_000:
            time.sleep(0.01)
    while js.stream_info(stream).last_seq < start + len(names):
        time.sleep(0.01)
