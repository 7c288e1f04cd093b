"""Snapshots while writers write, and messages leave between plan and read."""

from __future__ import annotations

import random
import threading

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import SnapshotLossError
from pyspark_jetstream.read import snapshotplan, snapshotplanner, subjectindex

from ..kits.snapshots import as_dict, delete, fill, reader, reduced, rows, stored


@pytest.mark.parametrize("way", ["names", "range"])
def test_exact_while_writers_write(js, nats_server, new_stream, monkeypatch, way):
    """
    A snapshot taken and read while writers write, new subjects among them, is the stream as of
    its sequence.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
    stream = new_stream()
    rng = random.Random(5)
    fill(js, stream, [f"{stream}.{i}" for i in range(1000)])
    done = threading.Event()

    def write() -> None:
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

            assert len(ends) == 1 and len(tasks) == 3
            there = {seq: m for seq, m in stored(js, stream).items() if seq <= max(ends)}
            assert as_dict(found) == reduced(there, [">"], max(ends))
    finally:
        done.set()
        thread.join()


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


def test_a_plan_of_very_many_subjects_reports_sequences(
    js, nats_server, new_stream, publish, monkeypatch
):
    """
    Beyond some millions of subjects a plan does not name them: what is lost is said by sequence,
    and the rows that are there are the planned ones.
    """
    monkeypatch.setattr(snapshotplan, "NAMED", 2)
    stream = new_stream()
    publish([(f"{stream}.{i}", b"%d" % i) for i in range(9)])
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*")
    tasks = source.partitions()
    there = reduced(stored(js, stream), [">"], 9)
    assert as_dict([r for t in tasks for x in source.read(t) for r in x.to_pylist()]) == there

    delete(js, stream, 4, 7)
    with pytest.raises(SnapshotLossError, match="2 of 9 messages .* by sequence: 4, 7") as caught:
        list(source.read(tasks[0]))
    assert caught.value.subjects == ()


@pytest.mark.parametrize("way", ["names", "range"])
def test_a_deletion_amid_the_plan_is_not_mistaken(
    js, nats_server, new_stream, publish, monkeypatch, way
):
    """
    A deletion while the plan is made, which leaves an older message as the last of its subject,
    makes the plan anew, so that the deletion comes before it; one that never ends is reported.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
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
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
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

    assert found == reduced(stored(js, stream), [">"], tasks[0].work.end)
    assert (f"{stream}.new" in found) is False
    assert found.get(f"{stream}.7") == {
        "purge": None, "overwrite": (31, b"new"), "birth": (8, b"")
    }[how]  # fmt: skip


@pytest.mark.parametrize("way", ["names", "range"])
@pytest.mark.parametrize("keep", [-1, 1], ids=["all", "one"])
@pytest.mark.parametrize("gone", [0, 3], ids=["head", "middle"])
def test_a_subject_that_goes_after_another_has_come(
    js, nats_server, new_stream, publish, monkeypatch, way, keep, gone
):
    """
    A subject that is purged while the plan is made, after a new one was written, is not just
    missing from it: there was no moment with neither of them.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=keep)
    publish([(f"{stream}.{i}", b"") for i in range(6)])

    def come_and_go() -> None:
        publish([(f"{stream}.new", b"")])
        js.purge(stream, f"{stream}.{gone}", 10**6)

    amid(monkeypatch, way, come_and_go, times=1)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*")
    tasks = source.partitions()
    found = as_dict([r for task in tasks for b in source.read(task) for r in b.to_pylist()])

    assert tasks[0].work.end == 7
    assert found == reduced(stored(js, stream), [">"], 7)


def test_a_subject_that_is_purged_amid_a_plan_of_the_past_is_reported(
    js, nats_server, new_stream, publish, monkeypatch
):
    """
    A subject that is listed for a plan of the past, and of which then nothing is left, is named.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: "names")
    stream = new_stream()
    publish([(f"{stream}.{i}", b"") for i in range(30)])
    amid(monkeypatch, "names", lambda: js.purge(stream, f"{stream}.7", 10**6), times=1)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*", upToSequence=20)

    with pytest.raises(SnapshotLossError, match="1 subjects were deleted, purged") as caught:
        source.partitions()
    assert caught.value.subjects == (f"{stream}.7",)


@pytest.mark.parametrize("way", ["names", "range"])
def test_new_and_expiring_subjects_are_no_alarm(
    js, nats_server, new_stream, publish, monkeypatch, way
):
    """
    Where subjects come and expire all the time a snapshot of now is made at the first attempt:
    what came after its sequence is not taken for something replaced.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
    stream = new_stream(max_msgs_per_subject=1, max_age=3600 * 10**9)
    publish([(f"{stream}.{i}", b"") for i in range(30)])
    leaving, coming = iter(range(30)), iter(range(100, 200))

    def come_and_go() -> None:
        js.purge(stream, f"{stream}.{next(leaving)}", 10**6)  # as if it expired
        publish([(f"{stream}.{next(coming)}", b"")])

    amid(monkeypatch, way, come_and_go, times=10)
    tasks = reader(nats_server, stream=stream, multiLast=f"{stream}.*").partitions()

    assert tasks[0].work.end == 30
    assert next(leaving) == (1 if way == "names" else 2)


def test_a_subject_that_reaches_its_limit_amid_a_plan_of_the_past_is_reported(
    js, nats_server, new_stream, publish, monkeypatch
):
    """
    A subject that had not reached the stream's limit when it was listed, but has lost its value to
    it by the time it is looked up, is named.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: "names")
    stream = new_stream(max_msgs_per_subject=3)
    publish([(f"{stream}.{each}", b"") for each in "abba"])
    js.purge(stream, f"{stream}.b", 3)  # so the stream is not whole
    amid(monkeypatch, "names", lambda: publish([(f"{stream}.a", b"")] * 2), times=1)
    source = reader(nats_server, stream=stream, multiLast=f"{stream}.*", upToSequence=3)

    with pytest.raises(SnapshotLossError, match="1 subjects have messages beyond") as caught:
        source.partitions()
    assert caught.value.subjects == (f"{stream}.a",)


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

    with pytest.raises(SnapshotLossError, match="1 of 1 .* the stream was made anew"):
        list(source.read(task))


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
@pytest.mark.parametrize("way", ["names", "range"])
def test_a_subject_that_is_always_overwritten_is_reported(
    js, nats_server, new_stream, publish, monkeypatch, way, fail
):
    """
    A subject that every plan loses, because it is overwritten while the plan is made, is named, or
    left out.
    """
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: way)
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
        real = subjectindex.Lookups.at

        def at(self, *args):
            act()
            return real(self, *args)

        monkeypatch.setattr(subjectindex.Lookups, "at", at)
    else:
        real = snapshotplanner.read_direct

        def read_direct(*given, **how):
            act()
            return real(*given, **how)

        monkeypatch.setattr(snapshotplanner, "read_direct", read_direct)


def test_very_many_subjects_that_change_after_they_are_listed(
    js, nats_server, new_stream, monkeypatch, caplog
):
    """
    Memory storage goes back message by message for each of them: all messages are read instead, up
    to the sequence of the listing.
    """
    stream = new_stream(storage="memory")
    names = [f"{stream}.{i}" for i in range(3_000)]
    fill(js, stream, names * 2)
    listed, of = JetStream.listed, list[int]()

    def list_and_change(self, *args):
        last, pages = listed(self, *args)
        of.append(last)
        fill(js, stream, names)
        return last, pages

    monkeypatch.setattr(JetStream, "listed", list_and_change)
    monkeypatch.setattr(snapshotplan, "choose_index", lambda *_: "names")
    caplog.set_level("INFO")
    found = rows(reader(nats_server, stream=stream, multiLast=f"{stream}.>"))
    assert of == [6_000]
    assert "as_of=6000 by=range" in caplog.text
    assert sorted(row["sequence"] for row in found) == list(range(3_001, 6_001))
