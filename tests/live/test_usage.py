"""What streams store on subjects, by the server's own counts."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.operations.usage import Usage

from ..conftest import connection_to
from ..kits.replicas import create
from ..kits.servers import DevCluster


def messages(subject: str, count: int):
    return [(subject, b"x")] * count


def test_streams_and_parts_of_streams(js, new_stream, publish):
    """
    Each filter is told what has come since the last call, not what was there before.
    """
    a, b = new_stream(), new_stream()
    publish(messages(f"{a}.eu", 5))
    usage = Usage(js, [f"{a}.>", f"{a}.eu.*", f"{b}.*", "nothing.>"])
    first = usage.since_last()
    publish(messages(f"{a}.eu.x", 30) + messages(f"{a}.us", 12) + messages(f"{b}.eu", 7))
    second = usage.since_last()
    publish(messages(f"{a}.us.x", 3))

    assert usage.unknown == ["nothing.>"]
    assert first == [0, 0, 0, 0]
    assert second == [42, 30, 7, 0]
    assert usage.since_last() == [3, 0, 0, 0]


def test_what_has_left_was_published(js, new_stream, publish):
    """
    Messages that limits or a purge have removed count for a filter that covers the stream.
    """
    stream = new_stream(max_msgs=10)
    usage = Usage(js, [f"{stream}.>"])
    publish(messages(f"{stream}.a", 100))
    first = usage.since_last()
    publish(messages(f"{stream}.a", 20))
    js.purge(stream, None, None)

    assert first == [100]
    assert usage.since_last() == [20]


def test_a_part_of_a_stream_at_its_limit(js, new_stream, publish):
    """
    Old messages that leave do not hide new ones that come.
    """
    stream = new_stream(max_msgs=50)
    publish(messages(f"{stream}.a", 50))
    usage = Usage(js, [f"{stream}.a"])
    publish(messages(f"{stream}.a", 20))

    assert usage.since_last() == [20]


def test_a_stream_that_is_made_meanwhile_or_anew(js, new_stream, publish):
    """
    It counts from when it is first seen; one that was made anew, too.
    """
    usage = Usage(js, ["LATER.>"])
    new_stream("LATER")
    publish(messages("LATER.a", 10))
    counts = [usage.since_last()]
    publish(messages("LATER.a", 4))
    counts.append(usage.since_last())
    js.client.request("$JS.API.STREAM.DELETE.LATER")
    counts.append(usage.since_last())
    js.create_stream({"name": "LATER", "subjects": ["LATER.>"], "allow_direct": True})
    publish(messages("LATER.a", 2))
    counts.append(usage.since_last())
    publish(messages("LATER.a", 3))
    counts.append(usage.since_last())

    assert counts == [[0], [4], [0], [0], [3]]


@pytest.mark.parametrize(
    "config",
    [
        {"allow_direct": False},
        {"max_msgs_per_subject": 5},
        {"retention": "workqueue"},
        {"subject_transform": {"src": "T.a", "dest": "T.b"}, "subjects": ["T.*"], "name": "T"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_cannot_be_counted_is_refused(js, new_stream, config):
    """
    A part of a stream whose messages go one by one, change their subjects, or cannot be asked for.
    """
    stream = new_stream(**config)
    Usage(js, [f"{stream}.>"])

    with pytest.raises(JetStreamError, match=f"'{stream}.a' is a part of stream '{stream}'"):
        Usage(js, [f"{stream}.a"])


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_bytes_of_a_stream(js, new_stream, publish, storage):
    """
    As the stream itself counts them, headers with them; what has left was published, too.
    """
    stream = new_stream(storage=storage)
    publish([(f"{stream}.a", b"x" * 100)] * 10)
    usage = Usage(js, [f"{stream}.>", "nothing.>"])
    before = js.stream_info(stream).bytes
    publish([(f"{stream}.a", b"x" * 1000)] * 7 + [(f"{stream}.b", b"")])
    came = usage.count()
    grown = js.stream_info(stream).bytes - before

    assert came == {f"{stream}.>": (8, grown), "nothing.>": (0, 0)}
    assert 7_000 < grown < 8_000
    assert usage.count()[f"{stream}.>"] == (0, 0)


def test_bytes_of_what_has_left(js, new_stream, publish):
    """
    Of a stream that keeps so many messages, or that is purged, they count by the mean size of those
    it held: in the long run what was published, to within a tenth.
    """
    stream = new_stream(max_msgs=50)
    usage = Usage(js, [f"{stream}.>"])
    total, size = 0, 0
    publish([(f"{stream}.a", b"x" * 500)] * 50)
    each = js.stream_info(stream).bytes / 50 - 500
    usage.count()
    for number in range(30):
        widths = [100 * (1 + (number + i) % 10) for i in range(40)]
        publish([(f"{stream}.a", b"x" * width) for width in widths])
        size += round(sum(widths) + each * len(widths))
        if number == 20:
            js.purge(stream, None, None)
        total += usage.count()[f"{stream}.>"].nbytes
    js.purge(stream, None, None)

    assert 0.9 * size < total < 1.1 * size
    assert usage.count()[f"{stream}.>"] == (0, 0)


def test_bytes_of_a_part_of_a_stream(js, new_stream, publish):
    """
    Its messages, by the sizes of those that are seen: exact where all are alike, whatever others
    the stream holds.
    """
    stream = new_stream()
    usage = Usage(js, [f"{stream}.a", f"{stream}.b"])
    publish([(f"{stream}.b", b"y" * 5000)] * 3)
    totals = []
    for _ in range(5):
        publish([(f"{stream}.a", b"x" * 100), (f"{stream}.b", b"y" * 5000)] * 20)
        totals.append(usage.count())

    assert [each[f"{stream}.a"] for each in totals] == [(20, 20 * (100 + len(stream) + 2))] * 5
    assert totals[0][f"{stream}.b"] == (23, 23 * (5000 + len(stream) + 2))


def test_replicas(tmp_path):
    """
    With replicas a part of a stream is counted one call later, whichever replica answers.
    """
    with DevCluster(3) as cluster:
        js = JetStream(Client(connection_to(cluster.servers[0])))
        config = {"name": "R", "subjects": ["R.>"], "allow_direct": True, "num_replicas": 3}
        create(js, config)
        usage = Usage(js, ["R.a", "R.>"])
        counts = []
        for count in (7, 11, 0, 0):
            for _ in range(count):
                js.publish("R.a", b"x", [])
            counts.append(usage.since_last())
        js.client.close()

    assert counts == [[0, 7], [7, 11], [11, 0], [0, 0]]
