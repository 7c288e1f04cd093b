"""How much a read asks for at a time: numbers in, numbers out."""

import pytest

from pyspark_jetstream.fetch.pace import (
    MOST_BYTES,
    Appetite,
    Publishers,
    busy_messages,
    pull_bytes,
    pulls_ahead,
)


@pytest.mark.parametrize(
    ("round_trip_s", "each_bytes", "pulls"),
    [(0.0, 4 << 20, 0), (0.001, 4 << 20, 0), (0.005, 4 << 20, 1), (0.04, 4 << 20, 2)]
    + [(1.0, 4 << 20, 6), (0.04, 64 << 20, 0)],
)
def test_far_away_pulls_wait_at_the_server(round_trip_s, each_bytes, pulls):
    """As many as are answered in a round trip, and never more bytes than may be on their way."""
    assert pulls_ahead(round_trip_s, each_bytes) == pulls


@pytest.mark.parametrize("round_trip_s", [0.0, 0.002, 0.04, 3.0])
def test_what_pulls_may_have_on_its_way_is_bounded(round_trip_s):
    """Those that wait, the one that is answered and the one before it."""
    each = pull_bytes(round_trip_s)
    assert (2 + pulls_ahead(round_trip_s, each)) * each <= MOST_BYTES


def fed(appetite):
    """How many whole answers it takes until it asks for more."""
    share, answers = appetite.share, 0
    while appetite.share == share:
        appetite.grow()
        answers += 1
    return answers


def test_it_shrinks_at_once_and_grows_with_care():
    """Cuts halve what is asked for; growing back takes twice as many whole answers each."""
    appetite = Appetite()
    assert appetite.limit(1000) == 1000
    appetite.shrink()
    assert appetite.limit(1000) == 500
    once = fed(appetite)
    assert appetite.limit(1000) == 1000

    appetite.shrink()
    appetite.shrink()
    assert fed(appetite) == 2 * once
    appetite.shrink()
    assert fed(appetite) == 4 * once
    for _ in range(50):
        appetite.shrink()
    assert appetite.limit(1) == 1 and appetite.limit(1 << 20) == 1 << 12
    while appetite.share < 1:
        fed(appetite)
    appetite.shrink()
    assert fed(appetite) == once


@pytest.mark.parametrize(("delay_s", "messages"), [(None, 2_000), (0.02, 1_000), (1e-9, 1)])
def test_what_a_publish_may_wait_bounds_what_is_asked_for(delay_s, messages):
    assert busy_messages(delay_s) == messages


def test_where_nobody_publishes_it_is_calm():
    """It is seen by messages that come; tasks of a process share what they know."""
    publishers = Publishers()
    assert not publishers.are_calm(0.0)
    publishers.seen(0, 100, 0.0)
    publishers.seen(100, 100, 0.02)
    assert not publishers.are_calm(0.04)
    assert publishers.are_calm(0.06)
    publishers.seen(100, 101, 1.0)
    assert not publishers.are_calm(10.0)
    assert publishers.are_calm(11.0)
