"""
Queries that share a consumer and note their open batches: no message is in two batches.

A query that is away for longer than its ack wait keeps the batch that it had recorded, for as long
as `abandonAfter` says; a server that forgets acks, or deliveries, changes nothing.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import DataLossError, JetStreamError, OptionError, RecordError
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.readstream.shared import openbatches
from pyspark_jetstream.readstream.shared.claims import ClaimedOffset
from pyspark_jetstream.readstream.shared.fence import Fence
from pyspark_jetstream.tasks.rows import WarmUp

from ..kits.options import connection_of
from ..kits.reading import Query
from ..kits.servers import DevServer
from ..kits.shared import RETENTIONS, ack_pending, eventually, numbered, query
from ..kits.stores import Store

__all__ = ["query"]

WAITS = {"ackWait": "3s", "maxRecordsPerTrigger": 10}


def dealt_out(js, name, count, consumer="jobs-0"):
    """Waits until the server would deal so many messages out again: their ack wait is over."""
    inbox = js.client.connection.new_inbox()
    sid = js.client.connection.subscribe(inbox)
    js.client.connection.unsubscribe(sid)
    time.sleep(3.5)
    assert js.consumer_info(name, consumer).num_ack_pending >= count


def fence_of(js, name):
    """The record."""
    (message,) = js.last_messages("KV_SPARK_CLAIMS", [f"$KV.SPARK_CLAIMS.{name}.jobs"])
    return Fence.from_bytes(message.data)


# ── away for longer than the ack wait ────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("when", ["recorded", "run", "committed"])
def test_a_query_that_is_away_keeps_its_batch(js, new_stream, publish, query, retention, when):
    """
    Wherever in its batch a query is killed, and however long it is away: others are dealt its
    messages, and leave them; it comes back, and has them once.
    """
    name = new_stream(retention=retention)
    one = query(stream=name, **WAITS)
    two = query(stream=name, **WAITS)
    assert one.claim() is None and two.claim() is None
    publish(numbered(name, 40))
    one.step()
    one.plan()
    if when == "run":
        one.read()  # its sink has the rows
    elif when == "committed":
        one.commit()  # and Spark's commit log the batch, whose acks are still to come
    one.die()
    two.drain()
    dealt_out(js, name, 10)
    two.drain()
    one.restart()
    one.drain()
    two.drain()

    assert sorted(one.sequences + two.sequences) == list(range(1, 41))
    assert ack_pending(js, name) == 0


def test_a_message_that_is_left_is_no_reason_to_stop(js, new_stream, publish, query):
    """
    A batch holds what is the query's own of what it was dealt, in the record as well; where nothing
    is, it asks again.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    one.plan()
    one.die()
    dealt_out(js, name, 10)
    publish(numbered(name, 5, start=10))
    two = query(stream=name, **WAITS | {"maxRecordsPerTrigger": 20})
    # A server that is slow is asked for no more once part of the ack wait is over.
    eventually(lambda: two.plan() is not None)
    held = sorted(each.claims["0"].ranges for each in fence_of(js, name).open.values())
    two.commit()
    eventually(lambda: two.drain() or len(two.rows) >= 5)

    assert held[0] == ((1, 10),) and min(held[1])[0] > 10
    assert sorted(two.sequences) == list(range(11, 16))
    report = two.reader.reportLatestOffset()["0"]
    assert report["ackPending"] == 10


# ── a server that forgets ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("whose", ["own", "another's"])
def test_a_server_that_forgets_acks(tmp_path, whose):
    """
    A server that comes back with the consumer as it was before acks, as one without replicas that
    is killed: what it deals out again is in committed batches, is acknowledged once more, and read
    by nobody.
    """
    store = Store(tmp_path)
    client = Client(connection_of(store.server.url))
    js = JetStream(client)
    js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
    options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs"} | WAITS
    one, two = (Query(store.server, **options) for _ in range(2))
    try:
        for i in range(30):
            js.publish(f"s.{i}", b"x", [])
        one.step()
        store.copy()
        one.step()
        one.step()
        one.claim()  # acknowledged
        assert js.consumer_info("S", "jobs-0").ack_floor == 30
        (consumer,) = store.home.glob("**/streams/S/obs")
        (older,) = store.older.glob("**/streams/S/obs")
        store.take_back_directory(consumer, older)
        assert js.consumer_info("S", "jobs-0").ack_floor < 30
        for i in range(5):
            js.publish(f"s.{i}", b"x", [])
        reader = one if whose == "own" else two
        eventually(lambda: reader.drain() or ack_pending(js, "S") == 0)

        assert sorted(one.sequences + two.sequences) == list(range(1, 36))
    finally:
        one.die()
        two.die()
        client.close()
        store.server.close()


@pytest.mark.parametrize("lists", [("S", "S"), ("S,T", "T,S")], ids=["one stream", "several"])
def test_a_server_that_is_killed_again_and_again(tmp_path, query, lists):
    """
    `kill -9` of a server without replicas, amid claims, acks and records: each message once.
    """
    names = lists[0].split(",")
    consumer = "jobs" if len(names) > 1 else "jobs-0"
    with DevServer(store_dir=tmp_path) as server:
        client = Client(connection_of(server.url, request_timeout_s=20.0))
        js = JetStream(client)
        for name in names:
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        options = {"ackWait": "3s", "maxRecordsPerTrigger": 40}
        one, two = (query(server, stream=each, **options) for each in lists)
        for _ in range(6):
            for i in range(200):
                js.publish(f"{names[i % len(names)]}.{i}", b"x", [])
            for reader in (one, two, one):
                reader.step()
            one.plan()
            server.kill()
            server.restart()
            if len(one.planned) > one.committed:
                one.commit()

        def is_dealt_out():
            one.drain()
            two.drain()
            return not any(ack_pending(js, name, consumer) for name in names)

        eventually(is_dealt_out, 60.0)
        client.close()

        found = sorted((row["stream"], row["sequence"]) for each in (one, two) for row in each.rows)
        count = 1_200 // len(names)
        assert found == [(each, i) for each in names for i in range(1, count + 1)]


# ── away for too long ────────────────────────────────────────────────────────────────────────


def test_a_query_that_is_away_for_too_long(js, new_stream, publish, query, monkeypatch, caplog):
    """
    After `abandonAfter` others take the batch that a query had recorded. Back again it runs it
    without rows, in as many tasks, acknowledges nothing of it, and goes on.
    """
    name = new_stream(retention="workqueue")
    publish(numbered(name, 20))
    options = WAITS | {"ackWait": "3s", "abandonAfter": "6s"}
    one, two = (query(stream=name, minPartitions=2, **options) for _ in range(2))
    one.plan()
    planned = len(one.tasks())
    one.die()
    eventually(lambda: two.drain() or len(two.rows) == 20)
    one.restart()
    tasks = one.tasks()
    publish(numbered(name, 10, start=20))
    one.drain()
    two.drain()

    assert [type(task.work) for task in tasks] == [WarmUp] * planned == [WarmUp] * 2
    assert sorted(two.sequences + one.sequences) == list(range(1, 31))
    assert "is away for longer than abandonAfter" in caplog.text
    assert "batch 0 of 10 messages was given up, because this query was away" in caplog.text
    assert ack_pending(js, name) == 0


def test_a_query_says_that_it_is_there(js, new_stream, publish, query):
    """
    As long as a query has a batch under way it renews the notice by which it counts as there.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS | {"ackWait": "3s", "abandonAfter": "6s"})
    one.plan()
    (who,) = fence_of(js, name).open

    def said() -> int:
        key = f"$KV.SPARK_CLAIMS.{name}.jobs.alive.{who}"
        (notice,) = js.last_messages("KV_SPARK_CLAIMS", [key])
        return notice.sequence

    before = said()
    eventually(lambda: said() > before)


def test_a_query_that_is_back_as_another_one_finds_it_away(
    js, new_stream, publish, query, monkeypatch
):
    """
    Between the look at its notice and the change of the record it takes its batch up again: the
    other query leaves the batch to it.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = (query(stream=name, **WAITS | {"abandonAfter": "6s"}) for _ in range(2))
    one.plan()
    one.die()
    away, found = openbatches.OpenBatches._away, []

    def then_it_is_back(self, queries, now):
        gone = away(self, queries, now)
        if gone and not found:
            found.extend(gone)
            one.restart()
        return gone

    monkeypatch.setattr(openbatches.OpenBatches, "_away", then_it_is_back)
    eventually(lambda: two.drain() or found)
    one.drain()
    dealt_out(js, name, 0)
    two.drain()

    assert sorted(one.sequences) == list(range(1, 11))
    assert two.rows == []


def test_another_query_has_a_shorter_abandon_after(js, new_stream, publish, query):
    """
    A query says often enough that it is there for each that may have an `abandonAfter` of two ack
    waits, as they all may.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = query(stream=name, **WAITS), query(stream=name, **WAITS | {"abandonAfter": "6s"})
    one.plan()
    (who,) = fence_of(js, name).open
    key = f"$KV.SPARK_CLAIMS.{name}.jobs.alive.{who}"
    said = js.last_messages("KV_SPARK_CLAIMS", [key])[0].sequence
    eventually(lambda: js.last_messages("KV_SPARK_CLAIMS", [key])[0].sequence >= said + 4)
    for sequence in range(1, 11):  # a server that has forgotten the deliveries
        js.client.connection.tell(f"$JS.ACK.{name}.jobs-0.1.{sequence}.{sequence}.0.0", b"-NAK")
    js.client.connection.ping(60.0)
    two.drain()
    one.commit()

    assert sorted(one.sequences) == list(range(1, 11))
    assert two.rows == []


def test_an_operator_gives_a_batch_up(js, new_stream, publish, query):
    """
    Who deletes the key by which a query says that it is there gives its batch to the others.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = (query(stream=name, **WAITS) for _ in range(2))
    one.plan()
    one.die()
    (who,) = fence_of(js, name).open
    key = f"$KV.SPARK_CLAIMS.{name}.jobs.alive.{who}"
    js.publish(key, b"", [("KV-Operation", "DEL")])
    eventually(lambda: two.drain() or len(two.rows) == 10)

    assert fence_of(js, name).is_lost(who, 0)


def test_a_record_that_somebody_deletes_while_a_query_runs(js, new_stream, publish, query, caplog):
    """
    A query makes the record anew of what it knows, and says so: another one's batch stays its own.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one, two = (query(stream=name, **WAITS) for _ in range(2))
    one.plan()
    two.drain()
    one.die()
    js.publish(f"$KV.SPARK_CLAIMS.{name}.jobs", b"", [("KV-Operation", "DEL")])
    dealt_out(js, name, 10)
    publish(numbered(name, 10, start=30))
    two.drain()
    one.restart()
    one.drain()
    two.drain()

    assert "the record of open batches was deleted" in caplog.text
    assert sorted(one.sequences + two.sequences) == list(range(1, 41))


def test_a_record_that_was_taken_back_is_not_believed(js, new_stream, monkeypatch, caplog):
    """
    However often a query looks at an older copy of the record, it goes by what it knows of its own
    batches, and says once that it does.
    """
    monkeypatch.setattr(openbatches, "_LOOK_S", 0.0)
    key = f"{new_stream()}.jobs"
    batches = openbatches.OpenBatches(js.client, key, "me", {}, ack_wait_s=3.0, abandon_s=60.0)
    first, second = (
        ClaimedOffset("overflow", "jobs", 1, {}, serial, {"0": {1: ((serial + 1, serial + 1),)}})
        for serial in range(2)
    )
    assert batches.enter(must=True)
    batches.resume(first)
    older = js.last_messages("KV_SPARK_CLAIMS", [f"$KV.SPARK_CLAIMS.{key}"])
    batches.resume(second)
    monkeypatch.setattr(openbatches.Bucket, "last", lambda *_: older)
    for _ in range(3):
        batches.look()

    assert batches.settles(second) and not batches.settles(first)
    assert caplog.text.count("taken back to an older one") == 1


def test_a_record_that_somebody_deletes_while_a_query_is_away(
    js, new_stream, publish, query, caplog
):
    """
    A query that comes back to a record without its batch says so, and notes it again.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one, two = (query(stream=name, **WAITS) for _ in range(2))
    one.plan()
    one.die()
    js.publish(f"$KV.SPARK_CLAIMS.{name}.jobs", b"", [("KV-Operation", "DEL")])
    one.restart()  # and its batch runs, and is committed; its acks are still to come
    dealt_out(js, name, 10)
    two.drain()
    one.drain()

    assert "batch 0 of this query is not in bucket=SPARK_CLAIMS" in caplog.text
    assert sorted(one.sequences + two.sequences) == list(range(1, 11))


# ── on and off ───────────────────────────────────────────────────────────────────────────────


def test_a_reset_on_purpose(js, new_stream, publish, query, monkeypatch):
    """
    Who resets the consumer to a time that is long past has its messages read again.
    """
    monkeypatch.setattr(openbatches, "_KEEP_S", -1e9)  # all time is long past
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    one.drain()
    publish(numbered(name, 1, start=10))
    one.drain()
    js.reset(name, "jobs-0", 1)
    eventually(lambda: one.drain() or len(one.rows) == 22)

    assert sorted(one.sequences) == sorted(2 * list(range(1, 12)))


def test_a_reset_over_what_nobody_has_read(js, new_stream, publish, query):
    """
    A limit: what a reset has skipped a moment ago counts as acknowledged, and is not read after
    another reset.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one = query(stream=name, **WAITS)
    assert one.step() == 10
    one.claim()
    one.restart()
    js.reset(name, "jobs-0", 21)
    assert eventually(one.step) == 10
    one.claim()
    js.reset(name, "jobs-0", 11)
    eventually(lambda: one.drain() or js.consumer_info(name, "jobs-0").ack_floor == 30)

    assert sorted(one.sequences) == [*range(1, 11), *range(21, 31)]


def test_a_first_batch_that_spark_never_recorded(js, new_stream, publish, query):
    """
    A limit: nothing in the checkpoint says whose it was, so it is left for `abandonAfter`, also by
    the query that is back.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    one.claim()
    one.restart()
    dealt_out(js, name, 10)
    one.drain()
    assert one.rows == []

    (who,) = fence_of(js, name).open
    js.publish(f"$KV.SPARK_CLAIMS.{name}.jobs.alive.{who}", b"", [("KV-Operation", "DEL")])
    eventually(lambda: one.drain() or len(one.rows) == 10)


def test_without_the_bucket(js, new_stream, publish, query, monkeypatch, caplog):
    """
    Where the bucket cannot be used a query says so and goes on as without it, unless it must be
    there.
    """
    monkeypatch.setattr(openbatches, "BUCKET", "SPARK_FORGETS")
    new_stream("KV_SPARK_FORGETS", subjects=["$KV.SPARK_FORGETS.>"], max_age=10**12)
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    one.drain()
    must = query(stream=name, claimsLedger="true", **WAITS)

    assert len(one.rows) == 10
    assert "do not see each other's open batches" in caplog.text
    with pytest.raises(OptionError, match="option 'claimsLedger': .*max_age"):
        must.claim()


def test_a_record_of_a_stranger_is_an_error(js, new_stream, publish, query):
    """
    What no query has stored by compare-and-set is not believed; nor is what is no record.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    one.drain()
    js.publish(f"$KV.SPARK_CLAIMS.{name}.jobs", b"{}", [])

    publish(numbered(name, 10, start=10))
    for _ in range(2):
        with pytest.raises(RecordError, match="it is not believed"):
            one.drain()
        one.restart()


def test_a_record_that_grows_too_large(tmp_path, query, caplog):
    """
    While a query is away the ack floor stands still, and behind a filter no two sequences are one
    range: what was committed lately is left out before the record is too large for its server.
    """
    with DevServer("max_payload: 4096", store_dir=tmp_path) as server:
        client = Client(connection_of(server.url))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["s.>"], "allow_direct": True})
        options = {"stream": "S", "subject": "s.0"} | WAITS | {"maxRecordsPerTrigger": 50}
        dead, live = query(server, **options), query(server, **options)
        js.publish("s.0", b"x", [])
        eventually(dead.plan)
        dead.die()
        for _ in range(15):
            for i in range(100):
                client.connection.tell(f"s.{i % 2}", b"x")
            client.connection.ping(60.0)
            live.drain()
        client.close()

        assert len(live.rows) == 750
        assert "batches that were committed lately are left out" in caplog.text


@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_a_stream_that_is_made_anew(js, new_stream, publish, query, what):
    """
    What was open or settled in a stream that is no more is nothing of the one of its name; a
    consumer that is made anew delivers all again, but for what is in open batches.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, failOnDataLoss="false", **WAITS)
    assert one.step() == 10
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    js.delete_consumers([(name, "jobs-0")])
    if what == "stream":
        js.delete_stream(name)
        js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        publish(numbered(name, 10))
    js.create_consumer(name, config)
    two = query(stream=name, **WAITS)
    two.drain()
    assert len(two.rows) == (10 if what == "stream" else 0)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_consumer_that_was_made_anew_while_a_query_was_away(
    js, new_stream, publish, query, caplog, fails
):
    """
    It delivers again what was acknowledged, and the query says so when it is back: once.
    """
    name = new_stream()
    publish(numbered(name, 20))
    one = query(stream=name, failOnDataLoss=fails, **WAITS)
    one.drain()
    one.die()
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    js.delete_consumers([(name, "jobs-0")])
    js.create_consumer(name, config)
    one.restart()
    said = "was made anew at .*, since this query ran last"
    if fails == "true":
        with pytest.raises(DataLossError, match=said):
            one.drain()
        one.restart()
    one.drain()

    assert sorted(one.sequences) == sorted(2 * list(range(1, 21)))
    assert fails == "true" or len(re.findall(said, caplog.text)) == 1


def test_a_consumer_that_was_made_anew_is_told_once(js, new_stream, publish, query):
    """
    Under a query that runs: the next start goes on.
    """
    name = new_stream()
    publish(numbered(name, 20))
    one = query(stream=name, **WAITS)
    one.drain()
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    js.delete_consumers([(name, "jobs-0")])
    js.create_consumer(name, config)
    with pytest.raises(DataLossError, match="was made anew at .*, while the query ran"):
        one.step()
    one.restart()
    eventually(lambda: one.drain() or len(one.rows) == 40)

    assert sorted(one.sequences) == sorted(2 * list(range(1, 21)))


def test_a_consumer_that_this_query_never_had(js, new_stream, publish, query):
    """
    That the record knows an earlier consumer of a stream is nothing to a query that begins to read
    the stream.
    """
    old, other, new = (new_stream() for _ in range(3))
    publish(numbered(old, 10) + numbered(new, 10))
    both, one = query(stream=f"{old},{new}", **WAITS), query(stream=f"{old},{other}", **WAITS)
    both.drain()
    publish(numbered(old, 10))
    one.drain()
    both.die()
    js.delete_consumers([(new, "jobs")])
    one.restart(stream=f"{old},{other},{new}")
    one.drain()

    assert len(one.rows) == 20


def test_a_consumer_that_was_away_for_a_moment(js, new_stream, publish, query, monkeypatch):
    """
    One look lacks it, and it is there as the query asks again: the query looks once more.
    """
    name = new_stream()
    publish(numbered(name, 10))
    one = query(stream=name, **WAITS)
    look, done = Survey.look, []

    def once_without(self, consumers, *rest, **more):
        seen = look(self, consumers, *rest, **more)
        if consumers and not done:
            done.append(True)
            return replace(seen, consumers=dict.fromkeys(seen.consumers))
        return seen

    monkeypatch.setattr(Survey, "look", once_without)
    one.drain()

    assert done and sorted(one.sequences) == list(range(1, 11))


def test_each_batch_changes_the_record_once(js, new_stream, publish, query, monkeypatch):
    """
    One compare-and-set a batch, and one that closes the last; none while there is nothing.
    """
    name = new_stream()
    one = query(stream=name, **WAITS)
    assert one.claim() is None
    stream, subject = "KV_SPARK_CLAIMS", f"$KV.SPARK_CLAIMS.{name}.jobs"
    changes = []
    put = openbatches.Bucket.replace

    def counted(bucket, key, *rest):
        changes.append(key)
        return put(bucket, key, *rest)

    monkeypatch.setattr(openbatches.Bucket, "replace", counted)
    publish(numbered(name, 30))
    for _ in range(3):
        one.step()
    for _ in range(5):
        assert one.claim() is None

    assert changes.count(f"{name}.jobs") == 4
    record = json.loads(js.last_messages(stream, [subject])[0].data)
    assert list(record["open"].values()) == [{"serial": 2, "claims": {}}]


def test_queries_in_turns_try_nothing_in_vain(js, new_stream, publish, query, monkeypatch):
    """
    A query reads the record before each change, so it knows what others have changed meanwhile.
    """
    name = new_stream()
    one, two = query(stream=name, **WAITS), query(stream=name, **WAITS)
    assert one.claim() is None and two.claim() is None
    put, stored = openbatches.Bucket.replace, []
    monkeypatch.setattr(
        openbatches.Bucket,
        "replace",
        lambda bucket, key, *rest: stored.append(put(bucket, key, *rest)) or stored[-1],
    )
    publish(numbered(name, 60))
    for _ in range(3):
        one.step()
        two.step()

    assert len([each for each in stored if each is not None]) >= 6
    assert stored.count(None) == 0


# ── editing, pausing, going back ─────────────────────────────────────────────────────────────


def test_a_shared_consumer_that_was_edited(js, new_stream, publish, query):
    """
    A filter, an ack wait or `max_deliver` that somebody changes under queries that share ends them
    with its name; what changes none of their rows does not.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one = query(stream=name, **WAITS)
    one.step()
    config = js.consumer_info(name, "jobs-0").config
    js.create_consumer(name, config | {"max_ack_pending": 50}, action="update")
    assert one.step() == 10
    js.create_consumer(name, config | {"filter_subject": f"{name}.0"}, action="update")
    with pytest.raises(JetStreamError, match=f"it has filter_subject '{name}.0' where it was made"):
        one.step()
    one.restart()
    with pytest.raises(OptionError, match="filter_subject"):
        one.step()


# ── what comes again ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", ["ack wait", "NAK"])
def test_available_now_reads_what_waits_for_redelivery(js, new_stream, publish, query, why):
    """
    Messages that were delivered to somebody, and come again, are there like any other.
    """
    name = new_stream()
    publish(numbered(name, 30))
    one = query(stream=name, claimsLedger="false", ackWait="3s")
    one.claim()
    if why == "NAK":
        for sequence in range(1, 31):
            js.client.connection.tell(f"$JS.ACK.{name}.jobs-0.1.{sequence}.{sequence}.0.0", b"-NAK")
        js.client.connection.ping(60.0)
    one.die()
    if why == "ack wait":
        time.sleep(3.5)
    two = query(stream=name, claimsLedger="false", maxRecordsPerTrigger=7)
    two.reader.prepareForTriggerAvailableNow()
    two.drain()

    assert sorted(two.sequences) == list(range(1, 31))


def test_available_now_reads_all_beside_what_is_another_query_s(js, new_stream, publish, query):
    """
    What is in the batch of a query that is away is dealt to the run again and again, and is nothing
    that the run has read.
    """
    name = new_stream()
    publish(numbered(name, 30))
    dead = query(stream=name, **WAITS | {"maxRecordsPerTrigger": 30})
    dead.plan()
    dead.die()
    dealt_out(js, name, 30)
    publish(numbered(name, 40, start=30))
    run = query(stream=name, **WAITS)
    run.reader.prepareForTriggerAvailableNow()
    while run.step():
        dealt_out(js, name, 30)

    assert sorted(run.sequences) == list(range(31, 71))


def test_available_now_ends_amid_what_is_another_query_s(js, new_stream, publish, query):
    """
    Where claims are so small that what is another query's is dealt out again before the run has had
    all of it, the run ends.
    """
    name = new_stream()
    publish(numbered(name, 4000))
    dead = query(stream=name, ackWait="3s", maxRecordsPerTrigger=4000)
    dead.plan()
    dead.die()
    dealt_out(js, name, 4000)
    run = query(stream=name, ackWait="3s", maxRecordsPerTrigger=4)
    run.reader.prepareForTriggerAvailableNow()
    run.drain()

    assert run.rows == []
