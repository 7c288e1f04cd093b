"""The lane of rows on a stream of three replicas whose leader moves, or dies."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.publish.lanes.lane import Lane
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
    """A stream of three replicas."""
    create(
        js,
        {
            "name": name,
            "subjects": [f"{name}.>"],
            "num_replicas": 3,
            "allow_direct": True,
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


def new_lane(prefix):
    """A lane with plenty of room."""
    return Lane(prefix, terms(FixedLimit(4096), 32 << 20))


@pytest.mark.slow
def test_a_leader_steps_down(cluster):
    """The stream's leader steps down while rows are written: all are stored once, in order."""
    admin = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    client = Client(admin.options)
    js = JetStream(admin)
    name = "STEP"
    replicated(js, name)
    driver = Driver(client, new_lane)

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
def test_leaders_step_down_again_and_again(cluster, ids):
    """All rows are stored, with ids exactly once; without, none is missing."""
    admin = Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))
    client = Client(admin.options)
    js = JetStream(admin)
    name = f"STEPS-{int(ids)}"
    replicated(js, name)
    driver = Driver(client, new_lane)
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "connected"])
def test_a_server_of_the_cluster_dies(cluster, victim):
    """
    The stream's leader, or the server the lane is connected to, is killed in the middle: every row
    is stored once, in order.
    """
    urls = cluster.urls.split(",")
    admin = Client(connection_of(*urls, request_timeout_s=30.0))
    js = JetStream(admin)
    name = f"DIE-{victim}"
    replicated(js, name)
    by_name = {server.name: server for server in cluster.servers}
    leading = by_name[leader(js, name)]
    others = [server for server in cluster.servers if server is not leading]
    near = others if victim == "leader" else [others[0], *cluster.servers]
    client = Client(connection_of(*(server.url for server in near), request_timeout_s=30.0))
    driver = Driver(client, new_lane)
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
