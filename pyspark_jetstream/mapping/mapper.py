"""
Mapping of whole columns: the route of each row, and the subject that it makes.

Rule 1: each row goes by the first route that matches its subject.
Rule 2: no Python per row, but where a route takes fewer than `FEW_ROWS` of a block, and for the
hash of an identity where a route has weights or `random`.
Rule 3: this module performs no I/O and reads no clock.

**Choices.** Which destination of several a row gets is drawn from the xxh3_64 hash of its identity,
so every attempt to write the row draws the same; each `random` of a destination draws with another
seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from ..arrays import STRING, binary, int32, where
from .columns import Part, Tokens, group_rows, joined, merged
from .routes import Route, Router, Shape
from .rule import Random
from .rulecolumns import ColumnRule

BLOCK_ROWS: Final = 1 << 14
"""Rows mapped at a time: what a kernel writes is still in the cache when the next one reads it."""

BLOCK_BYTES: Final = 1 << 22
"""Bytes of text mapped at a time, at most."""

FEW_ROWS: Final = 100
"""Fewer rows than this of one rule are mapped one by one: the kernels' calls cost as much."""

_TURNS: Final = 64
"""Upper bound of the draws of `random` for one row."""

Identities = Callable[[], pa.Array]
"""The identities of all rows, binary or text without nulls; called once, if one is needed."""


class Mapped(NamedTuple):
    """A column of subjects after the mapping."""

    subjects: pa.Array
    """Text; null where the mapping loses the row."""

    lost: int
    """Number of lost rows."""


class ColumnMapper:
    """Maps columns of subjects for servers of one cluster."""

    def __init__(self, router: Router, cluster: str | None = None) -> None:
        self._router = router
        fixed = [_ColumnRoute(route, cluster) for route in router.fixed.values()]
        self._fixed = fixed
        self._fixed_sources = pa.array([route.source for route in fixed], STRING)
        self._fixed_results = pa.array([route.constant() for route in fixed], STRING)
        self._shapes = [_ColumnShape(shape, cluster) for shape in router.shapes]
        self._by_source = {
            route.source: route
            for routes in (fixed, *(shape.routes for shape in self._shapes))
            for route in routes
        }

    def __repr__(self) -> str:
        return f"<ColumnMapper {len(self._fixed)} literal sources, {len(self._shapes)} shapes>"

    def map(self, subjects: pa.Array, identities: Identities | None) -> Mapped:
        """
        The subjects after the mapping.

        Args:
            subjects: text without nulls.

        Raises:
            ValueError: A rule makes no subject of one, or chooses by the row and there are no
                identities.
        """
        all_rows = _Draws(None if identities is None else cache(identities))
        blocks = [
            self._block(subjects.slice(at, count), all_rows.slice(at, count))
            for at, count in _blocks(subjects)
        ]
        mapped = blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks or [subjects])
        return Mapped(mapped, mapped.null_count)

    def another(
        self, subject: str, identity: bytes, is_wanted: Callable[[str], bool], weights: bool
    ) -> str | None:
        """
        Another subject that a row's draw could make, the same every time; None for none.

        Args:
            is_wanted: accepts a subject.
            weights: whether another destination is drawn by weight, or only `random` again.
        """
        route = next(self._router.matching(subject), None)
        if route is None:
            return None
        return self._by_source[route.source].another(subject, identity, is_wanted, weights)

    def _block(self, subjects: pa.Array, draws: _Draws) -> pa.Array:
        """One block, by the sources without wildcards first."""
        if len(subjects) < FEW_ROWS:
            return self._few(subjects, draws)
        if not self._fixed:
            return self._by_shape(subjects, draws)
        indexes = pc.index_in(subjects, value_set=self._fixed_sources)
        if indexes.null_count == len(subjects):
            return self._by_shape(subjects, draws)
        results = self._fixed_results.take(indexes)
        if not results.null_count:
            return results
        pieces = [(where(results.is_valid()), results.drop_null())]
        chosen = pc.if_else(results.is_null(), indexes, _NONE)
        groups, few = _groups(self._fixed, chosen)
        for route, rows in groups:
            part = subjects.take(rows)
            pieces.append((rows, route.apply(part, Tokens.of(part), draws.take(rows))))
        if few:
            pieces.append(_some_of(subjects, few, draws))
        if indexes.null_count:
            rows = where(indexes.is_null())
            pieces.append((rows, self._by_shape(subjects.take(rows), draws.take(rows))))
        return merged(pieces)

    def _few(self, subjects: pa.Array, draws: _Draws) -> pa.Array:
        """Maps rows one by one."""
        texts = subjects.to_pylist()
        found = [next(self._router.matching(text), None) for text in texts]
        routes = [None if route is None else self._by_source[route.source] for route in found]
        return _one_by_one(routes, texts, draws)

    def _by_shape(self, subjects: pa.Array, draws: _Draws) -> pa.Array:
        """Subjects that no source without wildcards matches."""
        if not self._shapes:
            return subjects
        pieces: list[tuple[pa.Array, pa.Array]] = []
        for count, left in Tokens.of(subjects).by_count():
            for shape in self._shapes:
                if not len(left):
                    break
                if not shape.fits(count):
                    continue
                indexes = shape.find(subjects, left)
                if indexes.null_count == len(left):
                    continue
                if not indexes.null_count and left.rows is None and len(shape.routes) == 1:
                    return shape.routes[0].apply(subjects, left, draws)
                groups, few = _groups(shape.routes, indexes)
                for route, rows in groups:
                    matched = left.take(rows)
                    part = subjects.take(matched.rows), matched, draws.take(matched.rows)
                    pieces.append((matched.rows, route.apply(*part)))
                if few:
                    there = [(route, left.rows_of(rows)) for route, rows in few]
                    pieces.append(_some_of(subjects, there, draws))
                left = left.take(where(indexes.is_null()))
            if len(left) == len(subjects):  # no rule matches any
                return subjects
            if len(left):
                pieces.append((left.rows, subjects.take(left.rows)))
        return merged(pieces)


class _Draws:
    """The identities of some rows, and the numbers drawn by them; fetched when first needed."""

    def __init__(self, identities: Identities | None) -> None:
        self._identities = identities

    def slice(self, at: int, count: int) -> _Draws:
        """The draws of `count` rows from row `at` on."""
        identities = self._identities
        return self if identities is None else _Draws(lambda: identities().slice(at, count))

    def take(self, rows: pa.Array) -> _Draws:
        """The draws of some of the rows."""
        identities = self._identities
        return self if identities is None else _Draws(lambda: identities().take(rows))

    def identities(self, source: str) -> list[bytes]:
        """
        The identity of each row.

        Raises:
            ValueError: The rows have no identities.
        """
        if self._identities is None:
            raise ValueError(
                f"rule {source!r} chooses by the row; that takes the identities of the rows"
            )
        identities: list[bytes] = binary(self._identities()).to_pylist()
        return identities

    def below(self, limit: int, seed: int, source: str) -> pa.Array:
        """A number below `limit` for each row, drawn by its identity."""
        drawn = [_drawn(identity, seed, limit) for identity in self.identities(source)]
        return pa.array(drawn, pa.uint32())


def _drawn(identity: bytes, seed: int, below: int) -> int:
    return xxh3_64_intdigest(identity, seed) % below


def _taker(shares: Sequence[int], drawn: int) -> int:
    """Place of the share that takes a number, the shares one behind the other."""
    return next(place for place, end in enumerate(accumulate(shares)) if drawn < end)


def _drawn_again(identity: bytes, turn: int, of: Random) -> str:
    return str(_drawn(identity, of.seed + turn, of.span))


class _ColumnRoute:
    """A route on servers of one cluster."""

    def __init__(self, route: Route, cluster: str | None) -> None:
        self.source = route.source
        self.outcomes = [
            (choice.percent, None if choice.rule is None else ColumnRule(choice.rule))
            for choice in route.choices(cluster)
        ]
        """Shares and rules: of the numbers from 0 to 99 each takes as many, in this order."""
        rules = [rule.rule for _, rule in self.outcomes if rule is not None]
        self.chooses = len(self.outcomes) > 1 or any(rule.is_random for rule in rules)
        """Whether more than the subject decides."""

    def constant(self) -> str | None:
        """
        The one result for the source, a literal subject; None where the row decides, or is lost.
        """
        rule = self.outcomes[0][1]
        return None if self.chooses or rule is None else rule.rule.apply(self.source)

    def apply(self, subjects: pa.Array, tokens: Tokens, draws: _Draws) -> pa.Array:
        """Maps these subjects; null where a row is lost."""
        if len(self.outcomes) == 1:
            return self._outcome(self.outcomes[0][1], subjects, tokens, draws)
        pieces = []
        drawn = draws.below(100, 0, self.source)
        at = 0
        for share, outcome in self.outcomes:
            rows = where(pc.and_(pc.greater_equal(drawn, at), pc.less(drawn, at + share)))
            at += share
            if len(rows):
                part = subjects.take(rows), tokens.take(rows), draws.take(rows)
                pieces.append((rows, self._outcome(outcome, *part)))
        return merged(pieces)

    def _outcome(
        self, outcome: ColumnRule | None, subjects: pa.Array, tokens: Tokens, draws: _Draws
    ) -> pa.Array:
        if outcome is None:
            return pa.nulls(len(subjects), STRING)
        return outcome.apply(
            subjects, tokens, lambda random: draws.below(random.span, random.seed, self.source)
        )

    def apply_one(self, subject: str, identity: bytes) -> str | None:
        """Maps one subject; `identity` counts only where the row decides."""
        _, outcome = self.outcomes[self._place(identity)]
        if outcome is None:
            return None
        return outcome.rule.apply(
            subject, lambda random: str(_drawn(identity, random.seed, random.span))
        )

    def _place(self, identity: bytes) -> int:
        """The place of the outcome that is drawn for a row."""
        drawn = _drawn(identity, 0, 100) if len(self.outcomes) > 1 else 0
        return _taker([share for share, _ in self.outcomes], drawn)

    def another(
        self, subject: str, identity: bytes, is_wanted: Callable[[str], bool], weights: bool
    ) -> str | None:
        """A wanted subject by another `random`, with `weights` also by another destination."""
        choices = self.outcomes if weights else [self.outcomes[self._place(identity)]]
        left = [(share, outcome) for share, outcome in choices if outcome is not None]
        while left:
            shares = [share for share, _ in left]
            at = _drawn(identity, len(left) << 32, sum(shares))
            _, outcome = left.pop(_taker(shares, at))
            for turn in range(1, _TURNS if outcome.rule.is_random else 2):
                mapped = outcome.rule.apply(subject, partial(_drawn_again, identity, turn << 32))
                if is_wanted(mapped):
                    return mapped
        return None


class _ColumnShape:
    """The routes of one shape on servers of one cluster."""

    def __init__(self, shape: Shape, cluster: str | None) -> None:
        self.fits = shape.fits
        self.routes = [_ColumnRoute(route, cluster) for route in shape.routes.values()]
        self._runs = list(_neighbours(shape.literal))
        self._keys = pa.array(list(shape.routes), STRING)
        at_first = [first for first, _ in self._runs] == [0]
        self._beginning = f"{self._keys[0]}." if at_first and len(self.routes) == 1 else None
        """Common beginning of the only route's subjects, if no other token has to be compared."""

    def find(self, subjects: pa.Array, tokens: Tokens) -> pa.Array:
        """The index of each row's route, or null."""
        if not self._runs:
            return pa.repeat(_FIRST, len(tokens))
        if self._beginning is None:
            return pc.index_in(self._literals(tokens), value_set=self._keys)
        texts = subjects if tokens.rows is None else subjects.take(tokens.rows)
        return pc.if_else(pc.starts_with(texts, self._beginning), _FIRST, _NONE)

    def _literals(self, tokens: Tokens) -> pa.Array:
        """Each row's tokens at the positions where sources have literal tokens."""
        runs: list[Part] = []
        for first, last in self._runs:
            start = tokens.start_of(first)
            if runs:  # from the dot on
                start = pc.subtract(start, int32(1))
            runs.append(tokens.run(start, tokens.end_of(last)))
        return joined(runs, len(tokens)).cast(STRING)


_FIRST: Final = int32(0)
_NONE: Final = int32(None)


def _groups(
    routes: Sequence[_ColumnRoute], indexes: pa.Array
) -> tuple[list[tuple[_ColumnRoute, pa.Array]], list[tuple[_ColumnRoute, pa.Array]]]:
    """Each route with its rows: those with enough rows for kernels, and the others."""
    many: list[tuple[_ColumnRoute, pa.Array]] = []
    few: list[tuple[_ColumnRoute, pa.Array]] = []
    for code, rows in group_rows(indexes):
        (few if len(rows) < FEW_ROWS else many).append((routes[code], rows))
    return many, few


def _some_of(
    subjects: pa.Array, groups: Sequence[tuple[_ColumnRoute, pa.Array]], draws: _Draws
) -> tuple[pa.Array, pa.Array]:
    """The rows of all groups, and what becomes of them."""
    rows = pa.concat_arrays([rows for _, rows in groups])
    routes = [route for route, rows in groups for _ in range(len(rows))]
    return rows, _one_by_one(routes, subjects.take(rows).to_pylist(), draws.take(rows))


def _one_by_one(
    routes: Sequence[_ColumnRoute | None], subjects: list[str], draws: _Draws
) -> pa.Array:
    """Maps subject by subject, each by its route; unchanged without one."""
    choosing = next((route.source for route in routes if route and route.chooses), None)
    identities = [b""] * len(routes) if choosing is None else draws.identities(choosing)
    known: dict[str, str | None] = {}
    mapped: list[str | None] = []
    for route, subject, identity in zip(routes, subjects, identities, strict=True):
        if route is None:
            mapped.append(subject)
        elif route.chooses:
            mapped.append(route.apply_one(subject, identity))
        else:
            if subject not in known:
                known[subject] = route.apply_one(subject, identity)
            mapped.append(known[subject])
    return pa.array(mapped, STRING)


def _neighbours(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of every group without a gap."""
    at = 0
    for end, index in enumerate(indexes):
        if indexes[end + 1 : end + 2] != [index + 1]:
            yield indexes[at], index
            at = end + 1


def _blocks(subjects: pa.Array) -> Iterator[tuple[int, int]]:
    """First row and length of each block of rows."""
    at = 0
    while at < len(subjects):
        count = min(BLOCK_ROWS, len(subjects) - at)
        while count > 1 and subjects.slice(at, count).nbytes > BLOCK_BYTES:
            count //= 2
        yield at, count
        at += count
