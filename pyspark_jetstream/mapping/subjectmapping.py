"""
Subject mapping before a row is published: the rules and results are the server's.

Rule 1: a subject goes where nats-server 2.15.1 sends it by the same `mappings`; `rule` and
`routes` say where that cannot be, or must not.
Rule 2: this module performs no I/O, reads no clock, and sees subjects and identities, never rows.
Rule 3: a subject is mapped once, and then known; a row costs Python only where it draws.

A *rule* is what is written for one source: a destination, or several with weights. Here it is a
`Route`; `rule.Rule` is one source with one of its destinations.

**Precedence.** Of the rules that match a subject, the most specific applies: at the first token
where two sources differ in kind, literal precedes `*` precedes `>`; so a source without wildcards
always wins. The server takes an account's overlapping mappings in random order, another one at
every start; ours does not depend on how they are written. A subject is mapped once: what a rule
makes of it is not mapped again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from .. import subjects
from ..arrays import STRING
from ..errors import OptionError
from .outcomes import Outcomes, Result
from .routes import Choice, Route, Router
from .rule import OPTION
from .text import read_mapping

_EXPECTED: Final = (
    'expected JSON such as {"orders.*": "orders.{{partition(8,1)}}.$1"}, or a mappings { … } block'
    " of nats-server"
)
_KNOWN: Final = 1 << 16
"""Upper bound of the subjects whose outcomes are kept, those met last."""


class Mapped(NamedTuple):
    """The subjects of rows after the mapping."""

    subjects: pa.DictionaryArray
    """STRING; null where the mapping loses the row, or makes no subject of it."""

    faults: pa.Array | None
    """STRING: why it makes none, null where it does; None where it does for all."""


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """
    A set of rules; maps each subject once, by the first rule that matches it.

    Equal if the rules are equal. Pickles without what it knows. A subject is not checked
    here (`subjects.check_subject` does that): one with an empty token matches no wildcard.
    """

    routes: tuple[Route, ...]
    """Most specific first."""

    _router: Router = field(init=False, repr=False, compare=False)
    _known: dict[str, Result | Outcomes] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """What becomes of the subjects met last, or may."""

    def __post_init__(self) -> None:
        ordered = sorted(
            self.routes, key=lambda route: (subjects.specificity(route.source), route.source)
        )
        object.__setattr__(self, "routes", tuple(ordered))
        object.__setattr__(self, "_router", Router(ordered))

    @classmethod
    def parse(cls, text: str) -> SubjectMapping:
        """
        Reads rules from JSON or a `mappings { … }` block.

        Raises:
            OptionError: The text is neither, or a rule in it is not valid.
        """
        try:
            members = read_mapping(text)
        except ValueError as error:
            raise OptionError(OPTION, f"{error}; {_EXPECTED}") from None
        routes: dict[str, Route] = {}
        for source, value in members:
            if source in routes:
                raise OptionError(OPTION, f"source {source!r} is given twice; keep one rule")
            routes[source] = Route.parse(source, value)
        return cls(tuple(routes.values()))

    @property
    def text(self) -> str:
        """The rules with their per cent, as JSON: the same of equal mappings."""
        return json.dumps(
            [(str(each.rule), each.percent) for route in self.routes for each in route.choices]
        )

    @property
    def needs_identity(self) -> bool:
        """Whether some rule chooses by the row, not by its subject alone."""
        return any(route.needs_identity for route in self.routes)

    def map_rows(self, column: pa.DictionaryArray, identities: pa.Array | None = None) -> Mapped:
        """
        The subjects to publish on: mapped ones, or the same where no rule matches.

        Args:
            column: the subjects of the rows, STRING without nulls.
            identities: BINARY without nulls, of the rows; of a mapping with `needs_identity`.

        Raises:
            ValueError: There are none, and a rule chooses by them.
        """
        results = self.outcomes(column.dictionary.to_pylist())
        if identities is not None:
            pairs = zip(column.indices.to_pylist(), identities.to_pylist(), strict=True)
            results = [
                outcome.draw(identity) if type(outcome := results[code]) is Outcomes else outcome
                for code, identity in pairs
            ]
        kinds, faults = set(map(type, results)), None
        if Outcomes in kinds:
            raise ValueError("a rule chooses by the row; that takes the identities of the rows")
        if ValueError in kinds:
            whys = [str(each) if isinstance(each, ValueError) else None for each in results]
            faults = pa.array(whys, STRING)
            results = [each if isinstance(each, str) else None for each in results]
        mapped = pa.array(results, STRING).dictionary_encode()
        if identities is not None:
            return Mapped(mapped, faults)
        of_rows = column.indices  # a result is that of a subject
        return Mapped(mapped.take(of_rows), None if faults is None else faults.take(of_rows))

    def outcomes(self, names: Sequence[str]) -> list[Result | Outcomes]:
        """What becomes of each of these subjects, which are distinct, or may."""
        known = self._known
        new = [name for name in names if name not in known]
        if len(known) + len(new) > _KNOWN:
            known.clear()
            new = [*names]
        made = self._router.outcomes(new)
        if len(new) == len(names):
            known.update(zip(new[:_KNOWN], made, strict=False))
            return made
        known.update(zip(new, made, strict=True))
        return [known[name] for name in names]

    def explain(self, subject: str) -> Explanation:
        """
        Destinations of a subject, with their shares, and its rule.

        Raises:
            ValueError: Nothing can be published on this subject.
        """
        subjects.check_subject(subject)
        route = self._router.route_of(subject)
        if route is None:
            return Explanation(subject, None, (Share(subject, 100, subject),))
        shares = tuple(_share(subject, choice) for choice in route.choices)
        return Explanation(subject, route.source, shares)

    def __reduce__(self) -> tuple[type[SubjectMapping], tuple[tuple[Route, ...]]]:
        return SubjectMapping, (self.routes,)

    def __repr__(self) -> str:
        return f"<SubjectMapping {self.text}>"


LOST: Final = "lost"
"""In place of a destination: the message is not published at all."""


class Share(NamedTuple):
    """One destination and its part of the messages."""

    destination: str
    """The destination as the rule has it; the subject itself without a rule; or `LOST`."""

    percent: int

    subject: str | None
    """The mapped subject, with `[0-9]` for a random number; None if there can be none."""

    fault: str | None = None
    """Reason that there can be none."""


class Explanation(NamedTuple):
    """Destinations of one subject, and the rule that decides."""

    subject: str

    source: str | None
    """Source of the rule that applies; None: no rule matches, the subject stays the same."""

    shares: tuple[Share, ...]
    """They sum to 100."""


def explain_mapping(mapping_text: str, subject: str) -> Explanation:
    """
    Destinations of a subject under a mapping, with their shares, and its rule.

    Raises:
        OptionError: The mapping is not valid.
        ValueError: Nothing can be published on this subject.
    """
    return SubjectMapping.parse(mapping_text).explain(subject)


def _share(subject: str, choice: Choice) -> Share:
    rule, percent = choice.rule, choice.percent
    if rule is None:
        return Share(LOST, percent, None)
    try:
        becomes = rule.apply(subject, lambda random: f"[0-{random.span - 1}]")
    except ValueError as error:
        return Share(rule.destination, percent, None, str(error))
    return Share(rule.destination, percent, becomes)
