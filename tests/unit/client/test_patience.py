"""Patience runs out by a clock of the test's own."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.patience import Patience

from ...kits.shared import Clock


@pytest.fixture
def clock():
    return Clock()


def test_it_runs_out_where_nothing_moves(clock):
    """What stands where it stood at the beginning gives no time."""
    waiting = Patience(10.0, seen=5, clock=clock)

    clock.now += 9.9
    assert not waiting.progress(5)
    assert not waiting.over
    clock.now += 0.1
    assert waiting.over


def test_what_moves_gives_all_time_again(clock):
    """Anything else than what was seen last is progress, also a step back."""
    waiting = Patience(10.0, seen=5, clock=clock)

    for seen in (6, 7, 5):
        clock.now += 11.0
        assert waiting.over
        assert waiting.progress(seen)
        assert not waiting.over
        assert waiting.deadline == clock.now + 10.0
    clock.now += 10.0
    assert not waiting.progress(5)
    assert waiting.over


def test_the_first_look_is_progress_where_nothing_was_seen_before(clock):
    """Without a beginning the first look renews the time."""
    waiting = Patience(10.0, clock=clock)
    clock.now += 11.0

    assert waiting.progress(0)
    assert not waiting.over


def test_pauses_are_all_the_same(clock):
    """A server that answers in milliseconds is asked at a steady rate."""
    waiting = Patience(10.0, pause_s=0.1, clock=clock)
    for _ in range(3):
        waiting.pause()

    assert clock.waited == [0.1, 0.1, 0.1]


def test_pauses_that_grow_have_an_end(clock):
    """Progress does not make them shorter again."""
    waiting = Patience(10.0, pause_s=0.1, longest_s=0.5, clock=clock)
    for seen in range(5):
        waiting.progress(seen)
        waiting.pause()

    assert clock.waited == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_renewed_patience_begins_with_the_first_pause(clock):
    """What stood still and moves again is looked at as often as at the beginning."""
    waiting = Patience(10.0, pause_s=0.1, longest_s=0.5, clock=clock)
    for _ in range(3):
        waiting.pause()
    waiting.renew()
    waiting.pause()

    assert clock.waited == [0.1, 0.2, 0.4, 0.1]
    assert waiting.left_s == pytest.approx(9.9)


def test_the_last_try_is_made_when_it_runs_out(clock):
    """A pause ends with the time that is left."""
    waiting = Patience(10.0, pause_s=3.0, clock=clock)
    for _ in range(5):
        waiting.pause()

    assert clock.waited == [3.0, 3.0, 3.0, 1.0, 0.0]
    assert waiting.over
