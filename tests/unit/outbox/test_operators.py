"""What a writer says when it begins, how long it holds its rows, and what it answers."""

import math

import pytest

from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    PATIENCE_S,
    Active,
    Operators,
    Paused,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

QUOTA = Reason.TopicProduceQuotaExceeded


def command(subject: str, pause_s: float, request_id: int = 1, reason: Reason = QUOTA) -> bytes:
    return ThrottleProducer(request_id, reason, pause_s, subject).encode()


def test_b7_a_writer_says_who_it_is_and_where():
    """B7: its first word is that of discovery, on `<throttleSubject>.active`."""
    operators = Operators("control", Producer(7, True), Throttle())

    assert operators.listens == ("control", "control.7")
    assert operators.active == "control.active"
    assert understand(operators.announce(0.0)) == Producer(7, True)


def test_b7_rows_are_held_until_there_is_an_answer():
    """B7: until nobody listens, or the answer is there, or the patience is over."""
    silent, alone, told = (Operators("control", Producer(7, True), Throttle()) for _ in range(3))
    assert not silent.holds(0.0)
    for each in (silent, alone, told):
        each.announce(1.0)
    alone.nobody()
    told.heard(Active(0).encode(), 1.01)
    told.heard(Active(0).encode(), 1.015)  # another controller

    assert not alone.holds(1.0)
    assert alone.next_deadline(1.0) == math.inf
    assert [told.holds(now) for now in (1.01, 1.019, 1.021)] == [True, True, False]
    assert silent.next_deadline(1.1) == 1.0 + PATIENCE_S
    assert [silent.holds(1.0 + PATIENCE_S - by) for by in (0.01, -0.01)] == [True, False]


def test_b7_what_is_in_force_is_there_when_rows_go():
    """B7: the commands come before the answer; each has its receipt."""
    operators = Operators("control", Producer(7, True), Throttle())
    operators.announce(0.0)
    receipt = operators.heard(command("orders.*", 1.2, 3), 0.01)
    answer = operators.heard(Active(1).encode(), 0.01)

    assert understand(receipt) == Receipt(3, 7)
    assert answer is None
    assert operators.throttle.pause("orders.eu", 0.03).pause_s == pytest.approx(1.18)


def test_b16_an_answer_to_discovery_says_what_is_paused():
    """B16: which subjects, why, by whom, for how long."""
    operators = Operators("control", Producer(7, True), Throttle())
    operators.sent(["orders.eu", "metrics"])
    operators.heard(command("orders.*", 2.0, 3), 0.0)
    operators.throttle.refusals.refuse("full", (10077, "full", True), "S", 0.0, 0.5)
    data = operators.heard(DISCOVER, 0.5, [["full", "metrics"], ["orders.us"]])
    later = understand(operators.heard(DISCOVER, 5.0, [["full"]]))

    assert understand(data) == Producer(
        7,
        True,
        ("orders.eu", "metrics"),
        (
            Paused("full", QUOTA, 0.25, "full", "server", 0),
            Paused("orders.eu", QUOTA, 1.5, "orders.*", "operator", 3),
            Paused("orders.us", QUOTA, 1.5, "orders.*", "operator", 3),
        ),
    )
    assert later.throttled == ()


def test_b21_of_many_subjects_some_are_shown():
    """B21: the first 32 it has sent to."""
    operators = Operators("control", Producer(7, True), Throttle())
    operators.sent(f"a.{number}" for number in range(20))
    operators.sent(f"b.{number}" for number in range(20))
    operators.sent(["c"])
    said = understand(operators.heard(DISCOVER, 0.0))

    assert said.subjects == (
        *(f"a.{number}" for number in range(20)),
        *(f"b.{number}" for number in range(12)),
    )


def test_b4_what_says_nothing_is_said_once(caplog):
    """B4: nonsense has no answer and no effect, wherever it comes."""
    operators = Operators("control", Producer(7, True), Throttle())
    operators.announce(0.0)
    said = [operators.heard(data, 0.01) for data in (b"{", b"[]", b'{"type":"active"}')]

    assert said == [None] * 3
    (line,) = (each.message for each in caplog.records)
    assert line.startswith("what somebody says on 'control' counts for nothing")
    assert operators.holds(0.2)
