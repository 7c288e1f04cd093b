"""
Publishes dead letters as the rows that they were.

    spark-submit jobs/replay_dead_letters.py --option stream=DEAD --checkpoint checkpoints/replay
    spark-submit jobs/replay_dead_letters.py --option stream=DEAD --checkpoint checkpoints/some \\
        --where "reason = 'QueueTimeout' AND subject LIKE 'dead.orders.%'"

It is a streaming query that ends at the end of the stream. Each row is published once: after a kill
run the same command again, and it goes on at its checkpoint; a later run publishes what has come
since. Messages that are no dead letters are left out. When it is done, `nats stream purge DEAD`
removes the dead letters.
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

from pyspark_jetstream import restored

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def pair(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE, or of NAME=@FILE: a secret that no list of processes shows."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("expected NAME=VALUE or NAME=@FILE")
    return name, Path(value[1:]).read_text().strip() if value.startswith("@") else value


def start(spark: SparkSession, given: argparse.Namespace) -> StreamingQuery:
    """The query, which is under way."""
    options = {"maxRecordsPerTrigger": str(given.batch), "includeHeaders": "true"}
    letters = spark.readStream.format("jetstream").options(**options, **dict(given.option)).load()
    reason = F.split(F.col("headers")["Jetstream-Sink-Reason"][0], ":")[0]
    rows = restored(letters.withColumn("reason", reason).where(given.where))
    writer = rows.writeStream.format("jetstream").options(**dict(given.target))
    writer = writer.option("checkpointLocation", given.checkpoint)
    return writer.trigger(availableNow=True).start()


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
    """Exit status 0: the dead letters are published; 1: not all, and one line says why."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--option", type=pair, action="append", default=[], help="NAME=VALUE, of the read")
    add("--target", type=pair, action="append", default=[], help="NAME=VALUE, of the write")
    add("--where", default="true", help="SQL: which dead letters, by reason and their columns")
    add("--checkpoint", required=True, help="folder of the query's position")
    add("--batch", type=int, default=1_000_000, help="dead letters of a batch (%(default)s)")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("replay of dead letters").getOrCreate()
    try:
        follow(start(spark, given))
    except PySparkException as error:
        print(f"failed: {reason(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
