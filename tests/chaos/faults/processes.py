"""Processes of a query die (SIGKILL) or stand still (SIGSTOP, and after a while SIGCONT)."""

from __future__ import annotations

import asyncio
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


def _freezes(what: str, weight: float) -> None:
    @fault(f"SIGSTOP {what}", weight)
    async def happen(world: World, rng: random.Random) -> str:
        pid, role = _victim(world, rng, what)
        seconds = rng.uniform(0.2, 5.0)
        if not processes.send(pid, signal.SIGSTOP):
            raise MissedError("it has just ended")
        await asyncio.sleep(seconds)
        if any(pid in query.pids() for query in world.queries):
            processes.send(pid, signal.SIGCONT)
        return f"{role} for {seconds:.1f}s"


_kills("driver", 1.5)
_kills("JVM", 1.0)
_kills("Python worker", 2.0)
_kills("source process", 1.0)
for _what in _ROLES:
    _freezes(_what, 1.0)
