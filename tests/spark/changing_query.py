"""
A streaming query that makes windows of a source's rows, by an exactly-once sink; run by
test_layout_changes, which kills it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time


def end_with_parent() -> None:
    """Kills the driver and all that it started when the test is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def main(source: dict[str, str], out: str, checkpoint: str, ends: bool) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    words = f.split(f.col("data").cast("string"), " ")
    windows = (
        spark.readStream.format("jetstream")
        .options(**source)
        .load()
        .select(
            f.element_at(f.split("subject", "[.]"), -2).alias("key"),
            words[0].alias("n"),
            words[1].cast("long").cast("timestamp").alias("time"),
        )
        .withWatermark("time", "10 minutes")
        .groupBy("key", f.window("time", "30 seconds"))
        .agg(f.collect_list("n").alias("numbers"))
        .select(
            f.concat(f.lit(f"{out}."), "key").alias("subject"),
            f.concat_ws(" ", f.col("window.start").cast("long"), f.concat_ws(" ", "numbers"))
            .cast("binary")
            .alias("data"),
        )
    )
    writer = (
        windows.writeStream.format("jetstream")
        .outputMode("append")
        .option("servers", source["servers"])
        .option("checkpointLocation", checkpoint)
    )
    if ends:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    main(*json.loads(sys.argv[1]))
