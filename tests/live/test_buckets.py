"""Key-Value buckets as tables, without Spark."""

import random
from datetime import UTC, datetime

import pytest

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import OptionError, SnapshotLossError, StreamNotFoundError

from ..kits.reading import rows_of
from ..kits.seeds import fresh
from ..kits.shared import eventually

SEEDS = [1, 2, *fresh(__name__)]

DEL = [("KV-Operation", "DEL")]
PURGE = [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")]


@pytest.fixture
def bucket(new_stream):
    """Makes buckets as the KV API does; returns their names."""

    def make(history=1, **config):
        name = f"B{new_stream()}"
        new_stream(
            name=f"KV_{name}",
            subjects=[f"$KV.{name}.>"],
            max_msgs_per_subject=history,
            allow_rollup_hdrs=True,
            deny_delete=True,
            discard="new",
            **config,
        )
        return name

    return make


@pytest.fixture
def put(publish):
    """Puts (key, value) or (key, value, headers) into a bucket."""

    def send(name, *entries):
        publish([(f"$KV.{name}.{key}", value, *headers) for key, value, *headers in entries])

    return send


@pytest.fixture
def read(nats_server):
    """The rows of a bucket with these options."""

    def rows(name, **options):
        texts = {key: str(value) for key, value in options.items()}
        source = JetStreamDataSource({"servers": nats_server.url, "bucket": name} | texts)
        reader = source.reader(source.schema())
        return rows_of(reader)

    return rows


def entries(rows):
    return [(row["key"], row["value"], row["revision"], row["operation"]) for row in rows]


def test_the_address_example(bucket, put, read):
    """The document's example: a user's record now, then, and all that it was."""
    users = bucket(history=5)
    put(
        users,
        ("1234.name", b"Bob"),
        ("1234.surname", b"Smith"),
        ("1234.address", b"1 Main Street"),
        ("1234.address", b"10 Oak Lane"),
    )
    name, surname, old, new = (
        ("1234.name", b"Bob", 1, "PUT"),
        ("1234.surname", b"Smith", 2, "PUT"),
        ("1234.address", b"1 Main Street", 3, "PUT"),
        ("1234.address", b"10 Oak Lane", 4, "PUT"),
    )

    assert entries(read(users)) == [name, surname, new]
    assert entries(read(users, upToSequence=3)) == [name, surname, old]
    assert entries(read(users, history=True)) == [name, surname, old, new]
    assert entries(read(users, history=True, upToSequence=3)) == [name, surname, old]
    assert entries(read(users, keys="*.address")) == [new]
    assert entries(read(users, keys="1234.name,*.address", history=True)) == [name, old, new]
    assert entries(read(users, keys="4321.>")) == []


def test_columns(bucket, put, read):
    """A row is key, value, revision, time and operation, and headers where they are asked for."""
    users = bucket()
    put(users, ("a", b"\x00", [("Mine", "1")]))
    row = read(users)[0]
    with_headers = read(users, includeHeaders=True)[0]

    assert list(row) == ["key", "value", "revision", "timestamp", "operation"]
    assert abs((row["timestamp"] - datetime.now(UTC)).total_seconds()) < 60
    assert with_headers == row | {"headers": [("Mine", ["1"])]}


def test_deletes_and_purges(bucket, put, read):
    """Deleted keys are left out of the latest values unless asked for; a history has them."""
    users = bucket(history=5)
    put(users, ("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"", DEL), ("b", b"", PURGE))
    put(users, ("d", b"4"), ("d", b"", DEL), ("d", b"5"))

    assert entries(read(users)) == [("c", b"3", 3, "PUT"), ("d", b"5", 8, "PUT")]
    assert entries(read(users, dropMarkers=False)) == [
        ("c", b"3", 3, "PUT"), ("a", b"", 4, "DEL"), ("b", b"", 5, "PURGE"), ("d", b"5", 8, "PUT"),
    ]  # fmt: skip
    assert entries(read(users, history=True)) == [
        ("a", b"1", 1, "PUT"), ("c", b"3", 3, "PUT"), ("a", b"", 4, "DEL"), ("b", b"", 5, "PURGE"),
        ("d", b"4", 6, "PUT"), ("d", b"", 7, "DEL"), ("d", b"5", 8, "PUT"),
    ]  # fmt: skip
    assert entries(read(users, history=True, dropMarkers=True)) == [
        ("a", b"1", 1, "PUT"), ("c", b"3", 3, "PUT"), ("d", b"4", 6, "PUT"), ("d", b"5", 8, "PUT"),
    ]  # fmt: skip


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("bound", [{"upToSequence": 99}, {"upToTime": "2200-01-01T00:00:00Z"}])
def test_a_bound_to_come(bucket, put, read, history, bound):
    """The error has the option that was given."""
    put(users := bucket(history=5), ("a", b"1"))
    with pytest.raises(OptionError, match=f"option '{next(iter(bound))}'"):
        read(users, history=history, **bound)


def test_a_purge_hides_the_past(bucket, put, read):
    """As of a revision before a purge the key's value is gone: it is missed, or left out."""
    users = bucket(history=5)
    put(users, ("a", b"1"), ("b", b"2"), ("b", b"", PURGE), ("b", b"3"), ("new", b"4"))

    with pytest.raises(SnapshotLossError, match="1 subjects of the snapshot") as caught:
        read(users, upToSequence=2)
    assert caught.value.subjects == (f"$KV.{users}.b",)
    assert entries(read(users, upToSequence=2, failOnDataLoss=False)) == [("a", b"1", 1, "PUT")]


def test_keys_that_expire(bucket, put, read):
    """A key that expired leaves the server's marker, a purge; without one it is not there."""
    users = bucket(
        history=1, allow_msg_ttl=True, subject_delete_marker_ttl=10**9 * 60,
        max_age=10**9, duplicate_window=10**9,
    )  # fmt: skip
    put(users, ("short", b"1"), ("long", b"2", [("Nats-TTL", "never")]))
    whole = {"dropMarkers": False, "includeHeaders": True, "failOnDataLoss": False}
    # The server takes the value away first, and then stores its marker.
    eventually(lambda: "PURGE" in [row["operation"] for row in read(users, **whole)])
    rows = read(users, **whole)

    assert entries(read(users)) == [("long", b"2", 2, "PUT")]
    assert [(r["key"], r["operation"]) for r in rows] == [("long", "PUT"), ("short", "PURGE")]
    assert ("Nats-Marker-Reason", ["MaxAge"]) in rows[1]["headers"]


def test_a_bucket_that_is_none(new_stream, js, read):
    """A missing bucket, a stream that is none, and one without direct get are one error each."""
    other = new_stream()
    new_stream(name=f"KV_{other}", subjects=[f"kv{other}.>"])
    new_stream(name=f"KV_{other}OFF", subjects=[f"$KV.{other}OFF.>"], allow_direct=False)

    with pytest.raises(StreamNotFoundError, match="stream 'KV_NOWHERE' not found"):
        read("NOWHERE")
    for history in (False, True):
        with pytest.raises(OptionError, match=f"option 'bucket': '.KV.{other}.>' matches no mess"):
            read(other, history=history)
    with pytest.raises(OptionError, match="direct get off"):
        read(f"{other}OFF")
    with pytest.raises(OptionError, match="expected a bucket name"):
        read("a.b")


def test_a_mirrored_bucket(js, bucket, put, read, new_stream):
    """A mirror of a bucket is read by its own name; its keys are its origin's."""
    users = bucket(history=2)
    put(users, ("a", b"1"), ("b", b"2"))
    copy = f"{users}COPY"
    new_stream(name=f"KV_{copy}", subjects=None, mirror={"name": f"KV_{users}"})
    eventually(lambda: js.stream_info(f"KV_{copy}").last_seq == 2)

    assert entries(read(copy)) == [("a", b"1", 1, "PUT"), ("b", b"2", 2, "PUT")]
    assert entries(read(copy, keys="b", history=True)) == [("b", b"2", 2, "PUT")]

    new_stream(name=f"KV_{copy}2", subjects=None, mirror={"name": f"KV_{copy}"})
    eventually(lambda: js.stream_info(f"KV_{copy}2").last_seq == 2)

    assert entries(read(f"{copy}2")) == [("a", b"1", 1, "PUT"), ("b", b"2", 2, "PUT")]


def test_a_bucket_filled_from_others(js, bucket, put, read, new_stream):
    """A bucket with `sources` is read by what is stored."""
    users = bucket(history=2)
    put(users, ("a", b"1"), ("b", b"2"))

    def filled(name, count, *origins):
        sources = [{"name": each} for each in origins]
        new_stream(name=f"KV_{users}{name}", subjects=[f"$KV.{users}{name}.>"], sources=sources)
        eventually(lambda: js.stream_info(f"KV_{users}{name}").messages >= count)
        return f"{users}{name}"

    copy = filled("ONE", 2, f"KV_{users}")

    assert entries(read(copy)) == [("a", b"1", 1, "PUT"), ("b", b"2", 2, "PUT")]
    assert entries(read(copy, keys="b")) == [("b", b"2", 2, "PUT")]
    assert entries(read(copy, keys="a,b", history=True)) == entries(read(copy))


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_to_brute_force(bucket, put, read, seed):
    """At any revision the bucket is what replaying its puts, deletes and purges gives."""
    rng = random.Random(seed)
    users = bucket(history=64)
    log, purged = [], {}
    for revision in range(1, 200):
        key, what = f"k{rng.randrange(12)}", rng.random()
        if what < 0.7:
            log.append((key, b"%d" % revision, "PUT"))
            put(users, (key, b"%d" % revision))
        elif what < 0.95:
            log.append((key, b"", "DEL"))
            put(users, (key, b"", DEL))
        else:
            log.append((key, b"", "PURGE"))
            put(users, (key, b"", PURGE))
            purged[key] = revision
    numbered = [(key, value, i + 1, what) for i, (key, value, what) in enumerate(log)]
    held = [each for each in numbered if each[2] >= purged.get(each[0], 0)]

    assert entries(read(users, history=True)) == held
    for revision in (199, *rng.sample(range(1, 199), 5)):
        latest = {}
        for key, value, at, what in held:
            if at <= revision:
                latest[key] = (key, value, at, what)
        alive = sorted((e for e in latest.values() if e[3] == "PUT"), key=lambda e: e[2])
        found = read(users, upToSequence=revision, failOnDataLoss=False)

        assert entries(found) == alive, revision
        assert entries(read(users, history=True, upToSequence=revision, minPartitions=3)) == [
            e for e in held if e[2] <= revision
        ]
