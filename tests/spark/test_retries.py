"""Tasks that fail and are run again by Spark: no row is lost or there twice."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ..kits.places import ROOT
from ..live.test_publisher import stored


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a job in a driver whose tasks may be tried four times; its result."""
    script = Path(__file__).with_name("retried_query.py")
    log = tmp_path_factory.mktemp("retries") / "log"
    with log.open("wb") as errors, subprocess.Popen(
        [sys.executable, str(script)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                          "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip

        def job(*words):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, log.read_text()[-4000:]
            return json.loads(answer)["result"]

        try:
            yield job
        finally:
            process.kill()


def test_a_failed_task_is_retried(run, new_stream, publish, nats_server, tmp_path):
    """A task that fails in the middle of its read and is retried loses and doubles nothing."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"m%d" % i) for i in range(30_000)])
    options = {"servers": nats_server.url, "stream": name, "partitions": 2,
               "partitionSubject": f"{name}.{{partition}}.>"}  # fmt: skip

    assert run("read", options, str(tmp_path)) == [30_000, 30_000, 1, 30_000]
    assert sorted(path.name for path in tmp_path.glob("failed-*")) == ["failed-0", "failed-1"]


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_a_retried_task_loses_and_doubles_nothing(run, how, nats_server, js, new_stream, tmp_path):
    """Every row is stored once; without ids some are there twice."""
    streams = [new_stream(), new_stream()]
    run("write", nats_server.url, streams, str(tmp_path), how)
    with_ids, without_ids = (
        Counter(data.rstrip() for _, data in stored(js, each)) for each in streams
    )

    assert with_ids == Counter(str(i).encode() for i in range(4000))
    assert set(without_ids) == set(with_ids)
    assert without_ids.total() > 4000
