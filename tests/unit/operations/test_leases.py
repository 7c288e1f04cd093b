"""Leases of standbys, told from what stands in their bucket."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.client.info import StoredMessage
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.operations.inspection.leases import lease_states, wanted_keys
from pyspark_jetstream.readstream.offsets import Offset
from pyspark_jetstream.readstream.standby import LeaseRecord

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
A = Owner("a", "h1", 1, True, "flights")
B = Owner("b", "h2", 2, True)
PLAIN = "`{}`".format


def stored(data: bytes, ago_s: float) -> StoredMessage:
    """A message of so many seconds ago."""
    return StoredMessage(7, "$KV.X", [], data, time=(NOW - timedelta(seconds=ago_s)).isoformat())


def waiting(owner: Owner, ago_s: float, lease_s: float = 30.0) -> StoredMessage:
    return stored(LeaseRecord(owner, lease_s, 0, 1).to_bytes(), ago_s)


def test_who_reads_and_who_waits():
    """
    Whoever holds the lease has it until it was not renewed for its length; who said within that
    time that it waits is listed, but not the one that holds it by now.
    """
    old = Owner("old", "h4", 4, True)
    of_0_1 = json.dumps({"owner": old.metadata, "lease_s": 30.0, "count": 2}).encode()
    (lease,) = lease_states(
        {
            "S.hot": stored(LeaseRecord(A, 30.0, 4, 9).to_bytes(), 8.0),
            "S.hot.waits.b": waiting(B, 29.0),
            "S.hot.waits.a": waiting(A, 9.0),
            "S.hot.waits.old": stored(of_0_1, 9.0),
            "S.hot.waits.gone": waiting(Owner("gone", "h", 3), 31.0),
        },
        NOW,
        PLAIN,
    )

    assert (lease.stream, lease.consumer, lease.holder, lease.name) == ("S", "hot", "a", "flights")
    assert (lease.host, lease.pid, lease.term, lease.left_s) == ("h1", 1, 4, 22.0)
    assert lease.until == "2026-05-01T12:00:22+00:00"
    assert [(each.query, each.host, each.pid) for each in lease.waiting] == [
        ("b", "h2", 2),
        ("old", "h4", 4),
    ]
    assert (lease.problems, lease.notes) == ((), ())


@pytest.mark.parametrize("ago_s", [8.0, 31.0])
def test_who_is_missing(ago_s):
    """
    Beside a query that reads it is noted that none waits; a lease that ran out is no problem while
    somebody waits for it.
    """
    held = {"S.a": stored(LeaseRecord(A, 30.0, 4, 9).to_bytes(), ago_s)}
    (alone,) = lease_states(held, NOW, PLAIN)
    (two,) = lease_states(held | {"S.a.waits.b": waiting(B, 1.0)}, NOW, PLAIN)

    assert two.problems == ()
    assert bool(alone.problems) is (ago_s > 30.0)
    assert ("nobody waits to take its place" in alone.notes) is (ago_s < 30.0)
    assert bool(two.notes) is (ago_s > 30.0)


def test_which_one_of_a_pair_is_missing():
    """
    Of those that say nothing any more the note names the one that waited last, and the one that
    read before, each with host, process and the id that its metrics have.
    """
    gone, older = (
        Owner("c3", "h3", 3, True, "flights"),
        Owner("d4", "h4", 4),
    )
    record = LeaseRecord(B, 30.0, 1, 0).taken(A, 30.0).renewed()
    record = LeaseRecord.from_bytes(record.to_bytes())
    messages = {
        "S.a": stored(record.to_bytes(), 8.0),
        "S.a.waits.c3": waiting(gone, 31.0),
        "S.a.waits.d4": waiting(older, 99.0),
        "S.a.waits.a": waiting(A, 50.0),
    }
    (lease,) = lease_states(messages, NOW, PLAIN)
    (waited,) = lease_states(messages | {"S.a.waits.b": waiting(B, 99.0)}, NOW, PLAIN)
    (known,) = lease_states({key: messages[key] for key in ("S.a", "S.a.waits.a")}, NOW, PLAIN)
    both = {"S.a": messages["S.a"], "S.a.waits.b": waiting(B, 99.0)}

    assert lease.notes == (
        "nobody waits to take its place; query c3 'flights' (host h3, process 3) waited, the"
        " last time at 2026-05-01T11:59:29Z; query b (host h2, process 2) read before",
    )
    assert waited.notes == lease.notes
    assert known.notes == (
        "nobody waits to take its place; query b (host h2, process 2) read before",
    )
    assert lease_states(both, NOW, PLAIN)[0].notes == (
        "nobody waits to take its place; query b (host h2, process 2) waited, the"
        " last time at 2026-05-01T11:58:21Z. It also read, maybe as another process, before the"
        " query that reads now",
    )
    assert record.taken(A, 30.0).before == record.before, "a run over the same checkpoint"


def test_a_lease_that_nobody_holds():
    """
    One that ran out, or was given back, is noted; where the record is deleted only waiting queries
    are left, and where these are gone nothing.
    """
    record = LeaseRecord(A, 30.0, 1, 9)
    leases = lease_states(
        {
            "S.out": stored(record.to_bytes(), 31.5),
            "S.back": stored(record.renewed(released=True).to_bytes(), 3.0),
            "S.deleted": stored(b"", 3.0),
            "S.early.waits.b": waiting(B, 1.0),
            "S.late.waits.b": waiting(B, 99.0),
        },
        NOW,
        PLAIN,
    )
    back, early, out = leases

    assert (out.holder, out.left_s) == ("a", -1.5)
    assert out.notes == ("ran out: its query is gone, or cut off",)
    assert (back.holder, back.notes, back.term) == ("", (back.notes[0],), 1)
    assert back.notes[0].startswith("given back")
    assert [each.query for each in early.waiting] == ["b"]
    (problem,) = out.problems
    assert problem.startswith("nobody reads: the lease ran out, and nobody waits. If no query has")
    assert "`nats kv del SPARK_STANDBY S.out` removes" in problem
    assert not any(lease.problems for lease in (back, early))


@pytest.mark.parametrize("released", [True, False])
def test_a_lease_whose_query_reads_without_it(released):
    """
    When whoever held a lease last runs without standby, the lease is a remainder, and a note has
    the command that removes it. It is none while it holds, while somebody waits for it, or by
    another query, or by other consumers.
    """
    record = LeaseRecord(A, 30.0, 4, 9)
    message = stored(record.renewed(released=released).to_bytes(), 31.0)
    (lease,) = lease_states({"S.hot": message}, NOW, PLAIN, {("hot", "a")})
    others = [
        lease_states({"S.hot": message} | messages, NOW, PLAIN, alone)[0]
        for messages, alone in [
            ({}, {("hot", "b"), ("cold", "a")}),
            ({"S.hot.waits.b": waiting(B, 1.0)}, {("hot", "a")}),
            ({"S.hot": stored(record.to_bytes(), 8.0)}, {("hot", "a")}),
        ]
    ]

    assert (lease.holder, lease.left_s, lease.is_read, lease.problems) == ("a", None, True, ())
    assert lease.notes == (
        "query flights reads without standby; `nats kv del SPARK_STANDBY S.hot` removes the lease",
    )
    assert not any("without standby" in note for each in others for note in each.notes)
    assert [each.is_read for each in others] == [False, False, True]
    assert bool(others[0].problems) is not released


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"owner": 3}', b"null", b'{"owner": {}}'])
def test_what_is_no_record(data):
    """A record that is none is a problem; somebody who waits by none does not wait."""
    (lease,) = lease_states(
        {"S.c": stored(data, 1.0), "S.c.waits.x": stored(data, 1.0)}, NOW, PLAIN
    )

    assert lease.waiting == ()
    assert len(lease.problems) == 1 and "no record of a standby" in lease.problems[0]


def test_only_leases_that_are_asked_for():
    """
    Keys go by the streams that are looked at, a stream a partition among them, and by consumers
    where these are known.
    """
    keys = ["S.a", "S.b", "S.a.waits.q", "F-=.a", "T.a", "S.a.waits.q.x", "S", "S.a.b"]

    assert wanted_keys(keys, ["S"], []) == ["S.a", "S.b", "S.a.waits.q"]
    assert wanted_keys(keys, ["S", "F-12"], ["a"]) == ["S.a", "S.a.waits.q", "F-=.a"]
    assert wanted_keys(keys, ["F-x"], []) == []


def test_a_lease_of_several_streams():
    """Its key names no stream, the record those that are read: the lease is shown with how many."""
    offset = Offset((1, 2), (0, 0), {"B": "t", "A": "t"}, "c", layout=Layout.of_streams("BA"))
    record = LeaseRecord(A, 30.0, 1, 0, offset)
    (lease,) = lease_states({"=.c": stored(record.to_bytes(), 1.0)}, NOW, PLAIN)

    assert (lease.stream, lease.streams, lease.holder) == ("2 streams", ("A", "B"), "a")
    assert wanted_keys(["=.c", "=.d", "=.c.waits.q"], ["A"], ["c"]) == ["=.c", "=.c.waits.q"]
