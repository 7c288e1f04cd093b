"""
Runs queries with a pause and shedding, and asks a real Prometheus what the dashboard asks.

    make dashboard                        # ten minutes; needs the binary of Prometheus
    make dashboard ARGS="--minutes 3 --prometheus /opt/prometheus/prometheus"

A query copies a stream to another, which an operator pauses, and which is full now and then, so
that rows are shed (`overloadPolicy=drop`); another query takes its part of a shared consumer. The
exporter is the program that users run. At the end every query of every panel of
conf/grafana_dashboard.json is asked over the whole run, and the status is 1 if one has no sample,
or shows nothing where the run must have moved something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from tests.kits.servers import DevServer, free_ports

from ..endurance.query import session
from .panels import Answer, answered, faults, table, targets
from .prometheus import Prometheus, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_DASHBOARD: Final = Path(__file__).parents[2] / "conf" / "grafana_dashboard.json"
_SCRAPE_S: Final = 5.0
_RATE_INTERVAL_S: Final = 4 * _SCRAPE_S
"""As Grafana computes `$__rate_interval` where a pixel is shorter than that."""

_STEP_S: Final = 5.0
_SETTLE_S: Final = 2 * _SCRAPE_S
_METRICS: Final = "spark.jetstream.metrics"
_ROOM: Final = 2_000
"""Messages that the target holds. It is emptied each second, and seldom while rows are to go."""

_SELDOM_S: Final = 30.0
"""Less than the target's `duplicate_window`: within that a row that was sent must be stored."""

_RATE: Final = 300
"""Messages a second into each source."""


def main() -> int:
    """Runs it all; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("--minutes", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument(
        "--prometheus", default=os.environ.get("PROMETHEUS") or shutil.which("prometheus"),
        metavar="BINARY", help="($PROMETHEUS, or as the PATH has it)",
    )  # fmt: skip
    given = parser.parse_args()
    if not given.prometheus:
        parser.error("no Prometheus: install it (Debian: prometheus), or name its binary")
    if given.minutes <= 0:
        parser.error("--minutes is above 0")
    with tempfile.TemporaryDirectory(prefix="pyspark-jetstream-dashboard-") as home:
        answers = _run(given.prometheus, given.minutes * 60, Path(home))
    version = subprocess.run([given.prometheus, "--version"], capture_output=True, text=True)
    first = (version.stdout or version.stderr).splitlines()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {given.minutes:g} minutes, {first}\n\n{table(answers)}")
    wrong = faults(answers)
    print(f"\n{len(answers)} queries, {len(wrong)} without data", *wrong, sep="\n")
    return 1 if wrong else 0


def _run(binary: str, seconds: float, home: Path) -> list[Answer]:
    with ExitStack() as stack:
        server = stack.enter_context(DevServer())
        client = Client(parse_connection({"servers": server.url}))
        stack.callback(client.close)
        _streams(JetStream(client))
        exporter = stack.enter_context(_exporter(server.url))
        prometheus = stack.enter_context(running(binary, home / "p", [exporter], _SCRAPE_S))
        spark = session(home, None)
        stack.callback(spark.stop)
        target = stack.enter_context(_Room(server.url))
        began = time.time()
        queries = _queries(spark, server.url, home)
        stack.enter_context(_publishing(server.url))
        _wait(lambda: all(query.lastProgress for query in queries), queries, 180.0)
        _pressed(server.url, target, queries, seconds)
        for query in queries:
            query.stop()
        time.sleep(_SETTLE_S)  # two scrapes of what was said last
        return _asked(prometheus, began, time.time())


def _asked(prometheus: Prometheus, began: float, ended: float) -> list[Answer]:
    assert prometheus.up(), "the exporter was not scraped"
    return [
        answered(
            target,
            prometheus.range(target.promql(_RATE_INTERVAL_S), began, ended, _STEP_S),
        )
        for target in targets(_DASHBOARD)
    ]


def _pressed(url: str, target: _Room, queries: list[StreamingQuery], seconds: float) -> None:
    """A pause in the second fifth of the time, a target that is often full in the fourth."""
    fifth = seconds / 5
    _go(queries, fifth)
    subprocess.run(
        [
            sys.executable, "-m", "pyspark_jetstream", "throttle", "pause", "--subject", "out.0.>",
            "--for", f"{round(fifth)}s", "--servers", url,
        ],
        timeout=fifth + 60, check=False,
    )  # fmt: skip
    _go(queries, fifth)
    target.every_s = _SELDOM_S
    _go(queries, fifth)
    target.every_s = 1.0
    _go(queries, fifth)


def _go(queries: list[StreamingQuery], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for query in queries:
            if not query.isActive:
                raise RuntimeError(f"query {query.name} has ended: {query.exception()}")
        time.sleep(min(1.0, left))


def _wait(done: Any, queries: list[StreamingQuery], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no batch within {seconds:g} s")
        _go(queries, 0.5)


def _streams(js: JetStream) -> None:
    kept: dict[str, Any] = {"storage": "memory", "max_msgs": 200_000, "allow_direct": True}
    js.create_stream({"name": "IN", "subjects": ["in.>"]} | kept)
    js.create_stream({"name": "JOBS", "subjects": ["jobs.>"]} | kept)
    js.create_stream(
        {"name": "OUT", "subjects": ["out.>"]} | kept | {"max_msgs": _ROOM, "discard": "new"}
    )


def _queries(spark: SparkSession, url: str, home: Path) -> list[StreamingQuery]:
    told = {"servers": url}
    source = {
        "stream": "IN", "partitions": "2", "partitionSubject": "in.{partition}.>",
        "queryName": "copy", "startingOffsets": "latest",
    }  # fmt: skip
    sink = {
        "queueSize": "50", "maxInFlight": "16", "publishTimeout": "10m",
        "metricsSubject": _METRICS, "metricsInterval": "1s",
        "throttleMaxWait": "10m", "overloadPolicy": "drop", "shedPriorities": "normal,non-critical",
        "prioritySubjects": "out.0.>=critical, out.1.>=non-critical",
    }  # fmt: skip
    copied = (
        spark.readStream.format("jetstream")
        .options(**told, **source)
        .load()
        .selectExpr("concat('out', substr(subject, 3)) subject", "data")
        .writeStream.format("jetstream")
        .queryName("copy")
        .options(**told, **sink)
        .option("checkpointLocation", str(home / "copy"))
        .trigger(processingTime="1 second")
        .start()
    )
    shared = {"stream": "JOBS", "priorityPolicy": "overflow", "consumer": "jobs"}
    shares = (
        spark.readStream.format("jetstream")
        .options(**told, **shared, queryName="jobs", maxRecordsPerTrigger="1000")
        .load()
        .writeStream.format("noop")
        .queryName("jobs")
        .option("checkpointLocation", str(home / "jobs"))
        .trigger(processingTime="1 second")
        .start()
    )
    return [copied, shares]


@contextmanager
def _exporter(url: str) -> Iterator[str]:
    """The program that users run; where it listens."""
    place = f"127.0.0.1:{free_ports(1)[0]}"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pyspark_jetstream", "metrics", "--servers", url, "--listen",
            place, "--metrics-subject", _METRICS,
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield place
    finally:
        process.terminate()
        process.wait(30)


class _Room:
    """Empties the target each `every_s`."""

    def __init__(self, url: str) -> None:
        self.every_s = 1.0
        self._client = Client(parse_connection({"servers": url}))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="room", daemon=True)

    def __enter__(self) -> _Room:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        self._client.close()

    def _run(self) -> None:
        js = JetStream(self._client)
        emptied = time.monotonic()
        while not self._stopped.wait(0.5):
            if time.monotonic() - emptied >= self.every_s:
                js.purge("OUT", None, None)
                emptied = time.monotonic()


@contextmanager
def _publishing(url: str) -> Iterator[None]:
    """Publishes to both sources at a rate, until the block ends."""
    stopped = threading.Event()

    def run() -> None:
        client = Client(parse_connection({"servers": url}))
        count = 0
        try:
            while not stopped.wait(0.1):
                for _ in range(_RATE // 10):
                    count += 1
                    body = b"%d" % count
                    client.connection.send(wire.pub(f"in.{count % 2}.{count % 7}", body))
                    client.connection.send(wire.pub(f"jobs.{count % 7}", body))
                client.connection.ping(30.0)
        finally:
            client.close()

    thread = threading.Thread(target=run, name="publisher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(60)


if __name__ == "__main__":
    sys.exit(main())
