"""Processes of a query die (SIGKILL)."""

from __future__ import annotations

import random
import signal
from typing import Final

from .. import processes
from ..world import World
from .registry import MissedError, fault

_ROLES: Final = {
    "driver": ("driver",),
    "JVM": ("JVM",),
    "Python worker": ("worker", "worker", "daemon", "sink"),
    "source process": ("source",),
}
"""What is hit; of a worker now and then what forks them, or what commits a batch."""

_ENDS_THE_LIFE: Final = ("driver", "JVM", "source process")


def _victim(world: World, rng: random.Random, what: str) -> tuple[int, str]:
    """A process of one of the queries."""
    query = rng.choice(world.queries)
    role = rng.choice(_ROLES[what])
    found = [pid for pid, its in sorted(query.pids().items()) if its == role]
    if not found:
        raise MissedError(role)
    return rng.choice(found), role


def _kills(what: str, weight: float) -> None:
    @fault(f"kill -9 {what}", weight)
    async def happen(world: World, rng: random.Random) -> str:
        # A start takes ten seconds: some die in it, most come further.
        for query in world.queries:
            if what in _ENDS_THE_LIFE and query.age_s < rng.uniform(2.0, 20.0):
                raise MissedError("it has just begun")
        pid, role = _victim(world, rng, what)
        if not processes.send(pid, signal.SIGKILL):
            raise MissedError("it has just ended")
        return role


_kills("driver", 1.5)
_kills("JVM", 1.0)
_kills("Python worker", 2.0)
_kills("source process", 1.0)
