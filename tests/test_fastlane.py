"""Fast-ingest batches: what is sent, when the server is asked, what goes one by one."""

from __future__ import annotations

import json
import random

import pytest

from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError
from pyspark_jetstream.fastlane import FastLane, Says, understand
from pyspark_jetstream.limits import FixedLimit, GradientLimit, Limit
from pyspark_jetstream.window import Kind

from .lanekit import PREFIX, ModelServer, Reply, Sent, error, messages, parse

MANY = 1 << 30


def lane(
    most: int | Limit = 4096,
    most_bytes: int = MANY,
    ack: float = 5.0,
    publish: float = 120.0,
):
    """A lane without limits, unless given."""
    limit = FixedLimit(most) if isinstance(most, int) else most
    return FastLane(PREFIX, limit, most_bytes, ack, publish)


def sent(one: FastLane, now: float = 0.0, chunk: int = MANY) -> list[Sent]:
    """Everything the lane sends now."""
    found: list[Sent] = []
    while (frames := one.ready(now, chunk)) is not None:
        found += parse(bytes(frames))
    return found


def hear(one: FastLane, replies: list[Reply], now: float = 0.0) -> None:
    for token, status, data in replies:
        one.answered(token, status, "", data, now)


def exchange(one: FastLane, server: ModelServer, now: float = 0.0) -> list[Sent]:
    """Sends and answers until there is nothing to send."""
    log: list[Sent] = []
    while part := sent(one, now):
        log += part
        for each in part:
            hear(one, server.publish(each), now)
    return log


def one_by_one(one: FastLane, server: ModelServer) -> tuple[list[Sent], list[Sent]]:
    """Plays on while plain publishes come; those, and what came then."""
    log: list[Sent] = []
    while part := sent(one):
        if part[0].reply.endswith("$FI"):
            return log, part
        log += part
        for each in part:
            hear(one, server.publish(each))
    return log, []


def steps(found: list[Sent]) -> list[str]:
    """Sequence and operation of each, as in the reply subject; `one` for a plain publish."""
    return [
        ".".join(each.reply.split(".")[-3:-1]) if each.reply.endswith("$FI") else "one"
        for each in found
    ]


def reply(each: Sent, **content: object) -> list[Reply]:
    """An answer to this message."""
    return [Reply(each.reply[len(PREFIX) + 1 :].encode(), 0, json.dumps(content).encode())]


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
    assert (one.acked, one.retries, one.busy, one.bytes_in_flight) == (4, 0, False, 0)


def test_a_single_row_is_a_commit():
    """
    A batch of one row starts and commits at one time.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"]))

    assert steps(exchange(one, server)) == ["1.2"]
    assert one.acked == 1


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
    assert one.acked == 4


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

    assert one.acked == 4
    assert steps(sent(one)) == ["5.1", "6.1", "7.1", "8.1"]


@pytest.mark.parametrize(("most", "flow"), [(4096, 500), (100, 50), (3, 1), (1, 1)])
def test_max_in_flight_bounds_the_flow(most, flow):
    """
    The flow asked for leaves room for two acks within `maxInFlight`; the server's ack always comes.
    """
    one, server = lane(most), ModelServer()
    one.offer(messages(["a"] * 300))
    (start,) = sent(one)
    hear(one, server.publish(start))
    second = sent(one)

    assert start.reply.split(".")[4] == str(flow)
    assert len(second) <= most
    for each in second:
        hear(one, server.publish(each))
    exchange(one, server)
    assert one.acked == 300


@pytest.mark.parametrize("sizes", [[1, 100, 1000], [1] * 1000 + [900] * 1000, [1700]])
@pytest.mark.parametrize("limit", [3_000, 20_000, 200_000])
def test_max_in_flight_bytes_are_kept_and_never_stall(limit, sizes):
    """
    Bytes without an ack stay within the limit; the flow asked for is so small that an ack comes.
    """
    data = [b"x" * sizes[row % len(sizes)] for row in range(2000)]
    one, server = lane(most_bytes=limit), ModelServer()
    one.offer(messages(["a"] * 2000, data))
    most = 0
    while one.busy:
        frames = one.ready(0.0, 5000)
        most = max(most, one.bytes_in_flight)
        assert frames is not None, f"stalls at {one!r}"
        for each in parse(bytes(frames)):
            hear(one, server.publish(each))

    assert one.acked == 2000
    assert most <= limit


def test_a_row_larger_than_the_limit_goes_alone():
    """
    One that is larger than `maxInFlightBytes` waits until nothing else is without an ack.
    """
    one, server = lane(most_bytes=2000), ModelServer()
    one.offer(messages(["a"] * 4, [b"x", b"y" * 5000, b"z", b"z"]))
    sizes = []
    while one.busy:
        part = parse(bytes(one.ready(0.0, MANY) or b""))
        sizes.append(len(part))
        for each in part:
            hear(one, server.publish(each))

    assert sizes[:2] == [1, 1]
    assert one.acked == 4


def test_a_chunk_is_one_row_at_least():
    """
    Rows that are larger than a chunk go one at a time, without waiting for each other.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4, [b"x" * 5000] * 4))
    hear(one, server.publish(sent(one)[0]))

    assert [len(parse(bytes(one.ready(0.0, 100) or b""))) for _ in range(4)] == [1, 1, 1, 0]


def test_rows_are_wanted_when_all_are_on_their_way():
    """
    Not while an offer waits for the batch before it, nor while rows go one by one and wait.
    """
    one, server = lane(), ModelServer()
    wanting = [one.wants_rows]
    one.offer(messages(["a"] * 2))
    one.offer(messages(["a"] * 2, first=2))
    wanting.append(one.wants_rows)
    hear(one, server.publish(sent(one)[0]))
    last = sent(one)
    wanting.append(one.wants_rows)  # the first batch is sent, the second offer waits
    hear(one, server.publish(last[0]))
    hear(one, server.publish(sent(one)[0]))
    sent(one)
    server.forget()
    one.broken()
    wanting.append(one.wants_rows)  # who knows what arrived
    hear(one, server.publish(sent(one)[0]))
    wanting.append(one.wants_rows)  # one by one, not sent
    hear(one, server.publish(sent(one)[0]))
    (plain,) = sent(one)
    wanting.append(one.wants_rows)  # one by one, sent
    hear(one, server.refused(plain, 429, 10167))
    wanting.append(one.wants_rows)  # one by one, to be sent again

    assert wanting == [True, False, False, False, False, True, False]


def test_rows_that_wait_behind_the_detour_are_sent_first():
    """
    More rows are not wanted while some of the offer have not been sent at all.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    hear(one, server.refused(sent(one)[0], 429, 10211))
    plain = sent(one)
    wanting = one.wants_rows
    hear(one, server.publish(plain[0]))

    assert steps(plain) == ["one"]
    assert not wanting
    assert steps(sent(one)) == ["1.0"]


def test_rows_one_by_one_start_slowly():
    """
    One, two, four…: what is refused at the beginning has nothing behind it that could overtake.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 100))
    hear(one, server.publish(sent(one)[0]))
    sent(one)
    server.forget()
    one.broken()
    hear(one, server.publish(sent(one)[0]))
    counts = []
    for _ in range(5):
        part = sent(one)
        counts.append(len(part))
        for each in part:
            hear(one, server.publish(each))

    assert counts == [1, 2, 4, 8, 16]


def test_all_that_may_be_stored_goes_one_by_one():
    """
    A thousand rows on the wire when the batch is lost: none of them goes in a batch again.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3000))
    hear(one, server.publish(sent(one)[0]))
    flying = sent(one)
    server.forget()
    hear(one, server.publish(flying[0]))
    log = exchange(one, server)

    assert len(flying) == 999
    assert steps(log[:1000]) == ["one"] * 1000
    assert server.data == [b"%d" % row for row in range(3000)]


def test_a_stream_that_took_rows_is_waited_for():
    """
    Nobody listening any more is waited out as long as `publishTimeout`, not the first seconds.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    one.offer(messages(["a"] * 3, first=3))
    for tick in range(300):
        for each in sent(one, tick / 10):
            hear(one, server.refused(each, 503, 0), tick / 10)
        one.expire(tick / 10)
    exchange(one, server, 31.0)

    assert one.acked == 6


def test_a_gap_ends_the_batch_and_the_rest_goes_one_by_one():
    """
    What the end's count leaves out goes out again, each with its own PubAck, before anything else.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 6))
    hear(one, server.publish(sent(one)[0]))
    rest = sent(one)
    one.offer(messages(["a"] * 2, first=6))
    for each in (rest[0], *rest[2:]):  # the third row is lost
        hear(one, server.publish(each))
    again = exchange(one, server)

    assert steps(again) == ["one"] * 4 + ["1.0", "2.2"]
    assert server.data == [b"%d" % row for row in range(8)]
    assert (one.acked, one.retries) == (8, 4)


def test_nothing_is_sent_between_a_gap_and_the_end():
    """
    Once a row is known to be missing, more of the batch would be refused.
    """
    one = lane()
    one.offer(messages(["a"] * 100))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=10))
    sent(one)
    hear(one, reply(start, type="gap", last_seq=3, seq=4))
    hear(one, reply(start, type="ack", seq=2, msgs=50))

    assert sent(one) == []
    assert not one.wants_rows


@pytest.mark.parametrize("err_code", [10071, 10165, 10227, 10097])
@pytest.mark.parametrize("row", [0, 2, 4])
def test_a_row_the_stream_refuses_is_named(err_code, row):
    """
    An `err` (or, for the first row, an error PubAck) ends the task with row and subject.
    """
    one, server = lane(), ModelServer()
    server.refuse[b"%d" % (7 + row)] = error(400, err_code, "never")
    one.offer(messages(["s.0", "s.1", "s.2", "s.3", "s.4"], first=7))

    with pytest.raises(PublishRejectedError, match=rf"'s\.{row}': row {7 + row}: never") as raised:
        exchange(one, server)
    assert raised.value.err_code == err_code
    assert len(server.stored) == row
    assert "one" not in steps(server.heard)


def test_a_row_refused_before_the_batch_looked_at_it_is_named():
    """
    A message that is too large gets a PubAck with an error on its own reply subject.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["s.0", "s.1", "s.2"]))
    hear(one, server.publish(sent(one)[0]))
    _, third = sent(one)

    with pytest.raises(PublishRejectedError, match=r"'s\.2': row 2: no"):
        hear(one, server.refused(third, 0, 10054))


@pytest.mark.parametrize("says", ["refused", "err"])
def test_a_row_that_was_refused_is_never_counted(says):
    """
    The server may go on with the batch and count the row it refused; it is sent again all the same.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 10))
    hear(one, server.publish(sent(one)[0]))
    rest = sent(one)
    for each in (*rest[:2], *rest[3:]):
        server.publish(each._replace(reply=""))  # stored; the fourth row is not
    limit = error(400, 10002, "resource limits exceeded for account")
    if says == "refused":
        hear(one, reply(rest[2], stream="S", seq=0, error=limit))
    else:
        hear(one, reply(rest[2], type="err", seq=4, error=limit))
    (ping,) = sent(one, 3.0)
    hear(one, reply(ping, type="ack", seq=8, msgs=4), 3.0)
    exchange(one, server, 3.0)

    assert steps([ping]) == ["10.4"]
    assert sorted(server.data) == [b"%d" % row for row in range(10)]
    assert (one.acked, one.duplicates) == (10, 6)


def test_an_end_never_counts_a_refused_row():
    """
    Nor does it count in the end of the batch.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    hear(one, server.publish(sent(one)[0]))
    second, third = sent(one)
    hear(one, server.refused(second, 0, 10002))
    name = third.reply.split(".")[3]
    hear(one, reply(third, stream="S", seq=2, batch=name, count=3))

    assert one.acked == 1
    assert steps(exchange(one, server)) == ["one", "one"]


def test_rows_that_expect_a_message_id_go_one_by_one():
    """
    A batch counts a row whose `Nats-Expected-Last-Msg-Id` was wrong; a plain publish does not.
    """
    one, server = lane(), ModelServer()
    unfit = b"Nats-Expected-Last-Msg-Id: t-0\r\n"
    one.offer(messages(["a"] * 3, headers=[b"", unfit, b""]))
    one.offer(messages(["a"] * 3, first=3, headers=[unfit, b"", b""]).slice(2, 1))
    one.offer(messages(["a"] * 3, first=6, headers=[b"", b"", unfit]).slice(1, 2))
    one.offer(messages(["a"] * 2, first=9, ids=False))

    assert steps(exchange(one, server)) == ["one"] * 3 + ["1.2"] + ["one"] * 2 + ["1.0", "2.2"]


def test_a_stream_without_batches_says_so():
    """
    10205 tells what to set.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))

    with pytest.raises(PublishRejectedError, match=r"allow_batched.*publishMode=async.*10205"):
        hear(one, server.refused(sent(one)[0], 400, 10205))


def test_a_server_without_fast_ingest_is_told():
    """
    An older server stores the row and sends a plain PubAck: no wait for acks that never come.
    """
    one = lane()
    one.offer(messages(["a"] * 3))

    with pytest.raises(PublishRejectedError, match=r"needs nats-server 2\.14"):
        hear(one, reply(sent(one)[0], stream="S", seq=1))


def test_a_limit_is_waited_out_one_by_one():
    """
    A full stream ends the batch; the rows that are left are tried one by one until there is room.
    """
    one, server = lane(), ModelServer()
    full = error(503, 10077, "maximum messages exceeded")
    server.refuse = {b"%d" % row: full for row in range(3, 8)}
    one.offer(messages(["a"] * 8))
    exchange(one, server)
    stored = list(server.data)
    server.refuse = {}
    exchange(one, server, now=0.3)

    assert stored == [b"0", b"1", b"2"]
    assert server.data == [b"%d" % row for row in range(8)]
    assert one.acked == 8


def test_a_limit_that_stays_is_a_timeout():
    """
    With no room within `publishTimeout` the error is the one of a plain publish.
    """
    one, server = lane(publish=5.0), ModelServer()
    server.refuse = {b"2": error(503, 10077, "maximum messages exceeded")}
    one.offer(messages(["a"] * 4))

    with pytest.raises(PublishTimeoutError, match=r"row 2.*maximum messages exceeded.*make room"):
        for tick in range(100):
            exchange(one, server, tick / 10)
            one.expire(tick / 10)


@pytest.mark.parametrize(("code", "err_code"), [(429, 10167), (503, 0), (503, 10023)])
def test_a_dropped_row_is_found_by_a_ping(code, err_code):
    """
    After a refusal that may pass, nothing is sent but a ping with the last sequence: it brings the
    end, and with it what is stored.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    hear(one, server.publish(sent(one)[0]))
    rest = sent(one)
    for each in rest[:2]:
        hear(one, server.publish(each))
    for each in rest[2:]:
        hear(one, server.refused(each, code, err_code))
    at_once = sent(one)
    later = sent(one, 0.3)
    for each in later:
        hear(one, server.publish(each), 0.3)

    assert at_once == []
    assert steps(later) == ["5.4"]
    assert steps(exchange(one, server, 0.3)) == ["one", "one"]
    assert server.data == [b"%d" % row for row in range(5)]


def test_pings_that_are_refused_are_repeated_more_slowly():
    """
    A stream without a leader refuses pings, too; after `ackTimeout` without an answer the rows go
    one by one.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    hear(one, server.publish(sent(one)[0]))
    for each in sent(one):
        hear(one, server.refused(each, 503, 0))
    times = []
    now = 0.0
    while now < 5.0:
        for each in sent(one, now):
            times.append(now)
            hear(one, server.refused(each, 503, 0), now)
        now += 0.05
    one.expire(now)

    assert [round(b - a, 1) for a, b in zip(times, times[1:], strict=False)][:3] == [0.5, 1.0, 1.0]
    assert steps(exchange(one, server, now)) == ["one"] * 5


@pytest.mark.parametrize("err_code", [10211, 10167, 0])
def test_a_batch_that_cannot_begin_goes_one_by_one(err_code):
    """
    With too many batches open, an overloaded or absent stream: one row goes alone, then hundreds,
    hundreds, and twice as many each time, before a batch is tried again.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4000))
    plain = []
    start = sent(one)
    while start:
        assert steps(start) == ["1.0"]
        hear(one, server.refused(start[0], 429 if err_code else 503, err_code))
        log, start = one_by_one(one, server)
        plain.append(len(log))

    assert plain == [1, 500, 1000, 2000, 499]
    assert server.data == [b"%d" % row for row in range(4000)]
    assert one.retries == 5


def test_after_a_batch_that_went_well_a_failure_costs_little_again():
    """
    The stretch that goes one by one is short again after a success.
    """
    one, server = lane(), ModelServer()
    counts = []
    for number, failures in enumerate([2, 1]):
        one.offer(messages(["a"] * 2000, first=2000 * number))
        plain = 0
        start = sent(one)
        for _ in range(failures):
            hear(one, server.refused(start[0], 429, 10211))
            log, start = one_by_one(one, server)
            plain += len(log)
        hear(one, server.publish(start[0]))
        counts.append(plain + steps(exchange(one, server)).count("one"))

    assert counts == [501, 1]


def test_a_lost_connection_is_followed_by_a_ping():
    """
    On the new connection the server says where the batch stands, and the batch goes on.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2000))
    hear(one, server.publish(sent(one)[0]))
    for each in sent(one):
        server.publish(each)  # all arrived, no ack did
    one.broken()
    ping = sent(one, 1.0)
    for each in ping:
        hear(one, server.publish(each), 1.0)

    assert steps(ping) == ["1000.4"]
    assert one.acked == 1000
    assert steps(exchange(one, server, 1.0))[:1] == ["1001.1"]
    assert server.data == [b"%d" % row for row in range(2000)]
    assert one.retries == 0


def test_nothing_comes_before_the_ping_on_a_new_connection():
    """
    Even with rows that might go: if others were lost, they would be refused. However long it took
    to connect, the server is given `ackTimeout` to answer.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2000))
    hear(one, server.publish(sent(one)[0]))
    one.ready(0.0, 1000)
    one.broken()
    one.expire(60.0)
    ping = sent(one, 60.0)
    one.expire(64.9)
    patient = repr(one)
    one.expire(65.0)

    assert [step.split(".")[1] for step in steps(ping)] == ["4"]
    assert not patient.startswith("<FastLane no batch")
    assert repr(one).startswith("<FastLane no batch")


def test_a_lost_connection_that_lost_rows_ends_the_batch():
    """
    Rows that did not arrive are a gap before the ping; those that did are not sent again.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 10))
    hear(one, server.publish(sent(one)[0]))
    for each in sent(one)[:4]:
        server.publish(each)
    one.broken()
    log = exchange(one, server, 1.0)

    assert steps(log) == ["10.4", *["one"] * 5]
    assert server.data == [b"%d" % row for row in range(10)]


def test_a_lost_commit_is_found_out_one_by_one():
    """
    A batch that nobody knows any more may be stored: its rows go one by one, as duplicates.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 10))
    hear(one, server.publish(sent(one)[0]))
    for each in sent(one):
        server.publish(each)
    one.broken()
    log = exchange(one, server, 1.0)

    assert steps(log) == ["10.4", *["one"] * 10]
    assert len(server.stored) == 10
    assert (one.acked, one.duplicates) == (10, 10)


def test_a_lost_first_row_is_sent_again():
    """
    A connection that broke before the first answer: the batch is unknown, and the row not stored.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    sent(one)
    one.broken()
    log = exchange(one, server, 1.0)

    assert steps(log) == ["1.4", "one", "1.0", "2.2"]
    assert server.data == [b"0", b"1", b"2"]


def test_silence_is_followed_by_pings_and_then_given_up():
    """
    A server that says nothing is asked three times within `ackTimeout`; then the batch is over.
    """
    one, server = lane(ack=3.0), ModelServer()
    one.offer(messages(["a"] * 10))
    hear(one, server.publish(sent(one)[0]))
    sent(one)
    pings = []
    for tick in range(1, 31):
        now = tick / 10
        one.expire(now)
        pings += [now for step in steps(sent(one, now)) if step == "10.4"]

    assert pings == [1.0, 2.0]
    assert repr(one).startswith("<FastLane no batch")


def test_a_server_that_answers_is_not_given_up():
    """
    A ping that is answered shows that the server has the batch, however long it takes to store.
    """
    one = lane(ack=3.0, publish=60.0)
    one.offer(messages(["a"] * 10))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=500))
    sent(one)

    with pytest.raises(PublishTimeoutError, match=r"row 0.*60\.0s.*quorum"):
        for tick in range(1, 1000):
            now = tick / 10
            for each in sent(one, now):
                assert steps([each]) == ["10.4"]
                hear(one, reply(each, type="ack", seq=0, msgs=500), now)
            one.expire(now)


def test_idle_rows_are_not_given_up_before_their_answers_are_read():
    """
    Minutes pass between two offers; what had been heard by then is handed in first, and counts.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4))
    hear(one, server.publish(sent(one)[0]))
    late = [heard for each in sent(one) for heard in server.publish(each)]
    one.offer(messages(["a"] * 2, first=4))
    hear(one, late, 300.0)
    one.expire(300.0)

    assert steps(exchange(one, server, 300.0)) == ["1.0", "2.2"]
    assert one.acked == 6


def test_a_new_leader_may_know_less_than_was_acked():
    """
    An ack or an end below the last ack takes nothing back.
    """
    one = lane()
    one.offer(messages(["a"] * 30))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=10))
    sent(one)
    hear(one, reply(start, type="ack", seq=20, msgs=10))
    hear(one, reply(start, type="ack", seq=17, msgs=10))
    name = start.reply.split(".")[3]
    hear(one, reply(start, stream="S", seq=17, batch=name, count=17))

    assert one.acked == 20
    assert [each.data for each in exchange(one, ModelServer())] == [
        b"%d" % row for row in range(20, 30)
    ]


def test_a_new_leader_is_asked_what_it_has():
    """
    An ack without news comes from a new leader: a ping at once tells what was lost on the way.
    Leaders that change again and again do not put it off.
    """
    one = lane()
    one.offer(messages(["a"] * 30))
    (start,) = sent(one)
    hear(one, reply(start, type="ack", seq=0, msgs=500))
    sent(one)
    hear(one, reply(start, type="ack", seq=7, msgs=500), 0.1)
    hear(one, reply(start, type="ack", seq=7, msgs=500), 0.2)

    assert steps(sent(one, 0.2)) == ["30.4"]
    assert sent(one, 0.3) == []


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
    assert one.acked == 6


def test_no_more_time_than_narrowed_to():
    """
    `narrow` shortens what a row may take, in a batch and one by one, and never lengthens it.
    """
    one = lane(ack=5.0, publish=60.0)
    one.narrow(2.0)
    one.narrow(30.0)
    one.offer(messages(["a"] * 3))
    sent(one)
    assert one.give_up_at == 2.0
    one.expire(2.0)  # silence for the whole time: one by one
    sent(one, 2.0)
    with pytest.raises(PublishTimeoutError):
        one.expire(2.0)


def test_time_goes_on_when_rows_go_one_by_one():
    """
    A row that was in a lost batch has what is left of `publishTimeout`.
    """
    one = lane(ack=5.0, publish=20.0)
    one.offer(messages(["a"] * 3))
    sent(one)
    one.expire(5.0)
    plain = sent(one, 5.0)

    assert steps(plain) == ["one"]
    assert one.give_up_at == 20.0
    with pytest.raises(PublishTimeoutError, match=r"row 0: not stored 20\.0s"):
        for now in (10.0, 15.0, 19.9, 20.0):
            one.expire(now)
            sent(one, now)


def test_deadlines_are_known_in_advance():
    """
    The next ping, the end of patience and of time: the caller sleeps until the first of them.
    """
    one, server = lane(ack=6.0, publish=10.0), ModelServer()
    idle = one.next_deadline(0.0)
    one.offer(messages(["a"] * 3))
    hear(one, server.publish(sent(one)[0]))
    sent(one)

    assert idle == float("inf")
    assert one.next_deadline(0.0) == 2.0
    assert one.give_up_at == 10.0


def test_the_server_is_asked_well_before_it_forgets():
    """
    However long `ackTimeout` is: 10 s without a word end a batch.
    """
    one = lane(ack=60.0)
    one.offer(messages(["a"] * 3))
    sent(one)

    assert one.next_deadline(0.0) == 3.0


def test_rows_one_by_one_are_watched_like_the_others():
    """
    Their bytes count, their deadlines hold, and after a lost connection they go again.
    """
    one, server = lane(ack=6.0, publish=10.0), ModelServer()
    one.offer(messages(["a"] * 3))
    hear(one, server.refused(sent(one)[0], 429, 10211))
    plain = sent(one)
    before = one.bytes_in_flight, one.next_deadline(0.0), one.give_up_at
    one.broken()

    assert before == (plain[0].size, 6.0, 10.0)
    assert one.bytes_in_flight == before[0]
    assert steps(exchange(one, server)) == ["one", "1.0", "2.2"]


def test_time_counts_from_the_oldest_row_without_an_ack():
    """
    Each ack moves the moment of giving up on to the next sending.
    """
    one = lane(publish=100.0)
    one.offer(messages(["a"] * 30))
    (start,) = sent(one, 1.0)
    hear(one, reply(start, type="ack", seq=0, msgs=5), 2.0)
    sent(one, 3.0)
    hear(one, reply(start, type="ack", seq=5, msgs=5), 4.0)
    sent(one, 5.0)
    after_five = one.give_up_at
    hear(one, reply(start, type="ack", seq=10, msgs=5), 6.0)

    assert (after_five, one.give_up_at) == (103.0, 105.0)


def test_repr_shows_the_state():
    """
    The lane says what it is doing.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    hear(one, server.publish(sent(one)[0]))
    sent(one)

    assert repr(one).startswith("<FastLane 0/5/5 acked/sent/rows, 0 acked, one by one: <Window")


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


@pytest.mark.parametrize("seed", range(60))
def test_random_walk(seed):
    """
    Whatever the server and the network do, every row is stored: once with ids, in order where no
    plain publish was dropped between others; limits hold, and the count is right.
    """
    rng = random.Random(seed)
    ids = seed % 4 > 0
    drops_plain = seed % 3 == 0
    most, most_bytes = rng.choice([(1, MANY), (7, 3000), (64, MANY), (4096, 30_000)])
    one = lane(most, most_bytes, ack=2.0, publish=1e9)
    server = ModelServer(others=rng.choice([0, 0, 3, 60]))
    total = rng.randrange(1, 1500)
    offered, now = 0, 0.0
    up: list[Sent] = []  # on the way to the server
    down: list[Reply] = []  # on the way back
    unfit = error(503, 10077)
    while offered < total or one.busy:
        if one.wants_rows and offered < total:
            count = min(rng.choice([1, 2, 30, 700]), total - offered)
            subjects = [rng.choice("abc") for _ in range(count)]
            data = [
                b"%d" % row + b"." * rng.randrange(60) for row in range(offered, offered + count)
            ]
            one.offer(messages(subjects, data, first=offered, ids=ids))
            offered += count
        frames = one.ready(now, rng.choice([1, 300, MANY]))
        if frames is not None:
            up += parse(bytes(frames))
            batch = [each for each in up if ".fail." in each.reply and ".4.$FI" not in each.reply]
            assert len(batch) <= max(1, most)
            assert one.bytes_in_flight <= most_bytes or len(batch) == 1
        event = rng.random()
        if event < 0.02:
            del up[rng.randrange(len(up) + 1) :]
            for each in up:
                server.publish(each)
            up, down = [], []
            one.broken()
        elif event < 0.03:
            server.forget()
        elif event < 0.035:
            down = []  # a leader that has gone took its replies along
        for _ in range(rng.randrange(30)):
            if not up:
                break
            each = up.pop(0)
            server.now = now
            plain = not each.reply.endswith("$FI")
            if rng.random() < 0.004 and (drops_plain or not plain):
                code, err_code = rng.choice([(429, 10167), (503, 0), (0, 10023)])
                down += server.refused(each, code, err_code)
                continue
            if rng.random() < 0.004 and (drops_plain or not plain):
                server.refuse[each.data] = unfit
            down += server.publish(each)
            server.refuse.clear()
        heard = down[: rng.randrange(20)]
        del down[: len(heard)]
        hear(one, heard, now)
        now += rng.choice([0.0, 0.001, 0.3, 0.3, 12.0 if rng.random() < 0.02 else 0.0])
        one.expire(now)

    rows = [int(each.split(b".")[0]) for each in server.data]
    assert set(rows) == set(range(total)), f"seed {seed}"
    assert one.acked == total, f"seed {seed}"
    assert one.bytes_in_flight == 0
    if ids:
        assert len(rows) == total, f"seed {seed}"
        if not drops_plain:
            assert rows == sorted(rows), f"seed {seed}"


# ── the limit ────────────────────────────────────────────────────────────────────────────────


class Ear(FixedLimit):
    """A limit that notes what it hears."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.heard: list[tuple[float, ...]] = []

    def acked(self, count: int, rtt_s: float, in_flight: int, now: float) -> None:
        self.heard.append((count, round(rtt_s, 6), in_flight, now))

    def dropped(self, now: float) -> None:
        self.heard.append((now,))


def test_the_limit_hears_of_acks():
    """
    Each ack is as many samples as it has news, with the round trip of its last row.
    """
    one = lane(ear := Ear(8))
    one.offer(messages(["a"] * 9))
    (start,) = sent(one, 0.0)
    hear(one, reply(start, type="ack", seq=0, msgs=4), now=0.1)
    rows = sent(one, 0.2)
    hear(one, reply(rows[2], type="ack", seq=4, msgs=4), now=0.5)
    sent(one, 0.6)
    hear(one, reply(rows[6], type="ack", seq=8, msgs=4), now=0.9)

    assert ear.heard == [(4, 0.3, 8, 0.5), (4, 0.7, 5, 0.9)]


def test_acks_that_nobody_waited_for_are_no_samples():
    """
    What came while Spark made the next batch tells no round trip.
    """
    one = lane(ear := Ear(8))
    one.offer(messages(["a"] * 4))
    (start,) = sent(one, 0.0)
    hear(one, reply(start, type="ack", seq=0, msgs=4), now=0.1)
    rows = sent(one, 0.2)
    one.unread()
    hear(one, reply(rows[-1], stream="S", seq=4, batch="b", count=4), now=60.0)

    assert one.acked == 4
    assert ear.heard == []


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "gap", "last_seq": 1, "seq": 3},
        {"error": {"code": 429, "err_code": 10167, "description": "full"}},
        {"type": "err", "seq": 2, "error": {"code": 503, "err_code": 10077, "description": "max"}},
    ],
    ids=["gap", "429", "limit"],
)
def test_gaps_and_refusals_are_push_backs(answer):
    """
    A gap, a refusal for load or of a limit is a drop.
    """
    one = lane(ear := Ear(8))
    one.offer(messages(["a"] * 9))
    (start,) = sent(one, 0.0)
    hear(one, reply(start, type="ack", seq=0, msgs=4), now=0.1)
    rows = sent(one, 0.2)
    hear(one, reply(rows[1], **answer), now=0.5)

    assert ear.heard == [(0.5,)]


def test_silence_is_a_push_back():
    """
    A batch of which nothing is heard for `ackTimeout` is a drop.
    """
    one = lane(ear := Ear(8), ack=1.0)
    one.offer(messages(["a"] * 9))
    sent(one, 0.0)
    one.expire(1.0)

    assert ear.heard == [(1.0,)]


def test_a_lower_limit_holds_back_the_batch_but_never_its_acks():
    """
    A limit that falls leaves one ack's worth of rows on the wire, and the next batch asks for less.
    """
    limit = GradientLimit(1, 100, 100)
    one, server = lane(limit), ModelServer()
    one.offer(messages(["a"] * 200))
    (start,) = sent(one, 0.0)
    hear(one, server.publish(start))
    for now in (1.0, 2.0, 3.0):
        limit.dropped(now)
    held = sent(one, 3.0)
    for each in held:
        hear(one, server.publish(each))
    exchange(one, server)
    one.offer(messages(["a"] * 9, first=200))
    (start,) = sent(one, 3.0)

    assert len(held) == 50 - 1  # the first row counts
    assert start.reply.split(".")[4] == "17"
