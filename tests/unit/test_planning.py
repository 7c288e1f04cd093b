"""Decisions of the read side: shares, cuts, splits, modes."""

import bisect

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_jetstream.fetch.layout import split_range
from pyspark_jetstream.fetch.survey import next_cut
from pyspark_jetstream.readstream.planner import FEW_SUBJECTS, NEAR_END, is_dear, share_records
from pyspark_jetstream.tasks.ranges import by_consumer, filter_on_server

SIZES = st.integers(0, 20) | st.integers(0, 10**12)


@example([10**12, 1], 10**12)
@given(st.lists(SIZES, max_size=20), st.integers(1, 30) | st.integers(1, 10**12))
def test_shares_are_in_proportion(available, limit):
    """Nobody starves, the sum keeps the limit, each has its part to within one message."""
    granted = share_records(available, limit)
    everything = sum(available)

    for there, records in zip(available, granted, strict=True):
        part = min(there, limit * there / everything if everything else 0)
        assert 0 <= records <= there
        assert (records > 0) == (there > 0)
        assert abs(records - part) < 1 or (records == 1 and part < 1)
    assert min(everything, limit) <= sum(granted) <= limit + granted.count(1)


@given(
    st.sampled_from([0, 2**62]),
    st.sets(st.integers(1, 40) | st.integers(1, 3000), min_size=2),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_cuts_converge_on_the_exact_sequence(base, there, more, turn):
    """Asked again, the cut closes in on the sequence that holds exactly `wanted`."""
    low, high, wanted = base, base + max(there) + more, 1 + turn % (len(there) - 1)
    low_count, high_count = 0, len(there)
    while high - low > 1:
        cut = next_cut(low, low_count, high, high_count, wanted)
        assert low < cut < high
        count = bisect.bisect_right(sorted(there), cut - base)
        if count > wanted:
            high, high_count = cut, count
        else:
            low, low_count = cut, count

    assert low_count == wanted or (low_count < wanted < high_count)


def test_even_density_needs_one_question():
    """Where messages lie evenly, the first cut is right."""
    assert next_cut(1000, 0, 11_000, 10_000, 300) == 1300
    assert next_cut(0, 0, 10_000, 100, 10) == 1000


@given(
    st.integers(0, 2**62),
    st.integers(-9, 60) | st.integers(1, 5000),
    st.integers(0, 50),
    st.none() | st.integers(1, 500),
)
def test_splits_cover_exactly(start, length, tasks, maximum):
    """Splits are contiguous, cover the range once, are alike, none is empty; the limit holds."""
    pieces = split_range(start, start + length, tasks, maximum)
    sizes = [high - low for low, high in pieces]

    assert sum(sizes) == max(0, length) and (not pieces or pieces[0][0] == start)
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    assert len(pieces) >= min(tasks, length)
    assert all(0 < size <= min(sizes) + 1 for size in sizes)
    assert maximum is None or max(sizes, default=0) <= maximum


@pytest.mark.parametrize(
    ("messages", "below", "retention", "allow_direct", "by"),
    [
        (5_000, 5_000, "limits", True, True),
        (4_999, 5_000, "limits", True, False),
        (0, 0, "limits", True, True),
        (1, 5_000, "limits", False, True),
        (10**9, 0, "interest", True, False),
        (10**9, 0, "workqueue", True, False),
    ],
)
def test_who_reads_by_a_consumer_of_its_own(messages, below, retention, allow_direct, by):
    """From so many messages on, and where nothing else reads, but only where it settles nothing."""
    assert by_consumer(messages, below, retention, allow_direct) is by


def test_a_dear_filter():
    """Only a filter on many subjects, far from the end, is dear."""
    assert is_dear(1, NEAR_END + 1, FEW_SUBJECTS + 1)
    assert not is_dear(1, NEAR_END, FEW_SUBJECTS + 1)
    assert not is_dear(2, NEAR_END + 1, FEW_SUBJECTS + 1)


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
    """The server filters a literal subject, and where the filter leaves out enough."""
    assert filter_on_server(filter_, matching, sequences) is by_server
