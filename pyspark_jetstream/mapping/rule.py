"""
One mapping rule: a source pattern, a destination, and the subject it makes of a subject.

Rule 1: for every rule accepted here the result equals the one nats-server 2.15.1 computes in a
stream's `subject_transform` (src: subject_transform.go; held by `tests/live`), but for `random`; a
rule the server rejects is rejected, naming rule and token.
Rule 2: this module performs no I/O, reads no clock, and sees one subject at a time.

In the destination a token may be one of the server's functions, where `n` counts the `*` of the
source from 1:

| token | becomes |
|---|---|
| `$n`, `{{wildcard(n)}}` | the n-th `*` |
| `{{partition(count, i, j…)}}` | a number below `count`, by the FNV-1a hash of those `*`, joined |
| `{{partition(count)}}` | the same by the whole subject |
| `{{split(n, text)}}` | the n-th `*`, cut wherever it holds `text`, without the empty parts |
| `{{splitFromLeft(n, size)}}`, `{{splitFromRight(n, size)}}` | cut once, `size` bytes from there |
| `{{sliceFromLeft(n, size)}}`, `{{sliceFromRight(n, size)}}` | cut into parts of `size` bytes |
| `{{left(n, size)}}`, `{{right(n, size)}}` | its first or last `size` bytes |
| `{{random(count)}}` | a number below `count` |

A function is an entire token: `x{{wildcard(1)}}` is literal text, as for the server.

**Where this differs from the server.** `random` is drawn from the identity of the row, so that a
retried task draws the same; as uniform as the server's, not the same numbers. Sizes count bytes,
so a cut can leave half a character, and a `split` an empty token (`--a` at `-`) or a wildcard
(`a-*`): the server stores such a subject or drops the message, here it is an error.
Three things the server takes are refused, because each is a mistake: an empty destination, control
characters, and a source token such as `*a` (elsewhere a literal, but in a transform the server lets
it match every token). An empty source is `>`, as in a stream's transform, though an account's
`mappings` refuse it.
In an account's `mappings`, the server hashes the empty string for `{{partition(n)}}` under a
source without wildcards; here, as in a stream, it is the whole subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, TypeAlias

from ..errors import OptionError
from ..subjects import (
    ANY,
    REST,
    filter_fault,
    has_rest,
    is_literal,
    subject_fault,
    tokens,
    wildcard_positions,
)
from .calls import COUNT, FUNCTIONS, INT32, INT64, Call, call_of, integer
from .hashes import numbers_of

OPTION: Final = "subjectMapping"
"""The option that rules are given by, for what errors say."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition number, written as a decimal token."""

    count: int
    """Number of partitions as the rule says it; `partition_of` explains 0 and below."""

    indexes: tuple[int, ...]
    """Tokens of the source subject to hash, from 0; empty for the whole subject."""

    def of(self, names: Sequence[str], tokens: Sequence[Sequence[str]]) -> list[str]:
        """The number of each of some subjects with these tokens."""
        keys: Iterable[str] = names
        if self.indexes:
            keys = map("".join, zip(*(tokens[i] for i in self.indexes), strict=True))
        # the server's uint32(int32(count)); 0 gives "0"
        buckets = self.count & 0xFFFFFFFF or 1
        return numbers_of(list(keys), buckets)


@dataclass(frozen=True, slots=True)
class Random:
    """A number drawn for the row, written as a decimal token."""

    span: int
    """The number drawn is below this."""


@dataclass(frozen=True, slots=True)
class TokenCut:
    """One or more tokens cut out of one token of the source subject."""

    function: str
    """`split`, `splitFromLeft`, `sliceFromRight`, `left`…"""

    index: int
    """Index of that token, from 0."""

    size: int = 0
    """In bytes; 0, below, or not below the token's own: the token stays whole."""

    delimiter: str = ""
    """Delimiter of `split`; an empty one stands between any two characters."""

    def of(self, token: str) -> str:
        """The token's cut; lone surrogates stand for the bytes of a cut character."""
        if self.function == "split":
            return _split(token, self.delimiter)
        raw = token.encode("utf-8", "surrogateescape")
        if not 0 < self.size < len(raw):
            return token
        return _CUTS[self.function](raw, self.size).decode("utf-8", "surrogateescape")


Piece = str | int | Partition | Random | TokenCut
"""A token of a destination: text, the token of the source with this index, or what is made."""

Made: TypeAlias = "str | tuple[str | Random, ...]"
"""What a rule makes of a subject: a subject, or its tokens and the numbers that a row draws."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One source pattern and its parsed destination."""

    source: str
    destination: str
    pieces: tuple[Piece, ...]
    """The tokens of the destination, without a final `>`."""

    rest: int | None
    """Index of the first source token that the final `>` carries over, if there is one."""

    is_random: bool = field(init=False)
    """Whether the result depends on more than the subject."""
    cuts: bool = field(init=False)
    """Whether tokens are cut, so that the result may be no subject."""

    def __post_init__(self) -> None:
        kinds = set(map(type, self.pieces))
        object.__setattr__(self, "is_random", Random in kinds)
        object.__setattr__(self, "cuts", TokenCut in kinds)

    @classmethod
    def parse(cls, source: str, destination: str) -> Rule:
        """
        Check one rule as the server would.

        Raises:
            OptionError: The server would refuse it, or it is one of the three mistakes above.
        """
        source = source or REST  # as in a stream's transform; an account's mappings refuse it
        try:
            pieces = _pieces(source, destination)
        except ValueError as error:
            problem = f"rule {source!r} -> {destination!r}: {error}"
            raise OptionError(OPTION, problem) from None
        if not has_rest(destination):
            return cls(source, destination, tuple(pieces), None)
        return cls(source, destination, tuple(pieces[:-1]), len(tokens(source)) - 1)

    def apply(self, subject: str, draw: Callable[[Random], str] | None = None) -> str:
        """
        The destination for a subject that the source is known to match.

        Args:
            draw: the text of a `random` token; without it a rule that has one cannot be applied.

        Raises:
            ValueError: The result is not a subject; names rule, subject and result.
        """
        (made,) = self.made([subject], [[token] for token in tokens(subject)])
        if isinstance(made, str):
            return made
        if isinstance(made, ValueError):
            raise made
        if draw is None:
            raise ValueError(f"{self} draws a number for each row, and there is no row")
        return ".".join(draw(each) if isinstance(each, Random) else each for each in made)

    def made(
        self, names: Sequence[str], tokens: Sequence[Sequence[str]]
    ) -> Sequence[Made | ValueError]:
        """
        What the rule makes of subjects that the source is known to match; an error where that is
        no subject.

        Args:
            tokens: theirs, by the token; each subject has as many.
        """
        columns: list[Iterable[str | Random]] = []
        for piece in self.pieces:
            if isinstance(piece, int):
                columns.append(tokens[piece])
            elif isinstance(piece, Partition):
                columns.append(piece.of(names, tokens))
            elif isinstance(piece, TokenCut):
                columns.append(map(piece.of, tokens[piece.index]))
            else:
                columns.append(repeat(piece, len(names)))
        if self.rest is not None:
            columns += tokens[self.rest :]
        made = zip(*columns, strict=True)
        if self.cuts:
            return [self._sound(name, each) for name, each in zip(names, made, strict=True)]
        return list(made if self.is_random else map(".".join, made))

    def _sound(self, subject: str, made: tuple[str | Random, ...]) -> Made | ValueError:
        """The result of a rule that cuts tokens; the error that it is no subject."""
        result = ".".join("0" if isinstance(each, Random) else each for each in made)
        is_half = _HALF.search(result) is not None
        fault = "a character is cut in two" if is_half else subject_fault(result)
        if fault is None:
            return made if self.is_random else result
        shown = result.encode("utf-8", "surrogateescape") if is_half else result
        return ValueError(f"{self} makes of {subject!r} the invalid subject {shown!r}: {fault}")

    def __str__(self) -> str:
        return f"rule {self.source!r} -> {self.destination!r}"


# ── cutting ─────────────────────────────────────────────────────────────────────────────────


def _slices(token: bytes, size: int, first: int) -> bytes:
    """Parts of `size` bytes, the first one shorter where `first` says so."""
    parts = [token[:first], *(token[i : i + size] for i in range(first, len(token), size))]
    return b".".join(part for part in parts if part)


_CUTS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "splitFromLeft": lambda token, size: token[:size] + b"." + token[size:],
    "splitFromRight": lambda token, size: token[:-size] + b"." + token[-size:],
    "sliceFromLeft": lambda token, size: _slices(token, size, 0),
    "sliceFromRight": lambda token, size: _slices(token, size, len(token) % size),
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}
_HALF: Final = re.compile("[\ud800-\udfff]")
"""A byte of a character that was cut in two."""


def _split(token: str, delimiter: str) -> str:
    """
    Splits like the server: a dot before each part with text, but not right after an empty
    beginning.
    """
    parts = token.split(delimiter) if delimiter else list(token)
    text = parts[0]
    for n, part in enumerate(parts[1:]):
        text += f".{part}" if part and (n > 0 or parts[0]) else part
    return text


# ── parsing ─────────────────────────────────────────────────────────────────────────────────


def _pieces(source: str, destination: str) -> list[Piece]:
    """
    The tokens of a destination, the final `>` as text.

    Raises:
        ValueError: The server would refuse the rule, or it is one of the three mistakes.
    """
    _check_source(source)
    parsed = [_parse_token(number, token) for number, token in enumerate(tokens(destination), 1)]
    _check_destination(source, destination, parsed)
    return [
        call if isinstance(call, str) else _resolve(number, call, source)
        for number, call in enumerate(parsed, 1)
    ]


def _check_source(source: str) -> None:
    if (fault := filter_fault(source)) is not None:
        raise ValueError(f"invalid source: {fault}")
    for number, token in enumerate(tokens(source), 1):
        if token.startswith(ANY) and token != ANY:
            raise ValueError(
                f"invalid source: token {number} {token!r} only starts with a wildcard;"
                f" write {ANY!r} or drop it"
            )


def _parse_token(number: int, token: str) -> str | Call:
    """A destination token as literal text or a call."""
    call = call_of(token)
    if call is None:
        return token
    if not call.name:
        raise ValueError(
            f"unknown function in token {number} {token!r}; there are {', '.join(FUNCTIONS)}"
        )
    return call


def _check_destination(source: str, destination: str, parsed: list[str | Call]) -> None:
    """Everything about the destination but the calls themselves, which may contain spaces."""
    literal = ".".join("x" if isinstance(piece, Call) else piece for piece in parsed)
    if (fault := filter_fault(literal)) is not None:
        raise ValueError(f"invalid destination: {fault}")
    if ANY in parsed:
        raise ValueError(
            f"invalid destination: token {parsed.index(ANY) + 1} is {ANY!r};"
            " name a wildcard of the source by {{wildcard(n)}} or $n"
        )
    if has_rest(source) != has_rest(destination):
        raise ValueError(f"source and destination must both end in {REST!r}, or neither")


def _resolve(number: int, call: Call, source: str) -> Piece:
    """Check a call's arguments and turn wildcard numbers into token indexes."""
    where = f"in token {number} {call.token!r}"
    name, arguments = call.name, call.arguments
    if name in ("partition", "random"):
        if name == "random" and len(arguments) > 1:
            raise ValueError(f"too many arguments {where}; random takes how many numbers there are")
        count = _number(arguments[0], COUNT, f"a number up to {INT32[-1]}", where)
        if name == "random":
            signed = (count + 2**31) % 2**32 - 2**31  # the server's int32(count)
            return Random(abs(signed) or 1)  # it takes 0 and below as well
        wanted = [_wildcard_number(text, where) for text in arguments[1:]]
        if is_literal(source):
            # The server drops the numbers, whatever they are, and hashes the whole subject.
            return Partition(count, ())
        return Partition(count, tuple(_token_index(n, source, where) for n in wanted))
    takes = _TAKES.get(name, "the number of a wildcard and a size in bytes")
    needed = 1 if name == "wildcard" else 2
    if len(arguments) < needed or arguments == ("",):
        raise ValueError(f"not enough arguments {where}; {name} takes {takes}")
    if len(arguments) > needed:
        raise ValueError(f"too many arguments {where}; {name} takes {takes}")
    wildcard = _wildcard_number(arguments[0], where)
    size, delimiter = 0, ""
    if name == "split":
        delimiter = arguments[1]
        if " " in delimiter:
            raise ValueError(f"invalid argument {delimiter!r} {where}; expected no spaces")
    elif name != "wildcard":
        size = _number(arguments[1], INT32, f"a size up to {INT32[-1]}", where)
    if is_literal(source):
        raise ValueError(f"wildcard index out of range {where}; the source has no wildcards")
    index = _token_index(wildcard, source, where)
    return index if name == "wildcard" else TokenCut(name, index, size, delimiter)


_TAKES: Final = {
    "wildcard": "the number of a wildcard",
    "split": "the number of a wildcard and the text between the parts",
}


def _wildcard_number(text: str, where: str) -> int:
    return _number(text, INT64, "the number of a wildcard", where)


def _number(text: str, allowed: range, expected: str, where: str) -> int:
    number = integer(text, allowed)
    if number is None:
        raise ValueError(f"invalid argument {text!r} {where}; expected {expected}")
    return number


def _token_index(number: int, source: str, where: str) -> int:
    positions = wildcard_positions(source)
    if number > len(positions):
        raise ValueError(
            f"wildcard index {number} out of range {where}; the source has {len(positions)} {ANY!r}"
        )
    # The server does not refuse 0 and below: they mean the first token of the subject.
    return positions[number - 1] if number > 0 else 0
