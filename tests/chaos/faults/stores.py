"""What a server has on its disk: taken back to an older copy, or no room for more."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...kits.servers import DevServer
from ...kits.stores import take_back
from ..cases import TARGET, Case
from ..outcomes import ends, exact_or
from ..world import World
from .registry import MissedError, fault

_BEYOND: Final = 300
"""So many messages are read behind the copy before it takes the store's place."""

_LOST: Final = ("DataLossError", "LedgerError", "TargetChangedError")
"""What may be said where source and target are both on the disk."""


def _alone(case: Case) -> bool:
    return case.servers == 1


def _clustered(case: Case) -> bool:
    return case.servers == 3


def _may_mount(case: Case) -> bool:
    """A source that keeps everything says what of it was written."""
    return (
        case.servers == 1
        and case.retention == "limits"
        and os.geteuid() == 0
        and shutil.which("mount") is not None
    )


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


@fault("store of the source taken back", 1.0, _alone, lambda case: ends("DataLossError"), last=True)
async def single(world: World, rng: random.Random) -> str:
    """Half of the times it has grown beyond what it was before the query looks."""
    (server,) = world.servers.all
    store, outgrown = world.servers.store(server), rng.random() < 0.5
    await _copied(world, [server])
    await _read_on(world)
    world.keeps_all = False
    before = {name: (await world.admin.state(name))["last_seq"] for name in world.source_streams}
    with world.frozen_queries():
        await asyncio.to_thread(server.stop)
        world.publisher.era += 1
        take_back(store, _older(store), world.source_streams)
        await world.servers.back(server)
        deadline = time.monotonic() + 60
        while outgrown and time.monotonic() < deadline:
            now = {name: (await world.admin.state(name))["last_seq"] for name in before}
            if all(now[name] > before[name] + 50 for name in before):
                break
            await asyncio.sleep(0.5)
    return "and outgrown" if outgrown else "shorter"


@fault("store of one of three servers taken back", 0.4, _clustered)
async def one_of_three(world: World, rng: random.Random) -> str:
    """The others have what it lacks."""
    if world.servers.down.locked():
        raise MissedError("one is away already")
    server, seconds = rng.choice(world.servers.all), rng.uniform(1.0, 5.0)
    store = world.servers.store(server)
    async with world.servers.down:
        await _copied(world, [server])
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.stop)
        _put_back(store)
        await world.servers.back(server)
    return f"by {seconds:.1f}s"


@fault(
    "store of the source taken back on two of three servers", 1.0, lambda case: case.servers == 3,
    lambda case: ends("DataLossError"), last=True,
)  # fmt: skip
async def two_of_three(world: World, rng: random.Random) -> str:
    """They agree on what they had before the third one is there, which had more."""
    older = rng.sample(world.servers.all, 2)
    (newer,) = [server for server in world.servers.all if server not in older]
    await _copied(world, older)
    await _read_on(world)
    world.keeps_all = False
    for server in (newer, *older):
        await asyncio.to_thread(server.stop)
    world.publisher.era += 1
    for server in older:
        _put_back_source(world.servers.store(server), world.source_streams)
        await asyncio.to_thread(server.restart)
    acked, deadline = world.publisher.acked, time.monotonic() + 60
    while world.publisher.acked < acked + 50 and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    await world.servers.back(newer)
    return f"all but {newer.name[-2:]}"


def _put_back(store: Path) -> None:
    shutil.rmtree(store)
    _older(store).rename(store)


def _put_back_source(store: Path, streams: Sequence[str]) -> None:
    """The streams, and what was agreed on about them and their consumers; all else stays."""
    take_back(store, _older(store), streams)
    for of in store.glob("**/_js_/*/meta.inf"):
        there = of.parent
        kept = _older(store) / there.relative_to(store)
        about = json.loads(of.read_text()).get("metadata", {}).get("stream")
        if about in streams and kept.exists():
            shutil.rmtree(there)
            shutil.copytree(kept, there)


@fault("disk full", 1.0, _may_mount, lambda case: exact_or(*_LOST), last=True)
async def full(world: World, rng: random.Random) -> str:
    """
    A store on a small file system, which fills up; then there is room, and the server starts again.
    What it had acknowledged and could not write any more is lost.
    """
    (server,) = world.servers.all
    store, seconds = world.servers.store(server), rng.uniform(2.0, 5.0)
    kept = store.with_name("store-kept")
    await asyncio.to_thread(server.stop)
    store.rename(kept)
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(store)], check=True)
    try:
        shutil.copytree(kept, store, dirs_exist_ok=True)
        await world.servers.back(server)
        await asyncio.sleep(1.0)
        used = shutil.disk_usage(store).used
        room = rng.choice([1 << 12, 1 << 18])
        subprocess.run(["mount", "-o", f"remount,size={used + room}", str(store)], check=True)
        await asyncio.sleep(seconds)
        subprocess.run(["mount", "-o", "remount,size=1g", str(store)], check=True)
        await asyncio.to_thread(server.stop)
        shutil.rmtree(kept)
        shutil.copytree(store, kept)
    finally:
        await asyncio.to_thread(server.stop)
        subprocess.run(["umount", str(store)], check=True)
    store.rmdir()
    kept.rename(store)
    await world.servers.back(server)
    return f"{room} bytes of room for {seconds:.1f}s"
