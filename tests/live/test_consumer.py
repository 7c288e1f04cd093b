"""Reading a range through a pinned consumer of a real server, whatever happens to it meanwhile."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import ConnectionOptions
from pyspark_jetstream.errors import (
    ConsumerEditedError,
    ConsumerFencedError,
    DataLossError,
    JetStreamError,
    ReadTimeoutError,
)
from pyspark_jetstream.fetch.consumer import ConsumerRead
from pyspark_jetstream.fetch.durable import consumer_config

from ..kits.options import connection_of
from ..kits.proxy import Proxy
from ..kits.servers import DevServer

names = (f"reader-{number}" for number in itertools.count(1))


def options(server, **changes) -> ConnectionOptions:
    return connection_of(server.url, **{"request_timeout_s": 20.0} | changes)


def reading(js, stream, end, start=0, **changes) -> ConsumerRead:
    """A read of `(start, end]` whose consumer exists."""
    read = ConsumerRead(
        partition=0,
        stream=stream,
        filter=None,
        consumer=next(names),
        group="spark",
        priority_timeout_s=None,
        retention="limits",
        start=start,
        end=end,
        expected=None,
        include_headers=False,
        fail_on_data_loss=True,
    )
    read = replace(read, **changes)
    js.create_consumer(stream, consumer_config(read))
    return read


def rows(client, read) -> list[dict]:
    return [row for batch in read.batches(client) for row in batch.to_pylist()]


def sequences(batches) -> list[int]:
    return [seq for batch in batches for seq in batch.column("sequence").to_pylist()]


def delete(js, stream, *seqs) -> None:
    for seq in seqs:
        js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})


def fill(js, stream, count, payload=b"x" * 200, subject="a") -> None:
    """Publishes `count` messages fast; the last sequence tells that all are stored."""
    connection = js.client.connection
    frame = b"PUB %b.%b %d\r\n%b\r\n" % (stream.encode(), subject.encode(), len(payload), payload)
    last = js.stream_info(stream).last_seq + count
    for low in range(0, count, 1000):
        connection.send(frame * min(1000, count - low))
    while js.stream_info(stream).last_seq < last:
        time.sleep(0.01)


@pytest.fixture
def own_server():
    """A server that a test may break, with an API client on it."""
    with DevServer() as server:
        client = Client(options(server))
        yield server, JetStream(client)
        client.close()


@pytest.fixture
def deep(js, new_stream) -> str:
    """A stream of 50,000 messages: more than open pulls may bring."""
    stream = new_stream()
    fill(js, stream, 50_000)
    return stream


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("filtered", [True, False], ids=["filtered", "unfiltered"])
def test_exact_ranges(js, new_stream, publish, counted, filtered):
    """
    Any range gives exactly its messages in order: with gaps inside, at its end and at its
    beginning, with its end beyond the last match, and again when it is read again.
    """
    stream = new_stream()
    publish([(f"{stream}.{'ab'[i % 2]}", b"%d" % i) for i in range(1, 1801)])
    publish([(f"{stream}.b", b"%d" % i) for i in range(1801, 2001)])
    gone = {1, 2, 3, *range(500, 620), 1000, *range(1390, 1401), 2000}
    delete(js, stream, *gone)
    there = [
        seq for seq in range(1, 2001)
        if seq not in gone and (not filtered or (seq <= 1800 and seq % 2 == 0))
    ]  # fmt: skip
    read = reading(js, stream, 0, filter=f"{stream}.a" if filtered else None)
    ranges = [(0, 2000), (0, 1), (0, 3), (3, 4), (499, 619), (0, 1400), (1395, 1400), (1399, 1402)]
    ranges += [(700, 700), (1801, 2000), (1799, 1999), (0, 500), (0, 2000)]
    for start, end in ranges:
        expected = [seq for seq in there if start < seq <= end]
        changes = {"start": start, "end": end, "expected": len(expected) if counted else None}
        found = rows(js.client, replace(read, **changes))

        assert [row["sequence"] for row in found] == expected, (start, end)
        assert all(row["data"] == b"%d" % row["sequence"] for row in found)


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_a_range_can_be_read_again(js, new_stream, publish, retention):
    """
    Under every retention a batch that was not settled gives the same rows again.
    """
    stream = new_stream(retention=retention)
    read = reading(js, stream, 3000, retention=retention)
    publish([(f"{stream}.a", b"%d" % i) for i in range(1, 3501)])
    first = rows(js.client, read)

    assert [row["sequence"] for row in first] == list(range(1, 3001))
    assert rows(js.client, read) == first


def test_counts_that_are_wrong_do_no_harm(js, new_stream, publish):
    """
    `expected` is a hint: with too few or too many of them the range is still exact.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(1500)])
    for expected in (0, 1, 700, 1400, 10**6):
        found = rows(js.client, reading(js, stream, 1400, expected=expected))

        assert [row["sequence"] for row in found] == list(range(1, 1401))


def too_low(said: bytes) -> bytes:
    """What a server says whose consumers count nothing as pending; of counts up to nine."""
    said = re.sub(rb'("num_pending":)\d\b', rb"\g<1>0", said)
    return re.sub(rb"(\$JS\.ACK\.[\w.-]+\.)\d(?= )", rb"\g<1>0", said)


def test_what_the_server_counts_as_nothing_is_read(nats_server, js, new_stream, publish):
    """
    A consumer's count of pending messages stays too low where messages are deleted while others
    come, also through a reset to where the consumer stands.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"%d" % i) for i in range(9)])
    read = reading(js, stream, 8)
    with (
        Proxy(nats_server.port, rewrite=too_low) as proxy,
        closing(Client(connection_of(proxy.url, request_timeout_s=20.0))) as client,
    ):
        assert JetStream(client).consumer_info(stream, read.consumer).num_pending == 0
        assert [row["data"] for row in rows(client, read)] == [b"%d" % i for i in range(8)]


def test_what_a_message_may_hold(js, new_stream, publish):
    """
    Empty and largest payloads, UTF-8 subjects, headers, and a pin id the message was stored with
    come through unchanged.
    """
    stream = new_stream()
    largest = bytes(js.client.connection.max_payload)
    headers = [("A", "1"), ("Nats-Pin-Id", "stale"), ("A", "2"), ("U", "ä: b")]
    messages = [
        (f"{stream}.a", b""),
        (f"{stream}.a", largest),
        (f"{stream}.fl\u00fcge.\u6771\u4eac", b"HMSG x 1 2 2\r\n"),
        (f"{stream}.h", b"h", headers),
        (f"{stream}.h", largest[200:], headers),
        (f"{stream}.h", b"", [("Nats-Pin-Id", "stale")]),
        *((f"{stream}.b", largest) for _ in range(12)),
    ]
    publish(messages)
    found = rows(js.client, reading(js, stream, len(messages), include_headers=True))

    assert [(row["subject"], row["data"]) for row in found] == [m[:2] for m in messages]
    kept = [("A", ["1", "2"]), ("U", ["ä: b"])]
    assert [row["headers"] for row in found[:6]] == [None, None, None, kept, kept, None]
    assert {(row["stream"], row["partition"]) for row in found} == {(stream, 0)}


def test_messages_beyond_the_range_stay_out(js, new_stream):
    """
    What is published while a range is read does not get into it.
    """
    stream = new_stream()
    fill(js, stream, 15_000)
    batches = reading(js, stream, 15_000, expected=15_000).batches(js.client)
    found = sequences([next(batches)])
    other = Client(js.client.options)
    fill(JetStream(other), stream, 2000)
    other.close()

    assert found + sequences(batches) == list(range(1, 15_001))


def test_two_attempts_never_share_a_range(nats_server, js, deep):
    """
    Of two attempts that pull one partition at once, each that is not fenced has exactly the
    range's rows. One of them is not fenced, or, where both reset the consumer in the same moment
    (about one pair of a hundred), the next one is not, which Spark would run.
    """
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    nobody = 0
    for _ in range(6):
        read = reading(js, deep, 50_000, expected=rng.choice([None, 50_000]))
        results: list[object] = [None, None]
        delays = [0.0, rng.choice([0.0, 0.001, 0.01, rng.random() / 5])]

        def attempt(index, read=read, results=results, delays=delays):
            client = Client(options(nats_server))
            time.sleep(delays[index])
            try:
                results[index] = sequences(read.batches(client))
            except ConsumerFencedError as error:
                results[index] = error
            finally:
                client.close()

        threads = [threading.Thread(target=attempt, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        exact = [found for found in results if isinstance(found, list)]
        if not exact:
            nobody += 1
            assert nobody <= 2, f"{seed=} {delays=} {results}"
            exact = [sequences(read.batches(js.client))]

        assert all(found == list(range(1, 50_001)) for found in exact), f"{seed=} {delays=}"


def test_an_attempt_that_stopped_half_way_is_superseded(nats_server, js, deep):
    """
    An attempt that hangs in the middle of its range is fenced when it goes on after another one
    took over, and that one has exactly the range.
    """
    read = reading(js, deep, 50_000)
    hanging = Client(options(nats_server))
    batches = read.batches(hanging)
    next(batches)
    found = sequences(read.batches(js.client))

    assert found == list(range(1, 50_001))
    with pytest.raises(ConsumerFencedError, match="another attempt took consumer"):
        sequences(batches)
    hanging.close()


def test_an_attempt_goes_on_after_an_administrator_unpinned_it(js, deep):
    """
    Being unpinned while nobody else takes over costs nothing.
    """
    read = reading(js, deep, 50_000)
    admin = JetStream(Client(js.client.options))
    found = []
    for batch in read.batches(js.client):
        found += sequences([batch])
        admin.unpin(deep, read.consumer, read.group)
    admin.client.close()

    assert found == list(range(1, 50_001))


def test_a_reader_suspended_beyond_the_pin_timeout_goes_on(js, deep):
    """
    A reader whose pin timed out while Spark did not ask for rows continues exactly.
    """
    read = reading(js, deep, 50_000, priority_timeout_s=1.0)
    batches = read.batches(js.client)
    found = sequences([next(batches)])
    time.sleep(2.5)

    assert found + sequences(batches) == list(range(1, 50_001))


@pytest.mark.parametrize("filtered", [True, False], ids=["filtered", "unfiltered"])
def test_a_consumer_deleted_under_a_limits_stream_is_made_again(js, deep, filtered):
    """
    On a limits stream a deleted consumer is made again and the range stays exact.
    """
    read = reading(js, deep, 50_000, expected=50_000, filter=f"{deep}.a" if filtered else None)
    batches = read.batches(js.client)
    found = sequences([next(batches)])
    admin = JetStream(Client(js.client.options))
    admin.delete_consumers([(deep, read.consumer)])
    admin.client.close()

    assert found + sequences(batches) == list(range(1, 50_001))


def test_that_a_consumer_was_deleted_is_said(js, new_stream, publish, caplog):
    """
    An attempt that finds the consumer gone, and makes it anew, says so once.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"x")] * 3)
    read = reading(js, stream, 3)
    js.delete_consumers([(stream, read.consumer)])

    assert [row["sequence"] for row in rows(js.client, read)] == [1, 2, 3]
    said = [each.message for each in caplog.records if "makes it anew" in each.message]
    assert len(said) == 1 and f"the consumer {read.consumer} was gone" in said[0]


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_a_consumer_deleted_under_an_interest_stream_is_data_loss(js, new_stream, fail):
    """
    On an interest stream the consumer's deletion is data loss: an error, or with
    failOnDataLoss=false a read that goes on with what is left.
    """
    stream = new_stream(retention="interest")
    read = reading(js, stream, 50_000, retention="interest", fail_on_data_loss=fail)
    fill(js, stream, 50_000)
    batches = read.batches(js.client)
    found = sequences([next(batches)])
    admin = JetStream(Client(js.client.options))
    admin.delete_consumers([(stream, read.consumer)])
    admin.client.close()

    if fail:
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            sequences(batches)
    else:
        found += sequences(batches)
        assert found == list(range(1, len(found) + 1))


def test_a_restarted_server_does_not_show(own_server):
    """
    A read goes on exactly when the server was restarted in the middle of it.
    """
    server, js = own_server
    js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    fill(js, "S", 50_000)
    client = Client(options(server))
    batches = reading(js, "S", 50_000, expected=50_000).batches(client)
    found = sequences([next(batches)])
    server.restart()
    found += sequences(batches)
    client.close()

    assert found == list(range(1, 50_001))


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_server_that_is_gone_for_good_ends_in_a_typed_error(own_server, how):
    """
    When no server comes back within requestTimeout, the read fails with an error that says so.
    """
    server, js = own_server
    js.create_stream({"name": "S", "subjects": ["S.>"]})
    fill(js, "S", 50_000)
    client = Client(options(server, request_timeout_s=5.0, connect_timeout_s=3.0))
    batches = reading(js, "S", 50_000).batches(client)
    next(batches)
    getattr(server, how)()

    with pytest.raises(JetStreamError) as caught:
        sequences(batches)
    assert isinstance(caught.value, ReadTimeoutError), repr(caught.value)
    assert "requestTimeout" in str(caught.value)
    client.close()
    if how == "pause":
        server.resume()


@pytest.mark.parametrize(
    ("expected", "fail", "lost"),
    [(None, True, False), (800, True, True), (800, False, False)],
    ids=["uncounted", "counted", "counted-go-on"],
)
def test_a_range_whose_messages_were_purged(js, new_stream, publish, expected, fail, lost):
    """
    A purged range is empty; it is data loss where messages had been counted in it.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(1000)])
    js.purge(stream, None, 901)
    read = reading(js, stream, 800, expected=expected, fail_on_data_loss=fail)
    if lost:
        with pytest.raises(DataLossError, match="now begins at 901"):
            rows(js.client, read)
    else:
        assert rows(js.client, read) == []


def test_a_purge_under_way_is_noticed(js, deep):
    """
    Messages purged while the range is read are data loss, not silence.
    """
    batches = reading(js, deep, 50_000, expected=50_000).batches(js.client)
    next(batches)
    admin = JetStream(Client(js.client.options))
    admin.purge(deep, None, 50_000)
    admin.client.close()

    with pytest.raises(DataLossError, match="left the stream"):
        sequences(batches)


def test_idle_partitions_end_at_once(js, new_stream, publish):
    """
    A range without messages ends without waiting for any: empty, beyond the filter's last
    message, of a filter that matches nothing, of an empty stream.
    """
    stream = new_stream()
    empty = reading(js, stream, 10)
    assert rows(js.client, empty) == []
    publish([(f"{stream}.a", b""), *((f"{stream}.b", b"") for _ in range(99))])

    for changes in (
        {"start": 5, "end": 5},
        {"start": 9, "end": 3},
        {"start": 1, "end": 100, "filter": f"{stream}.a"},
        {"start": 0, "end": 100, "filter": f"{stream}.nothing"},
    ):
        assert rows(js.client, reading(js, stream, **changes)) == []


def test_many_partitions_of_one_stream(js, new_stream, publish):
    """
    64 filtered consumers of one stream each give their own messages.
    """
    stream = new_stream()
    publish([(f"{stream}.{i % 64}.x", b"%d" % i) for i in range(6400)])
    found = []
    for p in range(64):
        read = reading(js, stream, 6400, filter=f"{stream}.{p}.>", partition=p, expected=100)
        mine = rows(js.client, read)
        found += mine

        assert {row["partition"] for row in mine} == {p}
        assert [row["sequence"] % 64 for row in mine] == [(p + 1) % 64] * 100
    assert sorted(row["sequence"] for row in found) == list(range(1, 6401))


def test_a_consumer_in_the_way_is_a_clear_error(js, new_stream, publish):
    """
    A consumer of that name whose limits would refuse our pulls is an error that names them.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(10)])
    read = reading(js, stream, 10)
    js.delete_consumers([(stream, read.consumer)])
    js.create_consumer(stream, consumer_config(read) | {"max_batch": 1})

    with pytest.raises(ConsumerEditedError, match="max_batch 1 where it was made with max_batch 0"):
        rows(js.client, read)


def test_an_interrupted_read_of_an_interest_stream_acknowledges_nothing(nats_server, js):
    """
    However an attempt comes back to its place, before the commit no message of its batch leaves an
    interest stream: the next attempt still finds them all.
    """
    stream = "INTERRUPTED"
    js.create_stream({"name": stream, "subjects": [f"{stream}.>"], "retention": "interest"})
    try:
        read = reading(js, stream, 30_000, retention="interest", expected=30_000)
        fill(js, stream, 30_000)
        client = Client(options(nats_server))
        attempt = read.batches(client)
        found = sequences([next(attempt)])
        js.reset(stream, read.consumer, 1)  # as another attempt would
        client.connection.close()
        found += sequences(attempt)
        client.close()
        left = js.stream_info(stream).messages
        again = sequences(read.batches(js.client))
    finally:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{stream}")

    assert found == list(range(1, 30_001))
    assert left == 30_000
    assert again == found


@pytest.mark.parametrize("first", ["large", "small"])
def test_messages_larger_than_a_pull(first):
    """
    Messages that were stored under a larger `max_payload` are read after it was lowered, as the
    first of a session and behind others, however many follow each other.
    """
    large, small = bytes(7 << 20), b"small"
    kinds = {"large": [large, small], "small": [small, large]}[first]
    payloads = [*kinds, large, large, small, large]
    with DevServer("max_payload: 8MB") as server:
        client = Client(options(server))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        for payload in payloads:
            js.publish("S.a", payload, [])
        client.close()
        server._config = "max_payload: 1MB"
        server.restart()
        client = Client(options(server, request_timeout_s=60.0))
        js = JetStream(client)
        try:
            for headers in (False, True):
                read = reading(js, "S", len(payloads), include_headers=headers)
                found = [row["data"] for row in rows(client, read)]
                assert [len(each) for each in found] == [len(each) for each in payloads]
                assert found == payloads
        finally:
            client.close()
