"""Inboxes: where ours are (`inboxPrefix`), and that strangers are answered on inboxes only."""

import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import PermissionsError
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Reason,
    Receipt,
    ThrottleProducer,
)
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.task import write_task

from ..kits.options import connection_of, sink_of
from ..kits.places import ROOT
from ..kits.reading import Query
from ..kits.servers import DevServer
from ..kits.shared import eventually
from ..kits.streams import answer
from .test_throttle import CONTROL, Operator, Task

USERS = ("admin", "reader", "writer", "ops")
PREFIXES = {"reader": "_INBOX.reader", "writer": "_INBOX.writer", "ops": "_INBOX.ops"}


def example():
    """The server's configuration in docs/guides/login.md."""
    page = (ROOT / "docs" / "guides" / "login.md").read_text()
    found = re.search(r"^```conf\n(jetstream \{.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def guarded(monkeypatch, tmp_path):
    """A server with the page's users, and a client of each."""
    for user in USERS:
        monkeypatch.setenv(f"{user.upper()}_PASSWORD", f"{user}-password")
    with DevServer(example().replace('"nats-data"', json.dumps(str(tmp_path / "data")))) as server:
        clients = {user: Client(connection_of(server.url, **login(user))) for user in USERS}
        yield server, clients
        for client in clients.values():
            client.close()


def login(user):
    fields = {"user": user, "password": Secret(f"{user}-password")}
    return fields | ({"inbox_prefix": PREFIXES[user]} if user in PREFIXES else {})


def rows(count):
    yield pa.record_batch({
        "subject": pa.array([f"alerts.{i % 3}" for i in range(count)]),
        "data": pa.array([str(i) for i in range(count)]),
    })  # fmt: skip


def test_a_reply_subject_that_is_no_inbox_gets_no_answer(nats_server, js, new_stream):
    """Off an inbox a writer answers nobody; the pause counts, and the next is answered."""
    name = new_stream()
    ledger = Ledger(js)
    ledger.ensure()
    before = js.stream_info(STREAM).last_seq
    options = sink_of(connection_of(nats_server.url, inbox_prefix="answers"))
    task = Task(nats_server, options, [f"{name}.a"])
    task.start()
    operator = Operator(nats_server)
    operator.client.connection.ping(60.0)
    eventually(lambda: js.stream_info(name).messages >= 500)
    pause = ThrottleProducer(1, Reason.TopicProduceQuotaExceeded, 0.1, f"{name}.b").encode()
    for reply in (f"{name}.forged", "$KV.SPARK_LEDGER.q.committed", "_INBOX.a.*", "_INBOXES.a",
                  f"$JS.API.STREAM.PURGE.{name}"):  # fmt: skip
        for data in (DISCOVER, pause):
            operator.client.connection.send(wire.pub(CONTROL, data, reply))
    answered = operator.ask(pause)
    connection = operator.client.connection
    own = connection.subscribe("answers.here")
    connection.send(wire.pub(CONTROL, pause, "answers.here"))
    answer(connection, own)
    counts = task.finish()
    operator.client.close()

    assert answered is not None and answered[0] == Receipt(1, 7)
    assert counts.acked == counts.rows == js.stream_info(name).messages
    assert js.stream_info(STREAM).last_seq == before


def test_the_readmes_users(guarded):
    """With the page's permissions reads, writes and pauses work, and nobody hears another."""
    server, clients = guarded
    admin = JetStream(clients["admin"])
    for stream, subjects in (("FLIGHTS", ["flights.>"]), ("ALERTS", ["alerts.>"])):
        admin.create_stream({"name": stream, "subjects": subjects, "allow_direct": True})
    for _ in range(5):
        admin.publish("flights.a", b"x", [])
    words = {"user": "reader", "password": "reader-password", "inboxPrefix": "_INBOX.reader"}
    query = Query(server, stream="FLIGHTS", consumer="c", directBelow="0", **words)
    query.batch()
    query.stop()

    options = sink_of(connection_of(server.url, **login("writer")), ledger=True)
    Ledger(JetStream(clients["writer"])).ensure()
    name = TaskName("q", 0, 0)
    first = write_task(clients["writer"], options, rows(100), name, Ids("p"))
    again = write_task(clients["writer"], options, rows(100), name, Ids("p"))
    Ledger(JetStream(clients["writer"])).commit("q", 0, 1, {"rows": 100})

    task = Task(server, options, ["alerts.a"])
    task.start()
    eventually(lambda: admin.stream_info("ALERTS").messages >= 500)
    operator = Operator(server, **login("ops"))
    answered = operator.pause("alerts.b", 0.1)
    counts = task.finish()
    operator.client.close()

    assert query.sequences == [1, 2, 3, 4, 5]
    assert (first.acked, again.already_stored) == (100, 100)
    assert answered is not None and answered[0] == Receipt(1, Origin(7).producer_id)
    assert counts.acked == counts.rows
    for user, others in (("reader", "_INBOX.writer.>"), ("writer", "_INBOX.reader.>"),
                         ("writer", "_INBOX.ops.>"), ("reader", "_INBOX.>")):  # fmt: skip
        client = Client(replace(clients[user].options))
        client.connection.subscribe(others)
        with pytest.raises(PermissionsError):
            client.connection.ping(60.0)
        client.close()


@pytest.mark.parametrize("inbox", ['_INBOX.x"y', "_INBOX.xy'", "_INBOX.x"])
def test_an_inbox_that_the_user_may_not_publish_on_ends_no_write(guarded, inbox):
    """Whatever inbox a stranger names, the server forbids it, and the write goes on."""
    server, clients = guarded
    admin = JetStream(clients["admin"])
    admin.create_stream({"name": "ALERTS", "subjects": ["alerts.>"], "allow_direct": True})
    options = sink_of(connection_of(server.url, **login("writer")))
    task = Task(server, options, ["alerts.a"])
    task.start()
    eventually(lambda: admin.stream_info("ALERTS").messages >= 500)
    connection = clients["ops"].connection
    for number in range(1500):
        connection.send(wire.pub(CONTROL, DISCOVER, f"{inbox}{number}"))
    connection.ping(60.0)
    before = admin.stream_info("ALERTS").messages
    eventually(lambda: admin.stream_info("ALERTS").messages >= before + 500)
    counts = task.finish()

    assert counts.acked == counts.rows >= before
