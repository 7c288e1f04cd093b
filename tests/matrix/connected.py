"""Clients of Spark Connect, Declarative Pipelines among them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .room import COPIED, LAST, SMOKE, Room, WrongError, judge, spark_of


def connect(room: Room) -> Path:
    python = room.environments.connect(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    said = room.run([python, SMOKE, room.task(remote="local[2]")], environment)
    judge(room, said, python)
    return python


def connect_server(room: Room) -> Path:
    """The server has the wheel; the client is `pyspark-client` alone."""
    python = room.environments.connect(room.cell.python, room.cell.spark)
    client = room.environments.client(room.cell.python)
    environment = room.environ(python, spark_of(python))
    with _connect_daemon(room, environment) as port:
        words = [client, SMOKE, room.task(remote=f"sc://127.0.0.1:{port}")]
        said = room.run(words, {"PATH": environment["PATH"]})
    if judge(room, said, python)["package"] is not None:
        raise WrongError("the client has the package")
    return python


@contextmanager
def _connect_daemon(room: Room, environment: dict[str, str]) -> Iterator[int]:
    """`start-connect-server.sh` in the foreground; its port."""
    port = _free_port()
    home = Path(environment["SPARK_HOME"])
    words = [
        home / "bin" / "spark-submit",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "spark-internal",
    ]  # fmt: skip
    log = room.folder / "server.log"
    folder = room.folder / "server"
    folder.mkdir()
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment, cwd=folder,
        )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while "Spark Connect server started" not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > end:
                raise WrongError(f"no server: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


FLOWS = Path(__file__).with_name("flows.py")
SPEC = """
name: matrix
storage: file://{folder}/storage
libraries:
  - glob:
      include: flows.py
configuration:
  matrix.servers: {servers}
  matrix.source: {source}
  matrix.target: {target}
"""


def pipelines(room: Room) -> Path:
    """A table of the stream, a view of that, a snapshot, and a sink; a second run adds the rest."""
    import pyarrow.parquet

    python = room.environments.connect(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    shutil.copy(FLOWS, room.folder / "flows.py")
    spec = room.folder / "spark-pipeline.yml"
    spec.write_text(SPEC.format(folder=room.folder, servers=room.server.url, source=room.source,
                                target=room.target))  # fmt: skip
    lasting = "spark.sql.catalogImplementation=hive"  # so that the second run finds the tables
    program = spark_of(python) / "bin" / "spark-pipelines"
    pipeline = [program, "run", "--spec", spec, "--conf", lasting]
    for first, behind in ((0, 500), (500, COPIED)):
        room.publish(range(first, behind))
        said = room.run(pipeline, environment)
    found = {
        name: pyarrow.parquet.read_table(room.folder / "spark-warehouse" / name).to_pylist()
        for name in ("flights", "by_subject", "last")
    }
    holds = {
        "flights": len(found["flights"]),
        "different": len({row["data"] for row in found["flights"]}),
        "by_subject": sum(row["count"] for row in found["by_subject"]),
        "last": sorted(int(row["data"]) for row in found["last"]),
    }
    if holds != {"flights": COPIED, "different": COPIED, "by_subject": COPIED, "last": LAST}:
        raise WrongError(f"the tables hold {holds}: {said[-2000:]}")
    return python
