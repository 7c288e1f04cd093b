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

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, STRING, offsets
from ..errors import OptionError
from ..subjects import (
    ANY,
    PARTITION,
    REST,
    filter_fault,
    has_rest,
    is_literal,
    subject_fault,
    tokens,
    wildcard_positions,
)

OPTION: Final = "subjectMapping"
"""The option that rules are given by, for what errors say."""

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
_FEW: Final = 100
"""Fewer keys are hashed one by one: the kernels' calls cost as much."""
_SHORT: Final = 64
"""Bytes of a key, at most, if many are hashed at once: each waits for the longest."""
_PRIME: Final = pa.scalar(0x01000193, pa.uint32())
_INTEGER: Final = re.compile("([+-]?)0*([0-9]{1,19})")
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_COUNT: Final = range(_INT64.start, _INT32.stop)
"""Valid numbers of partitions or random values: the server reads 64 bits and keeps 32 of them."""


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

    @classmethod
    def counted(cls, count: int) -> Random:
        """By the number in the rule; the server takes 0 and below as well."""
        signed = (count + 2**31) % 2**32 - 2**31  # the server's int32(count)
        return cls(abs(signed) or 1)


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

        def fail(reason: str) -> OptionError:
            return OptionError(OPTION, f"rule {source!r} -> {destination!r}: {reason}")

        _check_source(source, fail)
        parsed = [_parse_token(n, token, fail) for n, token in enumerate(tokens(destination), 1)]
        _check_destination(source, destination, parsed, fail)
        pieces = [
            call if isinstance(call, str) else _resolve(number, call, source, fail)
            for number, call in enumerate(parsed, 1)
        ]
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
        if (fault := _cut_fault(result)) is None:
            return made if self.is_random else result
        shown = result.encode("utf-8", "surrogateescape") if _HALF.search(result) else result
        return ValueError(f"{self} makes of {subject!r} the invalid subject {shown!r}: {fault}")

    def __str__(self) -> str:
        return f"rule {self.source!r} -> {self.destination!r}"


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash, the server's for `partition`."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def numbers_of(keys: Sequence[str], buckets: int) -> list[str]:
    """The partition of each of some keys; of many short ones, byte by byte over all at once."""
    if len(keys) < _FEW or max(map(len, keys)) > _SHORT:
        hashes = (fnv1a32(key.encode("utf-8", "surrogateescape")) for key in keys)
        return [str(each % buckets) for each in hashes]
    column = pa.array(keys, STRING).cast(BINARY)
    starts, sizes = offsets(column).slice(0, len(keys)), pc.binary_length(column)
    text = pa.Array.from_buffers(pa.uint8(), column.buffers()[2].size, [None, column.buffers()[2]])
    state = pa.repeat(pa.scalar(0x811C9DC5, pa.uint32()), len(keys))
    shortest, longest = (pc.min_max(sizes)[name].as_py() for name in ("min", "max"))
    for index in range(longest):
        at = pc.min_element_wise(pc.add(starts, index), len(text) - 1)
        hashed = pc.multiply(pc.bit_wise_xor(text.take(at), state), _PRIME)  # wraps, as it should
        state = hashed if index < shortest else pc.if_else(pc.greater(sizes, index), hashed, state)
    by = pa.scalar(buckets, pa.uint32())
    numbers = pc.subtract(state, pc.multiply(pc.divide(state, by), by))
    partitions: list[str] = numbers.cast(STRING).to_pylist()
    return partitions


def partition_of(key: Iterable[str], count: int) -> int:
    """
    The partition of a key, as the server's `partition(count, …)`.

    The tokens are hashed without a separator, so that `["foo", "bar"]` and `["fo", "obar"]` share
    a partition; a whole subject, dots included, is a key as well. A count of 0 gives 0; one below
    0 counts as 2³² less its size. Surrogate escapes hash as the bytes they stand for.
    """
    return int(Partition(count, ()).of(["".join(key)], ())[0])


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
            count = _integer(call.arguments[0], _COUNT)
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


def _cut_fault(subject: str) -> str | None:
    if _HALF.search(subject):
        return "a character is cut in two"
    return subject_fault(subject)


# ── parsing ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Call:
    """A destination token that looks like a function; `name` is "" if the server has none such."""

    token: str
    name: str
    arguments: tuple[str, ...]


_Failure: TypeAlias = Callable[[str], OptionError]
"""Makes the errors of one rule."""


def _call(token: str) -> _Call | None:
    """The function a destination token calls, or None for a literal or a wildcard token."""
    if token.startswith("$"):
        # "other things rely on tokens starting with $ so not an error just leave it as is"
        digits = token[1:]
        if " " in digits or _integer(digits, _INT64) is None:
            return None
        return _Call(token, "wildcard", (digits,))
    if len(token) > 4 and token.startswith("{{") and token.endswith("}}"):
        for name, pattern in _FUNCTIONS.items():
            if match := pattern.search(token):
                return _Call(token, name, tuple(_COMMA.split(match[1])))
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
    """A destination token as literal text or a call."""
    call = _call(token)
    if call is None:
        return token
    if not call.name:
        raise fail(
            f"unknown function in token {number} {token!r}; there are {', '.join(_FUNCTIONS)}"
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


def _resolve(number: int, call: _Call, source: str, fail: _Failure) -> Piece:
    """Check a call's arguments and turn wildcard numbers into token indexes."""
    where = f"in token {number} {call.token!r}"
    name, arguments = call.name, call.arguments
    if name in ("partition", "random"):
        if name == "random" and len(arguments) > 1:
            raise fail(f"too many arguments {where}; random takes how many numbers there are")
        count = _number(arguments[0], _COUNT, f"a number up to {_INT32[-1]}", where, fail)
        if name == "random":
            return Random.counted(count)
        wanted = [_wildcard_number(text, where, fail) for text in arguments[1:]]
        if is_literal(source):
            # The server drops the numbers, whatever they are, and hashes the whole subject.
            return Partition(count, ())
        return Partition(count, tuple(_token_index(n, source, where, fail) for n in wanted))
    takes = _TAKES.get(name, "the number of a wildcard and a size in bytes")
    needed = 1 if name == "wildcard" else 2
    if len(arguments) < needed or arguments == ("",):
        raise fail(f"not enough arguments {where}; {name} takes {takes}")
    if len(arguments) > needed:
        raise fail(f"too many arguments {where}; {name} takes {takes}")
    wildcard = _wildcard_number(arguments[0], where, fail)
    size, delimiter = 0, ""
    if name == "split":
        delimiter = arguments[1]
        if " " in delimiter:
            raise fail(f"invalid argument {delimiter!r} {where}; expected text without spaces")
    elif name != "wildcard":
        size = _number(arguments[1], _INT32, f"a size up to {_INT32[-1]}", where, fail)
    if is_literal(source):
        raise fail(f"wildcard index out of range {where}; the source has no wildcards")
    index = _token_index(wildcard, source, where, fail)
    return index if name == "wildcard" else TokenCut(name, index, size, delimiter)


_TAKES: Final = {
    "wildcard": "the number of a wildcard",
    "split": "the number of a wildcard and the text between the parts",
}


def _wildcard_number(text: str, where: str, fail: _Failure) -> int:
    return _number(text, _INT64, "the number of a wildcard", where, fail)


def _number(text: str, allowed: range, expected: str, where: str, fail: _Failure) -> int:
    number = _integer(text, allowed)
    if number is None:
        raise fail(f"invalid argument {text!r} {where}; expected {expected}")
    return number


def _token_index(number: int, source: str, where: str, fail: _Failure) -> int:
    positions = wildcard_positions(source)
    if number > len(positions):
        raise fail(
            f"wildcard index {number} out of range {where}; the source has {len(positions)} {ANY!r}"
        )
    # The server does not refuse 0 and below: they mean the first token of the subject.
    return positions[number - 1] if number > 0 else 0


def _integer(text: str, allowed: range) -> int | None:
    """An argument as Go's `strconv.Atoi` reads it after trimming spaces, if it is allowed."""
    match = _INTEGER.fullmatch(text.strip(" "))
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if value in allowed else None
