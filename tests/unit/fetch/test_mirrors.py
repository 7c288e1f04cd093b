"""What a stream holds, as answers of its mirrors are measured by it."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.fetch.mirrors import Held

from ...kits.seeds import fresh


@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_runs_and_messages_by_brute_force(seed):
    """
    A run counts exactly where its messages are all that the stream holds between its ends, and a
    message exactly where it is there.
    """
    rng = random.Random(seed)
    first, last = rng.randint(1, 30), rng.randint(31, 60)
    deleted = sorted(rng.sample(range(first + 1, last), rng.randint(0, 3)))
    held = Held(first, last, tuple(deleted), False)
    there = set(range(first, last + 1)) - set(deleted)

    assert [held.holds(seq) for seq in range(70)] == [seq in there for seq in range(70)]
    for _ in range(2000):
        after = rng.randint(0, 65)
        run = sorted(rng.sample(range(after + 1, 72), rng.randint(1, 6)))
        if rng.random() < 0.5:
            run = list(range(run[0], run[0] + len(run)))
        whole = run == sorted(seq for seq in there if after < seq <= run[-1])
        dense = run == list(range(max(after + 1, first), run[-1] + 1))

        assert held.is_run(after, run[0], run[-1], len(run)) == (whole and dense), (after, run)


def test_only_whole_mirrors_have_parts():
    """
    An answer of a whole mirror counts between the first and the last message of the stream.
    """
    whole, other = Held(10, 20, (), True), Held(10, 20, (), False)

    assert whole.is_part(10, 20) and whole.is_part(12, 15)
    assert not whole.is_part(9, 20) and not whole.is_part(10, 21)
    assert not other.is_part(12, 15)
