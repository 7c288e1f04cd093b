"""One streaming query that runs until it is stopped, and the JVM that it runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..spark import documented_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLOWS: Final = {
    "trip": "a stream of ours, read and written to another, each row exactly once",
    "write": "Spark's own rows (format rate) into our sink",
    "read": "our source into nothing (format noop)",
    "spark": "Spark's own rows into nothing: nothing of ours",
}

_MIB: Final = float(1 << 20)


def session(home: Path, heap: str | None) -> SparkSession:
    """
    A local session on two cores, set as conf/spark-defaults.conf recommends.

    Args:
        heap: of the JVM, all of it resident from the beginning, so that what the process grows by
            lies elsewhere; None leaves it to Spark, whose heap of 1 GiB grows as it is used.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder: Any = (
        SparkSession.builder.master("local[2]")
        .appName("pyspark-jetstream bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map=dict(documented_settings()))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
    )
    if heap is not None:
        builder = builder.config("spark.driver.memory", heap).config(
            "spark.driver.extraJavaOptions", f"-Xms{heap} -XX:+AlwaysPreTouch"
        )
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def start(
    spark: SparkSession,
    flow: str,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    rate: int,
    home: Path,
) -> StreamingQuery:
    """Starts the query of a flow; batch follows batch without a pause."""
    if flow in ("trip", "read"):
        rows = spark.readStream.format("jetstream").options(**source).load()
    else:
        rows = _rates(spark, rate)
    writer = (
        rows.selectExpr("concat('b', substr(subject, 2)) subject", "data")
        .writeStream.format("jetstream")
        .options(**sink)
        if flow in ("trip", "write")
        else rows.writeStream.format("noop")
    )
    return writer.option("checkpointLocation", str(home / "checkpoint")).start()


def _rates(spark: SparkSession, rate: int) -> DataFrame:
    """Spark's own rows, in the shape of ours: numbers from 1 on, to two subjects."""
    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rate)
        .option("numPartitions", 2)
        .load()
    )
    return rows.selectExpr(
        "concat('a.', value % 2, '.rows') subject",
        "cast(concat(lpad(cast(value + 1 AS string), 12, '0'), repeat('.', 100)) AS binary) data",
    )


class Jvm:
    """The JVM of a session."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self.pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def look(self) -> dict[str, float]:
        """What it says of itself: heap in use, garbage included, and what lies beside the heap."""
        return {
            "jvm.heap_mib": self._used_mib(),
            "jvm.non_heap_mib": self._metric_mib("JVMOffHeapMemory"),
            "jvm.direct_mib": self._metric_mib("DirectPoolMemory"),
        }

    def collect(self) -> dict[str, float]:
        """What lives on the heap: in use after a forced collection."""
        self._jvm.java.lang.System.gc()
        return {"jvm.live_heap_mib": self._used_mib()}

    def _metric_mib(self, name: str) -> float:
        singleton = getattr(getattr(self._jvm.org.apache.spark.metrics, f"{name}$"), "MODULE$")
        return float(singleton.getMetricValue(None)) / _MIB

    def _used_mib(self) -> float:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        return float(runtime.totalMemory() - runtime.freeMemory()) / _MIB
