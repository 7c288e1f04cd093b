"""Claims that outlive their query, or not: replays, deaths, heartbeats, acks."""

import random
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.readstream.shared.claimedread import ClaimedRead
from pyspark_jetstream.readstream.shared.claims import Claim, gathered

from ..kits.reading import jobs as query
from ..kits.shared import RETENTIONS, ack_pending, eventually, numbered, numbered_stream

__all__ = ["numbered_stream", "query"]


def test_a_replay_has_the_recorded_claims(js, numbered_stream, query):
    """A batch that is run again has the same rows and deliveries while others claim."""
    name = numbered_stream(60)
    one, two = (query(stream=name, maxRecordsPerTrigger=20) for _ in range(2))
    one.plan()
    first = one.read()
    two.drain()
    one.restart()
    again = list(one.rows)
    one.drain()

    assert again == first
    assert sorted(one.sequences + two.sequences) == list(range(1, 61))
    assert ack_pending(js, name) == 0


def test_asked_twice_claims_once(js, numbered_stream, query):
    """Asked again from the same start, the same claims are the answer."""
    name = numbered_stream(20)
    one = query(stream=name, maxRecordsPerTrigger=5)
    first = one.claim()

    assert one.claim() == first
    one.drain()
    assert sorted(one.sequences) == list(range(1, 21))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_claims_of_a_dead_query_return(js, new_stream, publish, query, retention):
    """What was claimed and not recorded goes to others after the ack wait, delivery 2."""
    name = new_stream(retention=retention)
    one = query(stream=name, maxRecordsPerTrigger=10, ackWait="4s")
    two = query(stream=name)
    assert one.claim() is None and two.claim() is None
    publish(numbered(name, 20))
    one.step()
    one.claim()  # in no log yet
    one.die()
    eventually(lambda: two.drain() or len(two.rows) == 10)
    one.restart()
    one.drain()

    assert sorted(one.sequences + two.sequences) == list(range(1, 21))
    assert {row["deliveries"] for row in two.rows} == {2}
    assert {row["deliveries"] for row in one.rows} == {1}


def test_heartbeats_keep_claims(js, numbered_stream, query):
    """While a query lives, a batch longer than its ack wait keeps its claims."""
    name = numbered_stream(10)
    one, two = query(stream=name, ackWait="12s"), query(stream=name)
    one.plan()
    until = time.monotonic() + 19
    while time.monotonic() < until:
        assert two.claim() is None
    assert ack_pending(js, name) == 10, "a heartbeat acknowledges nothing"
    assert js.consumer_info(name, "jobs-0").consumer_seq == 10, "and none is delivered again"
    one.commit()
    one.claim()

    assert two.claim() is None
    assert sorted(one.sequences) == list(range(1, 11))
    assert ack_pending(js, name) == 0
    assert not any(one.reader.driver.heartbeats._held.values())


def test_heartbeats_keep_the_claims_of_a_replay(js, numbered_stream, query):
    """A batch that runs again may take many ack waits as well."""
    name = numbered_stream(10)
    one, two = query(stream=name, ackWait="8s"), query(stream=name)
    one.plan()
    one.die()
    one.reader = query(stream=name).reader
    one.read()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert two.claim() is None


def test_available_now_does_not_count_what_comes_again(js, numbered_stream, publish, query):
    """Claims of a dead query that return are read as well, and end no run before it."""
    name = numbered_stream(10)
    dead = query(stream=name, ackWait="4s")
    dead.claim()
    dead.die()
    publish(numbered(name, 10, start=10))
    eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 10)
    one = query(stream=name, maxRecordsPerTrigger=5)
    time.sleep(8)  # nothing tells when the ack wait is over but a delivery
    one.reader.prepareForTriggerAvailableNow()
    one.drain()
    assert sorted(one.sequences) == list(range(1, 21))


@pytest.mark.parametrize(
    ("by", "own"),
    [(None, range(1, 1001)), ("*.0", range(1, 1001, 2)), ("0.0", range(1, 1001, 100))],
)
def test_scattered_claims(js, new_stream, publish, by, own):
    """Claims with gaps and several deliveries are read in order, whoever filters."""
    name = new_stream()
    publish([(f"{name}.{i // 2 % 50}.{i % 2}", b"m%d" % i) for i in range(1000)])
    rng = random.Random(7)
    deliveries = {s: rng.choice((1, 1, 2, 3)) for s in rng.sample(list(own), min(12, len(own)))}
    read = ClaimedRead(
        partition=3,
        stream=name,
        filter=f"{name}.{by}" if by else None,
        start=0,
        end=0,
        expected=None,
        include_headers=False,
        fail_on_data_loss=True,
        layout=Layout(()),
        claims={},
    ).of(gathered(Claim(*each) for each in deliveries.items()))
    rows = [row for batch in read.batches(js.client) for row in batch.to_pylist()]

    assert [(row["sequence"], row["deliveries"]) for row in rows] == sorted(deliveries.items())
    assert {row["partition"] for row in rows} == {3}
    assert all(row["data"] == b"m%d" % (row["sequence"] - 1) for row in rows)


def test_what_was_committed_is_acknowledged_by_the_next_run(js, new_stream, publish, query):
    """A query that dies between its commit and the acks acknowledges when it is back."""
    name = new_stream(retention="workqueue")
    publish(numbered(name, 10))
    one = query(stream=name)
    one.step()
    assert ack_pending(js, name) == 10
    one.restart()
    assert one.claim() is None

    assert ack_pending(js, name) == 0
    assert js.stream_info(name).messages == 0


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_the_one_before_is_back_while_its_claims_are_read(
    js, new_stream, publish, query, retention
):
    """Acks of a query that is back late take messages from another's batch: no data loss."""
    name = new_stream(retention=retention)
    one, two = (
        query(stream=name, ackWait="4s", maxRecordsPerTrigger=10),
        query(stream=name),
    )
    assert one.claim() is None and two.claim() is None
    publish(numbered(name, 10))
    one.step()
    one.die()
    eventually(lambda: ack_pending(js, name) == 10 and two.plan())
    publish(numbered(name, 5, start=10))
    one.restart()
    one.step()
    two.commit()

    assert {row["deliveries"] for row in one.rows} == {1}
    assert sorted(one.sequences + two.sequences) == list(range(1, 16))


def test_a_single_batch_is_refused(js, numbered_stream, query):
    """`trigger(once=True)` never acknowledges its batch, so it is refused."""
    name = numbered_stream(3)
    reader = query(stream=name).reader

    with pytest.raises(OptionError, match="availableNow"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize(("seed", "retention"), list(enumerate(RETENTIONS)))
def test_random_deaths(js, new_stream, publish, query, seed, retention):
    """Three queries that die at random and are back in time commit each message once."""
    rng = random.Random(seed)
    name = new_stream(retention=retention)
    queries = [query(stream=name, maxRecordsPerTrigger=rng.randint(1, 9)) for _ in range(3)]
    for each in queries:
        assert each.claim() is None
    publish(numbered(name, 200))
    for _ in range(80):
        each = rng.choice(queries)
        if each.plan() is None:
            continue
        point = rng.random()
        if point < 0.3:
            each.restart()  # recorded, not committed
        else:
            each.commit()
            if point < 0.5:
                each.restart()  # committed, not acknowledged
    for each in queries:
        each.drain()

    assert sorted(s for each in queries for s in each.sequences) == list(range(1, 201))
    assert ack_pending(js, name) == 0
