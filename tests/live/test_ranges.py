"""Reading a range, by a consumer of the attempt's own or by direct get, whatever happens."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.peer import Presence
from pyspark_jetstream.errors import ApiError, DataLossError, ReadTimeoutError
from pyspark_jetstream.fetch import own
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.fetch.own import NAMES
from pyspark_jetstream.fetch.pace import appetite_of
from pyspark_jetstream.fetch.pulling import alone
from pyspark_jetstream.fetch.pulling import pulls as pulls_module
from pyspark_jetstream.tasks.ranges import RangeRead
from pyspark_jetstream.values import Secret

from ..kits import clients, streams
from ..kits.clients import serving
from ..kits.messages import ODD, SOUND
from ..kits.options import connection_of
from ..kits.proxy import Proxy
from ..kits.ranges import fill, ranged, reading, rows, sequences
from ..kits.seeds import fresh
from ..kits.servers import DevCluster
from ..kits.shared import eventually
from ..kits.streams import delete_consumers, delete_messages, stored

FORBIDDING = """
accounts {
  A: { jetstream: enabled, users: [
    { user: admin, password: x }
    { user: reader, password: x, permissions: { publish: { deny: "%s" } } } ] }
}
"""


def consumers(js, stream):
    return [found["name"] for found in js.consumer_list(stream)[0]]


def kept(js, stream):
    """The consumers that stay once the server has had time to delete those of attempts."""
    eventually(lambda: not any(name.startswith(NAMES) for name in consumers(js, stream)))
    return consumers(js, stream)


@pytest.fixture
def deep(js, new_stream):
    """A stream of 50,000 messages: more than open pulls may bring."""
    stream = new_stream()
    fill(js, stream, 50_000)
    return stream


@pytest.fixture
def mortal():
    """A server of the test's own, with a stream S of 50,000 messages; and its API."""
    with serving(request_timeout_s=20.0) as (server, js):
        fill(js, "S", 50_000)
        yield server, js


@pytest.fixture
def by_direct_get(monkeypatch):
    """The reads that went on by direct get."""
    began = []
    original = RangeRead.batches

    def batches(self, client):
        if not self.group:
            began.append(self)
        return original(self, client)

    monkeypatch.setattr(RangeRead, "batches", batches)
    return began


def read_by(way, stream, end, filter_=None, **fields):
    """A read of a range in one of the two ways."""
    return replace(reading(stream, end, filter_, **fields), group={"own": "spark"}.get(way))


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("by", ["nothing", "filter", "dropping"])
@pytest.mark.parametrize(
    ("way", "storage"), [("own", "file"), ("direct", "file"), ("direct", "memory")]
)
def test_exact_ranges(js, new_stream, publish, way, storage, counted, by):
    """Any range gives exactly its messages in order, whoever filters; no consumer is left."""
    stream = new_stream(storage=storage)
    publish([(f"{stream}.{i % 2}.x", b"%d" % i) for i in range(1, 1801)])
    publish([(f"{stream}.1.x", b"%d" % i) for i in range(1801, 2001)])
    gone = {1, 2, 3, *range(500, 620), 1000, *range(1390, 1401), 2000}
    delete_messages(js, stream, gone)
    all_of = by == "nothing"
    there = [
        seq for seq in range(1, 2001)
        if seq not in gone and (all_of or (seq <= 1800 and seq % 2 == 0))
    ]  # fmt: skip
    layout = Layout(
        tuple(SubjectPartition(p, stream, f"{stream}.{p}.>") for p in (0, 1)),
        f"{stream}.{{partition}}.>",
    )
    ranges = [(0, 2000), (0, 1), (0, 3), (3, 4), (499, 619), (0, 1400), (1395, 1400), (1399, 1402)]
    ranges += [(700, 700), (1801, 2000), (1799, 1999), (0, 500), (0, 2000), (9, 3)]
    for start, end in ranges:
        expected = [seq for seq in there if start < seq <= end]
        read = read_by(
            way, stream, end, f"{stream}.0.>" if by == "filter" else None, start=start,
            partition=None if all_of else 0, layout=layout,
            expected=len(expected) if counted else None, fail_on_data_loss=counted,
        )  # fmt: skip
        found = rows(js.client, read)

        assert [row["sequence"] for row in found] == expected, (start, end)
        assert all(row["data"] == b"%d" % row["sequence"] for row in found)
        at = {row["sequence"]: row["partition"] for row in found}
        assert at == {seq: 1 if seq > 1800 else seq % 2 for seq in expected}
        assert kept(js, stream) == []


@pytest.mark.parametrize("seed", fresh(__name__))
def test_the_same_rows_as_by_the_other_ways(js, new_stream, publish, seed):
    """Whatever messages were stored with, both ways give the rows that the leader holds."""
    rng = random.Random(seed)
    stream = new_stream()
    blocks = [*ODD.values(), *(block for block, _ in SOUND.values())]
    blocks += [wire.header_block(pairs) for pairs in (
        [("A", "1"), ("Nats-Pin-Id", "stale"), ("A", "2"), ("U", "ä: b")],
        [("Nats-Pin-Id", "stale")], [("Nats-Subject", "stale"), ("Nats-Sequence", "7")],
    )]  # fmt: skip
    connection = js.client.connection
    payloads = [b"", b"x", b"HMSG x 1 2 2\r\n", b"\r\nMSG a 7 $JS.ACK.S.c.1.1.1.1.1 1\r\nx\r\n"]
    payloads.append(bytes(connection.max_payload - max(map(len, blocks))))
    plain = rng.random() < 0.5  # most without a header block
    for _ in range(1500):
        block = rng.choice(blocks) if rng.random() < (0.05 if plain else 0.6) else b""
        data = rng.choice(payloads) if rng.random() < 0.02 else b"x" * rng.randrange(99)
        subject = f"{stream}.{rng.choice(['a', 'flüge.東京', 'HMSG'])}".encode()
        frame = b"HPUB %b %d %d\r\n" % (subject, len(block), len(block) + len(data))
        if not block:
            frame = b"PUB %b %d\r\n" % (subject, len(data))
        connection.send(frame + block + data + b"\r\n")
    eventually(lambda: js.stream_info(stream).last_seq == 1500)
    there = {seq: (m["subject"], m["data"]) for seq, m in stored(js, stream).items()}
    for headers in (True, False):
        direct = ranged(stream, 1500, partition=0, expected=1500, include_headers=headers)
        mine = replace(direct, group="spark")
        found = [rows(js.client, read) for read in (direct, mine)]

        assert {row["sequence"]: (row["subject"], row["data"]) for row in found[0]} == there
        assert found[1] == found[0]


def test_what_the_server_is_told_of_it(js, deep):
    """While it is read by, it is in memory, without acks, in the group, and goes by itself."""
    batches = reading(deep, 50_000).batches(js.client)
    next(batches)
    other = JetStream(Client(js.client.options))
    (found,) = other.consumer_list(deep)[0]
    config = found["config"]
    batches.close()

    assert found["name"].startswith(NAMES)
    assert {key: config.get(key) for key in (
        "ack_policy", "mem_storage", "num_replicas", "priority_policy", "priority_groups",
        "durable_name",
    )} == {
        "ack_policy": "none", "mem_storage": True, "num_replicas": 1,
        "priority_policy": "overflow", "priority_groups": ["spark"], "durable_name": None,
    }  # fmt: skip
    assert 0 < config["inactive_threshold"] <= 300 * 10**9
    assert kept(other, deep) == []
    other.client.close()


def test_the_server_deletes_what_nobody_comes_back_for(js, nats_server, deep, monkeypatch):
    """A reader that is killed deletes nothing; the server does."""
    monkeypatch.setattr(own, "_INACTIVE_S", 5.0)
    named, made = own.new_name, []
    monkeypatch.setattr(alone, "new_name", lambda: made.append(named()) or made[-1])
    client = Client(clients.options(nats_server.url))
    batches = reading(deep, 50_000).batches(client)
    next(batches)
    client.drop()
    eventually(lambda: not consumers(js, deep))

    assert len(made) == 1


@pytest.fixture
def small_pulls(monkeypatch):
    """However slow the reader is, no more than a few thousand messages are on their way to it."""
    monkeypatch.setattr(pulls_module, "_PULL_MESSAGES", 2_000)


@pytest.mark.usefixtures("small_pulls")
@pytest.mark.parametrize("by", ["nothing", "filter"])
def test_a_consumer_that_is_deleted_is_made_again(js, deep, by):
    """Deleted again and again, or pulled from by a stranger, it costs no message."""
    admin = JetStream(Client(js.client.options))
    read = reading(deep, 50_000, f"{deep}.a" if by == "filter" else None, expected=50_000)
    found, seen = [], set()
    for batch in read.batches(js.client):
        found += sequences([batch])
        for name in consumers(admin, deep):
            seen.add(name)
            delete_consumers(admin, [(deep, name)])
    left = kept(admin, deep)
    admin.client.close()

    assert found == list(range(1, 50_001))
    assert len(seen) > 1
    assert left == []


@pytest.mark.usefixtures("small_pulls")
def test_a_stranger_that_pulls_from_it_costs_no_message(js, deep):
    """What goes to somebody else shows as a gap; another consumer begins behind the last row."""
    stranger = Client(js.client.options)
    admin = JetStream(stranger)
    batches = reading(deep, 50_000, expected=50_000).batches(js.client)
    found = sequences([next(batches)])
    (name,) = consumers(admin, deep)
    inbox = stranger.connection.new_inbox()
    stranger.connection.subscribe(inbox)
    pull = json.dumps({"batch": 10_000, "expires": 10**10, "group": "spark"}).encode()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{deep}.{name}"
    stranger.connection.send(wire.pub(subject, pull, inbox) * 2)
    stranger.connection.ping(60.0)
    found += sequences(batches)
    left = kept(js, deep)
    stranger.close()

    assert found == list(range(1, 50_001))
    assert left == []


@pytest.mark.usefixtures("small_pulls")
def test_deletes_and_purges_meanwhile(js, deep):
    """Deletes while the range is read are no loss, purges are."""
    admin = JetStream(Client(js.client.options))
    batches = reading(deep, 50_000, expected=50_000).batches(js.client)
    found = sequences([next(batches)])
    gone = set(range(49_000, 50_001, 7))
    delete_messages(admin, deep, gone)
    found += sequences(batches)

    assert [seq for seq in range(1, 50_001) if seq not in gone] == [
        s for s in found if s not in gone
    ]
    assert found == sorted(set(found))
    batches = reading(deep, 50_000, expected=50_000 - len(gone)).batches(js.client)
    next(batches)
    admin.purge(deep, None, 50_000)
    with pytest.raises(DataLossError, match="left the stream"):
        sequences(batches)
    assert kept(admin, deep) == []
    admin.client.close()


@pytest.mark.parametrize("seed", fresh(__name__))
def test_a_connection_that_breaks_within_a_message(nats_server, js, deep, seed):
    """However often the connection ends in the middle of a message, each comes once."""
    rng = random.Random(seed)
    left, cuts = rng.randrange(1 << 20), 0

    def cut(data):
        nonlocal left, cuts
        left -= len(data)
        if left < 0 and cuts < 5:
            left, cuts = rng.randrange(1 << 20), cuts + 1
            raise OSError("cut")
        return data

    with Proxy(nats_server.port, rewrite=cut) as proxy:
        client = Client(connection_of(proxy.url, request_timeout_s=20.0))
        found = sequences(reading(deep, 50_000, expected=50_000).batches(client))
        client.close()

    assert found == list(range(1, 50_001))
    assert cuts == 5
    # What was made on connections that broke was deleted on the next.
    assert kept(js, deep) == []


@pytest.mark.parametrize("way", ["own", "direct"])
def test_a_server_that_is_killed_and_comes_back(mortal, way):
    """The read goes on behind its last row, also where its consumer is gone with the server."""
    server, js = mortal
    reader = Client(clients.options(server.url, request_timeout_s=30.0))
    batches = read_by(way, "S", 50_000, expected=50_000).batches(reader)
    found = sequences([next(batches)])
    server.kill()
    server.restart()
    found += sequences(batches)
    left = kept(js, "S")
    reader.close()

    assert found == list(range(1, 50_001))
    assert left == []


REFUSING = {
    "CREATE": FORBIDDING % "$JS.API.CONSUMER.CREATE.>",
    "DELETE": FORBIDDING % "$JS.API.CONSUMER.DELETE.>",
    "MSG.NEXT": FORBIDDING % "$JS.API.CONSUMER.MSG.NEXT.>",
    "max_request_batch": "jetstream { limits { max_request_batch: 250 } }",
}


@pytest.mark.parametrize("what", REFUSING)
def test_where_the_server_refuses(what, by_direct_get):
    """Without consumers or pulls all is read by direct get; what may not be deleted expires."""
    reader = {"user": "reader", "password": Secret("x")} if "reader" in REFUSING[what] else {}
    with serving(REFUSING[what], **(reader and reader | {"user": "admin"})) as (server, js):
        client = Client(connection_of(server.url, **reader))
        fill(js, "S", 3000)
        found = sequences(reading("S", 3000, expected=3000).batches(client))
        left = what == "DELETE" or kept(js, "S")
        client.close()

    assert found == list(range(1, 3001))
    assert len(by_direct_get) == (what != "DELETE")
    assert left == (what == "DELETE" or [])


def test_where_consumers_may_not_live_so_long(js, new_stream, by_direct_get):
    """A stream's `inactive_threshold` below what is asked for is taken as it is."""
    stream = new_stream(consumer_limits={"inactive_threshold": 5 * 10**9})
    fill(js, stream, 3000)

    found = sequences(reading(stream, 3000, expected=3000).batches(js.client))

    assert found == list(range(1, 3001))
    assert by_direct_get == []


@pytest.mark.usefixtures("small_pulls")
def test_where_no_more_consumers_may_be(js, new_stream, by_direct_get):
    """Where the stream has as many consumers as it may, direct get reads on."""
    stream = new_stream(max_consumers=1)
    fill(js, stream, 50_000)
    admin = JetStream(Client(js.client.options))
    batches = reading(stream, 50_000, expected=50_000).batches(js.client)
    found = sequences([next(batches)])
    (name,) = consumers(admin, stream)
    delete_consumers(admin, [(stream, name)])
    admin.create_consumer(stream, {"durable_name": "other", "ack_policy": "none"})
    found += sequences(batches)
    left = kept(admin, stream)
    admin.client.close()

    assert found == list(range(1, 50_001))
    (rest,) = by_direct_get
    assert 0 < rest.start < 50_000
    assert rest.expected == 50_000 - rest.start
    assert left == ["other"]


@pytest.mark.parametrize("how", ["steps down", "dies"])
@pytest.mark.parametrize("way", ["own", "direct"])
def test_in_a_cluster(monkeypatch, way, how):
    """Each message comes once though the leader steps down or the server dies that reads."""
    monkeypatch.setattr(own, "_INACTIVE_S", 10.0)
    with DevCluster(3) as cluster:
        admin = Client(clients.options(*cluster.urls.split(","), request_timeout_s=60.0))
        js = JetStream(admin)
        config = {"name": "S", "subjects": ["S.>"], "num_replicas": 3, "allow_direct": True}
        streams.create(js, config)
        streams.store(js.client, [("S.a", b"x" * 200)] * 60_000)
        reader = Client(clients.options(*cluster.urls.split(","), request_timeout_s=60.0))
        batches = read_by(way, "S", 60_000, expected=60_000).batches(reader)
        found = sequences([next(batches)])
        clusters = [each["cluster"] for each in js.consumer_list("S")[0]]
        leader = (*clusters, js.stream_info("S").cluster)[0]["leader"]
        at = next(s for s in cluster.servers if s.name == leader)
        if how == "dies":
            at.kill()
        else:
            js.call("STREAM.LEADER.STEPDOWN.S")
        found += sequences(batches)
        reader.close()

        assert found == list(range(1, 60_001))

        def settled():
            with suppress(ApiError):  # a leader is elected
                return not any(js.consumer_list("S"))

        js.consumer_list("S")  # answered also while a server is dead
        at.restart()
        eventually(settled, 120)
        admin.close()


@pytest.mark.parametrize(("away_s", "cuts", "together"), [(0.0, 0, 1), (0.2, 0, 3), (0.2, 3, 3)])
def test_far_away_pulls_wait_at_the_server(
    nats_server, js, new_stream, monkeypatch, away_s, cuts, together
):
    """Near the server one pull waits, far away three, none more where answers broke off."""
    name = new_stream()
    fill(js, name, 1000, b"x")
    monkeypatch.setattr(pulls_module, "_PULL_MESSAGES", 100)
    monkeypatch.setattr(
        Presence, "answered", lambda trips, now: setattr(trips, "shortest_s", away_s)
    )
    pulls: list[int] = []

    def noted(data):
        if b"$JS.ACK." in data:
            pulls.append(sum(heard.count(b".CONSUMER.MSG.NEXT.") for heard in proxy.heard))
        return data

    with Proxy(nats_server.port, rewrite=noted) as proxy:
        client = Client(connection_of(proxy.url))
        for _ in range(cuts):
            appetite_of(client.options).shrink()
        found = sequences(reading(name, 1000).batches(client))
        client.close()

    assert found == list(range(1, 1001))
    assert pulls[0] == together


# ── what direct get alone meets ──────────────────────────────────────────────────────────────


def test_messages_larger_than_one_request_may_bring():
    """A message larger than a request's byte limit is read all the same."""
    with serving("max_payload: 16MB", request_timeout_s=5.0) as (_, js):
        fill(js, "S", 3, bytes(15 << 20))
        found = rows(js.client, ranged("S", 3, expected=3))

    assert [len(row["data"]) for row in found] == [15 << 20] * 3


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_server_that_is_gone_for_good_ends_in_a_typed_error(mortal, how):
    """When no server comes back within requestTimeout, the read's error says so."""
    server, _ = mortal
    hasty = Client(clients.options(server.url, request_timeout_s=5.0, connect_timeout_s=3.0))
    batches = ranged("S", 50_000).batches(hasty)
    next(batches)
    getattr(server, how)()

    with pytest.raises(ReadTimeoutError, match="requestTimeout"):
        sequences(batches)
    if how == "pause":
        server.resume()
    hasty.close()


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_a_stream_that_ends_before_what_was_counted_is_data_loss(js, new_stream, publish, fail):
    """An older copy of it was restored since, or its server lost what it had stored."""
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(10)])
    read = ranged(stream, 12, expected=12, fail_on_data_loss=fail)

    if fail:
        with pytest.raises(DataLossError, match="2 of 12 .* the stream ends at sequence 10"):
            rows(js.client, read)
    else:
        assert len(rows(js.client, read)) == 10
