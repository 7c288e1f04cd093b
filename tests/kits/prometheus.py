"""A Prometheus that scrapes one exporter, from its binary, for as long as a run lasts."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.kits.servers import free_ports

_READY_S: Final = 60.0
_ANSWER_S: Final = 30.0


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def range(self, promql: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """The matrix of a query over time."""
        asked = {"query": promql, "start": start, "end": end, "step": step_s}
        return list(self._get("query_range", asked)["data"]["result"])

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        alerts = self._get("alerts", {})["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def up(self) -> bool:
        """Whether the last scrape of every target succeeded, and there is one."""
        found = self._get("query", {"query": "up"})["data"]["result"]
        return bool(found) and all(series["value"][1] == "1" for series in found)

    def _get(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(asked)}", timeout=_ANSWER_S) as answer:
            content: dict[str, Any] = json.load(answer)
        if content.get("status") != "success":
            raise RuntimeError(f"{asked}: {content}")
        return content


@contextmanager
def running(
    binary: str,
    home: Path,
    scraped: Sequence[str],
    interval_s: float,
    rules: Path | None = None,
) -> Iterator[Prometheus]:
    """Runs it until the block ends, with what it says in `prometheus.log`."""
    home.mkdir(parents=True)
    interval = f"{interval_s:g}s"
    configuration = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [
            {"job_name": "pyspark-jetstream", "static_configs": [{"targets": list(scraped)}]}
        ],
    }
    file = home / "prometheus.yml"
    file.write_text(json.dumps(configuration))  # JSON is YAML
    port = free_ports(1)[0]
    log = home / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                binary, f"--config.file={file}", f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=created-timestamp-zero-ingestion",
            ],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, f"{url}/-/ready", log)
            yield Prometheus(url)
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")
                raise RuntimeError(f"Prometheus did not start: {text[-2000:]}") from None
            time.sleep(0.2)
