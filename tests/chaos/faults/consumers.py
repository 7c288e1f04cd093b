"""What somebody else does to a query's consumers: edited, paused, made anew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..admin import RefusedError
from ..cases import Case
from ..outcomes import EXACT, Outcome, ends
from ..world import World
from .registry import MissedError, fault
from .streams import a_consumer, call

_EDITS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "headers_only": lambda partition: {"headers_only": True},
    "filter_subject": lambda partition: {"filter_subject": f"in.{partition}.k0"},
    "max_ack_pending": lambda partition: {"max_ack_pending": 5},
    "max_batch": lambda partition: {"max_batch": 10},
    "max_bytes": lambda partition: {"max_bytes": 1_000},
    "max_expires": lambda partition: {"max_expires": 10**9},
}
"""By field what an operator sets, of the consumer of a partition."""

_SHARED_EDITS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "headers_only": lambda partition: {"headers_only": False},
    "max_ack_pending": lambda partition: {"max_ack_pending": 400},
    "ack_wait": lambda partition: {"ack_wait": 20 * 10**9},
    "filter_subject": lambda partition: {"filter_subject": f"in.{partition}.k0"},
}
"""Likewise of a consumer that queries share."""

_PULLS: Final = ("max_batch", "max_bytes", "max_expires")
_ONCE_MORE: Final = 5


def _alone(case: Case) -> bool:
    """A shared consumer has rules of its own."""
    return case.sharing != "overflow"


def _shares(case: Case) -> bool:
    return not _alone(case)


async def _config(world: World, stream: str, consumer: str) -> dict[str, Any]:
    return dict((await world.admin.insist(f"CONSUMER.INFO.{stream}.{consumer}"))["config"])


async def _edit(world: World, stream: str, consumer: str, changes: dict[str, Any]) -> None:
    """As `nats consumer edit` does: the rest stays as it is now; None takes a field out."""
    config = await _config(world, stream, consumer) | changes
    config = {key: value for key, value in config.items() if value is not None}
    body = {"stream_name": stream, "config": config, "action": "update"}
    await world.admin.call(f"CONSUMER.CREATE.{stream}.{consumer}", body)


async def _set_back(world: World, stream: str, consumer: str, before: dict[str, Any]) -> None:
    """Until it is done; one that somebody has deleted meanwhile needs none."""
    for left in range(60, -1, -1):
        try:
            return await _edit(world, stream, consumer, before)
        except RefusedError as problem:
            if "10014" in str(problem):  # no such consumer
                return
            if not left:
                raise
            await asyncio.sleep(0.5)


def _expects(field: str) -> Callable[[Case], Outcome]:
    """Of a consumer that stays edited: what delivers otherwise is named, what limits pulls, too."""

    def expects(case: Case) -> Outcome:
        if field == "max_ack_pending" and case.retention == "limits":
            return EXACT  # nothing is acknowledged, so nothing is limited
        pulls = ["ReadError"] if field in _PULLS else []
        return ends("ConsumerEditedError", "OptionError", *pulls)

    return expects


def _expects_shared(field: str) -> Callable[[Case], Outcome]:
    """
    Rows of a shared consumer come by direct get, and how many may be claimed is the operator's to
    say. What decides whose a message is, or whether it is read at all, ends all queries.
    """
    if field in ("headers_only", "max_ack_pending"):
        return lambda case: EXACT
    return lambda case: ends("ConsumerEditedError", "OptionError")


def _edits_shared(field: str) -> None:
    if field != "filter_subject":  # what it does not match is passed over, also when it is set back

        @fault(f"shared consumer edited and set back: {field}", 0.4, _shares)
        async def for_a_while(world: World, rng: random.Random) -> str:
            return await _edit_for_a_while(world, rng, field, _SHARED_EDITS[field])

    expects = _expects_shared(field)

    @fault(f"shared consumer edited for good: {field}", 1.0, _shares, expects, last=True)
    async def for_good(world: World, rng: random.Random) -> str:
        stream, consumer = await a_consumer(world, rng)
        await _edit(world, stream, consumer, _SHARED_EDITS[field](consumer[-1]))
        return consumer


def _edits(field: str) -> None:
    def may_be_set_back(case: Case) -> bool:
        """An interest stream does not store what its only consumer does not want."""
        return _alone(case) and (field, case.retention) != ("filter_subject", "interest")

    @fault(f"consumer edited and set back: {field}", 0.4, may_be_set_back)
    async def for_a_while(world: World, rng: random.Random) -> str:
        return await _edit_for_a_while(world, rng, field, _EDITS[field])

    @fault(f"consumer edited for good: {field}", 1.0, _alone, _expects(field), last=True)
    async def for_good(world: World, rng: random.Random) -> str:
        stream, consumer = await a_consumer(world, rng)
        await _edit(world, stream, consumer, _EDITS[field](consumer[-1]))
        return consumer


async def _edit_for_a_while(
    world: World, rng: random.Random, field: str, edit: Callable[[str], dict[str, Any]]
) -> str:
    """A consumer has another value of the field for some seconds."""
    stream, consumer = await a_consumer(world, rng)
    seconds = rng.uniform(0.3, 6.0)
    lock = world.admin.locks[consumer]
    if lock.locked():
        raise MissedError("it is being edited already")
    async with lock:
        before = (await _config(world, stream, consumer)).get(field)
        try:
            await _edit(world, stream, consumer, edit(consumer[-1]))
            await asyncio.sleep(seconds)
        except RefusedError as problem:
            raise MissedError(str(problem)) from problem
        finally:  # an edit whose answer is missing may have been done all the same
            await _set_back(world, stream, consumer, {field: before})
    return f"{consumer} for {seconds:.1f}s"


for _field in _EDITS:
    _edits(_field)
for _field in _SHARED_EDITS:
    _edits_shared(_field)


@fault("consumer paused", 1.5)
async def pause(world: World, rng: random.Random) -> str:
    """As `nats consumer pause` does; it goes on by itself."""
    stream, consumer = await a_consumer(world, rng)
    seconds = rng.uniform(1.0, 6.0)
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    await call(world, f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until.isoformat()})
    await asyncio.sleep(seconds)
    return f"{consumer} for {seconds:.1f}s"


def _made_otherwise(case: Case) -> Outcome:
    if case.retention == "workqueue":
        return EXACT  # the server takes no other deliver policy there, and keeps what is unread
    loss = ["DataLossError"] if case.retention == "interest" else []
    return ends("ConsumerEditedError", "OptionError", *loss)


@fault("consumer made anew by somebody else", 1.0, _alone, _made_otherwise, last=True)
async def made_anew(world: World, rng: random.Random) -> str:
    """Deleted, and there again with what is new alone, where the server allows it."""
    stream, consumer = await a_consumer(world, rng)
    config = await _config(world, stream, consumer)
    if world.case.retention != "workqueue":
        config["deliver_policy"] = "new"
    body = {"stream_name": stream, "config": config, "action": "create"}
    for _ in range(_ONCE_MORE):  # the query may be there first
        await call(world, f"CONSUMER.DELETE.{stream}.{consumer}")
        try:
            await world.admin.call(f"CONSUMER.CREATE.{stream}.{consumer}", body)
        except RefusedError:
            continue
        return f"{consumer}, {config['deliver_policy']}"
    raise MissedError("the query is always first")
