"""Reading a range by batched direct get from a real server."""

import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import DataLossError, ReadTimeoutError
from pyspark_jetstream.fetch.decoding.rows import RowBuilder
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice

from ..kits.options import connection_of
from ..kits.servers import DevServer


def options(server, **changes):
    return connection_of(server.url, **{"request_timeout_s": 20.0} | changes)


def reading(stream, start, end, **changes):
    return Slice(
        **{
            "partition": 0,
            "stream": stream,
            "filter": None,
            "start": start,
            "end": end,
            "expected": None,
            "include_headers": False,
            "fail_on_data_loss": True,
        }
        | changes
    )


def rows(client, read, classify=None):
    builder = RowBuilder(read.stream, False, partition=read.partition, classify=classify)
    return [row for batch in read_direct(client, read, builder if classify else None)
            for row in batch.to_pylist()]  # fmt: skip


def sequences(batches):
    return [seq for batch in batches for seq in batch.column("sequence").to_pylist()]


def delete(js, stream, *seqs):
    for seq in seqs:
        js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})


def fill(js, stream, count, payload=b"x" * 200):
    connection = js.client.connection
    frame = b"PUB %b.a %d\r\n%b\r\n" % (stream.encode(), len(payload), payload)
    last = js.stream_info(stream).last_seq + count
    for low in range(0, count, 1000):
        connection.send(frame * min(1000, count - low))
    while js.stream_info(stream).last_seq < last:
        time.sleep(0.01)


def by_token(subject):
    """The partition is the second token, where it is a or b."""
    return {"a": 0, "b": 1}.get(subject.split(".")[1])


@pytest.fixture
def own_server():
    """A server that a test may break, with an API client on it."""
    with DevServer() as server:
        client = Client(options(server))
        yield server, JetStream(client)
        client.close()


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("way", ["plain", "server", "client", "all"])
def test_exact_ranges(js, new_stream, publish, way, storage):
    """Any range gives exactly its messages in order, with gaps anywhere, whoever filters."""
    stream = new_stream(storage=storage)
    publish([(f"{stream}.{'abc'[i % 3]}", b"%d" % i) for i in range(1, 1001)])
    publish([(f"{stream}.b", b"%d" % i) for i in range(1001, 1201)])
    gone = {1, 2, *range(500, 620), 700, *range(990, 1001), 1199, 1200}
    delete(js, stream, *gone)

    def letter(seq):
        return "abc"[seq % 3] if seq <= 1000 else "b"

    wanted = {"plain": "abc", "server": "a", "client": "a", "all": "ab"}[way]
    changes = {
        "filter": f"{stream}.a" if way == "server" else None,
        "partition": None if way == "all" else 0,
    }
    classify = by_token if way in ("client", "all") else None
    for start, end in ((0, 1200), (0, 2), (2, 3), (499, 619), (7, 7), (600, 995), (1000, 1200),
                       (1198, 1200), (0, 1), (0, 1199)):  # fmt: skip
        expected = [
            seq for seq in range(start + 1, end + 1) if seq not in gone and letter(seq) in wanted
        ]
        for expected_count in (None, len(expected)):
            read = reading(stream, start, end, expected=expected_count, **changes)
            found = rows(js.client, read, classify)

            assert [row["sequence"] for row in found] == expected, (start, end)
            assert all(row["data"] == b"%d" % row["sequence"] for row in found)
            assert all(row["partition"] == "abc".index(letter(row["sequence"])) % 3
                       for row in found if way == "all")  # fmt: skip


def test_what_a_message_may_hold(js, new_stream, publish):
    """Empty and largest payloads, UTF-8 subjects, headers, stale metadata come as stored."""
    stream = new_stream()
    largest = bytes(js.client.connection.max_payload)
    stale = [
        ("Nats-Stream", "OLD"), ("Nats-Subject", "old"), ("Nats-Sequence", "77"),
        ("Nats-Time-Stamp", "2001-01-01T00:00:00Z"), ("Nats-Num-Pending", "5"),
        ("Nats-Last-Sequence", "76"), ("Mine", "1"),
    ]  # fmt: skip
    messages = [
        (f"{stream}.a", b""),
        (f"{stream}.a", largest),
        (f"{stream}.fl\u00fcge.\u6771\u4eac", b"NATS/1.0 204 EOB\r\n\r\n"),
        (f"{stream}.s", b"s", stale),
        (f"{stream}.s", largest[1000:], stale),
        *((f"{stream}.b", largest) for _ in range(12)),
    ]
    publish(messages)
    found = rows(js.client, reading(stream, 0, len(messages), include_headers=True))

    assert [(row["subject"], row["data"]) for row in found] == [m[:2] for m in messages]
    assert [row["sequence"] for row in found] == list(range(1, len(messages) + 1))
    assert [row["headers"] for row in found[2:5]] == [None, [("Mine", ["1"])], [("Mine", ["1"])]]
    assert all(row["timestamp"].year > 2020 for row in found)


def test_messages_larger_than_one_request_may_bring():
    """A message larger than a request's byte limit is read all the same."""
    with DevServer("max_payload: 16MB") as server:
        client = Client(options(server, request_timeout_s=5.0))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        large = b"x" * (15 << 20)
        for _ in range(3):
            fill(js, "S", 1, large)
        found = rows(client, reading("S", 0, 3, expected=3))
        client.close()

    assert [len(row["data"]) for row in found] == [len(large)] * 3


def test_a_restarted_server_does_not_show(own_server):
    """A read goes on exactly when the server was restarted in the middle of it."""
    server, js = own_server
    js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    fill(js, "S", 50_000)
    client = Client(options(server))
    batches = read_direct(client, reading("S", 0, 50_000, expected=50_000))
    found = sequences([next(batches)])
    server.restart()
    found += sequences(batches)
    client.close()

    assert found == list(range(1, 50_001))


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_server_that_is_gone_for_good_ends_in_a_typed_error(own_server, how):
    """When no server comes back within requestTimeout, the read's error says so."""
    server, js = own_server
    js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    fill(js, "S", 50_000)
    client = Client(options(server, request_timeout_s=5.0, connect_timeout_s=3.0))
    batches = read_direct(client, reading("S", 0, 50_000))
    next(batches)
    getattr(server, how)()

    with pytest.raises(ReadTimeoutError, match="requestTimeout"):
        sequences(batches)
    client.close()
    if how == "pause":
        server.resume()


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_a_purge_under_way_is_data_loss(js, new_stream, fail):
    """Messages purged while the range is read are data loss, or are left out."""
    stream = new_stream()
    fill(js, stream, 50_000)
    read = reading(stream, 0, 50_000, expected=50_000, fail_on_data_loss=fail)
    batches = read_direct(js.client, read)
    found = sequences([next(batches)])
    admin = JetStream(Client(js.client.options))
    admin.purge(stream, None, 49_991)
    admin.client.close()

    if fail:
        with pytest.raises(DataLossError, match="left the stream"):
            sequences(batches)
    else:
        found += sequences(batches)
        assert found == sorted(set(found))
        assert found[-10:] == list(range(49_991, 50_001))
        assert len(found) < 50_000


def test_expired_messages_are_data_loss(js, new_stream, publish):
    """Messages that expired after they were counted are data loss; uncounted, a gap."""
    stream = new_stream(max_age=500_000_000, duplicate_window=500_000_000)
    publish([(f"{stream}.a", b"") for _ in range(100)])
    while js.stream_info(stream).messages:
        time.sleep(0.1)
    publish([(f"{stream}.a", b"last")])

    with pytest.raises(DataLossError, match="100 of 101|101 of 101"):
        rows(js.client, reading(stream, 0, 101, expected=101))
    assert len(rows(js.client, reading(stream, 0, 101))) <= 1


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_a_stream_that_ends_before_what_was_counted_is_data_loss(js, new_stream, publish, fail):
    """An older copy of it was restored since, or its server lost what it had stored."""
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(10)])
    read = reading(stream, 0, 12, expected=12, fail_on_data_loss=fail)

    if fail:
        with pytest.raises(DataLossError, match="2 of 12 .* the stream ends at sequence 10"):
            rows(js.client, read)
    else:
        assert len(rows(js.client, read)) == 10


def test_replaced_messages_are_no_data_loss(js, new_stream, publish):
    """Where streams keep the last message of a subject, what was replaced is not lost."""
    stream = new_stream(max_msgs_per_subject=1)
    publish([(f"{stream}.{i % 10}", b"%d" % i) for i in range(100)])

    assert sequences(read_direct(js.client, reading(stream, 0, 100, expected=100))) == list(
        range(91, 101)
    )


@pytest.mark.parametrize("filter_", [None, "a", "nothing"])
def test_empty_ranges(js, new_stream, publish, filter_):
    """A range beyond the stream's end, of an empty stream or of a purged one ends without rows."""
    stream = new_stream()
    full = f"{stream}.{filter_}" if filter_ else None
    assert rows(js.client, reading(stream, 0, 10, filter=full)) == []
    publish([(f"{stream}.a", b"") for _ in range(10)])
    js.purge(stream, None, 11)

    assert rows(js.client, reading(stream, 0, 10, filter=full)) == []
    assert rows(js.client, reading(stream, 10, 500, filter=full)) == []
