"""Subjects at their limit: how long they wait, how many of their rows are tried."""

from __future__ import annotations

from pyspark_jetstream.outbox import limits as subjectlimits
from pyspark_jetstream.outbox.limits import SubjectLimits


def test_a_subject_is_tried_with_few_rows_at_first():
    """
    Twice as many each time that nothing is refused, then all; from one again after a refusal.
    """
    limits = SubjectLimits()
    assert limits.tries("a") is None
    limits.reached("a", 0.0)
    first = [limits.tries("a") for _ in range(4)]
    limits.reached("a", 9.0)
    again = [limits.tries("a") for _ in range(12)]

    assert first == [1, 2, 4, 8]
    assert again == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, None]
    assert len(limits) == 0


def test_pauses_grow_while_refusals_follow_each_other():
    """
    Up to a second; a subject that was well for five seconds begins with the shortest.
    """
    limits, now, pauses = SubjectLimits(), 0.0, []
    for _ in range(5):
        until = limits.reached("a", now)
        pauses.append(round(until - now, 9))
        assert limits.is_waiting("a", until - 0.01) and not limits.is_waiting("a", until)
        now = until + 0.1
    long_ago = limits.reached("a", now + 10.0) - (now + 10.0)

    assert pauses == sorted(pauses) and pauses[-1] == 1.0 > pauses[0]
    assert round(long_ago, 9) == pauses[0]


def test_of_many_subjects_at_their_limit_the_latest_are_known(monkeypatch):
    """
    I7: so many, never more; one that is paused is not forgotten for another, so each waits longer
    and longer as long as there is room.
    """
    monkeypatch.setattr(subjectlimits, "_MAX", 3)
    one = SubjectLimits()
    first = [one.reached(subject, 100.0) - 100.0 for subject in "abcd"]
    known = list(one._known)
    again = one.reached("a", 101.0) - 101.0
    for number in range(1000):
        one.reached(f"s{number}", 102.0 + number)

    assert first == [first[0]] * 4
    assert known == ["a", "b", "c"]
    assert again > first[0]
    assert list(one._known) == ["s997", "s998", "s999"]
    assert one.reached("s999", 1102.0) - 1102.0 == again
