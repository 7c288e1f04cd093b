"""What an administrator, or the cluster, does to streams and consumers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from ..admin import RefusedError
from ..cases import TARGET, Case
from ..world import World
from .registry import MissedError, fault


def _clustered(case: Case) -> bool:
    return case.servers == 3


def _pinned(case: Case) -> bool:
    return case.sharing != "overflow"


def _may_lose_a_consumer(case: Case) -> bool:
    """An interest stream keeps nothing without; a shared one's claims would be dealt out anew."""
    return case.retention != "interest" and case.sharing != "overflow"


async def call(world: World, api: str, body: dict[str, Any] | None = None) -> Any:
    try:
        return await world.admin.call(api, body)
    except RefusedError as problem:
        raise MissedError(str(problem)) from problem


async def a_consumer(world: World, rng: random.Random) -> tuple[str, str]:
    """One of the queries' consumers."""
    stream = rng.choice(world.source_streams)
    answer = await call(world, f"CONSUMER.NAMES.{stream}")
    names = [name for name in answer.get("consumers") or [] if name.startswith("chaos-")]
    if not names:
        raise MissedError("no consumer")
    return stream, rng.choice(sorted(names))


@asynccontextmanager
async def changed(world: World, stream: str, **changes: Any) -> AsyncIterator[None]:
    """Other values in a stream's configuration, and afterwards those from before."""
    lock = world.admin.locks[stream]
    if lock.locked():
        raise MissedError("it is being changed already")
    async with lock:
        try:
            before = await world.admin.change(stream, **changes)
        except RefusedError as problem:
            if "STREAM.INFO" not in str(problem):
                # It may have been done all the same.
                await world.heal_stream(stream)
            raise MissedError(str(problem)) from problem
        try:
            yield
        finally:
            await world.admin.change(stream, insist=True, **before)


@fault("stream leader steps down", 1.5, _clustered)
async def stream_leader(world: World, rng: random.Random) -> str:
    stream = rng.choice(world.streams)
    await call(world, f"STREAM.LEADER.STEPDOWN.{stream}")
    return stream


@fault("consumer leader steps down", 1.5, _clustered)
async def consumer_leader(world: World, rng: random.Random) -> str:
    stream, consumer = await a_consumer(world, rng)
    await call(world, f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}")
    return consumer


@fault("UNPIN", 2.0, _pinned)
async def unpin(world: World, rng: random.Random) -> str:
    stream, consumer = await a_consumer(world, rng)
    await call(world, f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": "spark"})
    return consumer


@fault("consumer deleted", 1.0, _may_lose_a_consumer)
async def delete_consumer(world: World, rng: random.Random) -> str:
    stream, consumer = await a_consumer(world, rng)
    await call(world, f"CONSUMER.DELETE.{stream}.{consumer}")
    return consumer


@fault("target's limit hit", 1.5)
async def limit(world: World, rng: random.Random) -> str:
    """It is full, and refuses what is new; then there is room again."""
    seconds = rng.uniform(0.5, 5.0)
    state = (await call(world, f"STREAM.INFO.{TARGET}"))["state"]
    of, room = rng.choice(
        [("messages", rng.randrange(1, 300)), ("bytes", rng.randrange(1, 50_000))]
    )
    name = {"messages": "max_msgs", "bytes": "max_bytes"}[of]
    async with changed(world, TARGET, **{name: state[of] + room}):
        await asyncio.sleep(seconds)
    return f"{name} for {seconds:.1f}s"


@fault("consumer paused", 1.5)
async def pause(world: World, rng: random.Random) -> str:
    """As `nats consumer pause` does; it goes on by itself."""
    stream, consumer = await a_consumer(world, rng)
    seconds = rng.uniform(1.0, 6.0)
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    await call(world, f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until.isoformat()})
    await asyncio.sleep(seconds)
    return f"{consumer} for {seconds:.1f}s"
