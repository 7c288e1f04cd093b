"""
The fence between queries that share a consumer: one record of their open batches.

The server deals a message out again when its ack wait is over, when it has forgotten a delivery, or
when it has forgotten an ack (a server without replicas that is killed). By then the message may be
in a batch that another query has recorded, or has committed. So all queries of a consumer keep one
record, changed by compare-and-set once a batch:

* `open` has, by query, the batch that it has planned last. Whoever is dealt a message of it leaves
  it: the message is that query's until it has been away for longer than `abandonAfter` (below).
* `settled` has, by partition, what is in committed batches. Whoever is dealt such a message
  acknowledges it again.
* `marks` has, by stream, where it ended when a batch was planned last. A query whose own batches
  are old learns from them that the stream was taken back to an older copy since: then sequences of
  `open` and `settled` are of messages that are gone, and others have them.

A query that is away for longer than `abandonAfter` loses its open batch: it is `void`, and others
take its messages. A query that comes back to a void batch makes it empty in the record, runs it
without rows, and acknowledges nothing of it. One whose batch became void while it ran has its rows,
and acknowledges them.

    {"version": 1, "time": 1764000000.5, "clock": 91.5,
     "open": {"5be1…": {"serial": 7, "claims": {"0": ["2026-…", "5-9,11"]}}},
     "settled": {"0": {"stream": "2026-…", "consumer": "2026-…", "floor": 4,
                       "floors": [[31.0, 2]], "ranges": "10", "older": "6", "turned": 60.0}},
     "marks": {"ORDERS": ["2026-…", 11, "2026-…", 1764000000500000]}}

Sequences are of the stream that was made at the time beside them: of one made anew they say
nothing. Partitions are called as in `claims`, so that lists of several streams may differ.

**Settled** is bounded. Below the server's ack floor all is settled, above it are ranges. What was
settled longer ago than the server may take to deal a forgotten ack out again is left out; that time
is counted while queries plan batches (`clock`), as nothing is dealt out while the server is away.
Ranges become old together, and are left out when the next ones do. A floor that goes back further
than that is no forgotten ack: somebody has reset the consumer on purpose, and what he wants read
again is read again.

No I/O, no clock: callers pass what the server said.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from ...client.info import Mark
from ...foreign import read_json, unpacked
from ..offsets import reading
from .claims import (
    Claim,
    Ranges,
    common,
    length,
    merged,
    ranges_text,
    sequences_of,
    text_ranges,
)

_VERSION: Final = 1

_LONGEST_STEP_S: Final = 5.0
"""
Upper bound of the time counted between two changes of the record: in a longer one the server may be
away.
"""

_FLOORS: Final = 8
"""Floors of so many moments are kept, at equal distances."""

_MOST_IDLE: Final = 100
"""Queries without an open batch that a shortened record has: those that planned last."""

_PLAIN_BYTES: Final = 64 << 10
"""A larger record is compressed."""


class HeldClaims(NamedTuple):
    """Claims of one partition in an open batch."""

    stream: str
    """Creation time of their stream, in the server's text."""
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Open:
    """The batch that a query has planned last."""

    serial: int
    claims: Mapping[str, HeldClaims]
    """By partition."""
    void: bool = False
    """Whether its query was away for too long: others may take its messages."""


@dataclass(frozen=True, slots=True)
class Settled:
    """
    Sequences of one consumer in committed batches, as far as the server may have forgotten them.
    """

    stream: str
    """Creation time of its stream."""
    consumer: str
    """Creation time of the consumer."""
    floor: int
    """The stream sequence up to which all is acknowledged."""
    floors: tuple[tuple[float, int], ...]
    """Earlier floors with the record's clock of that moment, the oldest first."""
    ranges: Ranges = ()
    """Settled sequences above the floor, ascending."""
    older: Ranges = ()
    """Likewise, of the time before `turned`."""
    turned: float = 0.0
    """The record's clock when `ranges` were begun."""

    def among(self, ranges: Ranges) -> set[int]:
        """Those sequences of these ranges that are settled."""
        below = (self.floors[0][1] + 1, self.floor)
        found = [common(ranges, each) for each in ((below, *self.ranges), self.older)]
        return set(sequences_of(chain.from_iterable(found)))

    def look(self, there: AckFloor, clock: float, keep_s: float) -> Settled:
        """The settled sequences after a look at the consumer."""
        is_another = (there.stream, there.consumer) != (self.stream, self.consumer)
        if is_another or there.ack_floor < self.floors[0][1]:
            return Settled.begun(there, clock)
        floor, floors = max(there.ack_floor, self.floor), list(self.floors)
        if clock - floors[-1][0] >= keep_s / _FLOORS:
            floors.append((clock, floor))
        while len(floors) > 1 and floors[1][0] <= clock - keep_s:
            del floors[0]
        aged = self if clock - self.turned < keep_s else self.aged(clock)
        return replace(
            aged,
            floor=floor,
            floors=tuple(floors),
            ranges=_above(floor, aged.ranges),
            older=_above(floor, aged.older),
        )

    def aged(self, clock: float) -> Settled:
        """The settled sequences without the older ones: all that are there are old from now on."""
        return replace(self, ranges=(), older=self.ranges, turned=clock)

    def also(self, ranges: Ranges) -> Settled:
        """The settled sequences with these ranges, too."""
        return replace(self, ranges=merged([*self.ranges, *_above(self.floor, ranges)]))

    @staticmethod
    def begun(there: AckFloor, clock: float) -> Settled:
        """The settled sequences of a consumer that is seen for the first time."""
        floor = there.ack_floor
        return Settled(there.stream, there.consumer, floor, ((clock, floor),), turned=clock)


class AckFloor(NamedTuple):
    """The ack floor of a consumer, and which consumer that is, as the server says."""

    stream: str
    """Creation time of its stream."""
    consumer: str
    """Creation time of the consumer."""
    ack_floor: int
    """The stream sequence up to which all is acknowledged."""
    paused: bool = False
    """Whether it deals nothing out for now."""


class Dealt(NamedTuple):
    """Claims that the server gave a query, by partition."""

    mine: dict[str, list[Claim]]
    settled: dict[str, list[int]]
    """Sequences of committed batches, to be acknowledged once more."""
    theirs: dict[str, list[int]]
    """Sequences of others' open batches, to be left."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The record."""

    open: Mapping[str, Open] = field(default_factory=dict)
    """By query."""
    settled: Mapping[str, Settled] = field(default_factory=dict)
    """By partition."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """By stream; none of one that only an older version has planned batches of."""
    clock: float = 0.0
    """Seconds in which batches were planned."""
    time: float = 0.0
    """Time of its last change, by the server's clock, in seconds since 1970."""

    def after(self, now: float, ack_floors: Mapping[str, AckFloor], keep_s: float) -> Fence:
        """The record after a look at the consumers at `now`, by the server's clock."""
        step = min(max(0.0, now - self.time), _LONGEST_STEP_S) if self.time else 0.0
        clock = self.clock + step
        settled = dict(self.settled)
        dealing = {partition for partition, there in ack_floors.items() if not there.paused}
        for partition in settled.keys() - dealing:  # paused, or of a stream that others read
            each = settled[partition]
            floors = tuple((at + step, floor) for at, floor in each.floors)
            settled[partition] = replace(each, floors=floors, turned=each.turned + step)
        for partition, there in ack_floors.items():
            was = settled.get(partition) or Settled.begun(there, clock)
            settled[partition] = was.look(there, clock, keep_s)
        return replace(self, settled=settled, clock=clock, time=now)

    def marked(self, marks: Mapping[str, Mark]) -> Fence:
        """The record after a look at these streams."""
        return replace(self, marks={**self.marks, **newer(marks, self.marks)})

    def dealt_to(
        self, query: str, claims: Mapping[str, Sequence[Claim]], wanted: Mapping[str, Ranges]
    ) -> Dealt:
        """
        The owners of the messages that the server dealt to a query.

        Args:
            wanted: the sequences of `claims`.
        """
        dealt = Dealt({}, {}, {})
        for partition, taken in claims.items():
            asked = wanted[partition]
            held = [self._held(name, query, partition) for name in self.open]
            theirs = {s for ranges in held for s in sequences_of(common(asked, ranges))}
            known = self.settled.get(partition)
            settled = known.among(asked) - theirs if known is not None else set()
            for owned, by in ((theirs, dealt.theirs), (settled, dealt.settled)):
                if owned:
                    by[partition] = [c.sequence for c in taken if c.sequence in owned]
            others = theirs | settled
            mine = [c for c in taken if c.sequence not in others] if others else list(taken)
            dealt.mine[partition] = mine
        return dealt

    def owners(self, query: str, wanted: Mapping[str, Ranges]) -> set[str]:
        """The other queries in whose open batches some of these messages are."""
        return {
            name
            for name in self.open
            for partition, ranges in wanted.items()
            if any(common(ranges, self._held(name, query, partition)))
        }

    def count(self, partition: str, stream: str, but: str = "") -> int:
        """
        Number of a partition's messages in open batches that still hold.

        Args:
            stream: creation time of its stream.
            but: a query whose batch does not count.
        """
        batches = [each for name, each in self.open.items() if name != but and not each.void]
        held = [each.claims[partition] for each in batches if partition in each.claims]
        return sum(length(each.ranges) for each in held if each.stream == stream)

    def _held(self, name: str, query: str, partition: str) -> Ranges:
        """What the open batch of a query, if it is another one, still holds."""
        batch, settled = self.open[name], self.settled.get(partition)
        held = batch.claims.get(partition)
        if name == query or batch.void or held is None:
            return ()
        if settled is not None and settled.stream != held.stream:
            return ()
        return held.ranges

    def voided(self, queries: Iterable[str]) -> Fence:
        """The record after these were given up."""
        gone = set(queries)
        return replace(
            self,
            open={
                name: replace(each, void=True) if name in gone else each
                for name, each in self.open.items()
            },
        )

    def opened(self, query: str, serial: int, claims: Mapping[str, Ranges]) -> Fence:
        """The record after a query has planned a batch of these sequences."""
        held = {p: HeldClaims(self.settled[p].stream, each) for p, each in claims.items() if each}
        return self.restored(query, serial, held)

    def restored(self, query: str, serial: int, claims: Mapping[str, HeldClaims]) -> Fence:
        """The record with the batch that a query has planned last."""
        others = {name: each for name, each in self.open.items() if name != query}
        return replace(self, open={**others, query: Open(serial, claims)})

    def shortened(self) -> Fence:
        """
        The record without what a server needs that forgets acks: the sequences that are settled
        above the floors, and queries that have had no batch for long.
        """
        settled = {p: each.aged(self.clock).aged(self.clock) for p, each in self.settled.items()}
        idle = [name for name, each in self.open.items() if not each.claims and not each.void]
        gone = set(idle[:-_MOST_IDLE])
        open_ = {name: each for name, each in self.open.items() if name not in gone}
        return replace(self, open=open_, settled=settled)

    def forgotten(self, partitions: Collection[str], streams: Collection[str]) -> Fence:
        """
        The record after the streams of these were deleted, or taken back to older copies: what is
        settled says nothing of the messages that have its sequences now.
        """
        settled = {p: each for p, each in self.settled.items() if p not in partitions}
        marks = {name: mark for name, mark in self.marks.items() if name not in streams}
        return replace(self, settled=settled, marks=marks)

    def has(self, query: str, serial: int) -> bool:
        """Whether this batch of a query is, or was, in the record."""
        mine = self.open.get(query)
        return mine is not None and mine.serial >= serial

    def settles(self, query: str, serial: int) -> bool:
        """
        Whether a committed batch is to be acknowledged: not one that ran without rows, nor one that
        was acknowledged already, as before each change that opens the batch behind it.
        """
        mine = self.open.get(query)
        if mine is None or mine.serial < serial:
            return True
        return mine.serial == serial and bool(mine.claims)

    def committed(self, query: str, serial: int, claims: Mapping[str, HeldClaims]) -> Fence:
        """The record after a batch of these was committed and acknowledged."""
        if not self.settles(query, serial):
            return self
        settled = dict(self.settled)
        for partition, held in claims.items():
            if partition in settled and settled[partition].stream == held.stream:
                settled[partition] = settled[partition].also(held.ranges)
        return replace(self, open={**self.open, query: Open(serial, {})}, settled=settled)

    def is_lost(self, query: str, serial: int) -> bool:
        """Whether others may have taken the messages of this batch."""
        mine = self.open.get(query)
        return mine is not None and mine.serial == serial and mine.void

    def emptied(self, query: str, serial: int) -> Fence:
        """The record before a query runs this batch, which is lost, without rows."""
        return replace(self, open={**self.open, query: Open(serial, {}, void=True)})

    def dropped(self, query: str, serial: int) -> Fence:
        """
        The record once a query is back whose last batch in Spark's log has this serial: what it had
        planned behind that is nobody's.
        """
        mine = self.open.get(query)
        if mine is None or mine.serial <= serial or not mine.claims:
            return self
        return replace(self, open={**self.open, query: Open(mine.serial, {})})

    # ── as it is stored ──────────────────────────────────────────────────────────────────────

    def to_bytes(self) -> bytes:
        """The record as it stands in the bucket; compressed where it is large."""
        data = json.dumps({
            "version": _VERSION,
            "time": self.time,
            "clock": round(self.clock, 3),
            "open": {
                name: {
                    "serial": each.serial,
                    "claims": {
                        p: [held.stream, ranges_text(held.ranges)]
                        for p, held in each.claims.items()
                    },
                }
                | ({"void": True} if each.void else {})
                for name, each in self.open.items()
            },
            "settled": {
                partition: {
                    "stream": each.stream, "consumer": each.consumer, "floor": each.floor,
                    "floors": each.floors, "ranges": ranges_text(each.ranges),
                    "older": ranges_text(each.older), "turned": round(each.turned, 3),
                }
                for partition, each in self.settled.items()
            },
            "marks": {
                name: [mark.created, mark.sequence, mark.time, mark.seen_us]
                for name, mark in self.marks.items()
            },
        }).encode()  # fmt: skip
        return data if len(data) <= _PLAIN_BYTES else zlib.compress(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> Fence:
        """
        Raises:
            OffsetError: It is no such record, or one of a newer version.
        """
        with reading("this is no record of open batches", data):
            content = read_json(data if data[:1] == b"{" else unpacked(data))
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}")
            return cls(
                open={
                    str(name): Open(
                        int(each["serial"]),
                        {
                            p: HeldClaims(str(stream), text_ranges(text))
                            for p, (stream, text) in each["claims"].items()
                        },
                        each.get("void") is True,
                    )
                    for name, each in content["open"].items()
                },
                settled={
                    partition: Settled(
                        str(each["stream"]),
                        str(each["consumer"]),
                        int(each["floor"]),
                        tuple((float(at), int(floor)) for at, floor in each["floors"]),
                        text_ranges(each["ranges"]),
                        text_ranges(each.get("older", "")),
                        float(each.get("turned", 0.0)),
                    )
                    for partition, each in content["settled"].items()
                },
                marks={
                    name: Mark(str(created), int(at), str(time), int(seen_us))
                    for name, (created, at, time, seen_us) in content.get("marks", {}).items()
                },
                clock=float(content["clock"]),
                time=float(content["time"]),
            )


def newer(marks: Mapping[str, Mark], known: Mapping[str, Mark]) -> dict[str, Mark]:
    """Those marks, by stream, that were made later than the known ones."""
    return {
        name: mark
        for name, mark in marks.items()
        if name not in known or (mark.seen_us or 0) > (known[name].seen_us or 0)
    }


def _above(floor: int, ranges: Ranges) -> Ranges:
    return tuple((max(first, floor + 1), last) for first, last in ranges if last > floor)
