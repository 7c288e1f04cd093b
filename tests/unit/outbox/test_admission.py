"""Which rows go next: blocks as they came, lanes in their order, urgent rows first."""

from __future__ import annotations

from pyspark_jetstream.outbox.throttling.throttle import Throttle

from ...kits.admission import FULL, IDLE, SHED, admission, drained, numbers, pause, rows, shed
from ...kits.options import rules_of


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


def test_rule_1_critical_rows_overtake_other_lanes():
    """
    overload.md §7.1: at once, also those that come in a later block, when part of an earlier one is
    sent.
    """
    one = admission()
    one.offer(rows("a b a b"), 0.0, FULL)
    sent = numbers(one.take(1, 0.0))
    one.offer(rows("c.c d.l", 4), 0.0, FULL)

    assert sent == [0]
    assert drained(one) == [4, 1, 2, 3, 5]


def test_rule_2_a_critical_row_drags_its_own_lane():
    """
    overload.md §7.2: it never overtakes an older row of its own subject; they go first, as urgent
    as it is.
    """
    one = admission()
    one.offer(rows("b a.l b a.n b a.c"), 0.0, FULL)

    assert drained(one) == [1, 3, 5, 0, 2, 4]


def test_rule_3_behind_its_last_critical_row_a_lane_is_what_it_was():
    """
    overload.md §7.3: the rest of the lane goes with its own class.
    """
    one = admission()
    one.offer(rows("a.c a.l b.n a.l b.n"), 0.0, FULL)

    assert drained(one) == [0, 2, 4, 1, 3]


def test_rule_4_lanes_of_a_class_take_turns():
    """
    overload.md §7.4: one hot critical subject does not have its class alone.
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
    one.overload.pushed_back(None, 0.0)
    one.offer(rows("a.n " * 18), 0.0, FULL)
    left = shed(one.offer(rows("b.l b.c b.l b.c", 18), 0.1, FULL))

    assert left == [18, 20]
    assert drained(one, 0.1, piece=2)[:2] == [19, 21]


def test_rule_6_a_throttle_outranks_priority():
    """
    overload.md §7.6: a paused lane does not go, however critical; others do.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 2.0)
    one.offer(rows("a.c b.n a.n c.l"), 0.0, FULL)
    meanwhile = drained(one, 1.0)

    assert meanwhile == [1, 3]
    assert drained(one, 2.0) == [0, 2]


def test_without_order_each_row_goes_by_its_own_priority():
    """
    overload.md §7, publishOrder=none: no row drags another; of one priority the first that came
    goes first.
    """
    one = admission(rules_of(by_subject=False))
    one.offer(rows("a.n a.c b.l a.n b.c"), 0.0, FULL)

    assert drained(one, piece=1) == [1, 4, 0, 3, 2]


def test_a28_repr_shows_the_state():
    """
    A28: what waits, by priority, what is held, what was shed.
    """
    one = admission(throttle=(throttle := Throttle()))
    pause(throttle, "a", 5.0)
    one.offer(rows("a.c b.n c.l c.l"), 0.0, FULL)
    one.take(1, 0.0)

    assert repr(one) == "<Admission 1 critical, 0 normal, 2 noncritical; 1 held; 0 shed>"
