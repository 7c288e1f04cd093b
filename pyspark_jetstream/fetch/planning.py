"""
Decisions of the read side: the end of a batch, its tasks, and the way each task reads.

Pure: numbers in, numbers out. What the numbers are is asked by `survey`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .. import subjects

DIRECT_COST: Final = 2.7
"""One message by batched direct get without a filter, in microseconds of the server's CPU."""

FILTERED_COST: Final = 50.0
"""One message where a wide filter is looked up subject by subject."""

NEAR_END: Final = 10_000
"""Sequences before the end of a stream within which its store finds the next match by a scan."""

FEW_SUBJECTS: Final = 32
"""Matching subjects up to which, about, the store looks the next match up as fast as by a scan."""


def share_records(available: Sequence[int], limit: int) -> list[int]:
    """
    Splits `limit` in proportion to what is available, as Kafka's source does: so partitions of
    steady rates go through a backlog together, and a watermark finds no rows of one late.

    Each that has messages gets one at least, so none starves; where more have some than `limit`,
    the sum exceeds it.
    """
    everything = sum(available)
    if everything <= limit:
        return list(available)
    granted, seen, shared = [], 0, 0
    for count in available:
        seen += count
        before, shared = shared, limit * seen // everything
        granted.append(max(min(1, count), shared - before))
    return granted


def next_cut(low: int, low_count: int, high: int, high_count: int, wanted: int) -> int:
    """
    The sequence to try next when `wanted` messages are to be cut off.

    The answer lies in `low < cut < high` where that leaves room; the number of messages up to
    `low` is `low_count` <= wanted, up to `high` it is `high_count` > wanted. By density, since
    messages lie evenly enough; the caller asks the server for the count there and calls again.
    """
    span, messages = high - low, high_count - low_count
    guess = low + span * (wanted - low_count) // max(1, messages)
    return min(max(guess, low + 1), max(low + 1, high - 1))


def by_consumer(messages: int, direct_below: int, retention: str, allow_direct: bool) -> bool:
    """
    Whether a task reads its range by a consumer of its own, else by batched direct get.

    Args:
        messages: in the range, or sequences where nobody has counted.
        direct_below: as `directBelow`.
    """
    return retention == "limits" and (messages >= direct_below or not allow_direct)


def is_dear(partitions: int, behind: int, num_subjects: int) -> bool:
    """
    Whether the server reads a partition of a filtered layout at a greater cost than its whole
    stream: far from the stream's end it looks the next match up subject by subject.
    """
    return behind > NEAR_END and num_subjects / partitions > FEW_SUBJECTS


def filter_on_server(filter_: str | None, matching: int | None, sequences: int) -> bool:
    """
    Whether a direct read should let the server filter, rather than drop rows itself.

    A literal subject is an index lookup for the server; a wide filter must save enough messages.
    """
    if filter_ is None or subjects.is_literal(filter_):
        return filter_ is not None
    return matching is not None and matching * FILTERED_COST < sequences * DIRECT_COST


def split_range(start: int, end: int, tasks: int, maximum: int | None) -> list[tuple[int, int]]:
    """
    `(start, end]` as contiguous ranges: at least `tasks` of them, none longer than `maximum`.

    Sequences are split, not messages, so a range may hold fewer messages than its length.
    With `start` 0 they are slices of any sequence of `end` things.
    """
    length = end - start
    if length <= 0:
        return []
    pieces = max(1, tasks)
    if maximum is not None:
        pieces = max(pieces, -(-length // maximum))
    pieces = min(pieces, length)
    cuts = [start + length * i // pieces for i in range(pieces + 1)]
    return list(zip(cuts, cuts[1:], strict=False))
