"""
The claims of a query on a shared consumer, as the offset of its checkpoint.

A pinned consumer's batch is a range between two offsets. A shared one's is what the server chose
to deliver, so the offset at a batch's *end* names the sequences themselves; where the batch starts
says nothing. A batch that runs again therefore has the same rows, whoever has claimed what since.

    {"version": 2, "policy": "overflow", "consumer": "jobs", "partitions": 1,
     "streams": {"JOBS": "2026-11-21T16:00:00Z"}, "serial": 7,
     "claims": {"0": {"1": "5-9,11", "2": "10"}}}

`claims` has, by partition and by number of deliveries, the sequences as ranges. `serial` counts
batches: two that claim the same must not be equal text, or Spark would take the second for none.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from ...errors import OffsetError
from ...fetch.layout import split_range
from ..offsets import VERSION, check_written, reading

_KEYS: Final = frozenset("version policy consumer partitions streams serial claims".split())

Ranges = tuple[tuple[int, int], ...]
"""Sequences as ascending ranges that do not touch, first and last of each included."""

Claims = Mapping[int, Ranges]
"""Sequences by number of deliveries, 1 where a message was delivered for the first time."""


class Claim(NamedTuple):
    """One message that the server has delivered to us."""

    sequence: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class SharedConsumer:
    """The consumer of one partition."""

    number: int
    """The partition that its rows have, and its errors."""
    stream: str
    name: str
    filter: str | None

    @property
    def partition(self) -> str:
        """Its number, as offsets have it."""
        return str(self.number)

    @property
    def acks(self) -> str:
        """Prefix of the subjects on which its messages are acknowledged."""
        return f"$JS.ACK.{self.stream}.{self.name}"


def merged(ranges: Iterable[tuple[int, int]], gap: int = 0) -> Ranges:
    """Ranges, in any order, as few as there are with `gap` sequences between them at the most."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first - found[-1][1] - 1 <= gap:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def gathered(claims: Iterable[Claim]) -> dict[int, Ranges]:
    """
    Claims by number of deliveries; of a message claimed more than once the last count.

    A message comes twice to one reader where it lets the ack wait pass.
    """
    latest = dict(sorted(claims))  # of two of one sequence the greater count is the later one
    by_count: dict[int, list[int]] = {}
    for sequence, deliveries in latest.items():
        by_count.setdefault(deliveries, []).append(sequence)
    return {count: merged((s, s) for s in by_count[count]) for count in sorted(by_count)}


def sequences_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The sequences in the ranges."""
    return chain.from_iterable(range(first, last + 1) for first, last in ranges)


def length(ranges: Ranges) -> int:
    """Number of sequences in the ranges."""
    return sum(last - first + 1 for first, last in ranges)


def runs(claims: Claims, gap: int) -> Ranges:
    """
    Ranges to read for all of `claims`, with gaps of up to `gap` sequences between them.

    Reading a few messages of others costs less than another request.
    """
    return merged(chain.from_iterable(claims.values()), gap)


def pieces(claims: Claims, tasks: int, maximum: int | None) -> list[dict[int, Ranges]]:
    """
    `claims` cut by sequence into at least `tasks` parts, none of more than `maximum` messages.

    Fewer where there are fewer messages.
    """
    count = sum(map(length, claims.values()))
    cuts = split_range(0, count, tasks, maximum)
    if len(cuts) <= 1:
        return [dict(claims)] if count else []
    flat = sorted(
        Claim(sequence, deliveries)
        for deliveries, ranges in claims.items()
        for sequence in sequences_of(ranges)
    )
    return [gathered(flat[low:high]) for low, high in cuts]


@dataclass(frozen=True, slots=True)
class ClaimedOffset:
    """The batch that ends here."""

    policy: str
    consumer: str
    """Prefix of the shared consumers' names."""
    partitions: int
    streams: Mapping[str, str]
    """Creation time of each stream, by name."""
    serial: int
    """Batches so far."""
    claims: Mapping[str, Claims]
    """Claims of the batch, by partition (`SharedConsumer`)."""

    def __repr__(self) -> str:
        counts = {p: self.count(p) for p in self.claims}
        return f"<ClaimedOffset {self.serial} of {self.consumer}: {counts}>"

    def count(self, partition: str) -> int:
        """Messages of one partition."""
        return sum(map(length, self.claims.get(partition, {}).values()))

    def sequences(self, partition: str) -> list[int]:
        """Their sequences, ascending."""
        claims = self.claims.get(partition, {})
        return sorted(sequences_of(chain.from_iterable(claims.values())))

    def to_json(self) -> dict[str, Any]:
        """The offset with its keys in the one order there is: Spark compares the text."""
        return {
            "version": VERSION,
            "policy": self.policy,
            "consumer": self.consumer,
            "partitions": self.partitions,
            "streams": {name: self.streams[name] for name in sorted(self.streams)},
            "serial": self.serial,
            "claims": {
                partition: {
                    str(count): ranges_text(self.claims[partition][count])
                    for count in sorted(self.claims[partition])
                }
                for partition in sorted(self.claims, key=int)
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClaimedOffset:
        """
        The offset a checkpoint holds.

        Raises:
            OffsetError: It was written by something else: a query with another policy, a newer
                version, or no query of ours.
        """
        if isinstance(value, Mapping) and "sequences" in value:
            raise OffsetError(
                "the checkpoint was written with priorityPolicy=pinned_client, whose batches are"
                " ranges of a consumer of its own; a shared consumer needs a new"
                " checkpointLocation, and startingOffsets where the old query ended"
            )
        check_written(value, _KEYS)
        with reading("the checkpoint holds no offset of a shared consumer", value):
            return cls(
                policy=str(value["policy"]),
                consumer=str(value["consumer"]),
                partitions=int(value["partitions"]),
                streams={str(name): str(made) for name, made in value["streams"].items()},
                serial=int(value["serial"]),
                claims={
                    partition: {int(count): text_ranges(text) for count, text in claims.items()}
                    for partition, claims in value["claims"].items()
                },
            )


def ranges_text(ranges: Ranges) -> str:
    """Ranges as text, such as `5-9,11`; "" for none."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def text_ranges(text: str) -> Ranges:
    """
    Ranges of their text.

    Raises:
        ValueError: It is none.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not (ranges[-1][1] + 1 < low if ranges else 0 < low) or high < low:
            raise ValueError(f"{part!r} is no ascending range")
        ranges.append((low, high))
    return tuple(ranges)


def shares(limit: int, open_: Sequence[bool]) -> list[int]:
    """
    Messages to ask of each consumer next, when `limit` more may be claimed in all.

    The same of each that is open, which is: has brought all it was asked for so far. What one does
    not have goes to the others in the next round.
    """
    share, more = divmod(limit, max(1, sum(open_)))
    wanted = []
    for is_open in open_:
        wanted.append(share + (more > 0) if is_open else 0)
        more -= is_open
    return wanted
