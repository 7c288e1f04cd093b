"""Taking a pin away by command, on a real server."""

from __future__ import annotations

import json
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.fetch.durable import Durable, consumer_config
from pyspark_jetstream.operations.console.commands import main

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.options import connection_of
from ..kits.pins import Puller
from ..kits.schemas import mistakes


def pinned_consumer(js, stream, name="c", timeout_s=60.0) -> None:
    """A consumer as a query makes it."""
    made = Durable(
        partition=0, stream=stream, filter=None, name=name, group="spark",
        priority_timeout_s=timeout_s,
    )  # fmt: skip
    js.create_consumer(stream, consumer_config(made))


@pytest.fixture
def puller(nats_server):
    """Makes clients that pull by hand."""
    made = []

    def make(*names):
        made.append(Puller(nats_server, *names))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def unpin(nats_server, capsys):
    """The command: its status, its lines, and what it said of mistakes."""

    def run(*words):
        status = main(["unpin", *words, "--servers", nats_server.url])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return run


def test_a_pin_is_taken(js, new_stream, publish, puller, unpin):
    """
    The pinned client has no pin any more and the command says which it was; where nobody is pinned,
    it says so, too, by its status.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 3)
    pinned_consumer(js, stream)
    one = puller(stream, "c")
    one.pull()
    one.next()
    since = js.consumer_info(stream, "c").pinned_ts
    taken = unpin("--stream", stream, "--consumer", "c")
    one.pull(id=one.pin)

    assert taken == (
        0,
        [
            f"{stream} c: unpinned {one.pin}, pinned since {since};"
            " nobody is pinned now, pulls that wait: 0"
        ],
        "",
    )
    assert one.next()[0] == 423
    again = unpin("--stream", stream, "--consumer", "c")
    assert again == (
        3, [f"{stream} c: nobody was pinned; nobody is pinned now, pulls that wait: 0"], ""
    )  # fmt: skip


def test_who_is_pinned_next_is_shown(js, new_stream, publish, puller, unpin):
    """
    Whoever waits is served, and pinned, at once; the JSON says from whom to whom.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 3)
    pinned_consumer(js, stream)
    one, two = puller(stream, "c"), puller(stream, "c")
    one.pull()
    one.next()
    two.pull()
    status, lines, _ = unpin("--stream", stream, "--consumer", "c", "--json")
    two.next()
    (facts,) = map(json.loads, lines)
    assert mistakes(facts, "unpin") == []

    assert status == 0
    assert (facts["stream"], facts["consumer"], facts["group"]) == (stream, "c", "spark")
    assert facts["unpinned"] == one.pin
    assert facts["pinned"] in (None, two.pin)  # it is pinned as it is served


def test_all_partitions_of_a_query(js, new_stream, publish, puller, unpin, tmp_path):
    """
    A prefix, or a checkpoint, names the consumers of all partitions; others are left alone.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 3)
    names = ["q-0", "q-1", "qq-0"]
    pullers = []
    for name in names:
        pinned_consumer(js, stream, name)
        pullers.append(puller(stream, name))
        pullers[-1].pull()
        pullers[-1].next()

    status, lines, _ = unpin("--stream", stream, "--consumer", "q")
    assert (status, [line.partition(":")[0] for line in lines]) == (
        0, [f"{stream} q-0", f"{stream} q-1"]
    )  # fmt: skip
    assert js.consumer_info(stream, "qq-0").pinned_id == pullers[2].pin

    streams = {stream: js.stream_info(stream).created}
    write_checkpoint(tmp_path, [[offset(streams, [3, 3], "q")]])
    status, lines, _ = unpin("--checkpoint", str(tmp_path))
    assert status == 3
    assert [line.partition(";")[0] for line in lines] == [
        f"{stream} q-0: nobody was pinned", f"{stream} q-1: nobody was pinned"
    ]  # fmt: skip


def test_the_server_tells_who_unpins(js, nats_server, new_stream, publish, unpin):
    """
    The audit advisories that the runbook names have the call, and the client it came from.
    """
    stream = new_stream()
    pinned_consumer(js, stream)
    listener = Client(connection_of(nats_server.url))
    listener.connection.subscribe("$JS.EVENT.ADVISORY.API")
    listener.connection.ping(60.0)
    unpin("--stream", stream, "--consumer", "c")
    event = {"subject": ""}
    while event["subject"] != f"$JS.API.CONSUMER.UNPIN.{stream}.c":
        frame = listener.connection.next_frame(time.monotonic() + 60)
        assert frame is not None, "no advisory"
        event = json.loads(frame.data)
    listener.close()

    assert {"id", "host", "start"} <= event["client"].keys()


def test_what_cannot_be_unpinned(js, new_stream, unpin, capsys):
    """
    A stream or a consumer that is missing, and one that pins nobody, are errors in one line, before
    any pin is touched; without a consumer it asks for one.
    """
    stream = new_stream()
    js.create_consumer(stream, {"durable_name": "plain-0", "ack_policy": "explicit"})
    pinned_consumer(js, stream, "plain-1")
    for words, error in (
        (("--stream", "NOWHERE", "--consumer", "c"), "stream 'NOWHERE' not found"),
        (("--stream", stream, "--consumer", "c"), f"stream '{stream}' has no consumer 'c'; "),
        (("--stream", stream, "--consumer", "plain"),
         "consumer 'plain-0': no priority policy pinned_client; no pin was touched"),
    ):  # fmt: skip
        status, lines, said = unpin(*words)
        assert (status, lines, said.count("\n")) == (1, [], 1)
        assert error in said
    with pytest.raises(SystemExit) as ended:
        unpin("--stream", stream)
    assert ended.value.code == 2
    assert "expected --stream and --consumer, or --checkpoint" in capsys.readouterr().err
