"""
Mapping columns: which route takes a subject, and what the subject becomes.

Rule 1: each row goes by the first route that matches its subject.
Rule 2: a rule maps each distinct subject once, and what it makes is remembered for the columns to
come, within bounds (`ROOM`).
Rule 3: this module performs no I/O and reads no clock.

**Choices.** Which destination of several a row gets is drawn from the xxh3_64 hash of its identity,
so every attempt to write the row draws the same; each `random` of a destination draws with another
seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from ..arrays import STRING, binary
from .routes import Route, Router
from .rule import Random

__all__ = ["Identities", "Mapped", "Mapper"]

ROOM: Final = 1 << 22
"""
How much a mapper remembers, beside one column: so many characters of subjects, each subject counted
with `_OVERHEAD` more. That is 28,000 subjects of 50 characters (10 MB). Then it forgets them all.
"""

_OVERHEAD: Final = 100

_TURNS: Final = 64
"""How often `random` is drawn again for a row, at most."""

Identities = Callable[[], pa.Array]
"""The identities of all rows, binary or text without nulls; called once, if one is needed."""


class Mapped(NamedTuple):
    """A column of subjects after the mapping."""

    subjects: pa.Array
    """Text; null where the mapping loses the row."""

    lost: int
    """How many rows are lost."""


class Mapper:
    """
    Maps subjects for servers of one cluster.

    Args:
        room: as `ROOM` explains.
    """

    def __init__(self, router: Router, cluster: str | None = None, room: int = ROOM) -> None:
        self._router = router
        self._memory = _Memory(room)
        self._known = self._memory.table()
        """What each subject becomes, None where it is lost; a plan where the row decides."""
        self._plans = {route.source: _Plan(route, cluster, self._memory) for route in router.routes}
        self._draws = any(plan.draws for plan in self._plans.values())

    def __repr__(self) -> str:
        return f"<Mapper {len(self._plans)} routes, {len(self._known)} subjects known>"

    def map(self, subjects: pa.Array, identities: Identities | None) -> Mapped:
        """
        The subjects after the mapping.

        Args:
            subjects: text without nulls.

        Raises:
            ValueError: A rule makes no subject of one, or chooses by the row and there are no
                identities.
        """
        column = subjects.dictionary_encode()
        names = column.dictionary.to_pylist()
        self._memory.make_room()
        results = self._memory.results(self._known, names, self._results)
        if self._draws and any(isinstance(result, _Plan) for result in results):
            mapped = pa.array(_drawn_rows(names, results, column.indices, identities), STRING)
        else:
            mapped = pa.array(results, STRING).take(column.indices)
        return Mapped(mapped, mapped.null_count)

    def another(
        self, subject: str, identity: bytes, is_wanted: Callable[[str], bool], weights: bool
    ) -> str | None:
        """Another subject that the row could draw and that is wanted; None if there is none."""
        plan = self._plan(subject)
        return None if plan is None else plan.another(subject, identity, is_wanted, weights)

    def _plan(self, subject: str) -> _Plan | None:
        route = self._router.first(subject)
        return None if route is None else self._plans[route.source]

    def _results(self, names: Sequence[str]) -> list[str | _Plan | None]:
        """What each subject becomes, None where it is lost; a plan where the row decides."""
        plans = [self._plan(name) for name in names]
        results: list[str | _Plan | None] = list(names)
        places_of: dict[_Plan, list[int]] = {}
        for place, plan in enumerate(plans):
            if plan is None:
                continue
            if plan.draws:
                results[place] = plan
            else:
                places_of.setdefault(plan, []).append(place)
        for plan, places in places_of.items():
            made = plan.results([names[place] for place in places])
            for place, result in zip(places, made, strict=True):
                results[place] = result
        return results


class _Memory:
    """
    Tables of what subjects become, bounded together.

    Args:
        room: as `ROOM` explains.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._filled = 0
        self._tables: list[dict[str, Any]] = []

    def table(self) -> dict[str, Any]:
        """A new table, which `results` fills."""
        self._tables.append({})
        return self._tables[-1]

    def make_room(self) -> None:
        """Forgets all where there is no more room."""
        if self._filled > self._room:
            self._filled = 0
            for table in self._tables:
                table.clear()

    def results(
        self,
        table: dict[str, Any],
        subjects: Sequence[str],
        make: Callable[[Sequence[str]], Sequence[Any]],
    ) -> list[Any]:
        """What each subject becomes by a table; `make` says it of those that are new."""
        if new := list(dict.fromkeys([each for each in subjects if each not in table])):
            table.update(zip(new, make(new), strict=True))
            self._filled += sum(map(len, new)) + _OVERHEAD * len(new)
        return [table[each] for each in subjects]


def _drawn_rows(
    names: Sequence[str],
    results: Sequence[str | _Plan | None],
    indices: pa.Array,
    identities: Identities | None,
) -> list[str | None]:
    """
    What each row becomes.

    Args:
        results: what each name becomes; a plan where the row decides.
        indices: which name each row has.
    """
    mapped: list[str | None] = []
    rows_of: dict[_Plan, list[int]] = {}
    for row, code in enumerate(codes := indices.to_pylist()):
        result = results[code]
        if isinstance(result, _Plan):
            rows_of.setdefault(result, []).append(row)
            result = None
        mapped.append(result)
    if identities is None:
        raise ValueError(
            f"rule {next(iter(rows_of)).source!r} chooses by the row; that takes the identities"
            " of the rows"
        )
    ids = binary(identities()).to_pylist()
    for plan, rows in rows_of.items():
        drawn = plan.draw([names[codes[row]] for row in rows], [ids[row] for row in rows])
        for row, result in zip(rows, drawn, strict=True):
            mapped[row] = result
    return mapped


class _Plan:
    """A route on servers of one cluster."""

    def __init__(self, route: Route, cluster: str | None, memory: _Memory) -> None:
        self.source = route.source
        self._memory = memory
        self._choices = route.choices(cluster)
        self._by_draw = bytes(
            index for index, choice in enumerate(self._choices) for _ in range(choice.percent)
        )
        """Which choice each number below 100 stands for."""
        self._tables = [memory.table() for _ in self._choices]
        first = self._choices[0].rule
        self.draws = len(self._choices) > 1 or bool(first and first.draws)
        """Whether more than the subject decides."""

    def results(self, subjects: Sequence[str]) -> Sequence[str | None]:
        """What subjects become where the subject alone decides."""
        rule = self._choices[0].rule
        return [None] * len(subjects) if rule is None else rule.apply(subjects)

    def draw(self, subjects: Sequence[str], identities: Sequence[bytes]) -> Sequence[str | None]:
        """What the subject of each row becomes where the row decides."""
        if len(self._choices) == 1:
            return self._applied(0, subjects, identities)
        rows_of: list[list[int]] = [[] for _ in self._choices]
        for row, identity in enumerate(identities):
            rows_of[self._choice(identity)].append(row)
        drawn: list[str | None] = [None] * len(subjects)
        for index, rows in enumerate(rows_of):
            if rows:
                some = [subjects[row] for row in rows], [identities[row] for row in rows]
                for row, result in zip(rows, self._applied(index, *some), strict=True):
                    drawn[row] = result
        return drawn

    def another(
        self, subject: str, identity: bytes, is_wanted: Callable[[str], bool], weights: bool
    ) -> str | None:
        """A wanted subject by another `random`, with `weights` also by another destination."""
        left = [(choice.percent, choice.rule) for choice in self._choices]
        if not weights:
            left = [left[self._choice(identity)]]
        left = [(percent, rule) for percent, rule in left if rule is not None]
        while left:
            at = _below(sum(percent for percent, _ in left), identity, len(left) << 32)
            ends = accumulate(percent for percent, _ in left)
            _, rule = left.pop(next(i for i, end in enumerate(ends) if at < end))
            assert rule is not None
            for turn in range(1, _TURNS if rule.draws else 2):
                numbers = [_numbers(of, [identity], turn) for of in rule.draws]
                (mapped,) = rule.apply([subject], *numbers)
                if is_wanted(mapped):
                    return mapped
        return None

    def _applied(
        self, index: int, subjects: Sequence[str], identities: Sequence[bytes]
    ) -> Sequence[str | None]:
        """What rows become by one of the choices."""
        rule = self._choices[index].rule
        if rule is None:
            return [None] * len(subjects)
        if not rule.draws:
            return self._memory.results(self._tables[index], subjects, rule.apply)
        # Rows with the same subject and numbers are one.
        rows = list(zip(subjects, *(_numbers(of, identities) for of in rule.draws), strict=True))
        distinct = list(dict.fromkeys(rows))
        made = dict(zip(distinct, rule.apply(*zip(*distinct, strict=True)), strict=True))
        return [made[row] for row in rows]

    def _choice(self, identity: bytes) -> int:
        return self._by_draw[_below(100, identity)]


def _numbers(of: Random, identities: Sequence[bytes], turn: int = 0) -> list[str]:
    """What a `random` is for each row; another number, by chance, at each turn."""
    span, seed = of.span, of.seed + (turn << 32)
    return [str(xxh3_64_intdigest(identity, seed) % span) for identity in identities]


def _below(limit: int, identity: bytes, seed: int = 0) -> int:
    """A number below the limit, drawn by the identity."""
    return xxh3_64_intdigest(identity, seed) % limit
