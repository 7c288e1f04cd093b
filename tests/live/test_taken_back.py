"""
What was committed and is gone: a target stream, or the ledger, that its server has taken back.

A server that lost what it had acknowledged is played by an older copy of its store.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    LedgerError,
    PermissionsError,
    TakenBackError,
    TargetChangedError,
)
from pyspark_jetstream.write.exactlyonce import changes
from pyspark_jetstream.write.exactlyonce import ledger as ledger_module
from pyspark_jetstream.write.exactlyonce.changes import FoundStream
from pyspark_jetstream.write.exactlyonce.committed import Committed, Noted
from pyspark_jetstream.write.exactlyonce.ids import Ids, of_query
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.results import Published
from pyspark_jetstream.write.sink import JetStreamStreamWriter
from pyspark_jetstream.write.task import TaskReport, write_task

from ..kits.options import connection_of, sink_of
from ..kits.stores import Store

SCHEMA = StructType().add("subject", "string").add("data", "string")
SIZE = 100
"""Rows of a batch."""


class Query:
    """A streaming query's write, batch by batch, as Spark calls it."""

    def __init__(self, url, target="T", write="q", **options):
        self.options = sink_of(connection_of(url), ledger=True, **options)
        self.target, self.write, self.at = target, write, 0

    def rows(self, batch):
        numbers = range(batch * SIZE, (batch + 1) * SIZE)
        return pa.record_batch({
            "subject": pa.array([f"{self.target}.{n % 7}" for n in numbers]),
            "data": pa.array([str(n) for n in numbers]),
        })  # fmt: skip

    def task(self, batch):
        """The one task of a batch: what it has written, None if it was written before."""
        client, report = Client(self.options.connection), TaskReport()
        try:
            name = TaskName(self.write, batch, 0)
            written = write_task(
                client,
                self.options,
                [self.rows(batch)],
                name,
                of_query(self.write, batch),
                0,
                report,
            )
        finally:
            client.close()
        return Published(
            0, self.write, written, streams=tuple(report.seen), sequenced=report.sequenced
        )

    def batch(self, batch):
        """A batch and its commit."""
        published = self.task(batch)
        JetStreamStreamWriter(self.options, SCHEMA).commit([published], batch)
        self.at = batch + 1
        return published.written

    def run(self, until):
        """Batches up to this one."""
        while self.at < until:
            self.batch(self.at)


class Place(Store):
    """A server whose streams can be taken back to a copy, with a target and a ledger."""

    def __init__(self, home):
        super().__init__(home)
        self.client = Client(connection_of(self.server.url))
        self.js = JetStream(self.client)
        self.js.create_stream({"name": "T", "subjects": ["T.>"], "allow_direct": True})
        Ledger(self.js).ensure()

    def data(self, stream="T"):
        info = self.js.stream_info(stream)
        queries = [{"seq": seq} for seq in range(max(1, info.first_seq), info.last_seq + 1)]
        found = self.js.messages(stream, queries)
        return [int(message.data) for message in found if message is not None]

    def forget(self, write="q"):
        """As `nats kv purge` does."""
        headers = [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")]
        self.js.publish(f"$KV.SPARK_LEDGER.{write}.committed", b"", headers)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A server of its own, with a stream T and a ledger; a loss is believed soon."""
    monkeypatch.setattr(ledger_module, "SETTLES_S", 0.2)
    made = Place(tmp_path)
    yield made
    made.client.close()
    made.server.close()


@pytest.fixture
def query(place):
    """A query of which two batches were committed, then copied, then two more committed."""
    query = Query(place.server.url)
    query.run(2)
    place.copy()
    query.run(4)
    return query


# ── what is gone is named ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (["T"], "stream 'T' ends at sequence 200, and ended at 400 when batch 3 was committed:"
                " sequences 201 to 400 are gone, and with them rows from batch 2 on"),
        ([STREAM], "the ledger ends with batch 1, and batch 4 begins: the records of 2 to 3 are"
                   " gone"),
        (["T", STREAM], "the ledger ends with batch 1, and batch 4 begins"),
    ],
    ids=["target", "ledger", "both"],
)  # fmt: skip
def test_what_was_taken_back_is_named(place, query, streams, message):
    """
    Before a row of the next batch goes out, an error says what is gone, from which batch to write
    again, and both ways to go on; nothing is noted of the batch. As the operator says so, it does.
    """
    place.take_back(*streams)
    before = place.data()

    with pytest.raises(TakenBackError, match=message) as caught:
        query.batch(4)
    assert caught.value.batch == 2
    assert "pyspark-jetstream rewind --checkpoint <checkpointLocation> --batch 2" in str(
        caught.value
    )
    assert "the same with --accept" in str(caught.value)
    assert place.data() == before
    assert not place.js.subject_counts(STREAM, ["$KV.SPARK_LEDGER.q.4.*"])[1]

    place.forget()
    assert query.batch(4).acked == SIZE


def test_each_query_of_a_stream_has_lost_its_own(place, query):
    """
    What is gone are the batches of the query that asks, whoever else wrote to the stream.
    """
    other = Query(place.server.url, write="other")
    other.run(1)
    place.take_back("T")

    with pytest.raises(TakenBackError, match="rows from batch 0 on") as caught:
        other.batch(1)
    assert caught.value.batch == 0


def test_a_batch_that_spark_does_not_know_to_be_committed(place, query):
    """
    A driver that was killed between the ledger's commit and Spark's runs the batch again; that it
    is committed is no reason to leave out rows that are gone.
    """
    assert query.batch(3) is None
    place.take_back("T")

    with pytest.raises(TakenBackError, match="rows from batch 2 on"):
        query.batch(3)


def test_others_wrote_since(place, query):
    """
    A stream that was taken back and then written to by others beyond its old end has another
    message where the last commit found one: the next commit says so, and each one after a restart.
    """
    place.take_back("T")
    for i in range(300):
        place.js.publish(f"T.other.{i}", b"0", [])

    for _ in range(2):
        with pytest.raises(TakenBackError, match="ended at sequence 400 .* another message stands"):
            query.batch(4)
    last = place.js.last_messages(STREAM, ["$KV.SPARK_LEDGER.q.committed"])[0]
    assert b'"batch": 3' in last.data


def test_a_stream_that_a_later_block_of_rows_goes_to(place, query):
    """
    A stream is looked at before the first row goes there, not only at the task's beginning.
    """
    place.js.create_stream({"name": "U", "subjects": ["U.>"]})
    place.take_back("T")
    name = TaskName("q", 4, 0)
    batches = [replace_target(query.rows(4), "U"), query.rows(4)]
    client = Client(query.options.connection)

    with pytest.raises(TakenBackError, match="stream 'T' ends at sequence 200"):
        write_task(client, query.options, batches, name, Ids("p"))
    client.close()
    assert place.js.stream_info("T").last_seq == 200


def replace_target(rows, stream):
    subjects = [f"{stream}.{i}" for i in range(rows.num_rows)]
    return rows.set_column(0, "subject", pa.array(subjects))


# ── what is no loss ──────────────────────────────────────────────────────────────────────────


def purged(js, name):
    js.purge(name, None, None)


def purged_by_subject(js, name):
    assert js.purge(name, f"{name}.{(SIZE - 1) % 7}", None) > 0  # with the last message


def last_deleted(js, name):
    js.delete_messages(name, [js.stream_info(name).last_seq])


def expired(js, name):
    while js.stream_info(name).messages:
        time.sleep(0.05)


def nothing(js, name):
    pass


LEAVE = {
    "purged": (purged, {}),
    "purged by subject": (purged_by_subject, {}),
    "last message deleted": (last_deleted, {}),
    "max_age": (expired, {"max_age": 4 * 10**9, "duplicate_window": 4 * 10**9}),
    "max_msgs 1": (nothing, {"max_msgs": 1}),
    "max_msgs_per_subject 1": (nothing, {"max_msgs_per_subject": 1}),
}


def test_what_leaves_as_it_should_is_no_loss(place):
    """
    Purges, deletes and limits take messages, and leave the last sequence: no alarm, neither at once
    nor after the server has stopped, nor after it was killed.
    """
    queries = []
    for i, (change, config) in enumerate(LEAVE.values()):
        name = f"L{i}"
        place.js.create_stream({"name": name, "subjects": [f"{name}.>"], **config})
        query = Query(place.server.url, name, f"l{i}", ack_timeout_s=1.0, publish_timeout_s=10.0)
        query.batch(0)
        queries.append((query, change))
    for restart in (None, place.server.stop, place.server.kill):
        for query, change in queries:
            change(place.js, query.target)
        if restart is not None:
            restart()
            place.server.restart()
        for query, _ in queries:
            assert query.batch(query.at).acked == SIZE


def test_a_leader_that_does_not_yet_say_all_it_has(place, query, monkeypatch):
    """
    A loss that shows in one look and not in the next is none.
    """
    monkeypatch.setattr(ledger_module, "SETTLES_S", 30.0)
    ledger = Ledger(place.js)
    seen = FoundStream.of(place.js.stream_info("T"))

    record = ledger.begin_attempt(TaskName("q", 4, 0), [replace(seen, end=seen.end - 50)])
    assert record is not None and not record.again


def test_a_stream_made_anew_is_told_once(place, query):
    """
    A stream that was deleted and made anew between two batches has none of the rows any more: an
    error says so, and the command that goes on with the new one; then it is the target.
    """
    place.js.delete_stream("T")
    place.js.create_stream({"name": "T", "subjects": ["T.>"]})

    with pytest.raises(TargetChangedError, match="made anew at .*, after batch 3 was committed"):
        query.batch(4)
    assert place.data() == []
    place.forget()
    query.run(6)
    assert len(place.data()) == 2 * SIZE


def test_a_ledger_of_an_older_version_says_nothing_of_streams(place, query):
    """
    Records that note no streams are as good as before.
    """
    key = "$KV.SPARK_LEDGER.q.committed"
    (last,) = place.js.last_messages(STREAM, [key])
    expected = ("Nats-Expected-Last-Subject-Sequence", str(last.sequence))
    place.js.publish(key, b'{"batch": 3, "rows": 100}', [expected])
    place.take_back("T")

    assert query.batch(4).acked == SIZE


@pytest.mark.parametrize(
    "streams",
    [b"[]", b'{"T": 1}', b'{"T": {"created": "x", "ends": [], "time": ""}}',
     b'{"T": {"created": "x", "ends": [[1, -1]], "time": ""}}',
     b'{"T": {"created": "x", "ends": [3], "time": ""}}',
     b'{"T": {"created": 1, "ends": [[1, 1]], "time": ""}}'],
)  # fmt: skip
def test_a_note_of_streams_that_is_none_is_an_error(place, query, streams):
    """
    Only what a commit writes is believed.
    """
    key = "$KV.SPARK_LEDGER.q.committed"
    (last,) = place.js.last_messages(STREAM, [key])
    expected = ("Nats-Expected-Last-Subject-Sequence", str(last.sequence))
    place.js.publish(key, b'{"batch": 3, "streams": ' + streams + b"}", [expected])

    with pytest.raises(LedgerError, match="this is no record"):
        query.batch(4)


# ── the price ────────────────────────────────────────────────────────────────────────────────


def test_the_look_costs_a_request_a_batch(place, query, monkeypatch):
    """
    A task asks for nothing it did not ask for anyway. A commit asks each target stream for one
    message, once the stream has grown.
    """
    asked, trips = [], []
    ask = Connection.requests

    def counting(self, requests, *more):
        trips.append(len(requests))
        asked.extend(subject for subject, *_ in requests)
        return ask(self, requests, *more)

    monkeypatch.setattr(Connection, "requests", counting)
    published = query.task(4)
    assert sorted(asked) == [
        "$JS.API.STREAM.INFO.T",
        # committed, the task's, the secrets, all at one time; the last look
        *["$JS.API.STREAM.MSG.GET.KV_SPARK_LEDGER"] * 4,
        "$JS.API.STREAM.NAMES",
        "$KV.SPARK_LEDGER.q.4.0",
    ]
    assert sorted(trips) == [1, 1, 1, 1, 3]
    asked.clear()
    JetStreamStreamWriter(query.options, SCHEMA).commit([published], 4)
    assert sorted(asked) == [
        "$JS.API.STREAM.INFO.KV_SPARK_LEDGER",
        "$JS.API.STREAM.INFO.T",
        "$JS.API.STREAM.MSG.GET.KV_SPARK_LEDGER",
        "$JS.API.STREAM.MSG.GET.T",
        "$JS.API.STREAM.PURGE.KV_SPARK_LEDGER",
        "$KV.SPARK_LEDGER.q.committed",
    ]


# ── writing it again ─────────────────────────────────────────────────────────────────────────


def test_a_record_has_room_for_what_it_can(place, query):
    """
    What is noted of streams is cut to what a message may hold, the oldest first.
    """
    noted = {f"S{n}": Noted("c", tuple((b, b) for b in range(1000, 1100)), "t") for n in range(100)}
    maximum = place.js.client.connection.max_payload
    big = Committed(1100, {f"{name}{n}": one for name, one in noted.items() for n in range(20)})
    data = Ledger(place.js)._fitting(big, {"rows": 1})
    kept = Committed.of(json.loads(data))

    assert len(json.dumps(big.content())) > maximum
    assert maximum // 8 < len(data) < maximum
    assert kept.batch == 1100
    assert all(one.ends[-1] == (1099, 1099) for one in kept.streams.values())


def test_a_commit_that_may_not_look_at_a_target_goes_on(place, query, monkeypatch, caplog):
    """
    Without the permission to get a message of it a target that was taken back is seen less, and
    that is said; the rows are stored, so the commit does not fail.
    """
    get = JetStream.messages_of

    def forbidden(js, queries):
        if any(stream == "T" for stream, _ in queries):
            raise PermissionsError(
                'Permissions Violation for Publish to "$JS.API.STREAM.MSG.GET.T"'
            )
        return get(js, queries)

    monkeypatch.setattr(JetStream, "messages_of", forbidden)
    query.batch(4)
    monkeypatch.undo()

    assert "stream=T: at each start the query goes on without the check" in caplog.text
    assert place.data() == list(range(5 * SIZE))


@pytest.mark.parametrize("streams", [["T"], ["T", STREAM]], ids=["target", "both"])
@pytest.mark.parametrize("others", [0, 40])
def test_a_target_that_is_taken_back_amid_a_batch(place, monkeypatch, streams, others):
    """
    Rows of the batch that runs are gone, and its first ones are there: the commit says so, and the
    next attempt stores what is gone. So it is where the stream goes on behind.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.1)
    config = place.js.stream_info("T").config
    place.js.call("STREAM.UPDATE.T", config | {"allow_batched": True, "allow_atomic": True})
    query = Query(place.server.url)
    query.run(2)
    place.copy()
    published = query.task(2)
    place.take_back(*streams)
    for _ in range(others):
        place.js.publish("T.x", b"-1", [])

    with pytest.raises(
        TargetChangedError, match=f"{SIZE} rows were stored after .* ends {others} messages after"
    ):
        JetStreamStreamWriter(query.options, SCHEMA).commit([published], 2)
    assert query.batch(2).acked == SIZE
    assert sorted(place.data()) == [-1] * others + list(range(3 * SIZE))
