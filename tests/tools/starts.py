"""
Processes for tests: they start in a third of the time, and are otherwise the same.

What a start reads and compiles is kept compiled, in the environment of the tests alone: PySpark in
a `SPARK_HOME` whose `pyspark.zip` is a directory, classes of JVMs in an archive (JEP 350; through
`JDK_JAVA_OPTIONS`), and test modules. `make test` writes it once; without it all starts as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..kits.places import ROOT

_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
_JAVA: Final = "JDK_JAVA_OPTIONS"
_HOME: Final = "SPARK_HOME"
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"

_WARM_UP: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from tests.kits.servers import DevServer

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
    assert gateway.proc.wait(900) == 0
"""


def start_fast() -> None:
    """Every Spark that this process and its children start from now on starts faster."""
    os.environ.pop(_NO_BYTECODE, None)
    if _HOME not in os.environ and (_home() / "bin").exists():
        os.environ[_HOME] = str(_home())
    where = _archive()
    if where is not None and where.exists() and _JAVA not in os.environ:
        os.environ[_JAVA] = f"{_LIGHT} -XX:SharedArchiveFile={where}"


def write_home() -> None:
    """Makes the `SPARK_HOME`, unless it is there: links into the installed PySpark."""
    home, installed = _home(), _installed()
    if home.exists():
        return
    draft = home.with_suffix(".draft")
    lib = draft / "python" / "lib"
    lib.mkdir(parents=True)
    for each in ("bin", "sbin", "jars", "data", "examples", "licenses"):
        if (installed / each).exists():
            (draft / each).symlink_to(installed / each)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        if archive.name == "pyspark.zip":
            (lib / archive.name).mkdir()
            (lib / archive.name / "pyspark").symlink_to(installed)
        else:
            (lib / archive.name).symlink_to(archive)
    draft.rename(home)


def write_archive(scratch: Path) -> None:
    """Writes the archive of the JVM's classes, unless it is there; a `RuntimeError` if it fails."""
    where = _archive()
    if where is None or where.exists():
        return
    draft = where.with_suffix(".draft")
    environment = os.environ | {
        _JAVA: f"{_LIGHT} -XX:ArchiveClassesAtExit={draft}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = [sys.executable, "-c", _WARM_UP, str(scratch)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"the program that warms a JVM up failed: {done.stderr[-500:]}")
    if not draft.exists():
        sys.stderr.write(f"this Java keeps no classes, JVMs start as ever: {done.stderr[-500:]}\n")
        return
    draft.rename(where)


def write_bytecode() -> None:
    """Compiles the modules of the package and of the tests."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    environment = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=1200)


def _installed() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _home() -> Path:
    return Path(sys.prefix) / f"spark-home-{version('pyspark')}"


def _archive() -> Path | None:
    """Where the archive of this Java and this PySpark belongs; None without a Java."""
    try:
        java = subprocess.run(["java", "-version"], capture_output=True, timeout=300).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    key = f"{version('pyspark')} {_home()}".encode()
    return Path(sys.prefix) / f"spark-{hashlib.sha256(java + key).hexdigest()[:16]}.jsa"


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    write_home()
    start_fast()
    write_bytecode()
    with TemporaryDirectory() as _scratch:
        write_archive(Path(_scratch))
