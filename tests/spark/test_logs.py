"""The option `logLevel`: what driver and tasks of a query write, and what Spark collects of it."""

import json
import os
import subprocess
import sys

import pytest

from pyspark_jetstream.client.connection import Client

from ..kits.options import connection_of
from ..kits.places import ROOT
from ..unit.test_logs import LINE


@pytest.mark.parametrize("level", ["debug", ""])
def test_the_log_of_a_query(nats_server, new_stream, tmp_path, level):
    """Driver and tasks log time, level, query, batch and task, by default warnings."""
    source = new_stream(allow_direct=True)
    target = new_stream()
    client = Client(connection_of(nats_server.url))
    client.connection.send(b"PUB %b.\xff 1\r\nx\r\n" % source.encode())
    client.connection.ping(60.0)
    client.close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.logged_query",
         nats_server.url, source, target, str(tmp_path), level],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    found = [match for line in done.stderr.splitlines() if (match := LINE.fullmatch(line))]
    told = {
        match.group("level", "batch", "task", "logger"): match["text"]
        for match in found
        if match["query"] == "orders by day"
    }
    collected = [
        json.loads(line.removeprefix("collected "))
        for line in done.stdout.splitlines()
        if line.startswith("collected ")
    ]
    ours = [each for each in collected if each["logger"].startswith("pyspark_jetstream.")]

    read = told["WARNING", "0", "0.0", "pyspark_jetstream.fetch.decoding.rows"]
    assert "no UTF-8" in read
    assert "no UTF-8" in next(each["msg"] for each in ours if each["level"] == "WARNING")
    assert ours[0]["context"]["task"] and ours[0]["context"]["batch"] == "-"
    assert done.stderr.count("no UTF-8") == 1  # of the query; that of the read is collected
    if level:
        written = told["INFO", "0", "driver", "pyspark_jetstream.write.sink"]
        assert "rows=1 acked=1" in written
    else:
        assert {which for which, *_ in told} == {"WARNING"}
        assert all(logger.endswith("decoding.rows") for *_, logger in told)
