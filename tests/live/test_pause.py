"""`pause`, `resume` and `unpin` on a real server: the consumers of a query, and no others."""

import json

import pytest

from pyspark_jetstream.client import wire

from ..kits.programs import main
from ..kits.shared import eventually


def consumer(js, stream, name, **config):
    """A consumer as a query makes it."""
    js.create_consumer(stream, {
        "durable_name": name, "ack_policy": "none", "priority_groups": ["spark"],
        "priority_policy": "pinned_client", "priority_timeout": 60 * 10**9,
    } | config)  # fmt: skip


def pulled(js, stream, name):
    """The pin that a pull is given with a message."""
    connection = js.client.connection
    connection.subscribe(inbox := connection.new_inbox())
    body = b'{"batch": 1, "expires": 5000000000, "group": "spark"}'
    connection.send(wire.pub(f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}", body, inbox))
    return eventually(lambda: js.consumer_info(stream, name).pinned_id)


@pytest.fixture
def said(nats_server, capsys):
    """A command: its status, its JSON, its errors."""

    def run(*words):
        status = main([*words, "--json", "--servers", nats_server.url])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else None, err

    return run


@pytest.fixture
def stream(js, new_stream, publish):
    """A stream with the consumers of two queries, and one more."""
    name = new_stream()
    publish([(f"{name}.x", b"x")] * 3)
    for each in ("q-0", "q-1", "qq-0"):
        consumer(js, name, each)
    return name


def test_pins_are_taken(js, stream, said):
    """Each client that is pinned loses its pin, and the command says which it was."""
    pins = [pulled(js, stream, name) for name in ("q-0", "qq-0")]
    status, rows, _ = said("unpin", "--stream", stream, "--consumer", "q")

    assert status == 3  # nobody was pinned at q-1
    assert [(each["consumer"], each["unpinned"]) for each in rows] == [
        ("q-0", pins[0]), ("q-1", None)
    ]  # fmt: skip
    assert rows[0]["since"] and js.consumer_info(stream, "q-0").pinned_id == ""
    assert js.consumer_info(stream, "qq-0").pinned_id == pins[1]
    assert said("unpin", "--stream", stream, "--consumer", "qq-0")[0] == 0


def test_streams_by_a_pattern(js, new_stream, said):
    """A layout of several streams is one pattern."""
    names = [new_stream(f"layout-{number}") for number in range(2)]
    for name in names:
        consumer(js, name, "q-0")

    status, rows, _ = said("pause", "--stream", "layout-*", "--consumer", "q", "--for", "1h")
    assert (status, sorted(each["stream"] for each in rows)) == (0, sorted(names))


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (("pause", "--stream", "NOWHERE", "--consumer", "q", "--for", "1h"), 1, "'NOWHERE'"),
        (("resume", "--stream", "{0}", "--consumer", "x"), 1, "has no consumer 'x', nor 'x-…'"),
        (("unpin", "--stream", "{0}"), 2, "Missing option '--consumer'"),
        (("pause", "--stream", "{0}", "--consumer", "q"), 2, "Missing option '--for'"),
        (("pause", "--stream", "{0}", "--consumer", "q", "--for", "1x"), 2, "expected a duration"),
        (("resume", "--stream", "{0}", "--consumer", "q", "--for", "1h"), 2, "No such option"),
    ],
)
def test_what_cannot_be(js, stream, said, words, status, error):
    """What is missing, or wrong, is one line."""
    js.create_consumer(stream, {"durable_name": "plain-0", "ack_policy": "explicit"})
    ended, out, err = said(*(word.format(stream) for word in words))

    assert (ended, out) == (status, None)
    assert error in err.splitlines()[-1]
