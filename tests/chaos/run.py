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

from pyspark_jetstream.client.patience import Patience

from . import autopsy
from .cases import TARGET, Case
from .faults import FAULTS, Fault, MissedError
from .ledger import Verdict, by_subject, judge
from .world import World

logger = logging.getLogger(__name__)

_STILL_S: Final = 300.0
"""A run has failed once nothing has moved for so long: on a busy machine a start takes minutes."""

_LONGEST_FAULT_S: Final = 150.0


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    case: Case
    seed: int
    faults: int
    only: tuple[str, ...] = ()
    """Names of faults, if not all."""


@dataclass
class Result:
    """What a run has shown."""

    plan: Plan
    settings: dict[str, Any]
    seconds: float = 0.0
    faults: list[dict[str, Any]] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    lives: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def told(self) -> str:
        """In a line."""
        v, wrong = self.verdict, "; ".join(self.failures)
        return (
            f"{self.plan.case.name} {self.plan.seed}: {wrong or 'ok'}; {len(self.faults)} faults,"
            f" {self.lives} lives, {v.published} published, {v.copied} copied, {v.lost} lost,"
            f" {v.doubled} doubled, {v.disordered} disordered, {self.seconds:.0f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": self.plan.case.name, "seed": self.plan.seed, "settings": self.settings,
            "failures": self.failures, "faults": len(self.faults),
            "kinds": Counter(each["fault"] for each in self.faults),
            "missed": self.missed, "seconds": round(self.seconds, 1),
            "lives": self.lives,
            "ends": self.ends, "verdict": self.verdict.as_dict(),
            "each": self.faults,
        }  # fmt: skip


async def run(plan: Plan, home: Path) -> Result:
    """Runs it; its files stay in `home` if it failed."""
    world = World(plan.case, plan.seed, home)
    result = Result(plan, vars(world.settings))
    began = time.monotonic()
    lives: list[asyncio.Task[None]] = []
    try:
        await world.build()
        lives = [asyncio.create_task(query.live()) for query in world.queries]
        if plan.case.retention == "interest":  # which drops what comes before there are consumers
            await world.consumers_made(_STILL_S)
        publishing = asyncio.create_task(world.publisher.run())
        await _copied(world, 1)
        await _disturb(plan, world, result)
        await world.heal()
        world.publisher.stop()
        await publishing
        await _drain(world, result)
        for query in world.queries:
            query.stop()
        _, late = await asyncio.wait(lives, timeout=_STILL_S)
        if late:
            result.failures.append("the query does not stop")
        result.verdict = await _verdict(world)
        ordered = world.settings.order == "strict" and plan.case.sharing != "overflow"
        wrong = result.verdict.failures(ordered)
        if plan.case.sharing == "overflow":  # at least once between queries
            wrong = [each for each in wrong if not each.endswith(" doubled")]
        result.failures += wrong
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
            result.ends += query.ends
        await world.close()
        result.seconds = time.monotonic() - began
    if not result.failures:
        shutil.rmtree(home, ignore_errors=True)
    return result


async def _copied(world: World, count: int) -> None:
    """Waits until so many messages are copied."""
    patience = Patience(_STILL_S)
    while (copied := (await world.admin.state(TARGET))["messages"]) < count:
        patience.progress(copied)
        if patience.over:
            raise TimeoutError(
                f"{copied} messages copied, not {count}, and for {_STILL_S:.0f}s no more"
            )
        await asyncio.sleep(0.5)


async def _disturb(plan: Plan, world: World, result: Result) -> None:
    """One fault after the other, also while others last, until so many have happened."""
    rng = random.Random(f"{plan.seed} faults")
    fitting = [each for each in FAULTS.values() if each.fits(plan.case)]
    chosen = [each for each in fitting if not plan.only or each.name in plan.only]
    began = time.monotonic()
    running: set[asyncio.Task[None]] = set()
    while chosen and len(result.faults) + len(running) < plan.faults:
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
        {
            "fault": fault.name,
            "at": round(at, 2),
            "for": round(lasted, 2),
            "hit": detail,
        }  # fmt: skip
    )
    logger.info("%6.1fs %s: %s", at, fault.name, detail)


async def _drain(world: World, result: Result) -> None:
    """Waits until everything is copied; else says that no more is."""
    patience = Patience(_STILL_S)
    while True:
        copied = (await world.admin.state(TARGET))["messages"]
        if copied >= await _stored(world):
            result.verdict = await _verdict(world)
            if not result.verdict.lost:
                return
        patience.progress(copied)
        if patience.over:
            result.failures.append(f"not at its end, and for {_STILL_S:.0f}s no more was copied")
            return
        await asyncio.sleep(1)


async def _stored(world: World) -> int:
    """How much must have been copied at the least."""
    if not world.keeps_all:
        return world.publisher.acked
    states = [await world.admin.state(stream) for stream in world.source_streams]
    return sum(int(state["messages"]) for state in states)


async def _verdict(world: World) -> Verdict:
    copy = by_subject(await world.admin.contents(TARGET))
    source = None
    if world.keeps_all:
        source = by_subject(
            [each for s in world.source_streams for each in await world.admin.contents(s)]
        )
    return judge(world.publisher.sent, copy, source)
