"""Snapshots against a brute-force reduction of the stream, without Spark."""

import json
import random
from datetime import UTC, datetime

import pytest

from pyspark_jetstream.errors import SnapshotLossError
from pyspark_jetstream.read import snapshot

from ..kits.ranges import as_dict, reader, reduced
from ..kits.reading import rows_of as rows
from ..kits.seeds import fresh
from ..kits.shared import eventually
from ..kits.streams import fill, stored

SEEDS = [1, 2, 3, *fresh(__name__)]


def random_history(js, stream, publish, rng, ttl=False):
    """Writes, deletes, purges, bucket operations and messages that expire, at random."""
    names = [f"{stream}.{rng.choice('abc')}.k{i}" for i in range(rng.choice([3, 40, 300]))]
    written, expiring = 0, []
    for _ in range(rng.randint(3, 12)):
        action = rng.random()
        if action < 0.5 or written == 0:
            count = rng.randint(1, 200)
            publish([(rng.choice(names), b"%d" % rng.randrange(10**9)) for _ in range(count)])
        elif action < 0.6:
            operation = rng.choice(
                [[("KV-Operation", "DEL")], [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")]]
            )
            publish([(rng.choice(names), b"", operation) for _ in range(rng.randint(1, 10))])
        elif action < 0.7:
            if ttl:
                count = rng.randint(1, 50)
                publish([(rng.choice(names), b"", [("Nats-TTL", "1s")]) for _ in range(count)])
                expiring += range(written + 1, written + count + 1)
        elif action < 0.8:
            for seq in rng.sample(range(1, written + 1), min(written, rng.randint(1, 30))):
                js.client.request(
                    f"{js.prefix}.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": seq}).encode()
                )
        elif action < 0.9:
            js.purge(stream, rng.choice(names), rng.randint(1, written + 1))
        else:
            js.purge(stream, None, rng.randint(1, max(1, written // 3)))
        written = js.stream_info(stream).last_seq
    of = [(stream, {"seq": seq}) for seq in expiring]
    eventually(lambda: not any(js.messages_of(of)))


@pytest.mark.parametrize("way", ["names", "back"])
@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_to_brute_force(
    js, nats_server, new_stream, publish, monkeypatch, seed, storage, way
):
    """As of any sequence, after any history, a snapshot is the reduction of the stream."""
    rng = random.Random(seed)
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream(
        storage=storage,
        max_msgs_per_subject=rng.choice([-1, 1, 2, 5]),
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
    )
    random_history(js, stream, publish, rng, ttl=True)
    there = stored(js, stream)
    last = js.stream_info(stream).last_seq
    for up_to in [None, 1, last, *(rng.randint(1, last) for _ in range(6))]:
        filters = rng.choice(
            [[f"{stream}.>"], [">"], [f"{stream}.a.*", f"{stream}.*.k1"], [f"{stream}.b.k2"]]
        )
        bound = {"upToSequence": up_to} if up_to is not None else {}
        source = reader(
            nats_server, stream=stream, multiLast=",".join(filters), failOnDataLoss="false",
            **bound,
        )  # fmt: skip
        found = as_dict(rows(source))

        assert found == reduced(there, filters, up_to or last), (up_to, filters)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["names", "back"])
@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_any_number_of_subjects(js, nats_server, new_stream, monkeypatch, count, way):
    """Around and beyond the 1,024 subjects of one request the snapshot is whole, now and then."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream()
    names = [f"{stream}.{i % 7}.{i}" for i in range(count)]
    fill(js, names)
    fill(js, names[: count // 2], b"y")
    options = {"stream": stream, "multiLast": f"{stream}.>"}
    now = as_dict(rows(reader(nats_server, **options)))
    then = as_dict(rows(reader(nats_server, **options, upToSequence=count)))

    assert then == {name: (i + 1, b"x") for i, name in enumerate(names)}
    assert now == then | {name: (count + i + 1, b"y") for i, name in enumerate(names[: count // 2])}


@pytest.mark.parametrize("way", ["names", "back"])
def test_beyond_a_page_of_the_listing(js, nats_server, new_stream, monkeypatch, way):
    """More than 100,000 subjects, which the server lists in pages, come whole."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream(storage="memory")
    count = 101_500
    names = [f"{stream}.{i % 7}.{i}" for i in range(count)]
    random.Random(7).shuffle(names)
    fill(js, names)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.>")
    tasks = source.partitions()
    found = [
        (subject, sequence)
        for task in tasks
        for batch in source.read(task)
        for subject, sequence in zip(
            batch.column("subject").to_pylist(), batch.column("sequence").to_pylist(), strict=True
        )
    ]

    assert len(tasks) == {"names": 3, "back": 1}[way]
    assert dict(found) == {name: i + 1 for i, name in enumerate(names)}
    assert len(found) == count


# ── the past ─────────────────────────────────────────────────────────────────────────────────


PASTS = {
    # What the stream keeps, what happens to a, b, c at 1, 2, 3; and whether `a` is then missed.
    "overwritten": ({"max_msgs_per_subject": 1}, lambda js, s, p: p([(f"{s}.a", b"")]), True),
    "overwritten twice": (
        {"max_msgs_per_subject": 2},
        lambda js, s, p: p([(f"{s}.a", b"")] * 2),
        True,
    ),
    "kept": ({"max_msgs_per_subject": 3}, lambda js, s, p: p([(f"{s}.a", b"")] * 2), False),
    "purged": ({}, lambda js, s, p: (js.purge(s, f"{s}.a", 10), p([(f"{s}.a", b"")])), True),
    "rolled up": (
        {"max_msgs_per_subject": 9, "allow_rollup_hdrs": True},
        lambda js, s, p: p([(f"{s}.a", b"", [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")])]),
        True,
    ),
    "too many": ({"max_msgs": 3}, lambda js, s, p: p([(f"{s}.a", b"")]), True),
    "expired": (
        {"max_age": 400_000_000, "duplicate_window": 400_000_000},
        lambda js, s, p: (
            eventually(lambda: js.stream_info(s).first_seq >= 2),
            p([(f"{s}.a", b"")]),
        ),
        True,
    ),
    "a new subject": ({}, lambda js, s, p: p([(f"{s}.new", b"")]), False),
}


@pytest.mark.parametrize("way", ["names", "back"])
@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("case", PASTS)
@pytest.mark.parametrize("planned", [False, True], ids=["past", "planned"])
def test_a_past_that_is_gone_is_said(
    js, nats_server, new_stream, publish, monkeypatch, planned, case, fail, way
):
    """What a limit, purge or age took, before the plan or after it, is said or left out."""
    config, then, missed = PASTS[case]
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream(**config)
    publish([(f"{stream}.{each}", b"old") for each in "abc"])
    source = reader(
        nats_server, stream=stream, multiLast=f"{stream}.*", upToSequence=3, failOnDataLoss=fail
    )
    if planned:
        tasks = source.partitions()
        monkeypatch.setattr(source, "partitions", lambda: tasks)
    then(js, stream, publish)
    if missed and fail:
        with pytest.raises(SnapshotLossError) as caught:
            rows(source)
        if case != "expired":  # others may have expired, too
            assert "1 subjects of the snapshot" in str(caught.value)
            named = not planned or way == "names"
            assert caught.value.subjects == ((f"{stream}.a",) if named else ())
    else:
        there = stored(js, stream)
        found = as_dict(rows(source))
        assert found.items() <= reduced(there, [">"], 3).items()  # it may have expired meanwhile
        assert (f"{stream}.a" in found) is not missed
        assert f"{stream}.new" not in found


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_a_point_before_the_first_message_is_said(
    js, nats_server, new_stream, publish, fail, caplog
):
    """A point of which nothing is left is an error or empty; before all messages a warning."""
    stream = new_stream()
    before = datetime.now(UTC).isoformat()
    publish([(f"{stream}.{i}", b"") for i in range(10)])
    options = {"stream": stream, "multiLast": f"{stream}.*", "failOnDataLoss": fail}

    assert rows(reader(nats_server, **options, upToTime=before)) == []
    assert f"upToTime '{before}' lies before its first message" in caplog.text

    js.purge(stream, None, 8)
    for bound in ({"upToSequence": 5}, {"upToTime": before}):
        source = reader(nats_server, **options, **bound)
        if fail:
            with pytest.raises(SnapshotLossError, match="left"):
                source.partitions()
        else:
            assert rows(source) == []
    js.purge(stream, None, 100)
    assert rows(reader(nats_server, **options)) == []
    if fail:
        with pytest.raises(SnapshotLossError, match="nothing at or below sequence 5 is left"):
            reader(nats_server, **options, upToSequence=5).partitions()


def test_a_time_excludes_its_own_moment(js, nats_server, new_stream, publish):
    """`upToTime` stands for the last message before it, to the nanosecond, in every task alike."""
    stream = new_stream()
    publish([(f"{stream}.{i % 5}", b"%d" % i) for i in range(20)])
    times = {
        seq: js.call(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]["time"]
        for seq in range(1, 21)
    }
    for seq in (2, 7, 20):
        source = reader(
            nats_server, stream=stream, multiLast=f"{stream}.*", upToTime=times[seq],
            minPartitions=3,
        )  # fmt: skip
        tasks = source.partitions()
        found = [r for task in tasks for b in source.read(task) for r in b.to_pylist()]

        assert {task.work.end for task in tasks} == {seq - 1}
        assert as_dict(found) == reduced(stored(js, stream), [">"], seq - 1)


# ── layouts, markers, headers ────────────────────────────────────────────────────────────────


def test_partitions_of_the_filtered_layout(js, nats_server, new_stream, publish):
    """Rows carry the partition of their subject, null where it belongs to none."""
    stream = new_stream()
    publish([(f"{stream}.{p}.x", b"") for p in (0, 1, 2)])
    source = reader(
        nats_server, stream=stream, multiLast=f"{stream}.>", partitions=2,
        partitionSubject=f"{stream}.{{partition}}.>",
    )  # fmt: skip

    assert [(row["subject"], row["partition"]) for row in rows(source)] == [
        (f"{stream}.0.x", 0), (f"{stream}.1.x", 1), (f"{stream}.2.x", None)
    ]  # fmt: skip


def test_partitions_of_the_streams_layout(js, nats_server, new_stream, publish):
    """Each stream of the layout has its own sequence; a moment fits all of them."""
    base = new_stream()
    for p in (0, 1):
        new_stream(name=f"{base}-{p}", subjects=[f"x{base}.{p}.>"])
        publish([(f"x{base}.{p}.a", b"old"), (f"x{base}.{p}.b", b"")])
    options = {"stream": f"{base}-{{partition}}", "partitions": 2, "multiLast": f"x{base}.>"}
    between = datetime.now(UTC).isoformat()
    publish([(f"x{base}.1.a", b"new")])
    now = rows(reader(nats_server, **options))
    then = rows(reader(nats_server, **options, upToTime=between))

    assert sorted((r["partition"], r["stream"], r["sequence"]) for r in now) == [
        (0, f"{base}-0", 1), (0, f"{base}-0", 2), (1, f"{base}-1", 2), (1, f"{base}-1", 3)
    ]  # fmt: skip
    assert {r["data"] for r in then} == {b"old", b""}


def test_markers_and_headers(js, nats_server, new_stream, publish):
    """Delete and TTL markers are rows with their headers, and left out with `dropMarkers`."""
    stream = new_stream()
    publish(
        [
            (f"{stream}.put", b"1", [("Mine", "x")]),
            (f"{stream}.del", b"", [("KV-Operation", "DEL")]),
            (f"{stream}.ttl", b"", [("Nats-Marker-Reason", "MaxAge")]),
        ]
    )
    options = {"stream": stream, "multiLast": f"{stream}.*"}
    all_rows = rows(reader(nats_server, **options, includeHeaders=True))
    kept = rows(reader(nats_server, **options, dropMarkers=True))

    assert [row["headers"][0][0] for row in all_rows] == [
        "Mine", "KV-Operation", "Nats-Marker-Reason"
    ]  # fmt: skip
    assert [(row["data"], "headers" in row) for row in kept] == [(b"1", False)]
