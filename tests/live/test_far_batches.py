"""What the batches of a backlog ask a server that is far away, and what they still see."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream import rangedriver
from pyspark_jetstream.readstream.pinned import durables
from pyspark_jetstream.readstream.reader import StreamReader
from pyspark_jetstream.tasks.rows import ReadTask

from .test_consumer import delete, fill, sequences
from .test_own import seems_far
from .test_requests import Heard, wire

__all__ = ["wire"]

EACH = 4_000
ROWS = 5 * EACH


@pytest.fixture(autouse=True)
def far(monkeypatch):
    """Of all tests here: just as far that a consumer of the attempt's own is the cheapest."""
    seems_far(monkeypatch, 0.0021)


class Query:
    """A query of one stream that reads so many messages a batch, driven as Spark does."""

    def __init__(self, url: str, stream: str, **options: str) -> None:
        given = {"servers": url, "stream": stream, "consumer": "q"} | options
        given = {name: value for name, value in given.items() if value}
        self.source = StreamReader(parse_stream(given | {"maxRecordsPerTrigger": str(EACH)}))
        self.at = self.before = self.source.initialOffset()

    def look(self) -> dict:
        """Where the next batch ends; then the one before is committed."""
        end = self.source.latestOffset(self.at, ReadMaxRows(EACH))
        return json.loads(json.dumps(end))

    def tasks(self, end: dict) -> Sequence[ReadTask]:
        """What reads it."""
        self.source.commit(self.at)
        tasks = self.source.partitions(self.at, end)
        self.at = end
        return tasks

    def read(self, end: dict) -> list[int]:
        """Its sequences."""
        return self.rows(self.tasks(end))

    def rows(self, tasks: Iterable[ReadTask]) -> list[int]:
        """The sequences that they read."""
        return sequences(batch for task in tasks for batch in self.source.read(task))


def test_a_batch_amid_a_backlog_waits_for_one_look_and_its_messages(wire, js, new_stream):
    """
    It is planned by what was seen for the batch before, where that is enough, and looked at once
    before its tasks; nobody waits for consumers that are deleted or moved along. With the last one
    the consumer is moved to where that begins, and read.
    """
    stream = new_stream()
    fill(js, stream, ROWS)
    query, heard = Query(wire.url, stream), Heard(wire)
    found, asked = [], []
    while len(found) < ROWS:
        end = query.look()
        looked = {name: count for name, count in heard().items() if name != "CONSUMER.DELETE"}
        rows = query.read(end)
        asked.append((looked, heard() | {"CONSUMER.DELETE": 0}))  # is heard of when it comes
        found += rows
    stands = js.consumer_info(stream, "q-0").stream_seq
    query.source.stop()

    own = {"CONSUMER.CREATE": 1, "CONSUMER.MSG.NEXT": 1, "CONSUMER.DELETE": 0}
    assert found == list(range(1, ROWS + 1))
    amid = {"STREAM.INFO": 1} | own
    pinned = {"CONSUMER.INFO": 2, "CONSUMER.RESET": 1, "CONSUMER.UNPIN": 1}
    last = {"STREAM.INFO": 1, "CONSUMER.MSG.NEXT": 1, "CONSUMER.DELETE": 0} | pinned
    assert asked[2:] == [({}, amid), ({}, amid), ({}, last)]
    assert stands == ROWS


def amid(url: str, js, stream: str, **options: str) -> tuple[Query, Sequence[ReadTask]]:
    """A query that has read two batches of a new backlog, and the tasks of its third."""
    fill(js, stream, ROWS)
    query = Query(url, stream, **options)
    query.read(query.look())
    query.read(query.look())
    return query, query.tasks(query.look())


def anew(js, stream: str, count: int) -> None:
    """The stream is deleted and made again, with so many messages."""
    js.client.request(f"{js.prefix}.STREAM.DELETE.{stream}")
    config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}
    js.create_stream(config | {"storage": "file"})
    fill(js, stream, count)


def test_a_batch_of_few_messages_waits_for_its_messages_alone(wire, js, new_stream, monkeypatch):
    """
    Where making a consumer takes longer than it saves they come by direct get, and the look goes
    out with what is asked for first.
    """
    seems_far(monkeypatch)
    stream = new_stream()
    fill(js, stream, ROWS)
    query, heard = Query(wire.url, stream), Heard(wire)
    found, asked = [], []
    while len(found) < ROWS:
        end = query.look()
        looked = heard()
        tasks = query.tasks(end)
        prepared = heard()
        found += query.rows(tasks)
        asked.append((looked, prepared, heard()))
    query.source.stop()

    assert found == list(range(1, ROWS + 1))
    assert asked[2:4] == [({}, {}, {"STREAM.INFO": 1, "DIRECT.GET": 2})] * 2


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_made_anew_before_its_messages_are_read(wire, js, new_stream, monkeypatch, fails):
    """The task says so; or reads nothing, and the query goes on with what the new one holds."""
    seems_far(monkeypatch)
    stream = new_stream()
    query, tasks = amid(wire.url, js, stream, failOnDataLoss=str(fails).lower())
    anew(js, stream, ROWS + 7)
    if fails:
        with pytest.raises(DataLossError, match=r"made anew .* set failOnDataLoss=false"):
            query.rows(tasks)
    else:
        assert query.rows(tasks) == []
        found = []
        while len(found) < ROWS + 7:
            found += query.read(query.look())
        assert found == list(range(1, ROWS + 8))
    query.source.stop()


@pytest.mark.parametrize("fails", [True, False])
def test_what_leaves_before_its_task_is_lost(wire, js, new_stream, monkeypatch, fails):
    """Behind the driver's look, however long ago that was."""
    seems_far(monkeypatch)
    stream = new_stream()
    query, tasks = amid(wire.url, js, stream, failOnDataLoss=str(fails).lower())
    js.purge(stream, None, 2 * EACH + 1_001)
    if fails:
        with pytest.raises(DataLossError, match="sequences 8001 to 9000 left the stream before"):
            query.rows(tasks)
    else:
        assert query.rows(tasks) == list(range(2 * EACH + 1_001, 3 * EACH + 1))
    query.source.stop()


def test_a_partition_that_gets_no_task_is_looked_at(wire, js, new_stream, monkeypatch):
    """
    Of which all has left that a batch would have brought: the server counts nothing there, so no
    task would miss it.
    """
    seems_far(monkeypatch)
    name = new_stream()
    streams = [new_stream(name=f"{name}-{partition}") for partition in range(2)]
    fill(js, streams[0], 25 * EACH)
    fill(js, streams[1], 2 * EACH)
    delete(js, streams[1], 2 * EACH - 1)
    query = Query(wire.url, name + "-{partition}", partitions="2")
    query.read(query.look())
    query.read(query.look())
    behind = query.at["sequences"][1] + 1
    js.purge(streams[1], None, 2 * EACH + 1)
    fill(js, streams[1], 10)
    end = query.look()

    assert end["idle"] == [1] and end["sequences"][1] == 2 * EACH
    with pytest.raises(DataLossError, match=f"'{streams[1]}'.* sequences {behind} to 8000 left"):
        query.read(end)
    query.source.stop()


def test_a_task_whose_look_has_no_good_answer_looks_again(wire, js, new_stream, monkeypatch):
    """Alone, and then reads; an answer may be an error while a leader is elected."""
    seems_far(monkeypatch)
    spoilt = []

    def spoils(said: bytes) -> bytes:
        if spoilt or b'"created"' not in said:
            return said
        spoilt.append(said)
        return said.replace(b'"created"', b'"creaked"')

    query, tasks = amid(wire.url, js, new_stream())
    heard = Heard(wire)
    heard()
    monkeypatch.setattr(wire, "_rewrite", spoils)
    found = query.rows(tasks)
    asked = heard()
    query.source.stop()

    assert len(spoilt) == 1
    assert found == list(range(2 * EACH + 1, 3 * EACH + 1))
    assert asked == {"STREAM.INFO": 2, "DIRECT.GET": 4}


def test_the_consumer_is_moved_along_at_each_look(wire, js, new_stream, monkeypatch):
    """To where the batch begins that is looked at, which is all that was read."""
    monkeypatch.setattr(durables, "_LOOK_EVERY_S", 0.0)
    stream = new_stream()
    fill(js, stream, ROWS)
    query = Query(wire.url, stream)
    stood = []
    for _ in range(4):
        query.read(query.look())
        stood.append(js.consumer_info(stream, "q-0").stream_seq)
    query.source.stop()

    assert stood == [0, EACH, 2 * EACH, 3 * EACH]


def test_a_consumer_that_is_gone_is_not_missed(wire, js, new_stream, monkeypatch):
    """Of a query that goes on without it nothing is asked that nobody would answer."""
    monkeypatch.setattr(durables, "_LOOK_EVERY_S", 0.0)
    stream = new_stream()
    fill(js, stream, ROWS)
    query = Query(wire.url, stream, requestTimeout="60s")
    found = query.read(query.look())
    js.delete_consumers([(stream, "q-0")])
    for _ in range(4):
        found += query.read(query.look())
    query.source.stop()

    assert found == list(range(1, ROWS + 1))


def test_a_stream_made_anew_amid_a_backlog(wire, js, new_stream):
    """
    A batch that is planned by what was seen before is not read from a stream that was made anew
    since: it says so.
    """
    stream = new_stream()
    fill(js, stream, ROWS)
    query = Query(wire.url, stream)
    found = [query.read(query.look()) for _ in range(2)]
    anew(js, stream, ROWS + EACH)
    end = query.look()

    assert [rows[-1] for rows in found] == [EACH, 2 * EACH]
    assert end["sequences"] == [3 * EACH]
    with pytest.raises(DataLossError, match="made anew"):
        query.read(end)
    query.source.stop()


@pytest.mark.parametrize("layout", ["whole", "deleted", "filtered"])
def test_what_leaves_before_a_batch_is_counted_is_lost(wire, js, new_stream, layout):
    """
    Messages that leave a stream after it was seen and before they are counted for a batch: no task
    would miss them, so the driver says that they are lost, before it hands out tasks.
    """
    stream = new_stream()
    for _ in range(ROWS // 1_000):
        for partition in range(2):
            fill(js, stream, 500, subject=f"{partition}.a")
    if layout == "deleted":
        delete(js, stream, ROWS - 1)
    split = {"partitions": "2", "partitionSubject": f"{stream}.{{partition}}.*"}
    query = Query(wire.url, stream, **split if layout == "filtered" else {})
    query.read(query.look())
    found = query.read(query.look())
    js.purge(stream, None, 2 * EACH + 1_001)
    end = query.look()

    assert max(found) == 2 * EACH
    with pytest.raises(DataLossError, match="left the stream before they were read"):
        query.read(end)
    query.source.stop()


@pytest.mark.parametrize("mode", ["direct", "consumer", "auto"])
def test_what_leaves_before_the_first_batch_is_read_is_lost(wire, js, new_stream, mode):
    """Also where it left before ranges are counted for the tasks, which do not know of it then."""
    stream = new_stream()
    fill(js, stream, ROWS)
    query = Query(wire.url, stream, readMode=mode, consumer="q" if mode != "direct" else "")
    end = query.look()
    js.purge(stream, None, EACH // 2)
    with pytest.raises(DataLossError, match="left the stream before they were read"):
        query.read(end)
    query.source.stop()


def test_what_leaves_while_ranges_are_counted_is_lost(wire, js, new_stream, monkeypatch):
    """
    Behind the look that no task is made without, and before the last count: the server's, as a
    message that was deleted leaves the stream's own state unable to tell.
    """
    stream = new_stream()
    fill(js, stream, ROWS)
    delete(js, stream, ROWS - 1)
    query = Query(wire.url, stream, readMode="direct", consumer="", minPartitions="2")
    end = query.look()
    sums = Survey.sums

    def counted(self, *asked):
        js.purge(stream, None, EACH // 2)
        return sums(self, *asked)

    monkeypatch.setattr(Survey, "sums", counted)
    with pytest.raises(DataLossError, match="1999 of 2000 messages"):
        query.read(end)
    query.source.stop()


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_is_settled_is_looked_at_each_time(wire, js, new_stream, retention):
    """A stream that gives messages away is seen as it is for each batch, and settled at each."""
    stream = new_stream(retention=retention)
    query = Query(wire.url, stream)
    query.read(query.look())
    fill(js, stream, ROWS)
    found, left = [], []
    while len(found) < ROWS:
        found += query.read(query.look())
        left.append(js.stream_info(stream).messages)
    query.source.stop()

    assert found == list(range(1, ROWS + 1))
    assert left == [ROWS - EACH * done for done in range(5)]


@pytest.mark.parametrize("old_s", [0.0, math.inf])
def test_what_was_seen_too_long_ago_is_looked_at_again(wire, js, new_stream, monkeypatch, old_s):
    """However much is left by it."""
    monkeypatch.setattr(rangedriver, "_LOOK_EVERY_S", old_s)
    stream = new_stream()
    fill(js, stream, ROWS)
    query, heard = Query(wire.url, stream), Heard(wire)
    query.read(query.look())
    query.read(query.look())
    heard()
    query.look()
    looked = heard() | {"CONSUMER.DELETE": 0}  # is heard of when it comes
    query.source.stop()

    assert looked == {"CONSUMER.DELETE": 0} | ({"STREAM.INFO": 1} if old_s == 0.0 else {})
