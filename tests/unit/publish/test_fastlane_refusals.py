"""Fast-ingest batches with gaps and refused rows, and rows that go one by one instead."""

from __future__ import annotations

import math

import pytest

from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError
from pyspark_jetstream.publish.lanes.fastlane import FastLane

from ...kits.fast import lane, one_by_one, steps
from ...kits.lanes import (
    PREFIX,
    FixedLimit,
    ModelServer,
    error,
    exchange,
    hear,
    messages,
    reply,
    sent,
    terms,
)


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
    one.on_disconnect()
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

    assert one.tally.acked == 6


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
    assert (one.tally.acked, one.tally.retries) == (8, 4)


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


@pytest.mark.parametrize("row", [0, 2])
def test_a_stream_that_takes_no_batches_any_more(row):
    """
    Where rows may go by other ways, a batch ends with the first word of that, and nothing more is
    asked of it: the rows go one by one, each once.
    """
    one = FastLane(PREFIX, terms(FixedLimit(4096), falls_back=True))
    server = ModelServer()
    one.offer(messages(["s"] * 5))
    rows = sent(one)
    if row:
        hear(one, server.publish(rows[0]))
        rows += sent(one)
        hear(one, server.publish(rows[1]))
    hear(one, server.refused(rows[row], 400, 10205))

    assert steps(exchange(one, server))[0] == "one"
    assert sorted(set(server.data)) == [b"%d" % each for each in range(5)]
    assert one.tally.acked == 5


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
    assert (one.tally.acked, one.tally.duplicates) == (10, 6)


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

    assert one.tally.acked == 1
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
    assert one.tally.acked == 8


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
    assert one.tally.retries == 5


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


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_full_stream_refuses_is_known_not_to_be_stored(is_first):
    """
    The first row, which begins no batch; and rows behind the end of a batch.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 20))
    (first,) = sent(one)
    if is_first:
        hear(one, reply(first, error=error(400, 10077)))
    else:
        hear(one, server.publish(first))
        last = sent(one)[-1]
        said = error(400, 10077)
        hear(one, reply(last, type="err", seq=4, error=said))
        hear(one, reply(last, stream="S", seq=3, batch="b", count=3))
    back = one.recall(lambda _: True)

    unsure = [time for part in back if part.unsure is not None for time in part.unsure.to_pylist()]
    assert sum(map(len, back)) == (20 if is_first else 17)
    assert set(unsure) == {math.inf}
