"""Fast-ingest batches when connections break, leaders change or nobody answers; deadlines."""

from __future__ import annotations

import math

import pytest

from pyspark_jetstream.errors import PublishTimeoutError

from ...kits.fast import lane, steps
from ...kits.lanes import ModelServer, exchange, hear, messages, reply, sent


def test_a_lost_connection_is_followed_by_a_ping():
    """
    On the new connection the server says where the batch stands, and the batch goes on.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2000))
    hear(one, server.publish(sent(one)[0]))
    for each in sent(one):
        server.publish(each)  # all arrived, no ack did
    one.on_disconnect()
    ping = sent(one, 1.0)
    for each in ping:
        hear(one, server.publish(each), 1.0)

    assert steps(ping) == ["1000.4"]
    assert one.tally.acked == 1000
    assert steps(exchange(one, server, 1.0))[:1] == ["1001.1"]
    assert server.data == [b"%d" % row for row in range(2000)]
    assert one.tally.retries == 0


def test_nothing_comes_before_the_ping_on_a_new_connection():
    """
    Even with rows that might go: if others were lost, they would be refused. However long it took
    to connect, the server is given `ackTimeout` to answer.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2000))
    hear(one, server.publish(sent(one)[0]))
    one.frames_to_send(0.0, 1000)
    one.on_disconnect()
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
    one.on_disconnect()
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
    one.on_disconnect()
    log = exchange(one, server, 1.0)

    assert steps(log) == ["10.4", *["one"] * 10]
    assert len(server.stored) == 10
    assert (one.tally.acked, one.tally.duplicates) == (10, 10)


def test_a_lost_first_row_is_sent_again():
    """
    A connection that broke before the first answer: the batch is unknown, and the row not stored.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    sent(one)
    one.on_disconnect()
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
    assert one.tally.acked == 6


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

    assert one.tally.acked == 20
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


def test_no_more_time_than_narrowed_to():
    """
    `narrow` shortens what a row may take, in a batch and one by one, and never lengthens it.
    """
    one = lane(ack=5.0, publish=60.0)
    one.lower_times(math.inf, 2.0)
    one.lower_times(math.inf, 30.0)
    one.offer(messages(["a"] * 3))
    sent(one)
    assert one.give_up_at == 2.0
    one.expire(2.0)  # silence for the whole time: one by one, and not sent any more
    with pytest.raises(PublishTimeoutError):
        sent(one, 2.0)


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
    one.on_disconnect()

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
