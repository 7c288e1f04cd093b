"""
Routes of subjects: the source that matches one, its destinations and their shares.

Rule 1: shares and refusals are those of nats-server 2.15.1 for an account's `mappings` (src:
opts.go `parseAccountMapDest`, accounts.go `AddWeightedMappings`; held by `tests/live`).
Rule 2: this module performs no I/O, reads no clock, and never chooses for a row (`mapper` and
`subjectmapping` do).

**What weights below 100 leave over** goes to the source's own subject, whatever the number of
destinations. It is lost only where the source itself, letter by letter, is among the destinations:
`foo.loss.>` may be its own destination, and so may a source without wildcards, but no destination
may hold a `*` (`a.$1` for the source `a.*` is another text). So of `[{foo.loss.>, 50%}]` half is
lost; of `[{v3, 90%}, {v3.fail, 8%}]` nothing is: 2 % stay on the source, although the NATS
documentation calls them lost. Measured on nats-server 2.15.1.

A list under `cluster` replaces the main one on servers of that cluster, remainder and all. The
server looks for the source in *all* lists at once: listed under one cluster, it turns the
remainders of every list into loss.

**Shapes.** Sources without wildcards are looked up as they are. The others are tried by *shape*:
where a source has literal tokens, `*` and `>`. No two sources of one shape match the same subject,
so one look-up of its literal tokens finds the route, however many routes there are, and the order
of the shapes is the precedence of the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ..errors import OptionError
from ..subjects import ANY, REST, has_rest, is_literal, specificity, tokens
from .rule import OPTION, Rule

_WEIGHT: Final = re.compile("[+-]?[0-9]+")
_FIELDS: Final = {"dest": "destination", "destination": "destination"} | {
    name: name for name in ("weight", "cluster")
}


class Members(list[tuple[str, Any]]):
    """A JSON object or configuration block as its members, so that a repeated one is seen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that may happen to a row."""

    rule: Rule | None
    """The rule that maps the subject; None when the row is lost."""

    percent: int

    kept: bool = False
    """Whether this is what the weights left to the source."""


@dataclass(frozen=True, slots=True)
class Route:
    """All that may happen to the subjects that match one source."""

    source: str
    main: tuple[Choice, ...]
    """Choices as written, then the remainder; their shares sum to 100."""

    clusters: tuple[tuple[str, tuple[Choice, ...]], ...] = ()
    """By cluster, in place of `main`."""

    @classmethod
    def parse(cls, source: str, value: Any) -> Route:
        """
        Reads what is written behind a source.

        Args:
            value: a destination, one `{destination, weight, cluster}`, or a list of them.

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
                f" {{destination, weight}}, got {kind(value)}",
            )
        entries = [value] if isinstance(value, Members) else value
        lists: dict[str, list[Choice]] = {"": []}
        seen: set[str] = set()
        for number, entry in enumerate(entries, 1):
            destination, percent, cluster = _entry(source, number, entry)
            if destination in seen:
                raise _refuse(source, number, f"destination {destination!r} is given twice")
            seen.add(destination)
            choices = lists.setdefault(cluster, [])
            choices.append(Choice(Rule.parse(source, destination), percent))
            if (total := sum(choice.percent for choice in choices)) > 100:
                of = f" of cluster {cluster!r}" if cluster else ""
                raise _refuse(source, number, f"the weights{of} add up to {total} > 100")
        complete = {
            name: _complete(source, members, source in seen) for name, members in lists.items()
        }
        return cls(source, complete.pop(""), tuple(complete.items()))

    def choices(self, cluster: str | None) -> tuple[Choice, ...]:
        """Possible choices on a server of this cluster."""
        chosen = dict(self.clusters).get(cluster or "", self.main)
        return tuple(choice for choice in chosen if choice.percent)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The route's JSON behind the source; `parse` makes this route of it."""
        return [
            {"destination": choice.rule.destination, "weight": choice.percent}
            | ({"cluster": cluster} if cluster else {})
            for cluster, choices in (("", self.main), *self.clusters)
            for choice in choices
            if choice.rule is not None and not choice.kept
        ]

    @property
    def needs_identity(self) -> bool:
        """Whether, in some cluster, more than the subject decides."""
        return any(
            len(choices) > 1 or any(choice.rule and choice.rule.is_random for choice in choices)
            for choices in map(self.choices, ("", *dict(self.clusters)))
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """The routes whose sources have literal tokens and wildcards at the same places."""

    count: int
    """Number of a subject's tokens, as minimum or exactly."""

    is_open: bool
    """Whether it may have more: the sources end in `>`."""

    literal: tuple[int, ...]
    """Indexes of the literal tokens."""

    routes: dict[str, Route]
    """By their literal tokens, joined by dots: no two of them match the same subject."""

    def fits(self, count: int) -> bool:
        """Whether subjects of so many tokens may match."""
        return count >= self.count if self.is_open else count == self.count


class Router:
    """
    Finds the routes that match a subject.

    Args:
        routes: ordered by the `specificity` of their sources.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.fixed: dict[str, Route] = {}
        """Routes without wildcards, by their sources."""
        shapes: dict[tuple[int, ...], Shape] = {}
        for route in routes:
            if is_literal(route.source):
                self.fixed[route.source] = route
                continue
            kinds = specificity(route.source)
            literal = tuple(index for index, kind in enumerate(kinds) if kind == 0)
            empty = Shape(len(kinds), has_rest(route.source), literal, {})
            source = tokens(route.source)
            shape = shapes.setdefault(kinds, empty)
            shape.routes[".".join(source[i] for i in literal)] = route
        self.shapes = list(shapes.values())
        """The others, in the order of the routes."""

    def matching(self, subject: str) -> Iterator[Route]:
        """All that match, in order."""
        if (route := self.fixed.get(subject)) is not None:
            yield route
        parts = tokens(subject)
        if "" in parts:
            return
        for shape in self.shapes:
            if shape.fits(len(parts)):
                route = shape.routes.get(".".join([parts[i] for i in shape.literal]))
                if route is not None:
                    yield route


def kind(value: Any) -> str:
    """Type of a value, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, Members):
        return "an object"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number with a point",
        str: "text",
        list: "a list",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def _entry(source: str, number: int, entry: Any) -> tuple[str, int, str]:
    """Destination, percent and cluster of one member of a list."""
    if not isinstance(entry, Members):
        raise _refuse(source, number, f"expected {{destination, weight}}, got {kind(entry)}")
    fields: dict[str, Any] = {}
    for name, value in entry:
        field = _FIELDS.get(name.lower())
        if field is None:
            raise _refuse(
                source,
                number,
                f"unknown field {name!r}; there are destination, weight and cluster",
            )
        if field in fields:
            raise _refuse(source, number, f"{field} is given twice")
        if field != "weight" and not isinstance(value, str):
            raise _refuse(source, number, f"{field}: expected text, got {kind(value)}")
        fields[field] = value
    for field in ("destination", "weight"):
        if field not in fields:
            raise _refuse(source, number, f"{field} is missing")
    return (
        fields["destination"],
        _percent(source, number, fields["weight"]),
        fields.get("cluster", ""),
    )


def _percent(source: str, number: int, weight: Any) -> int:
    """A weight as the server reads it: 50, "50" or "50%"."""
    percent: int | None = None
    if isinstance(weight, str) and _WEIGHT.fullmatch(text := weight.removesuffix("%")):
        percent = int(text) if len(text) < 20 else None
    elif isinstance(weight, int) and not isinstance(weight, bool):
        percent = weight
    if percent is None or not 0 <= percent <= 100:
        raise _refuse(
            source, number, f"weight: expected a whole number from 0 to 100, got {weight!r}"
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
    return (*choices, Choice(Rule.parse(source, _itself(source)), left, kept=True))


def _itself(source: str) -> str:
    """The destination by which the server keeps a subject: `a.$1.>` for `a.*.>`."""
    if is_literal(source):
        return source
    stars = iter(range(1, len(tokens(source)) + 1))
    return ".".join(f"${next(stars)}" if token == ANY else token for token in tokens(source))


def _refuse(source: str, number: int, reason: str) -> OptionError:
    return OptionError(OPTION, f"rule {source!r}, destination {number}: {reason}")
