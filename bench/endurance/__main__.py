"""Runs one streaming query for an hour and says what has grown; 1 if something has, or is lost."""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from tests.kits.servers import DevServer

from ..others.child import Children
from ..waiting import until
from . import monitoring, processes
from .chart import Panel, drawn
from .flatness import judge
from .query import FLOWS, Jvm, session, start

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_CSV: Final = Path("endurance.csv")
_SVG: Final = Path("endurance.svg")

_KEPT: Final = 200_000
"""Messages that either stream keeps, so that the disk stays as it is."""

_SUBJECTS: Final = ["a.0.rows", "a.1.rows"]
_CHECKER: Final = "checker"
_DRAIN_S: Final = 180.0
_SAY_S: Final = 60.0

_PANELS: Final = (
    Panel(
        "Memory (PSS), MiB",
        {"jvm.pss_mib": "JVM", "server.pss_mib": "nats-server"},
    ),
    Panel(
        "Memory of Python processes (PSS), MiB",
        {
            "driver.pss_mib": "driver",
            "source.pss_mib": "source",
            "worker.pss_mib": "workers",
            "other.pss_mib": "others",
        },
    ),
    Panel(
        "Inside the JVM, MiB",
        {
            "jvm.live_heap_mib": "live heap",
            "jvm.non_heap_mib": "metaspace, code",
            "jvm.direct_mib": "direct",
        },
    ),
    Panel(
        "Threads",
        {
            "jvm.threads": "JVM",
            "server.threads": "nats-server",
            "source.threads": "source",
            "worker.threads": "workers",
        },
    ),
    Panel(
        "File descriptors",
        {
            "jvm.fds": "JVM",
            "server.fds": "nats-server",
            "source.fds": "source",
            "worker.fds": "workers",
        },
    ),
    Panel(
        "On the server",
        {
            "nats.connections": "connections",
            "nats.subscriptions": "subscriptions",
            "nats.consumers": "consumers",
            "nats.streams": "streams",
            "stream.KV_SPARK_LEDGER.messages": "ledger keys",
        },
    ),
)


class Samples:
    """A line of the CSV for each, written at once: whatever ends the run leaves them."""

    def __init__(self, path: Path) -> None:
        self.all: list[dict[str, float]] = []
        self._path = path
        self._names: list[str] = []

    def add(self, sample: dict[str, float]) -> None:
        """A new series makes a new column, for which the file is written again."""
        self.all.append(sample)
        new = [name for name in sample if name not in self._names]
        self._names += new
        with self._path.open("w" if new else "a", newline="") as file:
            writer = csv.DictWriter(file, self._names)
            if new:
                writer.writeheader()
            for each in self.all if new else [sample]:
                writer.writerow({name: round(value, 2) for name, value in each.items()})


def main() -> int:
    """Runs the query and judges; the exit status."""
    arguments = _arguments()
    if arguments.judge is not None:
        with arguments.judge.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return _judged(
            [{name: float(value) for name, value in row.items() if value} for row in rows]
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM tidies up as Ctrl-C does
    samples = Samples(_CSV)
    with tempfile.TemporaryDirectory(prefix="pyspark-jetstream-endurance-") as home:
        try:
            failure = _run(arguments, Path(home), samples)
        except Exception as error:  # what was sampled until then is shown all the same
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
    print(f"{_CSV}: {len(samples.all)} samples; load {os.getloadavg()[2]:.1f}")
    status = _judged(samples.all)
    if failure:
        print(f"FAILED: {failure}")
    return 1 if failure else status


def _judged(samples: list[dict[str, float]]) -> int:
    """Draws the series and says which are flat; 1 if one is not."""
    _SVG.write_text(drawn(_PANELS, samples))
    judged = judge(samples)
    print(f"{'':32} {'2nd quarter':>11} {'last':>10} {'highest':>10}   {'bound':>8}")
    for line in judged:
        print(line)
    return 0 if judged and all(each.is_flat for each in judged) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="(%(default)s)")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second (%(default)s)")
    parser.add_argument(
        "--flow", choices=FLOWS, default="trip",
        help="; ".join(f"{name}: {what}" for name, what in FLOWS.items()),
    )  # fmt: skip
    parser.add_argument("--every", type=float, default=5.0, help="seconds a sample (%(default)s)")
    parser.add_argument(
        "--heap", default="512m",
        help="of the JVM, resident from the beginning; 'spark' for Spark's default (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--collect", type=float, default=60.0,
        help="seconds from one forced garbage collection to the next (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--judge", type=Path, metavar="CSV", help="runs nothing, judges what an earlier run left"
    )
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or arguments.rate < 1 or arguments.every <= 0:
        parser.error("--minutes, --rate and --every are above 0")
    return arguments


def _run(arguments: argparse.Namespace, home: Path, samples: Samples) -> str:
    """Runs the query for its time; what was wrong, "" for nothing."""
    flow = arguments.flow
    heap = None if arguments.heap == "spark" else arguments.heap
    with DevServer() as server, _client(server.url) as js:
        source, sink = _made(js, server.url, flow)
        spark = session(home, heap)
        try:
            jvm = Jvm(spark)
            roles = {os.getpid(): "driver", jvm.pid: "jvm", server.pid: "server"}
            with _publishing(server.url, flow, arguments.rate) as publisher:
                with _checking(server.url, flow) as checker:
                    roles |= dict.fromkeys(publisher.pids, "publisher")
                    roles |= dict.fromkeys(checker.pids, "checker")
                    query = start(spark, flow, source, sink, arguments.rate, home)
                    try:
                        publisher.go()
                        checker.go()
                        _sample(arguments, home, server, jvm, roles, query, samples)
                        publisher.stop()
                        published = publisher.outcome().messages if publisher.pids else None
                        _drain(server, flow, published, query)
                    finally:
                        query.stop()
                    checker.stop()
                    checked = checker.outcome().messages if checker.pids else None
                    return _compared(server, flow, published, checked)
        finally:
            spark.stop()


@contextmanager
def _client(url: str) -> Iterator[JetStream]:
    client = Client(parse_connection({"servers": url}))
    try:
        yield JetStream(client)
    finally:
        client.close()


def _made(js: JetStream, url: str, flow: str) -> tuple[dict[str, str], dict[str, str]]:
    """The streams and the checker's consumer; options of source and sink."""
    bounded: dict[str, Any] = {
        "storage": "file", "max_msgs": _KEPT, "allow_direct": True,
    }  # fmt: skip
    if flow in ("trip", "read"):
        js.create_stream({"name": "A", "subjects": ["a.>"]} | bounded)
    if flow in ("trip", "write"):
        js.create_stream({"name": "B", "subjects": ["b.>"]} | bounded)
        js.create_consumer("B", {"durable_name": _CHECKER, "ack_policy": "none"})
    source = {
        "servers": url, "stream": "A", "partitions": "2", "partitionSubject": "a.{partition}.>",
    }  # fmt: skip
    return source, {"servers": url}


def _publishing(url: str, flow: str, rate: int) -> Children:
    job = {"do": "bench.endurance.ends:publish", "url": url, "subjects": _SUBJECTS, "rate": rate}
    return Children([job] if flow in ("trip", "read") else [])


def _checking(url: str, flow: str) -> Children:
    job = {
        "do": "bench.endurance.ends:check", "url": url, "stream": "B", "consumer": _CHECKER,
    }  # fmt: skip
    return Children([job] if flow in ("trip", "write") else [])


def _sample(
    arguments: argparse.Namespace,
    home: Path,
    server: DevServer,
    jvm: Jvm,
    roles: Mapping[int, str],
    query: StreamingQuery,
    samples: Samples,
) -> None:
    """
    Looks again and again, until the time is over.

    Raises:
        StreamingQueryException: The query has failed.
    """
    began = time.monotonic()
    collect_at, say_at = arguments.collect, _SAY_S
    at = 0.0
    while at < arguments.minutes * 60:
        time.sleep(max(0.0, at + arguments.every - (time.monotonic() - began)))
        at = time.monotonic() - began
        if (error := query.exception()) is not None:
            raise error
        sample = {"seconds": at, "load": os.getloadavg()[0]}
        if at >= collect_at:
            sample |= jvm.collect()
            collect_at = at + arguments.collect
        sample |= processes.look(roles) | monitoring.look(server.monitor_url) | jvm.look()
        sample["checkpoint.files"] = float(sum(len(files) for _, _, files in os.walk(home)))
        if progress := query.lastProgress:
            sample["query.batch"] = float(progress.batchId)
            sample["query.batch_s"] = progress.durationMs.get("triggerExecution", 0) / 1e3
        samples.add(sample)
        if at >= say_at:
            say_at = at + _SAY_S
            print(_line(sample), flush=True)


def _line(sample: Mapping[str, float]) -> str:
    """A sample, for who watches."""
    parts = [f"{sample['seconds'] / 60:5.1f} min, load {sample['load']:.1f}"]
    for name, called in {
        "query.batch": "batch", "query.batch_s": "s a batch", "stream.A.last": "published",
        "stream.B.last": "written", "jvm.pss_mib": "JVM MiB", "jvm.live_heap_mib": "live",
        "source.pss_mib": "source", "worker.pss_mib": "workers", "server.pss_mib": "server",
    }.items():  # fmt: skip
        if name in sample:
            parts.append(f"{called} {sample[name]:,.10g}" if "_" not in name
                         else f"{called} {sample[name]:,.1f}")  # fmt: skip
    return ", ".join(parts)


def _drain(server: DevServer, flow: str, published: int | None, query: StreamingQuery) -> None:
    """
    Waits until all that was published is written.

    Raises:
        TimeoutError: It is not, for long.
    """
    if flow != "trip":
        return

    def is_written() -> bool:
        if (error := query.exception()) is not None:
            raise error
        return monitoring.look(server.monitor_url)["stream.B.last"] >= (published or 0)

    until(is_written, _DRAIN_S, "all is written that was published", poll_s=0.2)


def _compared(server: DevServer, flow: str, published: int | None, checked: int | None) -> str:
    """What does not agree, "" if all does; the checker has raised if its numbers had gaps."""
    look = monitoring.look(server.monitor_url)
    counts = {
        "published": published,
        "stream A": int(look["stream.A.last"]) if published is not None else None,
        "stream B": int(look["stream.B.last"]) if checked is not None else None,
        "checked off": checked,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    print(", ".join(f"{name} {count:,}" for name, count in known.items()))
    return "" if len(set(known.values())) <= 1 else f"counts differ: {known}"


if __name__ == "__main__":
    sys.exit(main())
