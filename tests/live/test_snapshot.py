"""Snapshots against a brute-force reduction of the stream, without Spark."""

from __future__ import annotations

import base64
import json
import random

import pytest

from pyspark_jetstream import snapshots, subjects
from pyspark_jetstream.readoptions import parse_read
from pyspark_jetstream.snapshot import JetStreamSnapshotReader

SEEDS = [1, 2, 3, random.randrange(2**32)]
"""The last one is new in every run; a failing test shows it in its name."""


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


def random_history(js, stream, publish, rng) -> None:
    """Writes, deletes and purges at random."""
    names = [f"{stream}.{rng.choice('abc')}.k{i}" for i in range(rng.choice([3, 40, 300]))]
    written = 0
    for _ in range(rng.randint(3, 12)):
        action = rng.random()
        if action < 0.6 or written == 0:
            count = rng.randint(1, 200)
            publish([(rng.choice(names), b"%d" % rng.randrange(10**9)) for _ in range(count)])
            written = js.stream_info(stream).last_seq
        elif action < 0.8:
            for seq in rng.sample(range(1, written + 1), min(written, rng.randint(1, 30))):
                js.client.request(
                    f"{js.prefix}.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": seq}).encode()
                )
        elif action < 0.9:
            js.purge(stream, rng.choice(names), rng.randint(1, written + 1))
        else:
            js.purge(stream, None, rng.randint(1, max(1, written // 3)))


@pytest.mark.parametrize("way", ["names", "range"])
@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_to_brute_force(
    js, nats_server, new_stream, publish, monkeypatch, seed, storage, way
):
    """
    As of any sequence a snapshot is what a reduction of the whole stream gives, whichever way it
    is found, over histories of writes, deletes and purges.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream(storage=storage, max_msgs_per_subject=rng.choice([-1, 1, 2, 5]))
    random_history(js, stream, publish, rng)
    there = stored(js, stream)
    last = js.stream_info(stream).last_seq
    for up_to in [None, 1, last, *(rng.randint(1, last) for _ in range(6))]:
        filters = rng.choice(
            [[f"{stream}.>"], [">"], [f"{stream}.a.*", f"{stream}.*.k1"], [f"{stream}.b.k2"]]
        )
        bound = {"upToSequence": up_to} if up_to is not None else {}
        source = reader(
            nats_server, stream=stream, multiLast=json.dumps(filters), failOnDataLoss="false",
            **bound,
        )  # fmt: skip
        found = as_dict(rows(source))

        assert found == reduced(there, filters, up_to or last), (up_to, filters)
