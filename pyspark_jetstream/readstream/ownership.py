"""
When somebody else's pulls from a consumer of ours are an error.

The server does not say who pulls. What it says is compared with what this query knows of itself:

* the *metadata* of a consumer names the query that prepared it last, and a subject on which its
  driver answers as long as it lives;
* a *pin* that none of the query's attempts has announced is another client's;
* a pull that *waits* while no attempt runs is another client's, unless it is left over from an
  attempt that was cut off, which ends within `requestTimeout`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sight", "trespass"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of one consumer before a batch, while no attempt of the query runs."""

    pinned: str
    """The pinned client's id, "" when nobody is."""
    stranger: bool
    """Whether that id is known to be none of the query's attempts."""
    waiting: int
    """Pulls that are open."""
    waiting_for_s: float
    """Since when pulls were open at every look."""
    settles: bool
    """Whether a message that another client acknowledges is gone."""
    gap_s: float
    """Since the batch before was planned."""
    timeout_s: float
    """The consumer's `priority_timeout`."""
    age_s: float
    """Of this run: an attempt of the run before it may still be alive at first."""
    patience_s: float
    """After so long no attempt that was cut off still pulls."""


def trespass(sight: Sight) -> str | None:
    """
    Why the query cannot go on beside another client of its consumer; None when it can.

    Alone, a pin that lapses between batches costs nothing, because every attempt takes it anew. A
    stranger who came and went costs nothing either where nothing is acknowledged.
    """
    if sight.stranger and sight.age_s > sight.patience_s:
        lapsed = sight.gap_s > sight.timeout_s
        if lapsed or sight.waiting or sight.settles:
            why = (
                f": {sight.gap_s:.0f}s passed since the batch before, and a pin lasts"
                f" {sight.timeout_s:.0f}s (priorityTimeout). Set priorityTimeout above the"
                " trigger's interval, and"
                if lapsed
                else "."
            )
            return (
                f"another client is pinned, with id '{sight.pinned}', which none of this query's"
                f" attempts has{why} let no other client pull from this consumer, or give the query"
                " another name in option consumer"
            )
    if sight.waiting and sight.waiting_for_s > sight.patience_s:
        return (
            f"{sight.waiting} pulls of another client wait, and did each time in the last"
            f" {sight.waiting_for_s:.0f}s before a batch: it would be pinned, and take messages,"
            " whenever this query's pin ends (priorityTimeout"
            f" {sight.timeout_s:.0f}s, time between batches {sight.gap_s:.0f}s); let no other"
            " client pull from this consumer, or give the query another name in option consumer"
        )
    return None
