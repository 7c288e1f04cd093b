"""Followers that lag in a real cluster: a snapshot of three replicas is the leader's, always."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.read import snapshot

from ..kits.options import connection_of
from ..kits.replicas import create, publish
from ..kits.servers import DevCluster
from ..kits.snapshots import as_dict, reader, reduced, rows

ROUNDS = 8
MISSED = 30_000
"""Messages of half a kilobyte that a follower misses: it takes some 100 ms to catch up."""


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("way", ["names", "back"])
def test_a_follower_that_lags_is_not_believed(cluster, monkeypatch, way):
    """No snapshot holds an older value for a follower that answers before it has caught up."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    rng = random.Random(seed := int(os.environ.get("SEED", "5")))
    home, *others = cluster.servers  # who writes is connected to one that is never stopped
    options = connection_of(home.url, request_timeout_s=30.0)
    admin, probe = Client(options), Client(options)
    js = JetStream(admin)
    name = f"LAG-{way}"
    create(js, {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3, "allow_direct": True})
    history: dict[int, dict] = {}
    lagged: list[int] = []

    def write(count):
        publishes = [
            (f"{name}.{rng.randrange(200)}", rng.randbytes(8) + bytes(500)) for _ in range(count)
        ]
        for (subject, data), sequence in zip(publishes, publish(admin, publishes), strict=True):
            history[sequence] = {"subject": subject, "data": data}

    def ask(seq, done):
        """Gets the last message, again and again, and counts who does not know it."""
        get = [(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % seq)] * 10
        while not done.is_set():
            lagged.append(sum(reply.status == 404 for reply in probe.requests(get)))

    for number in range(5 * ROUNDS):
        if number >= ROUNDS and any(lagged):
            break  # a busy machine asks too late in many of them
        js.call(f"STREAM.PURGE.{name}")
        history.clear()
        leader = js.call(f"STREAM.INFO.{name}")["cluster"]["leader"]
        follower = rng.choice([each for each in others if each.name != leader])
        os.kill(follower.pid, signal.SIGSTOP)
        try:
            if js.call(f"STREAM.INFO.{name}")["cluster"]["leader"] != leader:
                continue  # it led the stream by then, and thinks so when it goes on
            for _ in range(MISSED // 2_000):
                write(2_000)
        finally:
            os.kill(follower.pid, signal.SIGCONT)
        end = max(history)
        taken = []
        done = threading.Event()
        asking = threading.Thread(target=ask, args=(end, done))
        asking.start()
        try:
            for bound in ({"upToSequence": end - 1_000}, {}, {"upToSequence": end}) * 2:
                source = reader(home, stream=name, multiLast=f"{name}.*", **bound)
                taken.append((bound.get("upToSequence", end), as_dict(rows(source))))
        finally:
            done.set()
            asking.join()
        for up_to, found in taken:
            assert found == reduced(history, [">"], up_to), f"seed {seed}, up to {up_to} of {end}"
    js.call(f"STREAM.DELETE.{name}")
    admin.close()
    probe.close()

    assert any(lagged), "no follower ever lagged: this test has shown nothing"
