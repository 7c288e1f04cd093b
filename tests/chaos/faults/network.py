"""The way between queries and servers is slow, breaks, or falls silent."""

from __future__ import annotations

import asyncio
import random

from ..world import World
from .registry import MissedError, fault


@fault("network: delay")
async def delay(world: World, rng: random.Random) -> str:
    """Each piece waits."""
    link, seconds = rng.choice(world.servers.links), rng.uniform(0.5, 4.0)
    link.delay_s = rng.uniform(0.02, 0.4)
    told = f"{link.delay_s * 1000:.0f}ms a piece for {seconds:.1f}s"
    await asyncio.sleep(seconds)
    link.delay_s = 0.0
    return told


@fault("network: cut in the middle of a frame", 1.5)
async def cut(world: World, rng: random.Random) -> str:
    """All connections to a server break, after half of a piece."""
    count = await rng.choice(world.servers.links).cut()
    if not count:
        raise MissedError("nobody is connected")
    return f"{count} connections"


@fault("network: half-open")
async def half_open(world: World, rng: random.Random) -> str:
    """Connections stay, and nothing comes through one way, or both."""
    ways = rng.choice([{"up"}, {"down"}, {"up", "down"}])
    seconds = rng.uniform(0.5, 8.0)
    count = await rng.choice(world.servers.links).fall_silent(ways, seconds)
    if not count:
        raise MissedError("nobody was connected")
    return f"{count} connections, {'+'.join(sorted(ways))}, {seconds:.1f}s"
