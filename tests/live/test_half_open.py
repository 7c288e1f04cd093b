"""Connections that are open and dead: no byte comes, and none is refused."""

import threading
import time
from contextlib import closing

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.task import write_task

from ..kits.clients import options
from ..kits.options import connection_of, sink_of
from ..kits.proxy import Proxy
from ..kits.shared import eventually
from ..kits.writing import attempt
from .test_publisher import stored


@pytest.fixture
def proxy(nats_server):
    with Proxy(nats_server.port) as found:
        yield found


@pytest.mark.parametrize("ledger", [False, True], ids=["once", "ledger"])
def test_a_write_leaves_a_connection_that_is_half_open(js, new_stream, proxy, ledger):
    """After silence of two `ackTimeout`s a write dials again, and the rows are there once."""
    name = new_stream(allow_batched=True, allow_atomic=True)
    Ledger(js).ensure()
    opts = sink_of(
        options(proxy.url), ledger=ledger, ack_timeout_s=0.3,
        publish_timeout_s=100.0,
    )  # fmt: skip
    hushed = threading.Event()

    def rows():
        for block in range(20):
            if block == 10:
                proxy.hush()
                hushed.set()
            first = block * 50
            yield pa.record_batch({
                "subject": pa.array([f"{name}.{i % 3}" for i in range(first, first + 50)]),
                "data": pa.array([str(i) for i in range(first, first + 50)]),
            })  # fmt: skip

    start = time.monotonic()
    written = attempt(opts, rows(), TaskName(f"half-{name}", 0, 0), Ids(name))
    took = time.monotonic() - start

    assert hushed.is_set() and len(proxy.heard) > 1
    assert written.acked == 1000
    assert sorted(int(data) for _, data in stored(js, name)) == list(range(1000))
    assert took < opts.window.publish_timeout_s / 2


def test_a_peer_that_is_there_is_not_left(proxy):
    """A peer that says anything is there; one that was asked and stays silent is not."""
    client = Client(options(proxy.url))
    connection = client.connection
    connection.ping(60.0)
    connection.check(time.monotonic(), 60.0)
    connection.check(time.monotonic(), 0.0)
    assert connection.fill(time.monotonic() + 60)
    answer = connection.buffer
    assert connection.next_frame(0.0) is None
    connection.check(time.monotonic(), 60.0)
    proxy.hush()
    connection.check(time.monotonic(), 0.0)
    connection.check(time.monotonic(), 60.0)
    with pytest.raises(NotConnectedError, match="silent for .* no PONG"):
        connection.check(time.monotonic(), 0.0)
    client.close()

    assert answer == b"PONG\r\n"


def test_how_far_the_server_is_does_not_depend_on_who_makes_the_rows(nats_server, new_stream):
    """The PONG of a new connection is read at once, not when the first rows are there."""
    name = new_stream(allow_batched=True, allow_atomic=True)

    def rows():
        eventually(lambda: client._open is not None and client._open.round_trip_s > 0)
        yield pa.record_batch({"subject": pa.array([f"{name}.a"]), "data": pa.array(["x"])})

    with closing(Client(connection_of(nats_server.url))) as client:
        opts = sink_of(client.options, ledger=False)
        written = write_task(client, opts, rows(), TaskName(f"far-{name}", 0, 0), None)
        assert written.acked == 1
