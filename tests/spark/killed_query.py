"""
A streaming query that SIGKILLs its own driver at a chosen point; run by test_faults.

The real source, subclassed only to die: `FAULT` names the point, and it is hit when the query has
seen `FAULT_AFTER` batches of this run. What every batch delivered is written to a file of its own
for each time it is delivered, so that the test can compare.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.tasks.rows import TaskRows
from tests.kits.drivers import session

HOME = Path(os.environ["FAULT_HOME"])
FAULT = os.environ.get("FAULT", "")
FAULT_AFTER = int(os.environ.get("FAULT_AFTER", "1"))


def seen() -> int:
    """Batches delivered by this run."""
    return len(list(HOME.glob(f"delivered-*-{os.environ['FAULT_RUN']}-*")))


def point(name: str) -> None:
    """Kills the JVM and the driver's Python, as a power cut would."""
    if name == FAULT and seen() >= FAULT_AFTER:
        for pid in reversed((HOME / "pids").read_text().split()):
            os.kill(int(pid), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingRows:
    """What tasks get of such a reader: its rows."""

    def __init__(self, rows: TaskRows) -> None:
        self._rows = rows

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in self._rows.read(partition):
            point("before the first row")
            yield batch
            point("after some rows")


def dying(reader: type[DataSourceStreamReader]) -> type[DataSourceStreamReader]:
    """The reader, with the points of a batch's life at which it may die."""

    class Dying(reader):
        def latestOffset(self, start: Any, limit: Any) -> Any:
            end = super().latestOffset(start, limit)
            if end != start:
                point("before the write-ahead log")
            return end

        def partitions(self, start: Any, end: Any) -> Any:
            point("after the write-ahead log")
            tasks = super().partitions(start, end)
            point("after planning")
            return tasks

        def __reduce__(self) -> Any:
            return DyingRows, (self.rows,)

        def commit(self, end: Any) -> None:
            point("before settling")
            super().commit(end)
            point("after settling")

    return Dying


class DyingDataSource(JetStreamDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: Any) -> Any:
        real = super().streamReader(schema)
        return dying(type(real))(parse_stream(dict(self.options)))


def main(options: dict[str, str]) -> None:
    from pyspark.sql import DataFrame

    spark = session()
    jvm = spark._jvm
    assert jvm is not None
    (HOME / "pids").write_text(f"{os.getpid()} {jvm.ProcessHandle.current().pid()}")
    spark.dataSource.register(DyingDataSource)

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(
            [row.partition, row.sequence, bytes(row.data).decode()] for row in batch.collect()
        )
        point("before the sink")
        run = os.environ["FAULT_RUN"]
        path = HOME / f"delivered-{batch_id:04d}-{run}-{uuid.uuid4().hex}"
        path.with_suffix(".tmp").write_text(json.dumps(rows))
        path.with_suffix(".tmp").rename(path)
        point("before the commit log")

    writer = (
        spark.readStream.format("dying")
        .options(**options)
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(HOME / "checkpoint"))
    )
    if "FAULT_STOP" not in os.environ:
        writer.trigger(availableNow=True).start().awaitTermination()
    else:  # until the test says so
        query = writer.start()
        while not Path(os.environ["FAULT_STOP"]).exists():
            if query.awaitTermination(0.2):
                break
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
