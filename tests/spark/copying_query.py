"""A streaming query that copies a stream, plain rows on executors; test_round_trip kills it."""

from __future__ import annotations

import json
import sys
import threading

from tests.kits.drivers import end_with_parent

KEY = "split(subject, '[.]')[2]"
COLUMNS = {
    "plain": [f"concat('OUT.', {KEY}) AS subject", "data", "headers"],
    "bucket": [
        f"{KEY} AS key",
        "CASE WHEN int(string(data)) % 7 = 3 THEN 'delete'"
        " WHEN int(string(data)) % 11 = 5 THEN 'purge' ELSE 'put' END AS operation",
        "IF(int(string(data)) % 7 = 3 OR int(string(data)) % 11 = 5, NULL, data) AS value",
    ],
    "counters": [
        f"concat('OUT.', {KEY}) AS subject", "CAST(string(data) AS BIGINT) % 10 - 3 AS increment"
    ],
}  # fmt: skip
"""What is written of each message, by the kind of write."""


def main(source: dict[str, str], sink: dict[str, str], kind: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]" if kind == "plain" else "local[2,8]")
        .config("spark.executor.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.deploy.maxExecutorRetries", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        spark.readStream.format("jetstream")
        .options(**source)
        .load()
        .selectExpr(*COLUMNS[kind])
        .writeStream.format("jetstream")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    main(*json.loads(sys.argv[1]))
