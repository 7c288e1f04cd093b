"""
Spark's JVM for tests: starts in a third of the time, and is otherwise the same.

A test that kills a driver needs a cold one each time, and a cold JVM spends most of its start on
reading and compiling classes. `JDK_JAVA_OPTIONS`, which every JVM that tests start inherits, says
to compile lightly and to take the classes from an archive (class data sharing, JEP 350). `make
test` writes the archive once, by running this module; without one JVMs start as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

__all__ = ["archive", "use_archive", "write_archive"]

_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
_VARIABLE: Final = "JDK_JAVA_OPTIONS"

_WARM_UP: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.devserver import DevServer

home = Path(sys.argv[1])
with DevServer() as server:
    client = Client(parse_connection({"servers": server.url}))
    JetStream(client).create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
    client.close()
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.sql.shuffle.partitions", "2").getOrCreate())
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(100).selectExpr("concat('s.', id) as subject", "string(id) as data")
    rows.write.format("jetstream").option("servers", server.url).mode("append").save()
    read = spark.read.format("jetstream").options(servers=server.url, stream="S").load()
    read.groupBy("partition").count().collect()
    read.select("subject", "data").write.parquet(str(home / "parquet"))
    spark.read.parquet(str(home / "parquet")).count()
    stream = spark.readStream.format("jetstream").options(servers=server.url, stream="S").load()
    query = (stream.writeStream.foreachBatch(lambda batch, number: batch.collect())
             .option("checkpointLocation", str(home / "checkpoint"))
             .trigger(availableNow=True).start())
    query.awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # which ends the JVM, and it writes the archive
    assert gateway.proc.wait(200) == 0
"""


def archive() -> Path | None:
    """Where the archive of this Java and this PySpark belongs; None without a Java."""
    try:
        java = subprocess.run(["java", "-version"], capture_output=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    name = hashlib.sha256(java + version("pyspark").encode()).hexdigest()[:16]
    return Path(sys.prefix) / f"spark-{name}.jsa"


def use_archive() -> None:
    """Every JVM that this process and its children start from now on starts faster."""
    where = archive()
    if where is not None and where.exists() and _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = f"{_LIGHT} -XX:SharedArchiveFile={where}"


def write_archive(home: Path) -> None:
    """Writes the archive, unless it is there."""
    where = archive()
    if where is None or where.exists():
        return
    draft = where.with_suffix(".draft")
    environment = os.environ | {
        _VARIABLE: f"{_LIGHT} -XX:ArchiveClassesAtExit={draft}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = [sys.executable, "-c", _WARM_UP, str(home)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode or not draft.exists():
        sys.stderr.write(f"no archive, JVMs start as ever: {done.stderr[-500:]}\n")
        return
    draft.rename(where)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as _home:
        write_archive(Path(_home))
