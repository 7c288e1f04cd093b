"""The lanes of batches on a stream of three replicas whose leader moves, or dies."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_jetstream.atomic import AtomicLane
from pyspark_jetstream.client import Client
from pyspark_jetstream.devserver import DevCluster
from pyspark_jetstream.fastlane import FastLane
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.options import ConnectionOptions

from .lanedriver import Driver, check_in_order, offers
from .test_publisher import stored


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


def leader(js: JetStream, stream: str) -> str:
    return js._call(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") or ""


def replicated(js: JetStream, name: str) -> None:
    """A stream of three replicas that takes batches."""
    js.create_stream(
        {
            "name": name,
            "subjects": [f"{name}.>"],
            "num_replicas": 3,
            "allow_direct": True,
            "allow_batched": True,
            "allow_atomic": True,
        }
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


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("lane", [FastLane, AtomicLane])
def test_leaders_step_down(cluster, lane, ids):
    """
    The stream's leader steps down again and again while rows are written: all are stored, with
    ids exactly once and in order; without, none is missing.
    """
    admin = Client(ConnectionOptions(tuple(cluster.urls.split(",")), request_timeout_s=30.0))
    client = Client(admin.options)
    js = JetStream(admin)
    name = f"STEP-{lane.__name__}-{int(ids)}"
    replicated(js, name)
    driver = Driver(client, lambda prefix: lane(prefix, 4096, 32 << 20, 5.0, 120.0))
    done = threading.Event()

    def unsettle():
        while not done.wait(0.2):
            js._call(f"STREAM.LEADER.STEPDOWN.{name}")

    unrest = threading.Thread(target=unsettle)
    unrest.start()
    driver.run(offers(name, 60_000, 3000, ids=ids))
    done.set()
    unrest.join()
    found = settled(js, name, 60_000)
    js._call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert driver.lane.acked == 60_000
    assert {int(data) for _, data in found} == set(range(60_000))
    if ids:
        check_in_order(found, name, 60_000)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "connected"])
@pytest.mark.parametrize("lane", [FastLane, AtomicLane])
def test_a_server_of_the_cluster_dies(cluster, lane, victim):
    """
    The stream's leader, or the server the lane is connected to, is killed in the middle: every row
    is stored once, in order.
    """
    urls = cluster.urls.split(",")
    admin = Client(ConnectionOptions(tuple(urls), request_timeout_s=30.0))
    js = JetStream(admin)
    name = f"DIE-{lane.__name__}-{victim}"
    replicated(js, name)
    by_name = {server.name: server for server in cluster.servers}
    leading = by_name[leader(js, name)]
    others = [server for server in cluster.servers if server is not leading]
    near = others if victim == "leader" else [others[0], *cluster.servers]
    client = Client(ConnectionOptions(tuple(server.url for server in near), request_timeout_s=30.0))
    driver = Driver(client, lambda prefix: lane(prefix, 4096, 32 << 20, 5.0, 120.0))
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
    js._call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert driver.lane.acked == 60_000
    check_in_order(found, name, 60_000)
