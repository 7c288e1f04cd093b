"""A server, or the one that leads, dies, stands still, or has no JetStream for a while."""

from __future__ import annotations

import asyncio
import random

from ...kits.accounts import limit, switch
from ...kits.servers import DevServer
from ..admin import RefusedError
from ..cases import Case
from ..world import World
from .registry import MissedError, fault
from .streams import call


def _alone(case: Case) -> bool:
    return case.servers == 1


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


@fault("SIGSTOP leader of a stream for 30 s", 0.3, _clustered)
async def freeze_leader_long(world: World, rng: random.Random) -> str:
    """As long as `requestTimeout`."""
    server = await _leading(world, rng)
    await _stand_still(world, server, 30.0)
    return server.name


def _partitions(name: str, cut: slice) -> None:
    @fault(f"network: {name}", 1.0, _clustered)
    async def partition(world: World, rng: random.Random) -> str:
        """Clients reach all sides."""
        one, other, third = rng.sample(world.servers.all, 3)
        links = world.servers.between(*[(one, other), (one, third), (other, third)][cut])
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


_partitions("two servers cut off from each other", slice(1))
_partitions("a server cut off from the others", slice(2))
_partitions("all servers cut off from each other", slice(3))


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


@fault("JetStream of the account off", 1.0, _alone)
async def off(world: World, rng: random.Random) -> str:
    """An operator's reload takes it away, and another one brings it back."""
    seconds = rng.uniform(0.3, 4.0)
    server = world.servers.all[0]
    async with _free(world):
        await asyncio.to_thread(switch, server, False)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(switch, server, True)
    return f"for {seconds:.1f}s"


async def _limited(world: World, seconds: float, **limits: int) -> None:
    """All servers allow the account no more for a while, by reloads."""
    async with _free(world):
        try:
            for server in world.servers.all:
                await asyncio.to_thread(limit, server, **limits)
            await asyncio.sleep(seconds)
        finally:
            for server in world.servers.all:
                await asyncio.to_thread(limit, server)


@fault("storage of the account lowered")
async def less_storage(world: World, rng: random.Random) -> str:
    """Beneath what is stored, or a bit more."""
    seconds, room = rng.uniform(0.5, 4.0), rng.choice([-1_000_000, 0, 30_000])
    stored = int((await call(world, "INFO"))["storage"])
    await _limited(world, seconds, max_file=max(1, stored + room))
    return f"by {room} bytes for {seconds:.1f}s"


@fault("consumers of the account limited", 0.7)
async def fewer_consumers(world: World, rng: random.Random) -> str:
    """To one a stream: those that are there stay, and none comes to them."""
    seconds = rng.uniform(0.5, 4.0)
    await _limited(world, seconds, max_consumers=1)
    return f"for {seconds:.1f}s"
