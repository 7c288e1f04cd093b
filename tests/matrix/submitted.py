"""Programs that run as they are, or through spark-submit, and how executors get the package."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.options import connection_of
from ..kits.standalone import Standalone
from .room import COPIED, KILLED, SMOKE, TIMEOUT_S, Room, WrongError, judge, spark_of


def local(room: Room) -> Path:
    """`python program.py`."""
    python = room.environments.installed(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    said = room.run([python, SMOKE, room.task(master="local[*]")], environment)
    judge(room, said, python)
    return python


def killed(room: Room) -> Path:
    """A driver that copies while messages come, killed again and again; what it stored."""
    python = room.environments.installed(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    client = Client(connection_of(room.server.url))
    js = JetStream(client)
    for p in range(2):
        name = f"{room.source}-{p}"
        js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    lives = 5
    for life in range(1, lives + 1):
        with (room.folder / f"life-{life}.log").open("wb") as log:
            driver = subprocess.Popen(
                [python, KILLED, room.task()], stdout=log, stderr=subprocess.STDOUT,
                env=environment, cwd=room.folder, start_new_session=True,
            )  # fmt: skip
        wanted = COPIED * life // lives
        deadline = time.monotonic() + TIMEOUT_S
        try:
            for i in range(wanted - COPIED // lives, wanted):
                p, stream = i % 2, f"{room.source}{'' if i % 4 < 2 else f'-{i % 2}'}"
                js.publish(f"{stream}.{p}.{i % 10}", b"%d" % i, [])
            enough = wanted - random.randrange(100) if life < lives else wanted
            while js.stream_info(room.target).messages < enough:
                if driver.poll() is not None or time.monotonic() > deadline:
                    raise WrongError(Path(log.name).read_text(errors="replace")[-3000:])
                time.sleep(0.1)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)
    copied = {js.message_get(room.target, seq=s).data for s in range(1, COPIED + 1)}
    client.close()
    if len(copied) != COPIED:
        raise WrongError(f"{len(copied)} of {COPIED} messages are different")
    return python


def _submit(room: Room, master: str, environment: dict[str, str], words: list[str],
            **task: Any) -> str:  # fmt: skip
    command = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
    conf = ("spark.ui.enabled=false", "spark.executor.memory=600m", "spark.executor.cores=1",
            "spark.cores.max=2", "spark.sql.shuffle.partitions=2")  # fmt: skip
    settings = [word for each in conf for word in ("--conf", each)]
    return room.run(
        [command, "--master", master, *settings, *words, SMOKE, room.task(**task)], environment
    )


@contextmanager
def _cluster(room: Room, environment: dict[str, str]) -> Iterator[Standalone]:
    """A master and two workers of one core each."""
    with Standalone(Path(environment["SPARK_HOME"]), room.folder, environment) as cluster:
        for name in ("worker-1", "worker-2"):
            cluster.add_worker(name, 1, "700m")
        yield cluster


def local_cluster(room: Room) -> Path:
    python = room.environments.installed(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    said = _submit(room, "local-cluster[2,1,700]", environment, [])
    judge(room, said, python)
    return python


def standalone(room: Room) -> Path:
    python = room.environments.installed(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    with _cluster(room, environment) as cluster:
        said = _submit(room, cluster.url, environment, [])
    judge(room, said, python)
    return python


def archives(room: Room) -> Path:
    """The hosts have Spark and a Python, and nothing else; driver and executors unpack the rest."""
    spark = spark_of(room.environments.dependencies(room.cell.python, room.cell.spark))
    to_pack = room.environments.to_pack(room.cell.python)
    archive = room.folder / "environment.tar.gz"
    room.run(
        [to_pack.parent / "venv-pack", "--quiet", "--output", archive],
        room.environ(to_pack, spark, VIRTUAL_ENV=str(to_pack.parents[1])),
    )
    with tarfile.open(archive) as packed:
        packed.extractall(room.folder / "environment", filter="fully_trusted")
    environment = room.environ("./environment/bin/python", spark)
    with _cluster(room, environment) as cluster:
        words = ["--archives", f"{archive.name}#environment"]
        said = _submit(room, cluster.url, environment, words)
    workers = judge(room, said, None)["workers"]
    if not all("/worker-" in path for path in workers):  # the folders that executors unpack into
        raise WrongError(f"executors ran {workers}")
    return to_pack


def py_files(room: Room) -> Path:
    """The hosts have what the package needs, but not the package."""
    python = room.environments.dependencies(room.cell.python, room.cell.spark)
    archive = room.folder / "pyspark_jetstream.zip"
    with zipfile.ZipFile(room.environments.wheel) as wheel, zipfile.ZipFile(archive, "w") as file:
        for name in wheel.namelist():
            if name.startswith("pyspark_jetstream/"):
                file.writestr(name, wheel.read(name))
    environment = room.environ(python, spark_of(python))
    with _cluster(room, environment) as cluster:
        said = _submit(room, cluster.url, environment, ["--py-files", str(archive)], register=True)
    package = judge(room, said, python)["package"]
    if archive.name not in package:
        raise WrongError(f"the package came from {package}")
    return python


def py_files_wheel(room: Room) -> Path:
    python = room.environments.dependencies(room.cell.python, room.cell.spark)
    environment = room.environ(python, spark_of(python))
    words = ["--py-files", str(room.environments.wheel)]
    try:
        said = _submit(room, "local[1]", environment, words, register=True)
    except WrongError as error:
        if "OptionError: option '--py-files'" in str(error):
            return python
        raise
    raise WrongError(f"a wheel was not refused: {said[-2000:]}")
