"""A query, then a batch read whose log Spark collects; run by test_logs."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(servers: str, source: str, target: str, home: str, level: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    options = {"servers": servers} | ({"logLevel": level} if level else {})
    reading = {"stream": source, "onInvalidSubject": "replace"} | options
    rows = spark.readStream.format("jetstream").options(**reading).load()
    query = (
        rows.selectExpr(f"'{target}.a' as subject", "data")
        .writeStream.format("jetstream").options(**options).queryName("orders by day")
        .option("checkpointLocation", f"{home}/checkpoint").trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    spark.read.format("jetstream").options(**reading).load().collect()
    logged = spark.tvf.python_worker_logs().select("level", "logger", "msg", "context").collect()
    for row in logged:
        sys.stdout.write(f"collected {json.dumps(row.asDict(recursive=True))}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
