"""A server, or the one that leads, dies, stands still, or is cut off from the others."""

from __future__ import annotations

import asyncio
import random

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


async def _die(world: World, server: DevServer, seconds: float) -> None:
    async with _free(world):
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(seconds)
        await world.servers.back(server)


async def _stand_still(world: World, server: DevServer, seconds: float) -> None:
    async with _free(world):
        await asyncio.to_thread(server.pause)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.resume)


@fault("kill -9 server")
async def kill(world: World, rng: random.Random) -> str:
    seconds = rng.uniform(0.0, 3.0)
    await _die(world, rng.choice(world.servers.all), seconds)
    return f"away for {seconds:.1f}s"


@fault("kill -9 leader of a stream", 1.0, _clustered)
async def kill_leader(world: World, rng: random.Random) -> str:
    seconds = rng.uniform(0.0, 3.0)
    await _die(world, await _leading(world, rng), seconds)
    return f"away for {seconds:.1f}s"


@fault("SIGSTOP server")
async def freeze(world: World, rng: random.Random) -> str:
    seconds = rng.uniform(0.2, 5.0)
    await _stand_still(world, rng.choice(world.servers.all), seconds)
    return f"for {seconds:.1f}s"


@fault("SIGSTOP leader of a stream", 1.0, _clustered)
async def freeze_leader(world: World, rng: random.Random) -> str:
    seconds = rng.uniform(0.2, 5.0)
    await _stand_still(world, await _leading(world, rng), seconds)
    return f"for {seconds:.1f}s"


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
