"""A pause and a streaming query whose other subjects go on (`throttleParkStream`)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pyspark_jetstream.write import drainer

from ..kits.places import ROOT
from ..kits.seeds import fresh
from ..live.test_publisher import stored


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """The format, whatever PYTHONPATH Spark's workers have."""
    from pyspark_jetstream.datasource import JetStreamDataSource

    spark.dataSource.register(JetStreamDataSource)


def until(what, seconds=600.0):
    """Waits for it."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


class Throttle:
    """The program that pauses a subject, until it is told to end."""

    def __init__(self, server, subject):
        self._program = subprocess.Popen(
            [sys.executable, "jobs/throttle.py", "pause", "--subject", subject, "--for", "1h",
             "--servers", server.url, "--receipt-wait", "400ms"],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._program.stderr.readline()  # it is connected, and has asked who is there

    def end(self):
        self._program.terminate()
        self._program.communicate(timeout=60)


def query(spark, server, name, checkpoint, rows):
    """Rows of two subjects in turn."""
    return (
        rows.selectExpr(
            f"if(value % 2 = 0, '{name}.a', '{name}.b') as subject", "cast(value as string) as data"
        )
        .writeStream.format("jetstream")
        .options(
            servers=server.url, checkpointLocation=str(checkpoint), createStream="true",
            stream=name, streamSubjects=f"{name}.>", throttleParkStream=f"{name}_PARKED",
        )
        .trigger(processingTime="500 milliseconds")
        .start()
    )  # fmt: skip


def of(found, subject):
    return [int(data) for each, data in found if each == subject]


def test_a_paused_subject_does_not_hold_the_other(spark, nats_server, js, new_stream, tmp_path):
    """
    A query with a batch every 500 ms, one of whose two subjects is paused: the other one's rows are
    stored meanwhile. When the pause is over the paused rows follow, and all is there, once and in
    order.
    """
    name = new_stream()
    rows = (
        spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1).load()
    )
    one = query(spark, nats_server, name, tmp_path / "c", rows)
    try:
        until(lambda: js.stream_info(name).last_seq >= 20)
        throttle = Throttle(nats_server, f"{name}.a")
        until(lambda: js.stream_info(f"{name}_PARKED").last_seq > 0)
        begun = js.stream_info(name).last_seq
        until(lambda: js.stream_info(name).last_seq >= begun + 30)
        while_paused = stored(js, name)[begun : begun + 30]
        throttle.end()
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 0)
        ended = js.stream_info(name).last_seq
        until(lambda: js.stream_info(name).last_seq >= ended + 40)
    finally:
        one.stop()
    found = stored(js, name)

    assert Counter(subject for subject, _ in while_paused) == {f"{name}.b": 30}
    for place, subject in enumerate((f"{name}.a", f"{name}.b")):
        values = of(found, subject)
        assert values == list(range(place, place + 2 * len(values), 2))


def test_rows_go_out_though_no_batch_comes(spark, nats_server, js, new_stream, tmp_path):
    """
    A query whose input has ended amid a pause: when the pause is over its parked rows are stored,
    in order, without another batch.
    """
    name = new_stream()
    folder = tmp_path / "rows"
    spark.range(100).selectExpr("id as value").coalesce(1).write.parquet(str(folder))
    rows = spark.readStream.schema("value long").parquet(str(folder))
    throttle = Throttle(nats_server, f"{name}.a")
    one = query(spark, nats_server, name, tmp_path / "c", rows)
    try:
        until(lambda: len(one.recentProgress) and one.lastProgress["batchId"] >= 0
              and js.stream_info(name).last_seq == 50)  # fmt: skip
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 50)
        throttle.end()
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 0)
    finally:
        one.stop()

    found = stored(js, name)
    assert of(found, f"{name}.a") == list(range(0, 100, 2))
    assert of(found, f"{name}.b") == list(range(1, 100, 2))


class Driver:
    """A driver in a session of its own, and every process that it has started."""

    def __init__(self, home, run, options):
        self.mark = f"PARKING_RUN={home}/{run}"
        self._home = home
        (home / "pids").unlink(missing_ok=True)
        name, value = self.mark.split("=")
        with (home / f"log-{run}").open("wb") as log:
            self._program = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("parking_query.py"), home,
                 json.dumps(options)],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {name: value, "PYSPARK_PYTHON": sys.executable,
                                  "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def kill(self):
        """SIGKILL, the JVM and the driver's Python, as a power cut would."""
        until(lambda: len((self._home / "pids").read_text().split()) == 2)
        for pid in reversed((self._home / "pids").read_text().split()):
            os.kill(int(pid), signal.SIGKILL)
        self._program.wait(60)

    def stop(self):
        """Ends it as its user does."""
        (self._home / "stop").touch()
        assert self._program.wait(120) == 0
        (self._home / "stop").unlink()

    def processes(self):
        """The command lines of its processes that are alive, by their ids."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().split("\0")
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def end(self):
        """Leaves nothing behind, whatever has failed."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    @property
    def drains(self):
        """Whether its process that sends what is parked runs."""
        return any(drainer.__name__ in words for words in self.processes().values())


# Processes are told apart by their environment, which Linux alone shows; CI runs there, so nothing
# is skipped in it.
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(),
    reason="only Linux shows the environment of a process (/proc/<pid>/environ), by which those are"
    " found that a driver leaves behind",
)
@pytest.mark.parametrize(("kills", "seed"), [(k, s) for k in (1, 8) for s in fresh(__name__, 1)])
def test_drivers_are_killed_amid_parking(nats_server, js, new_stream, tmp_path, kills, seed):
    """
    A driver that is killed (SIGKILL) or stopped while it has rows parked, and while its process
    drains them, leaves no process behind; the next one goes on meanwhile. When the pause is over
    all rows are there, once and in the order of their subjects.
    """
    chance = random.Random(seed)
    name = new_stream()
    options = {
        "servers": nats_server.url, "createStream": "true", "stream": name,
        "streamSubjects": f"{name}.>", "throttleParkStream": f"{name}_PARKED",
        "logLevel": "info",
    }  # fmt: skip
    drivers: list[Driver] = []

    def parked():
        return js.stream_info(f"{name}_PARKED").messages

    def stored_rows():
        return js.stream_info(name).messages

    try:
        throttle = Throttle(nats_server, f"{name}.a")
        for run in range(kills + 1):
            drivers.append(Driver(tmp_path, run, options))
            until(lambda one=drivers[-1]: one.drains)
            rows = parked() if throttle is not None else stored_rows()
            count = parked if throttle is not None else stored_rows
            until(lambda rows=rows, count=count: count() > rows)
            if chance.random() < 0.5 and kills > 1:  # killed amid a drain that has work
                throttle.end()
                time.sleep(chance.random())
                throttle = None
            if run < kills:
                drivers[-1].kill()
            else:
                drivers[-1].stop()
            if throttle is None:
                throttle = Throttle(nats_server, f"{name}.a")
        drivers.append(Driver(tmp_path, "last", options))
        until(lambda: not any(one.processes() for one in drivers[:-1]))
        until(lambda: drivers[-1].drains)
        throttle.end()
        until(lambda: parked() == 0)
        rows = stored_rows()
        until(lambda: stored_rows() >= rows + 40)
        drivers[-1].stop()
        until(lambda: not drivers[-1].processes())
    finally:
        for log in tmp_path.glob("log-*"):  # shown where it fails
            sys.stderr.write(f"{log.name}: {log.read_text()[-2000:]}\n")
        for one in drivers:
            one.end()
        js.delete_stream(f"{name}_PARKED")
    found = stored(js, name)
    for place, subject in enumerate((f"{name}.a", f"{name}.b")):
        values = of(found, subject)
        assert values == list(range(place, place + 2 * len(values), 2))
