"""One run: a cell of the matrix, a seed, and so many faults; then all must be copied, once."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from . import autopsy
from .cases import TARGET, Case
from .faults import FAULTS, Fault, MissedError, fitting
from .ledger import Verdict, by_subject, judge
from .world import World

__all__ = ["Plan", "Result", "run"]

logger = logging.getLogger(__name__)

_START_S: Final = 120.0
_LONGEST_FAULT_S: Final = 150.0


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    case: Case
    seed: int
    faults: int
    only: tuple[str, ...] = ()
    """Names of faults, if not all."""
    rate: float = 250.0
    """Messages a second."""
    drain_s: float = 180.0


@dataclass
class Result:
    """What a run has shown."""

    plan: Plan
    settings: dict[str, Any]
    seconds: float = 0.0
    drained_s: float = 0.0
    faults: list[dict[str, Any]] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    lives: int = 0
    batches: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    """Streams of which the server's own replicas do not hold the same at the end."""
    failures: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": self.plan.case.name, "seed": self.plan.seed, "settings": self.settings,
            "failures": self.failures, "differing": self.differing, "faults": len(self.faults),
            "kinds": Counter(each["fault"] for each in self.faults),
            "missed": self.missed, "seconds": round(self.seconds, 1),
            "drained_s": round(self.drained_s, 1), "lives": self.lives, "batches": self.batches,
            "ends": self.ends, "verdict": self.verdict.as_dict(), "each": self.faults,
        }  # fmt: skip


async def run(plan: Plan, home: Path) -> Result:
    """Runs it; its files stay in `home` if it failed."""
    world = World(plan.case, plan.seed, home, plan.rate)
    result = Result(plan, vars(world.settings))
    began = time.monotonic()
    lives: list[asyncio.Task[None]] = []
    try:
        await world.build()
        lives = [asyncio.create_task(query.live()) for query in world.queries]
        await _begin(world)
        publishing = asyncio.create_task(world.publisher.run())
        await _copied(world, 1, _START_S)
        await _disturb(plan, world, result)
        world.publisher.stop()
        await world.heal()
        await publishing
        await _drain(plan, world, result)
        result.differing = await world.servers.differing(world.source_streams, 10.0)
        for query in world.queries:
            query.stop()
        _, late = await asyncio.wait(lives, timeout=60)
        if late:
            result.failures.append("the query does not stop")
        result.verdict = await _verdict(world)
        ordered = world.settings.order == "strict" and plan.case.sharing != "overflow"
        result.failures += result.verdict.failures(ordered)
    except Exception as problem:
        logger.exception("run failed")
        result.failures.append(f"{type(problem).__name__}: {problem}")
    finally:
        if result.failures:
            await autopsy.write(world, home)
        for task in lives:
            task.cancel()
        for query in world.queries:
            result.lives += query.lives
            result.batches += query.batches()
            result.ends += query.ends
        await world.close()
        result.seconds = time.monotonic() - began
    if not result.failures:
        shutil.rmtree(home, ignore_errors=True)
    return result


async def _begin(world: World) -> None:
    """An interest stream drops what comes before its consumers are made."""
    if world.case.retention == "interest":
        await world.consumers_made(_START_S)


async def _copied(world: World, count: int, within_s: float) -> None:
    """Waits until so many messages are copied."""
    deadline = time.monotonic() + within_s
    while (await world.admin.state(TARGET))["messages"] < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {count} messages copied within {within_s:.0f}s")
        await asyncio.sleep(0.5)


async def _disturb(plan: Plan, world: World, result: Result) -> None:
    """One fault after the other, also while others last, until so many have happened."""
    rng = random.Random(f"{plan.seed} faults")
    chosen = [each for each in fitting(plan.case) if not plan.only or each.name in plan.only]
    began = time.monotonic()
    running: set[asyncio.Task[None]] = set()
    while len(result.faults) + len(running) < plan.faults:
        (each,) = rng.choices(chosen, [fault.weight for fault in chosen])
        one = _inflict(each, world, random.Random(rng.random()), result, began)
        task = asyncio.create_task(one)
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(rng.uniform(0.3, 2.0))
        while running and len(result.faults) + len(running) >= plan.faults:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=1)
            if time.monotonic() - began > 30 * plan.faults + _LONGEST_FAULT_S:
                raise TimeoutError(f"faults that do not end; so far {len(result.faults)}")
    if running:
        await asyncio.wait(running, timeout=_LONGEST_FAULT_S)


async def _inflict(
    fault: Fault, world: World, rng: random.Random, result: Result, began: float
) -> None:
    at = time.monotonic() - began
    try:
        detail = await fault.happen(world, rng)
    except MissedError as why:
        logger.debug("missed: %s: %s", fault.name, why)
        result.missed[fault.name] += 1
        return
    except Exception as problem:
        logger.warning("fault %s: %r", fault.name, problem)
        result.missed[f"{fault.name}: {problem!r}"[:200]] += 1
        return
    lasted = time.monotonic() - began - at
    result.faults.append(
        {"fault": fault.name, "at": round(at, 2), "for": round(lasted, 2), "hit": detail}
    )
    logger.info("%6.1fs %s: %s", at, fault.name, detail)


async def _drain(plan: Plan, world: World, result: Result) -> None:
    """Waits until everything is copied; else says how far it came."""
    began = time.monotonic()
    deadline = began + plan.drain_s
    while True:
        if (await world.admin.state(TARGET))["messages"] >= world.publisher.acked:
            result.verdict = await _verdict(world)
            if result.verdict.complete:
                result.drained_s = time.monotonic() - began
                return
        if time.monotonic() > deadline:
            result.failures.append(f"not at its end within {plan.drain_s:.0f}s")
            return
        await asyncio.sleep(1)


async def _verdict(world: World) -> Verdict:
    copy = by_subject(await world.admin.contents(TARGET))
    source = None
    if world.case.retention == "limits":
        source = by_subject(
            [each for s in world.source_streams for each in await world.admin.contents(s)]
        )
    return judge(world.publisher.sent, copy, source)


assert FAULTS, "the registry fills by import"
