"""When a read is by consumers of the attempts' own, and when its batch is cut by sequence."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch import survey
from pyspark_jetstream.fetch.consumer import ConsumerRead
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.tasks.ranges import OwnRead, RangeRead
from pyspark_jetstream.values import Secret

from ..kits.options import connection_of
from ..kits.pins import Query
from ..kits.places import ROOT
from ..kits.servers import DevServer
from .test_consumer import fill, sequences
from .test_own import FORBIDDING, kept


@pytest.fixture(autouse=True)
def near(monkeypatch):
    """No server is far away: on a busy machine one that is near answers late."""
    monkeypatch.setattr(survey, "FAR_S", 60.0)


@pytest.mark.parametrize("layout", ["one", "filtered", "few subjects"])
def test_auto_takes_it_deep_in_a_backlog(nats_server, js, new_stream, layout):
    """
    A batch of many messages is read by consumers of the attempts' own, under a wide filter without
    the filter, and the progress says so; the next small one by the pinned consumer, which stands
    where the batch before ended. In the end there are the query's consumers and no others.
    """
    stream = new_stream()
    options = {"stream": stream, "consumer": "q"}
    if layout != "one":
        subjects = 40 if layout == "filtered" else 1
        for i in range(2 * subjects):
            fill(js, stream, 60_000 // subjects, b"%d" % (i % 2), f"{i % 2}.s{i // 2}")
        options |= {"partitions": "2", "partitionSubject": f"{stream}.{{partition}}.>"}
    else:
        fill(js, stream, 120_000)
    query = Query(nats_server, **options)
    end, tasks = query.plan()
    filters = {task.work.filter for task in tasks}
    first, modes = query.batch(), {query.progress(p)["read"] for p in range(len(tasks))}
    assert end["sequences"] == query.at["sequences"]
    publish_more = [f"{i % 2}.s0" for i in range(100)]
    for subject in publish_more:
        js.publish(f"{stream}.{subject}", b"x", [])
    query.reader.commit(query.at)
    stands = {js.consumer_info(stream, f"q-{p}").stream_seq for p in range(len(tasks))}
    second, then = query.batch(), {query.progress(p)["read"] for p in range(len(tasks))}
    query.stop()

    assert sorted(first) == list(range(1, 120_001))
    assert sorted(second) == list(range(120_001, 120_101))
    assert modes == {"own"}
    assert filters == ({f"{stream}.0.>", f"{stream}.1.>"} if layout == "few subjects" else {None})
    assert stands == {120_000}
    assert then == {"consumer"}
    assert kept(js, stream) == [f"q-{p}" for p in range(len(tasks))]


def test_auto_on_a_server_that_stands_alone(nats_server, js, new_stream):
    """
    Nobody but this server hears of such a consumer: some thousand messages are worth one, in a
    batch of a query and in a range (`test_pins_in_cluster` has the same in a cluster).
    """
    stream = new_stream()
    fill(js, stream, 3_000)
    query = Query(nats_server, stream=stream, consumer="q")
    found, read = query.batch(), query.progress()["read"]
    query.reader.commit(query.at)
    fill(js, stream, 100)
    few, then = query.batch(), query.progress()["read"]
    query.stop()
    options = {"servers": nats_server.url, "stream": stream}
    (task,) = JetStreamRangeReader(parse_read(options)).partitions()

    assert found == list(range(1, 3_001))
    assert few == list(range(3_001, 3_101))
    assert (read, then) == ("own", "consumer")
    assert isinstance(task.work, OwnRead)
    assert kept(js, stream) == ["q-0"]


def test_a_leaf_node_that_stands_alone():
    """
    It names a cluster where it is told of hubs to go to, but there is none: just as many messages
    are worth a consumer as anywhere alone.
    """
    with DevServer('leafnodes { remotes: [{ url: "nats-leaf://127.0.0.1:1" }] }') as leaf:
        js = JetStream(Client(connection_of(leaf.url)))
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        fill(js, "S", 3_000)
        named = js.stream_info("S").cluster.get("name")
        js.client.close()
        ranged = JetStreamRangeReader(parse_read({"servers": leaf.url, "stream": "S"}))
        (task,) = ranged.partitions()

    assert named
    assert isinstance(task.work, OwnRead)


@pytest.mark.parametrize(
    ("retention", "options"),
    [("limits", {"readMode": "consumer"}), ("interest", {}), ("workqueue", {})],
    ids=["consumer", "interest", "workqueue"],
)
def test_where_the_consumer_stays_the_pinned_one(nats_server, js, new_stream, retention, options):
    """
    With readMode=consumer, and where consumers decide what the stream keeps, a deep backlog is read
    by the partition's own consumer.
    """
    stream = new_stream(retention=retention)
    query = Query(nats_server, stream=stream, consumer="q", **options)
    query.batch()  # makes the consumer, which an interest stream needs
    fill(js, stream, 50_000)
    found = query.batch()
    read = query.progress()["read"]
    query.stop()

    assert found == list(range(1, 50_001))
    assert read == "consumer"


@pytest.mark.parametrize("granted", [True, False], ids=["granted", "not-granted"])
def test_the_rights_that_it_needs(caplog, granted):
    """
    With what docs/guides/permissions.md grants for it a deep backlog and a long range are read by
    such consumers. A user that may make the query's own consumers alone reads the backlog by these,
    and the range by direct get, without an error or a warning.
    """
    calls = ["CONSUMER.CREATE", "CONSUMER.DELETE", "CONSUMER.MSG.NEXT"]
    page = (ROOT / "docs" / "guides" / "permissions.md").read_text()
    assert "| `$JS.API.CONSUMER.{CREATE,DELETE,MSG.NEXT}.<stream>.*`. Without" in page
    allowed = [f"$JS.API.{call}.S" for call in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]
    allowed += [f"$JS.API.{call}.S.q-0" for call in (*calls, "CONSUMER.INFO", "CONSUMER.RESET",
                "CONSUMER.UNPIN") if "DELETE" not in call]  # fmt: skip
    allowed += [f"$JS.API.{call}.S.*" for call in calls if granted]
    config = FORBIDDING.replace('deny: "%s"', f"allow: {json.dumps([*allowed, '_INBOX.>'])}")
    with DevServer(config) as server:
        admin = Client(connection_of(server.url, user="admin", password=Secret("x")))
        js = JetStream(admin)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        fill(js, "S", 50_000)
        words = {"stream": "S", "user": "reader", "password": "x"}
        query = Query(server, consumer="q", **words)
        found, read = query.batch(), query.progress()["read"]
        query.stop()
        reader = JetStreamRangeReader(parse_read({"servers": server.url} | words))
        tasks = reader.partitions()
        ranged = [seq for task in tasks for seq in sequences(reader.read(task))]
        left = kept(js, "S")
        admin.close()

    assert found == ranged == list(range(1, 50_001))
    assert read == ("own" if granted else "consumer")
    assert {type(task.work) for task in tasks} == {OwnRead if granted else RangeRead}
    assert left == ["q-0"]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("dropping", [False, True], ids=["all", "one-filter"])
def test_a_range_of_a_batch_read(nats_server, js, new_stream, dropping):
    """
    A long range is read by consumers of the attempts' own, a short one by direct get.
    """
    stream = new_stream()
    for subject in ("a.1", "b.1"):
        fill(js, stream, 20_000, subject=subject)
    options = {"servers": nats_server.url, "stream": stream, "minPartitions": "3"}
    if dropping:
        options["subject"] = f"{stream}.a.*"
    reader = JetStreamRangeReader(parse_read(options))
    tasks = reader.partitions()
    found = [seq for task in tasks for seq in sequences(reader.read(task))]
    short = JetStreamRangeReader(parse_read(options | {"endingOffsets": '{"0": 1000}'}))
    few = short.partitions()

    assert found == list(range(1, 20_001 if dropping else 40_001))
    assert {type(task.work) for task in tasks} == {OwnRead}
    assert {type(task.work) for task in few} == {RangeRead}
    assert kept(js, stream) == []


def test_a_backlog_is_cut_by_sequence(nats_server, js, new_stream, publish):
    """
    With `minPartitions` a deep backlog of two partitions of one stream is read once, in ranges of
    its sequences; each row has its partition. Near the end each partition is a task again.
    """
    stream = new_stream()
    for part in range(8):
        fill(js, stream, 10_000, subject=f"{part % 2}.x")
    words = {"stream": stream, "partitions": 2, "partitionSubject": stream + ".{partition}.>"}
    query = Query(nats_server, consumer="q", minPartitions=4, **words)
    end, tasks = query.plan()
    found, again = (
        pa.Table.from_batches(each for task in tasks for each in query.reader.read(task))
        for _ in range(2)
    )
    query.at = end
    publish([(f"{stream}.{i % 2}.x", b"late") for i in range(10)])
    late, few = query.plan()
    rest = [seq for task in few for seq in sequences(query.reader.read(task))]
    query.stop()

    assert [(task.work.start, task.work.end) for task in tasks] == [
        (low, low + 20_000) for low in range(0, 80_000, 20_000)
    ]
    assert {type(task.work) for task in tasks} == {OwnRead}
    assert found["sequence"].to_pylist() == list(range(1, 80_001))
    places = zip(found["partition"].to_pylist(), found["subject"].to_pylist(), strict=True)
    assert all(partition == int(subject.split(".")[1]) for partition, subject in places)
    assert found.equals(again)
    assert {type(task.work) for task in few} == {ConsumerRead} and len(few) == 2
    assert sorted(rest) == list(range(80_001, 80_011))
    assert sorted(kept(js, stream)) == ["q-0", "q-1"]


def test_a_batch_that_runs_again_is_cut_as_before(nats_server, js, new_stream):
    """
    The tasks of a batch have the same rows after a restart, although the stream has grown so that
    the batch would be read, and cut, in another way now: a sink's message ids hang on that.
    """
    stream = new_stream()
    for i in range(200):
        fill(js, stream, 5, subject=f"{i % 2}.s{i}")
    words = {"stream": stream, "partitions": 2, "partitionSubject": stream + ".{partition}.>"}
    query = Query(nats_server, consumer="q", minPartitions=4, **words)
    start = query.at
    end, tasks = query.plan()
    found = [sequences(query.reader.read(task)) for task in tasks]
    query.stop()
    fill(js, stream, 20_000, subject="0.s0")
    query = Query(nats_server, start, consumer="q", minPartitions=4, **words)
    again = [sequences(query.reader.read(task)) for task in query.reader.partitions(start, end)]
    query.at = end
    end, tasks = query.plan()
    query.stop()
    other = Query(nats_server, start, consumer="q", minPartitions=4, **words)
    other.at = query.at
    replayed = other.reader.partitions(query.at, end)
    other.stop()

    assert again == found and len(found) == 2
    assert end["split"] and "split" not in query.at
    assert [(t.work.start, t.work.end) for t in replayed] == [
        (t.work.start, t.work.end) for t in tasks
    ]


def test_a_backlog_is_not_cut_without_direct_get(nats_server, js, new_stream):
    """Pieces too small for a consumer of their own could not be read."""
    stream = new_stream(allow_direct=False)
    fill(js, stream, 50_000)
    query = Query(nats_server, stream=stream, consumer="q", minPartitions=10)
    found = query.batch()
    query.stop()

    assert found == list(range(1, 50_001))


@pytest.mark.parametrize("options", [{"readMode": "direct"}, {"minPartitions": 4}])
def test_a_shared_batch_of_a_stream_that_is_no_more(nats_server, js, new_stream, options):
    """What the stream that was made anew holds is in the next batch, and only there."""
    stream = new_stream()
    for i in range(4):
        fill(js, stream, 10_000, subject=f"{'ab'[i % 2]}.x")
    words = {"stream": stream, "subject": f"{stream}.a.>,{stream}.b.>", "failOnDataLoss": False}
    query = Query(nats_server, **words, **options)
    start = query.at
    end, tasks = query.plan()
    query.stop()
    config = js.stream_info(stream).config
    js.client.request(f"{js.prefix}.STREAM.DELETE.{stream}")
    js.create_stream(config)
    fill(js, stream, 1000, subject="a.x")
    query = Query(nats_server, start, **words, **options)
    left = query.reader.partitions(start, end)
    query.at = end
    found = query.batch()
    query.stop()

    assert tasks and not left
    assert found == list(range(1, 1001))
