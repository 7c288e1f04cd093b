"""
A streaming query with a standby, run by test_standby until it is killed or told to stop.

Writes what each batch delivered to `delivered-<name>-<batch>` in its home, an empty batch included.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(home: Path, name: str, options: dict[str, str]) -> None:
    from pyspark.sql import DataFrame, SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(row.sequence for row in batch.select("sequence").collect())
        path = home / f"delivered-{name}-{batch_id:05d}"
        path.with_suffix(".tmp").write_text(json.dumps(rows))
        path.with_suffix(".tmp").rename(path)

    query = (
        spark.readStream.format("jetstream")
        .options(**options)
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(home / f"checkpoint-{name}"))
        .start()
    )
    while query.isActive and not (home / "stop").exists():
        time.sleep(0.1)
    error = query.exception()
    query.stop()
    spark.stop()
    if error is not None:
        raise error


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
