"""Pins in a cluster of three: a new leader of a consumer knows of no pin."""

from __future__ import annotations

import json
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.tasks.ranges import RangeRead

from ..kits.clients import options
from ..kits.pins import Puller, Query
from ..kits.replicas import create, fill
from ..kits.servers import DevCluster
from ..kits.shared import api, eventually


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


def test_auto_in_a_cluster(cluster):
    """
    All servers hear of a consumer that is made: for some thousand messages none is, neither in a
    batch of a query nor in a range.
    """
    js = JetStream(Client(options(*cluster.urls.split(","), request_timeout_s=60.0)))
    create(js, {"name": "FEW", "subjects": ["FEW.>"], "allow_direct": True})
    fill(js, "FEW", 5_000)

    class All:
        url = cluster.urls

    query = Query(All, stream="FEW", consumer="q")
    found, read = query.batch(), query.progress()["read"]
    query.stop()
    ranged = JetStreamRangeReader(parse_read({"servers": cluster.urls, "stream": "FEW"}))
    (task,) = ranged.partitions()
    api(js, "STREAM.DELETE.FEW")
    js.client.close()

    assert found == list(range(1, 5_001))
    assert read == "consumer"
    assert isinstance(task.work, RangeRead)


def leader(js: JetStream, stream: str, consumer: str) -> str:
    """Who leads; "" while nobody does, or nobody can say."""
    answer = json.loads(js.client.request(f"{js.prefix}.CONSUMER.INFO.{stream}.{consumer}").data)
    return str(answer.get("cluster", {}).get("leader") or "")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["steps down", "dies"])
def test_a_new_leader_in_the_middle_of_a_batch(cluster, how):
    """
    The consumer's leader steps down, or is killed, while an attempt reads: the pin is gone with it,
    the attempt takes it again, and the batch has each message once; the progress tells.
    """
    admin = Client(options(*cluster.urls.split(","), request_timeout_s=60.0))
    js = JetStream(admin)
    name = f"PIN-{how.replace(' ', '-')}"
    create(js, {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3, "allow_direct": True})
    total = 60_000
    fill(js, name, total)

    class All:
        url = cluster.urls

    query = Query(All, stream=name, consumer="c", readMode="consumer", requestTimeout="60s")
    try:
        end, tasks = query.plan()
        batches = query.reader.read(tasks[0])
        found = next(batches).column("sequence").to_pylist()
        before = js.consumer_info(name, "c-0").pinned_id
        was = leader(js, name, "c-0")
        if how == "dies":
            down = next(server for server in cluster.servers if server.name == was)
            down.kill()
        else:
            api(js, f"CONSUMER.LEADER.STEPDOWN.{name}.c-0")
        for rows in batches:
            found += rows.column("sequence").to_pylist()
        after = js.consumer_info(name, "c-0").pinned_id
        now = leader(js, name, "c-0")
        seen = query.progress_with(lambda p: p["pinned"] == after, timeout_s=60.0)
    finally:
        query.stop()
        if how == "dies":
            down.restart()
            cluster.await_leader()
        api(js, f"STREAM.DELETE.{name}")
        admin.close()

    assert len(tasks) == 1
    assert found == list(range(1, total + 1))
    assert before and after and before != after
    assert how == "steps down" or was != now
    assert seen["strangers"] == 0
    if how == "steps down":
        assert seen["unpins"]["leader"] == 1, json.dumps(seen)


@pytest.mark.slow
def test_a_pin_is_forgotten_by_the_next_leader(cluster):
    """
    After a change of leaders nobody is pinned, without an advisory of its own; the next message
    goes to a pull that waits without an id.
    """
    admin = Client(options(*cluster.urls.split(","), request_timeout_s=60.0))
    js = JetStream(admin)
    create(js, {"name": "FORGET", "subjects": ["FORGET.>"], "num_replicas": 3})
    js.create_consumer(
        "FORGET",
        {"durable_name": "c", "ack_policy": "none", "priority_policy": "pinned_client",
         "priority_groups": ["spark"]},
    )  # fmt: skip

    class Any:
        url = cluster.urls.split(",")[0]

    def waits(puller: Puller) -> bool:
        """
        Pulls. While servers[0] has not heard of the leader's subscription, it says that nobody is
        there, though a leader is named.
        """
        puller.pull(1, expires_s=60.0)
        return puller.nothing() and js.consumer_info("FORGET", "c").num_waiting > 0

    old, new = Puller(Any, "FORGET", "c"), Puller(Any, "FORGET", "c")
    try:
        eventually(lambda: waits(old))
        js.publish("FORGET.a", b"1", [])
        first = old.next()
        pinned = js.consumer_info("FORGET", "c").pinned_id
        was = leader(js, "FORGET", "c")
        api(js, "CONSUMER.LEADER.STEPDOWN.FORGET.c")
        deadline = time.monotonic() + 60
        while leader(js, "FORGET", "c") in ("", was) and time.monotonic() < deadline:
            time.sleep(0.02)
        free = js.consumer_info("FORGET", "c").pinned_id
        eventually(lambda: waits(new))
        js.publish("FORGET.a", b"2", [])
        second = new.next(30.0)
    finally:
        old.close()
        new.close()
        api(js, "STREAM.DELETE.FORGET")
        admin.close()

    assert first[3] == b"1" and pinned == old.pin
    assert free == ""
    assert second[3] == b"2"
    assert new.pin not in ("", old.pin)
