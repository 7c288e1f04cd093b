"""What a writer says when it begins, how long it holds its rows, and what it keeps for the next."""

from __future__ import annotations

import math

import pytest

from pyspark_jetstream.outbox.throttling.operators import LEAST_PATIENCE_S, PATIENCE_S, Operators
from pyspark_jetstream.outbox.throttling.throttle import PausedBy
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Active,
    Paused,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

QUOTA = Reason.TopicProduceQuotaExceeded
SERVER = Reason.BrokerProduceQuotaExceeded


def command(subject: str, pause_s: float, request_id: int = 1, reason: Reason = QUOTA) -> bytes:
    return ThrottleProducer(request_id, reason, pause_s, subject).encode()


def test_b7_a_writer_says_who_it_is_and_where():
    """
    B7: its first word is that of discovery, on `<throttleSubject>.active`.
    """
    operators = Operators("control", 7, 0.0)

    assert operators.listens == ("control", "control.7")
    assert operators.active == "control.active"
    assert understand(operators.announce(0.0)) == Producer(7, True, supports_rate=True)


def test_b7_rows_are_held_until_there_is_an_answer():
    """
    B7: until the server says that nobody listens, or for as long again as the first answer took, or
    until the patience is over; without a word nothing is held.
    """
    silent, alone, told = (Operators("control", 7, 0.0) for _ in range(3))
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
    """
    B7: the commands come before the answer; each has its receipt.
    """
    operators = Operators("control", 7, 0.0)
    operators.announce(0.0)
    said, receipt = operators.heard(command("orders.*", 1.2, 3), 0.01)
    answer = operators.heard(Active(1).encode(), 0.01)

    assert said.subject == "orders.*"
    assert understand(receipt) == Receipt(3, 7)
    assert answer == (None, None)
    assert operators.throttle.state("orders.eu", 0.03).until == pytest.approx(1.21)


def test_b7_the_next_task_keeps_what_this_one_was_told():
    """
    B7: operators' pauses with their ends and lifts, not refusals of the server, which say how it
    was then; and a later word counts there, too.
    """
    first = Operators("control", 7, 0.0)
    first.heard(command("orders.*", 60.0, 1), 1.0)
    first.heard(command("orders.eu", 0.0, 2), 2.0)
    first.heard(command(">", 3.0, 3, SERVER), 2.0)
    first.throttle.refused(10077, "full", 60.0, 2.0)
    second = Operators("control", 8, 10.0, first)
    pause = second.throttle.state("orders.us", 10.0)
    free = [second.throttle.state(subject, 10.0) for subject in ("orders.eu", "full", "other")]
    second.heard(command("orders.*", 0.0, 4), 11.0)
    third = Operators("control", 9, 12.0, second)

    assert (pause.source, pause.reason, pause.until) == (PausedBy.OPERATOR, QUOTA, 61.0)
    assert free == [None, None, None]
    assert understand(second.heard(command("a", 1.0, 5), 11.0)[1]) == Receipt(5, 8)
    assert third.throttle.state("orders.us", 12.0) is None
    assert first.throttle.state("orders.us", 12.0) is not None


def test_b7_whoever_listens_and_never_answers_holds_less_and_less():
    """
    B7: a monitor of all subjects is no controller; the first answer restores the patience.
    """
    held, before = [], None
    for _ in range(8):
        before = Operators("control", 7, 0.0, before)
        before.announce(0.0)
        held.append(before.next_deadline(0.0))
    before.heard(Active(0).encode(), 0.001)
    after = Operators("control", 7, 0.0, before)
    after.announce(0.0)

    assert held == [max(PATIENCE_S / 2**n, LEAST_PATIENCE_S) for n in range(8)]
    assert after.next_deadline(0.0) == PATIENCE_S


def test_b16_an_answer_to_discovery_says_what_is_paused():
    """
    B16: which subjects, of those it has sent to and those that wait, why, by whom, for how long.
    """
    operators = Operators("control", 7, 0.0)
    operators.sent(["orders.eu", "metrics"])
    operators.heard(command("orders.*", 2.0, 3), 0.0)
    operators.throttle.refused(10077, "full", 1.0, 0.0)
    _, data = operators.heard(DISCOVER, 0.5, [["full", "metrics"], ["orders.us"]])
    later = understand(operators.heard(DISCOVER, 5.0, [["full"]])[1])

    assert understand(data) == Producer(
        7,
        True,
        ("orders.eu", "metrics"),
        (
            Paused("orders.eu", QUOTA, 1.5, "orders.*", "operator", 3),
            Paused("full", QUOTA, 0.5, "full", "server", 0),
            Paused("orders.us", QUOTA, 1.5, "orders.*", "operator", 3),
        ),
        supports_rate=True,
    )
    assert later.throttled == ()


def test_b21_of_many_subjects_some_are_shown():
    """
    B21: the first 32 it has sent to.
    """
    operators = Operators("control", 7, 0.0)
    operators.sent(f"a.{number}" for number in range(20))
    operators.sent(f"b.{number}" for number in range(20))
    operators.sent(["c"])
    said = understand(operators.heard(DISCOVER, 0.0)[1])

    assert said.subjects == (
        *(f"a.{number}" for number in range(20)),
        *(f"b.{number}" for number in range(12)),
    )


def test_b4_what_says_nothing_is_counted():
    """
    B4: nonsense has no answer and no effect, be it on the control subject or where answers come.
    """
    operators = Operators("control", 7, 0.0)
    operators.announce(0.0)
    said = [operators.heard(data, 0.01) for data in (b"{", b"[]", b'{"type":"active"}')]

    assert said == [(None, None)] * 3
    assert operators.throttle.invalid == 3
    assert operators.holds(0.2)
