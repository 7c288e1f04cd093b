"""Which rows go next, which wait, which are shed; no clock, no server."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.admission import AUTO_ROWS, Admission, Load, Rules, Shed, queue_rows
from pyspark_jetstream.errors import (
    ProducerThrottledError,
    PublishTimeoutError,
    QueueTimeoutError,
)
from pyspark_jetstream.messages import Messages
from pyspark_jetstream.priority import Priority
from pyspark_jetstream.throttle import Throttle
from pyspark_jetstream.throttlewire import Reason, ThrottleProducer

from . import lanekit
from .pressurekit import SEED

CRITICAL, NORMAL, NON_CRITICAL = Priority
IDLE, FULL = Load(0, 64), Load(64, 64)
SHED = Rules(queue_size=20, sheddable=frozenset({NON_CRITICAL}))
BOTH = Rules(queue_size=20, sheddable=frozenset({NORMAL, NON_CRITICAL}))
OF = {"c": CRITICAL, "n": NORMAL, "l": NON_CRITICAL}


def rows(text: str, first: int = 0, data: bytes | None = None) -> Messages:
    """`a.c b` are rows `first`…: a critical one to a, a normal one to b."""
    words = [word.partition(".") for word in text.split()]
    priorities = [OF[priority or "n"] for _, _, priority in words]
    found = lanekit.messages(
        [subject for subject, _, _ in words],
        None if data is None else [data] * len(words),
        first=first,
    )
    plain = set(priorities) <= {NORMAL}
    return replace(found, priorities=None if plain else pa.array(priorities, pa.int8()))


def admission(rules: Rules = Rules(), **rest) -> Admission:  # noqa: B008
    return Admission(rules, rest.get("throttle", Throttle()))


def numbers(messages: Messages | None) -> list[int]:
    return [] if messages is None else messages.rows.to_pylist()


def drained(one: Admission, now: float = 0.0, piece: int = 1) -> list[int]:
    """The numbers of all rows that may go, taken in pieces."""
    found: list[int] = []
    while (part := numbers(one.take(piece, now))) != []:
        found += part
    return found


def shed(found: list[Shed]) -> list[int]:
    return [number for each in found for number in numbers(each.messages)]


def pause(throttle: Throttle, subject: str, pause_s: float, now: float = 0.0, **rest) -> None:
    reason = rest.get("reason", Reason.TopicProduceQuotaExceeded)
    throttle.command(ThrottleProducer(1, reason, pause_s, subject), now)


# ── in and out ───────────────────────────────────────────────────────────────────────────────


def test_plain_blocks_go_as_they_came():
    """
    A8: without priorities and pauses a block is handed on untouched.
    """
    one = admission()
    first, second = rows("a b a"), rows("b", 3)
    one.offer(first, 0.0, IDLE)
    one.offer(second, 0.0, IDLE)

    assert one.take(100, 0.0) is first
    assert one.take(100, 0.0) is second
    assert one.take(100, 0.0) is None


def test_a8_what_fits_is_not_reordered():
    """
    A8: rows for which there is room go in the order of their arrival, whatever their priorities.
    """
    one = admission()
    one.offer(rows("a.l b.n c.c"), 0.0, IDLE)

    assert numbers(one.take(64, 0.0)) == [0, 1, 2]


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
    one = admission(Rules(queue_size=20))
    one.offer(rows("a.c " * 7 + "b.n " * 6 + "c.l " * 6), 0.0, FULL)
    before = one.wants_rows(0.0, FULL)
    one.offer(rows("d", 19), 0.0, FULL)

    assert (before, one.wants_rows(0.0, FULL)) == (True, False)
    assert one.counts() == {CRITICAL: 7, NORMAL: 7, NON_CRITICAL: 6}


def test_a9_bytes_are_a_capacity_too():
    """
    A9: so do bytes.
    """
    one = admission(Rules(queue_bytes=10_000))
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


# ── order ────────────────────────────────────────────────────────────────────────────────────


def test_rule_1_critical_rows_overtake_other_lanes():
    """
    §7.1: at once, also those that come in a later block, when part of an earlier one is sent.
    """
    one = admission()
    one.offer(rows("a b a b"), 0.0, FULL)
    sent = numbers(one.take(1, 0.0))
    one.offer(rows("c.c d.l", 4), 0.0, FULL)

    assert sent == [0]
    assert drained(one) == [4, 1, 2, 3, 5]


def test_rule_2_a_critical_row_drags_its_own_lane():
    """
    §7.2: it never overtakes an older row of its own subject; they go first, as urgent as it is.
    """
    one = admission()
    one.offer(rows("b a.l b a.n b a.c"), 0.0, FULL)

    assert drained(one) == [1, 3, 5, 0, 2, 4]


def test_rule_3_behind_its_last_critical_row_a_lane_is_what_it_was():
    """
    §7.3: the rest of the lane goes with its own class.
    """
    one = admission()
    one.offer(rows("a.c a.l b.n a.l b.n"), 0.0, FULL)

    assert drained(one) == [0, 2, 4, 1, 3]


def test_rule_4_lanes_of_a_class_take_turns():
    """
    §7.4: one hot critical subject does not have its class alone.
    """
    one = admission()
    one.offer(rows("a.c a.c a.c a.c b.c c.c b.c d.n"), 0.0, FULL)

    assert drained(one, piece=7) == [0, 4, 5, 1, 6, 2, 3, 7]


def test_rule_5_inherited_urgency_protects_nobody():
    """
    A14, §7.5: a non-critical row ahead of a critical one of its lane is shed like any other, and
    the survivors keep their order.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.n " * 18), 0.0, FULL)
    left = shed(one.offer(rows("b.l b.c b.l b.c", 18), 0.1, FULL))

    assert left == [18, 20]
    assert drained(one, 0.1, piece=2)[:2] == [19, 21]


def test_rule_6_a_throttle_outranks_priority():
    """
    §7.6: a paused lane does not go, however critical; others do.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 2.0)
    one.offer(rows("a.c b.n a.n c.l"), 0.0, FULL)
    meanwhile = drained(one, 1.0)

    assert meanwhile == [1, 3]
    assert drained(one, 2.0) == [0, 2]


# ── pauses ───────────────────────────────────────────────────────────────────────────────────


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
    rules = Rules(queue_size=20, parked_bytes=20_000)
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
    throttle.refused(10077, "a", (), 1.0, 0.1)
    refused = sent.take(pa.array([3, 0]))
    one.give_back(replace(refused, sent=pa.array([0.0, 0.0])), 0.1)
    meanwhile = drained(one, 0.2)

    assert numbers(sent) == [0, 1, 2, 3]
    assert meanwhile == [4]
    assert drained(one, 1.1) == [0, 3, 5]
    assert one.offered + one.given_back == one.taken == 8


def test_b11_the_next_deadline():
    """
    B11: the end of the earliest window wakes an idle writer; without rows nothing does.
    """
    one = admission(Rules(queue_timeout_s=7.0), throttle=(throttle := Throttle()))
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
    rules = Rules(publish_timeout_s=10.0, throttle_max_wait_s=60.0, fail_fast=fail_fast)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("b a"), 0.0, FULL)
    one.expire(0.5)
    failed = None
    now = 0.5
    while failed is None:
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
    rules = Rules(publish_timeout_s=10.0, fail_fast=True)
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
    one = admission(Rules(publish_timeout_s=30.0), throttle=(throttle := Throttle()))
    one.offer(rows("a b"), 0.0, FULL)
    first = one.take(1, 0.0)
    now = 0.0

    with pytest.raises(error) as raised:
        while now < 100:
            throttle.refused(10077, "a", (), paused_s, now)
            one.give_back(replace(first, sent=pa.array([0.0])), now)
            one.expire(now)
            now += 1.0
            first = one.take(1, now)
            assert numbers(first) == [0]
    assert now == 30.0
    assert raised.value.subject == "a"


def test_b16_is_throttled():
    """
    B16: of a subject; or of the writer, if any of its lanes is.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    before = one.is_throttled(0.0)
    one.offer(rows("a b"), 0.0, FULL)

    assert not before
    assert one.is_throttled(0.0)
    assert (one.is_throttled(0.0, "a"), one.is_throttled(0.0, "b")) == (True, False)
    assert not one.is_throttled(5.0)


# ── overload ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pushed_back", [True, False])
@pytest.mark.parametrize("at_limit", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_a12_overload_is_all_three(full, at_limit, pushed_back):
    """
    A12: a full queue, a full window, and push-back lately; a full queue alone is a healthy batch.
    """
    one = admission(SHED)
    if pushed_back:
        one.pushed_back(0.0)
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


def test_a12_push_back_is_forgotten():
    """
    A12: after `overloadWindow`.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.l " * 30), 1.1, FULL)

    assert one.shed == 0


def test_a13_a_higher_newcomer_takes_the_place_of_the_newest_of_the_lowest():
    """
    A13 (TaskQueueTests): the queue is full of non-critical rows; a critical one comes.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.l b.l " * 10), 0.0, FULL)
    wants = one.wants_rows(0.0, FULL)
    found = one.offer(rows("c.c", 20), 0.0, FULL)

    assert wants
    assert [(numbers(each.messages), each.reason) for each in found] == [
        ([19], "MaxConcurrentRequests")
    ]
    assert found[0].messages.priorities.to_pylist() == [NON_CRITICAL]
    assert drained(one)[0] == 20


def test_a13_a_newcomer_that_is_not_higher_is_shed_itself():
    """
    A13 (TaskQueueTests): the queue is full of its equals.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.l " * 20), 0.0, FULL)

    assert shed(one.offer(rows("b.l", 20), 0.0, FULL)) == [20]


def test_without_order_each_row_goes_by_its_own_priority():
    """
    §7, publishOrder=none: no row drags another; of one priority the first that came goes first.
    """
    one = admission(Rules(by_lane=False))
    one.offer(rows("a.n a.c b.l a.n b.c"), 0.0, FULL)

    assert drained(one, piece=1) == [1, 4, 0, 3, 2]


def test_a12_rows_above_the_capacity_make_room_when_the_server_pushes_back():
    """
    A12, A13: a block may exceed the capacity; its rows above it are shed as soon as there is an
    overload, whether another block comes or not.
    """
    one = admission(Rules(queue_size=20, sheddable=frozenset({NON_CRITICAL})))
    before = one.offer(rows("a.l " * 50), 0.0, FULL), one.expire(0.1, FULL)
    one.pushed_back(0.2)
    idle = one.expire(0.2, IDLE)
    (shed,) = one.expire(0.2, FULL)

    assert before == ([], [])
    assert idle == []
    assert numbers(shed.messages) == list(range(20, 50))
    assert drained(one) == list(range(20))


def test_a13_what_may_not_be_shed_blocks_the_iterator():
    """
    A13: no row is sheddable, so none is shed, and no more are asked for.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.n " * 20), 0.0, FULL)
    found = one.offer(rows("b.n c.c", 20), 0.0, FULL)

    assert found == []
    assert not one.wants_rows(0.0, FULL)
    assert one.waiting == 22


def test_a13_the_lowest_class_goes_first():
    """
    A13: normal rows are shed only when no non-critical one is left.
    """
    one = admission(BOTH)
    one.pushed_back(0.0)
    one.offer(rows("a.n b.l " * 10), 0.0, FULL)
    found = one.offer(rows("c.c " * 12, 20), 0.0, FULL)

    assert shed(found) == [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19]  # the two newest normal ones


def test_a26_reasons():
    """
    A26: rows above the queue's are `MaxConcurrentRequests`, bytes alone `MaxMemoryUsage`.
    """
    rules = replace(SHED, queue_bytes=10_000)
    one = admission(rules)
    one.pushed_back(0.0)
    found = one.offer(rows("a.l " * 4, data=b"x" * 3000), 0.0, FULL)
    left = one.waiting
    found += one.offer(rows("a.l " * 20, 4), 0.0, FULL)

    assert [each.reason for each in found] == ["MaxMemoryUsage", "MaxConcurrentRequests"]
    assert left == 3


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
    assert [(numbers(each.messages), each.reason) for each in found] == [([0, 1], "QueueTimeout")]
    with pytest.raises(QueueTimeoutError, match=r"publish to 'b': row 3: .* 5\.0s"):
        one.expire(8.0)


def test_a15_without_a_timeout_rows_wait():
    """
    A15: the default is to wait without end.
    """
    one = admission()
    one.offer(rows("a.l"), 0.0, FULL)

    assert one.expire(1e9) == []
    assert one.next_deadline(1e9) == math.inf


def test_a19_critical_rows_are_never_sheddable():
    """
    A19, I2: not even on request.
    """
    with pytest.raises(ValueError, match="never shed"):
        Rules(sheddable=frozenset({CRITICAL}))


def test_a24_shed_rows_leave_gaps():
    """
    A24: what is left of a lane keeps its order.
    """
    one = admission(SHED)
    one.pushed_back(0.0)
    one.offer(rows("a.l a.n a.l a.n " * 6), 0.0, FULL)
    lane = drained(one, piece=1)

    assert one.shed == 4
    assert lane == sorted(lane)


def test_i3_default_rules_shed_nothing():
    """
    A18, I3: whatever happens, a full queue stops the iterator.
    """
    one = admission(Rules(queue_size=20))
    one.pushed_back(0.0)

    assert one.offer(rows("a.l " * 500), 0.0, FULL) == []
    assert not one.wants_rows(0.0, FULL)
    assert (one.shed, one.waiting) == (0, 500)


def test_a28_repr_shows_the_state():
    """
    A28: what waits, by priority, what is parked, what was shed.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    one.offer(rows("a.c b.n c.l c.l"), 0.0, FULL)
    one.take(1, 0.0)

    assert repr(one) == "<Admission 1 critical, 0 normal, 2 noncritical; 1 parked; 0 shed>"


def test_a_large_queue_in_pieces():
    """
    Ten thousand rows of a thousand lanes, taken in pieces: each once, lanes in order, critical
    ones and what they drag first.
    """
    rng = random.Random(1)
    one = admission()
    text = " ".join(f"s{rng.randrange(1000)}.{rng.choice('cnnnl')}" for _ in range(10_000))
    offered = rows(text)
    one.offer(offered, 0.0, FULL)
    order = drained(one, piece=500)

    assert sorted(order) == list(range(10_000))
    check_lanes(order, offered)
    urgent = [row for row, each in enumerate(offered.priorities.to_pylist()) if each == CRITICAL]
    last = {offered.codes[row]: row for row in urgent}
    ahead = order[: max(map(order.index, urgent)) + 1]
    assert all(row <= last.get(offered.codes[row], -1) for row in ahead)


def check_lanes(order: list[int], messages: Messages) -> None:
    """I5: no lane is reordered."""
    lanes = defaultdict(list)
    codes = list(messages.codes)
    for row in order:
        lanes[codes[row]].append(row)
    assert all(lane == sorted(lane) for lane in lanes.values())


@pytest.mark.parametrize("seed", range(SEED, SEED + 25))
def test_random_walk(seed):
    """
    Random arrivals, sends, acks, refusals and pauses: I1 nothing is lost or doubled, I2 no
    critical row is shed, I3 nothing is by default, I5 lanes keep their order, I6 a paused lane
    sends nothing, I7 what waits is bounded.
    """
    rng = random.Random(seed)
    sheddable = rng.choice([frozenset(), {NON_CRITICAL}, {NORMAL, NON_CRITICAL}])
    rules = Rules(
        queue_size=rng.choice([20, 50, "sqrt"]),
        queue_bytes=rng.choice([20_000, 1 << 20]),
        parked_bytes=15_000,
        sheddable=frozenset(sheddable),
        publish_timeout_s=1e9,
        throttle_max_wait_s=1e9,
    )
    throttle = Throttle()
    one = Admission(rules, throttle)
    lanes = "abcdef"
    subject, priority, block = {}, {}, 0
    in_flight: dict[int, Messages] = {}
    done: list[int] = []  # acked
    gone: Counter[int] = Counter()
    now, total = 0.0, 0
    sent: dict[str, list[int]] = defaultdict(list)

    def drop(found: list[Shed]) -> None:
        for each in found:
            for row in numbers(each.messages):
                assert priority[row] in sheddable, seed
                gone[row] += 1

    def check() -> None:
        assert one.offered + one.given_back == one.taken + one.shed + one.waiting, seed
        assert one.waiting + len(in_flight) + len(done) + sum(gone.values()) == total, seed
        limit = queue_rows(rules.queue_size, 30)
        assert one._queued[0] + one._parked[0] < limit + 15_000 / 256 + block + 31, seed

    for _ in range(300):
        now += rng.choice([0.0, 0.05, 0.4])
        load = Load(len(in_flight), 30)
        event = rng.random()
        if event < 0.35 and one.wants_rows(now, load):
            words = [(rng.choice(lanes), rng.choice("cnnll")) for _ in range(rng.randint(1, 25))]
            offered = rows(" ".join(f"{lane}.{letter}" for lane, letter in words), total)
            for row, (lane, letter) in enumerate(words, total):
                subject[row], priority[row] = lane, OF[letter]
            total += len(words)
            block = max(block, len(words))
            drop(one.offer(offered, now, load))
        elif event < 0.7:
            part = one.take(rng.randint(0, 30 - len(in_flight)), now)
            for place, row in enumerate(numbers(part)):
                lane = subject[row]
                assert throttle.state(lane, now) is None, seed
                older = [each for each in in_flight if subject[each] == lane]
                assert all(each < row for each in older), seed
                sent[lane].append(row)
                in_flight[row] = part.slice(place, 1)
        elif event < 0.85 and in_flight:
            # In the order of each lane; what else a server may do is the window's to bear.
            for lane in rng.sample(lanes, rng.randint(1, len(lanes))):
                mine = sorted(row for row in in_flight if subject[row] == lane)
                for row in mine[: rng.randint(0, 9)]:
                    del in_flight[row]
                    done.append(row)
        elif event < 0.9 and in_flight:
            # A lane at its limit: all it has on the wire is refused, and goes again later.
            lane = subject[rng.choice(sorted(in_flight))]
            refused = [row for row in in_flight if subject[row] == lane]
            rng.shuffle(refused)
            one.pushed_back(now)
            throttle.refused(10077, lane, (), 0.3, now)
            messages = Messages.joined([in_flight.pop(row) for row in refused])
            one.give_back(replace(messages, sent=pa.repeat(now, len(refused))), now)
            sent[lane] = [row for row in sent[lane] if row not in refused]
        else:
            filter = rng.choice([*lanes, ">"])
            pause(throttle, filter, rng.choice([0.0, 0.5, 1.0]), now)
        check()
    now += 100.0
    for row in drained(one, now, piece=7):
        sent[subject[row]].append(row)
        done.append(row)
    done += in_flight
    in_flight.clear()

    check()
    assert sorted([*done, *gone.elements()]) == list(range(total)), seed
    assert max(gone.values(), default=0) <= 1
    assert all(lane == sorted(lane) for lane in sent.values()), seed
