"""
Rows whose subject is paused, sent to another subject that the mapping could have drawn as well.

Rule 1: only a draw is drawn again: of `random`, and with `throttleReroute` of weights. What the
subject alone decides, `partition` above all, stays: another partition would move a key.
Rule 2: a row keeps its stream, and moves only where no later message replaces it. So an id that an
earlier attempt stored is found, whatever subject that attempt had drawn.
Rule 3: no I/O and no clock, but that `targets` looks up streams it has not met.

PIP-385 has producers skip throttled partitions in their default round-robin; `random` is what comes
near it here. Weights are meant: a canary of 2 per cent that gets the other 98 is worse than
waiting, so weights are drawn again only with the option.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import STRING
from ..mapping.outcomes import Outcomes

if TYPE_CHECKING:
    from ..mapping.subjectmapping import SubjectMapping
    from ..publish.context import WriteContext

_VAIN: Final = 10_000
"""After so many draws in vain in a block its rows stay: where all is paused, each would cost 99."""


@dataclass(slots=True)
class Reroutes:
    """Destinations of rows instead of paused subjects."""

    mapping: SubjectMapping
    weights: bool
    """Whether weights are drawn again, too."""
    context: WriteContext
    """It has the streams, which are known, and what is paused when a block is made."""
    rows: int = 0
    """Number of rows that went elsewhere."""

    def of(
        self, column: pa.DictionaryArray, identities: pa.Array, mapped: pa.DictionaryArray
    ) -> pa.DictionaryArray:
        """
        Destination of each row: as mapped, unless that is paused and something else is not.

        Args:
            column: the rows' subjects before the mapping.
            identities: BINARY, of the rows.
            mapped: STRING, what the mapping made of them; null where a row is lost.
        """
        said = self.context.is_paused
        if said is None:
            return mapped
        is_paused, place = cache(said), cache(self._place)
        names = pa.array([is_paused(name) for name in mapped.dictionary.to_pylist()], pa.bool_())
        paused = pc.fill_null(names.take(mapped.indices), False)
        moved, vain = [], 0
        rows = (column.indices, identities, mapped)
        known = self.mapping.outcomes(column.dictionary.to_pylist())
        for code, identity, old in zip(
            *(each.filter(paused).to_pylist() for each in rows), strict=True
        ):
            moved.append(old)
            outcomes = known[code]
            if vain >= _VAIN or not isinstance(outcomes, Outcomes) or place(old) is None:
                continue
            for new in outcomes.others(identity, self.weights):
                if isinstance(new, str) and not is_paused(new) and place(new) == place(old):
                    moved[-1] = new
                    self.rows += 1
                    break
                vain += 1
        if not moved:
            return mapped
        subjects = pc.replace_with_mask(mapped.cast(STRING), paused, pa.array(moved, STRING))
        return subjects.dictionary_encode()

    def _place(self, subject: str) -> int | None:
        """The stream that takes a subject; None where a row of it is not found on another one."""
        targets = self.context.targets
        place: int | None = targets.of(pa.array([subject]))[0].as_py()
        return None if place is None or targets[place].replaces else place
