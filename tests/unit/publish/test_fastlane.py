"""Fast-ingest batches that go well: what is sent when, what is wanted, how replies are read."""

from __future__ import annotations

import pytest

from pyspark_jetstream.outbox.limits import Kind
from pyspark_jetstream.publish.lanes import fastlane
from pyspark_jetstream.publish.lanes.answers import Says, understand

from ...kits.fast import lane, steps
from ...kits.lanes import MANY, ModelServer, error, exchange, hear, messages, parse, reply, sent


def test_a_batch_from_start_to_commit():
    """
    The first row goes alone; the rest follows when the server has answered; the last one commits.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a", "b", "a", "c"]))
    first = sent(one)
    hear(one, server.publish(first[0]))
    rest = sent(one)
    wanting = one.wants_rows
    for each in rest:
        hear(one, server.publish(each))

    assert steps(first) == ["1.0"]
    assert steps(rest) == ["2.1", "3.1", "4.2"]
    assert wanting
    assert server.data == [b"0", b"1", b"2", b"3"]
    assert (one.tally.acked, one.tally.retries, one.busy, one.bytes_in_flight) == (4, 0, False, 0)


def test_a_single_row_is_a_commit():
    """
    A batch of one row starts and commits at one time.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"]))

    assert steps(exchange(one, server)) == ["1.2"]
    assert one.tally.acked == 1


def test_each_offer_is_a_batch_after_the_one_before():
    """
    The next offer's first row waits for the end of the batch before: it must not overtake.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2))
    hear(one, server.publish(sent(one)[0]))
    last = sent(one)
    one.offer(messages(["a"] * 2, first=2))
    between = sent(one)
    hear(one, server.publish(last[0]))

    assert between == []
    assert steps(exchange(one, server)) == ["1.0", "2.2"]
    assert len({each.reply.split(".")[3] for each in server.stored}) == 2
    assert one.tally.acked == 4


def test_two_acks_may_be_outstanding():
    """
    With an ack every n rows, 2n are on the wire without one, never more; an ack lets more out.
    """
    one, server = lane(), ModelServer(others=3)
    one.offer(messages(["a"] * 100))
    (start,) = sent(one)
    hear(one, server.publish(start)[:1])  # msgs: 1

    assert steps(sent(one)) == ["2.1"]

    hear(one, reply(start, type="ack", seq=1, msgs=2))

    assert steps(sent(one)) == ["3.1", "4.1", "5.1"]

    hear(one, reply(start, type="ack", seq=3, msgs=1))

    assert sent(one) == []


@pytest.mark.parametrize(
    ("round_trip_s", "maximum", "rows"),
    [
        (0.001, 4096, 1000),
        (0.012, 8192, 5000),
        (0.004, 4096, 1000),
        (0.04, 4096, 4096),
        (0.04, 1200, 1200),
    ],
)
def test_far_away_more_acks_may_be_outstanding(round_trip_s, maximum, rows):
    """As many rows are on the wire as are stored in a round trip, within `maxInFlight`."""
    one = lane(maximum)
    one.terms.outlook.round_trip_s = round_trip_s
    one.offer(messages(["a"] * 8000))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=500))
    out = 0
    while part := sent(one):
        out += len(part)

    assert out + 1 == rows


def test_far_away_bytes_are_bounded():
    """
    However far, bytes without an ack stay within a quarter of `bufferMemory`, and an ack comes.
    """
    one, server = lane(max_bytes=3 << 20), ModelServer()
    one.terms.outlook.round_trip_s = 1.0
    one.offer(messages(["a"] * 8, [bytes(1 << 20)] * 8))
    most = 0
    while part := sent(one):
        most = max(most, one.bytes_in_flight)
        for each in part:
            hear(one, server.publish(each))

    assert one.tally.acked == 8
    assert most <= 4 << 20


def test_an_ack_covers_those_before_it():
    """
    A lost ack is made good by the next one (ADR-50).
    """
    one = lane()
    one.offer(messages(["a"] * 10))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=2))
    sent(one)
    hear(one, reply(start, type="ack", seq=4, msgs=2))

    assert one.tally.acked == 4
    assert steps(sent(one)) == ["5.1", "6.1", "7.1", "8.1"]


@pytest.mark.parametrize(("maximum", "flow"), [(4096, 500), (100, 50), (3, 1), (1, 1)])
def test_max_in_flight_bounds_the_flow(maximum, flow):
    """
    The flow asked for leaves room for two acks within `maxInFlight`; the server's ack always comes.
    """
    one, server = lane(maximum), ModelServer()
    one.offer(messages(["a"] * 300))
    (start,) = sent(one)
    hear(one, server.publish(start))
    second = sent(one)

    assert start.reply.split(".")[4] == str(flow)
    assert len(second) <= maximum
    for each in second:
        hear(one, server.publish(each))
    exchange(one, server)
    assert one.tally.acked == 300


@pytest.mark.parametrize("sizes", [[1, 100, 1000], [1] * 1000 + [900] * 1000, [1700]])
@pytest.mark.parametrize("limit", [3_000, 20_000, 200_000])
@pytest.mark.parametrize("part", [fastlane._BATCH_BYTES, 4_000])
def test_max_in_flight_bytes_are_kept_and_never_stall(monkeypatch, part, limit, sizes):
    """
    Bytes without an ack stay within the limit; the flow asked for is so small that an ack comes,
    however few rows are looked at when it is.
    """
    monkeypatch.setattr(fastlane, "_BATCH_BYTES", part)
    data = [b"x" * sizes[row % len(sizes)] for row in range(2000)]
    one, server = lane(max_bytes=limit), ModelServer()
    one.offer(messages(["a"] * 2000, data))
    maximum = 0
    while one.busy:
        frames = one.frames_to_send(0.0, 5000)
        maximum = max(maximum, one.bytes_in_flight)
        assert frames is not None, f"stalls at {one!r}"
        for each in parse(bytes(frames)):
            hear(one, server.publish(each))

    assert one.tally.acked == 2000
    assert maximum <= limit


def test_a_row_larger_than_the_limit_goes_alone():
    """
    One that is larger than a quarter of `bufferMemory` waits until nothing else is without an ack.
    """
    one, server = lane(max_bytes=2000), ModelServer()
    one.offer(messages(["a"] * 4, [b"x", b"y" * 5000, b"z", b"z"]))
    sizes = []
    while one.busy:
        part = parse(bytes(one.frames_to_send(0.0, MANY) or b""))
        sizes.append(len(part))
        for each in part:
            hear(one, server.publish(each))

    assert sizes[:2] == [1, 1]
    assert one.tally.acked == 4


def test_a_chunk_is_one_row_at_least():
    """
    Rows that are larger than a chunk go one at a time, without waiting for each other.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4, [b"x" * 5000] * 4))
    hear(one, server.publish(sent(one)[0]))

    assert [len(parse(bytes(one.frames_to_send(0.0, 100) or b""))) for _ in range(4)] == [
        1,
        1,
        1,
        0,
    ]


def test_rows_that_wait_are_one_batch(monkeypatch):
    """
    Near the server, too: frames of an offer are made some at a time, its last row commits it.
    """
    monkeypatch.setattr(fastlane, "_BATCH_BYTES", 1500)
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 10))
    found = steps(exchange(one, server))

    assert found == ["1.0", *(f"{row}.1" for row in range(2, 10)), "10.2"]
    assert len({each.reply.split(".")[3] for each in server.heard}) == 1
    assert server.data == [b"%d" % row for row in range(10)]
    assert (one.tally.acked, one.busy) == (10, False)


def test_rows_are_wanted_when_all_are_on_their_way():
    """
    Not while an offer waits for the rows before it, nor while rows go one by one and wait.
    """
    one, server = lane(), ModelServer()
    wanting = [one.wants_rows]
    one.offer(messages(["a"] * 2))
    one.offer(messages(["a"], first=2))
    wanting.append(one.wants_rows)
    hear(one, server.publish(sent(one)[0]))
    one.frames_to_send(0.0, MANY)
    wanting.append(one.wants_rows)  # the first offer is sent, the second waits
    sent(one)
    server.forget()
    one.on_disconnect()
    wanting.append(one.wants_rows)  # who knows what arrived
    hear(one, server.publish(sent(one)[0]))
    wanting.append(one.wants_rows)  # one by one, not sent
    hear(one, server.publish(sent(one)[0]))
    plain, _ = sent(one)
    wanting.append(one.wants_rows)  # one by one, sent
    hear(one, server.refused(plain, 429, 10167))
    wanting.append(one.wants_rows)  # one by one, to be sent again

    assert wanting == [True, False, False, False, False, True, False]


def test_what_comes_late_from_an_ended_batch_is_ignored():
    """
    Replies carry the batch's id; those of another one change nothing.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    old = server.stored[0]
    one.offer(messages(["a"] * 3, first=3))
    (start,) = sent(one)
    hear(one, reply(old, stream="S", seq=0, error=error(400, 10054)))
    hear(one, reply(old, type="ack", seq=1, msgs=500))

    assert sent(one) == []
    hear(one, server.publish(start))
    exchange(one, server)
    assert one.tally.acked == 6


def test_repr_shows_the_state():
    """
    The lane says what it is doing.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    hear(one, server.publish(sent(one)[0]))
    sent(one)

    assert repr(one).startswith("<FastLane 0/5/5 acked/sent/rows, 0 acked, one by one: <OneByOne")


@pytest.mark.parametrize(
    ("status", "data", "says", "kind"),
    [
        (0, b'{"type":"ack","seq":5,"msgs":10}', Says.ACK, None),
        (0, b'{"type":"gap","last_seq":3,"seq":4}', Says.GAP, None),
        (0, b'{"type":"err","seq":3,"error":{"code":400,"err_code":10071}}', Says.ERR, "REJECTED"),
        (0, b'{"type":"err","seq":3,"error":{"code":503,"err_code":10077}}', Says.ERR, "LIMITED"),
        (0, b'{"stream":"S","seq":9,"batch":"b","count":2}', Says.END, None),
        (0, b'{"stream":"S","seq":0,"batch":"b","count":2}', Says.END, None),
        (0, b'{"stream":"S","seq":0,"batch":"b"}', Says.END, None),
        (0, b'{"error":{"code":400,"err_code":10208},"stream":"S","seq":0}', Says.UNKNOWN, None),
        (0, b'{"error":{"code":429,"err_code":10211},"seq":0}', Says.REFUSED, "OVERLOADED"),
        (429, b'{"error":{"code":429,"err_code":10167},"seq":0}', Says.REFUSED, "OVERLOADED"),
        (503, b"", Says.REFUSED, "ABSENT"),
        (0, b'{"stream":"S","seq":9}', Says.REFUSED, "REJECTED"),
        (0, b'{"type":"ack"}', Says.REFUSED, "REJECTED"),
        (0, b"[]", Says.REFUSED, "REJECTED"),
        (0, b"pong", Says.REFUSED, "REJECTED"),
        (0, b"", Says.REFUSED, "REJECTED"),
    ],
)
def test_replies_are_understood(status, data, says, kind):
    """
    Every form a server's reply may have, and what is none.
    """
    answer = understand(status, "", data)

    assert answer.says is says
    assert kind is None or answer.outcome.kind is Kind[kind]


@pytest.mark.parametrize("data", [b"", b'{"type":"ack","seq":2,"msgs":9}', b"[" * 20_000])
def test_replies_that_nobody_awaits(data):
    """
    Whoever knows the inbox may send on any subject below it: what is no reply to a row is nothing.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2))
    (first,) = sent(one)
    name = first.reply.split(".")[1]
    for token in ("", "x", f"{name}", f"{name}.1", f"{name}.9.fail.x.1.$FI", f"{name}.......",
                  f"{name}.9.fail.-1.1.$FI", f"{name}.9.fail.{'9' * 5000}.1.$FI"):  # fmt: skip
        one.on_reply(token.encode(), 0, "", data, 0.0)
    hear(one, server.publish(first))
    exchange(one, server)

    assert (one.tally.acked, one.tally.retries, one.busy) == (2, 0, False)
