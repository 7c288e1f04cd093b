"""
Subject mapping: the server's subject transforms, computed before a row is published.

Rule 1: for every rule accepted here the result equals the one nats-server 2.15 computes in a
stream's `subject_transform`; a rule the server rejects is rejected, naming rule and token.
Rule 2: this module performs no I/O, reads no clock, and sees subjects, never rows.

A rule is `source pattern -> destination`. In the destination a token may be `$n` or
`{{wildcard(n)}}`, the n-th `*` of the source; `{{partition(n, i, j…)}}`, a number below n
chosen by the listed `*` tokens; or `{{partition(n)}}`, chosen by the whole subject.
A function is an entire token: `x{{wildcard(1)}}` is literal text, as for the server.

**Precedence.** The most specific rule wins. At the first token where two sources differ in
kind, literal precedes `*` precedes `>`; so a source without wildcards always wins. The server
leaves the order of overlapping mappings undefined; ours does not depend on how they are written.

**Limits.** `split`, `splitFromLeft`, `splitFromRight`, `sliceFromLeft`, `sliceFromRight`,
`left`, `right`, `random` and weighted destinations are recognised and refused.
Three things the server takes are refused as well, because each is a mistake: an empty source or
destination, control characters, and a source token such as `*a` (elsewhere a literal, but
in a transform the server lets it match every token).
In an account's `mappings`, the server hashes the empty string for `{{partition(n)}}` under a
source without wildcards; here, as in a stream, it is the whole subject.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import OptionError
from .subjects import (
    ANY,
    PARTITION,
    REST,
    filter_fault,
    has_rest,
    is_literal,
    matcher,
    specificity,
    tokens,
    wildcard_positions,
)

__all__ = [
    "Partition",
    "Rule",
    "SubjectMapping",
    "Wildcard",
    "find_partition",
    "fnv1a32",
    "partition_of",
]

CACHE_LIMIT: Final = 100_000
"""Distinct subjects `SubjectMapping.map_many` remembers before it forgets them all."""

_OPTION: Final = "subjectMapping"

# The server's patterns: only the camel letters may vary, and the match is not anchored, so that
# `{{a}}{{wildcard(1)}}` is `wildcard(1)`. Go's `\s` is these five characters. The order is the
# server's order of trial.
_SPACE: Final = "[\t\n\f\r ]*"
_FUNCTIONS: Final = {
    name: re.compile(rf"{{{{{_SPACE}{pattern}{_SPACE}\((.*)\){_SPACE}}}}}")
    for name, pattern in (
        ("wildcard", "[wW]ildcard"),
        ("partition", "[pP]artition"),
        ("splitFromLeft", "[sS]plit[fF]rom[lL]eft"),
        ("splitFromRight", "[sS]plit[fF]rom[rR]ight"),
        ("sliceFromLeft", "[sS]lice[fF]rom[lL]eft"),
        ("sliceFromRight", "[sS]lice[fF]rom[rR]ight"),
        ("right", "[rR]ight"),
        ("left", "[lL]eft"),
        ("split", "[sS]plit"),
        ("random", "[rR]andom"),
    )
}
_ONE_TOKEN: Final = frozenset({"wildcard", "partition", "left", "right", "random"})
_COMMA: Final = re.compile(",[\t\n\f\r ]*")
_INTEGER: Final = re.compile("([+-]?)0*([0-9]{1,19})")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Wildcard:
    """Copies one token of the source subject."""

    index: int
    """Index of that token, from 0."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition number, written as a decimal token."""

    count: int
    """Number of partitions as the rule says it; `partition_of` explains 0 and below."""

    indexes: tuple[int, ...]
    """Tokens of the source subject to hash, from 0; empty for the whole subject."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One source pattern and its parsed destination."""

    source: str
    destination: str
    pieces: tuple[str | Wildcard | Partition, ...]
    """What each destination token becomes, without a final `>`."""

    rest: int | None
    """Index of the first source token that the final `>` carries over, if there is one."""

    @classmethod
    def parse(cls, source: str, destination: str) -> Rule:
        """
        Check one rule as the server would.

        Raises:
            OptionError: The rule is not one, or uses what this version does not support.
        """
        fail = _Failure(source, destination)
        _check_source(source, fail)
        parsed = [_parse_token(n, token, fail) for n, token in enumerate(tokens(destination), 1)]
        _check_destination(source, destination, parsed, fail)
        pieces = tuple(
            _resolve(number, call, source, fail) if isinstance(call, _Call) else call
            for number, call in enumerate(parsed, 1)
        )
        if not has_rest(destination):
            return cls(source, destination, pieces, None)
        return cls(source, destination, pieces[:-1], len(tokens(source)) - 1)

    def apply(self, subject: str) -> str:
        """The destination for a subject that the source is known to match."""
        source = tokens(subject)
        mapped: list[str] = []
        for piece in self.pieces:
            if isinstance(piece, str):
                mapped.append(piece)
            elif isinstance(piece, Wildcard):
                mapped.append(source[piece.index])
            elif piece.indexes:
                mapped.append(str(partition_of((source[i] for i in piece.indexes), piece.count)))
            else:
                mapped.append(str(partition_of(subject, piece.count)))
        if self.rest is not None:
            mapped += source[self.rest :]
        return ".".join(mapped)


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """
    An ordered set of rules; maps each subject once, by the first rule that matches it.

    Equal if the rules are equal. Pickles without its cache. A subject is not checked here
    (`subjects.check_subject` does that): one with an empty token matches no rule.
    """

    rules: tuple[Rule, ...]
    """Most specific first."""

    _literal: dict[str, Rule] = field(init=False, repr=False, compare=False)
    _patterns: tuple[tuple[Callable[[str], bool], Rule], ...] = field(
        init=False, repr=False, compare=False
    )
    _cache: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        ordered = sorted(self.rules, key=lambda rule: (specificity(rule.source), rule.source))
        wild = [rule for rule in ordered if not is_literal(rule.source)]
        literal = {rule.source: rule for rule in ordered if is_literal(rule.source)}
        object.__setattr__(self, "rules", tuple(ordered))
        object.__setattr__(self, "_literal", literal)
        object.__setattr__(self, "_patterns", tuple((matcher(r.source), r) for r in wild))

    @classmethod
    def parse(cls, text: str) -> SubjectMapping:
        """
        Read the rules from a JSON object `{"source pattern": "destination", …}`.

        Raises:
            OptionError: The text is not such an object, or a rule in it is not valid.
        """
        try:
            pairs = json.loads(text, object_pairs_hook=_Pairs)
        except json.JSONDecodeError as error:
            raise OptionError(_OPTION, f"{_EXPECTED}, but it is not JSON: {error}") from error
        if not isinstance(pairs, _Pairs):
            raise OptionError(_OPTION, f"{_EXPECTED}, got a JSON {_json_type(pairs)}")
        rules: dict[str, Rule] = {}
        for source, destination in pairs:
            if not isinstance(destination, str):
                raise OptionError(_OPTION, _not_a_destination(source, destination))
            if source in rules:
                raise OptionError(_OPTION, f"source {source!r} is given twice; keep one rule")
            rules[source] = Rule.parse(source, destination)
        return cls(tuple(rules.values()))

    def map(self, subject: str) -> str:
        """The subject to publish on: the mapped one, or the same if no rule matches."""
        if (rule := self._literal.get(subject)) is not None:
            return rule.apply(subject)
        for matches, rule in self._patterns:
            if matches(subject):
                return rule.apply(subject)
        return subject

    def map_many(self, subjects: Iterable[str]) -> list[str]:
        """As `map` for each subject, in order; computes each distinct subject once."""
        cache = self._cache
        mapped: list[str] = []
        for subject in subjects:
            destination = cache.get(subject)
            if destination is None:
                if len(cache) >= CACHE_LIMIT:
                    cache.clear()
                destination = cache[subject] = self.map(subject)
            mapped.append(destination)
        return mapped

    def __reduce__(self) -> tuple[type[SubjectMapping], tuple[tuple[Rule, ...]]]:
        return SubjectMapping, (self.rules,)

    def __repr__(self) -> str:
        rules = ", ".join(f"{rule.source} -> {rule.destination}" for rule in self.rules)
        return f"<SubjectMapping {rules or 'without rules'}>"


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash, the server's for `partition`."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def partition_of(key: Iterable[str], count: int) -> int:
    """
    The partition of a key, as the server's `partition(count, …)`.

    The tokens are hashed without a separator, so that `["foo", "bar"]` and `["fo", "obar"]` share
    a partition; a whole subject, dots included, is a key as well. A count of 0 gives 0; one below
    0 counts as 2³² less its size. Surrogate escapes hash as the bytes they stand for.
    """
    buckets = count & 0xFFFFFFFF  # the server's uint32(int32(count))
    if buckets == 0:
        return 0
    return fnv1a32("".join(key).encode("utf-8", "surrogateescape")) % buckets


def find_partition(destination: str) -> tuple[int, str] | None:
    """
    The layout that a transform's destination creates: partition count and subject template.

    `flights.{{partition(4,1)}}.$1.>` gives `(4, "flights.{partition}.*.>")`. Of several partition
    tokens the first is taken. Where a function after it may yield more than one token (the
    split and slice family, or one we do not know), the template ends in `>` there.

    Returns None where no layout can be told: no `partition` token, a count below 1, or a token
    of unknown width before it.
    """
    count: int | None = None
    template: list[str] = []
    for token in tokens(destination):
        call = _call(token)
        if call is None:
            template.append(token)
        elif call.name == "partition" and count is None:
            count = _integer(call.arguments[0], _INT32_MAX)
            if count is None or count < 1:
                return None
            template.append(PARTITION)
        elif call.name in _ONE_TOKEN:
            template.append(ANY)
        elif count is None:
            return None
        else:
            template.append(REST)
            break
    return None if count is None else (count, ".".join(template))


_EXPECTED: Final = (
    'expected a JSON object {"source pattern": "destination", …}'
    ' such as {"orders.*": "orders.{{partition(8,1)}}.$1"}'
)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that a repeated source is seen."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A destination token that looks like a function; `name` is "" if the server has none such."""

    token: str
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Makes the errors of one rule."""

    source: str
    destination: str

    def __call__(self, reason: str) -> OptionError:
        return OptionError(_OPTION, f"rule {self.source!r} -> {self.destination!r}: {reason}")


def _call(token: str) -> _Call | None:
    """The function a destination token calls, or None for a literal or a wildcard token."""
    if token.startswith("$"):
        # "other things rely on tokens starting with $ so not an error just leave it as is"
        digits = token[1:]
        if " " in digits or _integer(digits, _INT64_MAX) is None:
            return None
        return _Call(token, "wildcard", (digits,))
    if len(token) > 4 and token.startswith("{{") and token.endswith("}}"):
        for name, pattern in _FUNCTIONS.items():
            if found := pattern.search(token):
                return _Call(token, name, tuple(_COMMA.split(found[1])))
        return _Call(token, "", ())
    return None


def _check_source(source: str, fail: _Failure) -> None:
    if (fault := filter_fault(source)) is not None:
        raise fail(f"invalid source: {fault}")
    for number, token in enumerate(tokens(source), 1):
        if token.startswith(ANY) and token != ANY:
            raise fail(
                f"invalid source: token {number} {token!r} only starts with a wildcard;"
                f" write {ANY!r} or drop it"
            )


def _parse_token(number: int, token: str, fail: _Failure) -> str | _Call:
    """A destination token as literal text or a supported call."""
    call = _call(token)
    if call is None:
        return token
    if not call.name:
        raise fail(f"unknown function in token {number} {token!r}; known: wildcard, partition")
    if call.name not in ("wildcard", "partition"):
        raise fail(
            f"function {call.name!r} in token {number} {token!r} is not supported by this version"
            " yet; use wildcard and partition, or let the stream's subject_transform do it"
        )
    return call


def _check_destination(
    source: str, destination: str, parsed: list[str | _Call], fail: _Failure
) -> None:
    """Everything about the destination but the calls themselves, which may contain spaces."""
    literal = ".".join("x" if isinstance(piece, _Call) else piece for piece in parsed)
    if (fault := filter_fault(literal)) is not None:
        raise fail(f"invalid destination: {fault}")
    if ANY in parsed:
        raise fail(
            f"invalid destination: token {parsed.index(ANY) + 1} is {ANY!r};"
            " name a wildcard of the source by {{wildcard(n)}} or $n"
        )
    if has_rest(source) != has_rest(destination):
        raise fail(f"source and destination must both end in {REST!r}, or neither")


def _resolve(number: int, call: _Call, source: str, fail: _Failure) -> Wildcard | Partition:
    """Check a call's arguments and turn wildcard numbers into token indexes."""
    where = f"in token {number} {call.token!r}"
    if call.name == "wildcard":
        if call.arguments == ("",):
            raise fail(f"not enough arguments {where}; wildcard takes the number of a wildcard")
        if len(call.arguments) > 1:
            raise fail(f"too many arguments {where}; wildcard takes the number of a wildcard")
        wanted = _wildcard_numbers(call.arguments, where, fail)
        if is_literal(source):
            raise fail(f"wildcard index out of range {where}; the source has no wildcards")
        return Wildcard(_token_indexes(wanted, source, where, fail)[0])
    count = _integer(call.arguments[0], _INT32_MAX)
    if count is None:
        raise fail(
            f"invalid argument {call.arguments[0]!r} {where};"
            f" expected a number of partitions up to {_INT32_MAX}"
        )
    wanted = _wildcard_numbers(call.arguments[1:], where, fail)
    if is_literal(source):
        # The server drops the numbers, whatever they are, and hashes the whole subject.
        return Partition(count, ())
    return Partition(count, _token_indexes(wanted, source, where, fail))


def _wildcard_numbers(arguments: tuple[str, ...], where: str, fail: _Failure) -> list[int]:
    numbers = []
    for text in arguments:
        number = _integer(text, _INT64_MAX)
        if number is None:
            raise fail(f"invalid argument {text!r} {where}; expected the number of a wildcard")
        numbers.append(number)
    return numbers


def _token_indexes(numbers: list[int], source: str, where: str, fail: _Failure) -> tuple[int, ...]:
    positions = wildcard_positions(source)
    for number in numbers:
        if number > len(positions):
            raise fail(
                f"wildcard index {number} out of range {where};"
                f" the source has {len(positions)} {ANY!r}"
            )
    # The server does not refuse 0 and below: they mean the first token of the subject.
    return tuple(positions[number - 1] if number > 0 else 0 for number in numbers)


def _integer(text: str, largest: int) -> int | None:
    """An argument as Go's `strconv.Atoi` reads it after trimming spaces, if up to `largest`."""
    found = _INTEGER.fullmatch(text.strip(" "))
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if -_INT64_MAX - 1 <= value <= largest else None


def _not_a_destination(source: str, value: Any) -> str:
    if isinstance(value, list | _Pairs):
        return (
            f"rule {source!r}: weighted destinations are not supported by this version yet;"
            " give one destination string"
        )
    return f"rule {source!r}: expected a destination string, got a JSON {_json_type(value)}"


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, _Pairs):
        return "object"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names[type(value)]
