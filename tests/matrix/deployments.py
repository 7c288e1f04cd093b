"""Each way to deploy, with each Spark; each Python and Java on one machine (`make matrix`)."""

import json
import os
import random
import signal
import subprocess
import tarfile
import time
import zipfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.options import connection_of
from ..kits.servers import DevServer, free_ports
from .environments import Environments, build_wheel, java_home
from .standalone import Standalone

PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("4.3.0", "4.2.1", "4.1.4")
JAVAS = ("17", "21", "25")

HERE = Path(__file__).parent
COPIED = 800
"""Messages that each cell copies."""

LAST = list(range(COPIED - 10, COPIED))
"""What the last messages of the ten subjects hold."""

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def server():
    with DevServer() as server:
        yield server


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    folder = Path(os.environ.get("MATRIX_FOLDER") or tmp_path_factory.mktemp("environments"))
    folder.mkdir(parents=True, exist_ok=True)
    return Environments(folder.resolve(), build_wheel(tmp_path_factory.mktemp("wheel")))


class Room:
    """What one cell has to itself: a folder, two streams of a server, versions."""

    def __init__(self, folder, environments, server, js, spark, python, java):
        self.folder, self.environments, self.server, self.js = folder, environments, server, js
        self.spark, self.python, self.java = spark, python, java
        self._home = java_home(java)
        self.source, self.target = (f"{each}{time.monotonic_ns()}" for each in ("S", "T"))
        for name in (self.source, self.target):
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

    def task(self, **more):
        """What smoke.py is told."""
        return json.dumps(
            {"servers": self.server.url, "source": self.source, "target": self.target,
             "checkpoint": str(self.folder / "checkpoint")} | more
        )  # fmt: skip

    def environ(self, python, home, **more):
        """A shell's in which only this is installed; by default the Spark of the interpreter."""
        ours = ("PYTHON", "PYSPARK", "SPARK", "JAVA", "JDK_JAVA", "VIRTUAL_ENV")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        path = [str(Path(python).parent), str(self._home / "bin"), clean["PATH"]]
        return clean | {
            "PATH": os.pathsep.join(path), "JAVA_HOME": str(self._home), "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short-lived JVMs
        } | more  # fmt: skip

    def of(self, kind="installed"):
        """An interpreter of the cell's versions, and a shell's environment of it."""
        python = getattr(self.environments, kind)(self.python, self.spark)
        return python, self.environ(python, spark_of(python))

    def run(self, words, environment):
        """What it prints to both; red if it fails."""
        with (self.folder / "run.log").open("w+") as log:
            done = subprocess.run(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.folder,
                timeout=TIMEOUT_S,
            )  # fmt: skip
            log.seek(0)
            said = log.read()
        assert not done.returncode, said[-3000:]
        return said

    def submit(self, master, environment, *words, **task):
        """`spark-submit` of smoke.py."""
        command = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
        conf = ("spark.ui.enabled=false", "spark.executor.memory=600m", "spark.executor.cores=1",
                "spark.cores.max=2", "spark.sql.shuffle.partitions=2")  # fmt: skip
        settings = [word for each in conf for word in ("--conf", each)]
        words = [command, "--master", master, *settings, *words, HERE / "smoke.py"]
        return self.run([*words, self.task(**task)], environment)

    def submit_to_workers(self, environment, *words, **task):
        """To a master and two workers of one core each."""
        with Standalone(Path(environment["SPARK_HOME"]), self.folder, environment) as cluster:
            for name in ("worker-1", "worker-2"):
                cluster.add_worker(name, 1, "700m")
            return self.submit(cluster.url, environment, *words, **task)

    def judge(self, said, workers):
        """The RESULT line of smoke.py, if it is what it should be."""
        _, told, behind = said.rpartition("RESULT ")  # Spark's progress may stand before it
        assert told, said[-3000:]
        result = json.loads(behind.splitlines()[0])
        wanted = {"copied": COPIED, "different": COPIED, "snapshot": LAST, "spark": self.spark}
        if workers is not None:
            wanted["workers"] = [str(workers)]
        assert {name: result[name] for name in wanted} == wanted
        for name, version in (("python", self.python), ("java", self.java)):
            assert f"{result[name]}.".startswith(f"{version}.")
        return result


def spark_of(python):
    """The Spark that pip installed for an interpreter."""
    (found,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    return found


def local(room):
    """`python program.py`, without pandas."""
    python, environment = room.of()
    said = room.run([python, HERE / "smoke.py", room.task(master="local[*]")], environment)
    room.judge(said, python)


def killed(room):
    """A driver that copies two layouts while messages come, killed four times with `kill -9`."""
    python, environment = room.of()
    for p in range(2):
        name = f"{room.source}-{p}"
        room.js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    lives = 5
    for life in range(1, lives + 1):
        with (room.folder / f"life-{life}.log").open("wb") as log:
            driver = subprocess.Popen(
                [python, HERE / "killed.py", room.task()], stdout=log, stderr=subprocess.STDOUT,
                env=environment, cwd=room.folder, start_new_session=True,
            )  # fmt: skip
        wanted = COPIED * life // lives
        deadline = time.monotonic() + TIMEOUT_S
        try:
            for i in range(wanted - COPIED // lives, wanted):
                stream = f"{room.source}{'' if i % 4 < 2 else f'-{i % 2}'}"
                room.js.publish(f"{stream}.{i % 2}.{i % 10}", b"%d" % i, [])
            enough = wanted - random.randrange(100) if life < lives else wanted
            while room.js.stream_info(room.target).messages < enough:
                assert driver.poll() is None and time.monotonic() < deadline, Path(log.name)
                time.sleep(0.1)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)
    copied = {room.js.message_get(room.target, seq=s).data for s in range(1, COPIED + 1)}
    assert len(copied) == COPIED


def local_cluster(room):
    """Two executors on one machine."""
    python, environment = room.of()
    room.judge(room.submit("local-cluster[2,1,700]", environment), python)


def standalone(room):
    """A master and two workers."""
    python, environment = room.of()
    room.judge(room.submit_to_workers(environment), python)


def archives(room):
    """The hosts have Spark and a Python, and nothing else; driver and executors unpack the rest."""
    spark = spark_of(room.environments.dependencies(room.python, room.spark))
    to_pack = room.environments.to_pack(room.python)
    archive = room.folder / "environment.tar.gz"
    room.run(
        [to_pack.parent / "venv-pack", "--quiet", "--output", archive],
        room.environ(to_pack, spark, VIRTUAL_ENV=str(to_pack.parents[1])),
    )
    with tarfile.open(archive) as packed:
        packed.extractall(room.folder / "environment", filter="fully_trusted")
    environment = room.environ("./environment/bin/python", spark)
    said = room.submit_to_workers(environment, "--archives", f"{archive.name}#environment")
    # The folders that executors unpack into.
    assert all("/worker-" in path for path in room.judge(said, None)["workers"])


def py_files(room):
    """The hosts have what the package needs, but not the package."""
    python, environment = room.of("dependencies")
    archive = room.folder / "pyspark_jetstream.zip"
    with zipfile.ZipFile(room.environments.wheel) as wheel, zipfile.ZipFile(archive, "w") as file:
        for name in wheel.namelist():
            if name.startswith("pyspark_jetstream/"):
                file.writestr(name, wheel.read(name))
    said = room.submit_to_workers(environment, "--py-files", str(archive), register=True)
    assert archive.name in room.judge(said, python)["package"]


def connect(room):
    """Spark Connect, its server started by the program."""
    python, environment = room.of("connect")
    room.judge(
        room.run([python, HERE / "smoke.py", room.task(remote="local[2]")], environment), python
    )


def connect_server(room):
    """The server has the wheel; the client is `pyspark-client` alone."""
    python, environment = room.of("connect")
    client = room.environments.client(room.python)
    with connect_daemon(room, environment) as port:
        words = [client, HERE / "smoke.py", room.task(remote=f"sc://127.0.0.1:{port}")]
        said = room.run(words, {"PATH": environment["PATH"]})
    assert room.judge(said, python)["package"] is None


@contextmanager
def connect_daemon(room, environment):
    """`start-connect-server.sh` in the foreground; its port."""
    (port,) = free_ports(1)
    words = [
        Path(environment["SPARK_HOME"]) / "bin" / "spark-submit",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "spark-internal",
    ]  # fmt: skip
    log, folder = room.folder / "server.log", room.folder / "server"
    folder.mkdir()
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment, cwd=folder,
        )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while "Spark Connect server started" not in (said := log.read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < end, said[-2000:]
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


OTHERS = [killed, standalone, local_cluster, archives, py_files, connect, connect_server]
CELLS = [(local, s, p, JAVAS[0]) for s in SPARKS for p in PYTHONS]
CELLS += [(local, s, PYTHONS[0], j) for s in SPARKS for j in JAVAS[1:]]
CELLS += [(local, SPARKS[0], PYTHONS[-1], JAVAS[-1])]
CELLS += [(how, s, PYTHONS[0], JAVAS[0]) for how in OTHERS for s in SPARKS]


@pytest.mark.parametrize(
    ("how", "spark_version", "python", "java"), CELLS, ids=lambda of: getattr(of, "__name__", of)
)
def test_a_cell(server, environments, tmp_path, how, spark_version, python, java):
    """Written, read twice from one checkpoint, copied exactly once, and a snapshot of it."""
    with closing(Client(connection_of(server.url))) as client:
        js = JetStream(client)
        room = Room(tmp_path, environments, server, js, spark_version, python, java)
        how(room)
        assert js.stream_info(room.target).messages == COPIED
