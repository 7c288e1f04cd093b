"""How the package reaches Spark's workers on one machine; `make matrix` has clusters."""

from __future__ import annotations

import os
import subprocess
import sys

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
