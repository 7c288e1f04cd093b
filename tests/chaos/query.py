"""A query's lives: started, watched, and started again from its checkpoint when it has ended."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ..kits.places import ROOT
from . import processes

_OURS = re.compile(r"pyspark_jetstream\.errors\.(\w+)")


class Query:
    """One query and its checkpoint, in `home`."""

    def __init__(self, home: Path, arguments: list[Any], rng: random.Random) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.lives = 0
        self.ends: Counter[str] = Counter()
        """How often it ended, by what ended it."""
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        self._arguments = [*arguments, str(home)]
        self._rng = rng

    @property
    def age_s(self) -> float:
        """How long this life lasts."""
        return time.monotonic() - self.began

    def pids(self) -> dict[int, str]:
        """Its processes and what they do."""
        return processes.of_session(self.process.pid) if self.process is not None else {}

    def stop(self) -> None:
        """Has it end in good order."""
        (self.home / "stop").touch()

    async def live(self) -> None:
        """One life after the other, until it is told to stop."""
        while True:
            status = await self._one_life()
            if (self.home / "stop").exists():
                return
            self.ends[self._cause(status)] += 1
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    async def _one_life(self) -> int:
        self.lives += 1
        self.began = time.monotonic()
        with self._log().open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("copier.py")),
                 json.dumps(self._arguments)],
                env=os.environ | {
                    "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(ROOT),
                },
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.home,
            )  # fmt: skip
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.1)
            await self._rest()
        finally:
            self.kill()
        return int(self.process.returncode)

    async def _rest(self) -> None:
        """Some seconds for those a driver leaves behind, for some supervisors give no more."""
        deadline = time.monotonic() + self._rng.uniform(0.0, 5.0)
        while self.pids() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to every process of it that is left."""
        while pids := self.pids():
            for pid in pids:
                processes.send(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self.process is not None:
            self.process.wait(30)

    def _log(self) -> Path:
        return self.home / f"log-{self.lives:03d}"

    def _cause(self, status: int) -> str:
        """What ended the life that is over."""
        if status == -signal.SIGKILL:
            return "driver killed"
        text = self._log().read_text(errors="replace")
        for line in text.splitlines():
            if line.startswith("ENDED "):
                told = json.loads(line.removeprefix("ENDED "))
                ours = _OURS.findall(told)
                return str(ours[-1]) if ours else " ".join(told.split())[-120:]
        return "JVM gone" if "Py4J" in text else f"status {status}: {text[-120:]}"
