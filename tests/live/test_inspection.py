"""What an inspection gathers from a real server, and a checkpoint beside it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import OptionError, StreamNotFoundError
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.operations.console.tables import tables
from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory
from pyspark_jetstream.operations.inspection.findings import Inspection, PositionState
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.values import Secret

from ..conftest import connection_to
from ..kits.checkpoints import offset, write_checkpoint
from ..kits.reading import query
from ..kits.servers import DevServer

__all__ = ["query"]

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]
Look = Callable[..., Inspection]


@pytest.fixture
def inspector(nats_server: DevServer, js: JetStream) -> Callable[..., Inspector]:
    """An inspector of the shared server, with options as a query has them."""

    def make(consumer: str | None = None, path: Path | None = None, **options: Any) -> Inspector:
        words = {name: str(value) for name, value in options.items()}
        typed = parse_stream({"servers": nats_server.url} | words) if words else None
        directory = LocalDirectory(path) if path is not None else None
        return Inspector(js.client, typed, consumer, directory)

    return make


@pytest.fixture
def look(inspector: Callable[..., Inspector]) -> Look:
    """One look."""

    def found(*arguments: Any, **options: Any) -> Inspection:
        return inspector(*arguments, **options).look()

    return found


def messages(stream: str, n: int, partitions: int = 2) -> list[tuple[str, bytes]]:
    return [(f"{stream}.{i % partitions}.x", b"m") for i in range(n)]


def durable(js: JetStream, stream: str, name: str, **config: Any) -> None:
    """A consumer such as a query makes."""
    js.create_consumer(
        stream,
        {"durable_name": name, "ack_policy": "none", "priority_groups": ["spark"],
         "priority_policy": "pinned_client"} | config,
    )  # fmt: skip


def pull(js: JetStream, stream: str, name: str, batch: int = 1) -> None:
    """Asks for messages as a member of the group; the inbox is nobody's."""
    connection = js.client.connection
    connection.subscribe(inbox := connection.new_inbox())
    body = b'{"batch": %d, "expires": 60000000000, "group": "spark"}' % batch
    subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
    connection.send(wire.pub(subject, body, inbox))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def positions(found: Inspection, source: int = 0) -> tuple[PositionState, ...]:
    assert found.checkpoint is not None
    return found.checkpoint.sources[source].positions


def test_streams_and_partitions(look: Look, new_stream: NewStream, publish: Publish) -> None:
    """A stream and the partitions of its layout come with the server's own counts."""
    name = new_stream(retention="limits", duplicate_window=60 * 10**9)
    publish([*messages(name, 7), (f"{name}.other", b"m")])
    found = look(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")
    (stream,) = found.streams

    assert (stream.name, stream.retention, stream.messages) == (name, "limits", 8)
    assert (stream.first, stream.last, stream.subjects) == (1, 8, (f"{name}.>",))
    assert (stream.replicas, stream.duplicate_window_s) == (1, 60.0)
    assert stream.bytes > 0
    assert [(p.index, p.filter, p.messages, p.last) for p in found.partitions] == [
        (0, f"{name}.0.>", 4, 7),
        (1, f"{name}.1.>", 3, 6),
    ]
    assert (found.consumers, found.checkpoint, found.problems()) == ((), None, [])


def test_one_stream_a_partition(look: Look, new_stream: NewStream, publish: Publish) -> None:
    """In the streams layout each stream is a partition, an empty one too."""
    base = new_stream()
    for p in range(2):
        new_stream(f"{base}P-{p}")
    publish([(f"{base}P-1.x", b"m")] * 3)
    found = look(stream=f"{base}P-{{partition}}", partitions=2)

    assert [each.name for each in found.streams] == [f"{base}P-0", f"{base}P-1"]
    assert [(p.stream, p.messages, p.last) for p in found.partitions] == [
        (f"{base}P-0", 0, 0),
        (f"{base}P-1", 3, 3),
    ]


def test_a_stream_without_direct_get(look: Look, new_stream: NewStream, publish: Publish) -> None:
    """Where the server cannot count a filter, the count is None, not a guess."""
    name = new_stream(allow_direct=False)
    publish(messages(name, 4))
    found = look(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")

    assert [(p.messages, p.last) for p in found.partitions] == [(None, 3), (None, 4)]


def test_which_consumers(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish
) -> None:
    """Without a prefix those with a priority group are shown, with one its own, in their order."""
    name = new_stream()
    for each in ("q-10", "q-2", "q-x-1", "qq-1"):
        durable(js, name, each)
    plain = {"durable_name": "q-7", "ack_policy": "explicit", "filter_subject": f"{name}.7"}
    js.create_consumer(name, plain)

    assert [c.name for c in look(stream=name).consumers] == ["q-2", "q-10", "q-x-1", "qq-1"]
    assert [c.name for c in look("q", stream=name).consumers] == ["q-2", "q-7", "q-10"]
    (one,) = look("q-7", stream=name).consumers
    assert (one.pin.policy, one.ack_policy, one.filters) == ("", "explicit", (f"{name}.7",))


def test_consumers_of_attempts(look: Look, new_stream: NewStream, js: JetStream) -> None:
    """
    A consumer that one attempt of a task reads by is shown as such beside the consumers of its
    query, and of no other, and is no problem.
    """
    name = new_stream()
    owners = [Owner(query, "h", 1) for query in ("one", "two")]
    for owner in owners:
        durable(js, name, f"{owner.query}-0", metadata=owner.metadata)
        attempt = {"name": f"spark-own-{owner.query}", "ack_policy": "none", "mem_storage": True}
        group = {"priority_groups": ["spark"], "priority_policy": "overflow"}
        js.create_consumer(name, attempt | group | {"metadata": owner.metadata})
    js.create_consumer(name, {"name": "spark-own-batch", "ack_policy": "none"} | group)
    found = look("one", stream=name)
    (both,) = [each for each in tables(found) if each.title == "Consumers"]

    assert [(c.name, c.own) for c in found.consumers] == [("one-0", False), ("spark-own-one", True)]
    assert found.problems() == []
    assert both.rows[1]["policy"] == "one attempt's own"
    assert len(look(stream=name).consumers) == 5


def test_more_consumers_than_a_page(look: Look, new_stream: NewStream, js: JetStream) -> None:
    """The server lists 256 consumers at a time; all are found."""
    name = new_stream()
    for number in range(260):
        durable(js, name, f"q-{number}", mem_storage=True)
    found = look(stream=name)

    assert [each.name for each in found.consumers] == [f"q-{n}" for n in range(260)]


def test_a_pinned_consumer(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish
) -> None:
    """
    While a client holds the pin, its id and since when are shown, with positions, lag and claims.
    """
    name = new_stream(retention="interest")
    durable(js, name, "q-0", ack_policy="explicit")
    before = look(stream=name).consumers[0]
    publish([(f"{name}.a", b"m")] * 5)
    pull(js, name, "q-0", 2)
    until(lambda: look(stream=name).consumers[0].progress.delivered == 2)
    (now,) = look(stream=name).consumers

    pin, at = now.pin, now.progress
    assert (before.pin.client, before.pin.since, before.progress.last_active) == ("", "", "")
    assert pin.client == js.consumer_info(name, "q-0").pinned_id != ""
    assert pin.since[:2] == at.last_active[:2] == "20"
    assert (pin.policy, pin.group, now.ack_policy) == ("pinned_client", "spark", "explicit")
    assert (at.delivered, at.deliveries, at.ack_floor, at.lag) == (2, 2, 0, 3)
    assert (at.ack_pending, at.redelivered) == (2, 0)
    js.unpin(name, "q-0", "spark")
    assert look(stream=name).consumers[0].pin.client == ""


def test_clients_that_wait(look: Look, new_stream: NewStream, js: JetStream) -> None:
    """Pulls that wait for messages are counted."""
    name = new_stream()
    durable(js, name, "q-0")
    for _ in range(2):
        pull(js, name, "q-0")
    until(lambda: look(stream=name).consumers[0].progress.waiting == 2)


def test_the_reply_subject_of_a_pull_leads_to_its_client(
    nats_server: DevServer, new_stream: NewStream, js: JetStream
) -> None:
    """
    Who listens for pulls sees their reply subjects, and the server tells who has subscribed to one
    (docs/runbook.md).
    """
    name = new_stream()
    durable(js, name, "q-0")
    with closing(Client(connection_to(nats_server))) as operator:
        operator.connection.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{name}.q-0")
        operator.connection.ping(60.0)
        pull(js, name, "q-0")
        frame = operator.connection.next_frame(time.monotonic() + 60)
    number = js.client.connection.info["client_id"]
    with urllib.request.urlopen(f"{nats_server.monitor_url}/connz?subs=1&cid={number}") as answer:
        (connection,) = json.load(answer)["connections"]

    assert frame is not None and frame.reply.decode() in connection["subscriptions_list"]


def test_a_checkpoint_beside_the_stream(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish, tmp_path: Path
) -> None:
    """
    Committed and planned offsets stand beside the stream's ends, the consumer and what is still to
    be read, without any option; another source is counted, one that has not begun has no rows.
    """
    name, other = new_stream(), new_stream()
    publish(messages(name, 10))
    durable(js, name, "q-0", filter_subject=f"{name}.0.>")
    durable(js, name, "q-1", filter_subject=f"{name}.1.>")
    streams = {name: js.stream_info(name).created}
    rest = [{"topic": {"0": 3}}, {"version": 1, "initial": True}]
    places = [(name, f"{name}.{p}.>") for p in range(2)]
    batches = [[offset(streams, [n, n], places=places), *rest] for n in (4, 8)]
    write_checkpoint(tmp_path, batches)
    found = look(None, tmp_path)
    checkpoint = found.checkpoint

    assert checkpoint is not None
    assert (checkpoint.planned, checkpoint.committed, checkpoint.others) == (1, 0, 1)
    assert [each.source for each in checkpoint.sources] == ["0", "2"]
    assert checkpoint.sources[1].positions == ()
    assert [
        (p.filter, p.committed, p.planned, p.first, p.last, p.consumer, p.lag)
        for p in positions(found)
    ] == [(f"{name}.0.>", 4, 8, 1, 10, 0, 3), (f"{name}.1.>", 4, 8, 1, 10, 0, 3)]
    assert [each.name for each in found.consumers] == ["q-0", "q-1"]
    assert (found.partitions, found.problems()) == ((), [])
    both = look(None, tmp_path, stream=other)
    assert [each.name for each in both.streams] == [other, name]
    assert both.problems() == []


def test_where_the_filters_come_from(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish, tmp_path: Path
) -> None:
    """
    Of an offset without them the options say the filters; without these the lag is not told, but
    where a partition is a whole stream.
    """
    name = new_stream()
    publish(messages(name, 10))
    streams = {name: js.stream_info(name).created}
    write_checkpoint(tmp_path / "two", [[offset(streams, [4, 4])]], committed=0)
    write_checkpoint(tmp_path / "one", [[offset(streams, [4])]], committed=0)
    layout = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}

    assert [p.lag for p in positions(look(None, tmp_path / "two", **layout))] == [3, 3]
    assert [p.lag for p in positions(look(None, tmp_path / "two"))] == [None, None]
    assert [p.lag for p in positions(look(None, tmp_path / "one"))] == [6]


def test_streams_of_a_checkpoint_by_their_names(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish, tmp_path: Path
) -> None:
    """
    Which stream is which partition follows from their names; where it does not, it is asked for.
    """
    base = new_stream()
    names = [new_stream(f"{base}P-{p}") for p in range(11)]
    publish([(f"{names[10]}.x", b"m")] * 3)
    created = {name: js.stream_info(name).created for name in names}
    write_checkpoint(tmp_path / "p", [[offset(created, [0] * 11)]], committed=0)
    odd = {name: created[name] for name in (names[3], names[7])}
    write_checkpoint(tmp_path / "odd", [[offset(odd, [0, 0])]], committed=0)
    found = look(None, tmp_path / "p")

    assert [p.stream for p in positions(found)] == names
    assert [p.lag for p in positions(found)] == [0] * 10 + [3]
    (problem,) = look(None, tmp_path / "odd").problems()
    assert "give --stream with {partition}" in problem


def test_problems_of_a_checkpoint(
    look: Look, new_stream: NewStream, js: JetStream, publish: Publish, tmp_path: Path
) -> None:
    """
    A stream that was made anew or is gone, messages that left unread, a consumer that is gone: each
    with its place. A consumer that stands beyond the checkpoint is noted.
    """
    anew, purged, keeping, beyond = (
        new_stream(), new_stream(), new_stream(retention="interest"), new_stream()
    )  # fmt: skip
    publish([(f"{name}.0.x", b"m") for name in (anew, purged, beyond) for _ in range(6)])
    js.purge(purged, None, 5)
    durable(js, beyond, "d-0")
    pull(js, beyond, "d-0", 3)
    until(lambda: js.consumer_info(beyond, "d-0").stream_seq == 3)
    created = {name: js.stream_info(name).created for name in (purged, keeping, beyond)}
    batch = [
        offset({anew: "2020-01-01T00:00:00Z"}, [6], "a"),
        offset({purged: created[purged]}, [1], "b"),
        offset({keeping: created[keeping]}, [0], "c"),
        offset({beyond: created[beyond]}, [2], "d"),
        offset({"GONE": "2020-01-01T00:00:00Z"}, [6], "e"),
        offset({"LATER": "2020-01-01T00:00:00Z"}, [6], "f") | {"version": 9},
    ]
    write_checkpoint(tmp_path, [batch], committed=0)
    found = look(None, tmp_path)
    problems = found.problems()

    assert problems[:4] == [
        f"source 0, partition 0 of {anew}: stream was made anew",
        f"source 1, partition 0 of {purged}: 3 messages left the stream unread",
        f"source 2, partition 0 of {keeping}: consumer is gone",
        "source 4, partition 0 of GONE: stream is gone",
    ]
    assert problems[4].startswith("source 5: the checkpoint holds an offset of version 9")
    assert len(problems) == 5
    assert positions(found, 3)[0].notes == (
        "consumer beyond the checkpoint, mostly until the next batch",
    )


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({}, False),
        ({"partitions": 2}, False),
        ({"partitions": 3}, True),
    ],
)
def test_another_number_of_partitions(
    look: Look, new_stream: NewStream, js: JetStream, tmp_path: Path,
    stated: dict[str, int], problem: bool,
) -> None:  # fmt: skip
    """
    A checkpoint of another N than the options say is a problem; options that say none are none.
    """
    name = new_stream()
    write_checkpoint(tmp_path, [[offset({name: js.stream_info(name).created}, [0, 0])]])
    template = {"partitionSubject": f"{name}.{{partition}}.>"} if stated else {}
    found = look(None, tmp_path, stream=name, **stated, **template)
    says = "source 0: N differs: the checkpoint has 2 partitions, the stream's layout 3"

    assert found.problems() == ([says] if problem else [])
    assert len(positions(found)) == 2


def test_a_checkpoint_of_claims(
    look: Look, new_stream: NewStream, js: JetStream, tmp_path: Path, publish: Publish
) -> None:
    """A source that shares its consumers shows what its batch claimed, partition by partition."""
    name = new_stream()
    publish(messages(name, 10))
    for p in range(2):
        durable(js, name, f"q-{p}", filter_subject=f"{name}.{p}.>", ack_policy="explicit",
                priority_policy="overflow")  # fmt: skip
    claimed = {
        "version": 1, "policy": "overflow", "consumer": "q", "partitions": 2, "serial": 3,
        "streams": {name: js.stream_info(name).created},
        "claims": {"1": {"1": "2,4", "2": "6"}},
    }  # fmt: skip
    write_checkpoint(tmp_path, [[claimed]])
    layout = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}
    found = look(None, tmp_path, **layout)
    assert found.checkpoint is not None
    (source,) = found.checkpoint.sources

    assert (source.policy, source.serial, source.consumer) == ("overflow", 3, "q")
    assert [(c.index, c.claimed, c.first, c.last, c.redelivered) for c in source.claims] == [
        (0, 0, 0, 0, 0),
        (1, 3, 2, 6, 1),
    ]
    assert (found.checkpoint.committed, found.problems()) == (None, [])


def test_rates_of_two_looks(
    inspector: Callable[..., Inspector], new_stream: NewStream, js: JetStream,
    publish: Publish, tmp_path: Path,
) -> None:  # fmt: skip
    """From the second look on there are rates: stored, read by the consumer and by the query."""
    name = new_stream()
    publish([(f"{name}.x", b"m")] * 10)
    durable(js, name, "q-0")
    streams = {name: js.stream_info(name).created}
    write_checkpoint(tmp_path, [[offset(streams, [4])]], committed=0)
    watched = inspector(None, tmp_path, stream=name)
    began = time.monotonic()
    first = watched.look()
    publish([(f"{name}.x", b"m")] * 20)
    pull(js, name, "q-0", 5)
    until(lambda: js.consumer_info(name, "q-0").stream_seq == 5)
    write_checkpoint(tmp_path, [[offset(streams, [4])], [offset(streams, [8])]], committed=1)
    second = watched.look()
    took = time.monotonic() - began

    assert first.streams[0].stored_rate is None
    assert (second.streams[0].stored_rate or 0) >= 20 / took
    assert (second.consumers[0].read_rate or 0) >= 5 / took
    assert (second.consumers[0].lag_rate or 0) >= 15 / took
    assert (positions(second)[0].read_rate or 0) >= 4 / took
    assert (positions(second)[0].lag_rate or 0) >= 16 / took


def test_what_is_missing(look: Look, new_stream: NewStream) -> None:
    """A stream of the options that is not there, or is laid out otherwise, is an error."""
    name = new_stream(
        subjects=["INT.*"],
        subject_transform={"src": "INT.*", "dest": "INT.{{partition(2,1)}}.{{wildcard(1)}}"},
    )

    with pytest.raises(StreamNotFoundError, match=f"did you mean '{name}'"):
        look(stream=name.lower())
    with pytest.raises(OptionError, match="makes 2 partitions, not 3"):
        look(stream=name, partitions=3, partitionSubject="INT.{partition}.*")


def test_nothing_is_changed(tmp_path: Path) -> None:
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
    words = {"stream": "S", "partitions": "1", "partitionSubject": "S.{partition}.>"}
    with (
        DevServer(config) as server,
        closing(Client(connection_to(server, user="admin", password=Secret("admin")))) as admin,
        closing(Client(connection_to(server, user="eye", password=Secret("eye")))) as eye,
    ):
        js = JetStream(admin)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        durable(js, "S", "q-0", filter_subject="S.0.>")
        created = js.stream_info("S").created
        write_checkpoint(tmp_path, [[offset({"S": created}, [0])]])
        found = Inspector(eye, parse_stream(words), None, LocalDirectory(tmp_path)).look()

    assert (found.problems(), len(found.consumers)) == ([], 1)


def test_a_query_that_begins_meanwhile(
    new_stream: NewStream, js: JetStream, tmp_path: Path
) -> None:
    """A first batch that is planned during the look is seen with its stream and consumers."""
    name = new_stream()
    durable(js, name, "q-0")
    created = js.stream_info(name).created
    write_checkpoint(tmp_path, [])
    looks = []

    class PlannedMeanwhile(LocalDirectory):
        def read(self, name: str) -> bytes:
            looks.append(name)
            if looks.count("metadata") == 2 and name == "metadata":
                write_checkpoint(tmp_path, [[offset({name_of: created}, [0])]])
            return super().read(name)

    name_of = name
    found = Inspector(js.client, checkpoint=PlannedMeanwhile(tmp_path)).look()

    assert [each.name for each in found.streams] == [name]
    assert [each.name for each in found.consumers] == ["q-0"]
    assert (positions(found)[0].consumer, found.problems()) == (0, [])


def test_all_that_is_sparks() -> None:
    """
    Without options and checkpoint, consumers that a query has made are shown with their streams,
    streams that are Spark's themselves, and those that the ledger names as targets of writes; of
    what others have on the server nothing.
    """
    with DevServer() as server, closing(Client(connection_to(server))) as client:
        js = JetStream(client)
        nothing = Inspector(client).look()
        for name in ("FLIGHTS", "OTHERS", "EMPTY", "$KV.SPARK_LEDGER"):
            stream = name.replace("$KV.", "KV_")
            js.create_stream({"name": stream, "subjects": [f"{name}.>"]})
        marked = {"metadata": {"pyspark-jetstream.partition": "0"}}
        js.create_stream({"name": "RAW-0", "subjects": ["raw.0"]} | marked)
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
        of_one = Inspector(client, consumer="somebody").look()

    assert (nothing.streams, nothing.consumers, nothing.problems()) == ((), (), [])
    assert [each.name for each in found.streams] == ["FLIGHTS", "KV_SPARK_LEDGER", "RAW-0"]
    assert [each.name for each in with_targets.streams] == [
        "EMPTY", "FLIGHTS", "KV_SPARK_LEDGER", "RAW-0",
    ]  # fmt: skip
    assert [(c.name, c.owner.name) for c in found.consumers] == [("alerts-0", "alerts")]
    assert [(c.stream, c.name) for c in of_one.consumers] == [
        ("FLIGHTS", "somebody"), ("OTHERS", "somebody"),
    ]  # fmt: skip
