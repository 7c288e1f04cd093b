"""
What may become of one subject, and the draw of it for a row.

Rule 1: a draw is by the row's identity alone, so each attempt to write the row draws the same.

One hash of the identity is one large number. Its last two digits choose by weight; of what is left,
each `random` of the destination takes its share. So draws are as independent as digits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from xxhash import xxh3_64_intdigest

from .rule import Made, Random

Result: TypeAlias = str | ValueError | None
"""A subject; why there can be none; or None where the row is lost."""

_PERCENT: Final = 100
_STRIDE: Final = 37
"""From one of a hundred numbers to the next, so that all come, and not first those beside it."""


class Outcomes:
    """
    Destinations of one subject of which the row's identity chooses.

    Args:
        ends: where the share of each ends, in per cent, one behind the other.
        made: what each makes of the subject.
    """

    __slots__ = ("_ends", "_made")

    def __init__(self, ends: Sequence[int], made: Sequence[Made | ValueError | None]) -> None:
        self._ends = ends
        self._made = made

    def draw(self, identity: bytes) -> Result:
        """What becomes of a row."""
        return self._of(xxh3_64_intdigest(identity))

    def others(self, identity: bytes, weights: bool) -> Iterator[Result]:
        """
        What else the draw could make of a row, in the same order at every attempt.

        Args:
            weights: whether its destination is drawn again, not only each `random` of it.
        """
        if not weights and tuple not in map(type, self._made):
            return
        first = xxh3_64_intdigest(identity) % _PERCENT
        for turn in range(1, _PERCENT):
            percent = (first + turn * _STRIDE) % _PERCENT if weights else first
            number = xxh3_64_intdigest(identity, turn)
            yield self._of(number - number % _PERCENT + percent)

    def _of(self, number: int) -> Result:
        made = self._made[bisect_right(self._ends, number % _PERCENT)]
        if not isinstance(made, tuple):
            return made
        number //= _PERCENT
        texts: list[str] = []
        for piece in made:
            if isinstance(piece, Random):
                number, value = divmod(number, piece.span)
                texts.append(str(value))
            else:
                texts.append(piece)
        return ".".join(texts)
