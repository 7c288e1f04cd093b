"""
A streaming query that copies one stream into another on a standalone cluster, until a file says
stop; run by test_executors. It keeps the file of its executors' task counts fresh.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def end_with_parent() -> None:
    """Kills the driver and what it started when the test is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def tasks(spark: Any) -> dict[str, int]:
    """Tasks that each executor has finished, also those that are gone."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    each = (listed.apply(at) for at in range(listed.size()))
    return {e.id(): e.completedTasks() for e in each if e.id() != "driver"}


def main(master: str, source: dict[str, str], sink: dict[str, str], out: str, home: str) -> int:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.cores.max", "8")
        .config("spark.executor.cores", "2")
        .config("spark.executor.memory", "600m")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.task.maxFailures", "8")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    query = (
        spark.readStream.format("jetstream")
        .options(**source)
        .load()
        .selectExpr(f"concat('{out}.', partition) AS subject", "data")
        .writeStream.format("jetstream")
        .options(**sink)
        .option("checkpointLocation", str(Path(home) / "checkpoint"))
        .start()
    )
    counts, draft = Path(home) / "tasks.json", Path(home) / "tasks.draft"
    while query.isActive and not (Path(home) / "stop").exists():
        draft.write_text(json.dumps(tasks(spark)))
        draft.rename(counts)
        time.sleep(0.2)
    error = query.exception()
    query.stop()
    spark.stop()
    if error is not None:
        sys.stdout.write(f"ENDED {error}\n")
    return 1 if error is not None else 0


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(main(*json.loads(sys.argv[1])))
