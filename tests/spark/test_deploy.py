"""How the package reaches a cluster: separate executors, spark-submit, --py-files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyspark_jetstream

JOB = """
import json, os, sys
from pyspark.sql import SparkSession

options, out, checkpoint, by_hand = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
if by_hand == "register":
    import pyspark_jetstream
    pyspark_jetstream.register(spark)
flights = spark.readStream.format("jetstream").options(**options).load()
copied = flights.selectExpr(f"concat('{out}.', partition) as subject", "data",
                            "string(sequence) as msg_id")
query = (copied.writeStream.format("jetstream").option("servers", options["servers"])
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination(120)
rows = (spark.read.format("jetstream").option("servers", options["servers"])
        .option("stream", out).load())
print("RESULT", json.dumps([rows.count(), rows.select("data").distinct().count(),
                            os.path.dirname(__import__("pyspark_jetstream").__file__)]))
spark.stop()
"""


def submit(tmp_path, arguments, job, **changes):
    """Runs the job through spark-submit; what it printed."""
    import pyspark

    script = tmp_path / "job.py"
    script.write_text(JOB)
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(Path(pyspark.__file__).parent),
    } | changes  # fmt: skip
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=1g", "--conf", "spark.log.level=ERROR",
            *arguments, str(script), *job,
        ],
        capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path,
    )  # fmt: skip
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    # PythonRunner sends the job's own errors to standard output.
    assert result, done.stdout[-4000:] + done.stderr[:4000]
    found: list[Any] = json.loads(result[0].removeprefix("RESULT "))
    return found


def test_py_files_with_register(new_stream, publish, nats_server, js, tmp_path):
    """Shipped with --py-files and registered by hand, source and sink work without an install."""
    name, out = new_stream(), new_stream()
    publish([(f"{name}.{i % 2}.x", b"m%d" % i) for i in range(2_000)])
    package = Path(pyspark_jetstream.__file__).parent
    archive = tmp_path / "pyspark_jetstream.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for module in package.rglob("*.py"):
            file.write(module, module.relative_to(package.parent))
    # An interpreter that has the dependencies but not the package: a directory on PYTHONPATH is
    # searched, but its .pth files (the editable install) are not read.
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    options = {"servers": nats_server.url, "stream": name, "partitions": 2,
               "partitionSubject": f"{name}.{{partition}}.>"}  # fmt: skip
    base = str(getattr(sys, "_base_executable", sys.executable))
    found = submit(
        tmp_path, ["--py-files", str(archive)],
        [json.dumps(options), out, str(tmp_path / "c"), "register"],
        PYTHONPATH=dependencies, PYSPARK_PYTHON=base, PYSPARK_DRIVER_PYTHON=base,
    )  # fmt: skip

    assert found[:2] == [2_000, 2_000]
    assert "pyspark_jetstream.zip" in found[2]


UNACTIVATED = """
import sys
import pyspark_jetstream
from pyspark.sql import SparkSession

servers, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
pyspark_jetstream.register(spark)
rows = spark.read.format("jetstream").option("servers", servers).option("stream", stream).load()
copied = (spark.readStream.format("jetstream").option("servers", servers).option("stream", stream)
          .load().selectExpr(f"'{stream}.copied' AS subject", "data"))
query = (copied.writeStream.format("jetstream").option("servers", servers)
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination(120)
print("RESULT", rows.count())
"""


def test_register_in_an_environment_that_is_not_activated(
    new_stream, publish, nats_server, tmp_path
):
    """Once registered, the format works with `venv/bin/python script.py`, whatever PATH has."""
    name = new_stream()
    publish([(f"{name}.x", b"%d" % i) for i in range(20)])
    stranger = tmp_path / "bin" / "python3"
    stranger.parent.mkdir()
    stranger.write_text("#!/bin/sh\nexit 7\n")
    stranger.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(UNACTIVATED)
    environment = os.environ | {"PATH": f"{stranger.parent}{os.pathsep}{os.environ['PATH']}"}
    for chosen in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(chosen, None)
    done = subprocess.run(
        [sys.executable, str(script), nats_server.url, name, str(tmp_path / "checkpoint")],
        capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path,
    )  # fmt: skip

    assert "RESULT 40" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
