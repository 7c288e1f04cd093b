"""The tables of `inspect`: rich where it is installed, else tabs; only what exists is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_jetstream.operations.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    PartitionState,
    PositionState,
    SourceState,
    StreamState,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Sheet", "printed", "sheets", "shown"]

_WIDTH = 400
"""Where there is no terminal; tables are as wide as they must be."""

_LEFT = {
    "stream", "retention", "subjects", "leader", "filter", "consumer", "policy", "group",
    "pinned client", "pinned since", "ack policy", "last active", "position", "notes", "problems",
}  # fmt: skip
"""Columns that are no numbers."""

_SHOWN_SUBJECTS = 3


class Sheet(NamedTuple):
    """A table: empty columns are left out already."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def printed(found: Inspection) -> None:
    """The tables, once."""
    try:
        from rich.console import Console
    except ImportError:
        print(_plain(found))
        return
    width = None if sys.stdout.isatty() else _WIDTH
    Console(highlight=False, markup=False, emoji=False, width=width).print(_tables(found))


@contextmanager
def shown() -> Iterator[Callable[[Inspection], None]]:
    """In place on a terminal, else one below the other."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        yield lambda found: print(_plain(found), "", sep="\n", flush=True)
        return
    if not sys.stdout.isatty():

        def below(found: Inspection) -> None:
            printed(found)
            print(flush=True)

        yield below
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda found: live.update(_tables(found), refresh=True)


# ── what the tables hold ─────────────────────────────────────────────────────────────────────


def sheets(found: Inspection) -> list[Sheet]:
    """All tables that have rows."""
    made = [
        _sheet("Streams", [_stream(each) for each in found.streams]),
        _sheet("Partitions", [_partition(each) for each in found.partitions]),
        _sheet("Consumers", [_consumer(each) for each in found.consumers]),
    ]
    if found.checkpoint is not None:
        made += [_source(found.checkpoint, each) for each in found.checkpoint.sources]
    return [each for each in made if each.rows]


def _heading(found: Inspection) -> list[str]:
    lines = [f"{found.time}  {found.server}"]
    checkpoint = found.checkpoint
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
    return [_safe(each) for each in lines]


def _ending(found: Inspection) -> list[str]:
    problems = found.problems()
    if not problems:
        return ["no problem"]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return [f"{count}:", *(f"  {_safe(each)}" for each in problems)]


def _stream(each: StreamState) -> dict[str, Any]:
    more = len(each.subjects) - _SHOWN_SUBJECTS
    subjects = ", ".join(each.subjects[:_SHOWN_SUBJECTS]) + (
        f" and {more} more" if more > 0 else ""
    )
    return {
        "stream": each.name,
        "retention": each.retention,
        "messages": each.messages,
        "bytes": _size(each.bytes),
        "first": each.first,
        "last": each.last,
        "subjects": subjects,
        "replicas": each.replicas,
        "leader": each.leader,
        "duplicates": _span(each.duplicate_window_s),
        "stored/s": each.stored_rate,
        "problems": each.problems,
    }


def _partition(each: PartitionState) -> dict[str, Any]:
    return {
        "partition": each.index,
        "stream": each.stream,
        "filter": each.filter,
        "messages": "?" if each.messages is None else each.messages,
        "last": each.last,
    }


def _consumer(each: ConsumerState) -> dict[str, Any]:
    if each.problems:  # it does not answer
        return {"stream": each.stream, "consumer": each.name, "problems": each.problems}
    return {
        "stream": each.stream,
        "consumer": each.name,
        "policy": each.policy,
        "group": each.group,
        "pinned client": each.pinned_id,
        "pinned since": _moment(each.pinned_since),
        "ack policy": each.ack_policy,
        "delivered": each.delivered,
        "ack floor": each.ack_floor,
        "lag": each.lag,
        "claims": each.ack_pending or None,
        "redelivered": each.redelivered or None,
        "waiting": each.waiting,
        "last active": _moment(each.last_active),
        "read/s": each.read_rate,
        "lag/s": _signed(each.lag_rate),
        "problems": each.problems,
    }


def _source(checkpoint: CheckpointState, source: SourceState) -> Sheet:
    what = f"Checkpoint, source {source.source}"
    if source.consumer:
        what += f", consumers {source.consumer}"
    if source.policy:
        done = "committed" if checkpoint.planned == checkpoint.committed else "not committed"
        what += f", {source.policy}, serial {source.serial}, batch {checkpoint.planned} {done}"
        rows = [
            {
                "partition": each.index,
                "stream": each.stream,
                "claimed": each.claimed,
                "first": each.first or None,
                "last": each.last or None,
                "redelivered": each.redelivered,
                "not acknowledged": each.ack_pending,
                "problems": each.problems,
            }
            for each in source.claims
        ]
    else:
        rows = [_position(each) for each in source.positions]
    if source.problems:
        rows.append({"problems": source.problems})
    if not rows:
        rows.append({"position": "before its first batch"})
    return _sheet(what, rows)


def _position(each: PositionState) -> dict[str, Any]:
    return {
        "partition": each.index,
        "stream": each.stream,
        "filter": each.filter,
        "committed": each.committed,
        "planned": each.planned if each.planned != each.committed else None,
        "first": each.first,
        "last": each.last,
        "at consumer": "none" if each.consumer is None else each.consumer,
        "lag": "?" if each.lag is None else each.lag,
        "read/s": each.read_rate,
        "lag/s": _signed(each.lag_rate),
        "notes": each.notes,
        "problems": each.problems,
    }


def _sheet(title: str, rows: Sequence[dict[str, Any]]) -> Sheet:
    names = sorted(dict.fromkeys(name for row in rows for name in row), key="problems".__eq__)
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    kept = [at for at, _ in enumerate(names) if any(row[at] for row in texts)]
    return Sheet(_safe(title), [names[at] for at in kept], [[r[at] for at in kept] for r in texts])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return _safe("; ".join(value))
    return _safe(str(value))


def _safe(text: str) -> str:
    """What others named must not steer the terminal."""
    return text if text.isprintable() else ascii(text)


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
    """To the second."""
    return re.sub(r"\.\d+", "", text)


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+,.1f}"


# ── drawing ──────────────────────────────────────────────────────────────────────────────────


def _tables(found: Inspection) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(each) for each in _heading(found)]
    for sheet in sheets(found):
        table = Table(title=f"\n{sheet.title}", title_justify="left")
        for name in sheet.columns:
            style = "bold red" if name == "problems" else None
            table.add_column(name, justify="left" if name in _LEFT else "right", style=style)
        for row in sheet.rows:
            table.add_row(*row)
        parts.append(table)
    style = "bold red" if found.problems() else "green"
    parts += [Text(each, style=style) for each in _ending(found)]
    return Group(*parts)


def _plain(found: Inspection) -> str:
    lines = _heading(found)
    for sheet in sheets(found):
        lines += ["", sheet.title, "\t".join(sheet.columns)]
        lines += ["\t".join(row) for row in sheet.rows]
    return "\n".join([*lines, "", *_ending(found)])
