"""
Undoes what `partitioning` made: removes the streams of a plan, and nothing else.

A stream is the plan's when its metadata and its source say so, and it has no subjects of its own.
Any other is refused, whatever is asked. A stream of the plan stays, too, unless `force` says
otherwise, where others need it: consumers that have not read all of it or are being read, streams
that are filled from it. One such stream, and none is removed. No message is read.

The partitions go first, what feeds them last; run again after an interruption it removes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...client.jetstream import JetStream
from ...errors import UndoRefusedError
from ...fetch.own import NAMES
from ...sanitize import get_logger
from .plan import PartitionPlan, differences

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Removed:
    """A stream that is removed, and who needs it."""

    stream: str
    messages: int
    needed_by: tuple[str, ...] = ()
    """Consumers with messages to read, and streams that are filled from it, in words."""


def undo_partitions(
    js: JetStream, plan: PartitionPlan, *, force: bool = False, dry_run: bool = False
) -> tuple[Removed, ...]:
    """
    Removes the streams of `plan` that are there; the origin is never touched.

    Args:
        force: remove them although others need them.
        dry_run: only say what would be removed, and who needs it.

    Raises:
        UndoRefusedError: A stream is not the plan's, or others need it; none was removed.
    """
    there = set(js.stream_names())
    names = [name for name in reversed(plan.names) if name in there]
    marked = {config["name"]: config for config in plan.configs({})}
    removed = tuple(_removal(js, marked[name], there - set(names)) for name in names)
    needed = next((each for each in removed if each.needed_by), None)
    if dry_run:
        return removed
    if needed is not None and not force:
        raise UndoRefusedError(
            needed.stream,
            f"was not removed: {'; '.join(needed.needed_by)}; --dry-run lists all, --force removes"
            " it all the same",
        )
    for each in removed:
        js.delete_stream(each.stream)
        logger.info("removed stream=%s messages=%d", each.stream, each.messages)
    return removed


def _removal(js: JetStream, planned: Mapping[str, Any], others: set[str]) -> Removed:
    name = planned["name"]
    info = js.stream_info(name)
    wrong = differences(planned, info.config)
    if wrong:
        raise UndoRefusedError(
            name, f"was not made by this plan ({'; '.join(wrong)}) and is left as it is"
        )
    return Removed(name, info.messages, (*_fed_by(js, name, others), *_unread(js, name)))


def _fed_by(js: JetStream, name: str, others: set[str]) -> list[str]:
    """Of the other streams those that are filled from this one, in words."""
    fed = []
    for other in js.stream_infos(sorted(others)):
        sources = [*(other.config.get("sources") or []), other.config.get("mirror") or {}]
        if any(each.get("name") == name and not each.get("external") for each in sources):
            fed.append(f"stream '{other.name}' is filled from it")
    return fed


def _unread(js: JetStream, stream: str) -> list[str]:
    """The stream's consumers that need it, in words."""
    consumers, missing = js.consumer_list(stream)
    states = dict.fromkeys(missing, "has no leader that says what it has to read")
    for each in consumers:
        name = str(each["name"])
        unread = int(each.get("num_pending", 0)) + int(each.get("num_ack_pending", 0))
        if name.startswith(NAMES):
            states[name] = "belongs to a task that reads it, or was killed a minute ago at most"
        elif unread:
            states[name] = f"has {unread:,} messages to read"
        elif int(each.get("num_waiting", 0)) or each.get("push_bound"):
            states[name] = "is being read"
    return [f"its consumer '{name}' {state}" for name, state in states.items()]
