"""
A hundred thousand flights through JetStream and Spark, every count checked: `make demo`.

A throwaway nats-server takes them from `df.write`, by a mapping that numbers their subjects; a
streaming read gives them back by partition, in both layouts; a streaming write makes alerts of the
late ones. Rows and a sum over subjects and payloads are compared with the input at each step: what
is lost, doubled or changed is seen. Exit status 0: all of it is right.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from pyspark_jetstream.testing import NatsServer

FLIGHTS = str(Path(__file__).parent / "data" / "flights-100k.parquet")
MAPPING = '{"flights.*.*": "flights.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"}'
NUMBERED = "flights.{partition}.>"
FILTERED = {"stream": "FLIGHTS", "partitions": "4", "partitionSubject": NUMBERED}
STREAMS = {"stream": "FLIGHTS-{partition}", "partitions": "4"}


def sums(rows: DataFrame) -> tuple[int, int]:
    """The number of rows, and a sum over subjects (without the partition's number) and payloads."""
    subject = "regexp_replace(subject, '^[a-z]+([.][0-9]+)?', 'flights')"
    hashes = f"sum(cast(xxhash64({subject}, string(data)) AS decimal(38)))"
    count, total = rows.selectExpr("count(*)", hashes).first() or (0, 0)
    return int(count), int(total or 0)


def run(spark: SparkSession, url: str, work: str) -> bool:
    """All steps, and the pictures; whether every count is right."""
    steps, results, began = Table("step", "rows", "rows/s", "", title="Counts and rates"), [], 0.0

    def check(title: str, found: tuple[int, int], expected: tuple[int, int]) -> None:
        nonlocal began
        results.append(found == expected)
        rate, mark = found[0] / (time.monotonic() - began), "✓" if results[-1] else "✗"
        steps.add_row(title, f"{found[0]:,}", f"{rate:,.0f}", mark)
        began = time.monotonic()

    def to(stream: str, writer: Any) -> Any:
        made = {"createStream": "true", "streamConfig": '{"allow_direct": true}', "servers": url}
        made |= {"stream": stream, "streamSubjects": f"{stream.lower()}.>"}
        return writer.format("jetstream").options(**made)

    def read(reader: Any, options: dict[str, str]) -> Any:
        return reader.format("jetstream").options(servers=url, **options).load()

    def copied(name: str, options: dict[str, str]) -> DataFrame:
        rows = read(spark.readStream, options | {"maxRecordsPerTrigger": "50000"}).writeStream
        rows = rows.option("checkpointLocation", f"{work}/{name}.checkpoint")
        rows.trigger(availableNow=True).start(f"{work}/{name}").awaitTermination()
        return spark.read.parquet(f"{work}/{name}")

    late = "int(get_json_object(string(data), '$.delay')) > 60"
    subject = "concat_ws('.', 'flights', origin, destination) AS subject"
    flights = spark.read.parquet(FLIGHTS).selectExpr(subject, "to_json(struct(*)) AS data").cache()
    expected, subjects = sums(flights), flights.select("subject").distinct().count()
    began = time.monotonic()
    to("FLIGHTS", flights.write).options(subjectMapping=MAPPING).mode("append").save()
    check("write: by a mapping", sums(read(spark.read, {"stream": "FLIGHTS"})), expected)
    check("stream: N filters", sums(copied("filtered", FILTERED)), expected)
    words = f"-m pyspark_jetstream partition --servers {url} --stream FLIGHTS --partitions 4"
    program = [sys.executable, *words.split(), "--partition-subject", NUMBERED]
    subprocess.run(program, check=True, capture_output=True)
    check("server: FLIGHTS-0 … N-1", sums(read(spark.read, STREAMS)), expected)
    back = copied("streams", STREAMS)
    check("stream: N streams", sums(back), expected)
    alerts = read(spark.readStream, FILTERED).where(late).select("subject", "data")
    how = {"subjectMapping": '{"flights.>": "alerts.>"}', "checkpointLocation": f"{work}/alerts"}
    query = to("ALERTS", alerts.writeStream).options(**how).trigger(availableNow=True).start()
    query.awaitTermination()
    alerts = read(spark.read, {"stream": "ALERTS"})
    check("stream → stream: late", sums(alerts), sums(flights.where(late)))
    latest = read(spark.read, {"stream": "FLIGHTS", "multiLast": ">"}).count()
    check("snapshot: last of a subject", (latest, 0), (subjects, 0))
    picture = Table("stream", "messages", "", title="Partitions")
    for row in back.groupBy("stream").count().orderBy("stream").collect():
        picture.add_row(row[0], f"{row[1]:,}", Bar(expected[0] / 2, 0, row[1], width=40))
    Console().print(steps, picture)
    return all(results)


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.log.level", "ERROR")
    with tempfile.TemporaryDirectory() as work, NatsServer() as server:
        is_right = run(builder.getOrCreate(), server.url, work)
    sys.exit(0 if is_right else 1)
