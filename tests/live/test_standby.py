"""Hot standby on a real server: two queries as Spark drives them, one of which holds the seats."""

from __future__ import annotations

import json
import threading
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.errors import OptionError

from ..kits.pins import Query, QueryProcess

HOT = {"standby": "true", "consumer": "hot", "priorityTimeout": "6s", "directBelow": "0"}


@pytest.fixture
def query(nats_server):
    """Makes queries on the shared server."""
    made = []

    def make(**options):
        made.append(Query(nats_server, **HOT | options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def apart(nats_server):
    """Makes queries in processes of their own."""
    made = []

    def make(**options):
        made.append(QueryProcess(nats_server, **HOT | options))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def until_it_reads(query, timeout_s=60.0) -> list[int]:
    """Batches until one has rows; these."""
    deadline = time.monotonic() + timeout_s
    while not (found := query.batch()):
        assert time.monotonic() < deadline, query.progress()
    return found


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue", "direct"])
def test_the_second_goes_on_where_the_first_committed(
    js, new_stream, publish, query, apart, retention
):
    """
    While the first query reads, the second has no rows and says who reads; when the first is dead,
    it reads from what the first had committed on: nothing is lost, and only the batch that was not
    known to be committed is there twice.
    """
    mode = {"directBelow": "999999999"} if retention == "direct" else {}
    stream = new_stream(retention="limits" if mode else retention)
    first, second = apart(stream=stream, **mode), query(stream=stream, **mode)
    first.batch()  # makes the consumer
    publish([(f"{stream}.x", b"%d" % i) for i in range(1, 31)])
    until_it_reads(first)
    waiting = [second.batch(), second.batch()]
    publish([(f"{stream}.x", b"x") for _ in range(20)])
    first.batch()
    first.commit()
    shown = json.loads(json.dumps(second.reader.reportLatestOffset()))["standby"]
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()  # 51 to 60 are committed, but nobody has noted that
    first.kill()
    took = until_it_reads(second)
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    rest = until_it_reads(second)

    assert first.sequences == list(range(1, 61))
    assert waiting == [[], []]
    assert shown["active"] is False
    assert shown["query"] == first.at["query"] and shown["host"] and shown["pid"]
    assert took == list(range(51, 61))
    assert second.at["query"] != first.at["query"]
    assert rest == list(range(61, 66))
    assert second.reader.reportLatestOffset()["standby"] == {"active": True}


def test_a_batch_after_a_take_over_has_its_beginning_in_its_end(
    js, new_stream, publish, query, apart
):
    """
    Planned again from the two offsets that Spark has logged, by another process, the first batch of
    a query that took over has the same rows; the batches after it have nothing to note.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), apart(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()
    first.kill()
    start = second.at
    took = until_it_reads(second)
    end = second.at
    publish([(f"{stream}.x", b"x")])
    until_it_reads(second)
    second.kill()
    again = query(stream=stream)
    again.at = start
    tasks = again.reader.partitions(start, end)
    replayed = [
        seq for task in tasks for b in again.reader.read(task)
        for seq in b.column("sequence").to_pylist()
    ]  # fmt: skip

    assert again.reader.partitions(end, end) == []
    assert end["resumed"] == [10] and start["sequences"] == [0]
    assert took == replayed == list(range(11, 21))
    assert "resumed" not in second.at


def test_one_that_was_frozen_waits_again(js, new_stream, publish, query, apart):
    """
    A query that stood still for longer than priorityTimeout and goes on finds, before it plans
    another batch, that another one took its place; it waits, and later goes on where that one was.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    first.batch()  # settles what the one before committed
    first.freeze()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    until_it_reads(second)
    first.thaw()
    waits = first.batch()
    who = first.standby()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second.stop()
    found = until_it_reads(first)

    assert second.sequences == list(range(11, 31))
    assert waits == []
    assert (who["active"], who["query"]) == (False, second.at["query"])
    assert found == list(range(21, 41))


def test_an_unfinished_batch_waits_for_its_turn(js, new_stream, publish, query, apart):
    """
    A batch that stands in the log of a query that died is run when it is that query's turn again:
    until then planning it waits, and takes nothing from the query that reads. As that one has
    committed all of its rows, it has none then, and the query goes on where the other one was.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    end, _ = first.plan()
    first.kill()
    until_it_reads(second)
    again = query(stream=stream)
    planned: list = []
    thread = threading.Thread(target=lambda: planned.extend(again.reader.partitions(start, end)))
    thread.start()
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    second.batch()
    early = list(planned)
    second.stop()
    thread.join(120)

    assert not thread.is_alive()
    assert early == []
    assert planned == []
    assert second.sequences == [*range(11, 21), *range(21, 26)]
    again.at = end
    assert again.batch() == list(range(21, 26))  # the batch whose commit nobody has noted


def test_a_restart_of_the_same_query_does_not_wait(js, new_stream, publish, query, apart):
    """
    A query that is killed and started again over its checkpoint reads on at once, although another
    one waits.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream, priorityTimeout="1h"), query(stream=stream)
    first.batch()
    second.batch()
    first.kill()
    again = query(stream=stream, priorityTimeout="1h")
    again.at = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    found = again.batch()

    assert found == list(range(11, 21))
    assert second.batch() == []


def test_one_that_ends_in_good_order_is_not_waited_for(js, new_stream, publish, query):
    """
    A query that is stopped gives the record back: the other one reads on long before the hour that
    it would wait for a silent one, and exactly behind what was noted.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = (query(stream=stream, priorityTimeout="1h") for _ in range(2))
    first.batch()
    second.batch()
    first.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.stop()
    found = until_it_reads(second)

    assert found == list(range(11, 21))


def test_the_position_of_one_that_waits_may_be_gone(js, new_stream, publish, query):
    """
    A query that waits for days is not alarmed by what left the stream meanwhile: only what the
    query that reads had not committed counts.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = query(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()
    first.batch()
    js.purge(stream, None, 21)
    waits = second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    first.stop()
    found = until_it_reads(second)

    assert waits == []
    assert found == list(range(21, 26))


def test_latest_begins_where_the_first_query_began(js, new_stream, publish, query, apart):
    """
    With startingOffsets=latest the second query does not begin where it was started, but with what
    the first one has not committed, and reads that once, though it ends where it was started.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first = apart(stream=stream, startingOffsets="latest")
    first.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second = query(stream=stream, startingOffsets="latest")
    second.batch()
    second.batch()
    first.plan()
    first.kill()
    found = until_it_reads(second)
    again = [second.batch() for _ in range(3)]

    assert found == list(range(11, 21))
    assert again == [[], [], []]


def test_what_is_refused(nats_server, new_stream, query):
    """A standby without a consumer's name, of several streams, or of a run that ends by itself."""
    stream = new_stream()
    with pytest.raises(OptionError, match="option 'standby': needs option 'consumer'"):
        Query(nats_server, stream=stream, standby="true")
    with pytest.raises(OptionError, match="reads without them"):
        Query(nats_server, stream="A,B", standby="true", consumer="hot")
    with pytest.raises(OptionError, match="option 'standby': .* availableNow"):
        query(stream=stream).reader.prepareForTriggerAvailableNow()


def test_an_unfinished_batch_that_somebody_read(js, new_stream, publish, query, apart):
    """That a query's unfinished batch has left the stream is no loss if another committed it."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    end, _ = first.plan()
    first.kill()
    until_it_reads(second)
    second.commit()
    second.stop()
    js.purge(stream, None, 21)
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    again = query(stream=stream)
    tasks = again.reader.partitions(start, end)
    again.at = end

    assert tasks == []
    assert until_it_reads(again) == list(range(21, 26))


def test_one_whose_place_was_taken_settles_nothing(js, new_stream, publish, query, apart):
    """
    What Spark still tells a query that lost its place about commits does not reach the stream: the
    messages are the other one's to read.
    """
    stream = new_stream(retention="workqueue")
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    until_it_reads(first)
    first.freeze()
    deadline = time.monotonic() + 120
    while second.reader.latestOffset(second.at, ReadAllAvailable()) == second.at:
        assert time.monotonic() < deadline
    first.thaw()
    first.commit()
    left = js.stream_info(stream).messages
    found = second.batch()

    assert left == 10
    assert first.sequences == found == list(range(1, 11))
