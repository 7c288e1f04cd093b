"""Pulls from a shared consumer, and who of several that wait is served."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import NotConnectedError, ReadError
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.shared import claimant as claimant_module
from pyspark_jetstream.readstream.shared import claimpulls
from pyspark_jetstream.readstream.shared.acks import ACK, ack
from pyspark_jetstream.readstream.shared.claimant import Claimant
from pyspark_jetstream.readstream.shared.claims import SharedConsumer

from ..kits.options import connection_of
from ..kits.servers import DevCluster
from ..kits.shared import eventually
from ..kits.streams import create


def sharing_of(policy, **fields):
    """A query's part of a shared consumer; what a test says was asked for."""
    options = {"stream": "S", "consumer": "c", "priorityPolicy": policy}
    names = {"ack_wait_s": "ackWait", "max_ack_pending": "maxAckPending"}
    asked = frozenset(names[field] for field in fields if field in names)
    return replace(parse_stream(options).sharing, asked=asked, **fields)


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """However long the server takes to say that a pull is over, it is waited for."""
    monkeypatch.setattr(claimpulls, "_QUIET_S", 30.0)


@pytest.fixture
def claimant(nats_server):
    """Makes claimants of consumer `jobs` of a stream, each with its own connection."""
    clients = []

    def make(stream, client=None, **sharing):
        clients.append(client or Client(connection_of(nats_server.url)))
        consumer = SharedConsumer(0, stream, "jobs", None)
        each = Claimant(clients[-1], [consumer], sharing_of(**sharing), "g")
        each.join([None])
        return each

    yield make
    for client in clients:
        client.close()


def arrived(js, stream, n):
    """Waits until `jobs` knows of so many messages: it hears of them after the publisher does."""
    eventually(lambda: js.consumer_info(stream, "jobs").num_pending == n)


def waiting(js, stream):
    return js.consumer_info(stream, "jobs").num_waiting


@pytest.mark.parametrize("first_to_wait", [0, 1])
def test_work_goes_to_the_nearer_of_two_that_wait(js, new_stream, publish, claimant, first_to_wait):
    """Of two priorities that both wait the lower is served, though it came later (ADR-42)."""
    name = new_stream()
    both = [claimant(name, policy="prioritized", priority=p) for p in (1, 5)]
    found: dict[int, list] = {}

    def wait(index):
        found[index] = both[index].claim(1, 30.0)[0]

    threads = []
    for number, index in enumerate((first_to_wait, 1 - first_to_wait)):
        threads.append(threading.Thread(target=wait, args=(index,)))
        threads[-1].start()
        eventually(lambda n=number: waiting(js, name) == n + 1)
    publish([(f"{name}.x", b"1")])
    eventually(lambda: 0 in found)
    assert 1 not in found
    publish([(f"{name}.x", b"2")])
    for thread in threads:
        thread.join(60)

    assert [claim.sequence for claim in found[0]] == [1]
    assert [claim.sequence for claim in found[1]] == [2]


def test_the_farther_one_works_while_the_nearer_one_is_busy(js, new_stream, publish, claimant):
    """A query that runs a batch has no pull open: others get what comes meanwhile."""
    name = new_stream()
    near, far = (claimant(name, policy="prioritized", priority=p) for p in (0, 9))
    publish([(f"{name}.x", b"1")] * 3)
    arrived(js, name, 3)

    assert len(near.claim(2, 0)[0]) == 2
    assert waiting(js, name) == 0
    assert [claim.sequence for claim in far.claim(9, 0)[0]] == [3]


def test_a_pull_that_is_withdrawn_takes_nothing(js, new_stream, publish, claimant):
    """When a wait ends without a message, one that comes right after belongs to nobody."""
    name = new_stream()
    one = claimant(name, policy="overflow")
    for _ in range(50):
        assert one.claim(5, 0.002) == {0: []}
    publish([(f"{name}.x", b"1")])
    arrived(js, name, 1)

    assert js.consumer_info(name, "jobs").num_ack_pending == 0
    assert [claim.sequence for claim in one.claim(5, 0)[0]] == [1]


def test_what_comes_as_a_wait_ends_is_claimed(
    js, nats_server, new_stream, publish, claimant, monkeypatch
):
    """A message delivered after the last look and before the withdrawal belongs to the claim."""
    name = new_stream()
    client = Client(connection_of(nats_server.url))
    one = claimant(name, client, policy="overflow")
    connection = client.connection
    frames, calls = connection.next_frame, []

    def late(deadline):
        calls.append(deadline)
        if len(calls) > 1:
            return frames(deadline)
        publish([(f"{name}.x", b"1")])
        eventually(lambda: js.consumer_info(name, "jobs").num_ack_pending == 1)
        return None

    monkeypatch.setattr(connection, "next_frame", late)

    assert [claim.sequence for claim in one.claim(5, 30.0)[0]] == [1]


def test_the_shortest_ack_wait_counts(js, new_stream, nats_server):
    """Heartbeats follow the consumer that forgets first: by its ack wait, or by its backoff."""
    name = new_stream()
    shared = {"ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "overflow"}
    waits = [{"ack_wait": 7 * 10**9}, {"backoff": [5 * 10**9, 9 * 10**9]}, {}]
    for number, wait in enumerate(waits):
        js.create_consumer(name, {"durable_name": f"c{number}"} | shared | wait)
    consumers = [SharedConsumer(number, name, f"c{number}", None) for number in range(3)]
    found = []
    for some in (consumers, consumers[:1], consumers[2:]):
        one = Claimant(js.client, some, sharing_of("overflow"), "g")
        one.join([None] * len(one.consumers))
        found.append(one.ack_wait_s)

    assert found == [5, 7, 30]


def test_a_pull_that_is_refused(js, new_stream, publish, nats_server):
    """A status that says no more than that there is nothing ends a pull; a refusal is an error."""
    name = new_stream()
    publish([(f"{name}.x", b"1")])
    js.create_consumer(
        name,
        {"durable_name": "jobs", "ack_policy": "explicit", "priority_groups": ["g"],
         "priority_policy": "overflow", "max_expires": 10**9},
    )  # fmt: skip
    one = Claimant(js.client, [SharedConsumer(0, name, "jobs", None)], sharing_of("overflow"), "g")
    one.join([None] * len(one.consumers))

    assert len(one.claim(5, 0)[0]) == 1
    with pytest.raises(ReadError, match="409 Exceeded MaxRequestExpires"):
        one.claim(5, 30.0)


def test_pulls_leave_no_subscription(js, new_stream, publish, claimant, nats_server):
    """However a pull ends, the connection keeps nothing of it: a query runs for months."""
    name = new_stream()
    client = Client(connection_of(nats_server.url))
    one = claimant(name, client, policy="overflow")
    publish([(f"{name}.x", b"1")] * 30)
    for limit in (1, 5, 5, 50, 50, 50):
        one.claim(limit, 0)  # full, or nothing there
    one.claim(1, 0.01)  # waited for
    client.connection.ping(60.0)
    path = f"/connz?subs=1&cid={client.connection.info['client_id']}"
    (connection,) = nats_server.ask(path)["connections"]
    (own,) = connection["subscriptions_list"]

    assert own.endswith(".*")  # of answers to requests


def test_a_claim_ends_before_its_ack_wait(new_stream, publish, claimant, monkeypatch):
    """Where pulls are slow against the ack wait, a claim is smaller than asked for."""
    monkeypatch.setattr(claimant_module, "_ROUND_MESSAGES", 1)
    name = new_stream()
    publish([(f"{name}.x", b"")] * 5000)
    one = claimant(name, policy="overflow", ack_wait_s=60.0)
    looks = itertools.count(0.0, 0.05)  # by this clock each pull takes so long, and longer
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + next(looks))
    monkeypatch.setattr(claimant_module, "time", clock)
    claims = one.claim(5000, 30.0)[0]

    assert 0 < len(claims) < 5000
    assert {claim.deliveries for claim in claims} == {1}


def test_what_was_read_before_the_connection_broke_is_claimed(
    js, nats_server, new_stream, publish, claimant, monkeypatch
):
    """A connection that breaks within a pull costs what was on its way, not what is here."""
    name = new_stream()
    client = Client(connection_of(nats_server.url))
    one = claimant(name, client, policy="overflow")
    publish([(f"{name}.x", b"1")] * 30)
    arrived(js, name, 30)
    connection = client.connection
    fill = connection.fill
    filled = []

    def breaking(deadline, need=1):
        if filled:
            raise NotConnectedError("the server", "cable")
        while connection.buffer.count(b"$JS.ACK.") < 30:
            assert fill(deadline)
        connection.buffer = b"HMSG ".join(connection.buffer.split(b"HMSG ")[:21])
        filled.append(need)
        return True

    monkeypatch.setattr(connection, "fill", breaking)

    assert [claim.sequence for claim in one.claim(30, 0)[0]] == list(range(1, 21))
    assert js.consumer_info(name, "jobs").num_ack_pending == 30
    assert one.claim(30, 0) == {0: []}


def test_many_messages_in_one_claim(js, new_stream, publish, claimant):
    """A claim larger than one pull is complete."""
    name = new_stream()
    for _ in range(5):
        publish([(f"{name}.x", b"")] * 5000)
    one = claimant(name, policy="overflow")
    first, second = one.claim(23_000, 0)[0], one.claim(23_000, 0)[0]

    assert [claim.sequence for claim in first] == list(range(1, 23_001))
    assert [claim.sequence for claim in second] == list(range(23_001, 25_001))
    ack(js.client, one.consumers[0], [claim.sequence for claim in first + second], ACK)
    assert js.consumer_info(name, "jobs").num_ack_pending == 0


def test_waits_in_a_cluster_lose_nothing():
    """Through a server that does not lead the consumer no message goes to a pull that is over."""
    with DevCluster(3) as cluster:
        client = Client(connection_of(cluster.servers[0].url))
        js = JetStream(client)
        create(js, {"name": "S", "subjects": ["s.>"], "allow_direct": True})
        leader = js.stream_info("S").cluster["leader"]
        near = next(each for each in cluster.servers if each.name == leader)
        far = next(each for each in cluster.servers if each.name != leader)
        reader, writer = Client(connection_of(far.url)), Client(connection_of(near.url))
        one = Claimant(reader, [SharedConsumer(0, "S", "jobs", None)], sharing_of("overflow"), "g")
        try:
            eventually(lambda: one.join([None]) or one.joined)
            claimed: list[int] = []
            done = threading.Event()

            def poll():
                while not done.is_set():
                    claimed.extend(claim.sequence for claim in one.claim(50, 0.0005)[0])

            thread = threading.Thread(target=poll)
            thread.start()
            try:
                for _ in range(2000):
                    writer.connection.send(b"PUB s.x 0\r\n\r\n")
                    time.sleep(0.001)
                writer.request("s.x")
            finally:
                done.set()
                thread.join(60)
            while len(claimed) < 2001 and (last := one.claim(5000, 10.0)[0]):
                claimed += [claim.sequence for claim in last]
            delivered = js.consumer_info("S", "jobs").num_ack_pending

            assert sorted(claimed) == list(range(1, 2002))
            assert delivered == 2001
        finally:
            for each in (client, reader, writer):
                each.close()
