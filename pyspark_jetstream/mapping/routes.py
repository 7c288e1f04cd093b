"""
Routes of subjects: the source that matches one, its destinations and their shares.

Rule 1: shares and refusals are those of nats-server 2.15.1 for an account's `mappings` (src:
opts.go `parseAccountMapDest`, accounts.go `AddWeightedMappings`; held by `tests/live`).
Rule 2: this module performs no I/O, reads no clock, and never chooses for a row (`outcomes` does).

**What weights below 100 leave over** goes to the source's own subject, whatever the number of
destinations. It is lost only where the source itself, letter by letter, is among the destinations:
`foo.loss.>` may be its own destination, and so may a source without wildcards, but no destination
may hold a `*` (`a.$1` for the source `a.*` is another text). So of `[{foo.loss.>, 50%}]` half is
lost; of `[{v3, 90%}, {v3.fail, 8%}]` nothing is: 2 % stay on the source, although the NATS
documentation calls them lost. Measured on nats-server 2.15.1.

The server's `cluster`, a list for the servers of one cluster, is refused: the rows of a batch would
go otherwise after each connection to another one.

**Shapes.** Sources are tried by *shape*: where one has literal tokens, `*` and `>`.
No two sources of one shape match the same subject, so one look-up of its literal tokens finds the
route, however many routes there are, and the order of the shapes is the precedence of the routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

from ..errors import OptionError
from ..subjects import ANY, REST, has_rest, is_literal, specificity, tokens
from .outcomes import Outcomes, Result
from .rule import OPTION, Rule

_WEIGHT: Final = re.compile("[+-]?[0-9]+")
_FIELDS: Final = {"dest": "destination", "destination": "destination", "weight": "weight"}


_NONE: Final = ("",)
"""No literal tokens of any source."""


class Members(list[tuple[str, Any]]):
    """A JSON object or configuration block as its members, so that a repeated one is seen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that may happen to a row."""

    rule: Rule | None
    """The rule that maps the subject; None when the row is lost."""

    percent: int


@dataclass(frozen=True, slots=True)
class Route:
    """All that may happen to the subjects that match one source."""

    source: str
    choices: tuple[Choice, ...]
    """As written, then the remainder; their shares sum to 100."""

    rules: tuple[Rule | None, ...] = field(init=False)
    """Those of the choices whose share is not 0; None for the loss."""
    ends: tuple[int, ...] = field(init=False)
    """Where their shares end, one behind the other."""
    needs_identity: bool = field(init=False)
    """Whether more than the subject decides."""

    def __post_init__(self) -> None:
        likely = [choice for choice in self.choices if choice.percent]
        rules = tuple(choice.rule for choice in likely)
        draws = len(rules) > 1 or any(rule is not None and rule.is_random for rule in rules)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "ends", tuple(accumulate(choice.percent for choice in likely)))
        object.__setattr__(self, "needs_identity", draws)

    @classmethod
    def parse(cls, source: str, value: Any) -> Route:
        """
        Reads what is written behind a source.

        Args:
            value: a destination, one `{destination, weight}`, or a list of them.

        Raises:
            OptionError: The server would refuse it, or `Rule.parse` does.
        """
        source = source or REST
        if isinstance(value, str):
            return cls(source, (Choice(Rule.parse(source, value), 100),))
        if not isinstance(value, list):
            raise OptionError(
                OPTION,
                f"rule {source!r}: expected a destination, or a list of"
                f" {{destination, weight}}, got {shown(value)}",
            )
        entries = [value] if isinstance(value, Members) else value
        choices: list[Choice] = []
        seen: set[str] = set()
        for number, entry in enumerate(entries, 1):
            destination, percent = _entry(source, number, entry)
            if destination in seen:
                raise _refuse(source, number, f"destination {destination!r} is given twice")
            seen.add(destination)
            choices.append(Choice(Rule.parse(source, destination), percent))
            if (total := sum(choice.percent for choice in choices)) > 100:
                raise _refuse(source, number, f"the weights add up to {total} > 100")
        return cls(source, _complete(source, choices, source in seen))

    def outcomes(
        self, names: Sequence[str], tokens: Sequence[Sequence[str]]
    ) -> Iterable[Result | Outcomes]:
        """
        What becomes of each of some subjects, or may.

        Args:
            tokens: theirs, by the token: of all of them the first, and so on.
        """
        made = [
            [None] * len(names) if rule is None else rule.made(names, tokens) for rule in self.rules
        ]
        if not self.needs_identity:
            return made[0]  # type: ignore[return-value]  # no `random`, so no tuple
        return [Outcomes(self.ends, each) for each in zip(*made, strict=True)]


@dataclass(frozen=True, slots=True)
class Shape:
    """The routes whose sources have literal tokens and wildcards at the same places."""

    count: int
    """Number of a subject's tokens, as minimum or exactly."""

    is_open: bool
    """Whether it may have more: the sources end in `>`."""

    literals: Callable[[Sequence[str]], Any]
    """Takes, of a subject's tokens, those that are literal in the sources."""

    routes: dict[Any, Route]
    """By their literal tokens: no two of them match the same subject."""

    def take(
        self,
        names: Sequence[str],
        parts: Sequence[Sequence[str]],
        places: list[int],
        results: list[Result | Outcomes],
    ) -> list[int]:
        """
        Writes what becomes of the subjects in these places that match a route.

        Args:
            parts: the tokens of each subject; those in these places have as many.

        Returns:
            The places of those that match none.
        """
        keys = list(map(self.literals, [parts[place] for place in places]))
        if len(self.routes) == 1 and keys.count(keys[0]) == len(keys):
            groups = {keys[0]: places}  # so it is nearly always
        else:
            groups = dict[Any, list[int]]()
            for place, key in zip(places, keys, strict=True):
                groups.setdefault(key if key in self.routes else _NONE, []).append(place)
        left: list[int] = []
        for key, of_key in groups.items():
            route = self.routes.get(key)
            if route is None:
                left = of_key
                continue
            columns = list(zip(*[parts[place] for place in of_key], strict=True))
            made = route.outcomes([names[place] for place in of_key], columns)
            for place, outcome in zip(of_key, made, strict=True):
                results[place] = outcome
        return left

    def fits(self, count: int) -> bool:
        """Whether subjects of so many tokens may match."""
        return count >= self.count if self.is_open else count == self.count


class Router:
    """
    Finds the routes that match subjects.

    Args:
        routes: ordered by the `specificity` of their sources.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        shapes: dict[tuple[int, ...], Shape] = {}
        for route in routes:
            kinds = specificity(route.source)
            literal = [index for index, kind in enumerate(kinds) if kind == 0]
            taken = itemgetter(*literal) if literal else lambda _: None
            empty = Shape(len(kinds), has_rest(route.source), taken, {})
            shape = shapes.setdefault(kinds, empty)
            shape.routes[shape.literals(tokens(route.source))] = route
        self._shapes = list(shapes.values())
        """In the order of the routes."""

    def route_of(self, subject: str) -> Route | None:
        """The one that applies to a valid subject; None for none."""
        parts = tokens(subject)
        fitting = (shape for shape in self._shapes if shape.fits(len(parts)))
        found = (shape.routes.get(shape.literals(parts)) for shape in fitting)
        return next(filter(None, found), None)

    def outcomes(self, names: Sequence[str]) -> list[Result | Outcomes]:
        """What becomes of each of some subjects, or may; a subject without a route stays."""
        results: list[Result | Outcomes] = [*names]
        parts = [name.split(".") for name in names]
        counts = [*map(len, parts)]
        if ".." in f".{'.,.'.join(names)}.":  # some have an empty token: these match nothing
            counts = [0 if "" in each else len(each) for each in parts]
        for count in set(counts):
            left = [place for place, each in enumerate(counts) if each == count]
            for shape in self._shapes:
                if left and shape.fits(count):
                    left = shape.take(names, parts, left, results)
        return results


def shown(value: Any) -> str:
    """A value as JSON, for what errors say."""
    return f"{json.dumps(value):.60}"


def _entry(source: str, number: int, entry: Any) -> tuple[str, int]:
    """Destination and percent of one member of a list."""
    if not isinstance(entry, Members):
        raise _refuse(source, number, f"expected {{destination, weight}}, got {shown(entry)}")
    fields: dict[str, Any] = {}
    for name, value in entry:
        field = _FIELDS.get(name.lower())
        if field is None:
            own = "; lists for one cluster are the server's own" if name == "cluster" else ""
            raise _refuse(
                source, number, f"unknown field {name!r}; there are destination and weight{own}"
            )
        if field in fields:
            raise _refuse(source, number, f"{field} is given twice")
        if field != "weight" and not isinstance(value, str):
            raise _refuse(source, number, f"{field}: expected text, got {shown(value)}")
        fields[field] = value
    for field in ("destination", "weight"):
        if field not in fields:
            raise _refuse(source, number, f"{field} is missing")
    return fields["destination"], _percent(source, number, fields["weight"])


def _percent(source: str, number: int, weight: Any) -> int:
    """A weight as the server reads it: 50, "50" or "50%"."""
    percent: int | None = None
    if isinstance(weight, str) and _WEIGHT.fullmatch(text := weight.removesuffix("%")):
        percent = int(text) if len(text) < 20 else None
    elif isinstance(weight, int) and not isinstance(weight, bool):
        percent = weight
    if percent is None or not 0 <= percent <= 100:
        raise _refuse(
            source, number, f"weight: expected a whole number from 0 to 100, got {shown(weight)}"
        )
    return percent


def _complete(source: str, listed: Iterable[Choice], is_listed: bool) -> tuple[Choice, ...]:
    """A list with what its weights leave over: loss where the source is listed, else the source."""
    choices = tuple(listed)
    left = 100 - sum(choice.percent for choice in choices)
    if not left:
        return choices
    if is_listed:
        return (*choices, Choice(None, left))
    return (*choices, Choice(Rule.parse(source, _itself(source)), left))


def _itself(source: str) -> str:
    """The destination by which the server keeps a subject: `a.$1.>` for `a.*.>`."""
    if is_literal(source):
        return source
    stars = iter(range(1, len(tokens(source)) + 1))
    return ".".join(f"${next(stars)}" if token == ANY else token for token in tokens(source))


def _refuse(source: str, number: int, reason: str) -> OptionError:
    return OptionError(OPTION, f"rule {source!r}, destination {number}: {reason}")
