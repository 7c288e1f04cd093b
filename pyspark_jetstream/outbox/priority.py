"""
Priorities of rows, critical, normal, non-critical: how each gets one, which goes first.

Rule 1: in text priorities are names, and a number is none (0 would be critical to one reader and
nothing to another). A function may return the numbers of `Priority`, which are the RFC's.
Rule 2: no I/O and no loop over rows, but for a function of the user's; a block is a few kernels.

The first of these that has an opinion of a row decides (overload.md A7):

    subject     `prioritySubjects`: the first filter that matches the destination
    column      `priority`
    function    `priorityResolver`
    header      `priorityHeader`, the row's first of that name; it is still forwarded
    claim       `priorityClaim`: what `priorityClaimValues` says of its value
    normal

No opinion is a missing value. One that is there and no name of a priority is *normal* and counted:
a typo must neither promote a row nor fail a query that ran for a month (A2).

Rows that are not all of one priority go by their subjects' most urgent rows, in turns
(overload.md §7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32, is_all, of_groups, places, ranks
from ..subjects import check_filter, pattern


class Priority(IntEnum):
    """Urgency of a row; a lower number is more urgent."""

    CRITICAL = 0
    NORMAL = 1
    NON_CRITICAL = 2

    @property
    def label(self) -> str:
        """The name as metrics write it, such as `noncritical`."""
        return self.name.replace("_", "").lower()

    @property
    def code(self) -> pa.Scalar:
        """INT8: as columns have it."""
        return pa.scalar(self, pa.int8())

    @classmethod
    def of(cls, text: str | None) -> Priority | None:
        """The priority of this name, whatever its case and hyphens; None for no name of one."""
        return _BY_LABEL.get((text or "").replace("-", "").lower())


PLACE_BITS: Final = 24
"""Bits of a row's place in the sort key; more rows than this are not sorted at one time."""

_BY_LABEL: Final = {priority.label: priority for priority in Priority}
_LABELS: Final = pa.array(list(_BY_LABEL), pa.string())
_NUMBERS: Final = frozenset(map(int, Priority))


class Publish(NamedTuple):
    """A row as a resolver function sees it."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    """The first value of each header."""


Resolver = Callable[[Publish], Priority | int | str | None]
"""A function of the user's; None for no opinion. What it raises fails the task."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows, as far as their priorities depend on it."""

    distinct: pa.Array
    """STRING: the distinct destination subjects."""
    indices: pa.Array
    """INT32: row i goes to distinct[indices[i]]; null for a row that goes nowhere."""
    priority: pa.Array | None
    """STRING: the column of this name; None without one."""
    header: Callable[[str], pa.Array | None]
    """Gives the first value of a header in each row (STRING); None when no row has it."""
    claim: Callable[[str], pa.Array | None]
    """Gives the value of a claim in each row (STRING); None when no row has it."""
    publish: Callable[[int], Publish]
    """Gives one row."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """The rules of one write."""

    subjects: tuple[tuple[str, Priority], ...]
    """Filter and priority; the first that matches."""
    header: str | None
    claim: str | None
    claim_values: tuple[tuple[str, Priority], ...]
    resolver: Resolver | None

    @property
    def routes(self) -> list[str]:
        """The filters by which metrics tell subjects apart."""
        return [filter for filter, _ in self.subjects]

    def of(self, rows: Rows) -> tuple[pa.Array | None, int]:
        """
        The priorities of a block's rows.

        Returns:
            INT8, a `Priority` of each row; None when all are normal. And how many values were no
            name of a priority.
        """
        opinions: list[pa.Array] = []
        unrecognised = 0

        def add(opinion: pa.Array | None, strange: int = 0) -> None:
            nonlocal unrecognised
            unrecognised += strange
            if opinion is not None:
                opinions.append(opinion)

        if self.subjects:
            add(self._by_subject(rows.distinct).take(rows.indices))
        add(*_by_name(rows.priority))
        if self.resolver is not None:
            add(*_by_function(self.resolver, rows, opinions))
        if self.header is not None:
            add(*_by_name(rows.header(self.header)))
        if self.claim is not None:
            add(self._by_claim(rows.claim(self.claim)))
        if not opinions:
            return None, unrecognised
        codes = pc.coalesce(*opinions, Priority.NORMAL.code)
        plain = is_all(pc.equal(codes, Priority.NORMAL.code))
        return None if plain else codes, unrecognised

    def _by_subject(self, distinct: pa.Array) -> pa.Array:
        priorities = pa.array([priority for _, priority in self.subjects], pa.int8())
        return priorities.take(first_match(self.routes, distinct))

    def _by_claim(self, values: pa.Array | None) -> pa.Array | None:
        if values is None:
            return None
        known = pa.array([value for value, _ in self.claim_values], pa.string())
        meant = pa.array([priority for _, priority in self.claim_values], pa.int8())
        # An index_in of a null is null where no null is among the known.
        return meant.take(pc.index_in(values, known))


def first_match(filters: Sequence[str], subjects: pa.Array) -> pa.Array:
    """INT32: the place of the first filter that matches each subject (STRING); null for none."""
    places = pa.nulls(len(subjects), pa.int32())
    for place, filter in enumerate(filters):
        if not places.null_count:
            break
        matched = pc.match_substring_regex(subjects, f"^{pattern(filter)}$")
        first = pc.and_(matched, pc.is_null(places))
        places = pc.if_else(first, int32(place), places)
    return places


def _by_name(texts: pa.Array | None) -> tuple[pa.Array | None, int]:
    """INT8: what the texts name, null where there is none; and how many name nothing."""
    if texts is None or texts.null_count == len(texts):
        return None, 0
    plain = pc.utf8_lower(pc.replace_substring(texts, "-", ""))
    places = pc.index_in(plain, _LABELS)
    strange = pc.and_(pc.is_null(places), pc.is_valid(texts))
    codes = pa.array(list(_BY_LABEL.values()), pa.int8()).take(places)
    return pc.if_else(strange, Priority.NORMAL.code, codes), pc.sum(strange).as_py() or 0


def _by_function(decide: Resolver, rows: Rows, earlier: list[pa.Array]) -> tuple[pa.Array, int]:
    """
    INT8: what the function says of the rows that nothing before it has an opinion of; and how often
    that is no name.
    """
    known = pc.is_valid(pc.coalesce(*earlier)).to_pylist() if earlier else []
    lost = pc.is_null(rows.indices).to_pylist()
    said: list[int | None] = []
    strange = 0
    for row in range(len(rows.indices)):
        skip = lost[row] or (known and known[row])
        answer = None if skip else decide(rows.publish(row))
        said.append(_meant(answer))
        strange += isinstance(answer, str) and Priority.of(answer) is None
    return pa.array(said, pa.int8()), strange


def _meant(said: Priority | int | str | None) -> Priority | None:
    """
    Priority that a function said.

    Raises:
        ValueError: It said something else.
    """
    if isinstance(said, str):
        named = Priority.of(said)
        return Priority.NORMAL if named is None else named
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int) or said not in _NUMBERS:
        raise ValueError(
            f"priorityResolver returned {said!r}; expected a Priority, its name or number (0"
            " critical, 1 normal, 2 non-critical), or None"
        )
    return Priority(said)


# ── what options say ─────────────────────────────────────────────────────────────────────────


def subject_rules(text: str) -> tuple[tuple[str, Priority], ...]:
    """`orders.>=critical, metrics.*=non-critical`: filters and priorities, in order."""
    rules = _pairs(text, "a filter")
    for filter, _ in rules:
        check_filter(filter)
    return rules


def claim_values(text: str) -> tuple[tuple[str, Priority], ...]:
    """`acme=critical, free=non-critical`: values of the claim and priorities."""
    values = _pairs(text, "a value")
    if len({value for value, _ in values}) < len(values):
        raise ValueError(f"expected each value once, got '{text}'")
    return values


def _pairs(text: str, what: str) -> tuple[tuple[str, Priority], ...]:
    pairs = []
    for word in text.split(","):
        key, equals, name = word.rpartition("=")
        priority = Priority.of(name.strip())
        if not equals or not key.strip() or priority is None:
            raise ValueError(
                f"expected {what}, '=' and critical, normal or non-critical, got '{word.strip()}'"
            )
        pairs.append((key.strip(), priority))
    return tuple(pairs)


# ── the order ────────────────────────────────────────────────────────────────────────────────


def in_order(subjects: pa.Array, own: pa.Array, by_subject: bool) -> pa.Array:
    """
    The places of the rows, which are in the order of arrival, in the order in which they go.

    Args:
        subjects: INT32, a code for the subject of each.
        own: INT8, the priority of each.
        by_subject: whether rows of a subject keep their order; if not, each goes by its priority.
    """
    here = places(len(subjects))
    if not by_subject:
        return pc.sort_indices(pc.add(pc.shift_left(own.cast(pa.int64()), PLACE_BITS), here))
    classes = _classes(subjects, own)
    # Of each subject and class one row a turn; of those of a turn, the first that came.
    turns = ranks(pc.add(pc.multiply(subjects.cast(pa.int64()), 3), classes))
    keys = pc.add(
        pc.shift_left(classes.cast(pa.int64()), 2 * PLACE_BITS),
        pc.shift_left(turns.cast(pa.int64()), PLACE_BITS),
    )
    return pc.sort_indices(pc.add(keys, here))


def _classes(subjects: pa.Array, priorities: pa.Array) -> pa.Array:
    """INT8: of each row, the most urgent priority of its subject from it on (§7.1 to §7.3)."""
    here = places(len(subjects))
    classes = pa.repeat(Priority.NON_CRITICAL.code, len(subjects))
    for priority in (Priority.NORMAL, Priority.CRITICAL):
        urgent = pc.less_equal(priorities, priority.code)
        last = of_groups(subjects.filter(urgent), here.filter(urgent), "max")
        last_urgent = last(subjects)
        dragged = pc.fill_null(pc.less_equal(here, last_urgent), False)
        classes = pc.if_else(dragged, priority.code, classes)
    return classes
