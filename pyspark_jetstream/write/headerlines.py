"""
The columns of a write that become header lines: `headers`, and those that are commands.

Rule 1: no I/O and no loop over rows; a column is a handful of Arrow kernels.
Rule 2: what a command means is the server's to judge. Here it is only kept from being more than one
line, and from meaning something else than it says.

**Headers that are not copied.** A row that was read from a stream brings headers that a server put
there or that are commands to it. `serverheaders` lists those that never go out (`DROPPED`);
`Nats-TTL` and `Nats-Rollup` do only where the target stream allows them, and the latter only with
the option `allowRollup` and the value `sub`: whoever wrote a message that is copied would purge
what others have on the row's subject, with `all` the whole stream. `Nats-Expected-*` stay: reads
leave them out, so a row that has them says so itself. What the server acts on comes before
everything else.

**Columns that are commands** win over the row's own header of that name.

| column | header | |
|---|---|---|
| `ttl` | `Nats-TTL` | the message goes after so long; of a schedule (`Nats-Schedule-TTL`) each that it makes |
| `deliver_at`, `schedule` | `Nats-Schedule` | the row is a schedule (ADR-51): at this time, or `@every 5m`, cron |
| `schedule_target` | `Nats-Schedule-Target` | where it publishes the row's payload |
| `increment` | `Nats-Incr` | added to the counter of the row's subject (ADR-49), without a payload |

Of a row for a Key-Value bucket (ADR-8) `key` and `value` are subject and payload:

| column | header | |
|---|---|---|
| `operation` | `KV-Operation` | `put`, or null; `delete` and `purge` leave a marker |
| `revision` | `Nats-Expected-Last-Subject-Sequence` | only if this is the key's revision, 0 if there is none |

A message that a schedule makes has the row's headers, but for its `Nats-Msg-Id`. So that an attempt
of a task knows rows that earlier ones have stored, also when their time has come since and the
schedules are gone, a scheduled row has its id a second time, in the header `ROW_ID`.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import (
    BINARY,
    CRLF,
    NOTHING,
    between,
    binary,
    bounds,
    entries,
    is_text,
    join,
    offsets,
    places,
    scalar,
)
from ..outbox.messages import refuse, sound
from ..outbox.targets import Targets
from ..serverheaders import (
    BAD_NAME,
    BAD_VALUE,
    FIRST,
    NOT_WRITTEN,
    ROLLUP,
    ROLLUP_OF_SUBJECT,
    TRACEPARENT,
    UNTRACED,
)

DROPPED: Final = tuple(sorted(NOT_WRITTEN))
"""Headers of a row that never go out."""

ID: Final = "Nats-Msg-Id"
TTL: Final = "Nats-TTL"
BLANK: Final = r"^[ \t]*$"
"""An id that is none: the server takes blanks around one off, and nothing for no id."""
_COLON: Final = scalar(": ")
_FIRST: Final = pa.array(sorted(FIRST), pa.string())
_UNTRACED: Final = scalar("\r\n{}: {}\r\n".format(*UNTRACED))


class Headers:
    """The `headers` column of a batch as flat arrays: one entry a header value."""

    def __init__(self, batch: pa.RecordBatch, allow_rollup: bool) -> None:
        self._column: pa.MapArray | None = None
        if "headers" not in batch.schema.names:
            return
        column = batch.column("headers")
        if column.null_count == len(column):
            return
        starts, keys, values = entries(column)
        names = keys.cast(pa.string())
        if not is_text(values.type):
            names = names.take(pc.list_parent_indices(values))
            starts = bounds(pc.fill_null(pc.list_value_length(values), 0)).take(starts)
            values = pc.list_flatten(values)
        self._column, self._starts = column, starts
        self._names, self._values = names, values.cast(pa.string())
        self._parent: pa.Array | None = None
        self._dropped = pc.is_in(names, pa.array(DROPPED, pa.string()))
        blank = pc.and_(pc.equal(names, ID), pc.match_substring_regex(self._values, BLANK))
        self._dropped = pc.or_(self._dropped, pc.fill_null(blank, False))
        rollups = pc.equal(names, ROLLUP)
        if pc.any(rollups).as_py():
            if allow_rollup:
                rollups = pc.and_(rollups, pc.not_equal(self._values, ROLLUP_OF_SUBJECT))
            self._dropped = pc.or_(self._dropped, rollups)

    def faults(self) -> pa.Array | None:
        """STRING: what is wrong with those of each row, null for nothing; None if all are sound."""
        if self._column is None:
            return None
        found = self._entry_faults()
        indexes = pc.indices_nonzero(pc.is_valid(found))
        if not len(indexes):
            return None
        rows = places(len(self._column))
        return found.take(indexes).take(pc.index_in(rows, self._parents().take(indexes)))

    def drop_faults(self) -> None:
        """Leaves out what is no header."""
        if self._column is not None:
            self._dropped = pc.or_(self._dropped, pc.is_valid(self._entry_faults()))

    def _entry_faults(self) -> pa.Array:
        names, values = self._names, self._values
        found = pa.nulls(len(names), pa.string())
        for mask, reason in (
            (pc.match_substring_regex(names, BAD_NAME), "the name is not printable ASCII"),
            (pc.is_null(values), "the value is null"),
            (pc.match_substring_regex(values, BAD_VALUE), "the value contains a line break"),
        ):
            if pc.any(mask).as_py():
                encoded = binary(names).dictionary_encode()
                shown = [name.decode(errors="replace") for name in encoded.dictionary.to_pylist()]
                each = pa.array([f"header {name!r}: {reason}" for name in shown], pa.string())
                reasons = each.take(encoded.indices)
                own = pc.if_else(pc.fill_null(mask, False), reasons, pa.scalar(None, pa.string()))
                found = pc.coalesce(found, own)
        return found

    def values(self, name: str) -> pa.Array | None:
        """
        The first value of this header that goes out in each row, as STRING; None when no row has
        one.
        """
        if self._column is None:
            return None
        named = pc.equal(self._names, name)
        indexes = pc.indices_nonzero(pc.and_not(named, self._dropped))
        if not len(indexes):
            return None
        rows = places(len(self._column))
        return self._values.take(indexes).take(pc.index_in(rows, self._parents().take(indexes)))

    def drop_refused(self, targets: Targets, codes: pa.Array) -> None:
        """Leaves out the headers for which the target stream of a row would refuse it."""
        if self._column is None:
            return
        streams = [*enumerate(targets.streams)]
        without_ttl = [place for place, target in streams if not target.allow_ttl]
        without_rollup = [place for place, target in streams if not target.allow_rollup]
        for name, refusing in ((TTL, without_ttl), (ROLLUP, without_rollup)):
            named = pc.equal(self._names, name)
            if refusing and pc.any(named).as_py():
                refused = pc.is_in(codes, pa.array(refusing, pa.int32()))
                self._dropped = pc.or_(self._dropped, pc.and_(named, refused.take(self._parents())))

    def left_out(self) -> set[str]:
        """The names of headers that do not go out."""
        if self._column is None:
            return set()
        names = pc.unique(self._names.filter(self._dropped)).to_pylist()
        return {*names} - {ID}  # an empty one, which is none

    def lines(self) -> tuple[pa.Array | None, pa.Array | None]:
        """
        The lines of each row as two values: what the server acts on, which has to come first, and
        the rest; None when no row has any.
        """
        if self._column is None:
            return None, None
        ends: Any = CRLF
        traced = pc.match_substring_regex(self._names, rf"(?i)^{TRACEPARENT}$")
        if pc.any(traced).as_py():
            ends = pc.if_else(traced, _UNTRACED, CRLF)
        lines = join(binary(self._names), _COLON, binary(self._values), ends)
        if pc.any(self._dropped).as_py():
            lines = pc.if_else(self._dropped, NOTHING, lines)
        first = pc.is_in(self._names, _FIRST)
        if not pc.any(first).as_py():
            return None, _regrouped(lines, self._starts, self._column)
        parts = pc.if_else(first, lines, NOTHING), pc.if_else(first, NOTHING, lines)
        commands, rest = (_regrouped(part, self._starts, self._column) for part in parts)
        return commands, rest

    def _parents(self) -> pa.Array:
        """The row of each entry."""
        if self._parent is None:
            lists = pa.ListArray.from_arrays(self._starts, self._names)
            self._parent = pc.list_parent_indices(lists)
        return self._parent


def _regrouped(lines: pa.Array, starts: pa.Array, column: pa.Array) -> pa.Array:
    """The lines of each row as one value: the same bytes under fewer offsets."""
    if not len(lines):
        return pa.array([b""] * len(column), BINARY)
    grouped = between(offsets(lines).take(starts), lines.buffers()[2])
    return pc.if_else(pc.is_valid(column), grouped, NOTHING) if column.null_count else grouped


# ── columns that are commands ────────────────────────────────────────────────────────────────


ROW_ID: Final = "Jetstream-Sink-Id"
"""Header of a scheduled row, and of the messages that its schedule makes: the row's id."""

_TIME: Final = pa.timestamp("us", "UTC")
_EPOCH: Final = pa.scalar(0, pa.int64()).cast(_TIME)
_LAST: Final = pa.scalar(9_214_646_400_000_000, pa.int64()).cast(_TIME)
"""2262: the server counts nanoseconds in 64 bits, and what is later comes at once."""

_OPERATIONS: Final = pa.array(["PUT", "DEL", "DELETE", "PURGE"])
_OPERATION_LINES: Final = pa.array(
    [b"", *[b"KV-Operation: DEL\r\n"] * 2, b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"], BINARY
)
_KEY: Final = r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*$"


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _at(times: pa.Array) -> pa.Array:
    """What is past is now, also where the server would not know the time."""
    times = times.cast(_TIME)
    return pc.strftime(pc.if_else(pc.less(times, _EPOCH), _EPOCH, times), "@at %Y-%m-%dT%H:%M:%SZ")


_HEADERS: Final[dict[str, tuple[str, Any]]] = {
    "deliver_at": ("Nats-Schedule", _at),
    "schedule": ("Nats-Schedule", _text),
    "schedule_target": ("Nats-Schedule-Target", _text),
    "ttl": ("Nats-TTL", _text),
    "increment": ("Nats-Incr", _text),
    "revision": ("Nats-Expected-Last-Subject-Sequence", _text),
}
"""Columns that are one header: its name, and what writes the values."""


class Commands:
    """
    The commands of a batch of rows.

    Args:
        strict: whether what is no command is the row's fault; else it is left out.

    Raises:
        UnfitError: Some rows have none.
    """

    def __init__(self, batch: pa.RecordBatch, strict: bool = True) -> None:
        names = batch.schema.names
        self._values: dict[str, pa.Array] = {}
        """STRING: what each column says, where it says anything."""
        self._empty: pa.Array | None = None
        """Rows that have no payload."""
        for name, (_, written) in _HEADERS.items():
            if name in names and (column := batch.column(name)).null_count < len(column):
                if name == "deliver_at" and strict:
                    late = pc.greater(column.cast(_TIME), _LAST)
                    refuse(late, "deliver_at is none that the server knows: it ends in 2261")
                text = written(column)
                why = f"{name} contains a line break" if strict else None
                bad = pc.match_substring_regex(text, r"[\r\n]")
                self._values[name] = sound(text, pc.fill_null(bad, False), why)
        if strict:
            self._check_schedules()
        self._operation = _operation(batch, strict) if "operation" in names else None
        if self._operation is not None:
            self._empty = pc.greater(self._operation, 0)
        elif "increment" in self._values:
            self._empty = pc.is_valid(self._values["increment"])

    def payloads(self, data: pa.Array) -> pa.Array:
        """
        BINARY: the payloads, which some commands have none of.

        Raises:
            UnfitError: A row has none, or should have none.
        """
        if self._empty is not None:
            has_some = pc.greater(pc.binary_length(pc.coalesce(data, NOTHING)), 0)
            why = "a row with an increment, a delete or a purge has no payload; leave it null"
            refuse(pc.and_(self._empty, has_some), why)
            data = pc.if_else(self._empty, NOTHING, data)
        refuse(pc.is_null(data), "data is null; a message needs a payload")
        return data

    def lines(self, ids: pa.Array | None) -> Iterator[pa.Array]:
        """
        The header lines of each row, as BINARY.

        Args:
            ids: of the rows, as BINARY; null for none.
        """
        times = [self._values[name] for name in ("deliver_at", "schedule") if name in self._values]
        scheduled = pc.is_valid(pc.coalesce(*times)) if times else None
        for name, values in self._values.items():
            header: Any = scalar(f"{_HEADERS[name][0]}: ")
            if name == "ttl" and scheduled is not None:
                header = pc.if_else(scheduled, scalar("Nats-Schedule-TTL: "), header)
            yield pc.coalesce(join(header, binary(values), CRLF), NOTHING)
        if scheduled is not None and ids is not None:
            line = pc.coalesce(join(scalar(f"{ROW_ID}: "), ids, CRLF), NOTHING)
            yield pc.if_else(scheduled, line, NOTHING)
        if self._operation is not None:
            yield _OPERATION_LINES.take(self._operation)

    def _check_schedules(self) -> None:
        at, schedule = self._values.get("deliver_at"), self._values.get("schedule")
        target = self._values.get("schedule_target")
        if at is not None and schedule is not None:
            both = pc.and_(pc.is_valid(at), pc.is_valid(schedule))
            refuse(both, "both deliver_at and schedule; leave one null")
        if target is not None:
            times = [each for each in (at, schedule) if each is not None]
            plain = pc.is_valid(target)
            if times:
                plain = pc.and_(plain, pc.is_null(pc.coalesce(*times)))
            refuse(plain, "schedule_target without deliver_at or schedule; leave it null")


def _operation(batch: pa.RecordBatch, strict: bool) -> pa.Array:
    """INT32: what each row does to its key, 0 for a put."""
    given = _text(batch.column("operation"))
    found = pc.index_in(pc.ascii_upper(given), _OPERATIONS)  # also of what is no UTF-8
    if strict:
        bad = pc.and_(pc.is_valid(given), pc.is_null(found))
        refuse(bad, "operation is none: expected put, delete or purge")
    return pc.fill_null(found, 0)


def of_keys(batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    """
    Rows for a Key-Value bucket as rows for its stream: `subject` and `data` for `key` and `value`.

    Args:
        prefix: what stands before the keys.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys = _text(columns.pop("key"))
    value = columns.pop("value") if "value" in columns else pa.nulls(batch.num_rows, BINARY)
    subject = pc.binary_join_element_wise(pa.scalar(prefix), keys, "")
    return pa.record_batch({"subject": subject, "data": value} | columns)


def check_keys(subject: pa.Array, prefix: str) -> None:
    """
    Raises:
        UnfitError: A row's key is none (ADR-8).
    """
    bad = pc.invert(pc.match_substring_regex(subject, f"^{re.escape(prefix)}{_KEY}"))
    why = "the key is none: expected parts of a-z A-Z 0-9 - / _ = between dots"
    refuse(pc.fill_null(bad, True), why)
