"""
A streaming query that makes alerts and windows of a source's rows, by an exactly-once sink; run by
test_layout_changes, which kills it.

It has a turn for each line of its input: the options of the source, and whether the turn ends with
what is there by now. After each one it writes the number of turns into the file `done`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery

ALERT_EVERY = 10
"""So many rows of a key make an alert."""


def end_with_parent() -> None:
    """Kills the driver and all that it started when the test is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


class Alerts(StatefulProcessor):
    """Counts the rows of each key, and marks those that make an alert."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "count INT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._count.get()
        count = before[0] if before is not None else 0
        for row in sorted(rows, key=lambda row: row.sequence):
            count += 1
            alert = row.n if count % ALERT_EVERY == 0 else None
            yield Row(key=key[0], n=row.n, time=row.time, alert=alert)
        self._count.update((count,))

    def close(self) -> None:
        pass


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def started(
    spark: SparkSession, source: dict[str, str], out: str, checkpoint: str, ends: bool
) -> StreamingQuery:
    words = f.split(f.col("data").cast("string"), " ")
    alerts = (
        spark.readStream.format("jetstream")
        .options(**source)
        .load()
        .select(
            f.element_at(f.split("subject", "[.]"), -2).alias("key"),
            words[0].alias("n"),
            words[1].cast("long").cast("timestamp").alias("time"),
            "sequence",
        )
        .withWatermark("time", "10 minutes")
        .groupBy("key")
        .transformWithState(
            Alerts(),
            "key STRING, n STRING, time TIMESTAMP, alert STRING",
            outputMode="append",
            timeMode="eventTime",
            eventTimeColumnName="time",
        )
    )
    text = f.concat_ws(
        " ",
        f.col("window.start").cast("long"),
        f.concat_ws(" ", "numbers"),
        f.lit("alerts"),
        f.concat_ws(" ", "alerts"),
    )
    windows = (
        alerts.groupBy("key", f.window("time", "30 seconds"))
        .agg(f.collect_list("n").alias("numbers"), f.collect_list("alert").alias("alerts"))
        .select(
            f.concat(f.lit(f"{out}."), "key").alias("subject"), text.cast("binary").alias("data")
        )
    )
    writer = (
        windows.writeStream.format("jetstream")
        .outputMode("append")
        .option("servers", source["servers"])
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if ends else writer).start()


def main(out: str, home: Path) -> None:
    spark = session()
    for turns, line in enumerate(sys.stdin, start=1):
        source, ends = json.loads(line)
        started(spark, source, out, str(home / "query"), ends).awaitTermination()
        (home / "done").write_text(str(turns))


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    main(sys.argv[1], Path(sys.argv[2]))
