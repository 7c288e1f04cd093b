"""What somebody else does to the streams that are read: edited, sealed, emptied, made anew."""

from __future__ import annotations

import asyncio
import random
import time

from ..admin import RefusedError
from ..cases import Case
from ..world import World
from .registry import MissedError, fault
from .streams import call, changed

_LEAST = 100
"""So many messages at least have been read before some of them are removed."""

_UNREAD = 200
"""So many wait when they are removed."""


def _keeps(case: Case) -> bool:
    return case.retention == "limits"


def _alone(case: Case) -> bool:
    """Of a shared consumer nobody knows what it had not yet dealt out."""
    return case.sharing != "overflow"


def _read_half(world: World, rng: random.Random) -> tuple[str, int]:
    """A source stream, and half of what was read and committed of it."""
    found = {name: upto // 2 for name, upto in world.position().items() if upto > _LEAST}
    if not found:
        raise MissedError("too little is read")
    return rng.choice(sorted(found.items()))


@fault("source's max_msgs takes what was read", 1.0, _keeps)
async def limit(world: World, rng: random.Random) -> str:
    stream, half = _read_half(world, rng)
    last = (await call(world, f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    world.keeps_all = False
    async with changed(world, stream, max_msgs=last - half):
        await asyncio.sleep(0.1)
    return f"{stream} up to {half}"


@fault("source purged of what is unread", 1.0, _alone, "DataLossError")
async def purge_unread(world: World, rng: random.Random) -> str:
    """While its queries stand still and messages wait."""
    stream = rng.choice(world.source_streams)
    with world.frozen_queries():
        before = (await world.admin.state(stream))["last_seq"]
        deadline = time.monotonic() + 20
        while (await world.admin.state(stream))["last_seq"] < before + _UNREAD:
            if time.monotonic() > deadline:
                raise MissedError("nothing is published")
            await asyncio.sleep(0.1)
        world.keeps_all = False
        await world.admin.insist(f"STREAM.PURGE.{stream}")
    return stream


@fault("source deleted and made anew", ends="DataLossError")
async def made_anew(world: World, rng: random.Random) -> str:
    """Amid an attempt, as often as one runs."""
    stream = rng.choice(world.source_streams)
    config = (await world.admin.insist(f"STREAM.INFO.{stream}"))["config"]
    world.keeps_all = False
    world.publisher.era += 1
    try:
        await world.admin.call(f"STREAM.DELETE.{stream}")
    except RefusedError as problem:
        raise MissedError(str(problem)) from problem
    await world.admin.insist(f"STREAM.CREATE.{stream}", config)
    return stream
