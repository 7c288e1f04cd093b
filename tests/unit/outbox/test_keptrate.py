"""Buckets of tokens, and the pace at which rows go under a rate."""

from __future__ import annotations

import math
import random

import pytest

from pyspark_jetstream.outbox.messages import STORED_LESS
from pyspark_jetstream.outbox.throttling.keptrate import KeptRate, TokenBucket
from pyspark_jetstream.outbox.throttling.throttleprotocol import Kept, Rates, Reason

from ...kits.seeds import SEED

QUOTA = Reason.TopicProduceQuotaExceeded
MANY = 10**9


def pace(msgs: float | None = None, nbytes: float | None = None, phase: float = 0.0) -> KeptRate:
    """A pace that has its rates since 0."""
    one = KeptRate("a.*", QUOTA, phase, 0.0)
    one.keep(Rates(msgs, nbytes), 100.0, 0.0)
    return one


def sent(one: KeptRate, until: float, every_s: float = 0.01, size: int = 100) -> list[int]:
    """How many rows of a size go in each second, where there are always more."""
    seconds = [0] * math.ceil(until)
    for tick in range(round(until / every_s)):
        now = tick * every_s
        rows = one.room(MANY, size, now)
        if rows:
            one.go(rows, rows * (size + STORED_LESS), now)
            seconds[int(now)] += rows
    return seconds


# ── buckets ──────────────────────────────────────────────────────────────────────────────────


def test_tokens_come_back_at_the_rate():
    """
    Up to the burst; below zero as well.
    """
    bucket = TokenBucket(10.0, 5.0, 0.0)
    bucket.consume(25, 0.0)
    deep, later = bucket.tokens(0.0), bucket.tokens(1.0)
    bucket.consume(1, 100.0)
    taken = bucket.tokens(100.0)
    bucket.consume(-9, 100.0)

    assert (deep, later, taken) == (-20.0, -10.0, 4.0)
    assert bucket.tokens(100.0) == 5.0


def test_what_was_taken_meanwhile_has_not_spilled_over():
    """
    What comes back between two counts may be more than the burst; no deeper than the floor.
    """
    bucket = TokenBucket(10.0, 5.0, 0.0)
    bucket.consumed(12, 1.0)
    left = bucket.tokens(1.0)
    bucket.consumed(100, 1.0, floor=-30.0)

    assert left == 3.0
    assert bucket.tokens(1.0) == -30.0


@pytest.mark.parametrize(
    ("rate", "target", "wait_s"),
    [(10.0, 3.0, 0.2), (10.0, 1.0, 0.0), (10.0, 99.0, 0.4), (0.0, 3.0, math.inf)],
)
def test_the_wait_for_tokens(rate, target, wait_s):
    """
    Until so many are there, or the bucket is full; without a rate they never will be.
    """
    assert TokenBucket(rate, 5.0, 0.0, 1.0).wait_s(target, 0.0) == pytest.approx(wait_s)


def test_another_rate_counts_from_now_on():
    """
    What has come back stays, as far as there is room.
    """
    bucket = TokenBucket(10.0, 10.0, 0.0, 0.0)
    bucket.refill(1.0, 10.0, 0.5)
    more = bucket.tokens(1.5)
    bucket.refill(1.0, 2.0, 1.5)

    assert more == 6.0
    assert bucket.tokens(1.5) == 2.0


# ── rates ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rate", [0.5, 2.5, 10.0, 250.0, 1000.0])
def test_b26_a_rate_is_kept(rate):
    """
    B26: over any time it is the rate, to a row; no second has more than what the bucket may hold
    beside it.
    """
    seconds = sent(pace(rate), 20.0)

    assert sum(seconds) == pytest.approx(20 * rate, abs=1 + rate * 0.06)
    assert max(seconds) <= rate + max(1.0, rate * 0.06)


def test_b26_rows_go_some_at_a_time():
    """
    B26: twenty times a second, not one by one, nor all at once.
    """
    one, times = pace(1000.0), []
    for tick in range(1000):
        now = tick / 1000
        if rows := one.room(MANY, 100, now):
            one.go(rows, 0, now)
            times.append((now, rows))

    assert len(times) in (19, 20)
    assert {rows for _, rows in times} <= {50, 51}


@pytest.mark.parametrize(
    ("size", "rate"), [(100, 10_000.0), (5_000, 10_000.0), (100_000, 10_000.0)]
)
def test_b26_a_rate_of_bytes(size, rate):
    """
    B26: whatever the size of a row, and be it more than comes in ten seconds.
    """
    seconds = sent(pace(nbytes=rate), 100.0, size=size)

    assert sum(seconds) * size == pytest.approx(100 * rate, abs=size + rate * 0.06)


def test_b26_both_rates():
    """
    B26: the tighter one holds, and it is known which that is.
    """
    small, large = pace(100.0, 10_000.0), pace(100.0, 10_000.0)
    both = [sum(sent(small, 10.0, size=10)), sum(sent(large, 10.0, size=1000))]
    small.go(10, 10 * (10 + STORED_LESS), 10.0)
    large.go(10, 10 * (1000 + STORED_LESS), 10.0)

    assert both == [pytest.approx(1000, abs=10), pytest.approx(100, abs=2)]
    assert (small.lacks(MANY, 10, 10.0), large.lacks(MANY, 1000, 10.0)) == ("msg", "byte")


def test_b26_a_few_rows_need_not_wait_for_more():
    """
    B26: what is due for the rows that are there may go.
    """
    one = pace(1000.0, phase=0.9)
    waits = one.due(1, 100, 0.0), one.due(MANY, 100, 0.0)

    assert waits == (pytest.approx(0.0001, abs=2e-6), pytest.approx(0.0491, abs=2e-6))
    assert one.room(1, 100, waits[0]) == 1


def test_b26_a_due_time_is_when_rows_go():
    """
    B26: not a moment before, so that nobody looks again and again.
    """
    rng = random.Random(SEED)
    for _ in range(2_000):
        one, now = pace(rng.uniform(0.01, 1e6), rng.choice([None, 1e8])), rng.uniform(1, 1e6)
        one.go(rng.randrange(1, 1000), 0, now)
        due = one.due(MANY, 100, now)

        assert due == now or one.room(MANY, 100, due) > 0, SEED


@pytest.mark.parametrize("rates", [Rates(0.0), Rates(nbytes=0.0), Rates(100.0, 0.0)])
def test_b26_a_rate_of_nothing(rates):
    """
    B26: nothing goes, whatever there was before.
    """
    one = pace(1000.0, 1e9)
    one.keep(rates, 100.0, 10.0)

    assert one.room(1, 1, 10.0) == 0
    assert one.due(1, 1, 10.0) == math.inf


def test_b26_who_stands_still_for_long_loses_what_it_had():
    """
    B26: a quarter of a second's worth is kept; the controller makes up for the rest.
    """
    one = pace(1000.0)
    kept = one.room(MANY, 1, 60.0)
    one.go(kept, 0, 60.0)

    assert kept == 250
    assert one.room(MANY, 1, 60.0) == 0


def test_b26_slow_writers_begin_at_different_times():
    """
    B26: a phase is a part of the first message.
    """
    dues = [pace(0.1, phase=phase).due(1, 1, 0.0) for phase in (0.0, 0.25, 0.9)]

    assert dues == pytest.approx([10.0, 7.5, 1.0], abs=1e-5)


def test_b26_rows_that_did_not_go():
    """
    B26: they have taken nothing; rows that went before there was a rate give nothing back.
    """
    one = pace(10.0, 1000.0, phase=0.99)
    one.back(100, 100_000, 0.0)
    nothing = one.room(MANY, 1, 0.0)
    one.go(2, 2 * (100 + STORED_LESS), 1.0)
    out = one.kept
    one.back(1, 100 + STORED_LESS, 1.0)

    assert nothing == 0
    assert out == Kept("a.*", QUOTA, Rates(10.0, 1000.0), 2, 200)
    assert one.kept[3:5] == (1, 100)


def test_b26_the_next_task_goes_on():
    """
    B26: with the tokens that were left, and none for the time between; its counts begin at 0.
    """
    one = pace(10.0)
    one.go(1, 300, 0.25)
    heir = one.heir(7.0)

    assert heir.kept == Kept("a.*", QUOTA, Rates(10.0))
    assert heir.until == 100.0
    assert heir.room(MANY, 1, 7.0) == one.room(MANY, 1, 0.25) == 1
