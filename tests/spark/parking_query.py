"""
A streaming query of two subjects with `throttleParkStream`, run by test_parking until it is killed
or told to stop.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(home: Path, options: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark._jvm
    assert jvm is not None
    (home / "pids").write_text(f"{os.getpid()} {jvm.ProcessHandle.current().pid()}")
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1)
    name = options["stream"]
    query = (
        rows.load()
        .selectExpr(
            f"if(value % 2 = 0, '{name}.a', '{name}.b') as subject", "cast(value as string) as data"
        )
        .writeStream.format("jetstream")
        .options(**options)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
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
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
