"""What programs that tests run as drivers have in common: a small session, and their end."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def end_with_parent() -> None:
    """Kills the driver and all of its session when who started it is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
