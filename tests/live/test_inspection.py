"""What an inspection gathers from a real server, and a checkpoint beside it."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import StreamNotFoundError
from pyspark_jetstream.fetch.durable import Owner
from pyspark_jetstream.operations.files import LocalFiles
from pyspark_jetstream.operations.inspect.findings import Report
from pyspark_jetstream.operations.inspect.looking import Inspector
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.clients import serving
from ..kits.options import connection_of

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]
Look = Callable[..., Report]


@pytest.fixture
def look(js):
    """One look at the shared server."""

    def found(streams=None, path=None):
        files = LocalFiles(path) if path is not None else None
        return Inspector(js.client, streams, files).look()

    return found


def messages(stream, n, partitions=2):
    return [(f"{stream}.{i % partitions}.x", b"m") for i in range(n)]


def durable(js, stream, name, **config):
    """A consumer such as a query makes."""
    js.create_consumer(
        stream,
        {"durable_name": name, "ack_policy": "none", "priority_groups": ["spark"],
         "priority_policy": "pinned_client"} | config,
    )  # fmt: skip


def of(rows, *names):
    """Some columns of rows."""
    return [tuple(row[name] for name in names) for row in rows]


def test_a_stream(look, new_stream, publish):
    """A stream comes with the server's own counts; of a pattern all that it takes."""
    name = new_stream()
    new_stream(f"{name}P-10"), new_stream(f"{name}P-2")
    publish([*messages(name, 7), (f"{name}.other", b"m")])
    found = look(name)
    (row,) = found.streams

    assert (row["stream"], row["retention"], row["messages"]) == (name, "limits", 8)
    assert (row["first"], row["last"], row["subjects"]) == (1, 8, [f"{name}.>"])
    assert row["bytes"] > 0
    assert (found.consumers, found.checkpoint, found.problems) == ([], None, [])
    assert of(look(f"{name}P-*").streams, "stream") == [(f"{name}P-2",), (f"{name}P-10",)]


def test_which_consumers(look, new_stream, js, publish):
    """Those with a priority group are shown, in their order."""
    name = new_stream()
    for each in ("q-10", "q-2", "q-x-1", "qq-1"):
        durable(js, name, each)
    plain = {"durable_name": "q-7", "ack_policy": "explicit", "filter_subject": f"{name}.7"}
    js.create_consumer(name, plain)

    assert of(look(name).consumers, "consumer") == [("q-2",), ("q-10",), ("q-x-1",), ("qq-1",)]


def test_a_checkpoint_beside_the_stream(look, new_stream, js, publish, tmp_path):
    """Offsets stand beside the stream's ends; sources that have not begun have no rows."""
    name, other = new_stream(), new_stream()
    publish(messages(name, 10))
    durable(js, name, "q-0", filter_subject=f"{name}.0.>")
    durable(js, name, "q-1", filter_subject=f"{name}.1.>")
    streams = {name: js.stream_info(name).created}
    rest = [{"topic": {"0": 3}}, {"version": 1, "initial": True}]
    places = [(name, f"{name}.{p}.>") for p in range(2)]
    batches = [[offset(streams, [n, n], places=places), *rest] for n in (4, 8)]
    write_checkpoint(tmp_path, batches)
    found = look(path=tmp_path)
    names = ("filter", "committed", "planned", "first", "last")

    assert found.checkpoint is not None
    assert (found.checkpoint["planned"], found.checkpoint["committed"]) == (1, 0)
    assert of(found.positions, *names) == [
        (f"{name}.0.>", 4, 8, 1, 10), (f"{name}.1.>", 4, 8, 1, 10),
    ]  # fmt: skip
    assert of(found.consumers, "consumer") == [("q-0",), ("q-1",)]
    assert found.problems == []
    both = look(other, path=tmp_path)
    assert sorted(of(both.streams, "stream")) == sorted([(other,), (name,)])
    assert both.problems == []


def test_problems_of_a_checkpoint(look, new_stream, js, publish, tmp_path):
    """A stream made anew or gone, messages that left, a consumer that is gone."""
    anew, purged, keeping = new_stream(), new_stream(), new_stream(retention="interest")
    publish([(f"{name}.0.x", b"m") for name in (anew, purged) for _ in range(6)])
    js.purge(purged, None, 5)
    created = {name: js.stream_info(name).created for name in (purged, keeping)}
    batch = [
        offset({anew: "2020-01-01T00:00:00Z"}, [6], "a"),
        offset({purged: created[purged]}, [1], "b"),
        offset({keeping: created[keeping]}, [0], "c"),
        offset({"GONE": "2020-01-01T00:00:00Z"}, [6], "e"),
        offset({"LATER": "2020-01-01T00:00:00Z"}, [6], "f") | {"version": 9},
    ]
    write_checkpoint(tmp_path, [batch], committed=0)
    found = look(path=tmp_path)
    expected = [
        "source 4: the checkpoint holds an offset of version 9",
        f"source 0, partition 0 of {anew}: the stream was made anew",
        f"source 1, partition 0 of {purged}: sequences 2 to 4 left the stream",
        f"source 2, partition 0 of {keeping}: consumer is gone",
        "source 3, partition 0 of GONE: stream is gone",
    ]

    for problem, says in zip(found.problems, expected, strict=True):
        assert problem.startswith(says)


def test_what_a_query_writes(look, new_stream, js, publish, tmp_path):
    """A lost target is a problem of the query, and a note where all is looked at."""
    Ledger(js).ensure()
    target, query = new_stream(), str(uuid4())
    publish([(f"{target}.a", b"m")] * 3)
    note = {"batch": 3, "streams": {target: [js.stream_info(target).created, 3]}}
    js.client.request(f"$KV.SPARK_LEDGER.{query}.committed", json.dumps(note).encode())
    write_checkpoint(tmp_path, [], query=query)
    well = look(path=tmp_path)
    js.client.request(f"$JS.API.STREAM.DELETE.{target}", b"")
    lost, listed = look(path=tmp_path), look()

    assert well.writes == [{"write": query, "batch": 3, "stream": target, "up_to": 3}]
    assert (of(well.streams, "stream"), well.problems) == ([(target,)], [])
    (problem,) = lost.problems
    assert problem.startswith(f"write {query}, stream {target}: it was deleted")
    assert f"nats stream purge KV_SPARK_LEDGER --subject='$KV.SPARK_LEDGER.{query}.>'" in problem
    assert problem in listed.notes and problem not in listed.problems


def test_what_is_missing(look, new_stream):
    """A stream that is not there is an error, with the nearest name."""
    name = new_stream()

    with pytest.raises(StreamNotFoundError, match=f"did you mean '{name}'"):
        look(name.lower())


def test_nothing_is_changed(tmp_path):
    """A user who may ask but change nothing is enough."""
    asks = ("STREAM.INFO.S", "STREAM.MSG.GET.S", "DIRECT.GET.S", "CONSUMER.LIST.S")
    allowed = ", ".join(f'"$JS.API.{each}"' for each in asks)
    config = f"""
    authorization {{ users: [
      {{ user: admin, password: admin }}
      {{ user: eye, password: eye,
         permissions: {{ publish: [{allowed}], subscribe: ["_INBOX.>"] }} }}
    ] }}
    """
    with (
        serving(config, user="admin", password=Secret("admin")) as (server, js),
        closing(Client(connection_of(server.url, user="eye", password=Secret("eye")))) as eye,
    ):
        durable(js, "S", "q-0", filter_subject="S.0.>")
        created = js.stream_info("S").created
        write_checkpoint(tmp_path, [[offset({"S": created}, [0])]])
        found = Inspector(eye, "S", checkpoint=LocalFiles(tmp_path)).look()

    assert (found.problems, len(found.consumers), len(found.notes)) == ([], 1, 1)
    assert found.notes[0].startswith("what was written is not shown: ")


def test_all_that_is_sparks():
    """Consumers of queries, the ledger, its targets; of others nothing."""
    with serving(streams={}) as (_, js):
        client = js.client
        nothing = Inspector(client).look()
        for name in ("FLIGHTS", "OTHERS", "EMPTY", "$KV.SPARK_LEDGER"):
            stream = name.replace("$KV.", "KV_")
            js.create_stream({"name": stream, "subjects": [f"{name}.>"]})
        owner = Owner("one", "h", 1, name="alerts").metadata
        durable(js, "FLIGHTS", "alerts-0", metadata=owner)
        durable(js, "FLIGHTS", "somebody")
        durable(js, "OTHERS", "somebody")
        found = Inspector(client).look()
        ends = {"EMPTY": ["t", 7]}
        records = {"w": {"batch": 3, "streams": ends}, "strange": {"batch": "x"}}
        for write, content in records.items():
            js.client.request(f"$KV.SPARK_LEDGER.{write}.committed", json.dumps(content).encode())
        with_targets = Inspector(client).look()

    assert (nothing.streams, nothing.consumers, nothing.problems) == ([], [], [])
    assert of(found.streams, "stream") == [("FLIGHTS",), ("KV_SPARK_LEDGER",)]
    assert of(with_targets.streams, "stream") == [
        ("EMPTY",), ("FLIGHTS",), ("KV_SPARK_LEDGER",),
    ]  # fmt: skip
    assert of(found.consumers, "consumer", "query") == [("alerts-0", "alerts")]
