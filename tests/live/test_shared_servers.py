"""Shared consumers while servers restart, freeze, forget, or change their leaders."""

import threading

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.options import connection_of
from ..kits.reading import Query
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import eventually
from ..kits.streams import create, store


@pytest.fixture
def served(tmp_path):
    """A server, its API, and a query with two batches of ten, of 40 messages, under way."""
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_of(server.url))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    maxRecordsPerTrigger=10)  # fmt: skip
        store(client, [(f"s.{i}", b"x") for i in range(40)])
        one.step()
        one.plan()
        yield server, js, one
        one.die()
        client.close()


def test_the_server_restarts(served):
    """A server that restarts, and one that is frozen for a while, cost time and no message."""
    server, js, one = served
    server.restart()
    one.commit()
    one.plan()
    server.pause()
    thawing = threading.Timer(2, server.resume)
    thawing.start()
    one.commit()
    # A claim whose answer was lost comes again after `ackWait`, which is two minutes.
    eventually(lambda: one.drain() or len(one.sequences) >= 40, 240)
    thawing.join()

    assert sorted(one.sequences) == list(range(1, 41))
    assert js.consumer_info("S", "jobs-0").num_ack_pending == 0


def test_a_killed_server_may_forget_deliveries(served, caplog):
    """Acks of deliveries that a killed server forgot are said, and hold nothing up."""
    _, js, one = served
    js.resets([("S", "jobs-0", 11)])  # as if the second batch had not been delivered
    one.commit()
    one.drain()

    assert sorted(one.sequences) == sorted([*range(1, 41), *range(11, 21)])
    assert "has forgotten 10 deliveries" in caplog.text
    assert js.consumer_info("S", "jobs-0").num_ack_pending == 0


def test_leader_changes_in_a_cluster(monkeypatch):
    """Leaders change between and during batches; no message is lost."""
    with DevCluster(3) as cluster:
        client = Client(connection_of(cluster.servers[0].url))
        js = JetStream(client)
        create(js, {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": 3})
        options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs",
                   "servers": cluster.urls, "maxRecordsPerTrigger": 15}  # fmt: skip
        queries = [Query(cluster.servers[0], **options) for _ in range(2)]
        try:
            store(client, [(f"s.{i}", b"x") for i in range(150)])
            for turn in range(6):
                one = queries[turn % 2]
                one.plan()
                kind = "CONSUMER" if turn % 3 else "STREAM"
                what = "S.jobs-0" if turn % 3 else "S"
                client.request(f"{js.prefix}.{kind}.LEADER.STEPDOWN.{what}", b"")
                if len(one.planned) > one.committed:
                    one.commit()

            def drained():
                for one in queries:
                    one.drain()
                return len({s for one in queries for s in one.sequences}) >= 150

            eventually(drained, 240)
            assert {s for one in queries for s in one.sequences} == set(range(1, 151))
        finally:
            for one in queries:
                one.die()
            client.close()
