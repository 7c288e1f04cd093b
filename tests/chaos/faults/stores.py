"""What a server has on its disk is taken back to an older copy."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...kits.servers import DevServer
from ...kits.stores import take_back
from ..cases import TARGET, Case
from ..world import World
from .registry import MissedError, fault

_BEYOND: Final = 300
"""So many messages are read behind the copy before it takes the store's place."""


def _alone(case: Case) -> bool:
    return case.servers == 1


async def _copied(world: World, servers: Sequence[DevServer]) -> None:
    """Keeps the stores as they are, a server after the other."""
    for server in servers:
        await asyncio.to_thread(server.stop)
        store = world.servers.store(server)
        await asyncio.to_thread(shutil.copytree, store, _older(store))
        await world.servers.back(server)


def _older(store: Path) -> Path:
    return store.with_name(store.name.replace("store-", "older-"))


async def _read_on(world: World) -> None:
    """Waits until what is stored now, and more of each stream, is read and committed."""
    ends_at = {name: (await world.admin.state(name))["last_seq"] for name in world.source_streams}
    acked = world.publisher.acked
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        if world.case.sharing != "overflow":
            where = world.position()
            if all(where.get(name, 0) > at + _BEYOND for name, at in ends_at.items()):
                return
        elif (await world.admin.state(TARGET))["messages"] > acked + 4 * _BEYOND:
            return
    raise MissedError("the query does not come beyond the copy")


@fault("store of the source taken back", 1.0, _alone, ends="DataLossError")
async def single(world: World, rng: random.Random) -> str:
    """It ends before what the query has read."""
    (server,) = world.servers.all
    store = world.servers.store(server)
    await _copied(world, [server])
    await _read_on(world)
    world.keeps_all = False
    with world.frozen_queries():
        await asyncio.to_thread(server.stop)
        world.publisher.era += 1
        take_back(store, _older(store), world.source_streams)
        await world.servers.back(server)
    return "shorter"
