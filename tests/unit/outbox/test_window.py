"""How many publishes may be on the wire: it doubles, is cut by push-back, and grows by one."""

import random

import pytest

from pyspark_jetstream.publish.lanes.flight import Window

from ...kits.seeds import SEED


def round_trip(window: Window) -> int:
    """PubAcks of a whole window came; its size then."""
    window.acked(window.value, window.value)
    return window.value


@pytest.mark.parametrize(
    ("maximum", "minimum", "value"), [(4096, 1, 256), (5, 1, 5), (4096, 900, 900), (5, 9, 5)]
)
def test_the_first_size(maximum, minimum, value):
    assert Window(maximum, minimum).value == value


def test_before_the_first_push_back_it_doubles():
    """In each round trip, up to `maxInFlight`."""
    window = Window(2000)

    assert [round_trip(window) for _ in range(4)] == [512, 1024, 2000, 2000]


def test_after_a_push_back_it_grows_by_one():
    """In each round trip, from 0.7 of its size on."""
    window = Window(2000)
    round_trip(window)
    window.pushed_back()
    cut = window.value

    assert cut == 358
    assert [round_trip(window) for _ in range(3)] == [359, 360, 361]


def test_push_backs_without_a_puback_between_them_cut_once():
    """An outage says nothing about capacity."""
    window = Window(2000)
    window.acked(1, 256)
    for _ in range(100):
        window.pushed_back()

    assert window.value == int(257 * 0.7)
    window.acked(1, 1)
    window.pushed_back()
    assert window.value == int(257 * 0.7 * 0.7)


def test_half_of_it_unused_is_no_evidence():
    window = Window(2000)
    window.acked(100, 127)
    assert window.value == 256
    window.acked(100, 128)
    assert window.value == 356


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_random_events_keep_the_bounds(seed):
    """Whatever it hears, it stays within its bounds, and is cut by no more than 0.7."""
    rng = random.Random(seed)
    minimum, maximum = rng.randint(1, 50), rng.randint(50, 5000)
    window = Window(maximum, minimum)
    for _ in range(2000):
        last = window.value
        if rng.random() < 0.1:
            window.pushed_back()
        else:
            window.acked(rng.randint(1, 500), rng.randint(0, last))
            assert window.value >= last, seed
        assert minimum <= window.value <= maximum, seed
        assert window.value >= int(0.7 * last), seed
