"""A Key-Value bucket as a stream of changes, beside what a watcher of the KV API sees."""

import asyncio
import random
import threading
from contextlib import contextmanager

import nats
import pytest

from ..kits.options import BELOW
from ..kits.reading import query
from ..kits.seeds import fresh
from ..kits.shared import eventually
from .test_buckets import DEL, PURGE, bucket, put, read

__all__ = ["bucket", "put", "query", "read"]

SEEDS = [1, *fresh(__name__)]


def changes(seed, count, keys=40):
    """Entries for `put`: puts, deletes and purges of few keys."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        key = f"{rng.choice('ab')}.{rng.randrange(keys)}"
        marker = rng.choice([None, None, None, DEL, PURGE])
        found.append((key, b"", marker) if marker else (key, b"%d" % number))
    return found


def seen(rows):
    """What rows say, in order."""
    return [(row["key"], row["value"], row["revision"], row["operation"]) for row in rows]


def fold(entries):
    """What a bucket has after these changes."""
    found = {}
    for key, value, _, operation in entries:
        found[key] = value if operation == "PUT" else None
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["auto", "own", "direct"])
@pytest.mark.parametrize("history", [1, 5])
def test_latest_values_then_changes(bucket, put, query, read, js, history, mode, seed):
    """Each key's last revision, then each change once, in order, over restarts too."""
    name = bucket(history=history)
    entries = changes(seed, 900)
    put(name, *entries[:300])
    held = seen(read(name, history="true", dropMarkers="false"))
    one = query(bucket=name, directBelow=BELOW[mode])
    one.drain()
    first = seen(one.rows)
    for low in range(300, 900, 200):
        put(name, *entries[low : low + 200])
        last = js.stream_info(f"KV_{name}").last_seq
        one.drain()
        assert one.rows[-1]["revision"] == last
        one.restart()
    rows = seen(one.rows)

    assert first == sorted(held, key=lambda entry: entry[2])
    assert [entry[2] for entry in rows] == sorted({entry[2] for entry in rows})
    assert all(entry in rows for entry in seen(read(name, history="true", dropMarkers="false")))
    assert fold(rows) == {row["key"]: row["value"] for row in read(name)}
    assert {entry[3] for entry in rows} == {"PUT", "DEL", "PURGE"}


def test_some_keys_and_changes_alone(bucket, put, query):
    """`keys` leaves the others out, each filter a partition; `latest` has changes alone."""
    name = bucket()
    put(name, ("a.1", b"old"), ("b.1", b"old"), ("c.1", b"old"))
    some = query(bucket=name, keys="a.>,c.*", includeHeaders="true")
    later = query(bucket=name, startingOffsets="latest")
    for each in (some, later):
        each.plan()
        each.commit()
    put(name, ("a.1", b"new"), ("b.1", b"", DEL), ("c.2", b"new"))
    some.drain()
    later.drain()

    assert sorted(seen(some.rows), key=lambda entry: entry[2]) == [
        ("a.1", b"old", 1, "PUT"), ("c.1", b"old", 3, "PUT"),
        ("a.1", b"new", 4, "PUT"), ("c.2", b"new", 6, "PUT"),
    ]  # fmt: skip
    assert [row["headers"] for row in some.rows] == [None] * 4
    assert seen(later.rows) == [
        ("a.1", b"new", 4, "PUT"), ("b.1", b"", 5, "DEL"), ("c.2", b"new", 6, "PUT"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["mirror", "moved", "source"])
def test_a_filled_bucket(bucket, put, query, new_stream, kind):
    """A bucket that is filled from another has its origin's subjects: keys of it match these."""
    name = bucket()
    put(name, ("a.1", b"x"), ("b.1", b"y"))
    origin = {"name": f"KV_{name}"}
    if kind == "moved":
        origin["subject_transforms"] = [{"src": f"$KV.{name}.>", "dest": f"$KV.{name}T.>"}]
    made = {"sources": [origin]} if kind == "source" else {"mirror": origin}
    new_stream(name=f"KV_{name}T", subjects=None, **made)
    one, some = query(bucket=f"{name}T"), query(bucket=f"{name}T", keys="a.>")
    eventually(lambda: one.drain() or len(one.rows) == 2)
    eventually(lambda: some.drain() or len(some.rows) == 1)

    assert [row["key"] for row in one.rows] == ["a.1", "b.1"]
    assert [row["key"] for row in some.rows] == ["a.1"]


@contextmanager
def watched_by_client(url, name):
    """What a watcher of nats-py has seen so far: key, value, revision, operation."""
    found, stop = [], threading.Event()

    async def watch():
        client = await nats.connect(url)
        watcher = await (await client.jetstream().key_value(name)).watchall()
        while not stop.is_set():
            try:
                entry = await watcher.updates(timeout=0.5)
            except nats.errors.TimeoutError:
                continue
            if entry is not None:
                operation = entry.operation or "PUT"
                found.append((entry.key, entry.value or b"", entry.revision, operation))
        await client.close()

    thread = threading.Thread(target=asyncio.run, args=(watch(),))
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.parametrize("count", [5_000, 100_000])
def test_beside_a_watcher(nats_server, bucket, put, query, js, count):
    """The same sequence as a watcher has, with deletes, purges and markers of ended TTLs."""
    name = bucket(allow_msg_ttl=True, subject_delete_marker_ttl=3600 * 10**9)
    rng, step, brief = random.Random(count), count // 25, 100
    put(name, *[(f"a.{key}", b"held") for key in range(0, 2 * step, 3)])
    one = query(bucket=name)
    with watched_by_client(nats_server.url, name) as found:

        def both(total):
            eventually(lambda: one.drain() or len(one.rows) == total, 120)
            eventually(lambda: len(found) >= total, 120)

        total = len(range(0, 2 * step, 3))
        both(total)
        for low in range(0, count, step):
            entries = []
            for key in rng.sample(range(2 * step), step):
                marker = rng.choice([None, None, None, DEL, PURGE])
                own = (b"", marker) if marker else (b"%d" % (low + key),)
                entries.append((f"a.{key}", *own))
            put(name, *entries)
            both(total := total + step)
        put(name, *[(f"b.{key}", b"brief", [("Nats-TTL", "10s")]) for key in range(brief)])
        both(total := total + brief)
        both(total + brief)  # the server's own
    rows = seen(one.rows)

    assert found == rows
    assert sum(row[-1] == "PURGE" and row[0].startswith("b.") for row in rows) == brief
    assert {row[-1] for row in rows} == {"PUT", "DEL", "PURGE"}
