"""Creating the streams a write needs, on a real server; and leaving alone those that are there."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.publish.options import StreamCreation
from pyspark_jetstream.write.creation import create_streams

from ..kits.options import creation_of


@pytest.fixture
def deleting(js):
    """Deletes the streams of these names afterwards."""
    names: list[str] = []
    yield names
    for name in names:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")


def test_a_missing_stream_is_created_as_described(js, deleting):
    """
    Every option that describes the stream is in its configuration.
    """
    deleting.append("C1")
    wanted = StreamCreation("C1", ("c1.>",), 1, 1, "interest", 30.0, False, True, True)

    create_streams(js, wanted)
    config = js.stream_info("C1").config
    assert config["subjects"] == ["c1.>"]
    assert config["retention"] == "interest"
    assert config["duplicate_window"] == 30 * 10**9
    assert (config["num_replicas"], config["storage"]) == (1, "file")
    assert [bool(config.get(f"allow_{each}")) for each in ("direct", "batched", "atomic")] == [
        False,
        True,
        True,
    ]


def test_the_filtered_layout_is_one_stream_with_a_wildcard(js, deleting):
    """
    A partition token in the subjects alone makes one stream that takes every partition.
    """
    deleting.append("C2")
    create_streams(js, creation_of("C2", ("c2.{partition}.>", "c2other.x"), partitions=4))

    assert js.stream_info("C2").config["subjects"] == ["c2.*.>", "c2other.x"]


def test_the_streams_layout_is_one_stream_a_partition(js, deleting):
    """
    A partition token in the name makes one stream each, with its own subjects.
    """
    deleting.extend(["C3-0", "C3-1", "C3-2"])

    create_streams(js, creation_of("C3-{partition}", ("c3.{partition}.>",), partitions=3))

    assert [js.stream_info(f"C3-{p}").config["subjects"] for p in range(2)] == [
        ["c3.0.>"],
        ["c3.1.>"],
    ]
    assert js.stream_info("C3-2").config["subjects"] == ["c3.2.>"]


def test_a_stream_that_is_there_stays_as_it_is(js, new_stream, caplog):
    """
    Whatever the options say, nothing of it changes; what differs is logged.
    """
    name = new_stream(duplicate_window=60 * 10**9)
    before = js.stream_info(name).config
    create_streams(
        js, creation_of(name, ("other.>",), retention="workqueue", duplicate_window_s=5.0)
    )

    assert js.stream_info(name).config == before
    assert "stays as it is, though createStream says otherwise of: subjects, retention" in (
        caplog.text
    )


def test_subjects_of_another_stream_are_an_error(js, new_stream):
    """
    The server's own reason is passed on, with the stream's name.
    """
    other = new_stream()

    with pytest.raises(OptionError, match=r"option 'createStream': stream 'C5': subjects overlap"):
        create_streams(js, creation_of("C5", (f"{other}.a",)))


def test_more_replicas_than_servers_are_an_error(js):
    """
    A single server keeps one copy.
    """
    with pytest.raises(OptionError, match=r"stream 'C6': .*replicas"):
        create_streams(js, creation_of("C6", ("c6",), replicas=3))
