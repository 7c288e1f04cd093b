"""The window of publishes on the wire: by table, and against servers whose capacity is scripted."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.outbox.window import Window
from tests.kits.scripted import Script, run

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


@pytest.mark.parametrize(
    ("script", "seconds", "best"),
    [
        (Script(rtt_s=lambda now: 0.05), 6.0, 4096),
        (Script(rtt_s=lambda now: 0.004 if now < 1 else 0.04), 2.0, 4096),
        (Script(rate=lambda now: 2_000 if 1 <= now < 2 else 20_000, room=1000), 3.0, 256),
        (Script(rate=lambda now: 0 if 1 <= now < 2 else 20_000), 3.0, 1024),
        (Script(rate=lambda now: 5_000, room=50, refusal=0.2), 2.0, 16),
    ],
    ids=["far", "latency ×10", "capacity cut", "stopped for 1 s", "refuses above 50"],
)
def test_it_stores_as_much_as_the_best_fixed_window(script, seconds, best):
    """At least 0.95 of that."""
    [ours] = run(script, Window(8192), until=seconds)
    [fixed] = run(script, Window(best, best), until=seconds)

    assert ours.window.tally.acked >= 0.95 * fixed.window.tally.acked


def test_refusals_become_rare():
    """Where the server refuses above 300, fewer than 2 % of publishes are sent twice."""
    [client] = run(Script(rate=lambda now: 20_000, room=300), Window(8192), until=2)

    assert client.window.tally.retries < 0.02 * client.window.tally.acked


def test_sixteen_writers_share_a_server_that_refuses():
    """None starves, and all of the server is used."""
    script = Script(rate=lambda now: 20_000, room=4000)
    clients = run(script, *(Window(8192) for _ in range(16)), until=2)
    stored = [client.window.tally.acked for client in clients]

    assert sum(stored) >= 0.9 * 2 * 20_000
    assert min(stored) > 0.4 * sum(stored) / 16


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
