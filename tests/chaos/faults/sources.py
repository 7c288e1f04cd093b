"""What somebody else does to the streams that are read: emptied, made anew."""

from __future__ import annotations

import asyncio
import random
import time

from ..admin import RefusedError
from ..cases import Case
from ..world import World
from .registry import MissedError, fault

_UNREAD = 200
"""So many wait when they are removed."""


def _is_noticed(case: Case) -> bool:
    """A purge is not where messages leave as they are settled (docs/reference/guarantees.md)."""
    return case.retention == "limits"


@fault("source purged of what is unread", 1.0, _is_noticed, "DataLossError")
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
