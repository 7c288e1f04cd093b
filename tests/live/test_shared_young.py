"""Claims of messages that are new: the server need not note when they were delivered."""

from __future__ import annotations

import time

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.readstream.shared import claimant as claimant_module
from pyspark_jetstream.readstream.shared.claimant import Claimant
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls
from pyspark_jetstream.readstream.shared.claims import SharedConsumer

from ..conftest import connection_to
from ..kits.answers import answer
from ..kits.options import connection_of, sharing_of
from ..kits.proxy import Proxy, clock_moved
from ..kits.reading import Query
from ..kits.servers import DevServer
from ..kits.shared import eventually, numbered, query

__all__ = ["query"]


@pytest.mark.parametrize("young", [True, False])
def test_one_ack_a_message_that_is_new(
    js, new_stream, publish, query, nats_server, monkeypatch, young
):
    """
    On the wire: of a message that was stored in the last quarter of `ackWait` the server gets its
    ack, and before it "in progress" of one that is older.
    """
    if not young:
        monkeypatch.setattr(claimant_module, "_YOUNG", 1e9)
    name = new_stream()
    one = query(stream=name)
    assert one.claim() is None
    publish(numbered(name, 20))
    eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 20)
    spy = Client(connection_to(nats_server))
    try:
        seen = spy.connection.subscribe(f"$JS.ACK.{name}.>")
        spy.connection.ping(60.0)
        one.drain()
        spy.connection.send(wire.pub(f"$JS.ACK.{name}.end", b"end"))
        said = []
        while not said or said[-1] != b"end":
            said.append(bytes(answer(spy.connection, seen).data))
    finally:
        spy.close()

    kinds = [b"+ACK"] * 20 if young else [b"+WPI"] * 20 + [b"+ACK"] * 20
    assert said[:-1] == kinds
    assert one.sequences == list(range(1, 21))


@pytest.mark.parametrize("scans", [True, False])
@pytest.mark.parametrize(("hours", "young"), [(0, True), (1, False)])
def test_by_the_servers_clock(nats_server, new_stream, publish, monkeypatch, hours, young, scans):
    """
    How old a message is the clock says by which the server takes its claim for expired, whether
    claims are read many at a time or each for itself.
    """
    if not scans:
        monkeypatch.setattr(ClaimPulls, "scan", lambda *_: None)
    name = new_stream()
    with Proxy(nats_server.port, rewrite=clock_moved(hours)) as proxy:
        client = Client(connection_of(proxy.url))
        try:
            consumer = SharedConsumer(0, name, "jobs", None)
            one = Claimant(client, [consumer], sharing_of("overflow"), "g")
            one.join({"0": None})
            publish(numbered(name, 3))
            eventually(lambda: one.infos()["0"].num_pending == 3)
            assert len(one.claim(3, 0)["0"]) == 3
            assert one.is_young == young
        finally:
            client.close()


def test_a_server_that_restarts_keeps_claims_of_new_messages(tmp_path):
    """
    What a query has claimed and nothing has confirmed is nobody else's when the server restarts,
    which looks for expired claims within 1.5 s.
    """
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one, other = (
            Query(server, stream="S", priorityPolicy="overflow", consumer="jobs") for _ in "12"
        )
        try:
            assert one.claim() is None and other.claim() is None
            for i in range(40):
                client.request(f"s.{i}", b"x")
            eventually(lambda: js.consumer_info("S", "jobs-0").num_pending == 40)
            assert one.plan() is not None
            assert one.reader.driver.claimant.is_young
            server.restart()
            eventually(lambda: js.consumer_info("S", "jobs-0").num_ack_pending == 40)
            looked = time.monotonic()
            while time.monotonic() < looked + 2.0:
                assert other.step() == 0, "claims were dealt out again"
            one.commit()
            one.drain()

            assert one.sequences == list(range(1, 41))
            assert js.consumer_info("S", "jobs-0").num_ack_pending == 0
        finally:
            one.die()
            other.die()
            client.close()
