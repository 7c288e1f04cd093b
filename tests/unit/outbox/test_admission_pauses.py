"""Rows of paused subjects, refused rows, and how long a row may wait."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ProducerThrottledError, PublishTimeoutError, QueueTimeoutError
from pyspark_jetstream.outbox.messages import Messages, sizes
from pyspark_jetstream.outbox.throttling.throttle import Throttle

from ...kits.admission import FULL, IDLE, SHED, admission, drained, numbers, pause, rows
from ...kits.options import rules_of


def test_b10_rows_are_paused_while_they_wait():
    """
    B10: a pause that comes when rows are queued already holds them back, and nothing else.
    """
    one = admission(throttle=(throttle := Throttle()))
    one.offer(rows("a b a b"), 0.0, FULL)
    first = numbers(one.take(1, 0.0))
    pause(throttle, "a", 5.0, 1.0)
    one.offer(rows("a c", 4), 1.0, FULL)
    meanwhile = drained(one, 1.0)

    assert (first, meanwhile) == ([0], [1, 3, 5])
    assert drained(one, 6.0) == [2, 4]


def test_b5_no_priorities_no_reordering():
    """
    B5: rows of lanes that are not paused keep the order of their arrival.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    one.offer(rows("b b c a b c"), 0.0, FULL)

    assert drained(one, 1.0, piece=2) == [0, 1, 2, 4, 5]


def test_b18_parked_rows_have_a_buffer_of_their_own():
    """
    B18: paused rows do not fill the queue; when their own buffer is full, the iterator waits.
    """
    rules = rules_of(queue_size=20, held_bytes=20_000)
    one = admission(rules, throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    one.offer(rows("a " * 19 + "b " * 5), 0.0, FULL)
    before = one.wants_rows(0.0, FULL), one.wants_rows(0.0, IDLE)
    one.offer(rows("a", 24, data=b"x" * 20_000), 0.0, FULL)

    assert before == (True, True)
    assert not one.wants_rows(0.0, FULL)
    assert drained(one, 1.0) == [19, 20, 21, 22, 23]
    drained(one, 5.0)
    assert one.wants_rows(5.0, FULL)


def test_b13_a_refused_row_goes_before_all_later_ones_of_its_lane():
    """
    B13: what is given back waits for the window like the rest, and keeps its place in its lane.
    """
    one = admission(throttle=(throttle := Throttle()))
    one.offer(rows("a b a a b a"), 0.0, FULL)
    sent = one.take(4, 0.0)
    throttle.refused(10077, "a", 1.0, 0.1)
    refused = sent.take(pa.array([3, 0]))
    one.give_back(replace(refused, sent=pa.array([0.0, 0.0])), 0.1)
    meanwhile = drained(one, 0.2)

    assert numbers(sent) == [0, 1, 2, 3]
    assert meanwhile == [4]
    assert drained(one, 1.1) == [0, 3, 5]
    assert (one.offered, one.taken, one.waiting) == (6, 6 + 2, 0)


@pytest.mark.parametrize("behind", ["", "a b"])
def test_i5_what_was_not_sent_goes_back_to_its_place(behind):
    """
    I5: rows that a lane gives back, in any order, go before all later ones, of a queue that nothing
    pauses.
    """
    one = admission()
    one.offer(rows("a b a"), 0.0, FULL)
    first = one.take(3, 0.0)
    one.offer(rows(behind, 3), 0.0, FULL)
    one.give_back(first.take(pa.array([2, 0, 1])), 0.1)

    assert drained(one, 0.1) == list(range(one.offered))
    assert one.taken == one.offered + 3


@pytest.mark.parametrize("spare", [0, 1])
def test_b18_a_buffer_is_full_to_the_byte(spare):
    """
    B18: as soon as its bytes are there, and not before.
    """
    throttle = Throttle()
    pause(throttle, "a", 5.0)
    paused = rows("a")
    one = admission(rules_of(held_bytes=sizes(paused)[0].as_py() + spare), throttle=throttle)
    one.offer(paused, 0.0, FULL)

    assert one.wants_rows(0.0, FULL) is bool(spare)


def test_since_when_what_was_given_back_waits():
    """
    B13: what was sent since its first sending; what was not, since it was offered, though blocks
    came between.
    """
    one = admission()
    one.offer(rows("a b"), 1.0, FULL)
    one.offer(rows("a b", 2), 2.0, FULL)
    taken = [one.take(2, 3.0), one.take(2, 3.0)]
    both = Messages.joined([replace(taken[0], sent=pa.array([4.0, None], pa.float64())), taken[1]])
    one.give_back(both, 5.0)
    one.take(4, 6.0)

    assert one.since.to_pylist() == [4.0, 1.0, 2.0, 2.0]


def test_b11_the_next_deadline():
    """
    B11: the end of the earliest window wakes an idle writer; without rows nothing does.
    """
    one = admission(rules_of(queue_timeout_s=7.0), throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    idle = one.next_deadline(0.0)
    one.offer(rows("a"), 1.0, FULL)

    assert idle == math.inf
    assert one.next_deadline(1.0) == 5.0
    assert one.next_deadline(5.0) == 8.0
    assert one.next_deadline(8.0) > 8.0


@pytest.mark.parametrize("fail_fast", [False, True])
def test_b14_a_pause_longer_than_a_row_may_wait(fail_fast):
    """
    B14: with back-pressure a row waits up to `throttleMaxWait`; failing fast, it fails as soon as
    the pause is longer than the time it has.
    """
    rules = rules_of(publish_timeout_s=10.0, throttle_max_wait_s=0.0 if fail_fast else 60.0)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("b a"), 0.0, FULL)
    one.expire(0.5)
    failed = None
    now = 0.5
    while failed is None and now < 100:
        pause(throttle, "a", 9.9 if now < 5 else 30.0, now)
        try:
            one.expire(now)
            now += 1.0
        except ProducerThrottledError as error:
            failed = error

    assert now == (0.5 if fail_fast else 60.5)
    assert failed.subject == "a"
    assert failed.reason == "TopicProduceQuotaExceeded"


def test_b14_failing_fast_leaves_short_pauses_alone():
    """
    B14: a pause that ends in time is waited for.
    """
    rules = rules_of(publish_timeout_s=10.0, throttle_max_wait_s=0.0)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("a"), 0.0, FULL)
    pause(throttle, "a", 9.0, 0.5)
    one.expire(1.0)

    assert drained(one, 9.5) == [0]


@pytest.mark.parametrize(
    ("paused_s", "error"), [(0.95, ProducerThrottledError), (0.5, PublishTimeoutError)]
)
def test_b15_refusals_without_end_are_a_pause_or_a_timeout(paused_s, error):
    """
    B15: a subject at its limit fails after `publishTimeout`, as throttled if it was, by 0.8 of it.
    """
    one = admission(rules_of(publish_timeout_s=30.0), throttle=(throttle := Throttle()))
    one.offer(rows("a b"), 0.0, FULL)
    first = one.take(1, 0.0)
    now = 0.0

    with pytest.raises(error) as raised:
        while now < 100:
            throttle.refused(10077, "a", paused_s, now)
            one.give_back(replace(first, sent=pa.array([0.0])), now)
            one.expire(now)
            now += 1.0
            first = one.take(1, now)
            assert numbers(first) == [0]
    assert now == 30.0
    assert raised.value.subject == "a"


def test_a15_queue_timeout():
    """
    A15: rows that waited too long are shed if they may be, else the task fails.
    """
    one = admission(replace(SHED, queue_timeout_s=5.0))
    one.offer(rows("a.l b.l"), 0.0, FULL)
    one.offer(rows("a.l b.n", 2), 3.0, FULL)
    early = one.expire(4.9)
    found = one.expire(5.0)

    assert early == []
    assert [(numbers(each.rows), each.reason) for each in found] == [([0, 1], "QueueTimeout")]
    with pytest.raises(QueueTimeoutError, match=r"publish to 'b': row 3: .* 5\.0s"):
        one.expire(8.0)


def test_a15_what_was_sent_has_publish_timeout_instead():
    """
    A15: a row that was sent and given back may be stored: it is not shed, and `queueTimeout`, which
    is about rows that nobody has sent, does not fail it. Those behind it are shed as ever.
    """
    rules = replace(SHED, queue_timeout_s=5.0, publish_timeout_s=60.0)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("a.l b.l"), 0.0, FULL)
    sent = one.take(1, 0.0)
    throttle.refused(10077, "a", 30.0, 1.0)
    one.give_back(replace(sent, sent=pa.array([0.0])), 1.0)
    waits_until = one.next_deadline(1.0)
    found = one.expire(6.0)
    alone = one.expire(7.0), one.expire(29.0)

    assert waits_until == 5.0
    assert [(numbers(each.rows), each.reason) for each in found] == [([1], "QueueTimeout")]
    assert alone == ([], [])
    assert one.next_deadline(7.0) == 31.0
    assert drained(one, 31.0) == [0]


def test_a15_what_was_sent_fails_after_publish_timeout():
    """
    A15, I8: it does not wait for ever: `publishTimeout` counts from its first sending.
    """
    rules = replace(SHED, queue_timeout_s=5.0, publish_timeout_s=60.0)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("a.l"), 0.0, FULL)
    sent = one.take(1, 0.0)
    throttle.refused(10077, "a", 300.0, 1.0)
    one.give_back(replace(sent, sent=pa.array([0.0])), 1.0)
    one.expire(59.0)

    with pytest.raises(ProducerThrottledError):
        one.expire(60.0)


def test_a15_without_a_timeout_rows_wait():
    """
    A15: the default is to wait without end.
    """
    one = admission()
    one.offer(rows("a.l"), 0.0, FULL)

    assert one.expire(1e9) == []
    assert one.next_deadline(1e9) == math.inf
