"""The number of partitions changes under the checkpoint of a query whose drivers are killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.operations.handover import reading
from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory, read_checkpoint
from pyspark_jetstream.operations.partitioning import partition_stream

from ..kits.partitions import layouts, stored
from ..kits.places import ROOT
from ..kits.seeds import fresh
from ..kits.sources import NewStream

KEYS = 24
FIRST = 1_700_000_010
"""The time of the first row; each next one is a tenth of a second later."""

WINDOW = 30

PATIENCE_S = 900
"""For one life of the query; it takes ten seconds on a machine that has nothing else to do."""


class Writer:
    """
    Publishes `<name>.<key>.x`: a number per key, and a time; as many messages as each life of the
    query adds, so that none has to read more because the machine is busy.
    """

    def __init__(self, js: JetStream, name: str) -> None:
        self._client = Client(js.client.options)
        self._name = name
        self._stop = threading.Event()
        self._allowed = 0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        js = JetStream(self._client)
        for n in itertools.count():
            while n >= self._allowed and not self._stop.wait(0.02):
                pass
            if self._stop.is_set():
                return
            text = b"%d %d" % (n // KEYS, FIRST + n // 10)
            js.publish(f"{self._name}.k{n % KEYS}.x", text, [])
            self._stop.wait(0.005)

    def write(self, more: int) -> None:
        """Publishes so many more, in its thread."""
        self._allowed += more

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()


@contextmanager
def life(
    home: Path, source: dict[str, str], out: str, ends: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """One life of the query; whatever is left of it is killed."""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }
    script = Path(__file__).with_name("changing_query.py")
    words = [sys.executable, str(script), json.dumps([source, out, str(home / "query"), ends])]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(60)


def planned(home: Path) -> tuple[int, int]:
    """The batch that was planned last, and how many partitions it has; -1 before there is one."""
    if not (home / "query" / "metadata").exists():
        return -1, 0
    checkpoint = read_checkpoint(LocalDirectory(home / "query"))
    offsets = checkpoint.planned_offsets.get("0", {})
    return -1 if checkpoint.planned is None else checkpoint.planned, len(
        offsets.get("sequences", ())
    )


def wait_for_batch(process: subprocess.Popen[bytes], home: Path) -> None:
    """Waits until a batch is planned that was not; the query must not fail meanwhile."""
    before, deadline = planned(home)[0], time.monotonic() + PATIENCE_S
    while planned(home)[0] == before:
        assert process.poll() is None, (home / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 20])
def test_partitions_change_while_drivers_die(
    nats_server: DevServer, js: JetStream, new_stream: NewStream, tmp_path: Path, kills: int
) -> None:
    """
    From 4 to 8 to 3 partitions, and on as long as drivers are killed with SIGKILL at random moments
    around the change, while a writer goes on: each row is in its window once, in the order of
    its subject, and each window is emitted once, under the checkpoint that the query began with.
    """
    origin, out = new_stream(), new_stream()
    rng = random.Random(f"{fresh(__name__)} {kills}")
    plans = {n: layouts(origin, n, "filtered" if n == 3 else "streams") for n in (4, 8, 3)}
    common = {"servers": nats_server.url, "maxRecordsPerTrigger": "300"}
    sources = {n: common | reading(plan) for n, plan in plans.items()}
    writer = Writer(js, origin)
    try:
        for plan in plans.values():
            partition_stream(js.client.options, plan)
        for n in itertools.cycle(plans):
            for _ in range(min(kills, rng.randint(1, 3)) if (tmp_path / "query").exists() else 0):
                kills -= 1
                writer.write(700)
                with life(tmp_path, sources[n], out, False) as process:
                    if rng.random() < 0.8:
                        wait_for_batch(process, tmp_path)
                    time.sleep(rng.uniform(0, 5))
            if n == 3 and not kills:
                break
            writer.write(500)
            with life(tmp_path, sources[n], out, True) as process:
                assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()[-3000:]
            assert planned(tmp_path)[1] == n
    finally:
        writer.stop()
    js.publish(f"{origin}.end.x", b"0 %d" % (FIRST + 10**6), [])
    for plan in plans.values():
        partition_stream(js.client.options, plan)
    with life(tmp_path, sources[3], out, True) as process:
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    assert planned(tmp_path)[1] == 3

    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for subject, messages in stored(js, origin).items():
        for n, at in (map(int, data.split()) for data in messages):
            expected[subject.split(".")[1], at // WINDOW * WINDOW].append(n)
    emitted = [
        (subject.split(".")[1], *map(int, data.split()))
        for subject, messages in stored(js, out).items()
        for data in messages
    ]
    assert sorted(emitted) == sorted(
        (key, at, *numbers) for (key, at), numbers in expected.items() if key != "end"
    )
