"""How many publishes may be on the wire: it doubles, is cut by push-back, and grows by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.publish.lanes.flight import Window

from ...kits.seeds import examples


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


def test_late_pubacks_leave_it_as_it_is():
    """More on the wire would only wait longer; a push-back after them cuts."""
    window = Window(2000)
    window.acked(256, 256, True)
    assert window.value == 256
    window.pushed_back()
    assert window.value == 179


ACKED = st.tuples(st.integers(1, 500), st.integers(0, 5000))


@examples(50)
@given(st.integers(1, 50), st.integers(50, 5000), st.lists(st.none() | ACKED | ACKED, min_size=30))
def test_any_events_keep_the_bounds(minimum, maximum, events):
    """Whatever it hears, it stays within its bounds, and is cut by no more than 0.7."""
    window = Window(maximum, minimum)
    for acked in events:
        last = window.value
        if acked is None:
            window.pushed_back()
        else:
            window.acked(acked[0], min(acked[1], last))
            assert window.value >= last
        assert minimum <= window.value <= maximum
        assert window.value >= int(0.7 * last)
