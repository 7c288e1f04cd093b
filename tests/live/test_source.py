"""The driver's half of the source, called as Spark calls it, against a real server."""

import logging
import time
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest

from pyspark_jetstream.client.info import parse_time
from pyspark_jetstream.errors import DataLossError, OffsetError, OptionError
from pyspark_jetstream.fetch import survey
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits.layouts import LAYOUTS, Place
from ..kits.options import BELOW
from ..kits.reading import batch_reader, query
from ..kits.shared import eventually

__all__ = ["query"]


def sequences(source, tasks):
    return sorted(
        seq for task in tasks for b in source.read(task) for seq in b.column("sequence").to_pylist()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_start_yet_to_come(js, query, monkeypatch, layout):
    """
    Rows from the moment on, by the clock that marks messages, whichever run it comes in, and
    however far ahead the driver's clock is.
    """
    monkeypatch.setattr(survey, "datetime", Mock(now=lambda tz: datetime.max.replace(tzinfo=tz)))
    place = Place(js, layout, f"Y{time.monotonic_ns()}")
    place.publish(4)
    moment = js.stream_info(place.streams[0]).now + timedelta(seconds=3)
    one = query(**place.options, startingTimestamp=moment.isoformat())
    assert one.plan() is None
    one.planned, one.committed = [one.reader.initialOffset()], 1  # the first batch, as Spark has it
    assert one.tasks() == []
    while min(js.stream_info(stream).now for stream in place.streams) <= moment:
        place.publish(2)
        one.step()
        one.restart()
    place.publish(6)
    eventually(lambda: one.step() + len(one.rows))
    one.drain()
    stored = [(s, at + 1) for s in place.streams for at in range(js.stream_info(s).last_seq)]
    times = [parse_time(js.message_get(stream, seq=at).time) for stream, at in stored]
    place.remove()
    expected = [row for row, time in zip(stored, times, strict=True) if time >= moment]

    assert len(expected) >= 6
    assert sorted((row["stream"], row["sequence"]) for row in one.rows) == expected


def test_what_ends_before_its_start(js, new_stream, publish, query):
    """A run to what is there, and a batch read, have no row of before a moment yet to come."""
    stream = new_stream()
    publish([(f"{stream}.a", b"")] * 3)
    moment = (js.stream_info(stream).now + timedelta(days=1)).isoformat()
    one = query(stream=stream, startingTimestamp=moment)
    one.reader.prepareForTriggerAvailableNow()
    assert one.plan() is None
    assert JetStreamRangeReader(parse_read(one.options)).partitions() == []


@pytest.mark.parametrize("retention", ["interest", "limits"])
def test_a_consumer_begins_when_it_is_made(new_stream, query, retention):
    """Where messages are kept, or dealt, for a consumer alone, no start is waited for."""
    shared = {"consumer": "c", "priorityPolicy": "overflow"} if retention == "limits" else {}
    name = new_stream(retention=retention)
    one = query(stream=name, startingTimestamp="2200-01-01T00:00Z", **shared)
    with pytest.raises(OptionError, match="startingTimestamp.*lies in the future: the server's"):
        one.plan()


@pytest.mark.parametrize("read_mode", ["auto", "direct"])
def test_a_query_ends_at_its_ending_offsets(js, new_stream, publish, query, read_mode):
    """Each partition is read to its endingOffsets; one read beyond them, or missing, fails."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"x") for i in range(20)])
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>",
               "directBelow": BELOW[read_mode]}  # fmt: skip
    first = query(**options, endingOffsets='{"0": 9, "1": 4}')
    end, tasks = first.ask()
    second = query(start=end, **options, endingOffsets='{"0": 9, "1": 12}')
    later, more = second.ask()
    second.planned.append(later)
    second.reader.prepareForTriggerAvailableNow()
    beyond = query(start=later, **options, endingOffsets='{"0": 9, "1": 11}')
    other = query(stream=name, endingOffsets='{"1": 9}')

    assert first.at == first.reader.initialOffset()
    assert end["sequences"] == [9, 4]
    assert sequences(first.reader, tasks) == [1, 2, 3, 4, 5, 7, 9]
    assert sequences(second.reader, more) == [6, 8, 10, 12]
    assert second.ask() == (later, [])
    with pytest.raises(OffsetError, match="partition 1 .* was read up to sequence 12, beyond its"):
        beyond.ask()
    with pytest.raises(OptionError, match="endingOffsets': partition 1 is none of 0 to 0"):
        other.ask()


@pytest.mark.parametrize("below", ["0", "2", "100"])
def test_a_replay_has_the_tasks_of_the_first_attempt(js, new_stream, publish, query, below):
    """A batch planned again has its partitions at the same places, also an empty one."""
    name = new_stream(max_msgs_per_subject=1)
    options = {"stream": name, "partitions": 4, "partitionSubject": f"{name}.{{partition}}.>",
               "directBelow": below}  # fmt: skip
    publish([(f"{name}.{p}.{i}", b"x") for p in (0, 1, 3) for i in range(5)])
    first = query(**options)
    end, tasks = first.ask()
    publish([(f"{name}.1.{i}", b"new") for i in range(5)])
    again = query(**options).reader.partitions(first.at, end)

    def places(tasks):
        return [(r.partition, r.start, r.end) for t in tasks for r in t.work.reads]

    assert places(again) == places(tasks)
    if below != "100":
        assert end["idle"] == [2]
        assert [place[0] for place in places(tasks)] == [0, 1, 3]
    else:
        assert [place[0] for place in places(tasks)] == [None]


def test_limited_batches_end_at_the_ending_offsets(js, new_stream, publish, query):
    """Small batches carry no partition beyond its endingOffsets."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"x") for i in range(40)])
    source = query(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
                   maxRecordsPerTrigger=6, endingOffsets='{"0": 31, "1": 4}')  # fmt: skip
    read = [*iter(source.batch, [])]

    assert max(map(len, read)) <= 6
    assert sorted(sum(read, [])) == sorted([*range(1, 32, 2), 2, 4])


@pytest.mark.parametrize("read_mode", ["auto", "direct"])
def test_the_lag_is_what_the_batch_leaves(js, new_stream, publish, query, read_mode):
    """The progress shows what is behind the planned batch, by partition and in all."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"x") for i in range(20)])
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>",
               "directBelow": BELOW[read_mode]}  # fmt: skip
    source = query(**options, maxRecordsPerTrigger=12)
    lags, behind = [], []
    for _ in range(3):
        source.batch()
        report = source.reader.reportLatestOffset()
        lags.append([report[p]["lag"] for p in ("0", "1")])
        behind.append(report["metrics"]["maxOffsetsBehindLatest"])
    waits = query(**options, minRecordsPerTrigger=30)
    waits.ask()

    assert lags == [[4, 4], [0, 0], [0, 0]]
    assert behind == ["4", "0", "0"]
    assert [waits.reader.reportLatestOffset()[p]["lag"] for p in ("0", "1")] == [10, 10]


def test_a_split_direct_read_notices_what_left(js, new_stream, publish, nats_server):
    """Messages that left between planning and reading are loss in each task of a split range."""
    name = new_stream()
    publish([(f"{name}.x", b"x") for _ in range(1000)])
    ranges = batch_reader(nats_server, JetStreamRangeReader, stream=name, minPartitions=4)
    tasks = ranges.partitions()
    js.purge(name, None, 601)

    assert len(tasks) == 4
    with pytest.raises(DataLossError, match="250 of 250"):
        list(ranges.read(tasks[1]))
    assert sequences(ranges, tasks[3:]) == list(range(751, 1001))


def test_a_range_that_is_gone_is_no_mistake_in_its_bounds(js, new_stream, publish, nats_server):
    """A range that left the stream as a whole is data loss, or empty."""
    name = new_stream()
    publish([(f"{name}.x", b"x") for _ in range(100)])
    js.purge(name, None, 61)
    options = {"servers": nats_server.url, "stream": name, "startingOffsets": '{"0": 11}',
               "endingOffsets": '{"0": 40}'}  # fmt: skip
    with pytest.raises(DataLossError, match="begins at sequence 11, the stream at 61"):
        JetStreamRangeReader(parse_read(options)).partitions()

    lenient = parse_read(options | {"failOnDataLoss": "false"})
    assert JetStreamRangeReader(lenient).partitions() == []


STRAYS = {"beyond": "7", "far beyond": "4711", "padded": "01"}


@pytest.mark.parametrize("parse", ["stream", "range"])
@pytest.mark.parametrize("stray", STRAYS)
def test_partitions_beyond_are_named(js, new_stream, publish, query, nats_server, stray, parse):
    """Messages of no partition's number are an error, or a warning, that names their subject."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"x") for i in range(10)])
    publish([(f"{name}.{STRAYS[stray]}.y", b"x")] * 3)
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}

    def start(**more):
        if parse == "stream":
            return query(**options, **more).ask()[1]
        return batch_reader(nats_server, JetStreamRangeReader, **options | more).partitions()

    with pytest.raises(OptionError, match=rf"holds 3 messages.*'{name}\.{STRAYS[stray]}\.y'"):
        start()
    assert start(failOnDataLoss="false")


def test_subjects_without_a_number_are_named(js, new_stream, publish, query, caplog):
    """The log has how many there are, and the query goes on: it may stand beside others."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"x") for i in range(10)])
    publish([(f"{name}.meta.x", b"x"), (f"{name}.meta.y", b"x")])
    source = query(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")
    with caplog.at_level(logging.WARNING):
        _, tasks = source.ask()
    named = [each.message for each in caplog.records if "number in its place" in each.message]

    assert len(named) == 1 and f"2 messages, the first on '{name}.meta.x'" in named[0]
    assert sequences(source.reader, tasks) == list(range(1, 11))


def test_a_derived_layout_must_hold_the_whole_stream(js, new_stream, publish, query):
    """A layout read off the transform leaves out nothing that did not go through it."""
    origin = new_stream()
    publish([(f"{origin}.k{i}", b"x") for i in range(10)])
    source = {"name": origin, "subject_transforms": [
        {"src": f"{origin}.*", "dest": f"{origin}D.{{{{partition(2,1)}}}}.{{{{wildcard(1)}}}}"}
    ]}  # fmt: skip
    name = new_stream(f"{origin}D", subjects=[f"{origin}D.own"], sources=[source])
    eventually(lambda: js.stream_info(name).last_seq == 10)
    _, tasks = query(stream=name).ask()
    publish([(f"{name}.own", b"x")])

    assert len(tasks) == 1
    with pytest.raises(OptionError, match="holds 1 messages outside"):
        query(stream=name).ask()
