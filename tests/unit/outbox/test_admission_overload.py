"""How many rows may wait, what overload is, and which rows are shed then."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_jetstream.outbox.admission import AUTO_ROWS, Load, queue_rows
from pyspark_jetstream.outbox.messages import sizes
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason

from ...kits.admission import (
    BOTH,
    CRITICAL,
    FULL,
    IDLE,
    NON_CRITICAL,
    NORMAL,
    SHED,
    admission,
    drained,
    numbers,
    pause,
    rows,
    shed,
)
from ...kits.options import rules_of


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_a9_three_chained_queues(piece):
    """
    A9, A10: critical rows first, then normal ones, then the others; each in its order.
    """
    one = admission()
    one.offer(rows("a.l b.n c.c d.l e.n f.c g.n"), 0.0, FULL)
    expected = [2, 5, 1, 4, 6, 0, 3]

    assert drained(one, piece=piece) == (expected if piece < 7 else list(range(7)))


def test_a9_one_capacity_for_all():
    """
    A9: rows of all priorities fill the queue together; a full queue stops the iterator.
    """
    one = admission(rules_of(queue_size=20))
    one.offer(rows("a.c " * 7 + "b.n " * 6 + "c.l " * 6), 0.0, FULL)
    before = one.wants_rows(0.0, FULL)
    one.offer(rows("d", 19), 0.0, FULL)

    assert (before, one.wants_rows(0.0, FULL)) == (True, False)
    assert one.counts() == {CRITICAL: 7, NORMAL: 7, NON_CRITICAL: 6}


def test_a9_bytes_are_a_capacity_too():
    """
    A9: so do bytes.
    """
    one = admission(rules_of(queue_bytes=10_000))
    one.offer(rows("a", data=b"x" * 9000), 0.0, FULL)
    before = one.wants_rows(0.0, FULL)
    one.offer(rows("a", 1, data=b"x" * 1000), 0.0, FULL)

    assert (before, one.wants_rows(0.0, FULL)) == (True, False)


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        ("auto", 64, AUTO_ROWS),
        ("sqrt", 64, 20),
        ("sqrt", 4096, 64),
        ("sqrt", 1000, 32),
        (5, 64, 20),
        (500, 64, 500),
    ],
)
def test_a11_capacities(size, limit, expected):
    """
    A11: one Arrow batch, the root of the limit, or a number; 20 at least.
    """
    assert queue_rows(size, limit) == expected


@pytest.mark.parametrize("pushed_back", [True, False])
@pytest.mark.parametrize("at_limit", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_a12_overload_is_all_three(full, at_limit, pushed_back):
    """
    A12: a full queue, a full window, and push-back lately; a full queue alone is a healthy batch.
    """
    one = admission(SHED)
    if pushed_back:
        one.overload.pushed_back(None, 0.0)
    load = FULL if at_limit else Load(63, 64)
    one.offer(rows("a.l " * (21 if full else 19)), 1.0, load)

    assert one.shed == (1 if full and at_limit and pushed_back else 0)


def test_b6_a_word_about_the_connection_is_push_back():
    """
    B6: as long as it is on record.
    """
    one = admission(SHED, throttle=(throttle := Throttle()))
    pause(throttle, "a", 0.0, reason=Reason.MessageBufferSizeBreach)
    one.offer(rows("a.l " * 21), 60.0, FULL)
    throttle.acked()
    one.offer(rows("a.l " * 21, 21), 60.0, FULL)

    assert one.shed == 1


def of_streams(messages, **places):
    """The rows, with the places of their subjects' streams; None for one that is not known."""
    targets = [places[subject] for subject in messages.distinct]
    return replace(messages, targets=pa.array(targets, pa.int32()))


@pytest.mark.parametrize("subject", ["a", "b", ">"])
@pytest.mark.parametrize("is_operator", [True, False], ids=["an operator", "10077"])
def test_a12_a_pause_sheds_nothing(subject, is_operator):
    """
    A12: that rows wait for a pause, an operator's or that of a subject at its limit, is no
    overload, and they do not fill the queue of the others. When their own buffer is full the
    iterator stops.
    """
    rules = replace(SHED, held_bytes=4_000)
    one = admission(rules, throttle=(throttle := Throttle()))
    if is_operator:
        pause(throttle, subject, 60.0)
    else:
        throttle.refused(10077, subject, 60.0, 0.0)
    found = one.offer(rows("a.l " * 19 + "c.l " * 21), 1.0, FULL) + one.expire(1.5, FULL)

    assert (found, one.waiting) == ([], 40)
    assert not one.wants_rows(1.5, FULL)
    assert one.is_held_full == (subject != "b")


def test_a12_a_full_queue_stops_the_iterator_whoever_is_paused():
    """
    A12: no block is asked for that would have to make room, though the others have none to make.
    """
    one = admission(SHED, throttle=(throttle := Throttle()))
    pause(throttle, "a", 60.0)
    one.offer(rows("a.l " * 5 + "c.l " * 20), 0.0, FULL)
    healthy = one.wants_rows(0.0, FULL)
    one.overload.pushed_back(None, 0.0)

    assert not healthy
    assert one.wants_rows(0.0, FULL)


@pytest.mark.parametrize(
    ("place", "gone"), [(0, [33, 36, 39]), (1, [34, 37]), (None, [35, 38]), (2, [])]
)
def test_a12_push_back_is_of_a_stream(place, gone):
    """
    A12: rows make room for the push-back of their own stream, not for another's; streams that are
    not known are one.
    """
    one = admission(replace(SHED, queue_size=40 - len(gone)))
    one.overload.pushed_back(place, 0.0)
    offered = of_streams(rows("a.l b.l c.l " * 13 + "a.l"), a=0, b=1, c=None)

    assert shed(one.offer(offered, 0.0, FULL)) == gone
    assert one.waiting == 40 - len(gone)


def test_a12_less_is_shed_than_is_too_many():
    """
    A12: where the stream that pushes back has fewer rows; then the iterator stops.
    """
    one = admission(SHED)
    one.overload.pushed_back(0, 0.0)
    found = one.offer(of_streams(rows("a.l " * 3 + "b.l " * 30), a=0, b=1), 0.0, FULL)

    assert shed(found) == [0, 1, 2]
    assert not one.wants_rows(0.0, FULL)


def test_a12_push_back_counts_while_nothing_is_tried():
    """
    A12: a stream that is left alone until then has not taken anything meanwhile; a word about an
    earlier time takes nothing back.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 2.0)
    one.overload.pushed_back(None, 0.5)

    assert shed(one.offer(rows("a.l " * 21), 2.9, FULL)) == [20]
    assert one.offer(rows("a.l", 21), 3.1, FULL) == []


def test_a12_push_back_is_forgotten():
    """
    A12: after the last second of push-back.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.l " * 30), 1.1, FULL)

    assert one.shed == 0


def test_a13_a_higher_newcomer_takes_the_place_of_the_newest_of_the_lowest():
    """
    A13: the queue is full of non-critical rows; a critical one comes.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.l b.l " * 10), 0.0, FULL)
    wants = one.wants_rows(0.0, FULL)
    found = one.offer(rows("c.c", 20), 0.0, FULL)

    assert wants
    assert [(numbers(each.rows), each.reason) for each in found] == [
        ([19], "MaxConcurrentRequests")
    ]
    assert found[0].rows.priorities.to_pylist() == [NON_CRITICAL]
    assert drained(one)[0] == 20


def test_a13_a_newcomer_that_is_not_higher_is_shed_itself():
    """
    A13: the queue is full of its equals.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.l " * 20), 0.0, FULL)

    assert shed(one.offer(rows("b.l", 20), 0.0, FULL)) == [20]


def test_a12_rows_above_the_capacity_make_room_when_the_server_pushes_back():
    """
    A12, A13: a block may exceed the capacity; its rows above it are shed as soon as there is an
    overload, whether another block comes or not.
    """
    one = admission(rules_of(queue_size=20, sheddable=frozenset({NON_CRITICAL})))
    before = one.offer(rows("a.l " * 50), 0.0, FULL), one.expire(0.1, FULL)
    one.overload.pushed_back(None, 0.2)
    idle = one.expire(0.2, IDLE)
    (shed,) = one.expire(0.2, FULL)

    assert before == ([], [])
    assert idle == []
    assert numbers(shed.rows) == list(range(20, 50))
    assert drained(one) == list(range(20))


def test_a13_what_may_not_be_shed_blocks_the_iterator():
    """
    A13: no row is sheddable, so none is shed, and no more are asked for.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.n " * 20), 0.0, FULL)
    found = one.offer(rows("b.n c.c", 20), 0.0, FULL)

    assert found == []
    assert not one.wants_rows(0.0, FULL)
    assert one.waiting == 22


def test_a13_what_may_be_stored_is_not_shed():
    """
    A13, I1: if it may be stored. The newest of the others leaves in its place.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.l " * 20), 0.0, FULL)
    taken = one.take(20, 0.0)
    one.offer(rows("a.n " * 3, 20), 0.0, FULL)
    sent = pa.array([None] * 15 + [0.0] * 5, pa.float64())
    one.give_back(replace(taken, sent=sent, unsure=pc.fill_null(sent, math.inf)), 0.1)

    assert shed(one.expire(0.2, FULL)) == [12, 13, 14]
    assert shed(one.expire(0.3, FULL)) == []
    assert drained(one, 0.3) == [*range(12), *range(15, 23)]


def test_a13_no_more_bytes_are_shed_than_are_too_many():
    """
    A13, A26: rows leave until the others fit, to the byte.
    """
    four = rows("a.l " * 4, data=b"x" * 3000)
    (size, *_) = sizes(four).to_pylist()
    one = admission(replace(SHED, queue_bytes=3 * size))
    one.overload.pushed_back(None, 0.0)

    assert shed(one.offer(four, 0.0, FULL)) == [3]


def test_a13_the_lowest_class_goes_first():
    """
    A13: normal rows are shed only when no non-critical one is left.
    """
    one = admission(BOTH)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.n b.l " * 10), 0.0, FULL)
    found = one.offer(rows("c.c " * 12, 20), 0.0, FULL)

    assert shed(found) == [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19]  # the two newest normal ones


def test_a26_reasons():
    """
    A26: rows above the queue's are `MaxConcurrentRequests`, bytes alone `MaxMemoryUsage`.
    """
    rules = replace(SHED, queue_bytes=10_000)
    one = admission(rules)
    one.overload.pushed_back(None, 0.0)
    found = one.offer(rows("a.l " * 4, data=b"x" * 3000), 0.0, FULL)
    left = one.waiting
    found += one.offer(rows("a.l " * 20, 4), 0.0, FULL)

    assert [each.reason for each in found] == ["MaxMemoryUsage", "MaxConcurrentRequests"]
    assert left == 3


def test_a26_too_much_cpu_is_push_back():
    """
    A26: of all streams; `MaxCpuUsage`, if a row's own stream does not push back; and forgotten
    after the last second of push-back.
    """
    one = admission(SHED)
    two = of_streams(rows("a.l b.l " * 12), a=0, b=1)
    one.overload.busy(0.0)
    found = one.offer(two.slice(0, 21), 1.0, FULL)
    one.overload.busy(2.0)
    one.overload.pushed_back(0, 2.0)
    found += one.offer(two.slice(21, 2), 2.0, FULL)
    one.overload.busy(5.0)
    found += one.offer(two.slice(23, 1), 6.1, FULL)

    assert [(shed([each]), each.reason) for each in found] == [
        ([20], "MaxCpuUsage"),
        ([22], "MaxConcurrentRequests"),
        ([21], "MaxCpuUsage"),
    ]


def test_a24_shed_rows_leave_gaps():
    """
    A24: what is left of a lane keeps its order.
    """
    one = admission(SHED)
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.l a.n a.l a.n " * 6), 0.0, FULL)
    lane = drained(one, piece=1)

    assert one.shed == 4
    assert lane == sorted(lane)


def test_i3_default_rules_shed_nothing():
    """
    A18, I3: whatever happens, a full queue stops the iterator.
    """
    one = admission(rules_of(queue_size=20))
    one.overload.pushed_back(None, 0.0)

    assert one.offer(rows("a.l " * 500), 0.0, FULL) == []
    assert not one.wants_rows(0.0, FULL)
    assert (one.shed, one.waiting) == (0, 500)


# ── a stream that is full ────────────────────────────────────────────────────────────────────


def full(text, unsure=math.inf, rules=SHED, **places):
    """Rows of which the first five were sent at 0, and refused as their stream is full."""
    one = admission(rules, throttle=(throttle := Throttle()))
    offered = rows(text)
    one.offer(of_streams(offered, **places) if places else offered, 0.0, IDLE)
    taken = one.take(5, 0.0)
    throttle.refused(10077, "a", 1.0, 8.0)
    one.overload.pushed_back(places.get("a"), 9.0)
    sent = pa.repeat(0.0, 5)
    one.give_back(replace(taken, sent=sent, unsure=pa.repeat(unsure, 5)), 8.0)
    return one


def test_a13_rows_that_find_no_room_in_time_are_shed():
    """
    A13, I2: at three quarters of `publishTimeout`, and with them all that waits for the same
    stream, parked or not, as far as it may be shed; not what waits for another.
    """
    one = full("a.l a.l a.c a.n a.l " * 2 + "b.l " * 5, a=0, b=1)
    early = one.give_up(8.1, 11.0)
    (found,) = one.give_up(8.1, 10.0)

    assert early == []
    assert found.reason == "PublishTimeout"
    assert numbers(found.rows) == [0, 1, 4, 5, 6, 9]
    assert one.give_up(8.1, 10.0) == []
    assert sorted(drained(one, 9.5)) == [2, 3, 7, 8, *range(10, 15)]


def test_a13_what_may_be_stored_is_not_given_up():
    """
    A13, I1: nor what waits for the stream, as none of its rows that may go is late.
    """
    one = full("a.l " * 8, unsure=0.0)

    assert one.give_up(8.1, 10.0) == []
    assert one.waiting == 8


def test_a13_of_streams_that_push_back_no_more_nothing_is_given_up():
    """
    A12, A13: a subject at its own limit is no push-back.
    """
    one = full("a.l " * 8)

    assert one.give_up(10.1, 10.0) == []
    assert one.waiting == 8


def test_i3_default_rules_give_nothing_up():
    """
    I3: with `block` the task fails.
    """
    one = full("a.l " * 8, rules=rules_of(queue_size=20))

    assert one.give_up(8.1, 10.0) == []
    assert one.waiting == 8
