"""Standby: who may read, and where a query goes on that takes another one's place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_jetstream.errors import OffsetError
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.readstream.offsets import Offset
from pyspark_jetstream.readstream.standby import Record, Silence, begin, left_s

A = Owner("a", "h1", 1, "_INBOX.a", True)
B = Owner("b", "h2", 2, "_INBOX.b", True)
STREAMS = {"S": "t0"}
OWN = Offset((0, 0), (0, 0), STREAMS, "c", query="b")


def test_a_record_survives_its_bytes():
    """
    A record is read back as it was written; each one is other bytes than those before.
    """
    first = Record(A, 30.0, 1, 0)
    noted = first.renewed(OWN)
    last = noted.renewed(released=True)
    taken = noted.taken(B, 6.0)

    for record in (first, noted, last, taken):
        assert Record.from_bytes(record.to_bytes()) == record
    assert len({record.to_bytes() for record in (first, noted, last, taken)}) == 4
    assert (last.offset, last.released) == (OWN, True)
    assert (taken.owner, taken.offset, taken.term, taken.released) == (B, OWN, 2, False)


GOOD = Record(A, 6.0, 1, 0, OWN).to_bytes()


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
    """
    Anything else under the key is an error that shows it.
    """
    with pytest.raises(OffsetError, match="no record of a standby"):
        Record.from_bytes(data)


def test_silence_is_counted_while_one_looks():
    """
    A record is silent for as long as its sequence stood still before one's eyes: a change, and a
    pause in which nobody looked, begin it anew.
    """
    silence = Silence(2.0)

    assert [silence.seen(7, now) for now in (100.0, 101.0, 102.5)] == [0.0, 1.0, 2.5]
    assert silence.seen(8, 103.0) == 0.0
    assert silence.seen(8, 105.0) == 2.0
    assert silence.seen(8, 107.5) == 0.0
    assert silence.seen(8, 108.5) == 1.0


@pytest.mark.parametrize(
    ("record", "silent_s", "left"),
    [
        (None, 0.0, 0.0),
        (Record(A, 30.0, 1, 5), 29.5, 0.5),
        (Record(A, 30.0, 1, 5), 30.0, 0.0),
        (Record(A, 6.0, 1, 5), 29.5, 0.5),
        (Record(A, 60.0, 1, 5), 30.0, 30.0),
        (Record(A, 30.0, 1, 5, released=True), 0.0, 0.0),
        (Record(replace(A, query="b"), 30.0, 1, 5), 0.0, 0.0),
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


def at(*sequences, **changes) -> Offset:
    return replace(OWN, sequences=sequences, **changes)


@pytest.mark.parametrize(
    ("own", "initial", "recorded", "expected"),
    [
        (at(0, 0), True, None, (0, 0)),
        (at(9, 9, base=(9, 9)), True, (5, 7), (5, 7)),
        (at(9, 9, base=(9, 9)), False, (5, 7), (5, 7)),
        (at(3, 9), False, (5, 7), (5, 9)),
        (at(8, 8), False, (8, 8), (8, 8)),
    ],
    ids=["first", "new-query", "new-query-waited", "further", "same"],
)
def test_where_it_goes_on(own, initial, recorded, expected):
    """
    A query goes on where the other one committed, of each partition or further if it has read that
    itself; where it merely began, as with startingOffsets=latest, it has read nothing.
    """
    theirs = at(*recorded, query="a") if recorded else None
    found = begin(own, initial, theirs, STREAMS)

    assert found.sequences == expected
    assert (found.base, found.query, found.consumer) == (own.base, "b", "c")


def test_streams_that_were_made_anew():
    """
    Of a stream that was made anew the position counts that is of the stream that is there.
    """
    old, new = {"S": "t0"}, {"S": "t1"}
    mine_old, mine_new = at(9, 9, streams=old), at(1, 1, streams=new)
    theirs_old, theirs_new = at(7, 7, streams=old), at(3, 3, streams=new)

    assert begin(mine_old, False, theirs_new, new).sequences == (3, 3)
    assert begin(mine_old, False, theirs_new, new).streams == new
    assert begin(mine_new, False, theirs_old, new) == mine_new
    assert begin(mine_new, True, theirs_old, new).streams == old  # the data loss is to be told


def test_another_layout_is_refused():
    """
    Queries with other partitions or streams do not stand in for each other.
    """
    with pytest.raises(OffsetError, match="active query reads 1 partitions of S, this one 2"):
        begin(OWN, False, Offset((1,), (0,), STREAMS, "c"), STREAMS)
    with pytest.raises(OffsetError, match="of T, this one 2"):
        begin(OWN, False, at(1, 1, streams={"T": "t0"}), STREAMS)
