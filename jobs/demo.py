"""
A hundred thousand flights through JetStream and Spark, every count checked.

    make demo        (or: python jobs/demo.py)

A throwaway nats-server takes them from `df.write`, by a mapping that numbers their subjects; a
streaming read gives them back by partition, in both layouts; a streaming write makes alerts of the
late ones. After each step the number of rows and a sum over subjects and payloads are compared with
the input: one that is lost, doubled or changed is seen. Exit status 0: all of it is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from pyspark_jetstream.testing import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).resolve().parents[1]

MAPPING = "flights.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"
FILTERED = {"stream": "FLIGHTS", "partitions": "4", "partitionSubject": "flights.{partition}.>"}
STREAMS = {"stream": "FLIGHTS-{partition}", "partitions": "4"}
Sums = tuple[int, int]


class Demo:
    """The steps; each leaves a row in the table."""

    def __init__(self, spark: SparkSession, url: str, work: Path) -> None:
        self.spark, self.url, self.work = spark, url, work
        self.steps = Table("step", "rows", "rows/s", "", title="Every count, against the input")
        self.is_right = True

    def check(self, title: str, began: float, found: Sums, expected: Sums) -> None:
        """A row of the table of steps."""
        rate = found[0] / (time.monotonic() - began)
        self.is_right &= found == expected
        mark = "[green]✓[/]" if found == expected else "[bold red]✗[/]"
        self.steps.add_row(title, f"{found[0]:,}", f"{rate:,.0f}", mark)

    def copied(self, name: str, options: dict[str, str]) -> DataFrame:
        """All that is stored, by a streaming read into folders that are written whole."""
        path = f"{self.work}/{name}"
        query = (
            self.spark.readStream.format("jetstream")
            .options(servers=self.url, maxRecordsPerTrigger="50000", **options)
            .load()
            .writeStream.foreachBatch(
                lambda batch, n: batch.write.mode("overwrite").parquet(f"{path}/batch={n}")
            )
            .option("checkpointLocation", f"{path}.checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return self.spark.read.parquet(path)

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("jetstream").options(servers=self.url, **options).load()


def sums(rows: DataFrame, subject: str = "subject") -> Sums:
    """The number of rows, and a sum over subjects (without the partition's number) and payloads."""
    name = F.expr(f"regexp_replace({subject}, '^flights[.][0-9]+', 'flights')")
    data = F.sum(F.xxhash64(name, F.col("data").cast("string")).cast("decimal(38)"))
    count, total = rows.agg(F.count("*"), data).first() or (0, 0)
    return int(count), int(total or 0)


def run(demo: Demo, console: Console) -> None:
    """All steps, and the pictures."""
    file = demo.spark.read.parquet(str(ROOT / "jobs/data/flights-100k.parquet"))
    flights = file.select(
        F.concat_ws(".", F.lit("flights"), "origin", "destination").alias("subject"),
        F.to_json(F.struct(*file.columns)).alias("data"),
    ).cache()
    late = flights.where(F.get_json_object("data", "$.delay").cast("int") > 60)
    expected, subjects = sums(flights), flights.select("subject").distinct().count()

    began = time.monotonic()
    writer = flights.write.format("jetstream").options(**target(demo.url, "FLIGHTS"))
    writer.option("subjectMapping", json.dumps({"flights.*.*": MAPPING})).mode("append").save()
    demo.check("write: by a mapping", began, sums(demo.read(stream="FLIGHTS")), expected)

    began = time.monotonic()
    demo.check("stream: N filters", began, sums(demo.copied("filtered", FILTERED)), expected)

    began = time.monotonic()
    words = ("--stream", "FLIGHTS", "--partitions", "4", "--servers", demo.url)
    command = [sys.executable, "-m", "pyspark_jetstream", "partition", *words]
    subject = "--partition-subject", FILTERED["partitionSubject"]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    demo.check("server: FLIGHTS-0 … N-1", began, sums(demo.read(**STREAMS)), expected)

    began = time.monotonic()
    back = demo.copied("streams", STREAMS)
    demo.check("stream: N streams", began, sums(back), expected)

    began = time.monotonic()
    alerts = (
        demo.spark.readStream.format("jetstream").options(servers=demo.url, **FILTERED).load()
        .where(F.get_json_object(F.col("data").cast("string"), "$.delay").cast("int") > 60)
        .select(F.expr("regexp_replace(subject, '^flights', 'alerts')").alias("subject"), "data")
        .writeStream.format("jetstream").options(**target(demo.url, "ALERTS"))
        .option("checkpointLocation", f"{demo.work}/alerts").trigger(availableNow=True).start()
    )  # fmt: skip
    alerts.awaitTermination()
    name = "replace(subject, 'alerts', 'flights')"
    demo.check("stream → stream: late", began, sums(demo.read(stream="ALERTS"), name), sums(late))

    began = time.monotonic()
    latest = demo.read(stream="FLIGHTS", multiLast=">").count()
    demo.check("snapshot: last of a subject", began, (latest, 0), (subjects, 0))

    console.print(demo.steps)
    picture = Table("stream", "messages", "", title="Partitions")
    for row in back.groupBy("stream").count().orderBy("stream").collect():
        picture.add_row(row[0], f"{row[1]:,}", Bar(expected[0] / 2, 0, row[1], width=40))
    console.print(picture)


def target(url: str, stream: str) -> dict[str, str]:
    """Options of a write that makes its stream."""
    subjects, config = f"{stream.lower()}.>", '{"allow_direct": true}'
    made = {"createStream": "true", "streamSubjects": subjects, "streamConfig": config}
    return {"servers": url, "stream": stream} | made


def main() -> int:
    """Exit status 0: every count is right."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with tempfile.TemporaryDirectory() as work, NatsServer() as server:
        spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        demo = Demo(spark, server.url, Path(work))
        run(demo, Console())
        spark.stop()
    return 0 if demo.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
