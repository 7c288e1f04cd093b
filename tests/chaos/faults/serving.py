"""A server, or the one that leads, dies, stands still, or is cut off from the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from ...kits.servers import DevServer
from ..admin import RefusedError
from ..cases import Case
from ..world import World
from .registry import MissedError, fault


def _clustered(case: Case) -> bool:
    return case.servers == 3


async def _leading(world: World, rng: random.Random) -> DevServer:
    """The server that leads one of the streams."""
    try:
        server = world.servers.named(await world.admin.leader(rng.choice(world.streams)))
    except RefusedError as problem:
        raise MissedError(str(problem)) from problem
    if server is None:
        raise MissedError("nobody leads")
    return server


def _free(world: World) -> asyncio.Lock:
    if world.servers.down.locked():
        raise MissedError("one is away already")
    return world.servers.down


async def _any(world: World, rng: random.Random) -> DevServer:
    return rng.choice(world.servers.all)


def _listed(name: str, of: Callable[[World, random.Random], Awaitable[DevServer]]) -> None:
    fits = _clustered if of is _leading else lambda case: True

    async def without(world: World, rng: random.Random, seconds: float, kills: bool) -> str:
        server = await of(world, rng)
        async with _free(world):
            await asyncio.to_thread(server.kill if kills else server.pause)
            await asyncio.sleep(seconds)
            await (world.servers.back(server) if kills else asyncio.to_thread(server.resume))
        return f"for {seconds:.1f}s"

    @fault(f"kill -9 {name}", 1.0, fits)
    async def die(world: World, rng: random.Random) -> str:
        return await without(world, rng, rng.uniform(0.0, 3.0), kills=True)

    @fault(f"SIGSTOP {name}", 1.0, fits)
    async def stand_still(world: World, rng: random.Random) -> str:
        return await without(world, rng, rng.uniform(0.2, 5.0), kills=False)


_listed("server", _any)
_listed("leader of a stream", _leading)


@fault("network: a server cut off from the others", 1.0, _clustered)
async def partition(world: World, rng: random.Random) -> str:
    """Clients reach both sides."""
    one, other, third = rng.sample(world.servers.all, 3)
    links = world.servers.between((one, other), (one, third))
    seconds, silently = rng.uniform(1.0, 12.0), rng.random() < 0.5
    async with _free(world):
        for link in links:
            link.sever(silently)
        await asyncio.sleep(seconds)
        for link in links:
            link.heal()
        for server in world.servers.all:
            await world.servers.back(server)
    return f"{'silent' if silently else 'broken'} for {seconds:.1f}s"


@fault("server stopped and started", 0.7)
async def restart(world: World, rng: random.Random) -> str:
    """In good order, and some seconds without."""
    seconds = rng.uniform(0.0, 4.0)
    server = rng.choice(world.servers.all)
    async with _free(world):
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(seconds)
        await world.servers.back(server)
    return f"away for {seconds:.1f}s"
