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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.handover import reading
from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory, read_checkpoint
from pyspark_jetstream.operations.partitioning import partition_stream

from ..kits.partitions import layouts, stored
from ..kits.places import ROOT
from ..kits.seeds import fresh
from ..kits.servers import DevServer
from ..kits.sources import NewStream
from .changing_query import ALERT_EVERY

STATEFUL = Path(sys.prefix) / "stateful"
"""Where `make soak` puts what Spark needs for transformWithState."""

KEYS = 12
ROWS = 240
"""Of each turn of the query; its batches have a hundred at the most."""

FIRST = 1_700_000_010
"""The time of the first row; each next one is a tenth of a second later."""

WINDOW = 30

MOMENTS = ("start", "batch", "change", "switch")
"""
Of a kill: at the start of a turn; from its first batch on; from the first one on that knows to
which layout the query goes over, or in which it is there.
"""

PATIENCE_S = 900
"""For one turn of the query; it takes ten seconds on a machine that has nothing else to do."""


class Writer:
    """
    Publishes `<name>.<key>.x`: a number per key, and a time; as many messages as each turn of the
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


class Driver:
    """The process that runs the query, turn after turn; where there is none, a turn starts one."""

    def __init__(self, home: Path, out: str) -> None:
        self._home = home
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._turns = 0

    def begin(self, source: dict[str, str], ends: bool = False) -> None:
        """Begins a turn; the one before has ended."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps([source, ends]).encode() + b"\n")
        self._process.stdin.flush()
        self._turns += 1

    def end(self, source: dict[str, str]) -> None:
        """A whole turn, which reads what is there by now."""
        self.begin(source, ends=True)
        done = self._home / "done"
        self.wait(lambda: done.exists() and done.read_text() == str(self._turns))

    def wait(self, until: Callable[[], bool]) -> None:
        """Waits for that; the process must live meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the process with all that it has started, if there is one."""
        process, self._process, self._turns = self._process, None, 0
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()

    @property
    def _log(self) -> Path:
        return self._home / "log"

    def _start(self) -> None:
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(STATEFUL)]),
        }
        script = Path(__file__).with_name("changing_query.py")
        (self._home / "done").unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), self._out, str(self._home)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip


def planned(home: Path) -> tuple[int, dict[str, Any]]:
    """The batch that was planned last, and its end; -1 before there is one."""
    if not (home / "query" / "metadata").exists():
        return -1, {}
    checkpoint = read_checkpoint(LocalDirectory(home / "query"))
    if checkpoint.planned is None:
        return -1, {}
    return checkpoint.planned, checkpoint.planned_offsets["0"]


def partitions(home: Path) -> int:
    """How many partitions the query has by now."""
    return len(planned(home)[1].get("sequences", ()))


def is_moment(home: Path, moment: str, before: int, n: int) -> bool:
    """Whether a moment of `MOMENTS` has come in a turn that began behind that batch."""
    if moment == "start":
        return True
    batch, offset = planned(home)
    is_there = len(offset.get("sequences", ())) == n
    comes = {"batch": True, "change": is_there or "change" in offset, "switch": is_there}
    return batch > before and comes[moment]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.timeout(7200))])
def test_partitions_change_while_drivers_die(
    nats_server: DevServer, js: JetStream, new_stream: NewStream, tmp_path: Path, kills: int
) -> None:
    """
    From 4 to 8 to 3 partitions, and on as long as drivers are killed with SIGKILL at random moments
    around the change, while a writer goes on: each row is in its window once, in the order of
    its subject, each window is emitted once, and each alert falls once, on the row that makes it,
    under the checkpoint that the query began with.
    """
    origin, out = new_stream(), new_stream()
    rng = random.Random(f"{fresh(__name__)} {kills}")
    moments = MOMENTS if kills > 1 else ("change",)
    plans = {n: layouts(origin, n, "filtered" if n == 3 else "streams") for n in (4, 8, 3)}
    common = {"servers": nats_server.url, "maxRecordsPerTrigger": "100"}
    sources = {n: common | reading(plan) for n, plan in plans.items()}
    writer, driver = Writer(js, origin), Driver(tmp_path, out)
    try:
        for plan in plans.values():
            partition_stream(js, plan)
        for n in itertools.cycle(plans):
            for _ in range(min(kills, rng.randint(1, 3)) if partitions(tmp_path) else 0):
                kills -= 1
                before, moment = planned(tmp_path)[0], rng.choice(moments)
                writer.write(ROWS)
                driver.begin(sources[n])
                driver.wait(lambda at=(moment, before, n): is_moment(tmp_path, *at))
                time.sleep(rng.uniform(0, 3))
                driver.kill()
            writer.write(ROWS)
            driver.end(sources[n])
            assert partitions(tmp_path) == n
            if n == 3 and not kills:
                break
        writer.stop()
        js.publish(f"{origin}.end.x", b"0 %d" % (FIRST + 10**6), [])
        for plan in plans.values():
            partition_stream(js, plan)
        driver.end(sources[3])
    finally:
        writer.stop()
        driver.kill()

    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for subject, messages in stored(js, origin).items():
        for n, at in (map(int, data.split()) for data in messages):
            expected[subject.split(".")[1], at // WINDOW * WINDOW].append(n)
    emitted = []
    for subject, messages in stored(js, out).items():
        for data in messages:
            window, alerts = (list(map(int, part.split())) for part in data.split(b"alerts"))
            emitted.append((subject.split(".")[1], *window))
            assert alerts == [n for n in window[1:] if n % ALERT_EVERY == ALERT_EVERY - 1]
    assert sorted(emitted) == sorted(
        (key, at, *numbers) for (key, at), numbers in expected.items() if key != "end"
    )
