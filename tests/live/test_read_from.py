"""`readFrom`: a range of a stream whose messages a mirror of it has."""

from __future__ import annotations

import json

import pytest

from pyspark_jetstream.errors import DataLossError, OptionError, ReadTimeoutError
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits.snapshots import rows
from . import test_mirrors
from .test_mirrors import fill

COUNT = 60


@pytest.fixture
def origin(nats_server, new_stream, js) -> str:
    stream = new_stream()
    fill(js, stream, COUNT, b"m")
    return stream


def mirror(js, stream, name, wait=True, **config) -> str:
    return test_mirrors.mirror(js, stream, name, wait, **{"allow_direct": True} | config)


def reading(server, stream, **options) -> JetStreamRangeReader:
    texts = {"servers": server.url, "stream": stream} | options
    return JetStreamRangeReader(parse_read(texts))


def sequences(reader) -> list[int]:
    return sorted(row["sequence"] for row in rows(reader))


def test_the_rows_are_the_streams(nats_server, js, origin):
    """
    The mirror has the messages, and rows are as without: also the columns `stream` and `partition`.
    """
    copy = mirror(js, origin, f"{origin}-copy")
    numbered = {"partitions": "7", "partitionSubject": f"{origin}.{{partition}}"}
    for options in ({}, numbered, {"startingOffsets": '{"0": 11}', "minPartitions": "3"}):
        ours = reading(nats_server, origin, readFrom="mirror", **options)
        tasks = ours.partitions()
        assert {task.work.stream for task in tasks} == {copy}
        found = sorted(rows(ours), key=lambda row: row["sequence"])
        plainly = rows(reading(nats_server, origin, **options))
        assert found == sorted(plainly, key=lambda row: row["sequence"])
        assert {row["stream"] for row in found} == {origin}


def test_a_batch_ends_where_the_stream_does(nats_server, js, origin):
    """Bounds are the stream's: a mirror that still has what was purged brings nothing of it."""
    copy = mirror(js, origin, f"{origin}-copy")
    js.purge(origin, None, 21)
    assert js.stream_info(copy).first_seq == 1
    found = sequences(reading(nats_server, origin, readFrom=copy))
    assert found == list(range(21, COUNT + 1))


def test_gaps(nats_server, js, origin, caplog):
    """A message that the mirror lacks is an error, unless the stream lacks it as well."""
    copy = mirror(js, origin, f"{origin}-copy")
    js.delete_messages(copy, [7, 30])
    with pytest.raises(DataLossError, match=f"mirror '{copy}' lacks the message with sequence 7;"):
        reading(nats_server, origin, readFrom=copy).partitions()
    later = {"startingOffsets": '{"0": 8}', "endingOffsets": '{"0": 29}'}
    assert sequences(reading(nats_server, origin, readFrom=copy, **later)) == list(range(8, 30))
    goes_on = {"readFrom": copy, "failOnDataLoss": "false"}
    expected = [each for each in range(1, COUNT + 1) if each not in (7, 30)]
    assert sequences(reading(nats_server, origin, **goes_on)) == expected
    assert "lacks the message with sequence 7" in caplog.text
    js.delete_messages(origin, [7, 30])
    assert sequences(reading(nats_server, origin, readFrom=copy)) == expected


def test_a_mirror_that_begins_later(nats_server, js, origin):
    copy = mirror(js, origin, f"{origin}-copy", max_msgs=20)
    lacks = "lacks the message with sequence 1;"
    with pytest.raises(DataLossError, match=lacks):
        reading(nats_server, origin, readFrom=copy).partitions()
    js.purge(origin, None, 41)
    found = sequences(reading(nats_server, origin, readFrom=copy))
    assert found == list(range(41, COUNT + 1))


def test_too_many_gaps_to_compare(nats_server, js, origin, monkeypatch):
    copy = mirror(js, origin, f"{origin}-copy")
    js.delete_messages(copy, [7, 9])
    monkeypatch.setattr("pyspark_jetstream.fetch.mirrors._DELETED", 1)
    with pytest.raises(DataLossError, match="has more than 1 gaps"):
        reading(nats_server, origin, readFrom=copy).partitions()


def test_a_mirror_that_stands_still(nats_server, js, origin):
    """The read waits for it as long as `requestTimeout` says."""
    copy = mirror(js, origin, f"{origin}-copy", wait=False, max_msgs=20, discard="new")
    with pytest.raises(ReadTimeoutError, match=rf"mirror '{copy}' stands at sequence \d+, the str"):
        reading(nats_server, origin, readFrom=copy, requestTimeout="1s").partitions()


@pytest.mark.parametrize("is_mirror", [False, True])
def test_what_is_no_copy(nats_server, js, origin, is_mirror):
    """A stream that sources it has other sequences, one with a transform other subjects."""
    config: dict = {"mirror": None, "sources": [{"name": origin}]}
    if is_mirror:
        moved = {"src": f"{origin}.>", "dest": "other.>"}
        config = {"mirror": {"name": origin, "subject_transforms": [moved]}}
    name = mirror(js, origin, f"{origin}-copy", wait=False, **config)
    with pytest.raises(OptionError, match=f"no stream '{name}' is a copy of stream '{origin}'"):
        reading(nats_server, origin, readFrom=name).partitions()


def test_a_mirror_without_direct_get(nats_server, js, origin):
    name = mirror(js, origin, f"{origin}-copy", allow_direct=False)
    with pytest.raises(OptionError, match=f"option 'readFrom': '{name}' has direct get off"):
        reading(nats_server, origin, readFrom=name).partitions()


def test_a_filter_is_a_gap(nats_server, js, origin):
    name = mirror(js, origin, f"{origin}-copy", wait=False,
                  mirror={"name": origin, "filter_subject": f"{origin}.1"})  # fmt: skip
    with pytest.raises((DataLossError, ReadTimeoutError)):
        reading(nats_server, origin, readFrom=name, requestTimeout="1s").partitions()


def test_of_an_origin_that_was_made_anew(nats_server, js, origin):
    copy = mirror(js, origin, f"{origin}-copy")
    config = js.stream_info(origin).config
    js.delete_stream(origin)
    js.create_stream(config)
    with pytest.raises(OptionError, match="is a copy"):
        reading(nats_server, origin, readFrom=copy).partitions()


def test_which_mirror(nats_server, js, origin):
    with pytest.raises(OptionError, match=f"of mirrors of stream '{origin}' there are none"):
        reading(nats_server, origin, readFrom="mirror").partitions()
    for name in ("b", "a"):
        mirror(js, origin, f"{origin}-{name}")
    several = f"there are several: {origin}-a, {origin}-b; give the name of one"
    with pytest.raises(OptionError, match=several):
        reading(nats_server, origin, readFrom="mirror").partitions()
    with pytest.raises(OptionError, match=f"no stream '{origin}-c' is a copy"):
        reading(nats_server, origin, readFrom=f"{origin}-c").partitions()
    found = sequences(reading(nats_server, origin, readFrom=f"{origin}-b"))
    assert found == list(range(1, COUNT + 1))


@pytest.mark.parametrize("how", ["limit", "deleted"])
def test_a_mirror_that_forgets_after_the_plan(nats_server, js, origin, how):
    """What the mirror loses after the plan, and the stream still has, is an error of the task."""
    copy = mirror(js, origin, f"{origin}-copy")
    reader = reading(nats_server, origin, readFrom=copy)
    tasks = reader.partitions()
    if how == "deleted":
        js.delete_messages(copy, [7, 8])
    else:
        config = js.stream_info(copy).config | {"max_msgs_per_subject": 1}
        js.client.request(f"{js.prefix}.STREAM.UPDATE.{copy}", json.dumps(config).encode())
    assert js.stream_info(copy).messages < js.stream_info(origin).messages == COUNT
    with pytest.raises(DataLossError, match=f"mirror '{copy}' lacks the message with sequence"):
        for task in tasks:
            list(reader.read(task))
