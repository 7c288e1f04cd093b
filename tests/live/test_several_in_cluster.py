"""Several streams in a cluster, one server of which is away."""

import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import ApiError, DataLossError

from ..kits.reading import query
from ..kits.servers import DevCluster
from ..kits.streams import create, store

__all__ = ["query"]


def test_streams_whose_server_is_away_are_not_empty(query):
    """A stream without a leader is no empty one: waited for, then an error, then read on."""
    with DevCluster(3) as cluster:
        client = Client(parse_connection({"servers": cluster.urls}))
        js = JetStream(client)
        names = [f"t-{number}" for number in range(6)]
        for name in names:
            create(js, {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        store(client, [(f"{name}.{i}", b"x") for name in names for i in range(5)])
        several = query(servers=cluster.urls, streamPattern="t-*", requestTimeout="8s")
        several.drain()
        leaders = {info.name: info.cluster["leader"] for info in js.stream_infos(names)}
        away = next(server for server in cluster.servers if server.name in leaders.values())
        lost = {name for name, leader in leaders.items() if leader == away.name}
        away.stop()
        several.die()
        several.restart()

        with pytest.raises(ApiError, match="offline|no responders|timeout") as caught:
            several.plan()
        assert not isinstance(caught.value, DataLossError)
        left = js.streams_listed(lambda name: name in names)
        assert {name for name, info in left.items() if info is None} == lost
        assert all(info.last_seq == 5 for info in left.values() if info is not None)

        away.restart()
        js.stream_infos(names)  # asked until their leaders answer
        store(client, [(f"{name}.x", b"x") for name in names])
        several.restart()
        time.sleep(0.6)
        several.drain()
        client.close()

    found = sorted((row["stream"], row["sequence"]) for row in several.rows)
    assert found == [(name, sequence) for name in names for sequence in range(1, 7)]
