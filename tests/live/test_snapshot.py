"""Snapshots against a brute-force reduction of the stream, without Spark."""

from __future__ import annotations

import base64
import json
import random
import threading
import time

import pytest

from pyspark_jetstream import lookups, pointintime, snapshots, subjects, wire
from pyspark_jetstream.client import Client
from pyspark_jetstream.errors import SnapshotLossError
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


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize("way", ["names", "range"])
@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_any_number_of_subjects(js, nats_server, new_stream, monkeypatch, count, way):
    """
    Around and beyond the 1,024 subjects of one request the snapshot is whole, now and then.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream()
    names = [f"{stream}.{i % 7}.{i}" for i in range(count)]
    fill(js, stream, names)
    fill(js, stream, names[: count // 2], b"y")
    options = {"stream": stream, "multiLast": f"{stream}.>"}
    now = as_dict(rows(reader(nats_server, **options)))
    then = as_dict(rows(reader(nats_server, **options, upToSequence=count)))

    assert then == {name: (i + 1, b"x") for i, name in enumerate(names)}
    assert now == then | {name: (count + i + 1, b"y") for i, name in enumerate(names[: count // 2])}


@pytest.mark.parametrize("way", ["names", "range"])
def test_beyond_a_page_of_the_listing(js, nats_server, new_stream, monkeypatch, way):
    """
    More than 100,000 subjects, which the server lists in pages, come whole and in several tasks.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream(storage="memory")
    count = 101_500
    names = [f"{stream}.{i % 7}.{i}" for i in range(count)]
    random.Random(7).shuffle(names)
    fill(js, stream, names)
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

    assert len(tasks) == 3
    assert found == [(name, i + 1) for i, name in enumerate(names)]


# ── what happens meanwhile ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["names", "range"])
def test_exact_while_writers_write(js, nats_server, new_stream, monkeypatch, way):
    """
    A snapshot taken and read while writers write, new subjects among them, is the stream as of
    its sequence.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream()
    rng = random.Random(5)
    fill(js, stream, [f"{stream}.{i}" for i in range(1000)])
    done = threading.Event()

    def write() -> None:
        writer = Client(js.client.options)
        while not done.is_set():
            names = [f"{stream}.{rng.randrange(1300)}" for _ in range(10)]
            writer.requests([(name, b"%d" % rng.randrange(10**6)) for name in names])
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            source = reader(nats_server, stream=stream, multiLast=f"{stream}.>", minPartitions=3)
            tasks = source.partitions()
            found = [r for task in tasks for b in source.read(task) for r in b.to_pylist()]
            ends = {task.read.up_to for task in tasks}

            assert len(ends) == 1 and len(tasks) == 3
            there = {seq: m for seq, m in stored(js, stream).items() if seq <= max(ends)}
            assert as_dict(found) == reduced(there, [">"], max(ends))
    finally:
        done.set()
        thread.join()


def delete(js, stream, *seqs) -> None:
    for seq in seqs:
        js._call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.parametrize("how", ["delete", "purge", "overwrite"])
def test_what_leaves_before_it_is_read_is_reported(
    js, nats_server, new_stream, publish, how, dense, fail
):
    """
    What is deleted, purged or overwritten between plan and read is reported by name, or left out;
    neither an older nor a newer value takes its place.
    """
    stream = new_stream(max_msgs_per_subject=2 if how == "overwrite" else -1)
    a, b = f"{stream}.a", f"{stream}.b"
    publish([(a, b"older"), *([(b, b"%d" % i) for i in range(2 if dense else 50)]), (a, b"newer")])
    source = reader(
        nats_server, stream=stream, multiLast=f"{stream}.*", failOnDataLoss=fail, upToSequence=
        js.stream_info(stream).last_seq,
    )  # fmt: skip
    tasks = source.partitions()
    if how == "delete":
        delete(js, stream, js.stream_info(stream).last_seq)
    elif how == "purge":
        js.purge(stream, a, 10**6)
    else:
        publish([(a, b"newest"), (a, b"newest of all")])

    if fail:
        with pytest.raises(SnapshotLossError, match="1 of 2 messages .* left the stream") as caught:
            list(source.read(tasks[0]))
        assert caught.value.subjects == (a,)
    else:
        assert list(as_dict([r for t in tasks for x in source.read(t) for r in x.to_pylist()])) == [
            b
        ]


@pytest.mark.parametrize("way", ["names", "range"])
def test_a_deletion_amid_the_plan_is_not_mistaken(
    js, nats_server, new_stream, publish, monkeypatch, way
):
    """
    A deletion while the plan is made, which leaves an older message as the last of its subject,
    makes the plan anew, so that the deletion comes before it; one that never ends is reported.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream()
    publish([(f"{stream}.{i % 3}", b"%d" % i) for i in range(30)])
    amid(monkeypatch, way, lambda: delete(js, stream, 30), times=1)
    found = as_dict(rows(reader(nats_server, stream=stream, multiLast=f"{stream}.*")))

    assert found == reduced(stored(js, stream), [">"], 30)

    left = iter(range(29, 1, -3))
    amid(monkeypatch, way, lambda: delete(js, stream, next(left)), times=10)
    with pytest.raises(SnapshotLossError, match="deleted whenever a snapshot was planned"):
        rows(reader(nats_server, stream=stream, multiLast=f"{stream}.*"))


@pytest.mark.parametrize("way", ["names", "range"])
@pytest.mark.parametrize("how", ["purge", "overwrite", "birth"])
def test_what_happens_amid_the_plan(js, nats_server, new_stream, publish, monkeypatch, how, way):
    """
    A subject that is purged or overwritten while the plan is made, where the stream keeps one
    message a subject, makes the plan anew; so the snapshot is the stream as of its sequence.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=1)
    publish([(f"{stream}.{i}", b"") for i in range(30)])
    action = {
        "purge": lambda: js.purge(stream, f"{stream}.7", 10**6),
        "overwrite": lambda: publish([(f"{stream}.7", b"new")]),
        "birth": lambda: publish([(f"{stream}.new", b"new")]),
    }[how]
    amid(monkeypatch, way, action, times=1)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*")
    tasks = source.partitions()
    found = as_dict([r for task in tasks for b in source.read(task) for r in b.to_pylist()])

    assert found == reduced(stored(js, stream), [">"], tasks[0].read.up_to)
    assert (f"{stream}.new" in found) is False
    assert found.get(f"{stream}.7") == {
        "purge": None, "overwrite": (31, b"new"), "birth": (8, b"")
    }[how]  # fmt: skip


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("way", ["names", "range"])
def test_a_subject_that_is_always_overwritten_is_reported(
    js, nats_server, new_stream, publish, monkeypatch, way, fail
):
    """
    A subject that every plan loses, because it is overwritten while the plan is made, is named, or
    left out.
    """
    monkeypatch.setattr(snapshots, "choose_index", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=1)
    publish([(f"{stream}.{i}", b"") for i in range(30)])
    amid(monkeypatch, way, lambda: publish([(f"{stream}.7", b"new")]), times=10)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*", failOnDataLoss=fail)

    if fail:
        with pytest.raises(SnapshotLossError, match="1 subjects have messages beyond") as caught:
            source.partitions()
        assert caught.value.subjects == (f"{stream}.7",)
    else:
        assert set(as_dict(rows(source))) == {f"{stream}.{i}" for i in range(30) if i != 7}


def amid(monkeypatch, way, action, times) -> None:
    """Has `action` happen in the midst of the next `times` plans: behind the pin."""
    left = iter(range(times))

    def act() -> None:
        if next(left, None) is not None:
            action()

    if way == "names":
        real = lookups.Lookups.at

        def at(self, *args):
            act()
            return real(self, *args)

        monkeypatch.setattr(lookups.Lookups, "at", at)
    else:
        real = pointintime.read_direct

        def read_direct(client, read, classify, mine=""):
            act()
            return real(client, read, classify, mine)

        monkeypatch.setattr(pointintime, "read_direct", read_direct)
