"""
A driver: one query with a standby, until it is killed.

Beside its checkpoint it leaves `rows-<batch>`, with their sequences, when a batch's rows are there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..endurance.query import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(home: Path, options: dict[str, str], sink: dict[str, str] | None) -> None:
    """
    Runs the query; never returns.

    Args:
        sink: options of a write of ours, which takes the place of those files.
    """
    spark = session(home, None)

    def keep(batch: DataFrame, number: int) -> None:
        sequences = sorted(row.sequence for row in batch.select("sequence").collect())
        path = home / f"rows-{number:06}"
        path.with_suffix(".new").write_text(json.dumps(sequences))
        path.with_suffix(".new").rename(path)

    rows = spark.readStream.format("jetstream").options(**options).load()
    if sink is None:
        writer = rows.writeStream.foreachBatch(keep)
    else:
        rows = rows.selectExpr("concat('t', substr(subject, 2)) subject", "data")
        writer = rows.writeStream.format("jetstream").options(**sink)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
