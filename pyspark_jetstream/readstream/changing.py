"""
A query's way from one layout of its partitions to another, under the same checkpoint.

Both layouts are copies of one stream, or that stream itself. One message of it is the *cut*: the
old layout is read up to it, then the new one from behind it. It stands in the offsets that Spark
logs, so a run that is killed is taken up by the next one.

* *Drain*: batches of the old layout end at the cut at the latest.
* *Switch*: when nothing is left before the cut, a batch without rows begins in the old layout and
  ends in the new one. All rows of the old layout are in committed batches by then, and none of the
  new one is, so the order of each subject holds.

Must not know: the server. Where the cut is in each stream, `changeover` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..fetch.layout import Layout


@dataclass(frozen=True, slots=True)
class Change:
    """The layout that a query goes over to, and the message up to which it reads the old one."""

    to: Layout
    cut: Mapping[str, int]
    """By stream of either layout the last sequence up to the cut."""
    created: Mapping[str, str]
    """Creation times of the new layout's streams, by name."""

    def upto(self, of: Layout, sequences: Sequence[int]) -> tuple[int, ...]:
        """End of the old layout's read; a partition may stand behind it already."""
        return tuple(
            max(at, self.cut[partition.stream]) for partition, at in zip(of, sequences, strict=True)
        )

    @property
    def begins(self) -> tuple[int, ...]:
        """The query's start in the new layout, by partition."""
        return tuple(self.cut[partition.stream] for partition in self.to)
