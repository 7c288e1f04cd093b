"""What streaming reads count, published over a real server and scraped from the exporter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.publish.metrics import READ_METRICS
from pyspark_jetstream.readstream.reporting import CountedWork
from pyspark_jetstream.values import Secret

from ..conftest import connection_to
from ..kits.exporter import Reads, Scrapes, exporter
from ..kits.pins import Query
from ..kits.servers import DevServer
from ..kits.shared import query as shared_query
from ..kits.sources import NewStream, Publish, numbered
from ..kits.tenants import Tenants, tenants
from .test_standby import LEASE, until_it_reads

__all__ = ["exporter", "shared_query", "tenants"]

Start = Callable[..., Scrapes]


@pytest.fixture
def reads(nats_server: DevServer, exporter: Start, subject: str) -> Reads:
    """An exporter of the shared server."""
    return Reads(exporter(nats_server, "--metrics-subject", subject))


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """Where this test's queries report."""
    return f"spark.metrics.{request.node.originalname}"


@pytest.fixture
def query(nats_server: DevServer, subject: str) -> Iterator[Callable[..., Query]]:
    """Makes queries that report."""
    made: list[Query] = []

    def make(server: DevServer | None = None, **options: Any) -> Query:
        told = {"metricsSubject": subject, "metricsInterval": "100ms"}
        made.append(Query(server or nats_server, **told | options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def until(of: Query, holds: Callable[[], bool]) -> None:
    """Batches until something holds."""
    deadline = time.monotonic() + 60
    while not holds():
        of.batch()
        assert time.monotonic() < deadline


def both(name: str) -> dict[str, Any]:
    """Options of a stream with two partitions."""
    return {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}


def test_what_a_query_reads(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads
) -> None:
    """
    By partition the rows and payload bytes are those that were read, the lag is what came since the
    last batch, and 0 when that is read, too; the batch under way is over when Spark asks again;
    batches, tasks and pins are counted; what does not happen is there as 0.
    """
    name = new_stream()
    publish([*numbered(name, 10, 2), (f"{name}.1.x", b"abc")])
    one = query(consumer="flights", **both(name))
    first = one.batch()
    reads.wait("rows_total", {("0",): 5, ("1",): 6}, query="flights", stream=name)
    reads.wait("bytes_total", {("0",): 10, ("1",): 13})
    reads.wait("batch_messages", {("0",): 5, ("1",): 6})
    reads.wait("lag_messages", {("0",): 0, ("1",): 0})
    publish(numbered(name, 6, 2))
    reads.wait("lag_messages", {("0",): 3, ("1",): 3})
    second = one.batch()
    one.batch()
    reads.wait("batch_messages", {("0",): 0, ("1",): 0})
    reads.wait("lag_messages", {("0",): 0, ("1",): 0})
    reads.wait("rows_total", {("0",): 8, ("1",): 9})
    reads.wait("pinned", {("0",): 1, ("1",): 1})

    assert (len(first), len(second)) == (11, 6)
    assert reads.of("active") == {(): 1}
    assert reads.of("batch_seconds_count") == {(): 2}
    assert reads.of("task_seconds_count") == {(): 4}
    # Two, where the driver had not heard of the first one when it planned the second batch.
    assert {*reads.of("pins_total").values()} <= {1, 2}
    assert reads.of("unpins_total", partition="0").keys() == {
        ("admin",), ("attempt",), ("leader",), ("timeout",),
    }  # fmt: skip
    assert reads.of("unpins_total", partition="0")["admin",] == 0
    for each in ("strangers", "claims", "redelivered", "dead_letters"):
        assert reads.of(f"{each}_total") == {("0",): 0, ("1",): 0}


def test_streams_that_come_and_go(
    tenants: Tenants, query: Callable[..., Query], reads: Reads
) -> None:
    """
    Of several streams rows and lag are by stream, also of one that comes; of one that was deleted
    the rows stay, and the lag is gone.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    one = query(
        streamPattern=f"{tenants.prefix}-*", queryName="tenants", failOnDataLoss="false",
    )  # fmt: skip
    one.batch()
    reads.wait("rows_total", {("0",): 3}, query="tenants", stream=tenants.name("a"))
    tenants.make("c")
    tenants.fill("b", "c", count=2)
    until(one, lambda: ("0",) in reads.of("rows_total", stream=tenants.name("c")))
    reads.wait("rows_total", {("0",): 2}, stream=tenants.name("c"))
    reads.wait("rows_total", {("0",): 5}, stream=tenants.name("b"))
    tenants.fill("c", count=4)
    reads.wait("lag_messages", {("0",): 4}, stream=tenants.name("c"))
    tenants.remove("b")
    until(one, lambda: not reads.of("lag_messages", stream=tenants.name("b")))

    assert reads.of("rows_total", stream=tenants.name("b")) == {("0",): 5}
    assert reads.of("pins_total") == {}


def test_the_end_of_a_query(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads
) -> None:
    """
    When a query has stopped its counts stay and it stands nowhere any more; started again from its
    checkpoint it goes by the same name.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, queryName="Flights")
    one.batch()
    reads.wait("lag_messages", {("0",): 0})
    one.stop()
    reads.wait("lag_messages", {})
    publish(numbered(name, 4))
    again = query(start=one.at, stream=name, queryName="Flights")
    again.batch()
    reads.wait("rows_total", {("0",): 14}, query="Flights")

    assert reads.of("active", query="Flights") == {(): 1}


def test_a_pause_amid_a_batch(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads,
    js: JetStream,
) -> None:  # fmt: skip
    """
    Consumers that are paused when a batch is planned already are paused ones for the metrics, while
    its tasks wait; the driver, which Spark does not ask meanwhile, is not the only one to look.
    """
    name = new_stream()
    publish(numbered(name, 10, 2))
    one = query(consumer="flights", readMode="consumer", **both(name))
    one.batch()
    publish(numbered(name, 10, 2))
    one.plan()
    reads.wait("paused", {("0",): 0, ("1",): 0})
    js.pause(name, "flights-1", datetime.now(UTC) + timedelta(hours=1))
    reads.wait("paused", {("0",): 0, ("1",): 1})
    js.pause(name, "flights-1", None)
    reads.wait("paused", {("0",): 0, ("1",): 0})


def test_a_batch_that_is_run_again(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads
) -> None:
    """
    A batch of the run before, which Spark has planned from its log without asking where it ends,
    counts, and so does what has come behind it.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name)
    end, _ = one.plan()
    one.stop()
    publish(numbered(name, 3))
    again = query(stream=name)
    tasks = again.reader.partitions(one.at, end)
    reads.wait("batch_messages", {("0",): 10})
    reads.wait("lag_messages", {("0",): 3})
    for task in tasks:
        assert sum(batch.num_rows for batch in again.reader.read(task)) == 10

    reads.wait("rows_total", {("0",): 10})


@pytest.mark.parametrize("mode", ["consumer", "direct"])
def test_rows_of_every_way_to_read(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads, mode: str
) -> None:
    """
    Through consumers and by direct get, where one task has rows of all partitions, rows count for
    their partitions.
    """
    name = new_stream()
    publish(numbered(name, 301, 2))
    one = query(readMode=mode, **both(name))
    found = one.batch()
    reads.wait("rows_total", {("0",): 151, ("1",): 150}, stream=name)
    reads.wait("lag_messages", {("0",): 0, ("1",): 0}, stream=name)

    assert len(found) == 301


def test_claims_of_a_shared_consumer(
    new_stream: NewStream, publish: Publish, shared_query: Callable[..., Any], reads: Reads,
    subject: str,
) -> None:  # fmt: skip
    """
    Claims, those that somebody had before, and dead letters are counted; the lag is what nobody has
    claimed, and claims of all wait for their ack until the next batch.
    """
    name, dead = new_stream(), new_stream()
    publish([(f"{name}.a", b"m%d" % i) for i in range(10)])
    options = {
        "stream": name, "maxRecordsPerTrigger": 6, "ackWait": "4s", "maxDeliver": 1,
        "abandonAfter": "8s", "deadLetterSubject": f"{dead}.x", "metricsSubject": subject,
        "metricsInterval": "100ms",
    }  # fmt: skip
    first = shared_query(**options, queryName="first")
    first.plan()
    reads.wait("claims_total", {("0",): 6}, query="first")
    reads.wait("lag_messages", {("0",): 4}, query="first")
    reads.wait("ack_pending_messages", {("0",): 6}, query="first")
    first.die()
    second = shared_query(**options, queryName="second")
    while sum(reads.of("claims_total", query="second").values()) < 10:
        second.step()
    second.step()
    reads.wait("dead_letters_total", {("0",): 6}, query="second")
    reads.wait("redelivered_total", {("0",): 6}, query="second")
    reads.wait("ack_pending_messages", {("0",): 0}, query="second")

    assert sorted(second.sequences) == [7, 8, 9, 10]
    reads.wait("rows_total", {("0",): 4}, query="second")
    assert reads.of("claims_total", query="second") == {("0",): 10}
    assert reads.of("lag_messages", query="second") == {("0",): 0}


def test_a_standby(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], reads: Reads
) -> None:
    """
    Of two queries with a standby each says whether it reads, by its own name; the one that waits
    has no lag. When the first has ended the second reads.
    """
    name = new_stream()
    publish(numbered(name, 10))
    first, second = query(stream=name, **LEASE), query(stream=name, **LEASE)
    first.batch()
    second.batch()
    names = [f"hot/{each.at['query']}" for each in (first, second)]
    for number, label in enumerate(names):
        reads.wait("active", {(): 1 - number}, query=label)
    reads.wait("lag_messages", {("0",): 0}, query=names[0])
    assert reads.of("lag_messages", query=names[1]) == {}
    publish(numbered(name, 5))
    first.stop()
    until_it_reads(second)
    reads.wait("active", {(): 1}, query=names[1])
    reads.wait("active", {}, query=names[0])

    reads.wait("lag_messages", {("0",): 0}, query=names[1])


def test_without_the_option_nothing_is_there(
    new_stream: NewStream, publish: Publish, query: Callable[..., Query], nats_server: DevServer
) -> None:
    """
    Without `metricsSubject` there is no thread and no connection of it, and tasks are as ever.
    """
    name = new_stream()
    publish(numbered(name, 10))
    plain = Query(nats_server, stream=name)
    try:
        _, tasks = plain.plan()
        threads = {each.name for each in threading.enumerate()}
    finally:
        plain.stop()
    counted = query(stream=name)
    _, others = counted.plan()

    assert "metrics" not in threads
    assert [isinstance(task.work, CountedWork) for task in (*tasks, *others)] == [False, True]
    assert "metrics" in {each.name for each in threading.enumerate()}


def test_a_batch_is_counted_where_one_of_its_streams_was_made_anew(
    js: JetStream, new_stream: NewStream, publish: Publish, query: Callable[..., Query]
) -> None:
    """
    The task of that stream has no rows; those of the other one are counted as ever.
    """
    names = [new_stream(f"COUNTED-{number}") for number in range(2)]
    of = {"stream": "COUNTED-{partition}", "partitions": 2, "failOnDataLoss": "false"}
    one = query(**of)
    one.batch()
    publish([(f"{name}.x", b"x") for name in names for _ in range(5)])
    start = one.at
    end, _ = one.plan()
    js.delete_stream(names[0])
    new_stream(names[0])
    again = query(start=start, **of)
    tasks = again.reader.partitions(start, end)
    rows = [row for task in tasks for batch in again.reader.read(task) for row in batch.to_pylist()]

    assert [row["stream"] for row in rows] == [names[1]] * 5
    assert [type(task.work) for task in tasks] == [CountedWork] * 2


def test_who_may_not_report_reads(
    query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    """
    A user that may not publish on the subject reads as ever; each connection says so once.
    """
    config = """
    authorization { users = [
      {user: all, password: a},
      {user: some, password: s, permissions: {publish: {deny: "spark.>"}}},
    ] }
    """
    with DevServer(config) as server:
        js = JetStream(Client(connection_to(server, user="all", password=Secret("a"))))
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        one = query(server, stream="S", user="some", password="s")
        total = 0
        for _ in range(5):
            for number in range(10):
                js.publish(f"S.{number}", b"x", [])
            total += 10
            one.batch()
        one.stop()
        js.client.close()

    assert one.sequences == list(range(1, total + 1))
    warnings = [r for r in caplog.records if "sends nothing there any more" in r.message]
    assert 1 <= len(warnings) <= 2


def test_a_server_that_was_away(
    query: Callable[..., Query], exporter: Callable[..., Scrapes], subject: str
) -> None:
    """
    Reports of the time without a server are lost, and made up for by those after it: the query and
    the sums go on.
    """
    with DevServer() as server:
        client = Client(connection_to(server))
        JetStream(client).create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        found = Reads(exporter(server, "--metrics-subject", subject))
        one = query(server, stream="S")
        for total in (10, 20):
            for number in range(10):
                JetStream(client).publish(f"S.{number}", b"x", [])
            one.batch()
            found.wait("rows_total", {("0",): total})
            found.wait("batch_seconds_count", {(): total // 10 - 1})
            server.restart()
            found.scrapes.wait(lambda n=total: found.scrapes.log.count("following ") == n // 10 + 1)
        one.batch()
        found.wait("batch_seconds_count", {(): 2})
        found.wait("lag_messages", {("0",): 0})
        one.stop()
        client.close()

    assert one.sequences == list(range(1, 21))


def test_every_metric_is_exported(reads: Reads) -> None:
    """
    The exporter has a family for each of them, with its help.
    """
    text = reads.scrapes.text()

    for metric in READ_METRICS.values():
        assert f"# HELP {metric.name} {metric.doc}" in text
