"""Standby: who may read, and where a query goes on that takes another one's place."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from pyspark_jetstream.client.info import Mark
from pyspark_jetstream.errors import OffsetError
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.readstream.offsets import Offset
from pyspark_jetstream.readstream.standby import (
    LeaseRecord,
    LeaseView,
    Silence,
    left_s,
    next_position,
)

A = Owner("a", "h1", 1, True)
B = Owner("b", "h2", 2, True)
STREAMS = {"S": "t0"}
TWO = Layout.of_numbers(["S"] * 2)
OWN = Offset((0, 0), (0, 0), STREAMS, "c", query="b", layout=TWO)


def test_a_record_survives_its_bytes():
    """A record is read back as it was written; each one is other bytes than those before."""
    first = LeaseRecord(A, 30.0, 1, 0)
    noted = first.renewed(OWN)
    last = noted.renewed(released=True)
    taken = noted.taken(B, 6.0)

    for record in (first, noted, last, taken):
        assert LeaseRecord.from_bytes(record.to_bytes()) == record
    assert len({record.to_bytes() for record in (first, noted, last, taken)}) == 4
    assert (last.offset, last.released) == (OWN, True)
    assert (taken.owner, taken.offset, taken.term, taken.released) == (B, OWN, 2, False)


GOOD = LeaseRecord(A, 6.0, 1, 0, OWN).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"7", b'{"owner": {}, "offset": null}',
        GOOD.replace(b'"lease_s": 6.0', b'"lease_s": NaN'),
        GOOD.replace(b'"lease_s": 6.0', b'"lease_s": 1e300'),
        GOOD.replace(b'"released": false', b'"released": "no"'),
        GOOD.replace(b'"term": 1', b'"term": true'),
    ],
)  # fmt: skip
def test_what_is_no_record(data):
    """Anything else under the key is an error that shows it."""
    with pytest.raises(OffsetError, match="no record of a standby"):
        LeaseRecord.from_bytes(data)


def test_a_record_of_a_newer_package():
    """What is wrong with the offset of a record is said as it is."""
    with pytest.raises(OffsetError, match="^the checkpoint holds an offset of version 99"):
        LeaseRecord.from_bytes(GOOD.replace(b'"version": 2', b'"version": 99'))


def test_silence_is_counted_while_one_looks():
    """
    A record is silent for as long as its sequence stood still before one's eyes: a change, and a
    pause in which nobody looked, begin it anew.
    """
    silence = Silence(2.0)

    assert [silence.observe(7, now) for now in (100.0, 101.0, 102.5)] == [0.0, 1.0, 2.5]
    assert silence.observe(8, 103.0) == 0.0
    assert silence.observe(8, 105.0) == 2.0
    assert silence.observe(8, 107.5) == 0.0
    assert silence.observe(8, 108.5) == 1.0


@pytest.mark.parametrize(
    ("record", "silent_s", "left"),
    [
        (None, 0.0, 0.0),
        (LeaseRecord(A, 30.0, 1, 5), 29.5, 0.5),
        (LeaseRecord(A, 30.0, 1, 5), 30.0, 0.0),
        (LeaseRecord(A, 6.0, 1, 5), 29.5, 0.5),
        (LeaseRecord(A, 60.0, 1, 5), 30.0, 30.0),
        (LeaseRecord(A, 30.0, 1, 5, released=True), 0.0, 0.0),
        (LeaseRecord(replace(A, query="b"), 30.0, 1, 5), 0.0, 0.0),
    ],
    ids=["none", "renewed", "silent", "own-lease", "their-lease", "released", "restart"],
)
def test_who_may_take_it(record, silent_s, left):
    """
    A record is free when there is none, when it was given back, when an earlier run of the same
    query has it, and when it stood still for as long as either query says; else it is known for how
    long it must go on to.
    """
    assert left_s(record, B, 30.0, silent_s) == left


class Register:
    """The record's key: changed by compare-and-set, as a bucket does."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.sequence = 0

    def replace(self, record: LeaseRecord, sequence: int) -> int | None:
        if sequence != self.sequence:
            return None
        self.record, self.sequence = record, self.sequence + 1
        return self.sequence


class Contender:
    """A query as `Lease` moves it, one request at a time, by a clock of the test."""

    def __init__(self, register: Register, name: str, lease_s: float) -> None:
        self.register = register
        self.view = LeaseView(Owner(name, "h", 1, True), lease_s)
        self.due = 0.0

    def turn(self, now: float, lost_answer: bool = False) -> None:
        """What its thread does when its time has come."""
        view, register = self.view, self.register
        if view.is_reader:
            self.renew(now, lost_answer)
        else:
            wanted = view.see(register.record, register.sequence, now)
            assert view.next_look_s <= view.left_s or not view.left_s
            stored = register.replace(wanted, view.sequence) if wanted is not None else None
            if stored is not None:
                view.hold(wanted, stored, now)
        self.due = now + (view.renew_s if view.is_reader else view.next_look_s)

    def renew(self, now: float, lost_answer: bool = False) -> None:
        view, register = self.view, self.register
        if view.fenced is not None:
            return
        for _ in range(2):
            record = view.record.renewed()
            stored = register.replace(record, view.sequence)
            if stored is not None and not lost_answer:
                view.hold(record, stored, now)
                return
            lost_answer = False
            if not view.meet(register.record, register.sequence):
                return


@pytest.mark.parametrize("turn", range(20))
def test_no_two_read_at_one_time(turn):
    """
    However the processes of three queries stand still, and whichever answers are lost: whoever is
    sure that it reads is the only one, and a silent reader is replaced within two leases.
    """
    seed = time.time_ns() % 10**9 + turn
    rng = random.Random(seed)
    register, now, held_at = Register(), 0.0, 0.0
    all_ = [Contender(register, name, rng.choice((6.0, 6.0, 9.0))) for name in "abc"]
    longest = max(each.view.lease_s for each in all_)
    for _ in range(2_000):
        each = min(all_, key=lambda one: one.due)
        now = max(now, each.due) + 0.001  # no two requests at one moment
        if rng.random() < 0.02:
            each.due = now + rng.choice((0.5, 5.0, 20.0))  # stands still
            continue
        each.turn(now, lost_answer=rng.random() < 0.05)
        sure = [one for one in all_ if one.view.holds(now)]
        assert len(sure) <= 1, (seed, now, all_)
        for one in sure:
            held_at = now
            assert register.record.owner == one.view.owner, (seed, now)
        watching = [one for one in all_ if not one.view.is_reader and one.due <= now + 0.6]
        assert now - held_at < 2 * longest + 20.0 or not watching, (seed, now)
        for place, one in enumerate(all_):
            if one.view.fenced is not None:  # Spark starts it again
                all_[place] = Contender(register, one.view.owner.query, one.view.lease_s)
                all_[place].due = now + rng.random()


def test_a_view_that_met_another_is_fenced():
    """
    Whose record is another's, or is deleted, reads no more; its own renewal whose answer never came
    is no other's.
    """
    ours = LeaseRecord(A, 6.0, 1, 4)
    for there, fenced in (
        (None, "somebody (the record is deleted) took"),
        (ours.taken(B, 6.0), "query b (host h2, process 2) took the place of query a"),
        (ours.renewed(), None),
    ):
        view = LeaseView(A, 6.0)
        view.hold(ours, 7, 100.0)
        assert view.holds(106.0) and not view.holds(106.1) and view.is_reader
        assert view.meet(there, 9) == (fenced is None)
        assert view.holds(101.0) == (fenced is None)
        assert fenced is None or str(view.fenced).startswith(fenced)
        assert fenced is not None or (view.record, view.sequence) == (there, 9)


def at(*sequences, **changes) -> Offset:
    return replace(OWN, sequences=sequences, **changes)


@pytest.mark.parametrize(
    ("own", "initial", "recorded", "expected"),
    [
        (at(0, 0), True, None, (0, 0)),
        (at(9, 9, base=(9, 9)), True, (5, 7), (5, 7)),
        (at(9, 9, base=(9, 9)), False, (5, 7), (5, 7)),
        (at(9, 9, base=(9, 9), resumed=(5, 7)), False, (5, 7), (9, 9)),
        (at(3, 9), False, (5, 7), (5, 9)),
        (at(8, 8), False, (8, 8), (8, 8)),
    ],
    ids=["first", "new-query", "new-query-waited", "has-come-to", "further", "same"],
)
def test_where_it_goes_on(own, initial, recorded, expected):
    """
    A query goes on where the other one committed, of each partition or further if it has read that
    itself; where it merely began, as with startingOffsets=latest, it has read nothing, until it
    comes there from where the other one stood.
    """
    theirs = at(*recorded, query="a") if recorded else None
    found = next_position(own, initial, theirs, STREAMS)

    assert found.sequences == expected
    assert (found.base, found.query, found.consumer) == (own.base, "b", "c")


def test_streams_that_were_made_anew():
    """Of a stream that was made anew the position counts that is of the stream that is there."""
    old, new = {"S": "t0"}, {"S": "t1"}
    mine_old, mine_new = at(9, 9, streams=old), at(1, 1, streams=new)
    theirs_old, theirs_new = at(7, 7, streams=old), at(3, 3, streams=new)

    assert next_position(mine_old, False, theirs_new, new).sequences == (3, 3)
    assert next_position(mine_old, False, theirs_new, new).streams == new
    assert next_position(mine_new, False, theirs_old, new) == mine_new
    # The data loss is to be told.
    assert next_position(mine_new, True, theirs_old, new).streams == old


def test_marks_are_the_latest_that_the_reader_has_seen():
    """
    A query's own record is noted by marks from before its last batches: it goes on with those that
    it has seen since, unless its checkpoint was taken back. Another query's record has its own.
    """
    early, late = Mark("t0", 5, "t5"), Mark("t0", 40, "t40")
    mine, theirs = at(4, 4, marks={"S": late}), at(3, 3, marks={"S": early})

    assert next_position(mine, False, theirs, STREAMS).marks == {"S": late}
    assert next_position(theirs, False, mine, STREAMS).marks == {"S": late}
    assert next_position(mine, False, replace(theirs, query="a"), STREAMS).marks == {"S": early}
    assert next_position(at(4, 4), False, theirs, STREAMS).marks == {"S": early}


def of(counts, bases=None, created=None, **changes) -> Offset:
    """An offset of several streams: where it is in each, and where it began, as 0 elsewhere."""
    streams = {name: (created or {}).get(name, "t0") for name in counts}
    base = tuple((bases or {}).get(name, 0) for name in counts)
    layout = Layout.of_streams(counts)
    own = Offset(tuple(counts.values()), base, streams, "c", query="b", layout=layout)
    return replace(own, **changes)


@pytest.mark.parametrize(
    ("own", "initial", "recorded", "expected"),
    [
        (of({"A": 3, "B": 9}), False, {"B": 7, "A": 5}, {"A": 5, "B": 9}),
        (of({"A": 9}, {"A": 9}), True, {"A": 5, "B": 7}, {"A": 5, "B": 7}),
        (of({"A": 3}), False, {"B": 7, "A": 5}, {"A": 5, "B": 7}),
        (of({"A": 3, "B": 9}, {"B": 9}), False, {"A": 5}, {"A": 5}),
        (of({"A": 3, "B": 9}, {"B": 9}), True, {"A": 5}, {"A": 5}),
        (of({"B": 9, "A": 3}, {"B": 2}), False, {"A": 5}, {"B": 9, "A": 5}),
        (of({"A": 3, "B": 2}, created={"B": "t1"}), False, {"A": 5, "B": 7}, {"A": 5, "B": 2}),
        (of({"A": 3, "B": 2}, created={"B": "t1"}), True, {"A": 5, "B": 7}, {"A": 5, "B": 7}),
    ],
    ids=["each", "new", "came", "nobodys", "new-nobodys", "its-own", "anew", "new-anew"],
)
def test_where_it_goes_on_in_several_streams(own, initial, recorded, expected):
    """
    A query goes on in each stream where the other one committed, or further if it has read that
    itself. A stream that only the record has is read from there on; one that neither has read is
    left out, to join as one that came.
    """
    now = {"A": "t0", "B": own.streams.get("B", "t0")}
    found = next_position(own, initial, of(recorded, query="a"), now)

    assert {stream: at for (stream,), at in found.by_place.items()} == expected
    assert found.streams.keys() == expected.keys()
    for stream in found.streams.keys() - own.streams.keys():
        assert found.base[found.layout.streams.index(stream)] == recorded[stream]


def test_several_streams_and_one():
    """A query with one stream and a query with several do not stand in for each other."""
    with pytest.raises(OffsetError, match="reads one stream, this one several"):
        next_position(of({"A": 1, "B": 1}), False, at(1, 1, query="a"), STREAMS)


def test_another_layout_is_refused():
    """Queries with other partitions or streams do not stand in for each other."""
    with pytest.raises(OffsetError, match="active query reads 1 partitions of S, this one 2"):
        next_position(OWN, False, Offset((1,), (0,), STREAMS, "c"), STREAMS)
    with pytest.raises(OffsetError, match="of T, this one 2"):
        next_position(OWN, False, at(1, 1, streams={"T": "t0"}), STREAMS)
