"""
A streaming query of two subjects with `throttleParkStream`, run by test_parking until it is killed
or told to stop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.kits.drivers import note_pids, session, until_told


def main(home: Path, options: dict[str, str]) -> None:
    spark = session()
    note_pids(spark, home)
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
    until_told(spark, query, home)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
