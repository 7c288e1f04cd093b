"""Decisions of the read side: shares, cuts, splits, modes."""

from __future__ import annotations

import bisect
import random

import pytest

from pyspark_jetstream.fetch.planning import (
    FEW_SUBJECTS,
    NEAR_END,
    Site,
    choose_mode,
    filter_on_server,
    next_cut,
    own_is_cheaper,
    share_records,
    split_range,
    wide_filter,
)

from ...kits.seeds import fresh

SEEDS = [1, 2, *fresh(__name__)]
"""The last one is new in every run; a failing test shows it in its name."""


@pytest.mark.parametrize(
    ("available", "limit", "granted"),
    [
        ([], 10, []),
        ([0, 0], 10, [0, 0]),
        ([5], 10, [5]),
        ([50], 10, [10]),
        ([100, 100], 10, [5, 5]),
        ([1, 100], 10, [1, 10]),
        ([100, 300], 40, [10, 30]),
        ([2, 3, 100, 100], 41, [1, 1, 20, 20]),
        ([0, 100, 0], 10, [0, 10, 0]),
        ([1] * 10, 3, [1] * 10),
        ([10**12, 1], 10**12, [10**12 - 1, 1]),
    ],
    ids=str,
)
def test_shares(available, limit, granted):
    """
    All get the same part of what they have, and one message at least.
    """
    assert share_records(available, limit) == granted


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_are_in_proportion(seed):
    """
    For random partitions: nobody starves, nobody gets more than there is, the sum keeps the
    limit but for the single messages of those who would get none, and each has its part of it to
    within one message.
    """
    rng = random.Random(seed)
    for _ in range(400):
        sizes = [0, 1, rng.randint(0, 20), rng.randint(0, 10**6)]
        available = [rng.choice(sizes) for _ in range(rng.randint(1, 20))]
        limit = rng.choice([1, rng.randint(1, 30), rng.randint(1, 10**6)])
        granted = share_records(available, limit)
        everything, where = sum(available), f"{available} {limit} {granted}"

        for there, records in zip(available, granted, strict=True):
            part = min(there, limit * there / everything if everything else 0)
            assert 0 <= records <= there, where
            assert (records > 0) == (there > 0), where
            assert abs(records - part) < 1 or (records == 1 and part < 1), where
        single = granted.count(1)
        assert min(everything, limit) <= sum(granted) <= limit + single, where


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_converge_on_the_exact_sequence(seed):
    """
    Asked again and again, the cut closes in on the sequence that holds exactly `wanted`, always
    strictly between its bounds.
    """
    rng = random.Random(seed)
    for _ in range(100):
        low, high = (base := rng.choice([0, 2**62])), base + rng.randint(2, 3000)
        start = low
        there = sorted(rng.sample(range(low + 1, high + 1), rng.randint(2, high - low)))
        wanted = rng.randint(1, len(there) - 1)
        low_count, high_count = 0, len(there)
        while high - low > 1:
            cut = next_cut(low, low_count, high, high_count, wanted)
            assert low < cut < high
            count = bisect.bisect_right(there, cut)
            if count > wanted:
                high, high_count = cut, count
            else:
                low, low_count = cut, count

        assert low_count == wanted or (low_count < wanted < high_count)
        assert start <= low


def test_even_density_needs_one_question():
    """
    Where messages lie evenly, the first cut is right.
    """
    assert next_cut(1000, 0, 11_000, 10_000, 300) == 1300
    assert next_cut(0, 0, 10_000, 100, 10) == 1000


@pytest.mark.parametrize(
    ("start", "end", "tasks", "maximum", "expected"),
    [
        (0, 0, 4, None, []),
        (5, 3, 4, None, []),
        (0, 10, 1, None, [(0, 10)]),
        (0, 10, 0, None, [(0, 10)]),
        (0, 10, 3, None, [(0, 3), (3, 6), (6, 10)]),
        (0, 2, 5, None, [(0, 1), (1, 2)]),
        (0, 10, 1, 4, [(0, 3), (3, 6), (6, 10)]),
        (7, 8, 9, 1, [(7, 8)]),
    ],
    ids=str,
)
def test_splits(start, end, tasks, maximum, expected):
    """
    A range is split into at least so many tasks, none longer than allowed.
    """
    assert split_range(start, end, tasks, maximum) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_splits_cover_exactly(seed):
    """
    Random splits are contiguous, cover the range once, hold no empty task and keep the limit.
    """
    rng = random.Random(seed)
    for _ in range(500):
        start = rng.choice([0, rng.getrandbits(62)])
        end = start + rng.randint(1, 5000)
        tasks, maximum = rng.randint(1, 50), rng.choice([None, rng.randint(1, 500)])
        pieces = split_range(start, end, tasks, maximum)

        assert pieces[0][0] == start and pieces[-1][1] == end
        assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
        assert all(low < high for low, high in pieces)
        assert len(pieces) >= min(tasks, end - start)
        assert maximum is None or max(high - low for low, high in pieces) <= maximum


def chosen(**given) -> str:
    """The mode of what a driver knows of a partition."""
    filtered, known = given["filtered"], ("partitions", "behind", "num_subjects")
    return choose_mode(
        ways={way for way in ("own", "direct") if given[way]},
        filtered=filtered,
        wide=wide_filter(filtered, *(given[name] for name in known)),
        messages=given["messages"],
        matching=given["matching"],
        site=Site(given["clustered"], given["away_s"]),
        amid=given["amid"],
    )


WIDE = {
    "filtered": True,
    "partitions": 4,
    "behind": 10 * NEAR_END,
    "num_subjects": 3313,
    "messages": 1000,
    "matching": 250,
    "own": False,
    "direct": True,
    "clustered": True,
    "amid": True,
    "away_s": 0.0,
}


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "direct"),
        ({"filtered": False}, "consumer"),
        ({"behind": NEAR_END}, "consumer"),
        ({"num_subjects": 4 * FEW_SUBJECTS}, "consumer"),
        ({"num_subjects": 0}, "consumer"),
        ({"matching": 10}, "consumer"),
        ({"partitions": 64, "matching": 15, "num_subjects": 10**6}, "consumer"),
        ({"matching": 0}, "consumer"),
        ({"messages": 0, "matching": 0}, "consumer"),
        ({"matching": 10**9}, "direct"),
        ({"direct": False}, "consumer"),
    ],
    ids=str,
)
def test_modes(changes, mode):
    """
    A consumer reads, except deep in a backlog under a wide filter that saves too little.
    """
    assert chosen(**(WIDE | changes)) == mode


FAR = {"away_s": 0.04, "clustered": False}
DEEP = WIDE | {"filtered": False, "messages": 10**6, "matching": 10**6, "own": True}


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "own"),
        ({"direct": False}, "own"),
        ({"own": False}, "consumer"),
        ({"messages": 20_001, "matching": 20_001}, "own"),
        ({"messages": 20_000, "matching": 20_000}, "consumer"),
        ({"messages": 0, "matching": 0}, "consumer"),
        # The range is long, but what the partition has of it is little.
        ({"matching": 100}, "consumer"),
        ({"filtered": True, "num_subjects": 4, "matching": 250_000}, "own"),
        ({"filtered": True, "num_subjects": 4, "matching": 10_000}, "consumer"),
        # Under a wide filter each partition reads the whole range, and drops the others' rows.
        ({"filtered": True, "matching": 250_000}, "own"),
        ({"filtered": True, "matching": 250_000, "own": False}, "direct"),
        ({"filtered": True, "messages": 4000, "matching": 1000}, "direct"),
        ({"filtered": True, "partitions": 64, "matching": 15_000}, "consumer"),
        # A server that stands alone has nobody else to ask.
        ({"messages": 1_251, "matching": 1_251, "clustered": False}, "own"),
        ({"messages": 1_250, "matching": 1_250, "clustered": False}, "consumer"),
        ({"filtered": True, "messages": 4000, "matching": 1000, "clustered": False}, "own"),
        ({"filtered": True, "messages": 400, "matching": 100, "clustered": False}, "direct"),
        # Far away direct get waits for the messages alone, the others for an answer before them.
        (FAR | {"messages": 46_000, "matching": 46_000}, "own"),
        (FAR | {"messages": 45_000, "matching": 45_000}, "direct"),
        (FAR | {"messages": 45_000, "matching": 45_000, "direct": False}, "own"),
        # Direct get would bring it what belongs to the others.
        (FAR | {"filtered": True, "messages": 8, "matching": 2, "num_subjects": 4}, "consumer"),
        # At the end of a backlog what reads without the query's consumer moves it along, and waits.
        (FAR | {"messages": 101_000, "matching": 101_000, "amid": False}, "consumer"),
        (FAR | {"messages": 102_000, "matching": 102_000, "amid": False}, "own"),
        ({"messages": 10, "matching": 10, "away_s": 0.002}, "direct"),
        ({"messages": 10, "matching": 10, "away_s": 0.002, "amid": False}, "consumer"),
    ],
    ids=str,
)
def test_consumers_of_the_attempts_own(changes, mode):
    """
    Deep in a backlog it is the cheapest; for few messages it is not worth its making. Far away the
    round trips count that one way waits for and another does not.
    """
    assert chosen(**(DEEP | changes)) == mode


@pytest.mark.parametrize(
    ("sequences", "clustered", "away_s", "own"),
    [
        (0, True, 0.0, False),
        (17_000, True, 0.0, False),
        (18_000, True, 0.0, True),
        (1_000, False, 0.0, False),
        (1_200, False, 0.0, True),
        (45_000, False, 0.04, False),
        (46_000, False, 0.04, True),
    ],
)
def test_ranges_by_consumers_of_the_attempts_own(sequences, clustered, away_s, own):
    """
    A range of a batch read is worth one from a thousand messages on, from some more in a cluster or
    where its making takes long.
    """
    assert own_is_cheaper(sequences, Site(clustered, away_s)) is own


def test_wide_filter():
    """
    Only a filter on many subjects, far from the end, is dear.
    """
    assert wide_filter(True, 1, NEAR_END + 1, FEW_SUBJECTS + 1)
    assert not wide_filter(False, 1, NEAR_END + 1, FEW_SUBJECTS + 1)


@pytest.mark.parametrize(
    ("filter_", "matching", "sequences", "by_server"),
    [
        ("a.b", None, 10**9, True),
        ("a.*", None, 10**9, False),
        ("a.*", 1, 1000, True),
        ("a.*", 900, 1000, False),
        ("a.*", 0, 0, False),
    ],
)
def test_who_filters_a_direct_read(filter_, matching, sequences, by_server):
    """
    The server filters a literal subject, and where the filter leaves out enough.
    """
    assert filter_on_server(filter_, matching, sequences) is by_server
