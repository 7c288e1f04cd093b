"""The tables of `inspect`: rich where it is installed, else plain; only what exists is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_jetstream.operations.inspection.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    PartitionState,
    PositionState,
    SourceState,
    StreamState,
)
from pyspark_jetstream.operations.inspection.leases import LeaseState
from pyspark_jetstream.operations.inspection.trends import ASCII, BLOCKS, Trends
from pyspark_jetstream.operations.terminal import console, say
from pyspark_jetstream.sanitize import sanitized

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Sheet", "printed", "sheets", "shown"]

_WIDTH = 400
"""Where there is no terminal; tables are as wide as they must be."""

_LEFT = {
    "stream", "retention", "subjects", "leader", "filter", "consumer", "policy", "group",
    "pinned client", "pinned since", "ack policy", "last active", "position", "notes", "problems",
    "query", "host", "reads or waits", "last said so", "until", "of", "what", "last looks",
}  # fmt: skip
"""Columns that are no numbers."""

_SHOWN_SUBJECTS = 3


class Sheet(NamedTuple):
    """A table: empty columns are left out already."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def printed(inspection: Inspection, trends: Trends | None = None) -> None:
    """The tables, once."""
    try:
        where = console(_WIDTH)
    except ImportError:
        say(*_plain(inspection, trends))
        return
    where.print(_tables(inspection, trends))


@contextmanager
def shown() -> Iterator[Callable[[Inspection], None]]:
    """
    Shows inspections, with what the last looks have seen: in place on a terminal, else one below
    the other.
    """
    trends = Trends(BLOCKS if _can_show(BLOCKS) else ASCII)

    def below(inspection: Inspection) -> None:
        trends.see(inspection)
        printed(inspection, trends)
        say("")

    try:
        from rich.live import Live
    except ImportError:
        yield below
        return
    if not sys.stdout.isatty():
        yield below
        return
    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:

        def in_place(inspection: Inspection) -> None:
            trends.see(inspection)
            live.update(_tables(inspection, trends), refresh=True)

        yield in_place


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


# ── what the tables hold ─────────────────────────────────────────────────────────────────────


def sheets(inspection: Inspection, trends: Trends | None = None) -> list[Sheet]:
    """All tables that have rows."""
    made = [
        _sheet("Over time", _over_time(inspection, trends) if trends is not None else []),
        _sheet("Streams", [_stream(stream) for stream in inspection.streams]),
        _sheet("Partitions", [_partition(partition) for partition in inspection.partitions]),
        _sheet("Consumers", [_consumer(consumer) for consumer in inspection.consumers]),
        _sheet("Standby", [row for lease in inspection.leases for row in _lease(lease)]),
    ]
    checkpoint = inspection.checkpoint
    if checkpoint is not None:
        made += [_source(checkpoint, source) for source in checkpoint.sources]
    return [sheet for sheet in made if sheet.rows]


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
        lines.append(f"checkpoint {checkpoint.path}: query {checkpoint.query}, {stands}{others}")
    return [sanitized(line) for line in lines]


def _ending(inspection: Inspection) -> list[str]:
    problems = inspection.problems()
    notes = [sanitized(note) for note in inspection.notes]
    if not problems:
        return [*notes, "no problem"]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return [*notes, f"{count}:", *(f"  {sanitized(problem)}" for problem in problems)]


def _over_time(inspection: Inspection, trends: Trends) -> list[dict[str, Any]]:
    return [
        {"of": each.of, "what": each.what, "now": each.now, "last looks": each.looks}
        for each in trends.drawn(inspection)
    ]


def _stream(stream: StreamState) -> dict[str, Any]:
    more = len(stream.subjects) - _SHOWN_SUBJECTS
    subjects = ", ".join(stream.subjects[:_SHOWN_SUBJECTS]) + (
        f" and {more} more" if more > 0 else ""
    )
    return {
        "stream": stream.name,
        "retention": stream.retention,
        "messages": stream.messages,
        "bytes": _size(stream.bytes),
        "first": stream.first,
        "last": stream.last,
        "subjects": subjects,
        "replicas": stream.replicas,
        "leader": stream.leader,
        "duplicates": _span(stream.duplicate_window_s),
        "stored/s": stream.stored_rate,
        "problems": stream.problems,
    }


def _partition(partition: PartitionState) -> dict[str, Any]:
    return {
        "partition": partition.index,
        "stream": partition.stream,
        "filter": partition.filter,
        "messages": "?" if partition.messages is None else partition.messages,
        "last": partition.last,
    }


def _consumer(consumer: ConsumerState) -> dict[str, Any]:
    if consumer.problems:  # it does not answer
        return {"stream": consumer.stream, "consumer": consumer.name, "problems": consumer.problems}
    return {
        "stream": consumer.stream,
        "consumer": consumer.name,
        "policy": "one attempt's own" if consumer.own else consumer.policy,
        "group": consumer.group,
        "pinned client": consumer.pinned_id,
        "pinned since": _moment(consumer.pinned_since),
        "ack policy": consumer.ack_policy,
        "delivered": consumer.delivered,
        "ack floor": consumer.ack_floor,
        "lag": consumer.lag,
        "claims": consumer.ack_pending or None,
        "redelivered": consumer.redelivered or None,
        "waiting": consumer.waiting,
        "last active": _moment(consumer.last_active),
        "query": consumer.query_name or consumer.query,
        "host": consumer.host,
        "read/s": consumer.read_rate,
        "lag/s": _signed(consumer.lag_rate),
        "problems": consumer.problems,
    }


def _lease(lease: LeaseState) -> list[dict[str, Any]]:
    """A row of who reads, and one of each who waits."""
    place: dict[str, Any] = {"stream": lease.stream, "consumer": lease.consumer}
    left = f"{lease.left_s:.0f}s" if lease.left_s is not None else None
    reads: dict[str, Any] = {
        "reads or waits": "reads" if lease.holder else "nobody reads",
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
            "reads or waits": "waits",
            "query": each.name or each.query,
            "host": each.host,
            "process": _id(each.pid),
            "last said so": _moment(each.seen),
        }
        for each in lease.waiting
    ]
    return [place | row for row in (reads, *waits)]


def _id(number: int) -> str | None:
    """A number that is a name: without commas."""
    return str(number) if number else None


def _source(checkpoint: CheckpointState, source: SourceState) -> Sheet:
    what = f"Checkpoint, source {source.source}"
    if source.consumer:
        what += f", consumers {source.consumer}"
    if source.policy:
        done = "committed" if checkpoint.planned == checkpoint.committed else "not committed"
        what += f", {source.policy}, serial {source.serial}, batch {checkpoint.planned} {done}"
        rows = [
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
    return _sheet(what, rows)


def _position(position: PositionState) -> dict[str, Any]:
    return {
        "partition": position.index,
        "stream": position.stream,
        "filter": position.filter,
        "committed": position.committed,
        "planned": position.planned if position.planned != position.committed else None,
        "first": position.first,
        "last": position.last,
        "at consumer": "none" if position.consumer is None else position.consumer,
        "lag": "?" if position.lag is None else position.lag,
        "read/s": position.read_rate,
        "lag/s": _signed(position.lag_rate),
        "notes": position.notes,
        "problems": position.problems,
    }


def _sheet(title: str, rows: Sequence[dict[str, Any]]) -> Sheet:
    names = sorted(dict.fromkeys(name for row in rows for name in row), key="problems".__eq__)
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    kept = [at for at, _ in enumerate(names) if any(row[at] for row in texts)]
    return Sheet(
        sanitized(title), [names[at] for at in kept], [[r[at] for at in kept] for r in texts]
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return sanitized("; ".join(value))
    return sanitized(str(value))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


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


# ── drawing ──────────────────────────────────────────────────────────────────────────────────


def _tables(inspection: Inspection, trends: Trends | None) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _heading(inspection)]
    for sheet in sheets(inspection, trends):
        table = Table(title=f"\n{sheet.title}", title_justify="left")
        for name in sheet.columns:
            style = "bold red" if name == "problems" else None
            table.add_column(name, justify="left" if name in _LEFT else "right", style=style)
        for row in sheet.rows:
            table.add_row(*row)
        parts.append(table)
    style = "bold red" if inspection.problems() else "green"
    parts += [Text(line, style=style) for line in _ending(inspection)]
    return Group(*parts)


def _plain(inspection: Inspection, trends: Trends | None) -> list[str]:
    lines = _heading(inspection)
    for sheet in sheets(inspection, trends):
        lines += ["", sheet.title, *_aligned(sheet)]
    return [*lines, "", *_ending(inspection)]


def _aligned(sheet: Sheet) -> list[str]:
    """The rows below their columns: words from the left, numbers from the right."""
    rows = [sheet.columns, *sheet.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    cells = [
        [
            text.ljust(width) if name in _LEFT else text.rjust(width)
            for text, width, name in zip(row, widths, sheet.columns, strict=True)
        ]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in cells]
