"""Jobs whose tasks fail at first; each line of input names one, each of output its result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.taskcontext import TaskContext

from pyspark_jetstream.datasource import JetStreamDataSource


def read(spark: SparkSession, options: dict[str, str], home: str) -> list[int]:
    """A query whose tasks fail after their first rows: how many rows, and which, it had."""

    @udf("boolean", useArrow=False)
    def fine(sequence: int) -> bool:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and sequence > 20_000:
            Path(home, f"failed-{context.partitionId()}").touch()
            raise RuntimeError("the first attempt fails after its first rows")
        return True

    seen: list[int] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(row.sequence for row in batch.select("sequence", "ok").collect() if row.ok)

    rows = spark.readStream.format("jetstream").options(**options).load()
    query = rows.withColumn("ok", fine("sequence")).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", f"{home}/c").trigger(availableNow=True)
    assert query.start().awaitTermination(400)
    return [len(seen), len(set(seen)), min(seen), max(seen)]


def write(spark: SparkSession, url: str, streams: list[str], home: str, how: str) -> None:
    """Writes whose tasks fail after they have published rows: with ids, and without."""

    @udf("string")
    def fragile(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < 2 and int(value) % 1000 == 900:
            raise RuntimeError("as planned")
        return value.ljust(2000)  # more than the buffers between Spark's processes hold back

    numbers = spark.range(0, 4000, numPartitions=4).selectExpr("cast(id as string) as value")
    if how == "stream":
        numbers.write.text(f"{home}/in")
        numbers = spark.readStream.format("text").load(f"{home}/in")
    rows = numbers.select(fragile("value").alias("data"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    for name, ids in zip(streams, ("true", "false"), strict=True):
        options = {"servers": url, "subject": f"{name}.a", "exactlyOnce": ids}
        if how == "batch":
            rows.write.format("jetstream").mode("append").options(**options).save()
        else:
            query = rows.writeStream.format("jetstream").options(**options)
            query = query.option("checkpointLocation", f"{home}/{name}").trigger(availableNow=True)
            query.start().awaitTermination()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(JetStreamDataSource)
    jobs: dict[str, Any] = {"read": read, "write": write}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps({"result": jobs[name](spark, *arguments)}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
