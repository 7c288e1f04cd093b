"""
The `headers` column of a write as header lines: lines, faults, and headers that stay out.

Rule 1: no I/O and no loop over rows; a column is a handful of Arrow kernels.

**Headers that are not copied.** A row that was read from a stream brings headers that a server put
there or that are commands to it. `serverheaders` lists those that never go out (`DROPPED`);
`Nats-TTL` and `Nats-Rollup` do only where the target stream allows them, and the latter only with
the option `allowRollup` and the value `sub`: whoever wrote a message that is copied would purge
what others have on the row's subject, with `all` the whole stream. `Nats-Expected-*` stay: reads
leave them out, so a row that has them says so itself. What the server acts on comes before
everything else.
"""

from __future__ import annotations

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
