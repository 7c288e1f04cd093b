"""
Hot standby: one of several identical queries reads, from where the last one stopped.

They share one record. The query that reads renews it; the queries that wait watch it. Only changes
of the record count, on the watcher's own monotonic clock: no two clocks are compared.

Rule: no I/O and no clock; callers pass what they saw, and `now`. `lease` does the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..client.info import Mark
from ..errors import OffsetError
from ..fetch.layout import Layout
from ..fetch.owner import Owner
from ..foreign import read_json
from .offsets import Offset, check_filters, reading

BUCKET: Final = "SPARK_STANDBY"

SEVERAL: Final = "="
"""Stands for the streams in the key of a lease of several, as which these are may change."""

LEASE_S: Final = 30.0
"""Term of a lease, unless `priorityTimeout` has another."""

_LONGEST_LEASE_S: Final = 36_500 * 86_400.0
"""The longest that an option may ask for; a record with more is none."""

RENEWALS: Final = 3
"""The owner renews the record so often in that time."""

_LOOKS: Final = 24
"""A waiting query looks at the record at least so often in the time that it may stand still."""

_LOOK_S: Final = 0.5
"""The longest between two looks."""

_BLIND_S: Final = 2.0
_BLIND_LOOKS: Final = 4
"""A watcher that did not look for so long, or for the time of so many looks, begins anew."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The record that the queries share."""

    owner: Owner
    lease_s: float
    """The owner renews the record before so much time has passed."""
    term: int
    """Number of times that the record has changed hands; 0 of a notice (`waits_key`)."""
    count: int
    """Changes in this term, counted so that no two records are the same bytes."""
    offset: Offset | None = None
    """End of the last committed batch; None before the first."""
    released: bool = False
    """Whether the owner ended in good order: nobody needs to wait."""
    before: str = ""
    """Holder of the lease in the term before, in words for operators; "" where nobody did."""

    def to_bytes(self) -> bytes:
        """The record as it stands in the bucket."""
        return json.dumps(
            {
                "owner": self.owner.metadata,
                "lease_s": self.lease_s,
                "term": self.term,
                "count": self.count,
                "offset": self.offset.to_json() if self.offset is not None else None,
                "released": self.released,
                "before": self.before,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaseRecord:
        """
        Raises:
            OffsetError: It is none, or its offset is of another version.
        """
        with reading("this is no record of a standby", data):
            content = read_json(data)
            owner = Owner.of({"metadata": content["owner"]})
            if owner is None:
                raise ValueError("no owner")
            lease_s, offset = float(content["lease_s"]), content.get("offset")
            # Notices of earlier versions have no term.
            term, count = content.get("term", 0), content["count"]
            released = content.get("released", False)
            if not 0 < lease_s <= _LONGEST_LEASE_S:
                raise ValueError(f"lease_s of {lease_s}")
            if type(term) is not int or type(count) is not int or type(released) is not bool:
                raise ValueError("term, count or released")
            return cls(
                owner=owner,
                lease_s=lease_s,
                term=term,
                count=count,
                offset=Offset.from_json(offset) if offset is not None else None,
                released=released,
                before=str(content.get("before") or ""),
            )

    def renewed(self, offset: Offset | None = None, released: bool = False) -> LeaseRecord:
        """The owner's next record, counted one higher."""
        return replace(self, count=self.count + 1, offset=offset or self.offset, released=released)

    def taken(self, owner: Owner, lease_s: float) -> LeaseRecord:
        """The record that hands the reading over to `owner`."""
        before = self.before if owner.query == self.owner.query else str(self.owner)
        return LeaseRecord(owner, lease_s, self.term + 1, 0, self.offset, before=before)


def lease_key(stream: str, consumer: str) -> str:
    """Key of the record of these queries, by their options."""
    return f"{stream.replace('{partition}', '=')}.{consumer}"


def waits_key(record: str, query: str) -> str:
    """
    Key of the notice of a query that waits, beside the record's. A notice is a record of term 0. It
    is for operators: no query goes by it.
    """
    return f"{record}.waits.{query}"


class Silence:
    """Time that a record stood still, as one watcher sees it."""

    def __init__(self, longest_pause_s: float) -> None:
        """
        Args:
            longest_pause_s: a watcher that did not look for longer begins anew: it may have been
                cut off together with the owner.
        """
        self._longest_pause_s = longest_pause_s
        self._sequence = -1
        self._since = self._looked = 0.0

    def observe(self, sequence: int, now: float) -> float:
        """Seconds for which the record has had this sequence."""
        if sequence != self._sequence or now - self._looked > self._longest_pause_s:
            self._since = now
        self._sequence, self._looked = sequence, now
        return now - self._since


def left_s(record: LeaseRecord | None, owner: Owner, lease_s: float, silent_s: float) -> float:
    """
    Seconds that the record may still stand still before `owner` may take it; 0 when it may: the
    record is free, its query's own, or its owner is silent.
    """
    if record is None or record.released:
        return 0.0
    if record.owner.query == owner.query:
        return 0.0  # the same checkpoint: its earlier run is over, or Spark refuses this one
    return max(0.0, max(record.lease_s, lease_s) - silent_s)


class LeaseView:
    """
    The lease as one query sees it: the record, and whether this query is the one that reads.

    A query waits until its record is stored (`hold`). From then on it reads, until the record is
    another's (`meet`); then it is fenced for good.
    """

    def __init__(self, owner: Owner, lease_s: float) -> None:
        self.owner = owner
        self.lease_s = lease_s
        self.record: LeaseRecord | None = None
        """The record as read or stored last; None where there is none."""
        self.sequence = 0
        """Its sequence, 0 where there never was one."""
        self.silent_s = 0.0
        """Seconds that it had stood still at the last look of a query that waits."""
        self.left_s = 0.0
        """Seconds that it may go on to, as of then, before this query may take it."""
        self.renewed: float | None = None
        """Start of the last store that succeeded; None while the query waits."""
        self.fenced: str | None = None
        """The query that took this one's place, once one has."""
        self._look_s = min(_LOOK_S, lease_s / _LOOKS)
        self._silence = Silence(max(_BLIND_S, _BLIND_LOOKS * self._look_s))

    def __repr__(self) -> str:
        state = "fenced" if self.fenced else "waits" if self.renewed is None else "reads"
        return f"<LeaseView of {self.owner.query}: {state}, {self.record}>"

    @property
    def is_reader(self) -> bool:
        """Whether the query took the lease; its time may be over."""
        return self.renewed is not None

    def holds(self, now: float) -> bool:
        """Whether the query reads, for all it knows without asking."""
        return self.fenced is None and not self.is_expired(now)

    def is_expired(self, now: float) -> bool:
        """Whether somebody else may have taken the lease since it was renewed."""
        return self.renewed is None or now - self.renewed > self.lease_s

    def is_renewal_due(self, now: float) -> bool:
        """Whether half of the time between two renewals has passed: a batch renews it, too."""
        return self.renewed is None or now - self.renewed > self.renew_s / 2

    @property
    def renew_s(self) -> float:
        """Seconds between two renewals."""
        return self.lease_s / RENEWALS

    @property
    def next_look_s(self) -> float:
        """
        Seconds until a query that waits looks again: at the latest when it may take the lease.
        """
        return min(self._look_s, self.left_s) or self._look_s

    def see(self, record: LeaseRecord | None, sequence: int, now: float) -> LeaseRecord | None:
        """
        Notes what a query that waits found at `now`; the record to store in its place if the query
        may take the lease.
        """
        self.record, self.sequence = record, sequence
        self.silent_s = self._silence.observe(sequence, now)
        self.left_s = left_s(record, self.owner, self.lease_s, self.silent_s)
        if self.left_s > 0:
            return None
        if record is None:
            return LeaseRecord(self.owner, self.lease_s, 1, 0)
        return record.taken(self.owner, self.lease_s)

    def hold(self, record: LeaseRecord, sequence: int, now: float) -> None:
        """This query's record was stored by a request that began at `now`."""
        self.record, self.sequence, self.renewed = record, sequence, now

    def meet(self, record: LeaseRecord | None, sequence: int) -> bool:
        """
        Another record stands where this query would have renewed its own; whether that is a renewal
        of its own whose answer never came.
        """
        if record is not None and record.owner == self.owner:
            self.record, self.sequence = record, sequence
            return True
        other = record.owner if record is not None else "somebody (the record is deleted)"
        self.fenced = f"{other} took the place of {self.owner}"
        return False


def next_position(
    own: Offset, initial: bool, recorded: Offset | None, created: Mapping[str, str]
) -> Offset:
    """
    Next position of the query that reads.

    What the record says is read by somebody; so is what lies between it and the query's own
    position, if that is further, by the query itself. A position where the query merely began says
    nothing; where it has come to with a batch that began elsewhere, it has read. Of several streams
    those that neither has read are left out, and join anew.

    Args:
        own: where this checkpoint stands, and `resumed` of the batch that ended there.
        initial: whether that is where the options say that a new query begins.
        created: creation time of each stream, by name.

    Raises:
        OffsetError: The record is of a query with other partitions or streams.
    """
    if recorded is None:
        return own
    noted_itself = recorded.query == own.query
    if own.layout is not None and own.layout.is_several:
        own, recorded = _side_by_side(own, initial, recorded)
    count = len(own.sequences)
    if len(recorded.sequences) != count or set(recorded.streams) != set(own.streams):
        raise OffsetError(
            f"standby: the active query reads {len(recorded.sequences)} partitions of"
            f" {', '.join(sorted(recorded.streams))}, this one {count} of"
            f" {', '.join(sorted(own.streams))}; give them the same options"
        )
    check_filters(recorded.layout, own.layout)
    others = {name for name, made in own.streams.items() if made != recorded.streams[name]}
    # The record is of streams that are no more.
    anew = {name for name in others if not initial and own.streams[name] == created.get(name)}

    def further(stream: str, mine: int, base: int, theirs: int) -> int:
        if stream in anew:
            return mine
        if initial or stream in others or (mine == base and not own.resumed):
            return theirs
        return max(mine, theirs)

    def is_newer(stream: str, theirs: Mark) -> bool:
        mine = own.marks.get(stream)
        if stream in anew:
            return False
        return not noted_itself or mine is None or mine.sequence <= theirs.sequence

    assert own.layout is not None
    names = [partition.stream for partition in own.layout]
    return replace(
        own,
        sequences=tuple(map(further, names, own.sequences, own.base, recorded.sequences)),
        streams={**recorded.streams, **{name: own.streams[name] for name in anew}},
        idle=frozenset(),
        resumed=(),
        marks={**own.marks, **{s: m for s, m in recorded.marks.items() if is_newer(s, m)}},
        consumers=recorded.consumers or own.consumers,
    )


def _side_by_side(own: Offset, initial: bool, recorded: Offset) -> tuple[Offset, Offset]:
    """
    Both offsets with the same of several streams: those of the record, and of the others those that
    the query has read itself.

    Raises:
        OffsetError: The record is of a query with one stream.
    """
    if recorded.layout is None or not recorded.layout.is_several:
        raise OffsetError(
            "standby: the active query reads one stream, this one several; give them the same"
            " options"
        )
    mine, theirs = own.by_place, recorded.by_place
    bases = own.at(own.base).by_place
    kept = [p for p in mine if p in theirs or not (initial or mine[p] == bases[p])]
    layout = Layout.of_streams(stream for (stream,) in dict.fromkeys([*kept, *theirs]))
    return (
        own.laid_out(layout, theirs, recorded.streams),
        recorded.laid_out(layout, mine, own.streams),
    )
