"""Atomic batches when answers, rows or connections are lost; deadlines."""

from __future__ import annotations

import math

import pytest

from pyspark_jetstream.errors import PublishTimeoutError

from ...kits.atomic import lane, plain
from ...kits.lanes import ModelServer, exchange, hear, messages, parse, reply, sent


def test_slow_sending_is_no_silence():
    """
    A batch is not answered before its last row; how long that takes to send does not count.
    """
    one, server = lane(ack=2.0), ModelServer()
    one.offer(messages(["a"] * 3))
    log = []
    for now in (0.0, 10.0, 20.0):
        one.expire(now)
        log += parse(bytes(one.frames_to_send(now, 1) or b""))
    for each in log:
        hear(one, server.publish(each), 20.0)

    assert (one.tally.acked, one.tally.retries) == (3, 0)


def test_a_commit_whose_answer_was_lost_is_not_stored_twice():
    """
    After a broken connection the batch goes again under a new id; 10201 tells that rows are there,
    and one by one they turn out to be duplicates.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4))
    for each in sent(one):
        server.publish(each)
    one.on_disconnect()
    log = exchange(one, server)

    assert len({each.headers.get("Nats-Batch-Id") for each in server.stored + log}) == 3
    assert (one.tally.acked, one.tally.duplicates, len(server.stored)) == (4, 4, 4)


def test_a_lost_refusal_is_not_taken_for_a_commit():
    """
    The lost answer was itself a 10201 (some rows are there, others are not): the others are stored.
    """
    one, server = lane(), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 4))
    for each in sent(one):
        server.publish(each)
    one.on_disconnect()
    exchange(one, server)

    assert server.data == [b"0", b"2", b"3"]
    assert (one.tally.acked, one.tally.duplicates) == (4, 1)


def test_a_batch_that_lost_rows_goes_again_and_asks():
    """
    10176: something did not arrive. The next attempt has another id and a reply for every row.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    found = sent(one)
    for each in (*found[:2], *found[3:]):
        hear(one, server.publish(each))
    early = sent(one)
    again = sent(one, 0.01)
    for each in again:
        hear(one, server.publish(each), 0.01)

    assert early == []
    assert all(each.reply for each in again)
    assert again[0].headers["Nats-Batch-Id"] != found[0].headers["Nats-Batch-Id"]
    assert (one.tally.acked, one.tally.retries) == (5, 5)
    assert server.data == [b"%d" % row for row in range(5)]


def test_silence_means_sending_again():
    """
    Without an answer within `ackTimeout` the batch goes again; the late answer still counts.
    """
    one, server = lane(ack=2.0), ModelServer()
    one.offer(messages(["a"] * 3, ids=False))
    found = sent(one)
    answers = [heard for each in found for heard in server.publish(each)]
    one.expire(1.9)
    before = sent(one, 1.9)
    one.expire(2.0)
    again = sent(one, 2.3)
    hear(one, answers, 2.4)

    assert before == []
    assert len(again) == 3
    assert (one.tally.acked, one.tally.retries, one.busy) == (3, 3, False)


def test_late_answers_of_settled_batches_are_ignored():
    """
    Replies carry id and attempt; a refusal of an earlier attempt is no news.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    first = sent(one)
    one.on_disconnect()
    second = sent(one)
    hear(one, server.refused(first[-1], 400, 10054))
    for each in second:
        hear(one, server.publish(each))
    one.offer(messages(["a"] * 3, first=3))
    sent(one)
    hear(one, server.refused(second[-1], 400, 10054))
    name = second[0].headers["Nats-Batch-Id"]
    hear(one, reply(second[-1], stream="S", seq=3, batch=name, count=3))

    assert (one.tally.acked, one.busy) == (3, True)


def test_no_more_time_than_narrowed_to():
    """
    `narrow` shortens what a batch may take, and never lengthens it.
    """
    one = lane()
    one.lower_times(math.inf, 2.0)
    one.lower_times(math.inf, 30.0)
    one.offer(messages(["a"] * 3))
    sent(one)

    assert one.give_up_at == 2.0
    with pytest.raises(PublishTimeoutError, match="no answer within ackTimeout"):
        one.expire(2.0)


def test_rows_one_by_one_have_no_more_time_than_narrowed_to():
    """
    Nor have rows of a batch that was there before.
    """
    one, server = lane(), ModelServer()
    server.ids.add("t-1")
    one.lower_times(math.inf, 2.0)
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each))
    sent(one)

    with pytest.raises(PublishTimeoutError):
        one.expire(2.0)


def test_deadlines_are_known_in_advance():
    """
    When the answer is late, and when time is up.
    """
    one = lane(ack=6.0, publish=10.0)
    idle = one.next_deadline(0.0)
    one.offer(messages(["a"] * 3))
    one.frames_to_send(0.0, 1)
    while_sending = one.next_deadline(0.0)
    sent(one, 1.0)

    assert (idle, while_sending) == (float("inf"), 10.0)
    assert (one.next_deadline(1.0), one.give_up_at) == (7.0, 10.0)


def test_rows_one_by_one_are_watched_like_the_others():
    """
    Their bytes count, their deadlines hold, and after a lost connection they go again.
    """
    one, server = lane(ack=6.0, publish=10.0), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each))
    found = sent(one)
    before = one.bytes_in_flight, one.next_deadline(0.0), one.give_up_at
    one.on_disconnect()

    assert before == (found[0].size, 6.0, 10.0)
    assert one.bytes_in_flight == before[0]
    assert plain(exchange(one, server)) == 3


def test_rows_one_by_one_have_what_is_left_of_their_time():
    """
    `publishTimeout` counts from the sending of the batch; and the stream is there, as one of its
    ids is, so nobody listening for a while is waited out.
    """
    one, server = lane(publish=60.0), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each), 2.0)

    with pytest.raises(PublishTimeoutError, match=r"row 0: not stored 60\.0s after"):
        for tick in range(20, 700):
            now = tick / 10
            for each in sent(one, now):
                hear(one, server.refused(each, 503, 0), now)
            one.expire(now)
    assert now == 60.0
