"""Shared consumers while servers restart, freeze, forget, or change their leaders."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    DataLossError,
    NotConnectedError,
    RequestTimeoutError,
)
from pyspark_jetstream.readstream.shared import ahead as ahead_module
from pyspark_jetstream.readstream.shared import claimpulls
from pyspark_jetstream.readstream.shared import member as member_module

from ..conftest import connection_to
from ..kits.reading import Query
from ..kits.replicas import create, publish
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import eventually
from ..kits.stores import Store


def test_the_server_restarts(tmp_path):
    """
    A server that restarts, and one that is frozen for a while, cost time and no message.
    """
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    maxRecordsPerTrigger=10)  # fmt: skip
        try:
            publish(client, [(f"s.{i}", b"x") for i in range(40)])
            one.step()
            one.plan()
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
        finally:
            one.die()
            client.close()


def test_a_server_that_does_not_answer(tmp_path, monkeypatch):
    """
    A frozen server ends in a typed error within `requestTimeout`.
    """
    monkeypatch.setattr(claimpulls, "_QUIET_S", 0.5)
    with DevServer() as server:
        client = Client(connection_to(server))
        JetStream(client).create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    requestTimeout="2s", connectTimeout="1s")  # fmt: skip
        try:
            assert one.claim() is None
            server.pause()
            with pytest.raises((RequestTimeoutError, NotConnectedError)):
                one.claim()
        finally:
            server.resume()
            one.die()
            client.close()


def test_a_killed_server_may_forget_deliveries(tmp_path, caplog, monkeypatch):
    """
    A server without replicas that is killed may have forgotten its last deliveries: acks of those
    are not answered, which is said and does not hold up the query. They are dealt out once more,
    and every message is read once.
    """
    monkeypatch.setattr(member_module, "_KEEP_S", 0.0)  # nothing is claimed ahead, of what is reset
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    maxRecordsPerTrigger=10)  # fmt: skip
        try:
            publish(client, [(f"s.{i}", b"x") for i in range(40)])
            one.step()
            one.plan()
            js.reset("S", "jobs-0", 11)  # as if the second batch had not been delivered
            one.commit()
            one.drain()

            assert sorted(one.sequences) == list(range(1, 41))
            assert "has forgotten 10 deliveries" in caplog.text
            assert js.consumer_info("S", "jobs-0").num_ack_pending == 0
        finally:
            one.die()
            client.close()


def test_a_server_that_restarts_in_a_claim_ahead(tmp_path, monkeypatch):
    """
    A server that restarts takes claims of old messages for expired, and deals out again what a
    query has just claimed ahead: it comes to that query, which knows it, and is in one batch.
    """
    monkeypatch.setattr(member_module, "_SHORT", 0)
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs", ackWait="3s",
                    maxRecordsPerTrigger=10)  # fmt: skip
        try:
            publish(client, [(f"s.{i}", b"x") for i in range(60)])
            written = time.monotonic()
            assert one.step() == 10
            eventually(lambda: time.monotonic() > written + 3.0)
            keep, info = ahead_module.keep, []

            def restarting(*arguments):
                if not info:
                    server.restart()
                    # the restored consumer looks for expired claims within 1.5 s
                    eventually(lambda: js.consumer_info("S", "jobs-0").num_ack_pending >= 10)
                    looked = time.monotonic()
                    eventually(lambda: time.monotonic() > looked + 1.5)
                    info.append(arguments[2])
                return keep(*arguments)

            monkeypatch.setattr(ahead_module, "keep", restarting)
            assert one.plan() is not None
            eventually(lambda: info)
            assert [claim.sequence for claim in info[0]["0"]] == list(range(21, 31))
            one.commit()
            eventually(lambda: one.drain() or len(set(one.sequences)) == 60)

            assert sorted(one.sequences) == list(range(1, 61))
            assert js.consumer_info("S", "jobs-0").num_ack_pending == 0
        finally:
            one.die()
            client.close()


def test_leader_changes_in_a_cluster(monkeypatch):
    """
    On three replicas the leaders of stream and consumer change between and during batches, not
    during claims; each message is claimed once.
    """
    monkeypatch.setattr(member_module, "_KEEP_S", 0.0)  # nothing is claimed ahead, at any time
    with DevCluster(3) as cluster:
        client = Client(connection_to(cluster.servers[0]))
        js = JetStream(client)
        create(js, {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": 3})
        options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs",
                   "servers": cluster.urls, "maxRecordsPerTrigger": 15}  # fmt: skip
        queries = [Query(cluster.servers[0], **options) for _ in range(2)]
        try:
            publish(client, [(f"s.{i}", b"x") for i in range(150)])
            for turn in range(6):
                one = queries[turn % 2]
                one.plan()
                kind = "CONSUMER" if turn % 3 else "STREAM"
                what = "S.jobs-0" if turn % 3 else "S"
                client.request(f"{js.prefix}.{kind}.LEADER.STEPDOWN.{what}", b"")
                if len(one.planned) > one.committed:
                    one.commit()

            def drained() -> bool:
                for one in queries:
                    one.drain()
                return sum(len(one.rows) for one in queries) >= 150

            eventually(drained, 240)
            assert sorted(s for one in queries for s in one.sequences) == list(range(1, 151))
        finally:
            for one in queries:
                one.die()
            client.close()


@pytest.mark.slow
def test_a_new_leader_keeps_claims_of_messages_older_than_the_ack_wait():
    """
    A query has claimed messages that were stored longer ago than the ack wait when the consumer
    gets another leader, which looks for expired claims 1.5 s later at the latest: it finds none.
    """
    with DevCluster(3) as cluster:
        client = Client(connection_to(cluster.servers[0]))
        js = JetStream(client)
        create(js, {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": 3})
        options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs",
                   "servers": cluster.urls, "ackWait": "6s"}  # fmt: skip
        one, other = (Query(cluster.servers[0], **options) for _ in range(2))
        try:
            publish(client, [(f"s.{i}", b"x") for i in range(40)])
            written = time.monotonic()
            eventually(lambda: time.monotonic() > written + 6.5, 20)
            assert one.plan() is not None
            client.request(f"{js.prefix}.CONSUMER.LEADER.STEPDOWN.S.jobs-0", b"")
            looked = time.monotonic()
            while time.monotonic() < looked + 4.0:
                assert other.step() == 0, "claims were dealt out again"
            one.commit()
            assert one.sequences == list(range(1, 41))
        finally:
            one.die()
            other.die()
            client.close()


@pytest.mark.parametrize("run", ["runs on", "starts again"])
@pytest.mark.parametrize("option", ["stream", "streamPattern"])
def test_a_stream_that_was_taken_back_and_outgrew_what_was_acknowledged(tmp_path, run, option):
    """
    What was acknowledged of a stream says nothing of the messages that have its sequences since the
    stream came back with an older store: with failOnDataLoss=false they are read, each of them.
    """
    store = Store(tmp_path)
    client = Client(connection_to(store.server))
    try:
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        reader = Query(
            store.server, priorityPolicy="overflow", consumer="jobs", ackWait="5s",
            maxRecordsPerTrigger=20, failOnDataLoss="false" if run == "runs on" else "true",
            **{option: "S" if option == "stream" else "S*"},
        )  # fmt: skip
        reader.claim()
        for i in range(30):
            js.publish("S.a", b"m%d" % i, [])
        reader.drain()
        store.copy()
        for i in range(30, 60):
            js.publish("S.a", b"m%d" % i, [])
        reader.drain()
        assert len(reader.rows) == 60
        store.take_back("S")
        since = [b"n%d" % i for i in range(50)]
        for data in since:
            js.publish("S.a", data, [])
        if run == "starts again":
            with pytest.raises(DataLossError, match="older copy of it was restored"):
                reader.step()
            reader.restart(failOnDataLoss="false")

        eventually(lambda: reader.step() >= 0 and set(since) <= set(reader.data), 60)
        reader.die()
        assert sorted(data for data in reader.data if data in since) == sorted(since)
    finally:
        client.close()
        store.server.close()
