"""What processes hold, out of /proc: memory, threads and file descriptors, by role."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..usage import command, role_in_spark

_MIB: Final = float(1 << 20)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PSS: Final = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def look(roles: Mapping[int, str]) -> dict[str, float]:
    """
    What all processes of each role hold together: a series by its name.

    Args:
        roles: of the processes that are known by id. What one called `jvm` has started are Spark's
            Python processes: `worker` with its daemon, `source`, and `other`, which look sources
            up, plan and commit. What others have started counts with them.
    """
    found: dict[str, float] = {}
    known = dict(roles)
    for pid, parent in sorted(_parents().items()):
        if pid not in known:
            above = known.get(parent)
            if above is None:
                continue
            known[pid] = role_in_spark(command(pid)) if above == "jvm" else above
        role = known[pid]
        held = _held(pid)
        for name, value in held.items():
            found[f"{role}.{name}"] = found.get(f"{role}.{name}", 0.0) + value
    return found


def _parents() -> dict[int, int]:
    """The parent of each process; ids grow, but for a wrap, so parents come first."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (text := _text(f"/proc/{name}/stat")):
            # The name of the program, in parentheses, may contain anything.
            found[int(name)] = int(text.rpartition(")")[2].split()[1])
    return found


def _held(pid: int) -> dict[str, float]:
    """Nothing of a process that is gone."""
    statm, rollup = _text(f"/proc/{pid}/statm"), _text(f"/proc/{pid}/smaps_rollup")
    pss = _PSS.search(rollup)
    try:
        threads = len(os.listdir(f"/proc/{pid}/task"))
        fds = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return {}
    if pss is None or not statm:
        return {}
    return {
        "processes": 1.0,
        "rss_mib": int(statm.split()[1]) * _PAGE / _MIB,
        "pss_mib": int(pss[1]) * 1024 / _MIB,
        "threads": float(threads),
        "fds": float(fds),
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
