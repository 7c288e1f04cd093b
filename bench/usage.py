"""
CPU seconds of the processes of a measurement, out of /proc, by role.

Spark's Python workers are forked by daemons that reap them without adding up their times, so
every process is looked at every 50 ms while it lives, and its last times count.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

SERVER: Final = "server"
SPARK: Final = "Spark"
"""Its JVM and all of its Python processes."""

_INTERVAL_S: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Sampler:
    """A context manager: samples from its beginning to its end, then has `cpu_s` by role."""

    def __init__(self, server_pid: int, jvm_pid: int | None = None) -> None:
        self.cpu_s: dict[str, float] = {}
        self._roles: dict[int, str | None] = {server_pid: SERVER}
        if jvm_pid is not None:
            self._roles[jvm_pid] = SPARK
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="bench-usage", daemon=True)

    def __enter__(self) -> Sampler:
        # A process that is there now has times from before; one that comes later has none.
        self._sample()
        self._first = dict(self._last)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._sample()
        for pid, ticks in self._last.items():
            role = self._roles[pid] or ""
            used = (ticks - self._first.get(pid, 0)) / _TICKS
            self.cpu_s[role] = self.cpu_s.get(role, 0.0) + used

    def _sample_on(self) -> None:
        while not self._ending.wait(_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            if pid in self._roles and self._roles[pid] is None:
                continue
            try:
                # The name, in parentheses, may contain anything.
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            role = self._roles.setdefault(
                pid, SPARK if self._roles.get(int(words[1])) == SPARK else None
            )
            if role is not None:
                self._last[pid] = int(words[11]) + int(words[12])
