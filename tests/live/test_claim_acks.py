"""Acks of claims, and the heartbeats that keep them meanwhile."""

import socket
import time
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.errors import ConsumerNotFoundError
from pyspark_jetstream.readstream.shared import acks
from pyspark_jetstream.readstream.shared.acks import ACK, Heartbeats, ack
from pyspark_jetstream.readstream.shared.claims import SharedConsumer

from ..kits.options import connection_of
from ..kits.proxy import Proxy
from ..kits.shared import eventually
from ..kits.streams import delete_consumers
from .test_claimant import arrived, calm, claimant

__all__ = ["calm", "claimant"]


@pytest.fixture
def claimed(new_stream, publish, claimant):
    """A claimant of a stream with one message, and its claim of that."""
    name = new_stream()
    publish([(f"{name}.x", b"")])
    one = claimant(name, policy="overflow")
    (claim,) = one.claim(1, 30.0)[0]
    return one, claim


def test_acks_that_nobody_takes_are_no_acks(js, new_stream, publish, claimant, monkeypatch):
    """Acks while no leader is there are sent again; that the consumer is gone is an error."""
    name = new_stream()
    publish([(f"{name}.x", b"")])
    one = claimant(name, policy="overflow")
    (claim,) = one.claim(1, 30.0)[0]
    request, seen = Connection.request, []

    def elsewhere(self, subject, data, timeout_s):
        if data == ACK:
            seen.append(subject)
        return request(self, "nobody.is.here" if len(seen) <= 2 else subject, data, timeout_s)

    monkeypatch.setattr(Connection, "request", elsewhere)
    ack(js.client, one.consumers[0], [claim.sequence], ACK)

    assert len(seen) == 3
    assert js.consumer_info(name, "jobs").num_ack_pending == 0
    delete_consumers(js, [(name, "jobs")])
    with pytest.raises(ConsumerNotFoundError, match="jobs"):
        ack(js.client, one.consumers[0], [claim.sequence], ACK)


def test_heartbeats_go_on_whatever_happens(claimed, nats_server, monkeypatch, caplog):
    """An unexpected error is logged, and the next heartbeats follow."""
    one, claim = claimed
    fails, beat, told = iter([ValueError("surprise")] * 2), Heartbeats._beat, []

    def failing(self, held):
        if (error := next(fails, None)) is not None:
            raise error
        beat(self, held)
        told.append(held)

    monkeypatch.setattr(Heartbeats, "_beat", failing)
    with closing(Heartbeats(connection_of(nats_server.url), 0.05)) as beats:
        beats.hold(one.consumers[0], [claim.sequence])
        eventually(lambda: "surprise" in caplog.text)
        eventually(lambda: one.consumers[0] in (told[-1] if told else {}))


def test_heartbeats_of_one_consumer_do_not_wait_for_others(
    new_stream, publish, claimant, nats_server
):
    """While four consumers do not answer, the claims of the fifth are kept."""
    name = new_stream()
    publish([(f"{name}.x", b"")])
    one = claimant(name, policy="overflow", ack_wait_s=6.0)
    (claim,) = one.claim(1, 30.0)[0]
    silent = [SharedConsumer(1 + n, name, f"silent{n}", None) for n in range(4)]
    deaf = Client(connection_of(nats_server.url))
    for consumer in silent:
        deaf.connection.subscribe(f"{consumer.acks}.>")
    deaf.connection.ping(30.0)
    with closing(deaf), closing(Heartbeats(connection_of(nats_server.url), 2.0)) as beats:
        for consumer in silent:
            beats.hold(consumer, [1])
        beats.hold(one.consumers[0], [claim.sequence])
        until = time.monotonic() + 18
        while time.monotonic() < until:
            assert one.claim(1, 0.2) == {0: []}


class SlowUp(Proxy):
    """What clients write is 100 kB/s on its way, however much it is."""

    def _up(self, client, server, index):
        with suppress(OSError):
            while data := client.recv(1 << 14):
                time.sleep(len(data) / 100_000)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)


def test_acks_that_are_long_on_their_way(
    js, new_stream, publish, claimant, nats_server, monkeypatch
):
    """Acks that are slow on their way go in smaller writes, and end no query."""
    monkeypatch.setattr(acks, "_ATTEMPT_S", 6.0)
    monkeypatch.setattr(acks, "_FEW", 1000)
    name = new_stream()
    one = claimant(name, policy="overflow")
    publish([(f"{name}.x", b"")] * 20_000)
    arrived(js, name, 20_000)
    sequences = [claim.sequence for claim in one.claim(20_000, 0)[0]]
    assert len(sequences) == 20_000
    port = int(nats_server.url.rpartition(":")[2])
    with SlowUp(port) as link:
        near = replace(connection_of(nats_server.url), servers=(link.url,), request_timeout_s=8.0)
        client = Client(near)
        try:
            ack(client, one.consumers[0], sequences)
        finally:
            client.close()
    assert js.consumer_info(name, "jobs").num_ack_pending == 0
