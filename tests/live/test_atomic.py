"""Atomic batches on a real server: what it answers, what it stores, what it refuses."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError
from pyspark_jetstream.publish.lanes.atomiclane import HEADER_BYTES, AtomicLane

from ..kits.lanedriver import Driver, check_in_order, offers, raw
from ..kits.lanes import INBOX, FixedLimit, ModelServer, error, messages, parse, terms
from ..kits.options import connection_of
from ..kits.servers import DevServer
from .test_publisher import stored


def atomic(
    maximum: int = 4096, max_bytes: int = 32 << 20, ack: float = 5.0, publish: float = 120.0
):
    """Makes a lane for a prefix."""
    return lambda prefix: AtomicLane(prefix, terms(FixedLimit(maximum), max_bytes, ack, publish))


def own(server, **config) -> JetStream:
    """A client on a server of the test's own, with stream S of `S.>`."""
    js = JetStream(Client(connection_of(server.url)))
    js.create_stream(
        {"name": "S", "subjects": ["S.>"], "allow_direct": True, "allow_atomic": True} | config
    )
    return js


@pytest.mark.parametrize("ids", [True, False])
def test_every_row_is_stored_in_order(js, new_stream, ids):
    """
    20,500 rows are 20,500 messages in the order of the rows, in batches of 1,000, without retries.
    """
    name = new_stream(allow_atomic=True)
    driver = Driver(js.client, atomic())
    driver.run(offers(name, 20_500, ids=ids))

    assert [int(data) for _, data in stored(js, name)] == list(range(20_500))
    assert (driver.lane.tally.acked, driver.lane.tally.retries) == (20_500, 0)
    assert sum(b'"count"' in data for _, data in driver.replies) == 21


def test_the_same_ids_store_nothing_twice(js, new_stream):
    """
    Rows that are there already are counted as duplicates, those that are not are stored.
    """
    name = new_stream(allow_atomic=True)
    Driver(js.client, atomic()).run(offers(name, 1500))
    again = Driver(js.client, atomic())
    again.run(offers(name, 3500))

    assert (again.lane.tally.acked, again.lane.tally.duplicates) == (3500, 1500)
    assert [int(data) for _, data in stored(js, name)] == list(range(3500))


def test_the_headers_of_the_batch_are_stored(js, new_stream):
    """
    A reader of the stream sees which batch a message came in.
    """
    name = new_stream(allow_atomic=True)
    Driver(js.client, atomic()).run([messages([f"{name}.a"] * 3, ids=False)])
    reply = js.client.request(f"{js.prefix}.DIRECT.GET.{name}", b'{"seq":3}')
    headers = dict(wire.parse_headers(reply.headers))

    assert headers["Nats-Batch-Sequence"] == "3"
    assert headers["Nats-Batch-Commit"] == "1"


@pytest.mark.parametrize("seed", range(20))
def test_the_model_answers_like_the_server(js, new_stream, seed):
    """
    Whatever a client says, right or wrong, `ModelServer` (on which the tests without a server
    rest) answers it reply for reply as the real one does.
    """
    rng = random.Random(seed)
    name = new_stream(allow_atomic=True)
    connection = js.client.connection
    inbox = connection.new_inbox()
    frames, last, made = [], {}, 0
    for number in range(400):
        place = rng.choice("ab")
        batch, sequence = last.get(place) or (f"{place}{made}", 0)
        made += 1
        sequence += 1
        if rng.random() < 0.03:
            sequence = max(1, sequence + rng.choice([-1, 1]))
        head = [("Nats-Batch-Id", batch), ("Nats-Batch-Sequence", str(sequence))]
        last[place] = (batch, sequence)
        if rng.random() < 0.2:
            head.append(("Nats-Batch-Commit", "1"))
            last[place] = None
        if rng.random() < 0.5:
            head.append(("Nats-Msg-Id", f"{seed}-{rng.randrange(2000)}"))
        data = b"%d" % number
        if rng.random() < 0.02:
            head.append(("Nats-TTL", "5s"))  # the stream has no allow_msg_ttl
            data = b"bad"
        if rng.random() < 0.1:
            head = []
        frames.append(
            wire.pub(
                f"{name}.x",
                data if head else b"plain",
                f"{inbox}.0.{number}",
                wire.header_block(head) if head else b"",
            )
        )
    model = ModelServer()
    model.refuse[b"bad"] = error(400, 10166)
    expected = []
    for sent in parse(b"".join(frames)):
        named = sent._replace(reply=sent.reply.replace(inbox, INBOX))
        expected += [(reply.token, core(reply.data)) for reply in model.publish(named)]
    found = raw(connection, frames, inbox, f"{name}.barrier")
    heard = [(each.subject[len(inbox) + 3 :], core(each.data)) for each in found]

    assert heard == expected, f"seed {seed}"
    assert len(model.stored) == js.stream_info(name).messages - 1


def core(data: bytes) -> dict[str, object]:
    """A reply without what the model does not know: sequences in the stream, texts."""
    if not data:
        return {}
    answer = json.loads(data)
    answer.pop("seq")
    if "error" in answer:
        answer["error"].pop("description", None)
    answer.pop("stream")
    return answer


@pytest.mark.parametrize(
    ("config", "header", "size", "err_code", "where"),
    [
        ({"max_msg_size": 300}, b"", 400, 10054, "row 7"),
        ({}, b"Nats-TTL: 5s\r\n", 1, 10166, "rows 0 to 99, an atomic batch"),
        ({"allow_msg_ttl": True}, b"Nats-TTL: soon\r\n", 1, 10165, "rows 0 to 99"),
        ({}, b"Nats-Expected-Last-Sequence: 7000\r\n", 1, 10071, "rows 0 to 99"),
        ({}, b"Nats-Expected-Last-Subject-Sequence: 7000\r\n", 1, 10071, "rows 0 to 99"),
        ({}, b"Nats-Expected-Last-Msg-Id: nope\r\n", 1, 10177, "rows 0 to 99"),
        ({}, b"Nats-Stream-Source: x\r\n", 1, 10227, "rows 0 to 99"),
        ({}, b"Nats-Required-Api-Level: 99\r\n", 1, 10185, "row 7"),
    ],
)
def test_what_the_server_refuses_is_told(js, new_stream, config, header, size, err_code, where):
    """
    The error names the row where the server says which, else the batch; nothing of it is stored.
    """
    name = new_stream(allow_atomic=True, **config)
    data, headers = [b"x"] * 100, [b""] * 100
    data[7], headers[7] = b"y" * size, header
    rows = messages([f"{name}.{n}" for n in range(100)], data, ids=False, headers=headers)

    with pytest.raises(PublishRejectedError, match=f": {where}") as raised:
        Driver(js.client, atomic()).run([rows])
    assert raised.value.err_code == err_code
    assert js.stream_info(name).messages == 0


def test_a_stream_without_batches_says_so(js, new_stream):
    """
    The error tells what to set.
    """
    with pytest.raises(PublishRejectedError, match=r"allow_atomic.*err_code 10174"):
        Driver(js.client, atomic()).run(offers(new_stream(), 10))


def test_a_missing_stream_is_an_error(js, monkeypatch):
    """
    Nobody listening is told after seconds.
    """
    monkeypatch.setattr("pyspark_jetstream.publish.lanes.asynclane.NO_STREAM_GRACE_S", 1.0)

    with pytest.raises(PublishTimeoutError, match="no stream listens"):
        Driver(js.client, atomic()).run(offers("nowhere", 10))


def test_a_full_stream_takes_what_fits_and_is_a_timeout(js, new_stream):
    """
    A batch that does not fit goes by halves, each whole or not at all, until one row is named.
    """
    name = new_stream(allow_atomic=True, max_msgs=700, discard="new")

    with pytest.raises(PublishTimeoutError, match=r"row 700: .*maximum messages.*10077"):
        Driver(js.client, atomic(maximum=400, publish=1.0)).run(offers(name, 2000))
    assert js.stream_info(name).messages == 700


def test_a_full_stream_that_gets_room_takes_the_rest(nats_server, js, new_stream):
    """
    When somebody makes room in time, every row is stored.
    """
    name = new_stream(allow_atomic=True, max_msgs=700, discard="new")
    other = JetStream(Client(connection_of(nats_server.url)))
    room = threading.Timer(1.0, lambda: other.purge(name, None, 501))
    room.start()
    driver = Driver(js.client, atomic(maximum=500))
    driver.run(offers(name, 1000))
    room.join()
    other.client.close()

    assert driver.lane.tally.acked == 1000
    assert js.stream_info(name).last_seq == 1000


@pytest.mark.parametrize(
    ("limits", "count"), [((1, 1 << 20), 50), ((7, 1 << 20), 300), ((4096, 3000), 300)]
)
def test_any_limit_stores_every_row_in_order(js, new_stream, limits, count):
    """
    Limits change the speed and nothing else.
    """
    name = new_stream(allow_atomic=True)
    driver = Driver(js.client, atomic(*limits))
    driver.run(offers(name, count, 70))

    check_in_order(stored(js, name), name, count)
    assert driver.lane.tally.retries == 0


def test_the_largest_rows_leave_room_for_the_headers(js, new_stream):
    """
    A row of `max_payload` less `HEADER_BYTES` gets through.
    """
    name = new_stream(allow_atomic=True)
    data = [b"x" * (js.client.connection.max_payload - HEADER_BYTES)] * 5
    driver = Driver(js.client, atomic(max_bytes=3 << 20))
    driver.run([messages([f"{name}.a"] * 5, data, ids=False)])

    assert [len(each) for _, each in stored(js, name)] == list(map(len, data))


def test_a_server_with_a_lower_limit_gets_smaller_batches():
    """
    A lower limit of the server's configuration is found out and kept to.
    """
    with DevServer("jetstream { limits { batch { max_msgs: 100 } } }") as server:
        js = own(server)
        driver = Driver(js.client, atomic())
        driver.run(offers("S", 3000))

        check_in_order(stored(js, "S"), "S", 3000)
        assert any(b"10199" in data for _, data in driver.replies)
        js.client.close()


def test_too_many_open_batches_are_waited_for(js, new_stream):
    """
    With 50 batches of others open the server refuses more (10210), until they are done.
    """
    name = new_stream(allow_atomic=True)
    connection = js.client.connection
    inbox = connection.new_inbox()

    def frames(sequence, **more):
        for number in range(50):
            head = {"Nats-Batch-Id": f"o{number}", "Nats-Batch-Sequence": str(sequence), **more}
            yield wire.pub(f"{name}.o", b"", "", wire.header_block(list(head.items())))

    raw(connection, list(frames(1)), inbox, f"{name}.o")
    driver = Driver(js.client, atomic())
    driver.lane.offer(messages([f"{name}.a"] * 10))
    while not any(b"10210" in data for _, data in driver.replies):
        driver.turn()
    raw(connection, list(frames(2, **{"Nats-Batch-Commit": "1"})), inbox, f"{name}.o")
    driver.run([])

    assert driver.lane.tally.acked == 10
    assert [int(data) for _, data in stored(js, name) if data] == list(range(10))


def test_real_429s_are_retried():
    """
    A server that takes few messages at a time drops some of a batch: it goes again, and smaller.
    """
    with DevServer("jetstream { max_buffered_msgs: 20 }") as server:
        js = own(server)
        driver = Driver(js.client, atomic())
        driver.run(offers("S", 300))

        check_in_order(stored(js, "S"), "S", 300)
        assert driver.lane.tally.acked == 300
        assert any(b"10167" in data for _, data in driver.replies)
        js.client.close()


@pytest.mark.parametrize("ids", [True, False])
def test_a_lost_connection_costs_no_row(js, new_stream, ids):
    """
    The connection goes before the answer of the commit is read: with ids every row is there once,
    without them at least once.
    """
    name = new_stream(allow_atomic=True)
    driver = Driver(js.client, atomic())
    rows = offers(name, 3000, ids=ids)
    driver.lane.offer(rows[0])
    while (frames := driver.lane.frames_to_send(time.monotonic(), 1 << 20)) is not None:
        driver.connection.send(frames)
    driver.connection.ping(60.0)
    driver.connection.close()
    driver.run([])
    found = [int(data) for _, data in stored(js, name)]

    assert driver.lane.tally.acked == 3000
    assert found == list(range(3000)) if ids else set(found) == set(range(3000))
    assert driver.lane.tally.duplicates in ((0, 1000) if ids else (0,))


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_server_restart_loses_and_doubles_nothing(how):
    """
    The server goes down in the middle and comes back; every row is stored once, in order.
    """
    with DevServer() as server:
        js = own(server)
        client = Client(connection_of(server.url))
        driver = Driver(client, atomic())

        def rows():
            for number, each in enumerate(offers("S", 40_000, 2000)):
                yield each
                if number == 8:
                    down.start()

        def cycle():
            if how == "kill":
                server.kill()
            server.restart()

        down = threading.Thread(target=cycle)
        driver.run(rows())
        down.join()

        check_in_order(stored(js, "S"), "S", 40_000)
        assert driver.lane.tally.acked == 40_000
        client.close()
        js.client.close()
