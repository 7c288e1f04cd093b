"""Reads over a link that is slower than the server, which cuts off who is far behind."""

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.pace import appetite_of
from pyspark_jetstream.fetch.pulling import pulls

from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.proxy import Proxy
from ..kits.ranges import fill, ranged, reading, sequences

MESSAGES = 1_500
SIZE = 4_000
RATE = 4 << 20
"""Bytes a second: the server, however busy, has a request of 2 MiB answered long before that."""

READS = 8


@pytest.fixture(scope="module")
def server():
    """A server that holds little for a slow reader, with 6 MB to read."""
    with serving("max_pending: 1MB\nmax_payload: 512KB") as (server, js):
        fill(js, "S", MESSAGES, b"x" * SIZE)
        yield server


def cut_off(server):
    return server.ask("/varz")["slow_consumers"]


def consumed(client):
    return sequences(reading("S", MESSAGES).batches(client))


def got(client):
    return sequences(ranged("S", MESSAGES).batches(client))


def called(client):
    calls = DirectCalls(client, "S")
    return [
        each.sequence
        for page in calls.pages(DirectCall(seq=1, batch=MESSAGES, max_bytes=1 << 30))
        for each in page
    ]


@pytest.mark.parametrize("read", [consumed, got, called])
def test_who_is_cut_off_asks_for_less(server, read):
    """A reader that the server cuts off (`max_pending`) asks for less, and reads all."""
    with Proxy(server.port, rate=RATE) as proxy:
        client = Client(connection_of(proxy.url, request_timeout_s=20.0))
        cut = [cut_off(server)]
        try:
            while len(cut) <= READS and (len(cut) < 3 or cut[-1] > cut[-2]):
                assert read(client) == list(range(1, MESSAGES + 1))
                cut.append(cut_off(server))
                if len(cut) == 2:
                    share = appetite_of(client.options).share
        finally:
            client.close()
    times = [after - before for before, after in zip(cut, cut[1:], strict=False)]

    assert 0 < times[0] < 10, times
    assert share < 1
    assert times[-1] == 0, times


def test_a_message_that_comes_slowly_is_no_silence(server, monkeypatch):
    """A pull is not given up while bytes of its message come, however long that takes."""
    monkeypatch.setattr(pulls, "_SILENCE_S", 0.5)
    admin = Client(connection_of(server.url))
    js = JetStream(admin)
    js.create_stream({"name": "LARGE", "subjects": ["L"]})
    js.publish("L", bytes(400_000), [])
    with Proxy(server.port, rate=200_000) as proxy:
        client = Client(connection_of(proxy.url, request_timeout_s=8.0))
        assert sequences(reading("LARGE", 1).batches(client)) == [1]
        client.close()
    admin.close()
