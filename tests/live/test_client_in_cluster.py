"""Reads from a real cluster whose leaders step down and whose servers die."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing, suppress

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ApiError, RequestTimeoutError

from ..kits.clients import options
from ..kits.servers import DevCluster
from ..kits.shared import eventually
from ..kits.streams import create, leader, store


def test_a_replica_that_knows_no_leader_is_not_believed():
    """STREAM.INFO of a replica that knows no leader is not taken for the stream's."""
    name, asked = "NOBODY", "$JS.API.STREAM.INFO.NOBODY"
    with (
        DevCluster(3) as cluster,
        closing(Client(options(cluster.servers[0].url, request_timeout_s=60.0))) as admin,
        closing(Client(options(cluster.servers[0].url, request_timeout_s=5.0))) as hasty,
    ):
        home, *others = cluster.servers
        js = JetStream(admin)
        create(js, {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3})
        eventually(lambda: leader(js, name))
        store(js.client, [(f"{name}.a", b"x" * 200)] * 10)
        while leader(js, name) == home.name:
            js.call(f"STREAM.LEADER.STEPDOWN.{name}")
            time.sleep(0.5)
        for other in others:
            os.kill(other.pid, signal.SIGSTOP)
        try:

            def state():
                with suppress(RequestTimeoutError):
                    found = json.loads(hasty.request(asked).data)
                    return found if "state" in found else None

            answer = eventually(state, 120)  # until the replica has missed its leader
            with pytest.raises(ApiError, match="10008"):
                JetStream(hasty).stream_info(name)
        finally:
            for other in others:
                os.kill(other.pid, signal.SIGCONT)
        found = js.stream_info(name).last_seq

    assert "leader" not in answer["cluster"]
    assert found == 10
