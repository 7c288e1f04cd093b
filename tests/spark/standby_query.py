"""
A streaming query with a standby, run by test_standby until it is killed or told to stop.

Writes the numbers of what each batch delivered to `delivered-<name>-<batch>` in its home, an empty
batch included. While `hold-<name>` is there, it delivers nothing, and says so in `held-<name>`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.kits.drivers import session


def main(home: Path, name: str, options: dict[str, str]) -> None:
    from pyspark.sql import DataFrame

    spark = session()

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(int(row.data[1:]) for row in batch.select("data").collect())
        while rows and (home / f"hold-{name}").exists():
            (home / f"held-{name}").touch()
            time.sleep(0.1)
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
    while query.isActive and not (home / name / "stop").exists():
        time.sleep(0.1)
    error = query.exception()
    query.stop()
    spark.stop()
    if error is not None:
        raise error


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
