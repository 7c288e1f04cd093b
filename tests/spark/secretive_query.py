"""
Reads, writes and queries with every kind of login, and mistakes with each; run by test_secrets.

What it is to do comes by standard input, so that no secret is in its arguments or environment. It
writes what a user may see of it below `HOME`, says so, and stays until it is told to end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

HOME = Path(os.environ["SECRETS_HOME"])


def session() -> SparkSession:
    """With a UI and an event log."""
    built = (
        SparkSession.builder.master("local[2]")
        .appName("secrets")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (HOME / "events").as_uri())
        .config("spark.local.dir", str(HOME / "local"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(HOME / "warehouse"))
    )
    return built.getOrCreate()


def explained(name: str, frame: DataFrame) -> DataFrame:
    """The frame, whose plans are written down in every form."""
    with (HOME / "plans").open("a") as file, redirect_stdout(file):
        file.write(f"{name} {frame} {frame._jdf.queryExecution().toString()}\n")
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    return frame


def failing(name: str, work: Any) -> None:
    """Does what cannot be done, and writes down all that is said of it."""
    with (HOME / "errors").open("a") as file:
        try:
            work()
            file.write(f"{name} NO ERROR\n")
        except Exception as error:
            file.write(f"{name} {error!r} {error} {error.args}\n")
            traceback.print_exc(file=file)


def copied(spark: SparkSession, name: str, options: dict[str, str]) -> None:
    """A stream read by a batch and by a query, each into another stream."""
    marked = {"inboxPrefix": f"_INBOX_marker-{name}", **options}
    rows = spark.read.format("jetstream").options(stream="IN", **marked).load()
    explained(name, rows.selectExpr("concat('out.', sequence) as subject", "data")).write.format(
        "jetstream"
    ).mode("append").options(exactlyOnce="true", metricsSubject="metrics", **marked).save()
    stream = spark.readStream.format("jetstream").options(stream="IN", queryName=name, **marked)
    query = (
        explained(name, stream.load().selectExpr("concat('too.', sequence) as subject", "data"))
        .writeStream.format("jetstream")
        .options(metricsSubject="metrics", **marked)
        .option("checkpointLocation", str(HOME / "checkpoints" / name))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    with (HOME / "plans").open("a") as file, redirect_stdout(file):
        query.explain(True)
    with (HOME / "progress").open("a") as file:
        file.writelines(progress.json + "\n" for progress in query.recentProgress)


def mistaken(
    spark: SparkSession, name: str, options: dict[str, str], in_options: bool = True
) -> None:
    """With the driver's word, and with a task's; also `in_options`, which reach no server."""

    def read(**changes: str) -> None:
        given = {"stream": "IN", "requestTimeout": "2s", "connectTimeout": "2s"}
        spark.read.format("jetstream").options(**(given | options | changes)).load().collect()

    failing(name, lambda: read(stream="MISSING"))
    if in_options:
        failing(name, lambda: read(nonsense="1"))
        failing(name, lambda: read(partitions="x"))
        failing(name, lambda: read(servers="nats://127.0.0.1:1"))
        failing(name, lambda: read(credentials="half", token="of", user="it"))
    rows = spark.createDataFrame(
        [("no.stream", "x"), ("$JS.API.INFO", "x")], "subject string, data string"
    )
    for each in ("false", "true"):
        failing(name, lambda each=each: rows.write.format("jetstream").mode("append").options(
            exactlyOnce=each, publishTimeout="2s", ackTimeout="500ms", **options
        ).save())  # fmt: skip


def main() -> None:
    spark = session()
    given = json.loads(sys.stdin.readline())
    for name, options in given["copied"].items():
        copied(spark, name, options)
    for name, options in given["mistaken"].items():
        mistaken(spark, name, options)
    for name, options in given["refused"].items():
        # The options of the others are those of a login above.
        mistaken(spark, name, options, in_options=name == "url")
    web = spark.sparkContext.uiWebUrl
    sys.stdout.write(f"done {web} {spark.sparkContext.applicationId}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    main()
