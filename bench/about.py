"""Where and when figures were taken: what stands beside them."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark_jetstream.testing import find_server

_PACKAGES = ("pyspark", "pyarrow", "nats-py")


def about(rows: int, repeat: int) -> dict[str, Any]:
    """
    Of a run that begins now: date and time (UTC), the commit (with a `+` where files differ from
    it), the machine and the versions.
    """
    return {
        "taken": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "commit": _commit(),
        "rows": rows,
        "repeat": repeat,
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        "versions": {
            "python": platform.python_version(),
            "nats-server": _said(str(find_server()), "--version").rpartition("v")[2],
        }
        | {package: version(package) for package in _PACKAGES},
    }


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    changed = _said(*git, "status", "--porcelain", "--untracked-files=no")
    return _said(*git, "rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
