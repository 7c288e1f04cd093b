"""Followers that lag in a real cluster: a snapshot of three replicas is the leader's, always."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest

from pyspark_jetstream.client import Client
from pyspark_jetstream.devserver import DevCluster
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.options import ConnectionOptions

from .snapshotkit import as_dict, reader, reduced, rows

ROUNDS = 40


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_follower_that_lags_is_not_believed(cluster):
    """
    A follower is stopped, misses messages, goes on and answers direct gets before it has caught
    up, as single gets in between show. No snapshot of that moment holds an older value for it.
    """
    rng = random.Random(seed := int(os.environ.get("SEED", "5")))
    home, *others = cluster.servers  # who writes is connected to one that is never stopped
    options = ConnectionOptions((home.url,), request_timeout_s=30.0)
    admin, probe = Client(options), Client(options)
    js = JetStream(admin)
    js.create_stream(
        {"name": "LAG", "subjects": ["LAG.>"], "num_replicas": 3, "allow_direct": True}
    )
    history = {}
    lagged = 0

    def write(count):
        publishes = [
            (f"LAG.{rng.randrange(200)}", b"%d" % rng.randrange(10**9)) for _ in range(count)
        ]
        for (subject, data), reply in zip(publishes, admin.requests(publishes), strict=True):
            history[json.loads(reply.data)["seq"]] = {"subject": subject, "data": data}

    write(1_000)
    for _ in range(ROUNDS):
        leader = js._call("STREAM.INFO.LAG")["cluster"]["leader"]
        follower = rng.choice([each for each in others if each.name != leader])
        os.kill(follower.pid, signal.SIGSTOP)
        try:
            write(3_000)
        finally:
            os.kill(follower.pid, signal.SIGCONT)
        last = max(history)
        get = [("$JS.API.DIRECT.GET.LAG", b'{"seq":%d}' % last)] * 20
        lagged += sum(reply.status == 404 for reply in probe.requests(get))
        for up_to in (last, last - rng.randrange(3_000)):
            found = rows(reader(follower, stream="LAG", multiLast="LAG.*", upToSequence=up_to))
            assert as_dict(found) == reduced(history, [">"], up_to), f"seed {seed}, up to {up_to}"
        found = rows(reader(follower, stream="LAG", multiLast="LAG.*"))
        assert as_dict(found) == reduced(history, [">"], last), f"seed {seed}, now"
        if lagged > 5:
            break
    admin.close()
    probe.close()

    assert lagged, "no follower ever lagged: this test has shown nothing"
