"""
A query's turn: before each batch its driver asks a policy, may it run, and from where?

`Alone` is the policy of a query without a standby; `lease` has the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .offsets import Offset, is_initial

if TYPE_CHECKING:
    from ..tasks.rows import ReadTask


@dataclass(frozen=True, slots=True)
class BatchStart:
    """Start of the next batch."""

    offset: Offset
    resumed: tuple[int, ...]
    """Its sequences where the batch does not begin at the end of the last one; see `Offset`."""
    stay: dict[str, Any]
    """The answer to Spark where there is nothing behind it yet."""


class Alone:
    """The policy of a query that has no standby: it always reads, from where its checkpoint is."""

    holds = True
    may_skip_looks = True
    """Whether a batch may be planned by what was seen for the one before."""

    def take_turn(self, own: Offset, initial: bool, created: Mapping[str, str]) -> Offset | None:
        """Start of the next batch: `own`, the checkpoint's."""
        return own

    def start(self, asked: Mapping[str, Any], own: Offset, checked: Offset) -> BatchStart:
        """
        The beginning of the next batch.

        Args:
            asked: the offset in Spark's words.
            own: the offset that `asked` stands for.
            checked: where `take_turn` said, moved to where messages are still to be had.
        """
        if checked == own:
            return BatchStart(own, (), stay_of(asked, own))
        pairs = zip(checked.sequences, own.sequences, strict=True)
        back = any(now < before for now, before in pairs)  # before the end of the last batch
        resumed = checked.sequences if back else ()
        return BatchStart(checked, resumed, replace(checked, resumed=resumed).to_json())

    def waiting(self, asked: Mapping[str, Any], own: Offset, ends: bool) -> dict[str, Any]:
        """The answer to Spark while another query reads."""
        return stay_of(asked, own)

    def may_run(self, upto: Offset, is_empty: bool) -> bool:
        """Whether the batch that ends here may run, waiting for that if it has rows."""
        return True

    def is_past(self, upto: Offset) -> bool:
        """Whether all up to here is committed by another query: there is none."""
        return False

    def warm_ups(self, tasks: int) -> list[ReadTask]:
        """The tasks of a batch without rows."""
        return []

    def label(self, offset: Offset) -> str:
        """Label that tells the query's metrics from those of others with the same consumers."""
        return ""

    def report(self) -> dict[str, Any]:
        """Fields of the progress beside the partitions."""
        return {}

    def close(self) -> None:
        """Ends what the policy has under way."""


def stay_of(asked: Mapping[str, Any], own: Offset) -> dict[str, Any]:
    """The offset unchanged, as Spark compares the text; of the symbolic start what that means."""
    return own.to_json() if is_initial(asked) else dict(asked)
