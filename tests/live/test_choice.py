"""How a task reads its range: by its own consumer from `directBelow` on, else by direct get."""

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits.options import connection_of
from ..kits.ranges import fill, sequences
from ..kits.reading import Query, query
from ..kits.streams import update_stream

__all__ = ["query"]

LAYOUTS = ["one", "filtered", "streams", "several"]


def made(new_stream, layout, **config):
    """Streams of a layout: where to publish (stream, subject), and the options of a read."""
    if layout in ("streams", "several"):
        base = new_stream(**config)
        names = [new_stream(f"{base}-{p}", **config) for p in range(2)]
        options = {"stream": ",".join(names)}
        if layout == "streams":
            options = {"stream": f"{base}-{{partition}}", "partitions": 2}
        return [(name, "x") for name in names], options
    name = new_stream(**config)
    options = {"stream": name}
    if layout == "filtered":
        options |= {"partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}
    return [(name, f"{p}.x") for p in range(2)], options


@pytest.fixture
def direct_gets(nats_server):
    """The requests of direct get that reached the server."""
    client = Client(connection_of(nats_server.url))
    client.connection.subscribe("$JS.API.DIRECT.GET.>")
    client.connection.ping(20.0)

    def asked():
        client.connection.ping(20.0)
        found = []
        while (frame := client.connection.next_frame(0.0)) is not None:
            found.append(frame.subject)
        return found

    yield asked
    client.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_least_number_no_direct_get_reaches_the_server(
    nats_server, js, new_stream, direct_gets, layout
):
    """With directBelow=0 short and long batches are read by consumers of the tasks' own alone."""
    places, options = made(new_stream, layout)
    query = Query(nats_server, directBelow=0, maxRecordsPerTrigger=3_000, **options)
    query.batch()
    for count in (10, 4_000, 3):
        for stream, subject in places:
            fill(js, stream, count, subject=subject)
    for _ in range(12):
        query.batch()
    query.stop()

    streams = {stream for stream, _ in places}
    assert not [subject for subject in direct_gets() if subject.decode().split(".")[4] in streams]
    of = 8_026 if len(streams) == 1 else 4_013
    assert sorted(query.sequences) == sorted([*range(1, of + 1)] * len(streams))


def works(query):
    """Whether the reads of the next batch, which is run, are by consumers of their own."""
    _, tasks = query.ask()
    query.batch()
    return [bool(read.group) for task in tasks for read in task.work.reads]


def test_a_range_of_so_many_messages_is_read_by_a_consumer(nats_server, js, new_stream):
    """One message less is read by direct get."""
    name = new_stream()
    query = Query(nats_server, stream=name, directBelow=100)
    query.batch()
    found = []
    for count in (99, 100):
        fill(js, name, count)
        found += works(query)
    query.stop()

    assert found == [False, True]
    assert query.sequences == list(range(1, 200))
    assert js.consumer_list(name)[0][0]["name"].endswith("-0")


@pytest.mark.parametrize("layout", ["one", "filtered", "streams"])
def test_without_direct_get_a_limits_stream_is_read_by_consumers(
    nats_server, js, new_stream, layout
):
    """Throughout, however few messages there are."""
    places, options = made(new_stream, layout, allow_direct=False)
    query = Query(nats_server, **options)
    query.batch()
    for stream, subject in places:
        fill(js, stream, 5, subject=subject)
    ways = works(query)
    query.stop()

    assert set(ways) == {True}
    assert len(query.sequences) == 10


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_streams_that_keep_messages_for_consumers_need_direct_get(
    nats_server, js, new_stream, retention
):
    """Without it there is one error at the start, with the command; with it any batch is read."""
    name = new_stream(retention=retention, allow_direct=False)
    with pytest.raises(OptionError, match=rf"nats stream edit {name} --allow-direct"):
        Query(nats_server, stream=name).batch()
    update_stream(js, name, allow_direct=True)
    query = Query(nats_server, stream=name, directBelow=0)
    query.batch()
    fill(js, name, 6_000)
    ways = works(query)
    query.stop()

    assert ways == [False]
    assert query.sequences == list(range(1, 6_001))


def test_partitions_of_one_stream_are_read_in_one_pass_where_that_is_cheaper(
    nats_server, js, new_stream
):
    """Short filtered batches are one task; long ones a task each, or one over the stream."""
    name = new_stream()
    words = {"stream": name, "partitions": 2, "partitionSubject": name + ".{partition}.>"}
    query = Query(nats_server, **words)
    query.batch()
    found = []
    for count, subjects in ((50, 1), (6_000, 1), (60, 100)):
        for subject in range(subjects):
            for p in range(2):
                fill(js, name, count, subject=f"{p}.k{subject}")
        found.append(works(query))
    query.stop()

    assert found == [[False], [True, True], [True]]
    assert sorted(query.sequences) == list(range(1, 24_101))


@pytest.mark.parametrize("subjects", [1, 100])
def test_a_filtered_backlog_is_cut_by_sequence(nats_server, js, new_stream, subjects):
    """With minPartitions ranges of the stream are tasks, and so they are in a replay."""
    name = new_stream()
    for subject in range(subjects):
        for p in range(2):
            fill(js, name, 6_000 // subjects, subject=f"{p}.k{subject}")
    words = {"stream": name, "partitions": 2, "partitionSubject": name + ".{partition}.>"}
    query = Query(nats_server, minPartitions=4, **words)
    end, tasks = query.ask()
    fill(js, name, 30_000, subject="0.more")
    again = Query(nats_server, minPartitions=4, **words)
    ranges = [
        [(read.start, read.end) for task in each for read in task.work.reads]
        for each in (tasks, again.reader.partitions(query.at, end))
    ]
    query.batch()
    query.stop()
    again.stop()

    assert ranges[0] == [(0, 3_000), (3_000, 6_000), (6_000, 9_000), (9_000, 12_000)]
    assert ranges[1] == ranges[0]


@pytest.mark.parametrize("dropping", [False, True], ids=["all", "one-filter"])
def test_a_range_of_a_batch_read(nats_server, js, new_stream, dropping):
    """A long range is read by consumers of the attempts' own, a short one by direct get."""
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
    assert all(task.work.group for task in tasks)
    assert not any(task.work.group for task in few)
    assert js.consumer_list(stream) == ([], [])


@pytest.mark.parametrize("options", [{"directBelow": "999999999"}, {"minPartitions": 4}])
def test_a_batch_in_one_pass_of_a_stream_that_is_no_more(nats_server, js, new_stream, options):
    """What the stream that was made anew holds is in the next batch, and only there."""
    stream = new_stream()
    for i in range(4):
        fill(js, stream, 10_000, subject=f"{'ab'[i % 2]}.x")
    words = {"stream": stream, "subject": f"{stream}.a.>,{stream}.b.>", "failOnDataLoss": False}
    query = Query(nats_server, **words, **options)
    start = query.at
    end, tasks = query.ask()
    query.stop()
    config = js.stream_info(stream).config
    js.client.request(f"{js.prefix}.STREAM.DELETE.{stream}")
    js.create_stream(config)
    fill(js, stream, 1000, subject="a.x")
    query = Query(nats_server, start, **words, **options)
    left = query.reader.partitions(start, end)
    rows_left = [each for task in left for each in query.reader.read(task)]
    query.planned.append(end)
    found = query.batch()
    query.stop()

    assert tasks and not rows_left
    assert found == list(range(1, 1001))


def test_a_partition_is_one_task_however_long_the_others_are(new_stream, publish, query):
    """Where nothing asks for more tasks each partition is one, which keeps its rows in order."""
    _, options = made(new_stream, "streams")
    reader = query(**options)
    reader.plan()
    reader.commit()
    name = str(options["stream"]).format(partition="%d")
    publish([(f"{name % p}.x", b"") for p in (0, 0, 0, 1, 1)])
    reader.plan()

    assert len(reader.tasks()) == 2
