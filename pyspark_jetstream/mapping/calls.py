"""
Function calls in the destination of a rule: which token is one, and of what.

Rule 1: this module performs no I/O and checks no rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ..subjects import ANY, PARTITION, REST, tokens

# The server's patterns: only the camel letters may vary, and the match is not anchored, so that
# `{{a}}{{wildcard(1)}}` is `wildcard(1)`. Go's `\s` is these five characters. The order is the
# server's order of trial.
_SPACE: Final = "[\t\n\f\r ]*"
FUNCTIONS: Final = {
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
INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)
COUNT: Final = range(INT64.start, INT32.stop)
"""Valid numbers of partitions or random values: the server reads 64 bits and keeps 32 of them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A destination token that looks like a function; `name` is "" if the server has none such."""

    token: str
    name: str
    arguments: tuple[str, ...]


def call_of(token: str) -> Call | None:
    """The function a destination token calls, or None for a literal or a wildcard token."""
    if token.startswith("$"):
        # "other things rely on tokens starting with $ so not an error just leave it as is"
        digits = token[1:]
        if " " in digits or integer(digits, INT64) is None:
            return None
        return Call(token, "wildcard", (digits,))
    if len(token) > 4 and token.startswith("{{") and token.endswith("}}"):
        for name, pattern in FUNCTIONS.items():
            if match := pattern.search(token):
                return Call(token, name, tuple(_COMMA.split(match[1])))
        return Call(token, "", ())
    return None


def integer(text: str, allowed: range) -> int | None:
    """An argument as Go's `strconv.Atoi` reads it after trimming spaces, if it is allowed."""
    match = _INTEGER.fullmatch(text.strip(" "))
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if value in allowed else None


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
        call = call_of(token)
        if call is None:
            template.append(token)
        elif call.name == "partition" and count is None:
            count = integer(call.arguments[0], COUNT)
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
