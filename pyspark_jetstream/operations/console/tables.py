"""The tables of `inspect`: only what exists is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from pyspark_jetstream.operations.inspection.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    LimitState,
    PartitionState,
    PositionState,
    SourceState,
    StreamState,
)
from pyspark_jetstream.operations.inspection.leases import LeaseState
from pyspark_jetstream.operations.inspection.parkings import ParkedState, ParkingState
from pyspark_jetstream.operations.terminal import Row, console, drawn, say, size
from pyspark_jetstream.sanitize import sanitized

_SHOWN_SUBJECTS = 3


class Table(NamedTuple):
    """Rows of one kind."""

    title: str
    rows: list[Row]


def printed(inspection: Inspection) -> None:
    """The tables, once."""
    say(*lines(inspection))


@contextmanager
def shown() -> Iterator[Callable[[Inspection], None]]:
    """Shows inspections: in place on a terminal with rich, else one below the other."""
    where = console()
    if where is None:
        yield lambda found: say(*lines(found), "")
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=where, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda found: live.update(Text("\n".join(lines(found, where.width))), refresh=True)


def lines(inspection: Inspection, width: int | None = None) -> list[str]:
    """An inspection as text: where and when, the tables, the problems."""
    found = _heading(inspection)
    for table in tables(inspection):
        found += ["", *drawn(table.rows, table.title, width)]
    return [*found, "", *_ending(inspection)]


# ── what the tables hold ─────────────────────────────────────────────────────────────────────


def tables(inspection: Inspection) -> list[Table]:
    """All tables that have rows."""
    made = [
        Table("Streams", [_stream(stream) for stream in inspection.streams]),
        Table("Partitions", [_partition(partition) for partition in inspection.partitions]),
        Table("Consumers", [_consumer(consumer) for consumer in inspection.consumers]),
        Table("Standby", [row for lease in inspection.leases for row in _lease(lease)]),
        Table("Parking", [_parking(parking) for parking in inspection.parkings]),
        *(
            Table(f"Parked in {sanitized(parking.stream)}", list(map(_parked, parking.parked)))
            for parking in inspection.parkings
        ),
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


def _stream(stream: StreamState) -> Row:
    more = len(stream.subjects) - _SHOWN_SUBJECTS
    subjects = ", ".join(stream.subjects[:_SHOWN_SUBJECTS]) + (
        f" and {more} more" if more > 0 else ""
    )
    used = stream.limits.used
    return {
        "stream": stream.name,
        "retention": stream.retention,
        "messages": stream.messages,
        "bytes": size(stream.bytes),
        "used": f"{100 * used:.0f}%" if used is not None else None,
        "limits": _limits(stream.limits),
        "first": stream.first,
        "last": stream.last,
        "subjects": subjects,
        "replicas": stream.replicas,
        "leader": stream.leader,
        "duplicates": _span(stream.duplicate_window_s),
        "stored/s": stream.stored_rate,
        "problems": stream.problems,
    }


def _limits(limits: LimitState) -> str:
    """Those that there are, and what happens when one is reached."""
    parts = [
        f"{limits.messages:,} messages" if limits.messages is not None else "",
        size(limits.bytes) if limits.bytes is not None else "",
        _span(limits.age_s) if limits.age_s is not None else "",
        f"{limits.messages_per_subject:,} a subject" if limits.messages_per_subject else "",
    ]
    given = ", ".join(filter(None, parts))
    return f"{given}; discard {limits.discard}" if given else ""


def _partition(partition: PartitionState) -> Row:
    return {
        "partition": partition.index,
        "stream": partition.stream,
        "filter": partition.filter,
        "messages": "?" if partition.messages is None else partition.messages,
        "last": partition.last,
    }


def _consumer(consumer: ConsumerState) -> Row:
    place = {"consumer": consumer.name, "stream": consumer.stream}
    pin, progress = consumer.pin, consumer.progress
    if consumer.problems == ("no leader answers",):
        return place | {"problems": consumer.problems}
    return place | {
        "lag": progress.lag,
        "policy": "one attempt's own" if consumer.own else pin.policy,
        "group": pin.group,
        "pinned client": pin.client,
        "pinned since": _moment(pin.since),
        "ack policy": consumer.ack_policy,
        "delivered": progress.delivered,
        "ack floor": progress.ack_floor,
        "claims": progress.ack_pending or None,
        "await redelivery": progress.awaiting or None,
        "redelivered": progress.redelivered or None,
        "waiting": progress.waiting,
        "last active": _moment(progress.last_active),
        "paused until": _moment(consumer.paused_until),
        "query": consumer.owner.name or consumer.owner.query,
        "query runs": "no" if consumer.owner.runs is False else None,
        "host": consumer.owner.host,
        "read/s": consumer.read_rate,
        "lag/s": _signed(consumer.lag_rate),
        "problems": consumer.problems,
    }


def _lease(lease: LeaseState) -> list[Row]:
    """A row of who reads, and one of each who waits."""
    place: dict[str, Any] = {"stream": lease.stream, "consumer": lease.consumer}
    left = f"{lease.left_s:.0f}s" if lease.left_s is not None else None
    reads: dict[str, Any] = {
        "state": "reads" if lease.holder else "nobody reads",
        "query": lease.name or lease.holder,
        "host": lease.host,
        "process": _id(lease.pid),
        "last said so": _moment(lease.renewed),
        "until": _moment(lease.until),
        "left": left,
        "term": lease.term or None,
        "notes": lease.notes,
        "problems": lease.problems,
    }
    waits: list[dict[str, Any]] = [
        {
            "state": "waits",
            "query": each.name or each.query,
            "host": each.host,
            "process": _id(each.pid),
            "last said so": _moment(each.seen),
        }
        for each in lease.waiting
    ]
    return [place | row for row in (reads, *waits)]


def _parking(parking: ParkingState) -> Row:
    used, most = parking.used, parking.most_bytes
    return {
        "stream": parking.stream,
        "rows": parking.rows,
        "subjects": parking.subjects,
        "bytes": size(parking.bytes),
        "used": f"{100 * used:.0f}%" if used is not None else None,
        "throttleParkBytes": size(most) if most is not None else None,
        "oldest": _moment(parking.oldest),
        "age": _age(parking.age_s),
        "notes": parking.notes,
        "problems": parking.problems,
    }


def _parked(parked: ParkedState) -> Row:
    return {
        "query": parked.query,
        "subject": parked.subject,
        "rows": parked.rows,
        "oldest": _moment(parked.oldest),
        "age": _age(parked.age_s),
    }


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else str(timedelta(seconds=max(0, round(seconds))))


def _id(number: int) -> str | None:
    """A number that is a name: without commas."""
    return str(number) if number else None


def _source(checkpoint: CheckpointState, source: SourceState) -> Table:
    what = f"Checkpoint, source {source.source}"
    if source.consumer:
        what += f", consumers {source.consumer}"
    if source.policy:
        done = "committed" if checkpoint.planned == checkpoint.committed else "not committed"
        what += f", {source.policy}, serial {source.serial}, batch {checkpoint.planned} {done}"
        rows: list[Row] = [
            {
                "partition": claim.index,
                "stream": claim.stream,
                "claimed": claim.claimed,
                "first": claim.first or None,
                "last": claim.last or None,
                "redelivered": claim.redelivered,
                "not acknowledged": claim.ack_pending,
                "problems": claim.problems,
            }
            for claim in source.claims
        ]
    else:
        rows = [_position(position) for position in source.positions]
    if source.problems:
        rows.append({"problems": source.problems})
    if not rows:
        rows.append({"position": "before its first batch"})
    return Table(sanitized(what), rows)


def _position(position: PositionState) -> Row:
    return {
        "partition": position.index,
        "stream": position.stream,
        "filter": position.filter,
        "committed": position.committed,
        "planned": position.planned if position.planned != position.committed else None,
        "first": position.first,
        "last": position.last,
        "at consumer": "none" if position.consumer is None else position.consumer,
        "uncommitted": "?" if position.lag is None else position.lag,
        "read/s": position.read_rate,
        "uncommitted/s": _signed(position.lag_rate),
        "notes": position.notes,
        "problems": position.problems,
    }


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
