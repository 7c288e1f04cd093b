"""
How often a search with a pattern looks at a byte: `re` itself does not tell.

A slow matcher that backtracks as `re` does, for what the package's patterns are made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_ONE = {codes.LITERAL, codes.NOT_LITERAL, codes.IN}
_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}
Then = Callable[[int], int | None]


def steps(pattern: re.Pattern[bytes], text: bytes) -> int:
    """Bytes looked at by a search for all matches in `text`, each as often as it was."""
    counter = _Counter(text)
    nodes = list(parser.parse(pattern.pattern, pattern.flags))
    at = 0
    while at <= len(text):
        end = counter.run(nodes, 0, at, lambda position: position)
        at = at + 1 if end is None else max(end, at + 1)
    return counter.steps


class _Counter:
    def __init__(self, text: bytes) -> None:
        self.steps = 0
        self._text = text

    def run(self, nodes: Sequence[Any], first: int, at: int, then: Then) -> int | None:
        """Where a match of the nodes from `first` on ends, if what follows matches, too."""
        while first < len(nodes) and nodes[first][0] in _ONE:
            if not self._is(nodes[first], at):
                return None
            first, at = first + 1, at + 1
        if first == len(nodes):
            return then(at)
        op, value = nodes[first]

        def rest(position: int) -> int | None:
            return self.run(nodes, first + 1, position, then)

        if op is codes.SUBPATTERN:
            return self.run(list(value[3]), 0, at, rest)
        if op is codes.ASSERT_NOT:
            found = self.run(list(value[1]), 0, at, lambda position: position)
            return None if found is not None else rest(at)
        assert op in _REPEATS, op
        minimum, maximum, inner = value[0], value[1], list(value[2])
        if len(inner) == 1 and inner[0][0] in _ONE:
            return self._repeat_one(op, minimum, maximum, inner[0], at, rest)
        assert op is codes.MIN_REPEAT, op

        def again(count: int, position: int) -> int | None:
            found = rest(position) if count >= minimum else None
            if found is None and count < int(maximum):
                return self.run(inner, 0, position, lambda end: again(count + 1, end))
            return found

        return again(0, at)

    def _repeat_one(
        self, op: Any, minimum: int, maximum: int, node: Any, at: int, rest: Then
    ) -> int | None:
        assert op is not codes.MIN_REPEAT
        count = 0
        while count < int(maximum) and self._is(node, at + count):
            count += 1
        if op is codes.POSSESSIVE_REPEAT:
            return rest(at + count) if count >= minimum else None
        while count >= minimum:
            found = rest(at + count)
            if found is not None:
                return found
            count -= 1
        return None

    def _is(self, node: Any, at: int) -> bool:
        self.steps += 1
        if at >= len(self._text):
            return False
        op, value = node
        byte = self._text[at]
        if op is codes.LITERAL:
            return bool(byte == value)
        if op is codes.NOT_LITERAL:
            return bool(byte != value)
        negated = value[0][0] is codes.NEGATE
        within = any(
            byte in b"0123456789" if what is codes.CATEGORY else byte == each
            for what, each in value[negated:]
        )
        return within is not negated
