"""Snapshots while writers write, and messages leave between plan and read."""

import random
import threading

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import SnapshotLossError
from pyspark_jetstream.read import snapshot, snapshotread

from ..kits.ranges import as_dict, reader, reduced
from ..kits.reading import rows_of as rows
from ..kits.streams import delete_messages, fill, stored


@pytest.mark.parametrize("way", ["names", "back"])
def test_exact_while_writers_write(js, nats_server, new_stream, monkeypatch, way):
    """A snapshot taken and read beside writers is the stream as of its sequence."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream()
    rng = random.Random(5)
    fill(js, [f"{stream}.{i}" for i in range(1000)])
    done = threading.Event()

    def write():
        writer = Client(js.client.options)
        while not done.wait(0.002):  # so that who reads all of it comes to the end
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
            ends = {task.work.end for task in tasks}

            assert len(ends) == 1 and len(tasks) == {"names": 3, "back": 1}[way]
            there = {seq: m for seq, m in stored(js, stream).items() if seq <= max(ends)}
            assert as_dict(found) == reduced(there, [">"], max(ends))
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("how", ["delete", "purge", "overwrite"])
def test_what_leaves_a_bucket_before_it_is_read_is_reported(
    js, nats_server, new_stream, publish, how, fail, caplog
):
    """What left a bucket is counted by each task, also while the tasks were planned."""
    stream = new_stream(max_msgs_per_subject=1)
    publish([(f"{stream}.{i}", b"%d" % i) for i in range(40)])
    source = reader(nats_server, stream=stream, multiLast=">", failOnDataLoss=fail, minPartitions=4)
    tasks = source.partitions()
    assert len(tasks) == 4
    if how == "delete":
        delete_messages(js, stream, [7])
    elif how == "purge":
        js.purge(stream, f"{stream}.6", 10**6)
    else:
        publish([(f"{stream}.6", b"newest")])

    if fail:
        with pytest.raises(SnapshotLossError, match="1 subjects of the snapshot"):
            rows(source, tasks)
    else:
        found = as_dict(rows(source, tasks))
        assert found == {f"{stream}.{i}": (i + 1, b"%d" % i) for i in range(40) if i != 6}
        assert caplog.text.count("goes on after a data loss") == 1


def test_what_leaves_a_bucket_while_tasks_are_planned(
    js, nats_server, new_stream, publish, monkeypatch
):
    """The number of messages is the one at the point, whenever the tasks' parts are counted."""
    stream = new_stream(max_msgs_per_subject=1)
    publish([(f"{stream}.{i}", b"") for i in range(40)])
    real = snapshot.Survey.sums

    def sums(self, *args):
        publish([(f"{stream}.6", b"newest")])
        return real(self, *args)

    monkeypatch.setattr(snapshot.Survey, "sums", sums)
    with pytest.raises(SnapshotLossError, match="1 subjects of the snapshot as of sequence 40"):
        rows(reader(nats_server, stream=stream, multiLast=">", minPartitions=4))


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("way", ["names", "back"])
@pytest.mark.parametrize("how", ["purge", "overwrite", "birth"])
@pytest.mark.parametrize("keep", [-1, 1], ids=["all", "one"])
def test_what_happens_between_plan_and_read(
    js, nats_server, new_stream, publish, monkeypatch, keep, how, way, fail
):
    """What is purged or overwritten is reported or left out, not newer; new ones are no alarm."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=keep)
    publish([(f"{stream}.{i}", b"") for i in range(30)])
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*", failOnDataLoss=fail)
    there = {f"{stream}.{i}": (i + 1, b"") for i in range(30)}
    tasks = source.partitions()
    publish([(f"{stream}.new", b"new")])
    if how == "purge":
        js.purge(stream, f"{stream}.7", 10**6)
    elif how == "overwrite":
        publish([(f"{stream}.7", b"new")])

    if how == "birth" or (how, keep) == ("overwrite", -1):
        assert as_dict(rows(source, tasks)) == there
    elif not fail:
        del there[f"{stream}.7"]
        assert as_dict(rows(source, tasks)) == there
    else:
        with pytest.raises(SnapshotLossError, match="1 subjects of the snapshot") as caught:
            rows(source, tasks)
        assert caught.value.subjects == ((f"{stream}.7",) if way == "names" else ())


@pytest.mark.parametrize("way", ["names", "back"])
def test_a_subject_that_reaches_its_limit_before_a_past_is_read_is_reported(
    js, nats_server, new_stream, publish, monkeypatch, way
):
    """A value that the limit took since the plan is missed."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=3)
    publish([(f"{stream}.{each}", b"") for each in "abba"])
    js.purge(stream, f"{stream}.b", 3)  # so the stream is not whole
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*", upToSequence=3)
    tasks = source.partitions()
    publish([(f"{stream}.a", b"")] * 2)

    with pytest.raises(SnapshotLossError, match="1 subjects of the snapshot as of sequence 3"):
        rows(source, tasks)


def test_a_stream_that_was_made_anew_is_not_read_for_the_old_one(
    js, nats_server, new_stream, publish
):
    """A stream that was deleted and made again between plan and read gives no rows of its own."""
    stream = new_stream()
    publish([(f"{stream}.a", b"old")])
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*")
    task = source.partitions()[0]
    js.client.request(f"{js.prefix}.STREAM.DELETE.{stream}")
    new_stream(name=stream)
    publish([(f"{stream}.a", b"new")])

    with pytest.raises(SnapshotLossError, match="the stream was made anew"):
        list(source.read(task))


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_chunks_of_any_size(js, nats_server, new_stream, publish, monkeypatch, large):
    """Going back a task holds few messages, however large ones and gaps lie."""
    monkeypatch.setattr(snapshotread, "_FIRST_LENGTH", 50)
    monkeypatch.setattr(snapshotread, "_CHUNK_ROWS", 30)
    monkeypatch.setattr(snapshotread, "_CHUNK_BYTES", 20_000)
    rng = random.Random(3)
    stream = new_stream()
    publish(
        [
            (f"{stream}.{rng.randrange(60)}", bytes(9_000 if large and 200 < i < 300 else 10))
            for i in range(600)
        ]
    )
    delete_messages(js, stream, [*range(30, 190), *range(400, 405)])
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: "back")
    found = rows(reader(nats_server, stream=stream, multiLast=">", includeHeaders=large))

    assert as_dict(found) == reduced(stored(js, stream), [">"], 600)
