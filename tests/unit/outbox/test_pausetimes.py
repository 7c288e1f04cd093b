"""How long subjects were paused, and which limits are new ones."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.outbox.throttling import pausetimes
from pyspark_jetstream.outbox.throttling.pausetimes import Limited, PauseTimes

from ...kits.seeds import SEED


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_time_is_told_once(seed):
    """
    However often a pause is issued, shortened and asked about, all that is told is the time in
    which it was open: a model that looks at each tenth of a second says the same.
    """
    rng, one = random.Random(seed), PauseTimes()
    until, told, expected = 0, 0, 0
    for tick in range(1000):
        if rng.random() < 0.1:
            until = tick + rng.choice([0, 1, 7, 50])
            told += one.paused("a", until / 10, tick / 10)
        if rng.random() < 0.3:
            told += sum(new_ms for _, new_ms in one.passed(tick / 10))
        expected += 100 * (tick < until)
    told += sum(new_ms for _, new_ms in one.passed(1000.0))

    assert told == expected + 100 * max(0, until - 1000), f"seed {seed}"


def test_there_is_a_bound(monkeypatch):
    """
    I7: what is over and told is forgotten for what comes; of too many that are open the last ones
    do not count.
    """
    monkeypatch.setattr(pausetimes, "_MAX", 2)
    one: PauseTimes[str] = PauseTimes()
    for number, name in enumerate("abc"):
        one.paused(name, 5.0, float(number))
    assert set(one) == {"a", "b"}
    assert dict(one.passed(10.0)) == {"a": 5_000, "b": 4_000}
    one.paused("c", 20.0, 10.0)

    assert (list(one), one.until("c", 11.0), one.until("a", 11.0)) == (["c"], 20.0, 11.0)
    assert repr(one) == "<PauseTimes 1 paused so far>"


def test_a_limit_lasts_until_it_is_not_met():
    """
    Met again in time it is the one before; a limit of no time is none.
    """
    one = Limited(5.0)
    met = [one.add("a", until, now) for now, until in ((0, 1), (5, 6), (11.5, 12), (12, 12))]

    assert met == [True, False, True, False]
    assert one.add("b", 21.0, 20.0)
    assert repr(one) == "<Limited 1 limits>"
