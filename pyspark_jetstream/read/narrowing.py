"""
The part of a read that a query's filters leave: it holds every row that they could accept.

Rule 1: no I/O, and nothing of Spark; `pushdown` says what its filters mean in these words.
Rule 2: a narrowing may keep too much, never too little. Spark evaluates its filters all the same,
so a filter that cannot be expressed here costs messages, not rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from .. import subjects

Operation = Literal["=", "in", "<", "<=", ">", ">=", "prefix"]

MAX_SUBJECTS: Final = 64
"""Subjects that a read asks for one by one; with more it reads them all."""

CLOCKS_S: Final = 1.0
"""
Most that the clocks of servers that led the stream in turn may differ. The server finds a time by
halving, as if times ascended with the sequence.
"""

_MICROSECOND: Final = timedelta(microseconds=1)
_NOTHING: Final = timedelta()
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Integers from `low` to `high`, both included, or only some of them."""

    low: int = 0
    high: int = _LARGEST
    members: frozenset[int] | None = None

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high and (self.members is None or value in self.members)

    def cut(self, operation: Operation, values: Sequence[int]) -> Interval:
        """The integers of it that meet the condition."""
        if not values:
            return replace(self, members=frozenset())
        value = values[0]
        match operation:
            case "<" | "<=":
                return replace(self, high=min(self.high, value - (operation == "<")))
            case ">" | ">=":
                return replace(self, low=max(self.low, value + (operation == ">")))
            case "=" | "in":
                members = frozenset(values)
                if self.members is not None:
                    members &= self.members
                return Interval(max(self.low, min(values)), min(self.high, max(values)), members)
            case _:
                return self


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a stream that a query needs."""

    subjects: frozenset[str] | None = None
    """Only these; None for all."""
    prefix: str = ""
    """Common beginning of the subjects."""
    sequences: Interval = Interval()
    partitions: Interval = Interval()
    since: datetime | None = None
    """Not older than this, by a clock that counts microseconds."""
    until: datetime | None = None
    """Not newer than this, by the same clock."""

    @property
    def everything(self) -> bool:
        """Whether it leaves nothing out."""
        return self == Narrowing()

    def by(self, column: str, operation: Operation, values: Sequence[Any]) -> Narrowing:
        """Narrowed by a condition on a column of a read; unchanged where that cannot be used."""
        kind: type = {"subject": str, "timestamp": datetime}.get(column, int)
        if not all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
            return self
        match column:
            case "sequence":
                return replace(self, sequences=self.sequences.cut(operation, values))
            case "partition":
                return replace(self, partitions=self.partitions.cut(operation, values))
            case "subject":
                return self._by_subject(operation, values)
            case "timestamp":
                return self._by_time(operation, values)
            case _:
                return self

    def filters(self) -> tuple[str, ...] | None:
        """Subject filters that hold every subject left, none twice; None for all subjects."""
        if self.subjects is not None:
            named = sorted(subject for subject in self.subjects if subject.startswith(self.prefix))
            faulty = any(subjects.subject_fault(subject) for subject in named)
            if len(named) <= MAX_SUBJECTS and not faulty:
                return tuple(named)
        whole = self.prefix.rpartition(".")[0]
        if not whole or subjects.subject_fault(whole):
            return None
        return (f"{whole}.{subjects.REST}",)

    def within(self, filters: Iterable[str | None]) -> list[str | None]:
        """Narrowed subject filters (None: all subjects); those that match nothing are left out."""
        mine = self.filters()
        if mine is None:
            return list(filters)
        narrowed = (
            own if filter_ is None else subjects.intersection(filter_, own)
            for filter_ in filters
            for own in mine
        )  # fmt: skip
        return list(dict.fromkeys(filter_ for filter_ in narrowed if filter_ is not None))

    def below(self, prefix: str) -> Narrowing:
        """The same of keys, whose subjects begin with this."""
        known = self.subjects
        return replace(
            self,
            subjects=None if known is None else frozenset(f"{prefix}{key}" for key in known),
            prefix=f"{prefix}{self.prefix}" if self.prefix else "",
        )

    def _by_subject(self, operation: Operation, values: Sequence[str]) -> Narrowing:
        # U+FFFD may stand for bytes that no filter of the server's can name (`onInvalidSubject`).
        values = [
            value.partition("\ufffd")[0] if operation == "prefix" else value for value in values
        ]
        if operation in ("=", "in") and not any("\ufffd" in value for value in values):
            known = frozenset(values)
            return replace(self, subjects=known if self.subjects is None else known & self.subjects)
        if operation == "prefix" and len(values[0]) > len(self.prefix):
            return replace(self, prefix=values[0])
        return self

    def _by_time(self, operation: Operation, values: Sequence[datetime]) -> Narrowing:
        since, until = self.since, self.until
        if not values or operation == "prefix" or any(moment.tzinfo is None for moment in values):
            return self
        if operation in ("=", "in", ">", ">="):
            low = shifted(min(values), _MICROSECOND if operation == ">" else _NOTHING)
            since = low if since is None else max(since, low)
        if operation in ("=", "in", "<", "<="):
            high = shifted(max(values), -_MICROSECOND if operation == "<" else _NOTHING)
            until = high if until is None else min(until, high)
        return replace(self, since=since, until=until)


def shifted(moment: datetime, by: timedelta) -> datetime:
    """The moment so much later; the same moment where the calendar ends before that."""
    try:
        return moment + by
    except OverflowError:
        return moment
