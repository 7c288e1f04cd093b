"""What others do to the streams that a query reads: exact, an error, or said and read on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.fetch import survey
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits.clients import serving
from ..kits.layouts import LAYOUTS, Place
from ..kits.options import BELOW
from ..kits.reading import batch_reader, query
from ..kits.shared import eventually
from ..kits.streams import delete_messages

__all__ = ["query"]


@pytest.fixture
def served():
    """A server of its own, and its API."""
    with serving(streams={}) as both:
        yield both


store = pytest.fixture(lambda served: served[0], name="store")
own = pytest.fixture(lambda served: served[1], name="own")


# ── an older store ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", BELOW)
def test_a_stream_that_was_taken_back_and_outgrew_the_checkpoint(store, own, query, layout, mode):
    """An older store that outgrew the checkpoint is data loss at each start, unless it may be."""
    place = Place(own, layout, "A")
    place.publish(60)
    store.copy()
    place.publish(40)
    reader = query(store, directBelow=BELOW[mode], **place.options)
    reader.drain()
    store.take_back(*place.streams)
    since = place.publish(80)

    assert len(reader.rows) == 100
    for _ in range(3):
        reader.restart()
        with pytest.raises(DataLossError, match="older copy of it was restored.*written to since"):
            eventually(reader.step)  # the word of new messages may be late
    reader.restart(failOnDataLoss="false")
    reader.drain()
    assert set(since) <= set(reader.data[100:])
    assert len(reader.rows) == 100 + 140


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_stream_that_keeps_messages_for_us_was_taken_back(store, own, query, retention):
    """Likewise with the other retentions, whose consumers are taken back with their streams."""
    place = Place(own, "one", "A", retention=retention)
    reader = query(store, **place.options)
    reader.plan()
    reader.commit()  # makes the consumer
    place.publish(60)
    reader.drain()
    store.copy()
    place.publish(40)
    reader.drain()
    assert len(reader.rows) == 100
    store.take_back(*place.streams)
    place.publish(80)

    reader.restart()
    with pytest.raises(DataLossError, match="older copy of it was restored.*written to since"):
        eventually(reader.step)


def test_a_stream_that_ends_before_the_checkpoint(store, own, query):
    """It is said to be an older copy, with both sequences; else all is read once more."""
    place = Place(own, "one", "A")
    place.publish(6)
    store.copy()
    place.publish(4)
    reader = query(store, **place.options)
    reader.drain()
    store.take_back("A")
    reader.restart()
    with pytest.raises(DataLossError, match="ends at sequence 6, and was read up to 10.* 7 to 10"):
        eventually(reader.step)
    reader.restart(failOnDataLoss="false")
    reader.drain()
    place.publish(3)
    eventually(lambda: reader.drain() or len(reader.rows) >= 19)

    assert reader.sequences == [*range(1, 11), *range(1, 10)]


def test_a_recorded_batch_of_a_stream_that_was_taken_back(store, own, query):
    """A batch in the write-ahead log is not run with other messages than it was planned with."""
    place = Place(own, "one", "A")
    place.publish(60)
    reader = query(store, maxRecordsPerTrigger=50, **place.options)
    assert reader.step() == 50
    store.copy()
    place.publish(40)
    reader.plan()
    store.take_back("A")
    place.publish(80)

    with pytest.raises(DataLossError, match="older copy of it was restored"):
        reader.restart()


def test_a_leader_that_does_not_yet_say_all_that_was_read(store, own, query, monkeypatch):
    """A new leader that says for a moment that its stream is shorter is asked again."""
    place = Place(own, "filtered", "A")
    place.publish(60)
    reader = query(store, **place.options)
    reader.drain()
    place.publish(40)
    look, told = survey.Survey.look, []

    def lagging(self, *given, **named):
        seen = look(self, *given, **named)
        told.append(seen)
        if len(told) > 1:
            return seen
        streams = {name: replace(info, last_seq=50) for name, info in seen.streams.items()}
        return replace(seen, streams=streams)

    monkeypatch.setattr(survey.Survey, "look", lagging)

    eventually(reader.step)
    assert len(reader.rows) == 100
    assert len(told) > 1


LEAVE = {
    "nothing": ({}, lambda js: None),
    "max_msgs": ({"max_msgs": 5}, lambda js: None),
    "one a subject": ({"max_msgs_per_subject": 1}, lambda js: None),
    "purged": ({}, lambda js: js.purge("A", None, None)),
    "last deleted": ({}, lambda js: delete_messages(js, "A", [js.stream_info("A").last_seq])),
    "purged by subject": ({}, lambda js: js.purge("A", "A.1.x", None)),
}


@pytest.mark.parametrize(("config", "change"), LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("restart", ["stop", "kill"])
def test_a_server_that_only_restarts_is_no_alarm(store, own, query, config, change, restart):
    """Limits, deletes and purges of what was read take nothing from a query, restart or not."""
    place = Place(own, "one", "A", **config)
    reader = query(store, **place.options)
    place.publish(20)
    reader.drain()
    change(own)
    for _ in range(2):
        getattr(store, restart)()
        store.restart()
        before = len(reader.rows)
        place.publish(2)
        reader.drain()
        assert reader.data[before:] == [
            b"m%d" % i for i in range(place.published - 2, place.published)
        ]
        change(own)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", ["first", "planned", "recorded", "uncounted"])
def test_what_leaves_behind_the_plan_is_told(store, own, query, layout, batch):
    """Messages that leave between the plan of a batch, or of its replay, and its tasks are loss."""
    place = Place(own, layout, "A", max_msgs=20)
    place.publish(20)
    reader = query(store, **place.options, directBelow=0 if batch == "uncounted" else 5000)
    if batch != "first":
        reader.step()
        place.publish(20)
    reader.plan()
    if batch == "recorded":
        reader.die()
        reader.reader = reader._reader()
    replayed = batch == "recorded" and reader.tasks()
    place.publish(30)
    tasks = replayed or reader.tasks()  # by its plan, without another look
    with pytest.raises(DataLossError, match="left the stream before they were read"):
        [list(reader.reader.read(task)) for task in tasks]


# ── made anew ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stream_that_is_deleted_when_all_of_it_is_read(own, store, layout):
    """The last look finds no stream, and that takes nothing from the rows."""
    place = Place(own, layout, "A")
    place.publish(1_000)
    reader = batch_reader(store, JetStreamRangeReader, **place.options)
    reads = [reader.read(task) for task in reader.partitions()]
    rows = sum(next(read).num_rows for read in reads)
    place.remove()

    assert [list(read) for read in reads] == [[]] * len(reads)
    assert rows == 1_000


# ── emptied ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["one", "filtered"])
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_our_own_acks_remove_is_no_loss(own, store, query, layout, retention):
    """What a query has read leaves such streams, and is no loss over batches and restarts."""
    place = Place(own, layout, "A", retention=retention)
    reader = query(store, maxRecordsPerTrigger=30, **place.options)
    reader.plan()
    reader.commit()
    for _ in range(4):
        place.publish(50)
        reader.step()
        reader.restart()
        reader.step()
    reader.drain()
    place.publish(10)
    eventually(lambda: reader.drain() or len(reader.rows) >= 210)  # the word of them may be late

    assert sorted(reader.data) == sorted(b"m%d" % i for i in range(210))
