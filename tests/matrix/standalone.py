"""A standalone cluster of Spark on this machine: a master and workers, processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path


class Standalone:
    """One master; workers are added and killed by number."""

    def __init__(
        self, spark_home: Path, folder: Path, environment: Mapping[str, str], deadline_s: float = 90
    ) -> None:
        self._program = str(spark_home / "bin" / "spark-class")
        self._folder = folder
        # The daemons need little; a worker passes what it inherits on to its executors.
        self._environment = {**environment, "SPARK_DAEMON_MEMORY": "256m"}
        self._deadline_s = deadline_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def __enter__(self) -> Standalone:
        log = self._start("master", "org.apache.spark.deploy.master.Master",
                          "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")  # fmt: skip
        self.url = self._said("master", log, r"Starting Spark master at (spark://\S+)")
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name, signal.SIGTERM)

    def add_worker(self, name: str, cores: int, memory: str) -> int:
        """A worker that the master knows; its process id."""
        work = self._folder / name
        log = self._start(name, "org.apache.spark.deploy.worker.Worker", self.url,
                          "--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores),
                          "--memory", memory, "--work-dir", str(work))  # fmt: skip
        self._said(name, log, r"(Successfully registered with master)")
        return self._processes[name].pid

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends master or worker."""
        process = self._processes.pop(name)
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)

    def _start(self, name: str, main: str, *words: str) -> Path:
        log = self._folder / f"{name}-{time.monotonic_ns()}.log"
        with log.open("wb") as file:
            # spark-class replaces itself by the JVM, so the process is the daemon.
            self._processes[name] = subprocess.Popen(
                [self._program, main, *words], stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, env=self._environment, cwd=self._folder,
            )  # fmt: skip
        return log

    def _said(self, name: str, log: Path, pattern: str) -> str:
        """What a daemon writes once it is ready."""
        end = time.monotonic() + self._deadline_s
        while time.monotonic() < end and self._processes[name].poll() is None:
            if found := re.search(pattern, log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.1)
        raise TimeoutError(f"{name} is not ready: {log.read_text(errors='replace')[-2000:]}")
