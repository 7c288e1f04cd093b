"""The tables of `inspect`: only what exists is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple

from pyspark_jetstream.operations.inspection.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    LimitState,
    PositionState,
    SourceState,
)
from pyspark_jetstream.operations.inspection.leases import LeaseState
from pyspark_jetstream.operations.terminal import Columns, Row, console, drawn, say, size
from pyspark_jetstream.sanitize import sanitized

_SHOWN_SUBJECTS = 3


class Table(NamedTuple):
    """Rows of one kind."""

    title: str
    rows: Sequence[Row]


@contextmanager
def shown() -> Iterator[Callable[[Inspection], None]]:
    """Shows inspections: in place on a terminal with rich, else one below the other."""
    where = console()
    if where is None:
        yield lambda found: say(*lines(found), "")
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=where, auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield lambda found: live.update(
            Text("\n".join(lines(found, where.width, where.height))), refresh=True
        )


def lines(inspection: Inspection, width: int | None = None, height: float = math.inf) -> list[str]:
    """
    An inspection as text: where and when, the tables, the problems.

    Args:
        height: where the text has more lines, the problems come before the tables.
    """
    heading, ending, found = _heading(inspection), _ending(inspection), list[str]()
    for table in tables(inspection):
        found += ["", *drawn(table.rows, table.title, width)]
    if len(heading) + len(found) + 1 + len(ending) > height:
        return [*heading, "", *ending, *found]
    return [*heading, *found, "", *ending]


# ── what the tables hold ─────────────────────────────────────────────────────────────────────


def tables(inspection: Inspection) -> list[Table]:
    """All tables that have rows."""
    made = [
        Table("Streams", list(map(_STREAM.row, inspection.streams))),
        Table("Partitions", list(map(_PARTITION.row, inspection.partitions))),
        Table("Consumers", list(map(_consumer, inspection.consumers))),
        Table("Standby", [row for lease in inspection.leases for row in _lease(lease)]),
    ]
    checkpoint = inspection.checkpoint
    if checkpoint is not None:
        made += [_source(checkpoint, source) for source in checkpoint.sources]
    return [table for table in made if table.rows]


def _heading(inspection: Inspection) -> list[str]:
    lines = [f"{inspection.time}  {inspection.server}"]
    checkpoint = inspection.checkpoint
    if checkpoint is not None:
        if checkpoint.planned is None:
            stands = "no batch planned yet"
        elif checkpoint.planned == checkpoint.committed:
            stands = f"batch {checkpoint.planned} planned and committed"
        else:
            last = "none" if checkpoint.committed is None else str(checkpoint.committed)
            stands = f"batch {checkpoint.planned} planned, last committed: {last}"
        others = f", {checkpoint.others} other sources" if checkpoint.others else ""
        lines.append(f"checkpoint {checkpoint.path}")
        lines.append(f"query {checkpoint.query}, {stands}{others}")
    return [sanitized(line) for line in lines]


def _ending(inspection: Inspection) -> list[str]:
    problems = inspection.problems()
    notes = [sanitized(note) for note in inspection.notes]
    if not inspection.streams and inspection.checkpoint is None:
        notes.append("nothing of Spark's is here: no consumer of a query, no bucket, no partitions")
    if not problems:
        return [*notes, "no problem"]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return [*notes, f"{count}:", *(f"  {sanitized(problem)}" for problem in problems)]


def _limits(limits: LimitState) -> str:
    """Limits of a stream, and what happens when one is reached."""
    parts = [
        f"{limits.messages:,} messages" if limits.messages is not None else "",
        size(limits.bytes) if limits.bytes is not None else "",
        _span(limits.age_s) if limits.age_s is not None else "",
        f"{limits.messages_per_subject:,} a subject" if limits.messages_per_subject else "",
    ]
    given = ", ".join(filter(None, parts))
    return f"{given}; discard {limits.discard}" if given else ""


def _consumer(consumer: ConsumerState) -> Row:
    unanswered = consumer.problems == ("no leader answers",)
    return (_UNANSWERED if unanswered else _CONSUMER).row(consumer)


def _lease(lease: LeaseState) -> list[Row]:
    """A row of who reads, and one of each who waits."""
    place = {"stream": lease.stream, "consumer": lease.consumer}
    reads = {"state": "reads" if lease.holder else "nobody reads"} | _READS.row(lease)
    waits = ({"state": "waits"} | _WAITS.row(each) for each in lease.waiting)
    return [place | row for row in (reads, *waits)]


def _source(checkpoint: CheckpointState, source: SourceState) -> Table:
    what = f"Checkpoint, source {source.source}"
    if source.consumer:
        what += f", consumers {source.consumer}"
    if source.policy:
        done = "committed" if checkpoint.planned == checkpoint.committed else "not committed"
        what += f", {source.policy}, serial {source.serial}, batch {checkpoint.planned} {done}"
        rows: list[Row] = [_CLAIM.row(claim) for claim in source.claims]
    else:
        rows = [_position(position) for position in source.positions]
    if source.problems:
        rows.append({"problems": source.problems})
    if not rows:
        rows.append({"position": "before its first batch"})
    return Table(sanitized(what), rows)


def _position(position: PositionState) -> Row:
    row = _POSITION.row(position)
    return row | {"planned": None} if position.planned == position.committed else row


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def _moment(text: str) -> str:
    """A time without fractions of a second."""
    return re.sub(r"\.\d+", "", text).replace("+00:00", "Z")


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+,.1f}"


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else str(timedelta(seconds=max(0, round(seconds))))


def _part(used: float | None) -> str | None:
    return None if used is None else f"{100 * used:.0f}%"


def _id(number: int) -> str | None:
    """A number that is a name: without commas."""
    return str(number) if number else None


def _some(count: int) -> int | None:
    """A count that is not shown where it is 0."""
    return count or None


def _first(subjects: tuple[str, ...]) -> str:
    more = len(subjects) - _SHOWN_SUBJECTS
    return ", ".join(subjects[:_SHOWN_SUBJECTS]) + (f" and {more} more" if more > 0 else "")


# ── columns ──────────────────────────────────────────────────────────────────────────────────

_STREAM: Final = Columns(
    "stream=name retention messages bytes used=limits.used limits first last subjects replicas"
    " leader duplicates=duplicate_window_s stored/s=stored_rate problems",
    {"bytes": size, "limits.used": _part, "limits": _limits, "subjects": _first,
     "duplicate_window_s": _span},
)  # fmt: skip

_PARTITION: Final = Columns(
    "partition=index stream filter messages last",
    {"messages": lambda count: "?" if count is None else count},
)

_CONSUMER: Final = Columns(
    "consumer=name stream lag=progress.lag policy group=pin.group pinned_client=pin.client"
    " pinned_since=pin.since ack_policy delivered=progress.delivered ack_floor=progress.ack_floor"
    " claims=progress.ack_pending await_redelivery=progress.awaiting"
    " redelivered=progress.redelivered waiting=progress.waiting last_active=progress.last_active"
    " paused_until query=owner.called query_runs=owner.runs host=owner.host read/s=read_rate"
    " lag/s=lag_rate problems",
    {"pin.since": _moment, "progress.ack_pending": _some, "progress.awaiting": _some,
     "progress.redelivered": _some, "progress.last_active": _moment, "paused_until": _moment,
     "owner.runs": {False: "no"}.get, "lag_rate": _signed},
)  # fmt: skip

_UNANSWERED: Final = Columns("consumer=name stream problems")

_READS: Final = Columns(
    "query=called host process=pid last_seen=renewed until left=left_s term notes problems",
    {"pid": _id, "renewed": _moment, "until": _moment, "term": _some,
     "left_s": lambda left: None if left is None else f"{left:.0f}s"},
)  # fmt: skip

_WAITS: Final = Columns(
    "query=called host process=pid last_seen=seen", {"pid": _id, "seen": _moment}
)

_CLAIM: Final = Columns(
    "partition=index stream claimed first last redelivered not_acknowledged=ack_pending problems",
    {"first": _some, "last": _some},
)

_POSITION: Final = Columns(
    "partition=index stream filter committed planned first last at_consumer=consumer"
    " uncommitted=lag read/s=read_rate uncommitted/s=lag_rate notes problems",
    {"consumer": lambda at: "none" if at is None else at,
     "lag": lambda lag: "?" if lag is None else lag, "lag_rate": _signed},
)  # fmt: skip
