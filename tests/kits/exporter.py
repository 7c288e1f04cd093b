"""The exporter as a process, and what Prometheus's parser makes of a scrape."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .metrics import QUERY
from .proxy import Proxy
from .servers import DevServer
from .shared import eventually

JOB = ["pyspark_jetstream", "metrics"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrapes:
    """An exporter that runs, and what it answers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = self.wait(lambda: self._shown("serving ")).split()[-1]
        self.wait(lambda: self._shown("following "))

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _shown(self, word: str) -> str:
        return next((line for line in self.log.splitlines() if word in line), "")

    def wait(self, condition: Callable[[], str | bool]) -> str:
        """Until the condition holds; what it is then."""

        def holds() -> str | bool:
            assert self.process.poll() is None, self.log
            return condition()

        return str(eventually(holds, 120))

    def text(self, accept: str = "text/plain") -> str:
        """What Prometheus gets."""
        with urlopen(Request(self.url, headers={"Accept": accept}), timeout=60) as answer:
            return answer.read().decode()

    def samples(self) -> Samples:
        """Every value by its name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One value of the query; None where there is none."""
        labels = labels | {"query": QUERY}
        for (sample, pairs), value in self.samples().items():
            if sample == name and labels.items() <= dict(pairs).items():
                return value
        return None

    def acked(self) -> float:
        return self.value("jetstream_publish_outcomes_total", status="success") or 0

    def wait_for(self, acked: float) -> None:
        """Until so many PubAcks are counted."""
        self.wait(lambda: self.acked() == acked)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Callable[..., Scrapes]]:
    """Starts exporters; they end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(server: DevServer | Proxy, *arguments: str) -> Scrapes:
        log = tmp_path / f"{len(started)}.log"
        words = ["-m", *JOB, "--servers", server.url, "--listen", "127.0.0.1:0", *arguments]
        with log.open("wb") as err:
            started.append(subprocess.Popen([sys.executable, *words], stderr=err))
        return Scrapes(started[-1], log)

    yield start
    for each in started:
        each.terminate()
        each.wait(60)
