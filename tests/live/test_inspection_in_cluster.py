"""What an inspection finds in a real cluster of which a server is gone."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.operations.inspect.looking import Inspector

from ..kits.options import connection_of
from ..kits.replicas import create
from ..kits.servers import DevCluster


@pytest.mark.slow
def test_a_server_that_is_gone():
    """
    The consumer that only that server had is shown as one of which no leader answers, beside the
    other ones.
    """
    with DevCluster(3) as cluster, closing(
        Client(connection_of(cluster.servers[0].url, request_timeout_s=60.0))
    ) as client:  # fmt: skip
        js = JetStream(client)
        create(js, {"name": "S", "subjects": ["S.>"], "num_replicas": 3})
        home = cluster.servers[0].name
        leader = js.stream_info("S").cluster["leader"]
        wanted = {server.name: server for server in cluster.servers if server.name != home}
        wanted.pop(leader, None)
        made = gone = ""
        names = []
        while not gone:  # until the cluster has put one where it can be taken away
            names.append(f"q-{len(names)}")
            assert len(names) < 60
            js.create_consumer(
                "S",
                {"durable_name": names[-1], "ack_policy": "none", "num_replicas": 1,
                 "priority_groups": ["g"], "priority_policy": "overflow"},
            )  # fmt: skip
            (answer,) = [a for a in js.consumer_list("S")[0] if a["name"] == names[-1]]
            if answer["cluster"]["leader"] in wanted:
                made, gone = names[-1], answer["cluster"]["leader"]
        inspector = Inspector(client, "S")
        before = inspector.look()
        wanted[gone].stop()
        deadline = time.monotonic() + 120
        while True:
            try:
                found = inspector.look()
                if found.problems:
                    break
            except JetStreamError as error:  # while another leader is elected
                assert error.retryable or "temporarily" in str(error), error
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    assert before.problems == []
    short = [problem.rpartition(": ")[0] for problem in found.problems]
    assert f"consumer S/{made}: no leader answers" in short
    assert sorted(each["consumer"] for each in found.consumers) == sorted(names)
