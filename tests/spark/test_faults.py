"""What must hold when things die: the driver, the server, the other attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ..kits.places import ROOT
from ..kits.shared import eventually

POINTS = [
    "before the write-ahead log",
    "after the write-ahead log",
    "after planning",
    "before the first row",
    "after some rows",
    "before the sink",
    "before the commit log",
    "before settling",
    "after settling",
]


def run_until_killed(home, run, fault, options):
    """One life of the query; its exit status."""
    environment = os.environ | {
        "FAULT_HOME": str(home),
        "FAULT": fault,
        "FAULT_RUN": f"run{run}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }
    script = Path(__file__).with_name("killed_query.py")
    with (home / f"log-{run}").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(options)],
            env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(600)
        finally:
            # The JVM's Python workers are orphans now; they are of this session and of no other.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def deliveries(home):
    """What each batch held, each time it was delivered."""
    found: dict[int, list[list[Any]]] = defaultdict(list)
    for path in sorted(home.glob("delivered-*")):
        if path.suffix != ".tmp":
            found[int(path.name.split("-")[1])].append(json.loads(path.read_text()))
    return found


@pytest.mark.parametrize(
    ("retention", "points"),
    [
        ("limits", [POINTS[6]]),
        ("limits", POINTS),
        ("workqueue", POINTS[4:8:2]),
        ("interest", POINTS[6:8]),
    ],
    ids=["limits", "limits-everywhere", "workqueue", "interest"],
)
def test_driver_killed_at_every_point(
    new_stream, publish, nats_server, js, tmp_path, retention, points
):
    """A driver killed at points of a micro-batch repeats the same rows, each message once."""
    name = new_stream(retention=retention)
    options = {
        "servers": nats_server.url, "stream": name, "partitions": 2,
        "partitionSubject": f"{name}.{{partition}}.>", "maxRecordsPerTrigger": 20,
        "consumer": "killed",
    }  # fmt: skip
    if retention == "interest":
        assert run_until_killed(tmp_path, 99, "", options) == 0  # makes the consumers
    total = 40 * (len(points) + 1)
    publish([(f"{name}.{i % 2}.x", b"m%d" % i) for i in range(total)])
    died = [run_until_killed(tmp_path, run, at, options) for run, at in enumerate(points)]
    ended = run_until_killed(tmp_path, 98, "", options)
    batches = deliveries(tmp_path)
    repeated = [attempts for attempts in batches.values() if len(attempts) > 1]
    rows = [tuple(row) for attempts in batches.values() for row in attempts[-1]]

    assert died == [-signal.SIGKILL] * len(points), (tmp_path / "log-0").read_text()[-2000:]
    assert ended == 0
    assert repeated, "no batch was ever delivered twice: the kills missed their points"
    assert all(attempt == attempts[0] for attempts in repeated for attempt in attempts)
    assert len(rows) == len(set(rows)) == total
    assert {data for _, _, data in rows} == {f"m{i}" for i in range(total)}


def test_driver_killed_amid_consumers_of_the_attempts_own(new_stream, nats_server, js, tmp_path):
    """Killed amid own consumers it has every message once, and leaves no consumer."""
    name = new_stream()
    frames = b"".join(
        b"PUB %b.x %d\r\nm%d\r\n" % (name.encode(), len(str(i)) + 1, i) for i in range(75_000)
    )
    js.client.connection.send(frames)
    eventually(lambda: js.stream_info(name).last_seq == 75_000)
    options = {
        "servers": nats_server.url, "stream": name, "maxRecordsPerTrigger": 25_000,
        "consumer": "killed",
    }  # fmt: skip
    points = [POINTS[4], POINTS[6]]
    died = [run_until_killed(tmp_path, run, at, options) for run, at in enumerate(points)]
    left = [each["name"] for each in js.consumer_list(name)[0]]
    ended = run_until_killed(tmp_path, 98, "", options)
    batches = deliveries(tmp_path)
    repeated = [attempts for attempts in batches.values() if len(attempts) > 1]
    rows = [tuple(row) for attempts in batches.values() for row in attempts[-1]]
    eventually(lambda: [e["name"] for e in js.consumer_list(name)[0]] == ["killed-0"], 180.0)

    assert died == [-signal.SIGKILL] * len(points), (tmp_path / "log-0").read_text()[-2000:]
    assert ended == 0
    assert any(each.startswith("spark-own-") for each in left), left
    assert repeated, "no batch was ever delivered twice: the kills missed their points"
    assert all(attempt == attempts[0] for attempts in repeated for attempt in attempts)
    assert len(rows) == len(set(rows)) == 75_000
    assert {data for _, _, data in rows} == {f"m{i}" for i in range(75_000)}
