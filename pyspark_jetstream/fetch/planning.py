"""
Decisions of the read side: the end of a batch, its tasks, and the way each task reads.

Pure: numbers in, numbers out. What the numbers are is asked by `survey`.

Costs are server CPU, microseconds a message, measured on nats-server 2.15.1 with 1,000,000
messages over 3,313 subjects: what matters is their ratio. A wide filter costs a consumer ten times
a plain read in a deep backlog, because the file store looks the next match up subject by subject;
only within about twice a block's subjects of the block's end it scans instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from .. import subjects

ReadMode = Literal["consumer", "own", "direct"]
"""By the pinned consumer of the partition, by one of the attempt's own, or by direct get."""

PINNED_COST: Final = 2.6
"""One message by a pinned consumer."""

OWN_COST: Final = 1.8
"""One message by a consumer that is not pinned."""

OWN_SETUP: Final = 1_000.0
"""
Cost of a consumer of an attempt's own beside its messages on a server that stands alone: making and
deleting it takes 450, and a commit then moves the pinned one along.
"""

OWN_SETUP_IN_CLUSTER: Final = 16_000.0
"""
Likewise where the server is one of a cluster: all its servers are told of the consumer, and of its
end (2,750 over three that had nothing else to do), by a leader that all streams have in common.
"""

DIRECT_COST: Final = 2.7
"""One message by unfiltered batched direct get."""

_MOVED_TRIPS: Final = 2
"""Round trips of a commit that moves the pinned consumer along; amid a backlog it does not."""

FILTERED_COST: Final = 50.0
"""One message by a consumer whose wide filter is looked up subject by subject."""

NEAR_END: Final = 10_000
"""Sequences before the end of the stream within which the store scans (measured)."""

FEW_SUBJECTS: Final = 32
"""Matching subjects up to which, about, the lookup is as cheap as a scan."""


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


class Site(NamedTuple):
    """Place of a stream's server."""

    clustered: bool
    """Whether it is one of a cluster."""
    away_s: float
    """Seconds of a round trip to it, if it is far away; 0 else."""


def choose_mode(
    *,
    ways: Collection[ReadMode],
    filtered: bool,
    wide: bool,
    messages: int,
    matching: int,
    site: Site,
    amid: bool,
) -> ReadMode:
    """
    The cheapest way for one partition of one batch (`readMode=auto`), by the server's CPU and what
    one way waits longer than another.

    Args:
        ways: What may be used beside the pinned consumer.
        filtered: Whether the partition is a filter on a stream that holds more.
        wide: Whether it is a wide one (`wide_filter`).
        messages: Sequences in the batch's range, all partitions together.
        matching: Messages of this partition among them, as far as known.
        amid: Whether as much and more is left behind the batch.
    """
    matching = min(matching, messages)
    trip = site.away_s * 1e6
    moved = 0.0 if amid else _MOVED_TRIPS * trip
    each = FILTERED_COST if wide else PINNED_COST
    costs: dict[ReadMode, float] = {"consumer": trip + matching * each}
    if "own" in ways:
        # Under a wide filter it reads what belongs to the others, too.
        read = messages if wide else matching
        costs["own"] = moved + _own_setup(site) + read * OWN_COST
    if "direct" in ways and (wide or (trip and not filtered)):  # it brings the others' as well
        costs["direct"] = moved + messages * DIRECT_COST
    return min(costs, key=costs.__getitem__)


def _own_setup(site: Site) -> float:
    setup = OWN_SETUP_IN_CLUSTER if site.clustered else OWN_SETUP
    return setup + site.away_s * 1e6


def own_is_cheaper(sequences: int, site: Site) -> bool:
    """
    Whether a range read without a filter costs less by an own consumer than by direct get. Reads
    that have no pinned consumer ask this; a streaming batch asks `choose_mode`.
    """
    return _own_setup(site) + sequences * OWN_COST < sequences * DIRECT_COST


def wide_filter(filtered: bool, partitions: int, behind: int, num_subjects: int) -> bool:
    """Whether a consumer would pay `FILTERED_COST` here."""
    return filtered and behind > NEAR_END and num_subjects / partitions > FEW_SUBJECTS


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
