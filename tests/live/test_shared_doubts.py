"""Claims that may be another query's as well by the time they are kept: they are in no batch."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.readstream.shared import ahead as ahead_module
from pyspark_jetstream.readstream.shared import claimant as claimant_module
from pyspark_jetstream.readstream.shared import member as member_module

from ..conftest import connection_to
from ..kits import replicas
from ..kits.proxy import Proxy
from ..kits.reading import Query, hang_up
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import ack_pending, api, eventually, query

__all__ = ["query"]


def amid_a_claim(monkeypatch, servers, unsettle, count: int) -> None:
    """
    Of two queries on a stream whose messages are older than the ack wait one has just claimed ahead
    when the consumer is unsettled; the other one then reads what it is given. Each message is in
    one batch.
    """
    monkeypatch.setattr(member_module, "_SHORT", 0)
    client = Client(connection_to(servers[0]))
    js = JetStream(client)
    replicas.create(
        js, {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": count}
    )
    one, other = (
        Query(servers[0], stream="S", priorityPolicy="overflow", consumer="jobs", ackWait="3s",
              servers=",".join(server.url for server in servers), maxRecordsPerTrigger=10)
        for _ in "12"
    )  # fmt: skip
    try:
        replicas.publish(client, [(f"s.{number}", b"x") for number in range(60)])
        written = time.monotonic()
        assert one.step() == 10
        assert other.claim() is None or other.step() == 10
        eventually(lambda: time.monotonic() > written + 3.0)
        keep, claimed = ahead_module.keep, []

        def unsettled(*arguments):
            if not claimed:
                claimed.extend(claim.sequence for claim in arguments[2]["0"])
                unsettle(js)
                eventually(lambda: other.step() and set(claimed) <= set(other.sequences))
                hang_up()
            return keep(*arguments)

        monkeypatch.setattr(ahead_module, "keep", unsettled)
        assert one.plan() is not None
        eventually(lambda: claimed)
        one.commit()
        eventually(lambda: one.drain() or len({*one.sequences, *other.sequences}) == 60)

        assert len(claimed) == 10
        assert sorted(one.sequences + other.sequences) == list(range(1, 61))
        other.drain()
        assert ack_pending(js, "S") == 0
    finally:
        one.die()
        other.die()
        client.close()


@pytest.mark.parametrize("what", ["restart", "leader"])
def test_unsettled_amid_a_claim(monkeypatch, what):
    """
    A server that restarts, or a consumer's new leader, deals out again what was just dealt out, to
    another query.
    """
    if what == "leader":
        with DevCluster(3) as cluster:
            step_down = "CONSUMER.LEADER.STEPDOWN.S.jobs-0"
            amid_a_claim(monkeypatch, cluster.servers, lambda js: api(js, step_down), count=3)
    else:
        with DevServer() as server:
            amid_a_claim(monkeypatch, [server], lambda js: server.restart(), count=1)


def test_a_pull_that_lasts_longer_than_the_ack_wait(
    js, new_stream, publish, query, nats_server, monkeypatch
):
    """
    Over a slow link the first messages of a pull are another query's before its last ones arrive:
    they are in one batch, and smaller pulls come in time.
    """
    monkeypatch.setattr(claimant_module, "_LEAST_MESSAGES", 300)
    name = new_stream()
    with Proxy(nats_server.port, rate=70_000) as proxy:
        near = query(stream=name, ackWait="2s")
        assert near.claim() is None
        far = query(stream=name, servers=proxy.url)
        assert far.claim() is None
        publish([(f"{name}.x", b"", [("X", "x" * 600)])] * 300)
        eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 300)
        reading = threading.Thread(target=lambda: (far.step(), hang_up()))
        reading.start()
        eventually(lambda: ack_pending(js, name) == 300)
        eventually(lambda: near.step() and near.rows[0]["deliveries"] == 2)
        reading.join(60)
        eventually(lambda: near.drain() or len({*near.sequences, *far.sequences}) == 300)
        far.die()

    assert sorted(near.sequences + far.sequences) == list(range(1, 301))


def test_claims_that_are_let_go_count_as_no_delivery(
    js, new_stream, publish, query, nats_server, monkeypatch
):
    """
    `maxDeliver` counts batches: messages that came too late again and again, and were in none, are
    no dead letters.
    """
    monkeypatch.setattr(claimant_module, "_LEAST_MESSAGES", 300)
    name, dead = new_stream(), new_stream()
    with Proxy(nats_server.port, rate=50_000) as proxy:
        far = query(stream=name, servers=proxy.url, ackWait="1s", maxDeliver=1,
                    deadLetterSubject=f"{dead}.{{subject}}")  # fmt: skip
        try:
            assert far.claim() is None
            publish([(f"{name}.x", b"", [("X", "x" * 600)])] * 300)
            eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 300)
            eventually(
                lambda: far.step() and len(far.rows) + js.stream_info(dead).messages >= 300, 90
            )
        finally:
            far.die()
            hang_up()

    assert js.stream_info(dead).messages == 0
    assert max(row["deliveries"] for row in far.rows) > 1
    assert sorted(far.sequences) == list(range(1, 301))


def test_pulls_of_many_partitions_share_what_comes_in_time(
    new_stream, publish, query, nats_server, monkeypatch
):
    """
    Over a slow link six consumers are together asked for what comes within a third of the ack wait:
    no query claims, and lets go, for ever.
    """
    monkeypatch.setattr(claimant_module, "_LEAST_MESSAGES", 100)
    monkeypatch.setattr(claimant_module, "_PACE_MESSAGES", 50)
    turns = []
    doubtful = claimant_module.Claimant.doubtful

    def counted(claimant):
        turns.append(time.monotonic())
        assert len(turns) < 30, "it goes on and on"
        return doubtful(claimant)

    monkeypatch.setattr(claimant_module.Claimant, "doubtful", counted)
    name = new_stream()
    filters = ",".join(f"{name}.{number}" for number in range(6))
    with Proxy(nats_server.port, rate=100_000) as proxy:
        far = query(stream=name, subject=filters, servers=proxy.url, ackWait="2s")
        try:
            assert far.claim() is None
            publish([(f"{name}.{i % 6}", b"", [("X", "x" * 600)]) for i in range(1800)])
            assert far.plan() is not None
        finally:
            far.die()
            hang_up()
