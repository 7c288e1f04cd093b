"""Creating the streams a write needs, on a real server; and leaving alone those that are there."""

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.publish.settings import StreamCreation
from pyspark_jetstream.write.creation import create_streams

from ..kits.options import connection_of
from ..kits.proxy import Proxy


def creation_of(stream, subjects, partitions=1, **config):
    """The streams that a write creates, and what is given of their configuration."""
    return StreamCreation(stream, subjects, partitions, config)


@pytest.fixture
def deleting(js):
    """Deletes the streams of these names afterwards."""
    names: list[str] = []
    yield names
    for name in names:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")


def test_a_missing_stream_is_created_as_described(js, deleting, caplog):
    """As its configuration was given, and else as our writer and readers need it."""
    deleting.append("C1")
    given = {
        "retention": "interest", "duplicate_window": 30 * 10**9, "allow_direct": False,
        "allow_atomic": True, "allow_msg_ttl": True, "storage": "memory", "compression": "none",
        "max_age": 3600 * 10**9, "metadata": {"team": "air"}, "max_msgs": 0,
    }  # fmt: skip
    create_streams(js, creation_of("C1", ("c1.>",), **given))
    config = js.stream_info("C1").config

    assert config["subjects"] == ["c1.>"]
    assert {name for name in given if config.get(name) != given[name]} == {"metadata", "max_msgs"}
    assert config["metadata"]["team"] == "air"
    assert config["num_replicas"] == 1
    assert config["max_msgs"] == -1
    assert not caplog.text


@pytest.mark.parametrize(("max_age_s", "window_s"), [(0, 120), (3600, 120), (30, 30)])
def test_the_duplicate_window_is_no_longer_than_messages_are_kept(
    js, deleting, max_age_s, window_s
):
    """Two minutes by default, or `max_age` where that is less: the server takes no more."""
    deleting.append("C7")
    wanted = creation_of("C7", ("c7.>",), max_age=max_age_s * 10**9)
    create_streams(js, wanted)

    assert js.stream_info("C7").config["duplicate_window"] == window_s * 10**9


def test_a_field_that_the_server_does_not_know_is_an_error(js):
    """In its own words; none is left out quietly."""
    with pytest.raises(OptionError, match=r"option 'createStream': stream 'C8': .*tomorrow"):
        create_streams(js, creation_of("C8", ("c8",), tomorrow=True))


def test_a_stream_is_there_once_tasks_find_it(js, nats_server, deleting):
    """A cluster may name a stream a moment after it was made."""
    deleting.append("C9")
    late = iter(range(3))

    def rewrite(data):
        if b'"streams":["C9"]' in data and next(late, None) is not None:
            return data.replace(b'"streams":["C9"]', b'"streams":["--"]')
        return data

    with Proxy(nats_server.port, rewrite=rewrite) as proxy:
        client = Client(connection_of(proxy.url))
        create_streams(JetStream(client), creation_of("C9", ("c9.>",)))
        found = JetStream(client).stream_of("c9.a")
        client.close()

    assert found == "C9"
    assert next(late, None) is None


def test_the_filtered_layout_is_one_stream_with_a_wildcard(js, deleting):
    """A partition token in the subjects alone makes one stream that takes every partition."""
    deleting.append("C2")
    create_streams(js, creation_of("C2", ("c2.{partition}.>", "c2other.x"), partitions=4))

    assert js.stream_info("C2").config["subjects"] == ["c2.*.>", "c2other.x"]


def test_the_streams_layout_is_one_stream_a_partition(js, deleting):
    """A partition token in the name makes one stream each, with its own subjects."""
    deleting.extend(["C3-0", "C3-1", "C3-2"])

    create_streams(js, creation_of("C3-{partition}", ("c3.{partition}.>",), partitions=3))

    assert [js.stream_info(f"C3-{p}").config["subjects"] for p in range(2)] == [
        ["c3.0.>"],
        ["c3.1.>"],
    ]
    assert js.stream_info("C3-2").config["subjects"] == ["c3.2.>"]


def test_a_stream_that_is_there_stays_as_it_is(js, new_stream):
    """Whatever the options say, nothing of it changes."""
    name = new_stream(duplicate_window=60 * 10**9)
    before = js.stream_info(name).config
    create_streams(
        js, creation_of(name, ("other.>",), retention="workqueue", duplicate_window=5 * 10**9)
    )

    assert js.stream_info(name).config == before


def test_subjects_of_another_stream_are_an_error(js, new_stream):
    """The server's own reason is passed on, with both streams' names."""
    other = new_stream()
    named = rf"stream 'C5': subjects overlap .*\('{other}' takes '{other}\.a'\); write without"

    with pytest.raises(OptionError, match=rf"option 'createStream': {named}"):
        create_streams(js, creation_of("C5", ("c5.>", f"{other}.a")))


def test_more_replicas_than_servers_are_an_error(js):
    """A single server keeps one copy."""
    with pytest.raises(OptionError, match=r"stream 'C6': .*replicas"):
        create_streams(js, creation_of("C6", ("c6",), num_replicas=3))
