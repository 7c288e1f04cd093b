"""Which function runs a cell, by its deployment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import connected, submitted
from .room import Room

RUN: dict[str, Callable[[Room], Path]] = {
    "local": submitted.local,
    "killed": submitted.killed,
    "standalone": submitted.standalone,
    "local-cluster": submitted.local_cluster,
    "archives": submitted.archives,
    "py-files": submitted.py_files,
    "py-files-wheel": submitted.py_files_wheel,
    "connect": connected.connect,
    "connect-server": connected.connect_server,
    "pipelines": connected.pipelines,
}
"""One for each of `cells.DEPLOYMENTS`; each returns the interpreter whose packages were used."""
