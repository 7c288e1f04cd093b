"""Queries that share a consumer, called as Spark calls them, against a real server."""

from __future__ import annotations

import random
import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_jetstream import deadletters, poison
from pyspark_jetstream.claimedread import ClaimedRead, read_claimed
from pyspark_jetstream.claims import Claim, gathered
from pyspark_jetstream.client import Client
from pyspark_jetstream.devserver import DevCluster, DevServer
from pyspark_jetstream.errors import (
    DataLossError,
    JetStreamError,
    NotConnectedError,
    OffsetError,
    OptionError,
    PermissionsError,
    RequestTimeoutError,
    RowError,
)
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.values import Secret

from ..conftest import connection_to
from .sharedkit import Query, eventually, query, text

__all__ = ["query"]

RETENTIONS = ["limits", "interest", "workqueue"]


def numbered(name: str, n: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{name}.{i % 7}", b"m%d" % i) for i in range(start, start + n)]


def ack_pending(js, name: str, consumer: str = "jobs-0") -> int:
    return js.consumer_info(name, consumer).num_ack_pending


# ── who gets what ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", RETENTIONS)
def test_two_queries_have_the_stream_between_them(js, new_stream, publish, query, retention):
    """
    Two queries that take turns have each message once between them, with its payload, subject and
    one delivery; what is committed is acknowledged, and leaves the stream where retention says so.
    """
    name = new_stream(retention=retention)
    one, two = (query(stream=name, maxRecordsPerTrigger=30) for _ in range(2))
    assert one.claim() is None and two.claim() is None  # makes the consumer
    publish(numbered(name, 100))
    while one.step() + two.step():
        pass

    rows = {row["sequence"]: row for row in one.rows + two.rows}
    assert sorted(one.sequences + two.sequences) == list(range(1, 101))
    assert len(one.rows) >= 30 and len(two.rows) >= 30
    assert {(s, row["subject"], row["data"], row["deliveries"]) for s, row in rows.items()} == {
        (i + 1, f"{name}.{i % 7}", b"m%d" % i, 1) for i in range(100)
    }
    assert ack_pending(js, name) == 0
    assert js.consumer_info(name, "jobs-0").config["headers_only"]
    assert js.stream_info(name).messages == (100 if retention == "limits" else 0)


def test_overflow_by_pending(js, new_stream, publish, query):
    """
    `minPending`: a query is served only while so many messages wait. The server looks again for
    each message (ADR-42, "overflow"; >= as measured).
    """
    name = new_stream()
    primary, second = query(stream=name), query(stream=name, minPending=11)
    publish(numbered(name, 10))

    assert second.claim() is None
    publish(numbered(name, 3, start=10))
    assert second.step() == 3, "13, 12 and 11 are served, the tenth last is not"
    assert second.claim() is None
    assert primary.step() == 10
    assert sorted(primary.sequences + second.sequences) == list(range(1, 14))


def test_overflow_by_claims(js, new_stream, publish, query):
    """
    `minAckPending`: a query is served only while so many claims of others are not acknowledged.
    """
    name = new_stream()
    primary = query(stream=name, maxRecordsPerTrigger=5)
    second = query(stream=name, minAckPending=5)
    publish(numbered(name, 12))

    assert second.claim() is None
    primary.plan()
    assert second.step() == 7, "five claims are open: the rest goes to the overflow query"
    primary.commit()
    assert sorted(primary.sequences + second.sequences) == list(range(1, 13))


def test_overflow_by_either(js, new_stream, publish, query):
    """
    With both thresholds one that is reached is enough (ADR-42: boolean OR).
    """
    name = new_stream()
    second = query(stream=name, minAckPending=1000, minPending=3)
    publish(numbered(name, 4))

    assert second.step() == 2
    assert second.claim() is None  # acknowledges
    primary, third = query(stream=name), query(stream=name, minAckPending=2, minPending=1000)
    assert third.claim() is None
    primary.plan()
    publish(numbered(name, 3, start=4))
    assert third.step() == 3


def test_a_query_may_wait_for_its_message(js, new_stream, publish, query):
    """
    An idle query has a pull waiting: a message that comes meanwhile is claimed by that call.
    """
    name = new_stream()
    one = query(stream=name, priorityPolicy="prioritized")
    assert one.claim() is None
    stop, found = threading.Event(), []

    def poll() -> None:
        while not stop.is_set() and not found:
            end = one.plan()
            if end is not None:
                found.append(end)

    thread = threading.Thread(target=poll)
    thread.start()
    publish([(f"{name}.x", b"1")])
    thread.join(30)
    stop.set()

    assert found[0]["claims"] == {"0": {"1": "1"}}


def test_partitions_are_claimed_alike(js, new_stream, publish, query):
    """
    With several partitions a batch has its part of each; what one lacks goes to the others.
    """
    name = new_stream()
    publish([(f"{name}.{p}.x", b"%d" % i) for i in range(40) for p in (0, 1)])
    publish([(f"{name}.2.x", b"only")])
    one = query(stream=name, partitions=3, partitionSubject=f"{name}.{{partition}}.>",
                maxRecordsPerTrigger=31)  # fmt: skip
    end = one.plan()
    one.commit()
    counts = [sum(row["partition"] == p for row in one.rows) for p in range(3)]

    assert sum(counts) == 31
    assert counts[2] == 1
    assert abs(counts[0] - counts[1]) <= 2
    assert set(end["claims"]) == {"0", "1", "2"}
    assert all(row["subject"].split(".")[1] == str(row["partition"]) for row in one.rows)
    one.drain()
    assert sorted(one.sequences) == list(range(1, 82))


def test_streams_layout(js, new_stream, publish, query):
    """
    One stream a partition: each has its own shared consumer.
    """
    base = new_stream()
    names = [new_stream(f"{base}-{p}", subjects=[f"{base}x{p}.>"]) for p in (0, 1)]
    publish([(f"{base}x{p}.a", b"x") for p in (0, 1) for _ in range(5)])
    one = query(stream=f"{base}-{{partition}}", partitions=2)
    one.drain()

    assert sorted((r["stream"], r["sequence"]) for r in one.rows) == [
        (name, s) for name in names for s in range(1, 6)
    ]


def test_headers_and_tasks(js, new_stream, publish, query):
    """
    Headers come with `includeHeaders`, `deliveries` behind them; `minPartitions` and
    `maxRecordsPerPartition` cut a batch into tasks.
    """
    name = new_stream()
    publish([(f"{name}.a", b"x", [("A", "1"), ("A", "2")])] * 10)
    one = query(stream=name, includeHeaders="true", minPartitions=4, maxRecordsPerPartition=3)
    one.plan()
    tasks = one.reader.partitions(one.start, one.planned[-1])
    one.commit()

    assert [task.read.expected for task in tasks] == [2, 3, 2, 3]
    assert list(one.rows[0])[-2:] == ["headers", "deliveries"]
    assert one.rows[0]["headers"] == [("A", ["1", "2"])]


def test_a_start_other_than_the_first_message(js, new_stream, publish, query):
    """
    The query that makes the consumer says where it begins; those that join take it as it is.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, startingOffsets='{"0": 8}')
    two = query(stream=name, startingOffsets="earliest")
    one.drain()
    two.drain()

    assert one.sequences == [8, 9, 10]
    assert two.sequences == []


def test_available_now(js, new_stream, publish, query):
    """
    A run of what is there claims as much as was waiting when it began, and ends.
    """
    name = new_stream()
    publish(numbered(name, 25))
    one = query(stream=name, maxRecordsPerTrigger=10)
    one.reader.prepareForTriggerAvailableNow()
    one.step()
    publish(numbered(name, 50, start=25))
    one.drain()

    assert one.sequences == list(range(1, 26))
    assert ack_pending(js, name) == 0


def test_batches_are_limited(js, new_stream, publish, query):
    """
    `maxRecordsPerTrigger` and `maxBytesPerTrigger` limit what a batch claims.
    """
    name = new_stream()
    publish([(f"{name}.a", bytes(1000))] * 50)
    by_rows = query(stream=name, maxRecordsPerTrigger=7)
    by_bytes = query(stream=name, maxBytesPerTrigger=5000)

    assert by_rows.step() == 7
    assert 2 <= by_bytes.step() <= 5


def test_a_consumer_that_is_full(js, new_stream, publish, query):
    """
    At `maxAckPending` nobody gets more until somebody acknowledges.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one, two = (query(stream=name, maxAckPending=20) for _ in range(2))
    one.plan()

    assert two.claim() is None
    one.commit()
    assert one.step() == 10
    assert sorted(one.sequences) == list(range(1, 31))


def test_progress(js, new_stream, publish, query):
    """
    The progress tells claims of this query, of all readers, and what nobody has claimed.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one, two = (query(stream=name, maxRecordsPerTrigger=10) for _ in range(2))
    one.plan()
    two.plan()

    assert two.reader.reportLatestOffset() == {
        "0": {"stream": name, "latest": 30, "lag": 10, "ackPending": 20, "claimed": 10,
              "redelivered": 0}
    }  # fmt: skip


# ── replays, deaths, heartbeats ──────────────────────────────────────────────────────────────


def test_a_replay_has_the_recorded_claims(js, new_stream, publish, query):
    """
    A batch that is run again by another run has the same rows, deliveries included, while others
    go on claiming.
    """
    name = new_stream()
    publish(numbered(name, 60))
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


def test_asked_twice_claims_once(js, new_stream, publish, query):
    """
    Spark may ask for a batch and not record it: asked again from the same start, the same claims
    are the answer, and none is forgotten.
    """
    name = new_stream()
    publish(numbered(name, 20))
    one = query(stream=name, maxRecordsPerTrigger=5)
    first = one.claim()

    assert one.claim() == first
    one.drain()
    assert sorted(one.sequences) == list(range(1, 21))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_claims_of_a_dead_query_return(js, new_stream, publish, query, retention):
    """
    What a query claimed and did not record returns to the others after the ack wait, with its
    second delivery; the query that comes back does not have it either.
    """
    name = new_stream(retention=retention)
    one = query(stream=name, maxRecordsPerTrigger=10, ackWait="1s")
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


def test_heartbeats_keep_claims(js, new_stream, publish, query):
    """
    A batch may take many ack waits: while its query lives nobody else gets its claims.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = query(stream=name, ackWait="1s"), query(stream=name)
    one.plan()
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert two.claim() is None
    assert ack_pending(js, name) == 10, "a heartbeat acknowledges nothing"
    one.commit()
    one.claim()

    assert two.claim() is None
    assert sorted(one.sequences) == list(range(1, 11))
    assert ack_pending(js, name) == 0
    assert "of 0 claims" in repr(one.reader._run._heartbeats)


def test_heartbeats_keep_the_claims_of_a_replay(js, new_stream, publish, query):
    """
    A batch that runs again may take many ack waits as well.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = query(stream=name, ackWait="1s"), query(stream=name)
    one.plan()
    one.die()
    one.reader = query(stream=name).reader
    one.read()
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert two.claim() is None


def test_available_now_does_not_count_what_comes_again(js, new_stream, publish, query):
    """
    Claims of a dead query come on top of what is waiting, and do not end the run before it.
    """
    name = new_stream()
    publish(numbered(name, 10))
    dead = query(stream=name, ackWait="1s")
    dead.claim()
    dead.die()
    publish(numbered(name, 10, start=10))
    eventually(lambda: js.consumer_info(name, "jobs-0").num_pending == 10)
    one = query(stream=name, maxRecordsPerTrigger=5)
    time.sleep(3)  # nothing tells when the ack wait is over but a delivery
    one.reader.prepareForTriggerAvailableNow()
    one.drain()
    assert sorted(one.sequences) == list(range(1, 21))


@pytest.mark.parametrize(
    ("by", "own"),
    [(None, range(1, 1001)), ("*.0", range(1, 1001, 2)), ("0.0", range(1, 1001, 100))],
)
def test_scattered_claims(js, new_stream, publish, by, own):
    """
    Claims with small and large gaps between them, of several deliveries, are read completely, in
    order, each with its deliveries, whoever filters: nobody, we, or the server.
    """
    name = new_stream()
    publish([(f"{name}.{i // 2 % 50}.{i % 2}", b"m%d" % i) for i in range(1000)])
    rng = random.Random(7)
    deliveries = {s: rng.choice((1, 1, 2, 3)) for s in rng.sample(list(own), min(12, len(own)))}
    read = ClaimedRead(
        partition=3,
        stream=name,
        filter=f"{name}.{by}" if by else None,
        claims=gathered(Claim(*each) for each in deliveries.items()),
        include_headers=False,
        fail_on_data_loss=True,
    )
    rows = [row for batch in read_claimed(js.client, read) for row in batch.to_pylist()]

    assert [(row["sequence"], row["deliveries"]) for row in rows] == sorted(deliveries.items())
    assert {row["partition"] for row in rows} == {3}
    assert all(row["data"] == b"m%d" % (row["sequence"] - 1) for row in rows)


def test_what_was_committed_is_acknowledged_by_the_next_run(js, new_stream, publish, query):
    """
    A query that dies between its commit and the acks acknowledges when it is back.
    """
    name = new_stream(retention="workqueue")
    publish(numbered(name, 10))
    one = query(stream=name)
    one.step()
    assert ack_pending(js, name) == 10
    one.restart()
    assert one.claim() is None

    assert ack_pending(js, name) == 0
    assert js.stream_info(name).messages == 0


def test_back_after_the_ack_wait(js, new_stream, publish, query):
    """
    The limit that the README states: a query that comes back later than its ack wait runs the
    batch it had recorded once more, although another query has had it. On a work queue the other
    one's acks have removed the messages, and the replay is without them.
    """
    twice = {}
    for retention in ("limits", "workqueue"):
        name = new_stream(retention=retention)
        publish(numbered(name, 10))
        one, two = query(stream=name, ackWait="1s"), query(stream=name)
        one.plan()
        one.die()
        eventually(lambda two=two: two.drain() or len(two.rows) == 10)
        one.restart()
        twice[retention] = sorted(one.sequences)

    assert twice == {"limits": list(range(1, 11)), "workqueue": []}


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_the_one_before_is_back_while_its_claims_are_read(
    js, new_stream, publish, query, retention
):
    """
    A query that is back after its ack wait acknowledges its batch, which removes messages that
    another query has claimed meanwhile and not yet read. That is no data loss, and no error of the
    other query: it has the rest.
    """
    name = new_stream(retention=retention)
    one, two = query(stream=name, ackWait="1s", maxRecordsPerTrigger=10), query(stream=name)
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
    publish(numbered(name, 3, start=15))
    two.plan()
    js.purge(name, None, None)
    with pytest.raises(DataLossError, match="3 of 3"):
        two.read()


def test_never_back_after_a_commit(js, new_stream, publish, query):
    """
    The limit that the README states: a query that ends between its commit and the next plan has not
    acknowledged its last batch, and where it does not come back others have that batch as well.
    """
    name = new_stream()
    publish(numbered(name, 20))
    one = query(stream=name, ackWait="1s", maxRecordsPerTrigger=10)
    two = query(stream=name)
    one.step()
    one.step()
    one.die()
    eventually(lambda: two.drain() or two.rows)

    assert sorted(two.sequences) == list(range(11, 21)), "the first batch was acknowledged"
    assert {row["deliveries"] for row in two.rows} == {2}


def test_a_single_batch_is_refused(js, new_stream, publish, query):
    """
    `trigger(once=True)`, which Spark makes a limit of all there is, never acknowledges its batch.
    """
    name = new_stream()
    publish(numbered(name, 3))
    reader = query(stream=name).reader

    with pytest.raises(OptionError, match="availableNow"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize(("seed", "retention"), list(enumerate(RETENTIONS)))
def test_random_deaths(js, new_stream, publish, query, seed, retention):
    """
    Three queries that die at random points and are back within the ack wait have each message in
    exactly one committed batch.
    """
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


def test_the_server_restarts(tmp_path):
    """
    A server that restarts, and one that is frozen for a while, cost time and no message.
    """
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    maxRecordsPerTrigger=10)  # fmt: skip
        try:
            for i in range(40):
                client.request(f"s.{i}", b"x")
            one.step()
            one.plan()
            server.restart()
            one.commit()
            one.plan()
            server.pause()
            thawing = threading.Timer(2, server.resume)
            thawing.start()
            one.commit()
            one.drain()
            thawing.join()

            assert sorted(one.sequences) == list(range(1, 41))
            assert js.consumer_info("S", "jobs-0").num_ack_pending == 0
        finally:
            one.die()
            client.close()


def test_a_server_that_does_not_answer(tmp_path):
    """
    A frozen server ends in a typed error within `requestTimeout`.
    """
    with DevServer() as server:
        client = Client(connection_to(server))
        JetStream(client).create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    requestTimeout="2s", connectTimeout="1s")  # fmt: skip
        try:
            assert one.claim() is None
            server.pause()
            with pytest.raises((RequestTimeoutError, NotConnectedError)):
                one.claim()
        finally:
            server.resume()
            one.die()
            client.close()


def test_a_killed_server_may_forget_deliveries(tmp_path, caplog):
    """
    A server without replicas that is killed may have forgotten its last deliveries: acks of those
    are not answered, which is said and does not hold up the query; every message is read.
    """
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_to(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    maxRecordsPerTrigger=10)  # fmt: skip
        try:
            for i in range(40):
                client.request(f"s.{i}", b"x")
            one.step()
            one.plan()
            js.reset("S", "jobs-0", 11)  # as if the second batch had not been delivered
            one.commit()
            one.drain()

            assert sorted(set(one.sequences)) == list(range(1, 41))
            assert "has forgotten 10 deliveries" in caplog.text
            assert js.consumer_info("S", "jobs-0").num_ack_pending == 0
        finally:
            one.die()
            client.close()


def test_leader_changes_in_a_cluster():
    """
    On three replicas the leaders of stream and consumer change between and during batches; each
    message is claimed once.
    """
    with DevCluster(3) as cluster:
        client = Client(connection_to(cluster.servers[0]))
        js = JetStream(client)
        js.create_stream(
            {"name": "S", "subjects": ["s.>"], "allow_direct": True, "num_replicas": 3}
        )
        options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs",
                   "servers": cluster.urls, "maxRecordsPerTrigger": 15}  # fmt: skip
        queries = [Query(cluster.servers[0], **options) for _ in range(2)]
        try:
            for i in range(150):
                client.request(f"s.{i}", b"x")
            for turn in range(6):
                one = queries[turn % 2]
                one.plan()
                kind = "CONSUMER" if turn % 3 else "STREAM"
                what = "S.jobs-0" if turn % 3 else "S"
                client.request(f"{js.prefix}.{kind}.LEADER.STEPDOWN.{what}", b"")
                if len(one.planned) > one.committed:
                    one.commit()

            def drained() -> bool:
                for one in queries:
                    one.drain()
                return sum(len(one.rows) for one in queries) >= 150

            eventually(drained, 60)
            assert sorted(s for one in queries for s in one.sequences) == list(range(1, 151))
        finally:
            for one in queries:
                one.die()
            client.close()


# ── poison ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_message_delivered_too_often_is_a_dead_letter(js, new_stream, publish, query, retention):
    """
    Beyond `maxDeliver` a message goes to the dead-letter subject with what it was, and is
    terminated; the next query does not see it.
    """
    name = new_stream(retention=retention)
    dead = new_stream()
    publish([(f"{name}.a", b"poison", [("Nats-Msg-Id", "7"), ("K", "v")])])
    options = {"stream": name, "ackWait": "1s", "maxDeliver": 2,
               "deadLetterSubject": f"{dead}.{{subject}}"}  # fmt: skip
    for delivery in (1, 2):
        one = query(maxRecordsPerTrigger=1, **options)
        end = eventually(one.claim)
        assert end["claims"] == {"0": {str(delivery): "1"}}
        one.die()
    publish([(f"{name}.b", b"good")])
    last = query(**options)
    eventually(lambda: last.drain() or len(last.rows) == 1)
    eventually(lambda: ack_pending(js, name) == 0 or last.drain())
    (letter,) = js.messages(dead, [{"seq": 1}])
    headers = dict(letter.headers)

    assert [row["data"] for row in last.rows] == [b"good"]
    assert (letter.subject, letter.data) == (f"{dead}.{name}.a", b"poison")
    assert headers["Jetstream-Sink-Original-Subject"] == f"{name}.a"
    assert headers["Jetstream-Sink-Original-Nats-Msg-Id"] == "7"
    assert headers["Nats-Msg-Id"] == f"{name}-1.dlq"
    assert headers["Jetstream-Sink-Reason"].startswith("MaxDeliver: delivered 3 times")
    assert headers["K"] == "v"
    assert js.stream_info(dead).messages == 1
    assert last.reader.reportLatestOffset()["0"]["deadLetters"] == 1
    if retention == "workqueue":
        eventually(lambda: last.claim() or js.stream_info(name).messages == 0)


def test_a_dead_letter_that_is_too_large(js, new_stream, publish, query):
    """
    A message that fills `max_payload` has no room for the headers of a dead letter: an error that
    says which, and not a connection that breaks again and again. It stays claimed.
    """
    name, dead = new_stream(), new_stream()
    most = js.client.connection.max_payload
    publish([(f"{name}.a", bytes(most))])
    one = query(stream=name, ackWait="1s")
    one.claim()
    one.die()
    two = query(stream=name, maxDeliver=1, deadLetterSubject=f"{dead}.{{subject}}")

    with pytest.raises(RowError, match=f"message 1 of stream '{name}' .* max_payload of {most}"):
        eventually(two.claim)
    assert js.stream_info(dead).messages == 0
    assert ack_pending(js, name) == 1


def test_many_dead_letters(js, new_stream, publish, query, monkeypatch):
    """
    All that was delivered too often is fetched in parts, and each message becomes a dead letter.
    """
    monkeypatch.setattr(poison, "_TOGETHER", 2)
    name, dead = new_stream(), new_stream()
    publish(numbered(name, 5))
    one = query(stream=name, ackWait="1s")
    one.claim()
    one.die()
    two = query(stream=name, maxDeliver=1, deadLetterSubject=f"{dead}.{{subject}}")
    eventually(lambda: two.claim() or js.stream_info(dead).messages)

    letters = js.messages(dead, range(1, 6))
    assert [letter.data for letter in letters] == [b"m%d" % i for i in range(5)]
    assert ack_pending(js, name) == 0
    assert two.reader.reportLatestOffset()["0"]["deadLetters"] == 5


def test_dead_letters_can_be_restored(js, new_stream, publish, query):
    """
    `restore`, by which jobs/replay_dead_letters.py reads them, gives the message back.
    """
    import pyarrow as pa

    to, headers = deadletters.letter(
        "dead.{subject}", "a.b", [("Nats-Msg-Id", "7"), ("K", "v")], "MaxDeliver: 3", "S-1.dlq"
    )
    column = pa.array(
        [[(name, [value]) for name, value in headers]], pa.map_(pa.string(), pa.list_(pa.string()))
    )
    (row,) = deadletters.restore(column).to_pylist()

    assert to == "dead.a.b"
    assert (row["subject"], row["msg_id"], row["reason"]) == ("a.b", "7", "MaxDeliver")
    assert row["headers"] == [("K", ["v"])]


def test_dead_letters_need_a_stream_of_their_own(js, new_stream, query):
    """
    A dead-letter subject that no stream takes, or that the query reads, is refused. One that a
    stream takes for just the subjects of this query is not.
    """
    name = new_stream()
    new_stream(subjects=[f"dead.{name}.*"])
    assert query(stream=name, maxDeliver=2, deadLetterSubject="dead.{subject}").claim() is None
    with pytest.raises(OptionError, match=f"no stream takes 'died.{name}.x'"):
        query(stream=name, maxDeliver=2, deadLetterSubject="died.{subject}").claim()
    with pytest.raises(OptionError, match="no stream takes"):
        query(stream=name, maxDeliver=2, deadLetterSubject="nowhere.x").claim()
    with pytest.raises(OptionError, match="would come back"):
        query(stream=name, maxDeliver=2, deadLetterSubject=f"{name}.dead").claim()


# ── what is refused, what is lost ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "options", "option", "says"),
    [
        ({"deliver_subject": "x"}, {}, "consumer", "push consumer"),
        ({}, {}, "consumer", "no priority group"),
        (
            {"priority_policy": "overflow", "priority_groups": ["other"]},
            {},
            "priorityGroup",
            "has the group other",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark", "more"]},
            {},
            "priorityGroup",
            "spark, more",
        ),
        (
            {"priority_policy": "pinned_client", "priority_groups": ["spark"]},
            {},
            "priorityPolicy",
            "has pinned_client",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"]},
            {"priorityPolicy": "prioritized"},
            "priorityPolicy",
            "has overflow",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"], "ack_policy": "all"},
            {},
            "consumer",
            "ack_policy",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"], "filter_subject": "f"},
            {},
            "consumer",
            "filter_subject",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"], "max_deliver": 3},
            {},
            "consumer",
            "max_deliver",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"]},
            {"ackWait": "7s"},
            "ackWait",
            "leave the option out",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"]},
            {"maxAckPending": 7},
            "maxAckPending",
            "leave the option out",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["spark"], "max_ack_pending": 5},
            {"minAckPending": 6},
            "minAckPending",
            "never reached",
        ),
    ],
)
def test_a_consumer_of_another_kind(js, new_stream, publish, query, config, options, option, says):
    """
    A consumer that cannot be shared as the options say is one error on the driver, before a
    message is claimed.
    """
    name = new_stream()
    publish(numbered(name, 3))
    js.create_consumer(name, {"durable_name": "jobs-0", "ack_policy": "explicit"} | config)

    with pytest.raises(OptionError, match=says) as caught:
        query(stream=name, **options).claim()
    assert caught.value.option == option
    assert js.consumer_info(name, "jobs-0").consumer_seq == 0


def test_streams_that_cannot_be_shared(js, new_stream, query):
    """
    Without direct get nothing can be fetched; a work queue is read from its beginning.
    """
    with pytest.raises(OptionError, match="direct get off"):
        query(stream=new_stream(allow_direct=False)).claim()
    with pytest.raises(OptionError, match="work queue"):
        query(stream=new_stream(retention="workqueue"), startingOffsets="latest").claim()


def test_a_checkpoint_of_another_query(js, new_stream, publish, query):
    """
    A checkpoint that was written with other settings is refused, and named.
    """
    name = new_stream()
    publish(numbered(name, 3))
    one = query(stream=name)
    end = one.plan()
    limit = ReadMaxRows(1)
    pinned = {"version": 1, "sequences": [3], "base": [0], "streams": {}, "consumer": "c",
              "idle": []}  # fmt: skip

    with pytest.raises(OffsetError, match="pinned_client"):
        query(stream=name).reader.latestOffset(pinned, limit)
    with pytest.raises(OffsetError, match="consumer=jobs"):
        query(stream=name, consumer="others").reader.latestOffset(text(end), limit)
    with pytest.raises(OffsetError, match="consumer=jobs"):
        query(stream=name, consumer="others").reader.partitions(one.start, text(end))
    with pytest.raises(OffsetError, match="1 partitions"):
        query(
            stream=name, partitions=7, partitionSubject=f"{name}.{{partition}}"
        ).reader.latestOffset(text(end), limit)


def test_claims_that_left_the_stream(js, new_stream, publish, query):
    """
    Messages that are purged between claim and read are data loss.
    """
    name = new_stream()
    publish(numbered(name, 10))
    strict = query(stream=name)
    strict.plan()
    js.purge(name, None, 6)

    with pytest.raises(DataLossError, match="5 of 10"):
        strict.read()
    lax = query(stream=name, failOnDataLoss="false")
    lax.planned = list(strict.planned)
    assert [row["sequence"] for row in lax.read()] == [6, 7, 8, 9, 10]


def test_a_consumer_or_stream_that_is_gone(js, new_stream, publish, query):
    """
    A query that resumes without its consumer, or with a stream made anew, says what is lost.
    """
    name = new_stream()
    publish(numbered(name, 3))
    one = query(stream=name)
    one.step()
    js.delete_consumer(name, "jobs-0")
    one.restart()
    with pytest.raises(DataLossError, match="consumer 'jobs-0' is gone"):
        one.claim()
    js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
    js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    one.restart()
    with pytest.raises(DataLossError, match="made anew"):
        one.claim()

    publish(numbered(name, 2))
    lax = query(stream=name, failOnDataLoss="false")
    lax.planned, lax.committed = list(one.planned), one.committed
    assert lax.step() == 2


def test_a_consumer_deleted_meanwhile(js, new_stream, publish, query):
    """
    A consumer that is deleted while a query runs ends it with an error.
    """
    name = new_stream()
    one = query(stream=name, requestTimeout="3s")
    assert one.claim() is None
    js.delete_consumer(name, "jobs-0")

    with pytest.raises(JetStreamError, match="jobs-0"):
        one.claim()


@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_made_anew_while_a_query_runs(js, new_stream, publish, query, what):
    """
    A stream or a consumer of the same name that somebody makes anew under a running query is data
    loss: sequences of the old one say nothing of the new one, and its claims are others'.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, maxRecordsPerTrigger=5)
    lax = query(stream=name, failOnDataLoss="false")
    assert one.step() == 5
    assert lax.step() == 5
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    js.delete_consumer(name, "jobs-0")
    if what == "stream":
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
        js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        publish(numbered(name, 10))
    js.create_consumer(name, config)
    others = query(stream=name)
    others.plan()

    with pytest.raises(DataLossError, match=f"the {what}.* was made anew .* while the query ran"):
        one.claim()
    if what == "stream":
        assert lax.claim() is None
        assert ack_pending(js, name) == 10, "nobody has acknowledged what others claimed"
    others.commit()
    assert others.claim() is None
    publish(numbered(name, 2, start=10))
    assert lax.step() == 2


def test_a_user_who_may_not_acknowledge():
    """
    That a user may not publish acks is an error before a message is claimed, not after its rows
    were written.
    """
    config = """authorization { users = [
      {user: all, password: x}
      {user: half, password: x, permissions: {publish: {deny: "$JS.ACK.>"}}}
    ]}"""
    with DevServer(config=config) as server:
        client = Client(connection_to(server, user="all", password=Secret("x")))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        client.request("s.1", b"x")
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    user="half", password="x")  # fmt: skip
        try:
            with pytest.raises(PermissionsError, match="ACK"):
                one.claim()
            assert js.consumer_info("S", "jobs-0").consumer_seq == 0
        finally:
            one.die()
            client.close()
