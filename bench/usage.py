"""
What the processes of a measurement use, out of /proc: CPU seconds and peak memory, by role.

Spark's Python workers are forked by daemons that reap them without adding up their times, so
every process is looked at every 50 ms while it lives, and its last times count.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

ROLES: Final = ("server", "jvm", "worker", "source", "other")
"""
nats-server; Spark's JVM; the Python workers that run tasks; the Python process that runs the
source on the driver; Spark's other Python processes, which look sources up and plan.
"""

_INTERVAL_S: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, and the peak memory of the largest process, of each role."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    machine_s: float = 0.0
    """CPU seconds of everything on this machine: what else ran shows here."""

    def __str__(self) -> str:
        parts = [f"{role} {self.cpu_s[role]:.1f}" for role in ROLES if role in self.cpu_s]
        return ", ".join([*parts, f"machine {self.machine_s:.1f}"])


class _Stat(NamedTuple):
    parent: int
    ticks: int
    resident: int


class Sampler:
    """A context manager: samples from its beginning to its end, then has `usage`."""

    def __init__(self, server_pid: int, jvm_pid: int | None) -> None:
        self.usage = Usage()
        self._roles = {server_pid: "server"}
        if jvm_pid is not None:
            self._roles[jvm_pid] = "jvm"
        self._foreign: set[int] = set()
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._peak: dict[int, int] = {}
        self._busy = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="bench-usage", daemon=True)

    def __enter__(self) -> Sampler:
        # A process that is there now has times from before; one that comes later has none.
        self._sample()
        self._first = dict(self._last)
        self._busy = _busy_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        busy = _busy_s() - self._busy
        self._sample()
        cpu: dict[str, float] = {}
        peak: dict[str, int] = {}
        for pid, ticks in self._last.items():
            role = self._roles[pid]
            cpu[role] = cpu.get(role, 0.0) + (ticks - self._first.get(pid, 0)) / _TICKS
            peak[role] = max(peak.get(role, 0), self._peak[pid])
        self.usage = Usage(cpu, peak, busy)

    def _sample_on(self) -> None:
        while not self._ending.wait(_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for pid in self._processes():
            if pid in self._foreign:
                continue
            stat = _stat(pid)
            if stat is None:
                continue
            if pid not in self._roles:
                role = self._role(pid, stat)
                if role is None:
                    continue
                self._roles[pid] = role
            self._last[pid] = stat.ticks
            self._peak[pid] = max(self._peak.get(pid, 0), stat.resident)

    def _processes(self) -> list[int]:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

    def _role(self, pid: int, stat: _Stat) -> str | None:
        """The role of a process met first; None while it is not known."""
        if stat.parent not in self._roles or self._roles[stat.parent] == "server":
            self._foreign.add(pid)
            return None
        words = command(pid)
        if not any(word.startswith("pyspark.") for word in words):
            return None  # forked and not yet the program it is going to be
        return role_in_spark(words)


def _stat(pid: int) -> _Stat | None:
    try:
        # The name, in parentheses, may contain anything.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(int(words[1]), int(words[11]) + int(words[12]), int(words[21]) * _PAGE)


def _busy_s() -> float:
    """CPU seconds of the machine since its start, neither idle nor waiting for a disk."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS


def command(pid: int) -> list[str]:
    """The words of a process's command line; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def role_in_spark(words: list[str]) -> str:
    """What a Python process of Spark's is for, by its command line."""
    if words[-1].endswith("source_runner"):
        return "source"
    return "worker" if words[-1] == "pyspark.worker" else "other"
