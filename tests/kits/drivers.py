"""What programs that tests run as drivers have in common: a small session, and their end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def session() -> SparkSession:
    """Two task slots, no UI, and errors alone in the log."""
    from pyspark.sql import SparkSession

    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def note_pids(spark: SparkSession, home: Path) -> None:
    """Writes the process ids of the driver and of its JVM to `pids`, for whoever kills them."""
    jvm = spark._jvm
    assert jvm is not None
    (home / "pids").write_text(f"{os.getpid()} {jvm.ProcessHandle.current().pid()}")


def until_told(spark: SparkSession, query: StreamingQuery, home: Path) -> None:
    """Lets a query run until the file `stop` is there; raises what has ended it before."""
    while query.isActive and not (home / "stop").exists():
        time.sleep(0.1)
    error = query.exception()
    query.stop()
    spark.stop()
    if error is not None:
        raise error


def end_with_parent() -> None:
    """Kills the driver and all of its session when who started it is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
