"""What an administrator, or the cluster, does to streams and consumers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..admin import RefusedError
from ..cases import TARGET, Case
from ..world import World
from .registry import MissedError, fault


def _clustered(case: Case) -> bool:
    return case.servers == 3


def _growing(world: World) -> list[str]:
    """
    The streams that may lose replicas and gain others.

    On a replica that an interest stream gains the server may drop what waits.
    """
    if world.case.retention != "interest":
        return world.streams
    return [TARGET]


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


@fault("replicas 3, 1, 3", 1.0, _clustered)
async def replicas(world: World, rng: random.Random) -> str:
    stream, seconds = rng.choice(_growing(world)), rng.uniform(0.5, 4.0)
    async with changed(world, stream, num_replicas=1):
        await asyncio.sleep(seconds)
    return f"{stream} for {seconds:.1f}s"


@fault("peer removed", 1.0, _clustered)
async def remove_peer(world: World, rng: random.Random) -> str:
    """
    Of two replicas one is taken off, so that the third server takes its place; then three again.

    Of three on three servers the server refuses it, for nobody could take the place.
    """
    stream, seconds = rng.choice(_growing(world)), rng.uniform(0.5, 3.0)
    async with changed(world, stream, num_replicas=2):
        cluster = (await call(world, f"STREAM.INFO.{stream}")).get("cluster", {})
        names = [cluster.get("leader"), *(each["name"] for each in cluster.get("replicas") or [])]
        peer = rng.choice([name for name in names if name])
        await call(world, f"STREAM.PEER.REMOVE.{stream}", {"peer": peer})
        await asyncio.sleep(seconds)
    return f"{stream} for {seconds:.1f}s"


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


@fault("target's duplicate window changed")
async def window(world: World, rng: random.Random) -> str:
    """Never below what an attempt may take to be fenced: see the README's limits."""
    seconds = rng.uniform(0.5, 4.0)
    lowest = world.settings.window_s if world.case.sharing == "standby" else 15.0
    wanted = rng.uniform(lowest, lowest + 120.0)
    async with changed(world, TARGET, duplicate_window=int(wanted * 1e9)):
        await asyncio.sleep(seconds)
    return f"{wanted:.0f}s for {seconds:.1f}s"


@fault("target's subjects taken away")
async def subjects(world: World, rng: random.Random) -> str:
    seconds = rng.uniform(0.3, 4.0)
    left = rng.choice([["elsewhere.>"], ["out.0.>"]])
    async with changed(world, TARGET, subjects=left):
        await asyncio.sleep(seconds)
    return f"to {left[0]} for {seconds:.1f}s"
