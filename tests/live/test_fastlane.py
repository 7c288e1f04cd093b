"""Fast-ingest batches on a real server: what it answers, what it stores, what it refuses."""

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
from pyspark_jetstream.publish.lanes.asynclane import AsyncLane
from pyspark_jetstream.publish.lanes.fastlane import FastLane

from ..kits.lanedriver import Driver, check_in_order, offers, raw
from ..kits.lanes import FixedLimit, ModelServer, error, messages, parse, terms
from ..kits.options import connection_of
from ..kits.servers import DevServer
from .test_publisher import stored


def fast(maximum: int = 4096, max_bytes: int = 32 << 20, ack: float = 5.0, publish: float = 120.0):
    """Makes a lane for a prefix."""
    return lambda prefix: FastLane(prefix, terms(FixedLimit(maximum), max_bytes, ack, publish))


def own(server, **config) -> JetStream:
    """A client on a server of the test's own, with stream S of `S.>`."""
    js = JetStream(Client(connection_of(server.url)))
    js.create_stream(
        {"name": "S", "subjects": ["S.>"], "allow_direct": True, "allow_batched": True} | config
    )
    return js


def batches_of(driver: Driver) -> int:
    """How many batches the server opened."""
    return len({token.split(b".")[0] for token, _ in driver.replies} - {b"one"})


@pytest.mark.parametrize("away_s", [0.0, 0.04])
@pytest.mark.parametrize("ids", [True, False])
def test_every_row_is_stored_in_order(js, new_stream, ids, away_s):
    """
    100,000 rows are 100,000 messages in the order of the rows, for a few hundred replies and in one
    batch, near the server and where it is said to be far away.
    """
    name = new_stream(allow_batched=True)
    driver = Driver(js.client, fast())
    driver.lane.terms.outlook.round_trip_s = away_s
    driver.run(offers(name, 100_000, ids=ids))

    assert [int(data) for _, data in stored(js, name)] == list(range(100_000))
    assert (driver.lane.tally.acked, driver.lane.tally.retries) == (100_000, 0)
    assert batches_of(driver) == 1
    assert len(driver.replies) < 400


def test_the_same_ids_store_nothing_twice(js, new_stream):
    """
    Duplicates are acknowledged like any other row, also the first and the last of a batch.
    """
    name = new_stream(allow_batched=True)
    Driver(js.client, fast()).run(offers(name, 3000, 1000))
    again = Driver(js.client, fast())
    again.run(offers(name, 3500, 1000))

    assert again.lane.tally.acked == 3500
    assert [int(data) for _, data in stored(js, name)] == list(range(3500))


@pytest.mark.parametrize("seed", range(20))
def test_the_model_answers_like_the_server(js, new_stream, seed):
    """
    Whatever a client says, right or wrong, `ModelServer` (on which the tests without a server
    rest) answers it reply for reply as the real one does.
    """
    rng = random.Random(seed)
    name = new_stream(allow_batched=True)
    connection = js.client.connection
    inbox = connection.new_inbox()
    frames, last = [], {}
    for number in range(300):
        batch = rng.choice("ab")
        flow = 5 if batch == "a" else 500
        head = []
        if rng.random() < 0.5:
            head.append(("Nats-Msg-Id", f"{seed}-{rng.randrange(150)}"))
        if rng.random() < 0.02:
            head.append(("Nats-TTL", "5s"))  # the stream has no allow_msg_ttl
        sequence = last.get(batch, 0) + 1
        if rng.random() < 0.03:
            sequence = max(1, sequence + rng.choice([-1, 1]))
        operation = 0 if sequence == 1 else 1
        if rng.random() < 0.02:
            operation = 2
        elif rng.random() < 0.04 and sequence > 1:
            operation, sequence = 4, sequence - rng.choice([0, 1])
        if operation != 4:
            last[batch] = sequence if rng.random() < 0.98 else 0
        reply = f"{inbox}.0.{batch}.{flow}.fail.{sequence}.{operation}.$FI"
        if rng.random() < 0.1:
            reply = f"{inbox}.0.plain{number}"
        data = b"bad" if head[-1:] == [("Nats-TTL", "5s")] else b"%d" % number
        frames.append(wire.pub(f"{name}.x", data, reply, wire.header_block(head) if head else b""))
    model = ModelServer()
    model.refuse[b"bad"] = error(400, 10166)
    expected = []
    for sent in parse(b"".join(frames)):
        name_of = sent._replace(reply=sent.reply.replace(inbox, "_INBOX.0123456789abcdef"))
        expected += [(reply.token, core(reply.data)) for reply in model.publish(name_of)]
    found = raw(connection, frames, inbox, f"{name}.barrier")
    heard = [(each.subject[len(inbox) + 3 :], core(each.data)) for each in found]

    assert heard == expected, f"seed {seed}"
    assert len(model.stored) == js.stream_info(name).messages - 1


def core(data: bytes) -> dict[str, object]:
    """A reply without what the model does not know: sequences in the stream, texts."""
    answer = json.loads(data)
    if "type" not in answer:
        answer.pop("seq")
    if "error" in answer:
        answer["error"].pop("description", None)
    answer.pop("stream", None)
    return answer


@pytest.mark.parametrize(
    ("config", "header", "size", "err_code"),
    [
        ({"max_msg_size": 80}, b"", 100, 10054),
        ({}, b"Nats-TTL: 5s\r\n", 1, 10166),
        ({"allow_msg_ttl": True}, b"Nats-TTL: soon\r\n", 1, 10165),
        ({}, b"Nats-Expected-Last-Sequence: 7000\r\n", 1, 10071),
        ({}, b"Nats-Expected-Last-Subject-Sequence: 7000\r\n", 1, 10071),
        ({}, b"Nats-Expected-Stream: T\r\n", 1, 10060),
        ({}, b"Nats-Rollup: sub\r\n", 1, 10111),
        ({}, b"Nats-Stream-Source: x\r\n", 1, 10227),
        ({}, b"H: %b\r\n" % (b"x" * 66_000), 1, 10097),
        ({}, b"Nats-Required-Api-Level: 99\r\n", 1, 10185),
    ],
)
@pytest.mark.parametrize("row", [0, 1, 700, 999])
def test_a_row_the_server_refuses_is_named(js, new_stream, row, config, header, size, err_code):
    """
    The error names row and subject with the server's own code; what stands before is stored, and
    nothing behind it.
    """
    name = new_stream(allow_batched=True, **config)
    data = [b"x"] * 1000
    headers = [b""] * 1000
    data[row], headers[row] = b"y" * size, header
    rows = messages([f"{name}.{n}" for n in range(1000)], data, ids=False, headers=headers)

    with pytest.raises(PublishRejectedError, match=rf"'{name}\.{row}': row {row}: ") as raised:
        Driver(js.client, fast()).run([rows])
    assert raised.value.err_code == err_code
    assert js.stream_info(name).messages == row


def test_a_batch_counts_a_row_that_expects_another_message_id(js, new_stream):
    """
    Why such rows go one by one: the server refuses the row, goes on with the batch, and counts it.
    """
    name = new_stream(allow_batched=True)
    connection = js.client.connection
    inbox = connection.new_inbox()
    unfit = wire.header_block([("Nats-Expected-Last-Msg-Id", "nope")])
    frames = [
        wire.pub(f"{name}.a", b"x", f"{inbox}.0.b.9.fail.1.0.$FI"),
        wire.pub(f"{name}.a", b"x", f"{inbox}.0.b.9.fail.2.1.$FI", unfit),
        wire.pub(f"{name}.a", b"x", f"{inbox}.0.b.9.fail.3.2.$FI"),
    ]
    *_, end = raw(connection, frames, inbox, f"{name}.barrier")
    rows = messages([f"{name}.a"] * 3, headers=[b"", b"Nats-Expected-Last-Msg-Id: nope\r\n", b""])

    assert json.loads(end.data)["count"] == 3
    assert js.stream_info(name).messages == 2 + 1
    with pytest.raises(PublishRejectedError, match=r"row 1: .*10070"):
        Driver(js.client, fast()).run([rows])


@pytest.mark.parametrize(
    "header", [b"Nats-TTL: 1h\r\n", b"Nats-Expected-Last-Sequence: %d\r\n", b"Nats-Rollup: sub\r\n"]
)
def test_headers_work_as_in_a_plain_publish(js, new_stream, header):
    """
    TTL, roll-up and expected sequences mean in a batch what they mean elsewhere.
    """
    name = new_stream(allow_batched=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    headers = [header.replace(b"%d", b"%d" % row) for row in range(1200)]
    driver = Driver(js.client, fast())
    subjects = [f"{name}.{row}" for row in range(1200)]
    driver.run([messages(subjects, ids=False, headers=headers)])

    assert driver.lane.tally.retries == 0
    assert js.stream_info(name).messages == 1200


def test_a_stream_without_batches_says_so(js, new_stream):
    """
    The error tells what to set.
    """
    with pytest.raises(PublishRejectedError, match=r"allow_batched.*err_code 10205"):
        Driver(js.client, fast()).run(offers(new_stream(), 10))


def test_a_missing_stream_is_an_error(js, monkeypatch):
    """
    Nobody listening is told after seconds.
    """
    monkeypatch.setattr("pyspark_jetstream.publish.lanes.asynclane.NO_STREAM_GRACE_S", 1.0)

    with pytest.raises(PublishTimeoutError, match="no stream listens"):
        Driver(js.client, fast()).run(offers("nowhere", 10))


def test_a_full_stream_is_a_timeout(js, new_stream):
    """
    A stream that discards new messages gets what fits, and the rest is told.
    """
    name = new_stream(allow_batched=True, max_msgs=700, discard="new")

    with pytest.raises(PublishTimeoutError, match=r"row 700.*maximum messages exceeded.*10077"):
        Driver(js.client, fast(publish=1.0)).run(offers(name, 2000))
    assert js.stream_info(name).messages == 700


def test_a_full_stream_that_gets_room_takes_the_rest(nats_server, js, new_stream):
    """
    When somebody makes room in time, every row is stored.
    """
    name = new_stream(allow_batched=True, max_msgs=700, discard="new")
    other = JetStream(Client(connection_of(nats_server.url)))
    room = threading.Timer(1.0, lambda: other.purge(name, None, 701))
    room.start()
    driver = Driver(js.client, fast())
    driver.run(offers(name, 1400))
    room.join()
    other.client.close()

    assert driver.lane.tally.acked == 1400
    assert js.stream_info(name).last_seq == 1400


@pytest.mark.parametrize("limits", [(1, 1 << 20), (7, 1 << 20), (4096, 3000), (4096, 20_000)])
def test_any_limit_stores_every_row_in_order(js, new_stream, limits):
    """
    Limits change the speed and nothing else.
    """
    name = new_stream(allow_batched=True)
    driver = Driver(js.client, fast(*limits))
    driver.run(offers(name, 2000, 700))

    check_in_order(stored(js, name), name, 2000)
    assert driver.lane.tally.retries == 0


def test_large_rows_stay_within_the_bytes_allowed(js, new_stream):
    """
    Rows of 100 KB, and of all that the server takes, with 1 MB on the wire at most.
    """
    name = new_stream(allow_batched=True)
    largest = js.client.connection.max_payload
    data = [b"x" * 100_000] * 50 + [b"y" * largest] * 3
    driver = Driver(js.client, fast(max_bytes=1 << 20))
    driver.run([messages([f"{name}.a"] * 53, data, ids=False)])

    assert [len(each) for _, each in stored(js, name)] == list(map(len, data))


def test_lanes_share_a_stream_with_each_other_and_with_plain_publishes(nats_server, js, new_stream):
    """
    Four fast lanes and one of plain publishes at one time: each has its rows in its order.
    """
    name = new_stream(allow_batched=True)
    errors = []

    def write(number):
        client = Client(connection_of(nats_server.url))
        try:
            plain = lambda prefix: AsyncLane(prefix, terms(FixedLimit(256), 1 << 20, 5.0, 120.0))  # noqa: E731
            driver = Driver(client, plain if number == 4 else fast())
            driver.run(offers(f"{name}.{number}", 5000, 1000, ids=False))
        except Exception as error:
            errors.append(error)
        client.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = stored(js, name)

    assert errors == []
    for number in range(5):
        own_rows = [each for each in found if each[0].startswith(f"{name}.{number}.")]
        check_in_order(own_rows, f"{name}.{number}", 5000)


def test_too_many_open_batches_are_no_obstacle(js, new_stream):
    """
    With 1,000 batches of others open the server refuses more (10211): rows go one by one.
    """
    name = new_stream(allow_batched=True)
    connection = js.client.connection
    inbox = connection.new_inbox()
    begun = [wire.pub(f"{name}.o", b"", f"{inbox}.0.o{n}.1.fail.1.0.$FI") for n in range(1000)]
    raw(connection, begun, inbox, f"{name}.o")
    driver = Driver(js.client, fast())
    driver.run(offers(name, 3000))

    assert driver.lane.tally.acked == 3000
    assert any(b"10211" in data for _, data in driver.replies)
    check_in_order([each for each in stored(js, name) if each[1]], name, 3000)


def test_real_429s_are_retried():
    """
    A server that takes few messages at a time drops most of a batch; every row is stored once.
    """
    with DevServer("jetstream { max_buffered_msgs: 20 }") as server:
        js = own(server)
        driver = Driver(js.client, fast())
        driver.run(offers("S", 5000, 2500))
        heard = b"".join(data for _, data in driver.replies)

        assert sorted(int(data) for _, data in stored(js, "S")) == list(range(5000))
        assert driver.lane.tally.acked == 5000
        assert b"10167" in heard
        js.client.close()


@pytest.mark.parametrize("ids", [True, False])
def test_a_batch_goes_on_over_another_connection(js, new_stream, ids):
    """
    When only the connection is lost, a ping tells how far the batch has come, and it goes on: no
    row goes twice, not even without ids.
    """
    name = new_stream(allow_batched=True)
    driver = Driver(js.client, fast())
    driver.lane.offer(offers(name, 10_000, ids=ids)[0])
    while driver.lane.tally.acked < 2000:
        driver.turn()
    while (frames := driver.lane.frames_to_send(time.monotonic(), 1 << 17)) is not None:
        driver.connection.send(frames)
    driver.connection.ping(60.0)  # so they have arrived; what was heard meanwhile is lost
    driver.connection.close()
    driver.run([])
    pings = [token for token, _ in driver.replies if token.endswith(b".4.$FI")]

    assert len(pings) == 1
    assert batches_of(driver) == 1
    assert driver.lane.tally.retries == 0
    assert [int(data) for _, data in stored(js, name)] == list(range(10_000))


@pytest.mark.parametrize(("how", "away_s"), [("restart", 0.0), ("kill", 0.0), ("kill", 0.04)])
def test_a_server_restart_loses_and_doubles_nothing(how, away_s):
    """
    The server goes down in the middle and comes back; every row is stored once, in order.
    """
    with DevServer() as server:
        js = own(server)
        client = Client(connection_of(server.url))
        driver = Driver(client, fast())
        driver.lane.terms.outlook.round_trip_s = away_s

        def rows():
            for number, each in enumerate(offers("S", 60_000, 2000)):
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

        check_in_order(stored(js, "S"), "S", 60_000)
        assert driver.lane.tally.acked == 60_000
        client.close()
        js.client.close()


@pytest.mark.slow
@pytest.mark.parametrize("ack", [1.0, 60.0])
def test_a_server_that_sleeps_has_forgotten_the_batch(ack):
    """
    After 11 s without life the server forgets the batch; the lane has given it up by then, or
    learns it from the server (10208). Every row is stored once.
    """
    with DevServer() as server:
        js = own(server)
        driver = Driver(js.client, fast(ack=ack))

        def rows():
            for number, each in enumerate(offers("S", 40_000, 5000)):
                if number == 4:
                    server.pause()
                    threading.Timer(11.0, server.resume).start()
                yield each

        driver.run(rows())

        check_in_order(stored(js, "S"), "S", 40_000)
        assert driver.lane.tally.acked == 40_000
        js.client.close()


def test_no_batch_is_open_while_nobody_drives_the_lane(js, new_stream):
    """
    Where nobody says that more may come all is committed: a pause of any length costs nothing.
    """
    name = new_stream(allow_batched=True)
    driver = Driver(js.client, fast())
    driver.lane.offer(messages([f"{name}.a"] * 3))
    while not driver.lane.wants_rows:
        driver.turn()
    while not driver.replies[-1:] or b'"count":3' not in driver.replies[-1][1]:
        driver.read() if driver.connection.poll() else time.sleep(0.01)

    assert not driver.lane.busy
