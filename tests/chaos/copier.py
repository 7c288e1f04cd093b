"""
The streaming query under test, as a program: copies `in.>` into `out.>` until a file says stop.

Ends with status 0 when it was told to, else with the query's error on a line `ENDED`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.kits.drivers import end_with_parent


def main(source: dict[str, str], sink: dict[str, str], own_ids: bool, home: str) -> int:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,8]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.pyspark.udf.faulthandler.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    columns = ["concat('out.', substring(subject, 4)) as subject", "data"]
    if own_ids:  # what two queries write has one id
        columns.append("concat(stream, '-', sequence) as msg_id")
    query: Any = (
        spark.readStream.format("jetstream")
        .options(**source)
        .load()
        .selectExpr(*columns)
        .writeStream.format("jetstream")
        .options(**sink)
        .option("checkpointLocation", str(Path(home) / "checkpoint"))
        .start()
    )
    stop = Path(home) / "stop"
    while query.isActive and not stop.exists():
        time.sleep(0.2)
    error = query.exception()
    if error is not None:
        sys.stdout.write(f"ENDED {json.dumps(str(error))}\n")
        sys.stdout.flush()
        os._exit(1)
    query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(main(*json.loads(sys.argv[1])))
