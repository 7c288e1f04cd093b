"""What somebody else does to the streams that are read: edited, sealed, emptied, made anew."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from ..admin import RefusedError
from ..cases import Case
from ..outcomes import Outcome, ends
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


def _loss(case: Case) -> Outcome:
    return ends("DataLossError")


def _read_half(world: World, rng: random.Random) -> tuple[str, int]:
    """A source stream, and half of what was read and committed of it."""
    found = {name: upto // 2 for name, upto in world.position().items() if upto > _LEAST}
    if not found:
        raise MissedError("too little is read")
    return rng.choice(sorted(found.items()))


async def _emptied_of_unread(world: World, rng: random.Random, **limits: Any) -> str:
    """Purges a stream while its queries stand still and messages wait, or by a limit."""
    stream = rng.choice(world.source_streams)
    with world.frozen_queries():
        before = (await world.admin.state(stream))["last_seq"]
        deadline = time.monotonic() + 20
        while (await world.admin.state(stream))["last_seq"] < before + _UNREAD:
            if time.monotonic() > deadline:
                raise MissedError("nothing is published")
            await asyncio.sleep(0.1)
        world.keeps_all = False
        if limits:
            await world.admin.change(stream, insist=True, **limits)
        else:
            await world.admin.insist(f"STREAM.PURGE.{stream}")
    return stream


@fault("source's subjects taken away")
async def subjects(world: World, rng: random.Random) -> str:
    stream, seconds = rng.choice(world.source_streams), rng.uniform(0.3, 4.0)
    left = ["in.0.>"] if world.case.layout == "filtered" and rng.random() < 0.5 else ["nowhere.>"]
    async with changed(world, stream, subjects=left):
        await asyncio.sleep(seconds)
    return f"{stream} to {left[0]} for {seconds:.1f}s"


@fault("source's max_msgs takes what was read", 1.0, _keeps)
async def limit(world: World, rng: random.Random) -> str:
    stream, half = _read_half(world, rng)
    last = (await call(world, f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    world.keeps_all = False
    async with changed(world, stream, max_msgs=last - half):
        await asyncio.sleep(0.1)
    return f"{stream} up to {half}"


@fault("source's max_msgs_per_subject takes what was read", 1.0, _keeps)
async def limit_by_subject(world: World, rng: random.Random) -> str:
    """Half of what was read of each subject, of which the first has the most."""
    stream, half = _read_half(world, rng)
    query = {"subjects_filter": ">"}
    state = (await call(world, f"STREAM.INFO.{stream}", query))["state"]
    most = max(state["subjects"].values(), default=0) - half // (2 * len(world.case.subjects))
    if most < 1:
        raise MissedError("half of it is gone already")
    world.keeps_all = False
    async with changed(world, stream, max_msgs_per_subject=most):
        await asyncio.sleep(0.1)
    return f"{stream}: {most} of each subject"


@fault("source purged of what was read, by filter", 1.0, _keeps)
async def purge(world: World, rng: random.Random) -> str:
    stream, half = _read_half(world, rng)
    subject = rng.choice(world.case.subjects)
    world.keeps_all = False
    await call(world, f"STREAM.PURGE.{stream}", {"filter": subject, "seq": half})
    return f"{stream} of {subject} up to {half}"


@fault("source's retention changed to limits and back", 1.0, lambda c: c.retention == "interest")
async def retention(world: World, rng: random.Random) -> str:
    stream, seconds = rng.choice(world.source_streams), rng.uniform(0.3, 4.0)
    async with changed(world, stream, retention="limits"):
        await asyncio.sleep(seconds)
    return f"{stream} for {seconds:.1f}s"


@fault(
    "source's retention changed for good", 1.0, lambda c: c.retention != "workqueue",
    lambda case: ends("ConsumerEditedError", "OptionError"), last=True,
)  # fmt: skip
async def retention_for_good(world: World, rng: random.Random) -> str:
    """Limits to interest, or interest to limits; a server refuses to or from a work queue."""
    stream = rng.choice(world.source_streams)
    other = {"limits": "interest", "interest": "limits"}[world.case.retention]
    world.keeps_all = False
    await world.admin.change(stream, retention=other)
    return f"{stream} to {other}"


@fault("source sealed", 1.0, last=True)
async def seal(world: World, rng: random.Random) -> str:
    """It takes and removes nothing any more; what it holds is read."""
    for stream in world.source_streams:
        await world.admin.change(stream, insist=True, sealed=True)
    return "sealed"


@fault("source purged of what is unread", 1.0, _alone, _loss, last=True)
async def purge_unread(world: World, rng: random.Random) -> str:
    return await _emptied_of_unread(world, rng)


@fault("source's max_msgs takes what is unread", 1.0, _alone, _loss, last=True)
async def limit_unread(world: World, rng: random.Random) -> str:
    return await _emptied_of_unread(world, rng, max_msgs=rng.choice([1, 20]))


@fault("source deleted and made anew", 1.0, expects=_loss, last=True)
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
