"""
Rows whose subject is paused, sent to another subject that the mapping could have drawn as well.

Rule 1: only a draw is drawn again: of `random`, and with `throttleReroute` of weights. What the
subject alone decides, `partition` above all, stays: another partition would move a key.
Rule 2: where it is known which stream takes a subject, a row keeps its stream, and moves only if
that never replaces a message by a later one. So an id that an earlier attempt stored is found,
whatever subject that attempt had drawn.
Rule 3: no I/O and no clock, but that `targets` looks up streams it has not met.

PIP-385 has producers skip throttled partitions in their default round-robin; `random` is what comes
near it here. Weights are meant: a canary of 2 per cent that gets the other 98 is worse than
waiting, so weights are drawn again only with the option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..outbox.targets import Targets

if TYPE_CHECKING:
    from ..mapping.subjectmapping import SubjectMapping
    from ..publish.context import RowSignals

_VAIN: Final = 10_000
"""
After so many draws in vain in a row, the other rows of a block stay as they are: where all is
paused, each row would cost a hundred times what it costs to map it.
"""


class Reroutes:
    """
    Destinations of rows instead of paused subjects.

    Args:
        weights: whether weights are drawn again, too.
        targets: the streams, where they are known.
        cluster: name of the cluster of the server.
        signals: what is paused when a block is made.
    """

    def __init__(
        self,
        mapping: SubjectMapping,
        weights: bool,
        targets: Targets,
        cluster: str | None,
        signals: RowSignals,
    ) -> None:
        self.rows = 0
        """Number of rows that went elsewhere."""
        self.signals = signals
        self._mapper = mapping.mapper(cluster)
        self._weights = weights
        self._targets = targets
        self._places: dict[str, int | None] = {}
        self._vain = 0

    def of(self, subjects: pa.Array, identities: pa.Array, mapped: pa.Array) -> pa.Array:
        """
        Destination of each row: as mapped, unless that is paused and something else is not.

        Args:
            subjects: STRING, before the mapping.
            identities: BINARY, of the rows.
            mapped: STRING, what the mapping made of them; null where a row is lost.
        """
        if (said := self.signals.is_paused) is None:
            return mapped
        is_paused = cache(said)
        distinct = pc.unique(mapped).drop_null().to_pylist()
        paused = [subject for subject in distinct if is_paused(subject)]
        if not paused:
            return mapped
        self._places.clear()
        self._vain = 0
        mask = pc.is_in(mapped, pa.array(paused, pa.string()))
        rerouted = [
            self._another(subject, identity, old, is_paused) or old
            for subject, identity, old in zip(
                *(column.filter(mask).to_pylist() for column in (subjects, identities, mapped)),
                strict=True,
            )
        ]
        return pc.replace_with_mask(mapped, mask, pa.array(rerouted, pa.string()))

    def _another(
        self, subject: str, identity: bytes, old: str, is_paused: Callable[[str], bool]
    ) -> str | None:
        def is_wanted(new: str) -> bool:
            wanted = not is_paused(new) and self._goes_with(new, old)
            self._vain = 0 if wanted else self._vain + 1
            return wanted

        if self._vain >= _VAIN:
            return None

        rerouted = self._mapper.another(subject, identity, is_wanted, self._weights)
        self.rows += rerouted is not None
        return rerouted

    def _goes_with(self, subject: str, other: str) -> bool:
        """Whether the same stream takes both and keeps them, as far as that is known."""
        if self._targets.is_blind:
            return True
        place = self._place(other)
        if place is None or place != self._place(subject):
            return False
        target = self._targets[place]
        return not target.replaces

    def _place(self, subject: str) -> int | None:
        if subject not in self._places:
            self._places[subject] = self._targets.of(pa.array([subject]))[0].as_py()
        return self._places[subject]
