"""
Undoes what `making` made: removes the streams of a plan, and nothing else.

A stream is the plan's when its metadata and its sources say so, and it has no subjects of its own.
Any other is refused, whatever is asked. A stream of the plan stays, too, unless `force` says
otherwise, where it has consumers. One such stream, and none is removed. No message is read.

The partitions go first, what feeds them last; run again after an interruption it removes the rest.
"""

from __future__ import annotations

from typing import Any

from ...client.jetstream import JetStream
from ...errors import PartitioningError
from .plan import PartitionPlan, differences


def undo_partitions(
    js: JetStream, plan: PartitionPlan, *, force: bool = False, dry_run: bool = False
) -> list[dict[str, Any]]:
    """
    Removes the streams of `plan` that are there; the origin is never touched.

    Args:
        force: remove them although they have consumers.
        dry_run: only say what would be removed.

    Raises:
        PartitioningError: A stream is not the plan's, or has consumers; none was removed.
    """
    planned = {config["name"]: config for config in plan.configs({})}
    rows: list[dict[str, Any]] = []
    for info in js.stream_infos_there(list(reversed(plan.names))):
        if info is None:
            continue
        if wrong := differences(planned[info.name], info.config):
            detail = f"was not made by this plan ({'; '.join(wrong)}) and is left as it is"
            raise PartitioningError(info.name, detail)
        consumers, silent = js.consumer_list(info.name)
        names = sorted([*silent, *(str(each["name"]) for each in consumers)])
        rows.append({"stream": info.name, "messages": info.messages, "consumers": names})
        if names and not force and not dry_run:
            needs = f"it has the consumers {', '.join(names)}"
            detail = f"was not removed: {needs}; --force removes it all the same"
            raise PartitioningError(info.name, detail)
    for row in () if dry_run else rows:
        js.delete_stream(row["stream"])
    return rows
