"""Publishing to a real server: what is stored, once, and what is refused, clearly."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    NotConnectedError,
    RowError,
)
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.options import SinkOptions
from pyspark_jetstream.publish.outcome import Written
from pyspark_jetstream.publish.sender import Sender
from pyspark_jetstream.publish.telemetry import Telemetry
from pyspark_jetstream.write.rows import MessageBuilder

from ..kits.answers import answer
from ..kits.encoder import plain_builder
from ..kits.options import connection_of, sink_of
from ..kits.servers import DevServer
from ..kits.targets import targets_of


def batches(subject, count, size=1000, width=1):
    """Batches whose data is the row's number."""
    for low in range(0, count, size):
        rows = range(low, min(count, low + size))
        yield pa.record_batch(
            {
                "subject": pa.array([f"{subject}.{row % 7}" for row in rows]),
                "data": pa.array([str(row).rjust(width) for row in rows]),
            }
        )


def publish(client, options, batches, id_prefix=None, telemetry=None) -> Written:
    """Publishes the rows of one task, without a ledger."""
    most = client.connection.max_payload
    builder = MessageBuilder(options, id_prefix=id_prefix, max_payload=most)
    context = WriteContext(options, telemetry=telemetry or Telemetry())
    return publisher.publish(client, context, (builder.build(batch) for batch in batches))


def sink(server, **changes) -> SinkOptions:
    """Options of a write to this server."""
    return sink_of(connection_of(server.url), **changes)


def stored(js: JetStream, stream: str) -> list[tuple[str, bytes]]:
    """Subject and data of each message, in order of sequence."""
    info = js.stream_info(stream)
    connection = js.client.connection
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    found: list[tuple[str, bytes]] = []
    next_seq = info.first_seq
    while info.messages and next_seq <= info.last_seq:
        body = b'{"seq":%d,"batch":1000}' % next_seq
        connection.send(
            b"PUB $JS.API.DIRECT.GET.%b %b %d\r\n%b\r\n"
            % (stream.encode(), inbox.encode(), len(body), body)
        )
        while b"Nats-Subject" in (frame := answer(connection, sid)).headers:
            headers = dict(
                line.split(b": ", 1) for line in frame.headers.split(b"\r\n") if b": " in line
            )
            found.append((headers[b"Nats-Subject"].decode(), frame.data))
            next_seq = int(headers[b"Nats-Sequence"]) + 1
    connection.unsubscribe(sid)
    return found


def check_in_order(messages, subject, count):
    """Every row once; within a subject in the order of the rows."""
    assert sorted(int(data) for _, data in messages) == list(range(count))
    for lane in range(7):
        rows = [int(data) for at, data in messages if at == f"{subject}.{lane}"]
        assert rows == list(range(lane, count, 7))


def own(server) -> JetStream:
    """A client on a server of the test's own, with stream S of `S.>`."""
    js = JetStream(Client(connection_of(server.url)))
    js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    return js


def test_every_row_is_stored_in_order(nats_server, js, new_stream):
    """100,000 rows are 100,000 messages, those of a subject in the order of the rows."""
    name = new_stream()
    options, telemetry = sink(nats_server), Telemetry()
    counts = publish(js.client, options, batches(name, 100_000, 10_000), "p", telemetry)

    assert counts == Written(100_000, 100_000, 0, counts.retries)
    assert telemetry.stored_in == {name: js.stream_info(name).last_seq}
    check_in_order(stored(js, name), name, 100_000)


def test_the_same_ids_store_nothing_twice(nats_server, js, new_stream):
    """A second attempt with the same ids is all duplicates, and counts as stored."""
    name = new_stream()
    options = sink(nats_server)
    publish(js.client, options, batches(name, 3000), id_prefix="p")
    again = publish(js.client, options, batches(name, 5000), id_prefix="p")

    assert (again.rows, again.acked, again.duplicates) == (5000, 5000, 3000)
    assert js.stream_info(name).messages == 5000


@pytest.mark.parametrize("prefix", ["p", None], ids=["ids", "no ids"])
def test_large_rows_are_stored_as_they_are(nats_server, js, new_stream, prefix):
    """In every mode, more of them than may be on their way, and some empty ones among them."""
    name = new_stream(allow_batched=True, allow_atomic=True)
    data = [b"%d." % row * (30_000 if row % 7 else 0) for row in range(60)]
    options = sink(nats_server, max_in_flight_bytes=1 << 20)
    rows = pa.record_batch({"subject": [f"{name}.{row}" for row in range(60)], "data": data})
    counts = publish(js.client, options, [rows.slice(0, 33), rows.slice(33)], prefix)

    assert (counts.acked, counts.retries) == (60, 0)
    assert stored(js, name) == [(f"{name}.{row}", each) for row, each in enumerate(data)]


def test_without_ids_rows_are_stored_again(nats_server, js, new_stream):
    """With exactlyOnce=false a second attempt stores the rows once more."""
    name = new_stream()
    for _ in range(2):
        publish(js.client, sink(nats_server), batches(name, 100))

    assert js.stream_info(name).messages == 200


def test_no_rows_no_messages(nats_server, js):
    """An empty task needs nothing but the connection."""
    assert publish(js.client, sink(nats_server), []) == Written(0, 0, 0, 0)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_server_restart_loses_and_doubles_nothing(how):
    """The server goes down in the middle and comes back; every row is stored once."""
    with DevServer() as server:
        js = own(server)

        def rows():
            for number, batch in enumerate(batches("S", 40_000, 2000)):
                yield batch
                if number == 8:
                    down.start()

        def cycle():
            if how == "kill":
                server.kill()
            server.restart()

        down = threading.Thread(target=cycle)
        client = Client(connection_of(server.url))
        counts = publish(client, sink(server), rows(), id_prefix="p")
        down.join()
        messages = stored(js, "S")

        assert (counts.rows, counts.acked) == (40_000, 40_000)
        check_in_order(messages, "S", 40_000)
        client.close()
        js.client.close()


def test_a_full_wire_that_breaks_goes_on(monkeypatch):
    """
    Several streams share a quarter of `bufferMemory`. When all of it is on the wire and the server
    goes away, each lane sends again what may be lost, though its bytes still count; and no more
    than one of them goes beyond it.
    """
    on_the_wire, send, breaks = [0], Sender.send, []

    def watched(self, held):
        found = send(self, held)
        on_the_wire.append(sum(lane.bytes_in_flight for lane in self.lanes.all))
        goes_on = sum(lane.tally.acked for lane in self.lanes.all) >= len(breaks) * 600
        if len(breaks) < 4 and goes_on and on_the_wire[-1] > 40_000 - row_bytes:
            breaks.append(on_the_wire[-1])
            server.kill()
            server.restart()
        return found

    monkeypatch.setattr(Sender, "send", watched)
    row_bytes = 2_200  # with its subject, reply and id
    with DevServer() as server:
        js = own(server)
        names = ["A", "B", "C"]
        for name in names:
            js.create_stream(
                {"name": name, "subjects": [f"{name}.>"], "allow_direct": True,
                 "allow_batched": True, "allow_atomic": True}
            )  # fmt: skip
        client, look = Client(js.client.options), Client(js.client.options)
        streams = JetStream(look)
        targets = targets_of(lambda subject: Target.parse(streams.stream_info(subject[0]).config))
        options = sink(
            server, max_in_flight_bytes=40_000, ack_timeout_s=1.0,
            publish_timeout_s=120.0,
        )  # fmt: skip
        builder = plain_builder(id_prefix="f", targets=targets)

        def blocks():
            for low in range(0, 3_000, 300):
                rows = range(low, low + 300)
                yield builder.build(pa.record_batch({
                    "subject": pa.array([f"{names[row % 3]}.x" for row in rows]),
                    "data": pa.array([str(row).rjust(2_000) for row in rows]),
                }))  # fmt: skip

        counts = publisher.publish(client, WriteContext(options, targets), blocks())
        found = [data for name in names for _, data in stored(js, name)]
        client.close()
        look.close()
        js.client.close()

    assert len(breaks) == 4
    assert max(on_the_wire) <= 80_000
    assert counts.acked == 3_000
    assert sorted(int(data) for data in found) == list(range(3_000))


def test_a_frozen_server_is_waited_for():
    """
    overload.md §12.4: a server that says nothing for 3 s, longer than `ackTimeout`, is asked again;
    ids keep it once.
    """
    with DevServer() as server:
        js = own(server)
        client = Client(connection_of(server.url))

        def rows():
            for number, batch in enumerate(batches("S", 10_000)):
                yield batch
                if number == 3:
                    server.pause()
                    threading.Timer(3.0, server.resume).start()

        counts = publish(client, sink(server, ack_timeout_s=0.5), rows(), id_prefix="p")

        assert counts.acked == 10_000
        assert counts.retries > 0
        check_in_order(stored(js, "S"), "S", 10_000)
        client.close()
        js.client.close()


def test_max_payload_is_checked_before_sending(nats_server, js, new_stream):
    """The server would cut the connection; instead the row is named and nothing of it is sent."""
    name = new_stream()
    rows = pa.record_batch({"subject": [f"{name}.a", f"{name}.b"], "data": ["x", "y" * (1 << 20)]})
    connection = js.client.connection

    with pytest.raises(RowError, match=r"row 1 of partition 0: 10486\d\d bytes"):
        publish(js.client, sink(nats_server), [rows], id_prefix="p")
    assert js.client.connection is connection
    assert js.stream_info(name).messages == 0


def test_a_server_that_stays_away_is_an_error():
    """Without a server within publishTimeout the task ends with the reason."""
    with DevServer() as server:
        own(server).client.close()
        connection = connection_of(server.url, request_timeout_s=3.0)
        client = Client(connection)

        def rows():
            for number, batch in enumerate(batches("S", 3000)):
                yield batch
                if number == 1:
                    server.kill()

        options = sink_of(connection, publish_timeout_s=6.0)
        with pytest.raises(NotConnectedError):
            publish(client, options, rows(), id_prefix="p")


def test_an_error_of_the_input_surfaces(nats_server, js, new_stream):
    """What the iterator raises comes out of the publisher as it is."""
    name = new_stream()

    def rows():
        yield from batches(name, 10)
        raise KeyError("upstream")

    with pytest.raises(KeyError, match="upstream"):
        publish(js.client, sink(nats_server), rows())


@pytest.mark.parametrize("limits", [(1, 1 << 20), (7, 1 << 20), (1000, 300), (100_000, 1 << 30)])
def test_any_window_stores_every_row_in_order(nats_server, js, new_stream, limits):
    """The size of the window changes the speed and nothing else."""
    name = new_stream()
    options = sink(nats_server, max_in_flight=limits[0], max_in_flight_bytes=limits[1])
    publish(js.client, options, batches(name, 2000, 300), id_prefix="p")

    check_in_order(stored(js, name), name, 2000)
