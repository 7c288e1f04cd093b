"""
Copies a range of a stream into Parquet, or into another stream.

    spark-submit jobs/range_backfill.py --option stream=FLIGHTS --output backfills/flights
    spark-submit jobs/range_backfill.py --option stream=FLIGHTS --checkpoint checkpoints/copy \\
        --target 'subjectMapping={"flights.>": "copy.flights.>"}'

It is a streaming query that ends where the range ends. After a kill run the same command again: it
goes on at its checkpoint, and no row is there twice. In Parquet each batch is a folder `batch=N`,
which is written anew as a whole. Without --to the range ends at what is there when the run starts,
so a later run copies what has come since.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

STALE = "^Nats-(Msg-Id|Rollup|Expected-.*)$"
"""Headers that tell the source's stream, and not the target's, what to do with a message."""


def pair(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE, or of NAME=@FILE: a secret that no list of processes shows."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("expected NAME=VALUE or NAME=@FILE")
    return name, Path(value[1:]).read_text().strip() if value.startswith("@") else value


def bound(side: str, where: str, partitions: int) -> dict[str, str]:
    """The option of one end of the range."""
    if where.isdigit():
        where = json.dumps(dict.fromkeys(range(partitions), int(where)))
    is_time = where.startswith("-") or (":" in where and not where.startswith("{"))
    return {f"{side}{'Timestamp' if is_time else 'Offsets'}": where}


def start(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """The query, which is under way."""
    options = {"maxRecordsPerTrigger": str(given.batch)} | dict(given.option)
    partitions = int(options.get("partitions", 1))
    options |= bound("starting", given.start, partitions) | bound("ending", given.end, partitions)
    if given.target:
        options["includeHeaders"] = "true"
    rows = spark.readStream.format("jetstream").options(**options).load().where(given.where)
    if given.target:
        kept = F.map_filter("headers", lambda name, _: ~name.rlike(STALE)).alias("headers")
        copies = rows.select("subject", "data", kept)
        writer = copies.writeStream.format("jetstream").options(**dict(given.target))
    else:

        def write(batch: DataFrame, number: int) -> None:
            files = batch.withColumn("day", F.to_date("timestamp")).write.mode("overwrite")
            files.partitionBy(*given.partition_by).parquet(f"{given.output}/batch={number}")

        writer = rows.writeStream.foreachBatch(write)
    checkpoint = given.checkpoint or f"{given.output}/_checkpoint"
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def follow(query: StreamingQuery) -> None:
    """Shows after each batch the rows of this run and those that are left; at the end a summary."""
    began, seen, rows, is_over = time.monotonic(), -1, 0, False
    while not is_over:
        is_over = bool(query.awaitTermination(1))
        for batch in query.recentProgress:
            if batch["batchId"] > seen and batch["numInputRows"]:
                seen, rows = batch["batchId"], rows + batch["numInputRows"]
                ends = json.loads(batch["sources"][0]["latestOffset"] or "null") or {}
                # Of a batch that a killed run has planned nobody counts again what is behind it.
                lags = [end["lag"] for end in ends.values() if "lag" in end] or [None]
                left = "not counted" if None in lags else f"{sum(lags):,} left"
                rate = rows / (time.monotonic() - began)
                print(f"batch {seen}: {rows:,} rows, {left}, {rate:,.0f} rows/s", flush=True)
    print(f"done: {rows:,} rows in {time.monotonic() - began:.0f} s", flush=True)


def reason(error: Exception) -> str:
    """The line of an error that says what to do, without the traces of Spark and Python."""
    ours = re.findall(r"pyspark_jetstream\.errors\.\w+: .*", str(error))
    return ours[-1] if ours else str(error).splitlines()[0]


def main() -> int:
    """Exit status 0: the range is copied; 1: it is not, and one line says why."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--option", type=pair, action="append", default=[], help="NAME=VALUE, of the read")
    add("--from", dest="start", default="earliest", help="sequence, time, -10m, or startingOffsets")
    add("--to", dest="end", default="latest", help="last sequence, or endingOffsets")
    add("--where", default="true", help="SQL: which rows, such as \"subject LIKE 'flights.A%%'\"")
    add("--output", help="folder of the Parquet files")
    add("--target", type=pair, action="append", help="NAME=VALUE, of a write instead of Parquet")
    add("--checkpoint", help="folder of the query's position (OUTPUT/_checkpoint)")
    add("--partition-by", nargs="+", default=[], help="columns, such as day, partition, stream")
    add("--batch", type=int, default=1_000_000, help="rows of a batch (%(default)s)")
    given = parser.parse_args()
    if bool(given.output) == bool(given.target) or (given.target and not given.checkpoint):
        parser.error("give --output, or --target with --checkpoint")
    spark = SparkSession.builder.appName("range backfill").getOrCreate()
    try:
        follow(start(spark, given))
    except PySparkException as error:
        print(f"failed: {reason(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
