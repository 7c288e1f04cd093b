"""Publishing to a real server: what is stored, once, and what is refused, clearly."""

import threading

import pyarrow as pa

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.metrics import Written
from pyspark_jetstream.publish.settings import SinkOptions
from pyspark_jetstream.publish.telemetry import Telemetry
from pyspark_jetstream.write.rows import MessageBuilder

from ..kits import streams
from ..kits.clients import serving
from ..kits.options import connection_of, sink_of


def batches(subject, count, size=1000):
    """Batches whose data is the row's number."""
    for low in range(0, count, size):
        rows = range(low, min(count, low + size))
        yield pa.record_batch(
            {
                "subject": pa.array([f"{subject}.{row % 7}" for row in rows]),
                "data": pa.array(list(map(str, rows))),
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
    return [(each["subject"], each["data"]) for each in streams.stored(js, stream).values()]


def check_in_order(messages, subject, count):
    """Every row once; within a subject in the order of the rows."""
    assert sorted(int(data) for _, data in messages) == list(range(count))
    for lane in range(7):
        rows = [int(data) for at, data in messages if at == f"{subject}.{lane}"]
        assert rows == list(range(lane, count, 7))


def test_every_row_is_stored_in_order(nats_server, js, new_stream):
    """100,000 rows are 100,000 messages, those of a subject in the order of the rows."""
    name = new_stream()
    options, telemetry = sink(nats_server), Telemetry()
    counts = publish(js.client, options, batches(name, 100_000, 10_000), "p", telemetry)

    assert counts == Written(100_000, 100_000, 0, counts.retries)
    assert telemetry.stored_in == {name: js.stream_info(name).last_seq}
    check_in_order(stored(js, name), name, 100_000)


def test_a_server_restart_loses_and_doubles_nothing():
    """The server goes down in the middle and comes back; every row is stored once."""
    with serving() as (server, js):

        def rows():
            for number, batch in enumerate(batches("S", 40_000, 2000)):
                yield batch
                if number == 8:
                    down.start()

        def cycle():
            server.kill()
            server.restart()

        down = threading.Thread(target=cycle)
        counts = publish(js.client, sink(server), rows(), id_prefix="p")
        down.join()
        messages = stored(js, "S")

        assert (counts.rows, counts.acked) == (40_000, 40_000)
        check_in_order(messages, "S", 40_000)


def test_a_frozen_server_is_waited_for():
    """§12.4: a server that says nothing for longer than `ackTimeout` is asked again."""
    with serving() as (server, js):

        def rows():
            for number, batch in enumerate(batches("S", 10_000)):
                yield batch
                if number == 3:
                    server.pause()
                    threading.Timer(3.0, server.resume).start()

        counts = publish(js.client, sink(server, ack_timeout_s=0.5), rows(), id_prefix="p")

        assert counts.acked == 10_000
        assert counts.retries > 0
        check_in_order(stored(js, "S"), "S", 10_000)
