"""What waits for redelivery: told beside what was never delivered, and dealt out again later."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.operations.inspection import inspector
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.shared import member as member_module

from ..conftest import connection_to
from ..kits.answers import answer
from ..kits.options import connection_of
from ..kits.shared import ack_pending, eventually, numbered, query

__all__ = ["query"]


def take(js, name: str, messages: int) -> None:
    """Claims as a reader that is not heard of any more."""
    connection = js.client.connection
    connection.subscribe(inbox := connection.new_inbox())
    body = b'{"batch": %d, "no_wait": true, "group": "spark"}' % messages
    connection.send(wire.pub(f"{js.prefix}.CONSUMER.MSG.NEXT.{name}.jobs-0", body, inbox))


def test_what_nobody_holds_is_told(js, new_stream, publish, query, nats_server):
    """
    The lag is what nobody was dealt. Of the rest, progress and `inspect` tell how much is in no
    open batch.
    """
    name = new_stream()
    idle, busy = query(stream=name), query(stream=name)
    assert idle.plan() is None
    publish(numbered(name, 4))
    take(js, name, 4)
    eventually(lambda: ack_pending(js, name) == 4)
    publish(numbered(name, 10, start=4))
    busy.plan()

    def told():
        assert idle.plan() is None
        report = idle.reader.reportLatestOffset()["0"]
        return [report[key] for key in ("lag", "ackPending", "awaitingRedelivery")]

    eventually(lambda: told() == [0, 14, 4])
    client = Client(connection_of(nats_server.url))
    try:
        options = parse_stream({"servers": nats_server.url, "stream": name})
        (seen,) = Inspector(client, options, consumer="jobs").look().consumers
    finally:
        client.close()
    assert (seen.progress.lag, seen.progress.ack_pending, seen.progress.awaiting) == (0, 14, 4)
    busy.commit()
    assert busy.plan() is None
    eventually(lambda: told() == [0, 4, 4])


@pytest.mark.parametrize("streams", [1, 2])
def test_claims_of_a_query_that_does_not_run_are_told(
    js, new_stream, publish, query, nats_server, monkeypatch, streams
):
    """
    `inspect` names a query that holds claims and is not heard any more; none that runs, and none
    once its claims are acknowledged.
    """
    names = [new_stream() for _ in range(streams)]
    for name in names:
        publish(numbered(name, 10))
    one = query(stream=",".join(names))
    key, consumer = ("jobs", "jobs") if streams > 1 else (f"{names[0]}.jobs", "jobs-0")
    eventually(lambda: one.plan() is not None)

    def notes() -> set[tuple[str, str]]:
        client = Client(connection_of(nats_server.url))
        try:
            found = [
                note
                for name in names
                for note in Inspector(
                    client,
                    parse_stream({"servers": nats_server.url, "stream": name}),
                    consumer="jobs",
                )
                .look()
                .notes
            ]
        finally:
            client.close()
        return {tuple(re.split(r" was last heard -?[0-9]+ s ago, ", note)) for note in found}

    assert notes() == set()
    one.reader.stop()
    monkeypatch.setattr(inspector, "_SILENCE", timedelta(seconds=-60))  # the notice is old by now
    said = f"and still holds claims of {key}: other queries get them after its abandonAfter"
    assert notes() == {(f"query {one.planned[-1]['query']}", said)}
    one.restart()
    eventually(lambda: one.drain() or not sum(ack_pending(js, n, consumer) for n in names))
    assert notes() == set()


@pytest.mark.parametrize("delay", [None, "1h"])
def test_what_is_given_back_comes_later(
    js, new_stream, publish, query, nats_server, monkeypatch, delay
):
    """
    With `nakDelay` the server keeps what a query gives back for that time.
    """
    monkeypatch.setattr(member_module, "_SHORT", 0)
    name = new_stream()
    publish(numbered(name, 40))
    options = {"maxRecordsPerTrigger": 10} | ({"nakDelay": delay} if delay else {})
    one, two = query(stream=name, **options), query(stream=name)
    spy = Client(connection_to(nats_server))
    try:
        acks = spy.connection.subscribe(f"$JS.ACK.{name}.>")
        spy.connection.ping(60.0)
        assert one.step() == 10
        assert one.plan() is not None
        eventually(lambda: ack_pending(js, name) == 20)
        one.reader.stop()
        said = b""
        while not said.startswith(b"-NAK"):
            said = answer(spy.connection, acks).data
    finally:
        spy.close()
    if delay:
        assert said == b'-NAK {"delay": 3600000000000}'
        two.drain()
        assert len(two.sequences) == 10
    else:
        assert said == b"-NAK"
        eventually(lambda: two.drain() or len(two.sequences) == 20)
