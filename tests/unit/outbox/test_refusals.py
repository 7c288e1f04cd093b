"""Subjects that the server refuses: how long they wait, how many of their rows are tried."""

import math

import pyarrow as pa

from pyspark_jetstream.outbox.throttling.throttle import REFUSALS, Refusals
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason


def refuse(one, subject, now, err_code=10077, stream="S"):
    """There is no room; when it is tried again."""
    return one.refuse(subject, (err_code, "full", err_code != 10167), stream, now + 0.5, now)


def waiting(one, now):
    mask = one.mask(pa.array(["a", "b"]), now)
    return None if mask is None else mask.to_pylist()


def test_a_subject_is_tried_with_few_rows_at_first():
    """Twice as many each time that nothing is refused; from one after a refusal."""
    one = Refusals()
    assert one.tries("a", 0.0) is None
    refuse(one, "a", 0.0)
    first = [one.tries("a", 1.0) for _ in range(4)]
    assert waiting(one, 1.01) == [True, False]
    assert waiting(one, 1.06) is None
    refuse(one, "a", 9.0)
    again = [one.tries("a", 10.0) for _ in range(12)]

    assert first == [1, 2, 4, 8]
    assert again == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, None]
    assert len(one) == 0


def test_waits_grow_while_refusals_follow_each_other():
    """Up to a second; a subject that was well for five seconds begins with the shortest."""
    one, now, waits = Refusals(), 0.0, []
    for _ in range(5):
        until = refuse(one, "a", now)
        waits.append(round(until - now, 9))
        assert one.is_waiting("a", until - 0.01) and not one.is_waiting("a", until)
        assert one.next_end(now) == until
        now = until + 0.1
    long_ago = refuse(one, "a", now + 10.0) - (now + 10.0)

    assert waits == sorted(waits) and waits[-1] == 1.0 > waits[0]
    assert round(long_ago, 9) == waits[0]
    assert one.next_end(now + 20.0) == math.inf


def test_the_account_and_the_server_hold_all_subjects_and_429_none():
    """§4.5: what has no room for any holds any; a busy stream's lane waits by itself."""
    for err_code, found in ((10002, [True, True]), (10023, [True, True]), (10167, None)):
        one = Refusals()
        refuse(one, "a", 0.0, err_code)

        assert waiting(one, 0.1) == found
        assert one.get("a").reason is REFUSALS[err_code]
        assert (one.get("b") is None) == (found is None)
    assert Refusals().refuse("a", (10158, "?", False), "S", 3.0, 0.0) == 3.0


def test_of_many_subjects_at_their_limit_the_latest_are_known(monkeypatch):
    """I7: so many, never more; one that waits is not forgotten for another."""
    monkeypatch.setattr(f"{Refusals.__module__}._MAX_WAITING", 3)
    one = Refusals()
    first = [refuse(one, subject, 100.0) - 100.0 for subject in "abcd"]
    known = list(one._known)
    again = refuse(one, "a", 101.0) - 101.0
    for number in range(1000):
        refuse(one, f"s{number}", 102.0 + number)

    assert first == [first[0]] * 4
    assert known == ["a", "b", "c"]
    assert again > first[0]
    assert list(one._known) == ["s997", "s998", "s999"]


def test_time_and_number_of_limits_are_counted_by_stream():
    """However many subjects are refused at one time; again after five seconds without."""
    one = Refusals()
    for subject in "abc":
        refuse(one, subject, 0.0)
    first = one.times.counted(1.0)
    refuse(one, "a", 2.0)
    refuse(one, "a", 2.0, 10002, "T")
    refuse(one, "b", 20.0)
    later = one.times.counted(30.0)

    quota, group = Reason.TopicProduceQuotaExceeded, Reason.ResourceGroupProduceQuotaExceeded
    assert first == [(quota, "S", 250, 1)]
    assert later == [(quota, "S", 750, 1), (group, "T", 500, 1)]
    assert one.times.counted(31.0) == []
