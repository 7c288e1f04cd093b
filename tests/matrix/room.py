"""What one cell has to itself, and whether what ran there is right."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.options import connection_of
from ..kits.servers import DevServer
from .cells import Cell
from .environments import Environments

SMOKE = Path(__file__).with_name("smoke.py")
KILLED = Path(__file__).with_name("killed.py")
COPIED = 800
"""Messages that each cell copies, but one that is refused."""

LAST = list(range(COPIED - 10, COPIED))
"""What the last messages of the ten subjects hold."""

TIMEOUT_S = 300


class WrongError(Exception):
    """A cell that did not do what it should."""


@dataclass(frozen=True)
class Room:
    """What one cell has to itself: a folder, two streams of a server."""

    cell: Cell
    folder: Path
    environments: Environments
    java: Path
    server: DevServer
    source: str
    target: str

    def task(self, **more: Any) -> str:
        """What smoke.py is told."""
        return json.dumps(
            {"servers": self.server.url, "source": self.source, "target": self.target,
             "checkpoint": str(self.folder / "checkpoint")} | more
        )  # fmt: skip

    def publish(self, numbers: range) -> None:
        """What smoke.py writes by Spark."""
        client = Client(connection_of(self.server.url))
        js = JetStream(client)
        for i in numbers:
            js.publish(f"{self.source}.{i % 2}.{i % 10}", b"%d" % i, [])
        client.close()

    def environ(self, python: Path | str, spark: Path, **more: str) -> dict[str, str]:
        """A shell's in which only this is installed."""
        ours = ("PYTHON", "PYSPARK", "SPARK", "JAVA", "JDK_JAVA", "VIRTUAL_ENV")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        path = [str(Path(python).parent), str(self.java / "bin"), clean["PATH"]]
        return clean | {
            "PATH": os.pathsep.join(path), "JAVA_HOME": str(self.java), "SPARK_HOME": str(spark),
            "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short-lived JVMs
        } | more  # fmt: skip

    def run(self, words: list[str | Path], environment: dict[str, str]) -> str:
        """What it prints to both; an error if it fails."""
        with (self.folder / "run.log").open("w+") as log:
            done = subprocess.run(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.folder,
                timeout=TIMEOUT_S,
            )  # fmt: skip
            log.seek(0)
            said = log.read()
        if done.returncode:
            raise WrongError(f"exit status {done.returncode}: {said[-3000:]}")
        return said


def judge(room: Room, said: str, workers: Path | None) -> dict[str, Any]:
    """The RESULT line of smoke.py, if it is what it should be."""
    _, told, behind = said.rpartition("RESULT ")  # Spark's progress may stand before it
    if not told:
        raise WrongError(f"no result: {said[-3000:]}")
    result: dict[str, Any] = json.loads(behind.splitlines()[0])
    wanted = {"copied": COPIED, "different": COPIED, "snapshot": LAST, "spark": room.cell.spark}
    if workers is not None:
        wanted["workers"] = [str(workers)]
    for name, value in wanted.items():
        if result[name] != value:
            raise WrongError(f"{name} is {result[name]}, not {value}")
    for name, version in (("python", room.cell.python), ("java", room.cell.java)):
        if not f"{result[name]}.".startswith(f"{version}."):
            raise WrongError(f"{name} is {result[name]}, not {version}")
    return result


def spark_of(python: Path) -> Path:
    """The PySpark of an environment, as Spark's home."""
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    return home
