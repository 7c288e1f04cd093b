"""
What was committed and is gone: a target stream, or the ledger, that its server has taken back.

A server that lost what it had acknowledged is played by an older copy of its store.
"""

import re
from dataclasses import replace

import pytest

from pyspark_jetstream.client.connection import Connection
from pyspark_jetstream.client.info import StoredMessage
from pyspark_jetstream.errors import PublishError, TargetChangedError
from pyspark_jetstream.write import streams
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.exactlyonce.records import Committed, committed_of
from pyspark_jetstream.write.streams import FoundStream

from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.shared import eventually
from ..kits.streams import delete_messages, stored
from ..kits.writing import WriteQuery

SIZE = 100
"""Rows of a batch."""


class Place:
    """A server with a target and a ledger, and its client."""

    def __init__(self, server, js):
        self.server, self.js = server, js
        self.copy, self.take_back = server.copy, server.take_back
        Ledger(self.js).ensure()

    def data(self, stream="T"):
        return [int(message["data"]) for message in stored(self.js, stream).values()]

    def obey(self, error):
        """Does what an error says."""
        told = str(error)
        if "nats stream purge" in told:
            subject = re.search(r"purge KV_SPARK_LEDGER --subject '(.*?)'", told)[1]
            assert self.js.purge(STREAM, subject, None) > 0
        else:
            key = re.search("nats kv del SPARK_LEDGER ([^`]*)`", told)[1]
            self.js.publish(f"$KV.SPARK_LEDGER.{key}", b"", [("KV-Operation", "DEL")])


@pytest.fixture
def place(monkeypatch):
    """A server of its own, with a stream T and a ledger; a loss is believed soon."""
    monkeypatch.setattr(streams, "SETTLES_S", 0.2)
    with serving(streams={"T": {}}) as own:
        yield Place(*own)


@pytest.fixture
def query(place):
    """A query of which two batches were committed, then copied, then two more committed."""
    query = WriteQuery(connection_of(place.server.url), "T", "q")
    query.run(2)
    place.copy()
    query.run(4)
    return query


# ── what is gone is named ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (["T"], "stream 'T': it ended at sequence 400, and ends at 200 now"),
        ([STREAM], "the ledger ends with batch 1, and batch 4 begins"),
        (["T", STREAM], "the ledger ends with batch 1, and batch 4 begins"),
    ],
    ids=["target", "ledger", "both"],
)  # fmt: skip
def test_what_was_taken_back_is_named(place, query, streams, message):
    """Before a row goes out; when the operator has done what it says, the query goes on."""
    place.take_back(*streams)
    before = place.data()

    with pytest.raises(PublishError, match=message) as caught:
        query.batch()
    assert place.data() == before
    assert not place.js.subject_counts(STREAM, ["$KV.SPARK_LEDGER.q.4.*"])[1]

    place.obey(caught.value)
    query.run(6)
    assert place.data() == before + list(range(4 * SIZE, 6 * SIZE))


@pytest.mark.parametrize("streams", [["T"], ["T", STREAM]], ids=["target", "both"])
@pytest.mark.parametrize("others", [0, SIZE - 1])
def test_a_target_that_is_taken_back_amid_a_batch(place, streams, others):
    """The commit says so; when the operator has obeyed, the batch is written."""
    query = WriteQuery(connection_of(place.server.url), "T", "q")
    query.run(2)
    place.copy()
    published = query.task()
    place.take_back(*streams)
    for _ in range(others):
        place.js.publish("T.x", b"-1", [])

    with pytest.raises(
        TargetChangedError, match=f"it ended at sequence 300, and ends at {200 + others}"
    ) as one:
        query.commit(published)
    place.obey(one.value)
    assert query.batch().acked == SIZE
    assert [n for n in place.data() if n >= 0] == list(range(3 * SIZE))


def test_a_stream_that_a_later_block_of_rows_goes_to(place, query):
    """A stream is looked at before the first row goes there, not only at the task's beginning."""
    place.js.create_stream({"name": "U", "subjects": ["U.>"]})
    place.take_back("T")
    batches = [query.rows(subject=[f"U.{i}" for i in range(SIZE)]), query.rows()]

    with pytest.raises(TargetChangedError, match="it ended at sequence 400, and ends at 200"):
        query.task(batches)
    assert place.js.stream_info("T").last_seq == 200


# ── what is no loss ──────────────────────────────────────────────────────────────────────────


def purged(js, name):
    js.purge(name, None, None)


def purged_by_subject(js, name):
    assert js.purge(name, f"{name}.{(SIZE - 1) % 7}", None) > 0  # with the last message


def last_deleted(js, name):
    delete_messages(js, name, [js.stream_info(name).last_seq])


def expired(js, name):
    eventually(lambda: not js.stream_info(name).messages)


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
    """Purges, deletes and limits are no alarm, whether the server stops or is killed."""
    queries = []
    for i, (change, config) in enumerate(LEAVE.values()):
        name = f"L{i}"
        place.js.create_stream({"name": name, "subjects": [f"{name}.>"], **config})
        timeouts = {"ack_timeout_s": 1.0, "publish_timeout_s": 10.0}
        query = WriteQuery(connection_of(place.server.url), name, **timeouts)
        query.batch()
        queries.append((query, change))
    for restart in (None, place.server.stop, place.server.kill):
        for query, change in queries:
            change(place.js, query.target)
        if restart is not None:
            restart()
            place.server.restart()
        for query, _ in queries:
            assert query.batch().acked == SIZE


def test_a_leader_that_does_not_yet_say_all_it_has(place, query, monkeypatch):
    """A loss that shows in one look and not in the next is none."""
    monkeypatch.setattr(streams, "SETTLES_S", 30.0)
    ledger = Ledger(place.js)
    seen = FoundStream.of(place.js.stream_info("T"))

    record = ledger.begin_attempt(TaskName("q", 4, 0), [replace(seen, end=seen.end - 50)])
    assert record is not None and not record.again


def test_a_stream_made_anew_is_told_once(place, query):
    """The error has the command that goes on with the new one; then it is the target."""
    place.js.delete_stream("T")
    place.js.create_stream({"name": "T", "subjects": ["T.>"]})

    with pytest.raises(
        TargetChangedError, match="made anew at .*; rows that were stored"
    ) as caught:
        query.batch()
    assert place.data() == []
    place.obey(caught.value)
    query.run(6)
    assert len(place.data()) == 2 * SIZE


# ── the price ────────────────────────────────────────────────────────────────────────────────


def test_the_look_costs_a_request_a_batch(place, query, monkeypatch):
    """A task asks for nothing it did not ask for anyway."""
    asked, trips = [], []
    ask = Connection.requests

    def counting(self, requests, *more):
        trips.append(len(requests))
        asked.extend(subject for subject, *_ in requests)
        return ask(self, requests, *more)

    monkeypatch.setattr(Connection, "requests", counting)
    published = query.task()
    assert sorted(asked) == [
        "$JS.API.STREAM.INFO.T",
        # committed, the task's, the mapping, the secret, all at one time; the last look at two
        *["$JS.API.STREAM.MSG.GET.KV_SPARK_LEDGER"] * 6,
        "$JS.API.STREAM.NAMES",
        "$KV.SPARK_LEDGER.q.4.0",
    ]
    assert sorted(trips) == [1, 1, 1, 2, 4]
    asked.clear()
    query.commit(published)
    assert sorted(asked) == [
        "$JS.API.STREAM.INFO.KV_SPARK_LEDGER",
        "$JS.API.STREAM.INFO.T",
        "$JS.API.STREAM.MSG.GET.KV_SPARK_LEDGER",
        "$JS.API.STREAM.PURGE.KV_SPARK_LEDGER",
        "$KV.SPARK_LEDGER.q.committed",
    ]


def test_a_record_has_room_for_what_it_can():
    """What is noted of streams is cut to what a message may hold, the oldest first."""
    noted = {f"S{n}": FoundStream(f"S{n}", "c", n) for n in range(2000)}
    data = Committed(1100, noted).content(8_000, {"rows": 1})
    kept = committed_of(StoredMessage(1, "", [], data))

    assert 2_000 < len(data) < 8_000
    assert kept.batch == 1100
    assert list(kept.streams.values()) == list(noted.values())[-len(kept.streams) :]
