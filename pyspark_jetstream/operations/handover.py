"""
The exact place where a query leaves one layout of a stream's partitions for another.

The partitions of a query never stand at the same message of the origin, and with another N the
messages of one new partition come from several old ones. So the query is stopped, one sequence of
the origin is taken as the cut, and each copy is asked for its last message from up to there:
the old layout is read to these (`endingOffsets`), the new one from behind them (`startingOffsets`).
The origin's end, once the query is stopped, lies behind all that the query has read. A query that
was not stopped may be beyond; then the source refuses the `endingOffsets`.

Both layouts are copies of one stream, or that stream itself. Nothing is changed on the server, so
other readers of the old layout go on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .. import subjects
from ..client.jetstream import JetStream
from ..errors import OptionError
from ..fetch.layout import REPLACED, Layout, replaced_by, resolve_layout
from ..fetch.options import plain_read
from ..readstream.copies import Copies, Progress
from .partitionplan import MARK, PartitionPlan


@dataclass(frozen=True, slots=True)
class Handover:
    """One sequence of the origin, as options of the data source."""

    stream: str
    """The origin."""
    sequence: int
    """The old layout is read up to its copy, the new one from behind it."""
    old: dict[str, str]
    new: dict[str, str]


def reading(plan: PartitionPlan) -> dict[str, str]:
    """Options of the data source that read the layout of `plan`."""
    return {"stream": plan.layout, "partitions": str(plan.partitions)} | (
        {} if plan.streams is not None else {"partitionSubject": plan.template}
    )


def check_selected(js: JetStream, plan: PartitionPlan) -> None:
    """
    Asks for one message of the origin that the plan's layout takes: queries that go over to a
    layout without any would read nothing more, and say nothing.

    Raises:
        OptionError: The origin holds messages, and the plan takes none of them.
    """
    queries: list[dict[str, Any]] = [
        {"seq": 1, "next_by_subj": plan.filter},
        {"seq": 1, "next_by_subj": subjects.REST},
        {"last_by_subj": subjects.REST},
    ]
    taken, first, last = js.messages_of([(plan.origin, query) for query in queries])
    if taken is not None or first is None:
        return
    stored = dict.fromkeys(message.subject for message in (first, last) if message is not None)
    named = "' and '".join(stored)
    raise OptionError(
        "subject" if plan.subject is not None else "partitionSubject",
        f"'{plan.filter}' takes no message of stream '{plan.origin}', whose stored subjects are"
        f" such as '{named}'; name subjects as the stream stores them, after any transform of its"
        " own. Nothing was made, and no query goes over",
    )


def announce(js: JetStream, old: str, plan: PartitionPlan) -> None:
    """
    Notes at the first stream of the old layout that the plan's takes its place; queries with
    `partitions=auto` go over then. The plan's own layout is replaced by none any more.
    """
    template = plan.template if plan.streams is None else None
    said = replaced_by(plan.layout, plan.partitions, template)
    for layout, mark in ((plan.layout, None), (old, said)):
        config = js.stream_info(layout.replace("{partition}", "0")).config
        metadata = {k: v for k, v in (config.get("metadata") or {}).items() if k != REPLACED}
        metadata |= {REPLACED: mark} if mark is not None else {}
        if metadata != (config.get("metadata") or {}):
            js.update_stream(config | {"metadata": metadata})


def hand_over(
    js: JetStream,
    old: str,
    plan: PartitionPlan,
    *,
    partitions: int | None = None,
    progress: Progress | None = None,
    stall_timeout_s: float = 60.0,
) -> Handover:
    """
    The cut between two layouts at the end of their origin, once both have reached it.

    Args:
        old: the layout read so far: a stream, or streams with `{partition}` in their name.
        partitions: how many it has, where the server does not tell.
        progress: told how far each stream is, in sequences of what feeds it.
        stall_timeout_s: how long nothing may be copied before it is given up.

    Raises:
        OptionError: `old` is no layout of the plan's origin.
        CopyStalledError: The server stopped copying.
        CopyMismatchError: A message was published into a copy.
    """
    before = _layout_of(js, old, plan, partitions)
    cut = js.stream_info(plan.origin).last_seq
    streams = (*before.streams, *(plan.stream_names or plan.names))
    shown = progress or (lambda _: None)
    cuts = Copies(js).cuts(streams, plan.origin, cut, shown, stall_timeout_s)
    ends = {str(partition.index): cuts[partition.stream] for partition in before}
    names = plan.stream_names or plan.names * plan.partitions
    starts = {str(p): cuts[name] + 1 for p, name in enumerate(names)}
    template = before.partition_subject
    return Handover(
        plan.origin,
        cut,
        {"stream": old, "partitions": str(len(before))}
        | ({"partitionSubject": template} if template is not None else {})
        | {"endingOffsets": json.dumps(ends)},
        reading(plan) | {"startingOffsets": json.dumps(starts)},
    )


def _layout_of(js: JetStream, old: str, plan: PartitionPlan, partitions: int | None) -> Layout:
    """The partitions of the old layout, as far as the server or the caller knows them."""
    connection = js.client.options
    if old == plan.layout:
        raise OptionError("replaces", f"'{old}' is the layout that is made")
    first = js.stream_info(old.replace("{partition}", "0"))
    if "{partition}" in old:
        marked = (first.config.get("metadata") or {}).get(f"{MARK}partitions", "")
        count = partitions or (int(marked) if marked.isdecimal() else 0)
        if not count:
            raise OptionError("replacesPartitions", f"required: how many are there of '{old}'?")
        return resolve_layout(plain_read(connection, old, partitions=count), {})
    template = plan.partition_subject if old == plan.origin else None
    if template is not None:
        partitions = partitions or plan.partitions
    elif partitions == 1:
        return resolve_layout(plain_read(connection, old, subjects=(">",)), {})
    layout = resolve_layout(plain_read(connection, old), {old: first.config})
    if partitions and len(layout) != partitions:
        # Whatever the filters are: the cut of one stream is the same for all of them.
        options = plain_read(
            connection, old, partitions=partitions, partition_subject=template or "{partition}"
        )
        layout = resolve_layout(options, {})
        return Layout(layout.partitions, template)
    return layout
