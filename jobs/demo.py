"""
A hundred thousand flights through JetStream and Spark, every one of them checked.

    make demo        (or: python jobs/demo.py [--partitions 4] [--cores 2])

Writes them into a throwaway nats-server, reads them back over subject partitions in both layouts,
aggregates, publishes alerts, reads a range; then compares every count and, subject by subject, the
order of all payloads with the input. Exit status 0 only if all of it is right.

Order: JetStream keeps the order in which one publisher sends, and a Spark task is one publisher.
So all flights of an origin go through one task (`repartition`), in the order of the input
(`sortWithinPartitions`); and because the subject's origin chooses the subject partition, whoever
reads has all of an origin in one Spark partition, in that order, down to the alerts.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from checking import Expected, by_subject, by_subject_without, span
from screen import Screen

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.operations.partitioning import partition_stream
from pyspark_jetstream.operations.partitionplan import PartitionPlan, numbering
from pyspark_jetstream.testing import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).resolve().parents[1]
FLIGHTS = ROOT / "jobs/data/flights-100k.parquet"
LATE_MINUTES = 60
RECORDS_PER_TRIGGER = 50_000


class Demo:
    """The steps, in their order; each yields what the table shows of it."""

    def __init__(self, spark: SparkSession, url: str, partitions: int, work: Path) -> None:
        self._spark = spark
        self._url = url
        self._partitions = partitions
        self._work = work
        self._flights = self._input()
        self._client = Client(parse_connection({"servers": url}))
        self.expected = Expected(self._flights.select("n", "subject", "data", "delay").toArrow())
        self.input_right = self.expected.subjects == file_subjects()
        self.layout = {
            "stream": "FLIGHTS",
            "partitions": str(partitions),
            "partitionSubject": "flights.{partition}.>",
        }
        self.layout_streams = {"stream": "FLIGHTS-{partition}", "partitions": str(partitions)}

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def write(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Publishes the flights; the mapping puts the partition's number into the subject."""
        js = JetStream(self._client)
        for name in ("FLIGHTS", "ALERTS"):
            subject = f"{name.lower()}.>"
            js.create_stream({"name": name, "subjects": [subject], "allow_direct": True})
        numbered = numbering("flights.*.*", self._partitions, tokens=(1,))
        rows = self._flights.repartition(self._partitions, "origin").sortWithinPartitions("n")
        with self._watching(show, "FLIGHTS"):
            (
                rows.select("subject", "data")
                .write.format("jetstream")
                .option("servers", self._url)
                .option("subjectMapping", json.dumps({"flights.*.*": numbered}))
                .mode("append")
                .save()
            )
        stored = js.stream_info("FLIGHTS").messages
        return stored, stored == self.expected.rows

    def read_filtered(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Streams the one stream back, a filter for each subject partition."""
        return self._read_back(show, "filtered", self.layout)

    def read_streams(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Streams the copies back, a stream for each subject partition."""
        return self._read_back(show, "streams", self.layout_streams)

    def aggregate(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Average delay by origin, as a streaming aggregation."""
        from pyspark.sql import functions as F

        delays = self._decoded(self.layout).groupBy("origin")
        totals = delays.agg(F.count("*").alias("flights"), F.sum("delay").alias("minutes"))
        writer = totals.writeStream.format("memory").queryName("delays").outputMode("complete")
        rows = self._run(show, writer, "delays")
        self.delays = {
            row["origin"]: (row["flights"], row["minutes"])
            for row in self._spark.table("delays").collect()
        }
        return rows, self.delays == self.expected.delays

    def alert(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Publishes the late flights, from one stream into another, and reads those back."""
        from pyspark.sql import functions as F

        late = self._decoded(self.layout).where(F.col("delay") > LATE_MINUTES)
        alerts = late.select(F.concat(F.lit("alerts."), F.col("origin")).alias("subject"), "data")
        writer = alerts.writeStream.format("jetstream").option("servers", self._url)
        self._run(show, writer, "alerts")
        stored = self._read({"stream": "ALERTS"}).toArrow()
        right = by_subject(stored.sort_by("sequence")) == self.expected.alerts(LATE_MINUTES)
        return stored.num_rows, right

    def partition(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Has the server make a stream of each subject partition; no row passes through Spark."""
        plan = PartitionPlan(
            "FLIGHTS", self._partitions, "FLIGHTS-{partition}", self.layout["partitionSubject"]
        )
        done = partition_stream(
            JetStream(self._client),
            plan,
            progress=lambda looked: show(f"{min(each.done for each in looked):,} copied"),
        )
        self.partitioned = done
        return done.messages, done.messages == self.expected.rows

    def read_range(self, show: Callable[[str], None]) -> tuple[int, bool]:
        """Reads a middle part of every partition; both bounds are inclusive sequences."""
        bounds = {
            p: (messages // 4 + 1, messages // 2)
            for p, messages in enumerate(self.partitioned.streams.values())
        }
        options = {
            "startingOffsets": json.dumps({p: first for p, (first, _) in bounds.items()}),
            "endingOffsets": json.dumps({p: last for p, (_, last) in bounds.items()}),
        }
        show("reading")
        rows = self._read(self.layout_streams | options).toArrow()
        parts = [span(self.table, p, *bounds[p]) for p in bounds]
        right = parts == [span(rows, p, *bounds[p]) for p in bounds]
        return rows.num_rows, right and rows.num_rows == sum(map(len, parts))

    # ── how ──────────────────────────────────────────────────────────────────────────────────

    def _input(self) -> DataFrame:
        """The flights as messages, numbered in the order of the file (one task reads it)."""
        from pyspark.sql import functions as F

        flights = self._spark.read.parquet(str(FLIGHTS)).coalesce(1)
        return flights.select(
            F.monotonically_increasing_id().alias("n"),
            "origin",
            "delay",
            F.concat_ws(".", F.lit("flights"), "origin", "destination").alias("subject"),
            F.to_json(F.struct(*flights.columns)).alias("data"),
        )

    def _read(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.read.format("jetstream").option("servers", self._url)
        return reader.options(**options).load()

    def _stream(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.readStream.format("jetstream").option("servers", self._url)
        return reader.options(maxRecordsPerTrigger=RECORDS_PER_TRIGGER, **options).load()

    def _decoded(self, options: dict[str, str]) -> DataFrame:
        """Origin and delay out of the payload."""
        from pyspark.sql import functions as F

        text = F.col("data").cast("string")
        delay = F.get_json_object(text, "$.delay").cast("long")
        origin = F.get_json_object(text, "$.origin")
        return self._stream(options).select("data", origin.alias("origin"), delay.alias("delay"))

    def _read_back(
        self, show: Callable[[str], None], name: str, options: dict[str, str]
    ) -> tuple[int, bool]:
        columns = self._stream(options).select("stream", "partition", "sequence", "subject", "data")
        path = str(self._work / name)
        rows = self._run(show, columns.writeStream.format("parquet").option("path", path), name)
        self.table: pa.Table = pq.read_table(path).sort_by(
            [("partition", "ascending"), ("sequence", "ascending")]
        )
        payloads = by_subject_without(self.table, token=1)
        return rows, rows == self.table.num_rows and payloads == self.expected.flights

    def _run(self, show: Callable[[str], None], writer: DataStreamWriter, name: str) -> int:
        """Runs a query over all that is stored by now; how many messages it read."""
        checkpoint = str(self._work / f"{name}.checkpoint")
        query = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
        while not query.awaitTermination(1):
            batches = query.recentProgress
            show(
                f"{sum(batch['numInputRows'] for batch in batches):,} rows, {len(batches)} batches"
            )
        return int(sum(batch["numInputRows"] for batch in query.recentProgress))

    @contextmanager
    def _watching(self, show: Callable[[str], None], stream: str) -> Iterator[None]:
        """Shows how a stream grows while something else blocks."""
        done = threading.Event()

        def watch() -> None:
            client = Client(self._client.options)
            while not done.wait(0.5):
                show(f"{JetStream(client).stream_info(stream).messages:,} messages stored")
            client.close()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def file_subjects() -> list[str]:
    """The subjects of all flights in the order of the file, read without Spark."""
    columns = pq.read_table(FLIGHTS, columns=["origin", "destination"]).to_pydict()
    pairs = zip(columns["origin"], columns["destination"], strict=True)
    return [f"flights.{origin}.{destination}" for origin, destination in pairs]


@contextmanager
def session(cores: int, log: Path) -> Iterator[SparkSession]:
    """Spark on this machine with the settings of conf/; what it has to say goes to `log`."""
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("pyspark-jetstream demo")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", cores)
    with stderr_to(log):  # the JVM, and through it all workers, keep the one they start with
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # PySpark's own handler calls the JVM in the middle of another call to it; we stop Spark anyway.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except Exception:  # nothing is swallowed: what Spark said is shown, and the error goes on
        print(*log.read_text(errors="replace").splitlines()[-40:], sep="\n", file=sys.stderr)
        raise
    finally:
        spark.stop()


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Standard error of this process, and of those it starts meanwhile, into a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def run(screen: Screen, partitions: int, cores: int) -> bool:
    """Runs all steps; whether every one of them was right."""
    with ExitStack() as cleanup:
        work = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="jetstream-demo-")))
        server = cleanup.enter_context(NatsServer())
        with screen.step("start Spark, read the input") as step:
            spark = cleanup.enter_context(session(cores, work / "spark.log"))
            demo = Demo(spark, server.url, partitions, work)
            cleanup.callback(demo.close)
            step.done(demo.expected.rows, demo.input_right)
        for title, action in (
            ("write: 100k flights → FLIGHTS", demo.write),
            ("stream back: one stream, N filters", demo.read_filtered),
            ("stream: average delay by origin", demo.aggregate),
            ("stream → stream: late flights → ALERTS", demo.alert),
            ("server: FLIGHTS → FLIGHTS-0 … N-1", demo.partition),
            ("stream back: N streams", demo.read_streams),
            ("read: a range of every stream", demo.read_range),
        ):
            with screen.step(title) as step:
                step.done(*action(step.show))
        screen.steps()
        screen.partitions(demo.partitioned.streams, demo.table)
        screen.origins(demo.delays)
    return screen.right


def main() -> int:
    """Exit status 0: every count and every order is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0].strip())
    add = parser.add_argument
    add("--partitions", type=int, default=4, help="subject partitions (%(default)s)")
    add("--cores", type=int, default=2, help="cores for Spark (%(default)s)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    logging.getLogger().setLevel(logging.CRITICAL)  # py4j logs every call that Ctrl-C breaks off
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    try:
        return 0 if run(Screen(), arguments.partitions, arguments.cores) else 1
    except ImportError as error:
        print(f"{error}; pip install 'pyspark-jetstream[cli]'", file=sys.stderr)
        return 2
    except JetStreamError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; server, Spark and their files are gone", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
