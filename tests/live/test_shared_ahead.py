"""Claims for the next batch, made while one runs: when, how many, and what becomes of them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.readstream.shared import ahead as ahead_module
from pyspark_jetstream.readstream.shared import member as member_module

from ..conftest import connection_to
from ..kits.answers import answer
from ..kits.shared import RETENTIONS, ack_pending, eventually, numbered, query

__all__ = ["query"]


@pytest.fixture
def always(monkeypatch):
    """However long a batch of a test took, the next is expected to be short."""
    monkeypatch.setattr(member_module, "_SHORT", 0)


def second_batch(js, name, one, claimed: int) -> None:
    """Runs a first batch, and plans the second; waits for so many claims that are open then."""
    assert one.step() == 10
    assert one.plan() is not None
    eventually(lambda: ack_pending(js, name) == claimed)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_next_batch_is_claimed_while_one_runs(
    js, new_stream, publish, query, nats_server, retention
):
    """
    On the wire: while Spark is busy with a batch the next one is pulled, before anything of this
    one is read; the plan of the next has these claims, and each message is in one batch.
    """
    name = new_stream(retention=retention)
    one = query(stream=name, maxRecordsPerTrigger=10)
    assert one.claim() is None
    publish(numbered(name, 60))
    spy = Client(connection_to(nats_server))
    try:
        seen = spy.connection.subscribe(f"{js.prefix}.>")
        spy.connection.ping(60.0)
        second_batch(js, name, one, 20)
        one.commit()
        said = []
        spy.connection.send(wire.pub(f"{js.prefix}.END", b""))
        while not said or said[-1] != "END":
            subject = answer(spy.connection, seen).subject.decode()
            said.append(subject.removeprefix(f"{js.prefix}.").partition(f".{name}")[0])
    finally:
        spy.close()
    calls = [call for call in said if call in ("CONSUMER.MSG.NEXT", "DIRECT.GET")]
    pulls = {number for number, call in enumerate(calls) if call == "CONSUMER.MSG.NEXT"}
    gets = [number for number, call in enumerate(calls) if call == "DIRECT.GET"]
    assert len(gets) == 2 and len([n for n in pulls if gets[0] < n < gets[1]]) == 2, calls

    ahead = one.plan()
    assert ahead["claims"] == {"0": {"1": "21-30"}}
    one.commit()
    one.drain()
    assert one.sequences == list(range(1, 61))
    assert {row["deliveries"] for row in one.rows} == {1}
    assert ack_pending(js, name) == 0


@pytest.mark.usefixtures("always")
def test_no_more_than_half_of_what_others_might_have(js, new_stream, publish, query):
    """
    A query that is busy leaves others as much as it takes ahead, of messages and of
    `maxAckPending`.
    """
    for room, ahead in ((500_000, 3), (14, 2)):
        name = new_stream()
        publish(numbered(name, 26))
        one, two = (query(stream=name, maxRecordsPerTrigger=10, maxAckPending=room) for _ in "12")
        second_batch(js, name, one, 10 + ahead)
        one.commit()
        two.drain()
        one.drain()

        assert sorted(one.sequences + two.sequences) == list(range(1, 27))
        assert len(two.sequences) >= ahead
        assert ack_pending(js, name) == 0


@pytest.mark.parametrize("why", ["batches take long", "maxDeliver"])
def test_nothing_is_claimed_ahead(js, new_stream, publish, query, monkeypatch, why):
    """
    Where batches take long all that a query has not begun is there for others; with `maxDeliver` as
    well, as what is given back counts as delivered.
    """
    name, dead = new_stream(), new_stream()
    options = {"maxRecordsPerTrigger": 10}
    if why == "maxDeliver":
        monkeypatch.setattr(member_module, "_SHORT", 0)
        options |= {"maxDeliver": 2, "deadLetterSubject": f"{dead}.x"}
    else:
        monkeypatch.setattr(member_module, "_KEEP_S", 0.0)
    publish(numbered(name, 60))
    one, two = query(stream=name, **options), query(stream=name)
    assert one.step() == 10
    one.plan()
    assert not one.reader.driver.member.ahead.take()
    two.drain()
    one.commit()
    one.drain()

    assert (sorted(one.sequences), len(two.rows)) == (list(range(1, 21)), 40)


@pytest.mark.usefixtures("always")
def test_claims_ahead_are_given_back_in_time(js, new_stream, publish, query, monkeypatch):
    """
    What is claimed ahead while a batch takes longer than expected others have long before the ack
    wait is over, and the query that is busy does not have it as well.
    """
    monkeypatch.setattr(member_module, "_KEEP_S", 0.3)
    name = new_stream()
    publish(numbered(name, 60))
    one, two = (query(stream=name, maxRecordsPerTrigger=10) for _ in range(2))
    second_batch(js, name, one, 20)
    eventually(lambda: two.drain() or len(two.rows) == 40)
    one.commit()
    one.drain()

    assert sorted(one.sequences + two.sequences) == list(range(1, 61))
    assert {row["sequence"] for row in two.rows if row["deliveries"] == 2} == set(range(21, 31))
    assert ack_pending(js, name) == 0


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_query_that_stops_gives_back(js, new_stream, publish, query, retention):
    """
    Others have what it claimed ahead at once; what it recorded it has when it is back.
    """
    name = new_stream(retention=retention)
    one, two = (query(stream=name, maxRecordsPerTrigger=10) for _ in range(2))
    assert one.claim() is None
    publish(numbered(name, 60))
    second_batch(js, name, one, 20)
    one.die()
    eventually(lambda: two.drain() or len(two.rows) == 40)
    one.restart()
    one.drain()

    assert (sorted(two.sequences), one.sequences) == (list(range(21, 61)), list(range(1, 21)))
    assert ack_pending(js, name) == 0


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_query_that_is_killed(js, new_stream, publish, query, monkeypatch, retention):
    """
    What it had claimed ahead, which nobody gives back, returns after the ack wait; until then
    nobody else has it.
    """
    name = new_stream(retention=retention)
    one = query(stream=name, maxRecordsPerTrigger=10, ackWait="3s")
    two = query(stream=name)
    assert one.claim() is None
    ahead = one.reader.driver.member.ahead
    ahead.keep_s = 60.0
    publish(numbered(name, 60))
    second_batch(js, name, one, 20)
    two.drain()
    assert sorted(two.sequences) == list(range(31, 61))
    monkeypatch.setattr(ahead_module, "give_back", lambda *_: None)
    one.restart()  # within the ack wait: the batch that was recorded
    eventually(lambda: two.drain() or len(two.rows) == 40)
    one.drain()

    assert (sorted(two.sequences), one.sequences) == (list(range(21, 61)), list(range(1, 21)))
    assert ack_pending(js, name) == 0


@pytest.mark.usefixtures("always")
def test_claims_that_are_older_than_half_the_ack_wait(js, new_stream, publish, query, monkeypatch):
    """
    A process that stood still may find the heartbeats going again before it looks: claims ahead
    from before are in no batch and are not given back, as they may be somebody else's.
    """
    name = new_stream()
    publish(numbered(name, 60))
    one, two = (query(stream=name, maxRecordsPerTrigger=10, ackWait="4s") for _ in range(2))
    second_batch(js, name, one, 20)
    eventually(lambda: repr(one.reader.driver.member.ahead) == "<Ahead 10 claims>")
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2.5)
    monkeypatch.setattr(ahead_module, "time", later)
    one.commit()
    assert one.plan()["claims"] == {"0": {"1": "31-40"}}
    one.commit()
    eventually(lambda: two.drain() or one.drain() or len(one.rows) + len(two.rows) == 60)

    assert sorted(one.sequences + two.sequences) == list(range(1, 61))
    assert ack_pending(js, name) == 0


@pytest.mark.usefixtures("always")
def test_claims_ahead_of_a_stream_that_is_no_more(js, new_stream, publish, query):
    """
    Sequences of a stream of the same name, made anew, are other messages: what was claimed ahead of
    the old one is in no batch.
    """
    name = new_stream()
    publish(numbered(name, 60))
    one = query(stream=name, maxRecordsPerTrigger=10, failOnDataLoss="false")
    second_batch(js, name, one, 20)
    one.commit()
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
    js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    js.create_consumer(name, config)
    publish([(f"{name}.new", b"new")] * 5)
    eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 5)
    assert one.step() == 5

    assert [row["data"] for row in one.rows[20:]] == [b"new"] * 5
    assert ack_pending(js, name) == 5
    assert "of 5 claims" in repr(one.reader.driver.member.heartbeats)
