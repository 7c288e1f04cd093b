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
from .rule import OPTION, Random, Rule
from .text import read_mapping

_EXPECTED: Final = (
    'expected JSON such as {"orders.*": "orders.{{partition(8,1)}}.$1"}, or a mappings { … } block'
    " of nats-server"
)
_KNOWN: Final = 1 << 16
"""Upper bound of the subjects whose outcomes are kept, those met last."""


class Mapped(NamedTuple):
    """A column of subjects after the mapping."""

    subjects: pa.Array
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
        """The rules as JSON, and nothing but them; `parse` makes an equal mapping of it."""
        return json.dumps({route.source: route.entries for route in self.routes})

    @property
    def needs_identity(self) -> bool:
        """Whether some rule chooses by the row, not by its subject alone."""
        return any(route.needs_identity for route in self.routes)

    def map_subjects(self, names: pa.Array) -> Mapped:
        """
        The subjects to publish on: mapped ones, or the same where no rule matches.

        Args:
            names: STRING without nulls; of a mapping without `needs_identity`.
        """
        return _mapped(self.outcomes(names.to_pylist()))

    def map_rows(self, column: pa.DictionaryArray, identities: pa.Array) -> Mapped:
        """
        Likewise, row by row.

        Args:
            column: the subjects of the rows, STRING without nulls.
            identities: BINARY without nulls, of the rows.
        """
        known = self.outcomes(column.dictionary.to_pylist())
        pairs = zip(column.indices.to_pylist(), identities.to_pylist(), strict=True)
        return _mapped(
            [
                outcome.draw(identity) if type(outcome := known[code]) is Outcomes else outcome
                for code, identity in pairs
            ]
        )

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
        matching = list(self._router.matching(subject))
        if not matching:
            return Explanation(subject, None, (), Shares((), 100, 0))
        route = matching[0]
        return Explanation(
            subject,
            route.source,
            tuple(other.source for other in matching[1:]),
            _shares(subject, route.choices),
        )

    def __reduce__(self) -> tuple[type[SubjectMapping], tuple[tuple[Route, ...]]]:
        return SubjectMapping, (self.routes,)

    def __repr__(self) -> str:
        return f"<SubjectMapping {self.text}>"


class Share(NamedTuple):
    """One destination and its part of the messages."""

    destination: str
    """The destination as the rule has it."""

    percent: int

    subject: str | None
    """The mapped subject, with `[0-9]` for a random number; None if there can be none."""

    fault: str | None = None
    """Reason that there can be none."""


class Shares(NamedTuple):
    """Destinations of the messages; their shares sum to 100."""

    destinations: tuple[Share, ...]

    kept: int
    """Per cent that stay on their subject, because the weights leave them over."""

    lost: int
    """Per cent that are not published at all."""


class Explanation(NamedTuple):
    """Destinations of one subject, and the rule that decides."""

    subject: str

    source: str | None
    """Source of the rule that applies; None: no rule matches, the subject stays the same."""

    competitors: tuple[str, ...]
    """Sources of the rules that match as well, in the order in which they would apply."""

    shares: Shares


def _mapped(results: Sequence[Result | Outcomes]) -> Mapped:
    """
    Raises:
        ValueError: Of some the row would have to choose.
    """
    kinds = set(map(type, results))
    if Outcomes in kinds:
        raise ValueError("a rule chooses by the row; that takes the identities of the rows")
    if ValueError not in kinds:
        return Mapped(pa.array(results, STRING), None)
    faults = [str(each) if isinstance(each, ValueError) else None for each in results]
    sound = [each if isinstance(each, str) else None for each in results]
    return Mapped(pa.array(sound, STRING), pa.array(faults, STRING))


def explain_mapping(mapping_text: str, subject: str) -> Explanation:
    """
    Destinations of a subject under a mapping, with their shares, and its rule.

    Raises:
        OptionError: The mapping is not valid.
        ValueError: Nothing can be published on this subject.
    """
    return SubjectMapping.parse(mapping_text).explain(subject)


def _shares(subject: str, choices: tuple[Choice, ...]) -> Shares:
    destinations: list[Share] = []
    kept = 0
    for choice in choices:
        if choice.rule is None:
            continue
        share = _share(subject, choice.rule, choice.percent)
        if choice.kept and share.subject == subject:
            kept = choice.percent
        else:
            destinations.append(share)
    lost = 100 - kept - sum(share.percent for share in destinations)
    return Shares(tuple(destinations), kept, lost)


def _share(subject: str, rule: Rule, percent: int) -> Share:
    try:
        return Share(rule.destination, percent, rule.apply(subject, _shown_range))
    except ValueError as error:
        return Share(rule.destination, percent, None, str(error))


def _shown_range(random: Random) -> str:
    return f"[0-{random.span - 1}]"
