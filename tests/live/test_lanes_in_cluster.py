"""The lane of rows on a stream of three replicas whose leader moves, or dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

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
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import eventually
from .test_publisher import stored

T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


def leader(js: JetStream, stream: str) -> str:
    return js.call(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") or ""


@contextmanager
def replicated(cluster: DevCluster, name: str) -> Iterator[JetStream]:
    """A stream of three replicas, over a connection of its own."""
    with closing(Client(connection_of(*cluster.urls.split(","), request_timeout_s=30.0))) as admin:
        js = JetStream(admin)
        config = {"subjects": [f"{name}.>"], "num_replicas": 3, "allow_direct": True}
        create(js, {"name": name, **config})
        eventually(lambda: leader(js, name))
        yield js
        js.call(f"STREAM.DELETE.{name}")


def client_of(*servers: DevServer) -> Client:
    return Client(connection_of(*(each.url for each in servers), request_timeout_s=30.0))


def killing(cluster: DevCluster, server: DevServer, items: Iterable[T], after: int) -> Iterator[T]:
    """The items; the server dies behind so many of them, and is there again at the end."""
    killed = False
    try:
        for number, each in enumerate(items, start=1):
            yield each
            if number == after:
                server.kill()
                killed = True
    finally:
        if killed:
            server.restart()
            cluster.await_leader()


def settled(js: JetStream, name: str, count: int) -> list[tuple[str, bytes]]:
    """What is stored once all replicas that may answer have it."""
    while True:
        found = stored(js, name)
        if len(found) >= count:
            return found
        time.sleep(0.1)


def new_lane(prefix):
    """A lane with plenty of room."""
    return Lane(prefix, *terms(FixedLimit(4096), 32 << 20))


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False])
def test_leaders_step_down_again_and_again(cluster, ids):
    """All rows are stored, with ids exactly once; without, none is missing."""
    name = f"STEPS-{int(ids)}"
    with replicated(cluster, name) as js, closing(client_of(*cluster.servers)) as client:
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

    assert driver.lane.tally.acked == 60_000
    assert sorted(found if ids else set(found)) == list(range(60_000))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "connected"])
def test_a_server_of_the_cluster_dies(cluster, victim):
    """
    The stream's leader, or the server the lane is connected to, is killed in the middle: every row
    is stored once, and in order if the leader stays.
    """
    name = f"DIE-{victim}"
    by_name = {server.name: server for server in cluster.servers}
    with replicated(cluster, name) as js:
        leading = by_name[leader(js, name)]
        others = [server for server in cluster.servers if server is not leading]
        near = others if victim == "leader" else [others[0], *cluster.servers]
        with closing(client_of(*near)) as client:
            driver = Driver(client, new_lane)
            dead = leading if victim == "leader" else by_name[client.connection.info["server_name"]]
            driver.run(killing(cluster, dead, offers(name, 60_000, 3000), after=8))
        found = settled(js, name, 60_000)

    assert driver.lane.tally.acked == 60_000
    if victim == "leader":
        assert sorted(int(data) for _, data in found) == list(range(60_000))
    else:
        check_in_order(found, name, 60_000)


@pytest.mark.slow
def test_the_leader_dies_under_a_strict_write(cluster):
    """With `publishOrder=strict` every row is stored once, in the order of its subject."""
    count, name = 10_000, "DIE-strict"
    rows = pa.record_batch({
        "subject": [f"{name}.{row % 7}" for row in range(count)],
        "data": [b"%d" % row for row in range(count)],
    })  # fmt: skip
    batches = [rows.slice(low, 500) for low in range(0, count, 500)]
    with replicated(cluster, name) as js:
        dead = next(each for each in cluster.servers if each.name == leader(js, name))
        with closing(client_of(*(each for each in cluster.servers if each is not dead))) as client:
            written = write_task(
                client, sink_of(client.options, strict_order=True),
                killing(cluster, dead, batches, after=10), TaskName("strict", 0, 0), Ids("strict"),
            )  # fmt: skip
        found = settled(js, name, count)

    assert written is not None
    assert written.acked == count
    check_in_order(found, name, count)


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
