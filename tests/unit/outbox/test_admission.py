"""
What the walk beside a model has not (`test_admission_walk`): blocks that go untouched or have no
priorities beside some that have, sizes by name, and the errors of pauses.
"""

import gc
import sys
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ProducerThrottledError
from pyspark_jetstream.outbox.admission import QUEUE_ROWS, Admission, Rules
from pyspark_jetstream.outbox.messages import Messages, RowQueue
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer

from ...kits import lanes
from ...kits.options import parse_sink, rules_of

CRITICAL, NORMAL, NON_CRITICAL = Priority
IDLE, FULL = False, True
OF = {"c": CRITICAL, "n": NORMAL, "l": NON_CRITICAL}


def rows(text: str, first: int = 0, data: bytes | None = None) -> Messages:
    """`a.c b` are rows `first`…: a critical one to a, a normal one to b."""
    words = [word.partition(".") for word in text.split()]
    priorities = [OF[priority or "n"] for _, _, priority in words]
    found = lanes.messages(
        [subject for subject, _, _ in words],
        None if data is None else [data] * len(words),
        first=first,
    )
    plain = set(priorities) <= {NORMAL}
    return replace(found, priorities=None if plain else pa.array(priorities, pa.int8()))


def admission(rules: Rules = rules_of(), **rest) -> Admission:  # noqa: B008
    return Admission(rules, rest.get("throttle", Throttle()))


def numbers(messages: Messages | None) -> list[int]:
    return [] if messages is None else messages.rows.to_pylist()


def pause(throttle: Throttle, subject: str, pause_s: float, now: float = 0.0, **rest) -> None:
    reason = rest.get("reason", Reason.TopicProduceQuotaExceeded)
    throttle.table.command(ThrottleProducer(1, reason, pause_s, subject), now)


def test_plain_blocks_go_as_they_came():
    """A8: without priorities and pauses a block is handed on untouched."""
    one = admission()
    first, second = rows("a b a"), rows("b", 3)
    one.offer(first, 0.0, IDLE)
    one.offer(second, 0.0, IDLE)

    for block in (first, second):
        taken = one.take(100, 0.0)
        assert (taken.data, taken.subject, taken.rows) == (block.data, block.subject, block.rows)
        assert taken.data.buffers()[2].address == block.data.buffers()[2].address  # untouched
    assert one.take(100, 0.0) is None


@pytest.mark.parametrize(("size", "expected"), [(QUEUE_ROWS, 10_000), (5, 20), (500, 500)])
def test_a11_capacities(size, expected):
    """A11: one Arrow batch, or a number; 20 at least."""
    assert parse_sink({"queueSize": str(size)}).rules.queue_size == expected


def test_b14_a_pause_longer_than_a_row_may_wait():
    """B14: a row waits up to `throttleMaxWait`, from the beginning of the pause on."""
    rules = rules_of(throttle_max_wait_s=60.0)
    one = admission(rules, throttle=(throttle := Throttle()))
    one.offer(rows("b a"), 0.0, FULL)
    one.expire(0.5)
    now = 0.5
    with pytest.raises(ProducerThrottledError) as raised:
        while now < 100:
            pause(throttle, "a", 9.9 if now < 5 else 30.0, now)
            one.expire(now)
            now += 1.0

    assert now == 60.5
    assert (raised.value.subject, raised.value.reason) == ("a", "TopicProduceQuotaExceeded")


def test_rows_that_were_paused_for_too_long_are_given_up():
    """With `onThrottleTimeout=dead-letter` each row leaves after `throttleMaxWait`."""
    rules = rules_of(throttle_max_wait_s=60.0, buries_paused=True)
    one = admission(rules, throttle=(throttle := Throttle()))
    pause(throttle, "a", 500.0)
    one.offer(rows("a b a.c"), 0.0, FULL)
    one.offer(rows("a", first=3), 30.0, FULL)

    assert one.expire(59.9) == []
    assert numbers(one.take(9, 59.9)) == [1]
    (leaving,) = one.expire(60.0)
    assert (numbers(leaving.rows), leaving.reason) == ([0, 2], "ThrottleTimeout")
    assert (one.waiting, one.next_deadline(60.1)) == (1, 90.0)
    (leaving,) = one.expire(90.0)
    assert numbers(leaving.rows) == [3]


def test_i6_a_look_at_paused_rows_costs_the_same_however_many_subjects_wait():
    """I6: a turn takes as many calls with 50,000 paused subjects as with 50."""
    rules = rules_of(throttle_max_wait_s=600.0, held_bytes=1 << 40)

    def calls(subjects):
        one = admission(rules, throttle=(throttle := Throttle()))
        pause(throttle, "*", 9.0)
        pause(throttle, "b.*", 9.0)
        one.offer(rows(" ".join(f"s{number}" for number in range(subjects))), 0.0, FULL)
        throttle.refusals.refuse("c", (10077, "full", True), "S", 0.0, 0.0)
        one.expire(0.0, FULL)
        found = 0

        def count(frame, event, argument):
            nonlocal found
            found += event in ("call", "c_call")

        gc.disable()  # what others left is nothing that a turn asks
        sys.setprofile(count)
        try:
            for turn in range(1, 21):
                pause(throttle, "*", 9.0, turn / 10)
                one.expire(turn / 10, FULL)
                assert one.take(9, turn / 10) is None
                one.next_deadline(turn / 10)
                one.wants_rows(turn / 10, FULL)
        finally:
            sys.setprofile(None)
            gc.enable()
        return found

    few, many = calls(50), calls(50_000)
    assert many == few
    assert few < 20 * 1000


def test_where_no_row_may_make_room_none_is_copied():
    """In an overload it is looked for in each turn, while the queue may hold megabytes."""
    queue = RowQueue(by_subject=True)
    queue.append(replace(rows("a b"), since=pa.array([0.0, 0.0])))
    before = queue.merged()

    assert len(queue.remove(pa.array([False, False]))) == 0
    assert queue.merged() is before
    assert numbers(queue.remove(pa.array([True, False]))) == [0]
    assert numbers(queue.take(9)) == [1]
    assert (len(queue), queue.nbytes) == (0, 0)
