"""
Queries that share a consumer, and a stream that is taken back to an older copy: no new message is
acknowledged unread, and none is read twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.readstream.shared.streams import SharedStreams

from ..kits.options import connection_of
from ..kits.reading import Query, hang_up
from ..kits.shared import eventually
from ..kits.stores import Store
from .test_shared_fence import WAITS


def test_a_shared_stream_that_was_taken_back(tmp_path):
    """
    A stream that comes back older and has outgrown what was claimed ends the query, also when it
    starts again.
    """
    store = Store(tmp_path)
    client = Client(connection_of(store.server.url))
    js = JetStream(client)
    js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
    one = Query(store.server, stream="S", priorityPolicy="overflow", consumer="jobs")
    try:
        for i in range(20):
            js.publish(f"s.{i}", b"x", [])
        one.step()
        store.copy()
        for i in range(20):
            js.publish(f"s.{i}", b"x", [])
        one.drain()
        store.take_back("S")
        for i in range(40):
            js.publish(f"s.{i}", b"x", [])
        for _ in range(2):
            with pytest.raises(DataLossError, match="older copy of it was restored.*written to"):
                one.step()
            one.restart()
    finally:
        one.die()
        client.close()
        store.server.close()


@pytest.mark.parametrize("new", [10, 40], ids="{} new ones".format)
@pytest.mark.parametrize("restarts", [False, True], ids=["same run", "restarted"])
@pytest.mark.parametrize("fails", ["true", "false"], ids="failOnDataLoss={}".format)
def test_a_shared_stream_that_was_taken_back_behind_what_others_had(tmp_path, new, restarts, fails):
    """
    A query whose own last batch is older than the copy knows from the others' record that the
    stream was taken back: new messages under sequences that others had committed are not
    acknowledged unread. It ends at each start, or reads them.
    """
    store = Store(tmp_path)
    client = Client(connection_of(store.server.url))
    js = JetStream(client)
    js.create_stream(
        {"name": "S", "subjects": ["s.>"], "allow_direct": True, "retention": "workqueue"}
    )
    options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs"} | WAITS
    one, two = (Query(store.server, **options, failOnDataLoss=each) for each in ("true", fails))
    try:
        for i in range(20):
            js.publish(f"s.{i}", b"old", [])
        two.plan()  # 1 to 10: below them is no ack floor that could tell
        one.step()
        store.copy()
        for i in range(20):
            js.publish(f"s.{i}", b"old", [])
        one.drain()
        two.commit()
        store.take_back("S")
        for i in range(new):
            js.publish(f"s.{i}", b"new", [])
        if restarts:
            two.restart()
        if fails == "true":
            with pytest.raises(DataLossError, match="older copy of it was restored"):
                eventually(lambda: two.step() and False)
            js.pause("S", "jobs-0", datetime(2099, 1, 1, tzinfo=UTC))  # nothing is dealt to it
            for _ in range(2):
                two.restart()
                with pytest.raises(DataLossError, match="older copy of it was restored"):
                    two.step()
        else:
            eventually(lambda: two.drain() or set(range(21, 21 + new)) <= set(two.sequences))

        assert sorted(one.sequences) == list(range(11, 41))
        unread = js.messages("S", [{"seq": 21 + n} for n in range(new)])
        assert {each is not None and each.data for each in unread} == {fails == "true" and b"new"}
    finally:
        one.die()
        two.die()
        client.close()
        store.server.close()


class World:
    """A store with one stream, `S`, and queries that go on after a loss."""

    def __init__(self, home, **config) -> None:
        self.store = Store(home)
        self.client = Client(connection_of(self.store.server.url))
        self.js = JetStream(self.client)
        self.js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True} | config)
        self.queries: list[Query] = []

    def query(self, **options) -> Query:
        shared = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs"} | WAITS
        shared |= {"failOnDataLoss": "false"} | options
        self.queries.append(Query(self.store.server, **shared))
        return self.queries[-1]

    def publish(self, data: bytes, messages: int) -> None:
        for i in range(messages):
            self.js.publish(f"s.{i}", data, [])

    @property
    def new(self) -> list[int]:
        """Sequences of the new messages that were read."""
        rows = [row for query in self.queries for row in query.rows]
        return sorted(row["sequence"] for row in rows if row["data"] == b"new")

    def close(self) -> None:
        for query in self.queries:
            query.die()
        self.client.close()
        self.store.server.close()


@pytest.fixture
def world(tmp_path) -> Callable[..., World]:
    """Makes the world, once."""
    made: list[World] = []

    def make(**config) -> World:
        made.append(World(tmp_path, **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_claims_that_were_made_ahead(world):
    """
    Claims from before the stream was taken back are in no batch behind it, although the stream is
    longer again: under their sequences are messages that another query may have.
    """
    w = world()
    one = w.query(ackWait="60s")
    w.publish(b"old", 20)
    one.drain()
    w.store.copy()
    w.publish(b"old", 80)
    eventually(one.step)
    one.step()
    one.plan()
    one.commit()
    ahead = one.reader._driver.member.ahead
    eventually(lambda: any(ahead._claimed.values()))
    w.store.take_back("S")
    one.plan()
    one.commit()
    w.publish(b"new", 60)
    two = w.query(ackWait="60s", maxRecordsPerTrigger=100)
    eventually(lambda: two.drain() or one.drain() or len(w.new) >= 60)

    assert w.new == list(range(21, 81))


def test_a_batch_from_the_log_behind_it(world):
    """
    A run that begins with a batch from the write-ahead log acknowledges the batch before, but not
    where the stream was taken back between the two. Where open batches are noted, the record tells
    that the batch before is acknowledged.
    """
    w = world(retention="workqueue")
    one, two = (w.query(claimsLedger="false") for _ in range(2))
    w.publish(b"old", 10)
    w.store.copy()  # without a consumer
    w.publish(b"old", 10)
    assert eventually(one.step) == 10
    assert eventually(one.step) == 10
    w.store.take_back("S")
    w.publish(b"new", 20)
    w.js.create_consumer("S", {
        "durable_name": "jobs-0", "ack_policy": "explicit", "ack_wait": 3 * 10**9,
        "max_ack_pending": 100_000, "headers_only": True, "deliver_policy": "all",
        "priority_groups": ["spark"], "priority_policy": "overflow",
    })  # fmt: skip
    eventually(one.plan)  # 1 to 10, again
    one.die()
    eventually(two.claim)  # 11 to 20, and dies
    two.die()
    one.restart()
    eventually(lambda: one.drain() or len(w.new) >= 20)

    assert w.new == list(range(11, 31))


@pytest.mark.parametrize("learns", ["before", "after"])
def test_what_others_settled_since(world, learns):
    """
    A query that learns late that the stream was taken back does not forget what another one has
    settled since: if the server forgets acks then, nothing is read twice.
    """
    w = world()
    one, two = w.query(), w.query()
    w.publish(b"old", 20)
    one.drain()
    w.store.copy()
    w.publish(b"old", 20)
    two.drain()
    w.store.take_back("S")
    w.publish(b"new", 20)
    if learns == "before":
        two.reader._driver._streams.look_at_streams()
    (consumers,) = w.store.home.glob("**/streams/S/obs")
    eventually(lambda: one.drain() or len(w.new) >= 20)
    one.claim()
    assert w.js.consumer_info("S", "jobs-0").ack_floor == 40
    (older,) = w.store.older.glob("**/streams/S/obs")
    w.store.take_back_directory(consumers, older)
    two.drain()
    eventually(lambda: two.drain() or w.js.consumer_info("S", "jobs-0").ack_floor == 40)

    assert w.new == list(range(21, 41))


def behind_others(w: World, **options) -> Query:
    """
    A query that was stopped when its stream was taken back behind what another one had read: it
    learns that from the record. The new messages are 21 to 80.
    """
    one, two = w.query(**options), w.query(**options)
    w.publish(b"old", 10)
    two.drain()
    w.publish(b"old", 10)
    one.drain()
    w.store.copy()
    w.publish(b"old", 20)
    one.drain()
    assert len(one.rows) == 30 and len(two.rows) == 10
    one.die()
    two.die()
    w.store.take_back("S")
    w.publish(b"new", 60)
    return two


@pytest.mark.parametrize("most", [10, 1000])
def test_available_now_behind_it(world, most):
    """
    A run that ends at what is there reads all of it, though it learns of the loss only as it joins.
    """
    w = world()
    two = behind_others(w)
    two.restart(maxRecordsPerTrigger=most)
    two.reader.prepareForTriggerAvailableNow()
    two.drain()

    assert w.new == list(range(21, 81))


def test_a_new_checkpoint_behind_it(world):
    """
    Also a query that has lost nothing itself ends at each start, until one goes on after the loss.
    """
    w = world()
    behind_others(w)
    for _ in range(2):
        new = w.query(failOnDataLoss="true")
        with pytest.raises(DataLossError, match="older copy of it was restored"):
            eventually(new.step)
        new.die()
    eventually(lambda: w.query().drain() or len(w.new) == 60)
    w.publish(b"new", 1)
    after = w.query(failOnDataLoss="true")
    eventually(lambda: after.drain() or len(w.new) == 61)


@pytest.mark.parametrize("when", ["at its start", "amid its claims"])
def test_claims_that_were_dropped_are_no_deliveries(world, monkeypatch, when):
    """
    What was dropped comes again, and is no dead letter: it was in no batch.
    """
    w = world()
    w.js.create_stream({"name": "DEAD", "subjects": ["dead.>"]})
    two = behind_others(w, maxDeliver=1, deadLetterSubject="dead.x")
    if when == "amid its claims":
        monkeypatch.setattr(SharedStreams, "check_since", later(SharedStreams.check_since))
    two.restart()
    eventually(lambda: two.drain() or len(w.new) + w.js.stream_info("DEAD").messages >= 60)

    assert w.js.stream_info("DEAD").messages == 0
    assert w.new == list(range(21, 81))


def later(check):
    """The check without its first call."""
    calls = []

    def checked(self, marks):
        calls.append(marks)
        if len(calls) > 1:
            check(self, marks)

    return checked


def test_a_query_forgets_beside_a_busy_one(world):
    """
    That a stream is shorter is sure only after a while, in which another query of other streams
    changes the record again and again.
    """
    w = world()
    for name in ("T", "U"):
        w.js.create_stream({"name": name, "subjects": [f"{name.lower()}.>"], "allow_direct": True})
    one, two = (w.query(stream=names, ackWait="10s") for names in ("S,T", "T,U"))
    w.publish(b"x", 20)
    one.drain()
    w.store.copy()
    w.publish(b"x", 20)
    one.drain()
    w.store.take_back("S")
    w.publish(b"x", 3)
    two.drain()
    over, client = threading.Event(), Client(connection_of(w.store.server.url))

    def busy() -> None:
        while not over.is_set():
            JetStream(client).publish("u.1", b"x", [])
            two.step()
            over.wait(0.2)
        hang_up()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        one.step()
    finally:
        over.set()
        thread.join(120)
        client.close()
