"""The lanes of batches on a stream of three replicas whose leader moves, or dies."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest
from pyspark_jetstream.publish.lanes.atomiclane import AtomicLane
from pyspark_jetstream.publish.lanes.fastlane import FastLane

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.write.exactlyonce.ids import Ids
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.task import write_task

from ..kits.lanedriver import Driver, check_in_order, offers
from ..kits.lanes import FixedLimit, terms
from ..kits.options import connection_of, sink_of
from ..kits.replicas import create
from ..kits.servers import DevCluster
from ..kits.shared import eventually
from .test_publisher import stored


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


def leader(js: JetStream, stream: str) -> str:
    return js.call(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") or ""


def replicated(js: JetStream, name: str) -> None:
    """A stream of three replicas that takes batches."""
    create(
        js,
        {
            "name": name,
            "subjects": [f"{name}.>"],
            "num_replicas": 3,
            "allow_direct": True,
            "allow_batched": True,
            "allow_atomic": True,
        },
    )
    while not leader(js, name):
        time.sleep(0.05)


def settled(js: JetStream, name: str, count: int) -> list[tuple[str, bytes]]:
    """What is stored once all replicas that may answer have it."""
    while True:
        found = stored(js, name)
        if len(found) >= count:
            return found
        time.sleep(0.1)


def lane_of(kind):
    """Makes a lane for a prefix."""
    return lambda prefix: kind(prefix, terms(FixedLimit(4096), 32 << 20))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FastLane, AtomicLane])
def test_a_leader_steps_down(cluster, kind):
    """
    The stream's leader steps down while rows are written: all are stored once, in order.
    """
    admin = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    client = Client(admin.options)
    js = JetStream(admin)
    name = f"STEP-{kind.__name__}"
    replicated(js, name)
    driver = Driver(client, lane_of(kind))

    def down():
        with suppress(JetStreamError):  # another election
            js.call(f"STREAM.LEADER.STEPDOWN.{name}")
            return True
        return False

    step = threading.Timer(0.3, lambda: eventually(down))
    step.start()
    driver.run(offers(name, 60_000, 3000))
    step.join()
    found = settled(js, name, 60_000)
    js.call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert driver.lane.tally.acked == 60_000
    check_in_order(found, name, 60_000)


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("kind", [FastLane, AtomicLane])
def test_leaders_step_down_again_and_again(cluster, kind, ids):
    """
    All rows are stored, with ids exactly once; without, none is missing.
    """
    admin = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    client = Client(admin.options)
    js = JetStream(admin)
    name = f"STEPS-{kind.__name__}-{int(ids)}"
    replicated(js, name)
    driver = Driver(client, lane_of(kind))
    done = threading.Event()

    def unsettle():
        while not done.wait(0.3):
            with suppress(JetStreamError):  # between two leaders there is none to step down
                js.call(f"STREAM.LEADER.STEPDOWN.{name}")

    unrest = threading.Thread(target=unsettle)
    unrest.start()
    try:
        driver.run(offers(name, 60_000, 3000, ids=ids))
    finally:
        done.set()
        unrest.join()
    found = [int(data) for _, data in settled(js, name, 60_000)]
    js.call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert driver.lane.tally.acked == 60_000
    assert sorted(found if ids else set(found)) == list(range(60_000))


def test_a_fast_batch_counts_a_row_that_another_is_storing(cluster):
    """
    Why rows that were sent never go in a batch again: while an id waits for a quorum, a plain
    publish and an atomic batch with it are told so, but a fast-ingest batch counts it as stored.
    """
    admin = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    js = JetStream(admin)
    replicated(js, "QUORUM")
    leading = leader(js, "QUORUM")
    followers = [server for server in cluster.servers if server.name != leading]
    (url,) = [server.url for server in cluster.servers if server.name == leading]
    client = Client(connection_of(url))
    connection = client.connection
    inbox = connection.new_inbox()
    connection.subscribe(f"{inbox}.>")
    head = [("Nats-Msg-Id", "x")]
    atomic = [
        *head,
        ("Nats-Batch-Id", "b"),
        ("Nats-Batch-Sequence", "1"),
        ("Nats-Batch-Commit", "1"),
    ]
    for each in followers:
        each.pause()
    try:
        for reply, headers in (
            ("first", head),
            ("again", head),
            ("atomic", atomic),
            ("b.9.fail.1.0.$FI", head),
        ):
            frame = wire.pub("QUORUM.a", b"", f"{inbox}.{reply}", wire.header_block(headers))
            connection.send(frame)
        connection.send(wire.pub("QUORUM.a", b"", f"{inbox}.b.9.fail.2.3.$FI"))
        heard = {}
        while len(heard) < 4:
            frame = connection.next_frame(time.monotonic() + 60)
            assert frame is not None, heard
            heard[frame.subject[len(inbox) + 1 :].decode()] = json.loads(frame.data)
    finally:
        for each in followers:
            each.resume()
    cluster.await_leader()
    admin.close()
    client.close()

    assert "first" not in heard
    assert heard["again"]["error"]["err_code"] == 10158
    assert heard["atomic"]["error"]["err_code"] == 10158
    assert heard["b.9.fail.1.0.$FI"]["type"] == "ack"
    assert heard["b.9.fail.2.3.$FI"]["count"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "connected"])
@pytest.mark.parametrize("kind", [FastLane, AtomicLane])
def test_a_server_of_the_cluster_dies(cluster, kind, victim):
    """
    The stream's leader, or the server the lane is connected to, is killed in the middle: every row
    is stored once, in order.
    """
    urls = cluster.urls.split(",")
    admin = Client(connection_of(*urls, request_timeout_s=30.0))
    js = JetStream(admin)
    name = f"DIE-{kind.__name__}-{victim}"
    replicated(js, name)
    by_name = {server.name: server for server in cluster.servers}
    leading = by_name[leader(js, name)]
    others = [server for server in cluster.servers if server is not leading]
    near = others if victim == "leader" else [others[0], *cluster.servers]
    client = Client(connection_of(*(server.url for server in near), request_timeout_s=30.0))
    driver = Driver(client, lane_of(kind))
    dead = leading if victim == "leader" else by_name[client.connection.info["server_name"]]
    killed = False

    def rows():
        nonlocal killed
        for number, each in enumerate(offers(name, 60_000, 3000)):
            yield each
            if number == 7:
                dead.kill()
                killed = True

    try:
        driver.run(rows())
    finally:
        if killed:
            dead.restart()
            cluster.await_leader()
    found = settled(js, name, 60_000)
    js.call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert driver.lane.tally.acked == 60_000
    check_in_order(found, name, 60_000)


def test_changes_of_a_key_by_revision_that_follow_each_other(cluster):
    """
    A leader refuses a change of a key while another one is on its way to the replicas, whatever
    revision it expects: it goes again.
    """
    client = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    js = JetStream(client)
    create(
        js,
        {
            "name": "KV_CAS",
            "subjects": ["$KV.CAS.>"],
            "num_replicas": 3,
            "max_msgs_per_subject": 64,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        },
    )
    while not leader(js, "KV_CAS"):
        time.sleep(0.05)
    options = sink_of(client.options, bucket="CAS", min_in_flight=64, max_in_flight=64)
    columns = {"key": ["a", "a"], "value": ["one", "two"], "revision": [0, 1]}
    try:
        name = TaskName("cas", 1, 0)
        written = write_task(client, options, [pa.record_batch(columns)], name, Ids("cas"))
        last = js.stream_info("KV_CAS").last_seq
    finally:
        js.delete_stream("KV_CAS")
        client.close()

    assert written is not None
    assert (written.acked, last) == (2, 2)
