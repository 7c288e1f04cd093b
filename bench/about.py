"""
Where and when figures were taken: what stands beside each of them.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark_jetstream.testing import find_server

_PACKAGES = ("pyspark", "pyarrow", "nats-py")


@dataclass(frozen=True, slots=True)
class About:
    """The circumstances of one run of a phase."""

    taken: str
    """Date and time (UTC)."""
    commit: str
    """Of the code, with a `+` where files differ from it; empty outside a repository."""
    rows: int
    repeat: int
    machine: str
    load: float
    """Processes that wanted a core in the minute before: what else ran."""
    versions: dict[str, str]
    settings: str = ""
    """The file that Spark's settings are from; empty where there was no Spark."""

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def about(rows: int, repeat: int, settings: str = "") -> About:
    """Of a phase that begins now."""
    return About(
        datetime.now(UTC).isoformat(timespec="minutes"),
        _commit(),
        rows,
        repeat,
        f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        round(os.getloadavg()[0], 1),
        {"python": platform.python_version(), "nats-server": _server()}
        | {package: version(package) for package in _PACKAGES},
        settings,
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _server() -> str:
    said = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip().rpartition("v")[2]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
