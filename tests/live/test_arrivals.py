"""A driver that waits for messages is told when one comes, and takes none by it."""

from __future__ import annotations

import json
import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.fetch.owner import STRANGER, Owner
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream import arrivals, rangedriver
from pyspark_jetstream.readstream.pinned import neighbours
from pyspark_jetstream.readstream.pinned.durables import Durables
from pyspark_jetstream.readstream.pinned.ownership import ConsumerView
from pyspark_jetstream.readstream.reader import StreamReader

from ..kits.proxy import Proxy
from ..kits.reading import hang_up
from ..kits.shared import eventually

_LONG_S = 60.0


class Query:
    """A query of two partitions, driven as Spark does."""

    def __init__(self, url: str, **options: str) -> None:
        self.reader = StreamReader(parse_stream({"servers": url} | options))
        self.at = self.reader.initialOffset()

    def look(self) -> dict:
        """Where the next batch would end."""
        return self.reader.latestOffset(self.at, ReadAllAvailable())

    def batch(self, end: dict) -> list[bytes]:
        """The payloads of the batch that ends here."""
        tasks = self.reader.partitions(self.at, end)
        batches = [batch for task in tasks for batch in self.reader.read(task)]
        self.at = end
        return sorted(data for batch in batches for data in batch.column("data").to_pylist())


class Told(Query):
    """One whose driver has heard of its attempts' pins before it waits."""

    def batch(self, end: dict) -> list[bytes]:
        read = super().batch(end)
        eventually(self.knows_its_pins)  # a pull under an older one ends at once
        return read

    def knows_its_pins(self) -> bool:
        """Whether what the attempts announced has been heard, of pins that have not ended."""
        return all(
            info.pinned_id == "" or self.is_announced(partition, info)
            for partition, info in enumerate(self.js.consumer_infos(self.consumers()))
        )

    def is_announced(self, partition: int, info) -> bool:
        """What the driver answers a task that asks whose a pin is."""
        inbox = Owner.of(info.config).inbox
        question = json.dumps({"partition": partition, "pin": info.pinned_id}).encode()
        return self.js.client.request(f"{inbox}.whose", question).data != STRANGER


@pytest.fixture(params=["limits", "interest", "workqueue"])
def retention(request):
    return request.param


@pytest.fixture
def proxy(nats_server):
    """Before the server: what the query's connections ask is seen there, and can be cut off."""
    with Proxy(nats_server.port) as proxy:
        yield proxy
        hang_up()


@pytest.fixture(params=["streams", "filtered"])
def query(request, proxy, js, new_stream, retention, publish):
    """A query that has read a batch, and how to publish to one of its partitions."""
    if request.param == "streams":
        name = new_stream()
        names = [new_stream(f"{name}-{p}", retention=retention) for p in range(2)]
        options = {"stream": f"{name}-{{partition}}", "partitions": "2"}
        subjects = [f"{each}.x" for each in names]
    else:
        name = new_stream(retention=retention)
        names = [name, name]
        options = {"stream": name, "partitions": "2", "partitionSubject": f"{name}.{{partition}}.>"}
        subjects = [f"{name}.{p}.x" for p in range(2)]
    made = Told(proxy.url, **options)
    made.js = js
    made.send = lambda p, data: publish([(subjects[p], data)])
    made.consumers = lambda: [(n, f"{made.at['consumer']}-{p}") for p, n in enumerate(names)]
    made.batch(made.look())
    made.send(0, b"first")
    end = made.look()
    assert made.batch(end) == [b"first"]
    yield made
    made.reader.stop()


@pytest.fixture
def only_told(monkeypatch):
    """Nothing but what is heard ends a wait."""
    monkeypatch.setattr(rangedriver, "_IDLE_WAIT_S", _LONG_S)
    monkeypatch.setattr(rangedriver, "_LOOK_EVERY_S", _LONG_S)


def later(call, *arguments) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def asked(proxy, what: bytes) -> int:
    """How often all connections of the query have asked for this."""
    return sum(text.count(what) for text in proxy.heard)


def waits(js, query) -> bool:
    """Whether the driver's pulls are with the server."""
    infos = js.consumer_infos(query.consumers())
    return all(info.num_waiting for info in infos)


def test_a_message_ends_the_wait(js, query, only_told):
    """
    A message to either partition ends the wait for it at once, is read, and read once, whatever the
    retention; a pull is open while the query waits, and none when it has ended.
    """
    read = []
    for partition, data in [(1, b"a"), (0, b"b"), (0, b"c"), (1, b"d")]:

        def send(partition=partition, data=data):
            eventually(lambda: waits(js, query))
            query.send(partition, data)

        sender = later(send)
        end = query.look()
        sender.join()
        assert end != query.at
        read += query.batch(end)
        query.reader.commit(query.at)
    query.reader.stop()

    assert read == [b"a", b"b", b"c", b"d"]
    eventually(lambda: not any(i.num_waiting for i in js.consumer_infos(query.consumers())))


def test_a_new_query_waits_for_nothing(nats_server, new_stream, monkeypatch):
    """
    The first batch of a query has no rows where a stream has none: it is planned at once, the next
    one is waited for.
    """
    waits = []
    monkeypatch.setattr(Durables, "wait", lambda self, start, *_: waits.append(start.sequences))
    query = Query(nats_server.url, stream=new_stream())

    end = query.look()
    assert end["sequences"] == [0] and not waits
    assert query.reader.partitions(query.at, end) == []
    query.at = end
    assert query.look() == end and waits == [(0,)]
    query.reader.stop()


@pytest.mark.parametrize("retention", ["limits"], indirect=True)
def test_a_pin_that_has_ended_is_no_obstacle(js, query, only_told):
    """
    Whether the query's pin ends before it waits or meanwhile, a message ends the wait, and nobody
    is pinned by that.
    """

    def unpin():
        for stream, consumer in query.consumers():
            js.unpin(stream, consumer, "spark")

    unpin()
    sender = later(lambda: (eventually(lambda: waits(js, query)), query.send(0, b"a")))
    end = query.look()
    sender.join()
    pinned = [info.pinned_id for info in js.consumer_infos(query.consumers())]

    assert end != query.at
    assert pinned == ["", ""]
    assert query.batch(end) == [b"a"]


@pytest.mark.parametrize("retention", ["limits"], indirect=True)
@pytest.mark.parametrize("lost", ["unheard", "deaf"])
def test_what_is_not_heard_is_found(js, query, monkeypatch, lost):
    """
    A message is found where the word of it was lost, and where nobody listens.
    """
    if lost == "unheard":
        monkeypatch.setattr(arrivals.Arrivals, "end_pull", lambda *_: None)
    else:
        monkeypatch.setattr(arrivals.Arrivals, "due", lambda *_: {})
    assert query.look() == query.at
    query.send(1, b"a")
    deadline = time.monotonic() + _LONG_S
    while (end := query.look()) == query.at:
        assert time.monotonic() < deadline

    assert query.batch(end) == [b"a"]


@pytest.mark.parametrize("retention", ["limits"], indirect=True)
def test_its_own_pull_is_no_other_clients(js, query, monkeypatch):
    """
    A batch of one partition, while the driver's pull waits at the other one.
    """
    monkeypatch.setattr("pyspark_jetstream.readstream.pinned.durables._LOOK_EVERY_S", 0.0)
    judged: list[ConsumerView] = []
    monkeypatch.setattr(neighbours, "foreign_client", judged.append)
    eventually(lambda: query.look() == query.at and waits(js, query))
    query.send(0, b"a")
    eventually(lambda: (end := query.look()) != query.at and query.batch(end))

    assert js.consumer_infos(query.consumers())[1].num_waiting == 1
    assert judged and {view.waiting for view in judged} == {0}


@pytest.mark.parametrize("retention", ["limits"], indirect=True)
def test_no_pull_outlives_who_listens(js, query, proxy):
    """
    When the listener's connection broke there is again one pull a partition, and no other: those
    of before would pass for another client's.
    """
    for _ in range(3):
        eventually(lambda: query.look() == query.at and waits(js, query))
        before = asked(proxy, b"CONSUMER.MSG.NEXT")
        proxy.cut(b"$JS.EVENT.ADVISORY")  # the listener's
        eventually(
            lambda before=before: (
                query.look() == query.at and asked(proxy, b"CONSUMER.MSG.NEXT") >= before + 2
            )
        )
        waiting = [info.num_waiting for info in js.consumer_infos(query.consumers())]

        assert max(waiting) <= 1


@pytest.mark.parametrize("retention", ["limits"], indirect=True)
def test_a_word_that_is_false_ends_no_query(js, query, proxy):
    """
    A consumer that stands before the query's offset has messages that the query has read: the
    driver looks once, and then as often as if it heard nothing.
    """
    for stream, consumer in query.consumers():
        js.reset(stream, consumer, 1)
    streams = len({stream for stream, _ in query.consumers()})
    pulls, looks = asked(proxy, b"CONSUMER.MSG.NEXT"), []

    def misled_looks() -> bool:
        before = asked(proxy, b"STREAM.INFO")
        for _ in range(5):
            assert query.look() == query.at
        looks.append((asked(proxy, b"STREAM.INFO") - before) / streams)
        return looks[-1] >= 5

    eventually(misled_looks)  # the word may be late
    pulls = asked(proxy, b"CONSUMER.MSG.NEXT") - pulls
    misled = js.consumer_infos(query.consumers())[0]
    query.send(1, b"a")

    assert 1 <= pulls <= 2 and misled.num_waiting == 0  # it was told, and does not ask again
    assert looks[-1] <= 11
    assert eventually(lambda: (end := query.look()) != query.at and query.batch(end)) == [b"a"]


def test_what_was_read_around_the_consumers_is_not_told(
    js, nats_server, new_stream, publish, monkeypatch
):
    """
    A query that waits after a batch of which the consumers know nothing moves these along, though
    Spark commits the batch only with the next one: else each pull would tell of what was read.
    """
    stream = new_stream()
    one = Told(nats_server.url, stream=stream)
    one.js, one.consumers = js, lambda: [(stream, f"{one.at['consumer']}-0")]
    one.batch(one.look())
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_jetstream.fetch.planning.choose_mode", lambda **_: "own")
        publish([(f"{stream}.x", b"x")] * 40)
        assert len(one.batch(one.look())) == 40
    assert one.look() == one.at
    eventually(lambda: one.look() == one.at and waits(js, one))
    one.reader.commit(one.at)
    publish([(f"{stream}.x", b"y")])
    eventually(lambda: one.look() != one.at)
    last = one.batch(one.look())
    one.reader.stop()

    assert last == [b"y"]
