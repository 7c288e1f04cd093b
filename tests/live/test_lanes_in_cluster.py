"""Writes into a stream of three replicas whose leader moves, or dies."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.task import write_task

from ..kits.options import connection_of, sink_of
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import eventually
from ..kits.streams import create, leader
from .test_publisher import check_in_order, stored

T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


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
    eventually(lambda: len(stored(js, name)) >= count)
    return stored(js, name)


COUNT = 30_000


def batches(name: str) -> Iterator[pa.RecordBatch]:
    """Rows on seven subjects."""
    for low in range(0, COUNT, 1500):
        rows = range(low, low + 1500)
        yield pa.record_batch({
            "subject": [f"{name}.{row % 7}" for row in rows], "data": [b"%d" % row for row in rows],
        })  # fmt: skip


def write(client: Client, name: str, blocks: Iterable[pa.RecordBatch], ids=True, strict=False):
    """The counts of one task."""
    options = sink_of(client.options, strict_order=strict)
    return write_task(client, options, blocks, TaskName(name, 0, 0), Ids(name) if ids else None)


@pytest.mark.parametrize("ids", [True, False])
def test_leaders_step_down_again_and_again(cluster, ids):
    """All rows are stored, with ids exactly once; without, none is missing."""
    name = f"STEPS-{int(ids)}"
    with replicated(cluster, name) as js, closing(client_of(*cluster.servers)) as client:
        done = threading.Event()

        def unsettle():
            while not done.wait(0.3):
                with suppress(JetStreamError):  # between two leaders there is none to step down
                    js.call(f"STREAM.LEADER.STEPDOWN.{name}")

        unrest = threading.Thread(target=unsettle)
        unrest.start()
        try:
            written = write(client, name, batches(name), ids)
        finally:
            done.set()
            unrest.join()
        found = [int(data) for _, data in settled(js, name, COUNT)]

    assert written.acked == COUNT
    assert sorted(found if ids else set(found)) == list(range(COUNT))


@pytest.mark.parametrize(
    ("victim", "strict"), [("leader", False), ("leader", True), ("connected", False)]
)
def test_a_server_of_the_cluster_dies(cluster, victim, strict):
    """Every row is stored once; in order if the leader stays, or where that is asked for."""
    name = f"DIE-{victim}-{int(strict)}"
    by_name = {server.name: server for server in cluster.servers}
    with replicated(cluster, name) as js:
        leading = by_name[leader(js, name)]
        others = [server for server in cluster.servers if server is not leading]
        near = others if victim == "leader" else [others[0], *cluster.servers]
        with closing(client_of(*near)) as client:
            dead = leading if victim == "leader" else by_name[client.connection.info["server_name"]]
            blocks = killing(cluster, dead, batches(name), after=8)
            written = write(client, name, blocks, strict=strict)
        found = settled(js, name, COUNT)

    assert written.acked == COUNT
    assert sorted(int(data) for _, data in found) == list(range(COUNT))
    if strict or victim != "leader":
        check_in_order(found, name, COUNT)


def test_changes_of_a_key_by_revision_that_follow_each_other(cluster):
    """A change that is refused while another one is under way goes again."""
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
    eventually(lambda: leader(js, "KV_CAS"))
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
