"""
Undoes what `partitioning` made: removes the streams of a plan, and nothing else.

A stream is the plan's when its metadata and its source say so, it has no subjects of its own, and
all its messages are copies. Any other is refused, whatever is asked. A stream of the plan stays,
too, unless `force` says otherwise, where something would be lost with it: messages that the origin
does not have any more, consumers that have not read all of it or are being read, streams that are
filled from it. One such stream, and none is removed.

The partitions go first, what feeds them last; run again after an interruption it removes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import subjects
from ..client.jetstream import JetStream
from ..errors import UndoRefusedError
from ..fetch.owner import NAMES
from ..readstream.copies import subject_counts
from ..sanitize import get_logger
from .copychecks import first_foreign
from .partitioning import expected_counts
from .partitionplan import PartitionPlan, differences

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Removed:
    """A stream that is removed, and what else is lost with it."""

    stream: str
    messages: int
    lost: tuple[str, ...] = ()
    """Losses by the removal, in words."""


def undo_partitions(
    js: JetStream,
    plan: PartitionPlan,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> tuple[Removed, ...]:
    """
    Removes the streams of `plan` that are there; the origin is never touched.

    Args:
        force: remove them although something is lost.
        dry_run: only say what would be removed and lost.

    Raises:
        UndoRefusedError: A stream is not the plan's, or something would be lost; none was removed.
    """
    there = set(js.stream_names())
    names = [name for name in reversed(plan.names) if name in there]
    marked = {config["name"]: config for config in plan.configs({})}
    for name in names:
        _check_made(js, marked[name])
    removed = _losses(js, plan, names, there)
    losing = next((removal for removal in removed if removal.lost), None)
    if dry_run:
        return removed
    if losing is not None and not force:
        raise UndoRefusedError(
            losing.stream,
            f"was not removed: {'; '.join(losing.lost)}; --dry-run lists all, --force removes"
            " it all the same",
        )
    for removal in removed:
        js.delete_stream(removal.stream)
        logger.info("removed stream=%s messages=%d", removal.stream, removal.messages)
    return removed


def _check_made(js: JetStream, planned: Mapping[str, Any]) -> None:
    name = planned["name"]
    wrong = differences(planned, js.stream_info(name).config)
    if wrong:
        raise UndoRefusedError(
            name, f"was not made by this plan ({'; '.join(wrong)}) and is left as it is"
        )
    foreign = first_foreign(js, name)
    if foreign is not None:
        raise UndoRefusedError(
            name,
            f"sequence {foreign} is no copy: somebody published it here, and it is nowhere else;"
            " publish it where it belongs, then delete it here",
        )


def _losses(
    js: JetStream, plan: PartitionPlan, names: list[str], there: set[str]
) -> tuple[Removed, ...]:
    fed: dict[str, list[str]] = {name: [] for name in names}
    for other in js.stream_infos(sorted(there - set(names))):
        sources = [*(other.config.get("sources") or []), other.config.get("mirror") or {}]
        for source in sources:
            if source.get("name") in fed and not source.get("external"):
                fed[source["name"]].append(other.name)
    copied = {name: subject_counts(js, name, subjects.REST) for name in names}
    # Counted after the copies: what comes meanwhile is then no loss.
    held = expected_counts(js, plan, strict=False) if plan.origin in there else Counter()
    removed = []
    for name, counts in copied.items():
        gone = (counts - held).total()
        lost = [f"{gone:,} messages of it are in '{plan.origin}' no more"] if gone else []
        lost += [f"stream '{other}' is filled from it" for other in fed[name]]
        lost += _unread(js, name)
        removed.append(Removed(name, counts.total(), tuple(lost)))
    return tuple(removed)


def _unread(js: JetStream, stream: str) -> list[str]:
    """Losses of the stream's consumers, in words."""
    consumers, missing = js.consumer_list(stream)
    lost = []
    for consumer in consumers:
        if str(consumer["name"]).startswith(NAMES):
            lost.append(
                f"its consumer '{consumer['name']}' belongs to a task that reads it, or was killed"
                " a minute ago at most"
            )
            continue
        unread = int(consumer.get("num_pending", 0)) + int(consumer.get("num_ack_pending", 0))
        read = int(consumer.get("num_waiting", 0)) or consumer.get("push_bound")
        if unread or read:
            state = f"has {unread:,} messages to read" if unread else "is being read"
            lost.append(f"its consumer '{consumer['name']}' {state}")
    return lost + [
        f"its consumer '{name}' has no leader that says what it has to read" for name in missing
    ]
