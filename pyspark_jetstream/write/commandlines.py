"""
Columns that are commands to the server, as header lines: `ttl`, schedules, counters.

Rule 1: no I/O and no loop over rows; a column is a handful of Arrow kernels.

* `ttl` STRING: the message goes after so long (`Nats-TTL`); of a schedule, each message it makes
  (`Nats-Schedule-TTL`).
* `deliver_at` TIMESTAMP or `schedule` STRING (`@at TIME`, `@every 5m`, `@daily` and the like, or
  six fields of cron): the row is a schedule (ADR-51). The server stores it on the row's subject, of
  which there is one schedule at a time, and publishes its payload on `schedule_target`, of the same
  stream, when the time comes. A schedule for one time is gone then.
* `increment` BIGINT or DECIMAL without a fraction: the row adds so much to the counter of its
  subject (ADR-49), and has no payload.

Of a row for a Key-Value bucket (`KEYS`, ADR-8) `key` and `value` are its subject and its payload:

* `operation` STRING: `put`, or null; `delete` and `purge` leave a marker in its place;
* `revision` BIGINT: only if this is the key's revision, 0 if there is none.

A message that a schedule makes has the row's headers, but for its `Nats-Msg-Id`. So that an attempt
of a task knows rows that earlier ones have stored, also when their time has come since and the
schedules are gone, a scheduled row has its id a second time, in the header `ROW_ID`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import subjects
from ..arrays import BINARY, CRLF, NOTHING, binary, is_text, join, scalar
from ..errors import ColumnError, JetStreamError, OptionError
from ..outbox.targets import Target, Targets
from .headerlines import TTL, Headers

ROW_ID: Final = "Jetstream-Sink-Id"
"""Header of a scheduled row, and of the messages that its schedule makes: the row's id."""

_TTL_FORM: Final = r"^(never|[0-9]+|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$"
"""ADR-43: `never`, seconds, or a Go duration; that it is too short is the server's to say."""

_SCHEDULE_FORM: Final = r"^(@at \S+|@every \S+|@[a-z]+|\S+( \S+){5})$"
"""ADR-51; that a time or a field of cron is none is the server's to say."""

_NO_SCHEDULES: Final = "takes no schedules; set allow_msg_schedules on it"
_NO_COUNTERS: Final = "has no counters; that takes allow_msg_counter, with which it is made"
_FORGETS: Final = (
    "has schedules and max_msgs_per_subject: the message that a schedule made is gone with the next"
    " one of its subject, so a batch that runs again could not tell whether the row was scheduled;"
    " take that limit off, or set exactlyOnce=false"
)
_COUNTS: Final = "has counters: each row there needs an increment"
_TIME: Final = pa.timestamp("us", "UTC")
_EPOCH: Final = pa.scalar(0, pa.int64()).cast(_TIME)
_BEYOND: Final = (
    r"^@at (0\d{3}|1[0-5]\d\d|16[0-6]\d|167[0-7]|226[2-9]|22[7-9]\d|2[3-9]\d\d|[3-9]\d{3}|\d{5,})-"
)
"""
A time before 1678 or from 2262 on. The server counts nanoseconds in 64 bits: what is later comes at
once, and what is earlier never (measured on nats-server 2.15.1).
"""


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) and type.tz is not None)


def _is_whole(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or (pa.types.is_decimal(type) and type.scale == 0))


COMMANDS: Final[dict[str, tuple[Any, str]]] = {
    "ttl": (is_text, "STRING"),
    "deliver_at": (_is_time, "TIMESTAMP"),
    "schedule": (is_text, "STRING"),
    "schedule_target": (is_text, "STRING"),
    "increment": (_is_whole, "BIGINT, or DECIMAL without a fraction"),
}
"""The columns: what accepts their types, and how these are said."""

KEYS: Final[dict[str, tuple[Any, str]]] = {
    "key": (is_text, "STRING"),
    "value": (lambda type: is_text(type) or is_bytes(type), "BINARY or STRING"),
    "operation": (is_text, "STRING"),
    "revision": (pa.types.is_integer, "BIGINT"),
    "ttl": (is_text, "STRING"),
}
"""The columns of rows for a Key-Value bucket, likewise."""

_OPERATIONS: Final = pa.array(["PUT", "DEL", "DELETE", "PURGE"])
_OPERATION_LINES: Final = pa.array(
    [
        b"",
        *[b"KV-Operation: DEL\r\n"] * 2,
        b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
    ],
    BINARY,
)
"""Header lines of each (ADR-8)."""

_KEY: Final = r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*$"


def is_bytes(type: pa.DataType) -> bool:
    """Whether values of this type are bytes."""
    return bool(
        pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)
    )


def of_keys(batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    """
    Rows for a Key-Value bucket as rows for its stream: `subject` and `data` for `key` and `value`.

    Args:
        prefix: what stands before the keys.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys = columns.pop("key").cast(pa.string())
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


class UnfitError(Exception):
    """
    Rows that can be no messages.

    Args:
        faults: STRING, what is wrong with each row; null for those that can be messages.
    """

    def __init__(self, faults: pa.Array) -> None:
        super().__init__(faults)
        self.faults = faults


def refuse(bad: pa.Array, reasons: str | pa.Array) -> None:
    """
    Args:
        bad: BOOL, which rows are.
        reasons: why all of them are, or each.

    Raises:
        UnfitError: There are such.
    """
    if pc.any(bad).as_py():
        whys = pa.scalar(reasons) if isinstance(reasons, str) else reasons
        raise UnfitError(pc.if_else(pc.fill_null(bad, False), whys, pa.scalar(None, pa.string())))


def sound(values: pa.Array, bad: pa.Array, reason: str | None = None) -> pa.Array:
    """
    The values but those that are bad, which are null.

    Raises:
        UnfitError: There are such, and there is a reason against it.
    """
    if reason is not None:
        refuse(bad, reason)
    elif pc.any(bad).as_py():
        return pc.if_else(bad, pa.scalar(None, pa.string()), values)
    return values


def check_once(given: pa.Array, named: pa.Array, reason: str) -> None:
    """
    Raises:
        UnfitError: A row has both.
    """
    refuse(pc.and_(pc.is_valid(named), pc.is_valid(given)), reason)


def check_columns(names: set[str]) -> tuple[str, str] | None:
    """A column of a write that says nothing without another one, and why; None if there is none."""
    scheduled = names & {"deliver_at", "schedule"}
    if scheduled and "schedule_target" not in names:
        return "schedule_target", "required: the subject that a schedule publishes on"
    if "schedule_target" in names and not scheduled:
        return "schedule_target", "does nothing without deliver_at or schedule; drop it"
    return None


def column_fault(names: Collection[str], target: Target, once: bool) -> JetStreamError | None:
    """
    Reason that rows with these columns cannot be written into a stream that all of them go to.

    Args:
        once: whether they are written exactly once.
    """
    if "schedule_target" in names and not target.allow_schedules:
        return ColumnError("schedule_target", f"stream '{target.name}' {_NO_SCHEDULES}")
    if "schedule_target" in names and once and target.forgets_schedules:
        return OptionError("exactlyOnce", f"stream '{target.name}' {_FORGETS}")
    if "increment" in names and not target.allow_counter:
        return ColumnError("increment", f"stream '{target.name}' {_NO_COUNTERS}")
    if target.allow_counter and "increment" not in names:
        return ColumnError("increment", f"required: stream '{target.name}' {_COUNTS}")
    return None


class Commands:
    """The commands of a batch of rows."""

    def __init__(self, batch: pa.RecordBatch, strict: bool = True) -> None:
        """
        Args:
            strict: whether what is no command is the row's fault; else it is left out.

        Raises:
            UnfitError: Some rows have none that the server would take.
        """
        self._names = set(batch.schema.names) & {*COMMANDS, *KEYS}
        self._batch = batch
        self._strict = strict
        why = "ttl is none: expected never, seconds, or a duration as 1h30m"
        self._ttl = self._of_form("ttl", _TTL_FORM, why)
        self._when = self._schedules()
        self._target = self._text("schedule_target")
        self._increment: pa.Array | None = None
        if "increment" in self._names:
            column = batch.column("increment")
            self._increment = column if column.null_count < len(column) else None
        self._operation = self._operations()
        self._revision = batch.column("revision") if "revision" in self._names else None
        if strict and self._names:
            self._check_schedules()
            if self._revision is not None:
                bad = pc.less(self._revision, 0)
                refuse(bad, "revision is below 0; 0 is that of a key that is not there")

    def payloads(self, data: pa.Array) -> pa.Array:
        """
        BINARY: the payloads, which counters have none of.

        Raises:
            UnfitError: A row has none, or should have none.
        """
        if self._operation is not None:
            gone = pc.greater(self._operation, 0)
            bad = pc.and_(gone, pc.greater(pc.binary_length(pc.coalesce(data, NOTHING)), 0))
            refuse(bad, "a row that deletes or purges its key has no value")
            data = pc.if_else(gone, NOTHING, data)
        if self._increment is None:
            refuse(pc.is_null(data), "data is null; a message needs a payload")
            return data
        counts = pc.is_valid(self._increment)
        refuse(pc.and_not(pc.is_null(data), counts), "both data and increment are null")
        data = pc.coalesce(data, NOTHING)
        bad = pc.and_(counts, pc.greater(pc.binary_length(data), 0))
        refuse(bad, "a row with an increment has no payload: leave data empty or null")
        return data

    def check_allowed(self, targets: Targets, codes: pa.Array, once: bool) -> None:
        """
        Args:
            codes: the target stream of each row.
            once: whether rows are written exactly once.

        Raises:
            UnfitError: A row is for a stream that does not take its command.
        """
        counts = pc.is_valid(self._increment) if self._increment is not None else None
        for place, target in enumerate(targets.streams):
            for commands, allowed, what in (
                (self._when, target.allow_schedules, _NO_SCHEDULES),
                (self._when, not (once and target.forgets_schedules), _FORGETS),
                (self._increment, target.allow_counter, _NO_COUNTERS),
            ):
                if commands is not None and not allowed:
                    bad = pc.and_(pc.is_valid(commands), pc.equal(codes, place))
                    refuse(bad, f"stream '{target.name}' {what}")
            if target.allow_counter:
                bad = pc.equal(codes, place)
                bad = bad if counts is None else pc.and_not(bad, counts)
                refuse(bad, f"stream '{target.name}' {_COUNTS}")

    def lines(self, headers: Headers, ids: pa.Array | None) -> Iterator[pa.Array]:
        """
        The header lines of each row, as BINARY.

        Args:
            ids: of the rows, as BINARY; null for none.

        Raises:
            UnfitError: A row has a command twice.
        """
        ttl = self._ttl
        if ttl is not None:
            named = headers.values(TTL)
            if named is not None and self._strict:
                check_once(ttl, named, f"both a ttl and the header {TTL}; drop one")
        if self._when is not None and self._target is not None:
            if self._strict:
                self._check_outlives(headers)
            own = pc.and_(pc.is_valid(self._when), pc.is_valid(self._target))
            lines = [
                _line("Nats-Schedule", self._when),
                _line("Nats-Schedule-Target", self._target),
            ]
            if ttl is not None:
                lines.append(_line("Nats-Schedule-TTL", ttl))
                ttl = pc.if_else(own, pa.scalar(None, pa.string()), ttl)
            if ids is not None:
                lines.append(_line(ROW_ID, ids))
            yield pc.if_else(own, join(*lines), NOTHING)
        if ttl is not None:
            yield _line(TTL, ttl)
        if self._increment is not None:
            yield _line("Nats-Incr", self._increment.cast(pa.string()))
        if self._operation is not None:
            yield _OPERATION_LINES.take(self._operation)
        if self._revision is not None:
            yield _line("Nats-Expected-Last-Subject-Sequence", self._revision.cast(pa.string()))

    # ── keys ─────────────────────────────────────────────────────────────────────────────────

    def _operations(self) -> pa.Array | None:
        """INT32: what each row does to its key, 0 for a put; None where all put."""
        given = self._text("operation")
        if given is None:
            return None
        found = pc.index_in(pc.ascii_upper(given), _OPERATIONS)  # also of what is no UTF-8
        bad = pc.and_(pc.is_valid(given), pc.is_null(found))
        if self._strict:
            refuse(bad, "operation is none: expected put, delete or purge")
        return pc.fill_null(found, 0)

    # ── schedules ────────────────────────────────────────────────────────────────────────────

    def _schedules(self) -> pa.Array | None:
        """STRING: when a row is to be published, as the server reads it; null for now."""
        why = "schedule is none: expected @at TIME, @every 5m, @daily, or six fields of cron"
        given = self._of_form("schedule", _SCHEDULE_FORM, why)
        if "deliver_at" not in self._names:
            return given
        column = self._batch.column("deliver_at").cast(_TIME)
        if column.null_count == len(column):
            return given
        # What is past is now, also where the server would not know the time.
        column = pc.if_else(pc.less(column, _EPOCH), _EPOCH, column)
        times = pc.strftime(column, "@at %Y-%m-%dT%H:%M:%SZ")
        if given is None:
            return times
        if self._strict:
            check_once(given, times, "both deliver_at and schedule; leave one null")
        return pc.coalesce(times, given)

    def _check_schedules(self) -> None:
        nothing = pa.nulls(len(self._batch), pa.string())
        when, target = (nothing if each is None else each for each in (self._when, self._target))
        bad = pc.and_(pc.is_valid(when), pc.is_null(target))
        refuse(bad, "schedule_target is null: on which subject is it to be published?")
        bad = pc.match_substring_regex(when, _BEYOND)
        refuse(bad, "the time is none that the server knows: 1678 to 2261")
        bad = pc.and_(pc.is_valid(target), pc.is_null(when))
        refuse(bad, "schedule_target without deliver_at or schedule")
        bad = pc.match_substring_regex(target, subjects.FAULTY)
        refuse(bad, "schedule_target is no subject that can be published on")

    def _check_outlives(self, headers: Headers) -> None:
        """
        Raises:
            UnfitError: A row for one time has a TTL of its own, after which its schedule is gone.
        """
        named = headers.values(TTL)
        if named is not None:
            bad = pc.and_(pc.is_valid(named), pc.starts_with(self._when, "@at "))
            why = (
                f"the header {TTL} may end the schedule before its time; drop it, or give column"
                " ttl, the TTL of the message that is made"
            )
            refuse(bad, why)

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def _text(self, name: str) -> pa.Array | None:
        """STRING: a column, None where it says nothing."""
        if name not in self._names:
            return None
        given = self._batch.column(name).cast(pa.string())
        return given if given.null_count < len(given) else None

    def _of_form(self, name: str, form: str, why: str) -> pa.Array | None:
        given = self._text(name)
        if given is None:
            return None
        bad = pc.invert(pc.match_substring_regex(given, form))
        return sound(given, bad, why if self._strict else None)


def _line(name: str, values: pa.Array) -> pa.Array:
    """BINARY: a header line of each value, empty where that is null."""
    return pc.coalesce(join(scalar(f"{name}: "), binary(values), CRLF), NOTHING)
