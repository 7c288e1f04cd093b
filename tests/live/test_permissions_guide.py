"""The configuration of docs/guides/login.md: each user does its work, and nothing more."""

import json
import time
from contextlib import closing

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError, PermissionsError
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger

from ..kits.options import connection_of, sink_of
from ..kits.pins import pull
from ..kits.programs import main
from ..kits.reading import Query
from ..kits.shared import eventually
from .test_inboxes import guarded, login
from .test_throttle import Task

__all__ = ["guarded"]

PIN = {"priority_policy": "pinned_client", "priority_groups": ["spark"]}


@pytest.fixture
def admin(guarded):
    """Who may do everything, with the streams of the page."""
    js = JetStream(guarded[1]["admin"])
    for stream, subjects in (("FLIGHTS", ["flights.>"]), ("ALERTS", ["alerts.>"])):
        js.create_stream({"name": stream, "subjects": subjects, "allow_direct": True})
    for _ in range(5):
        js.publish("flights.a", b"x", [])
    return js


@pytest.fixture
def ops(guarded, monkeypatch, capsys):
    """A program as `ops` runs it: its status, and all that it says."""
    monkeypatch.setenv("JETSTREAM_PASSWORD", "ops-password")
    flags = ["--servers", guarded[0].url, "--user", "ops", "--inbox-prefix", "_INBOX.ops"]

    def run(*words):
        status = main([*words, *flags])
        said = capsys.readouterr()
        return status, said.out, said.err

    run.flags = flags
    return run


def test_ops_inspects(guarded, admin, ops):
    """One stream, and all that is Spark's on the server."""
    words = {"user": "reader", "password": "reader-password", "inboxPrefix": "_INBOX.reader"}
    query = Query(guarded[0], stream="FLIGHTS", consumer="c", directBelow="0", **words)
    query.batch()
    query.settle()
    eventually(lambda: admin.consumer_info("FLIGHTS", "c-0").num_waiting)
    running = ops("inspect", "--json")
    query.stop()
    Ledger(JetStream(guarded[1]["writer"])).ensure()
    one, everything = ops("inspect", "--stream", "FLIGHTS"), ops("inspect")

    assert running[0] == one[0] == everything[0] == 0, running[1]
    assert one[2] == everything[2] == ""
    assert "c-0" in one[1] and "c-0" in everything[1] and STREAM in everything[1]
    assert [each["runs"] for each in json.loads(running[1])["consumers"]] == [True]
    assert "query alerts does not run" not in one[1]


def test_ops_takes_a_pin_away(guarded, admin, ops):
    """`unpin` ends the pin that a reader holds."""
    admin.create_consumer(
        "FLIGHTS", {"durable_name": "c-0", "name": "c-0", "ack_policy": "none", **PIN}
    )
    with closing(Client(connection_of(guarded[0].url, **login("reader")))) as holder:
        pull(holder.connection, "FLIGHTS", "c-0")
        got = holder.connection.next_frame(time.monotonic() + 60)
        status, out, err = ops("unpin", "--stream", "FLIGHTS", "--consumer", "c")

    assert (status, err) == (0, "")
    assert dict(wire.parse_headers(got.headers))["Nats-Pin-Id"] in out


def test_ops_throttles(guarded, admin, ops):
    """`throttle` finds the writer, and pauses it."""
    task = Task(guarded[0], sink_of(connection_of(guarded[0].url, **login("writer"))), ["alerts.a"])
    task.start()
    eventually(lambda: admin.stream_info("ALERTS").messages >= 500)
    found = ops("throttle", "producers", "--wait", "5s", "--json")
    words = ("pause", "--subject", "alerts.b", "--for", "4s", "--receipt-wait", "900ms", "--json")
    paused = ops("throttle", *words)
    task.finish()

    assert found[0] == paused[0] == 0 and found[2] == ""
    (producer,) = json.loads(found[1])["producers"]
    assert (producer["query"], producer["subjects"]) == ("orders", ["alerts.a"])
    assert json.loads(paused[1])["silent"] == []
    assert [each["receipts"] > 0 for each in json.loads(paused[1])["producers"]] == [True]


def test_ops_hears_the_metrics_of_reader_and_writer(guarded, admin):
    """The exporter as `ops` gets what both publish on `metricsSubject`."""
    hears = guarded[1]["ops"].connection
    hears.subscribe("spark.jetstream.metrics")
    hears.ping(60.0)
    for user in ("reader", "writer"):
        connection = guarded[1][user].connection
        connection.send(wire.pub("spark.jetstream.metrics", user.encode()))
        connection.ping(60.0)
    heard = [hears.next_frame(time.monotonic() + 60) for _ in range(2)]

    assert sorted(bytes(frame.data) for frame in heard) == [b"reader", b"writer"]


READ = ["$JS.API.STREAM.INFO.{}", "$JS.API.STREAM.MSG.GET.{}", "$JS.API.DIRECT.GET.{}"]
CHANGE = ["$JS.API.STREAM.{}.{}".format(each, "{}") for each in ("UPDATE", "DELETE", "PURGE")]
CHANGE += ["$JS.API.STREAM.MSG.DELETE.{}"]
LISTS = ["$JS.API.STREAM.LIST", "$JS.API.INFO"]
CONSUME = ["$JS.API.CONSUMER.CREATE.{}.x", "$JS.API.CONSUMER.MSG.NEXT.{}.x"]


def of(*names):
    """These requests about these streams."""
    return [
        each.format(name) for *requests, name in names for request in requests for each in request
    ]


FORBIDDEN = {
    "reader": [
        "flights.a", "alerts.a", "$KV.SPARK_LEDGER.q.committed", "spark.jetstream.throttle",
        "$JS.API.STREAM.NAMES", "$JS.API.CONSUMER.LIST.FLIGHTS", *LISTS,
        *of((CHANGE, "FLIGHTS"), (READ, CHANGE, CONSUME, "ALERTS")),
        *of((READ, CHANGE, "KV_SPARK_LEDGER")),
    ],
    "writer": [
        "flights.a", "spark.jetstream.throttle", "spark.jetstream.throttle.7",
        "$JS.API.STREAM.DELETE.KV_SPARK_LEDGER", "$JS.API.STREAM.UPDATE.KV_SPARK_LEDGER", *LISTS,
        *of((READ, CHANGE, CONSUME, "FLIGHTS"), (CHANGE, "ALERTS")),
    ],
    "ops": [
        "flights.a", "alerts.a", *LISTS,
        "$JS.API.STREAM.DELETE.KV_SPARK_LEDGER", "$JS.API.CONSUMER.DELETE.FLIGHTS.c-0",
        *of((CHANGE, CONSUME, "FLIGHTS"), (CHANGE, CONSUME, "ALERTS")),
    ],
}  # fmt: skip
"""What each user may not publish: the others' work, and whatever changes streams."""


@pytest.mark.parametrize("user", FORBIDDEN)
def test_a_user_does_nothing_more(guarded, admin, user):
    """Each of the others' subjects, and of those that change streams, the server refuses."""
    client, allowed = guarded[1][user], []
    hears = guarded[1]["admin"].connection
    hears.subscribe("_INBOX.*.x")
    for each in {"reader", "writer"} - {user}:
        client.connection.send(wire.pub(f"_INBOX.{each}.x", b"{}"))
    client.connection.ping(60.0)
    hears.send(wire.pub("_INBOX.end.x", b""))
    heard = hears.next_frame(time.monotonic() + 60)
    before = [admin.stream_info(name).last_seq for name in ("FLIGHTS", "ALERTS")]
    for subject in FORBIDDEN[user]:
        try:
            client.connection.send(wire.pub(subject, b"{}"))
            client.connection.ping(60.0)
            allowed.append(subject)
        except PermissionsError:
            client.drop()
        except JetStreamError as error:
            allowed.append(f"{subject}: {error!r}")

    assert allowed == []
    assert heard is not None and heard.subject == b"_INBOX.end.x"
    assert [admin.stream_info(name).last_seq for name in ("FLIGHTS", "ALERTS")] == before
