"""The limit of publishes on the wire: by table, and against servers whose capacity is scripted."""

from __future__ import annotations

import math
import random

import pytest

from bench.windows.scripted import Script, run
from pyspark_jetstream.outbox.limits import CpuShare, GradientLimit

from ...kits.seeds import SEED


def window(limit: GradientLimit, start: float, rtt_s: float, in_flight: int | None = None) -> float:
    """One whole window of PubAcks with this round trip; when the next one begins."""
    in_flight = limit.value if in_flight is None else in_flight
    limit.acked(10, rtt_s, in_flight, start)
    end = start + min(max(2 * rtt_s, 0.1), 1.0)
    limit.acked(10, rtt_s, in_flight, end)
    return end


def test_slow_start_doubles_up_to_the_most():
    """
    At the beginning each window doubles the limit, up to `maxInFlight`.
    """
    limit = GradientLimit(1, 64, 1000)
    now, seen = 0.0, []
    for _ in range(6):
        now = window(limit, now, 0.01)
        seen.append(limit.value)

    assert seen == [128, 256, 512, 1000, 1000, 1000]


@pytest.mark.parametrize(
    ("settings", "value"),
    [((1, 64, 4096), 64), ((1, 64, 5), 5), ((100, 64, 4096), 100), ((9, 64, 5), 5)],
)
def test_the_first_limit(settings, value):
    """
    The limit starts at its initial value, within its minimum and maximum.
    """
    assert GradientLimit(*settings).value == value


@pytest.mark.parametrize(
    ("rtt_s", "gradient"),
    [(0.10, 1.0), (0.15, 1.0), (0.20, 0.75), (0.30, 0.5), (9.0, 0.5)],
)
def test_the_gradient(rtt_s, gradient):
    """
    gradient = 1.5 × long / short within 0.5 … 1; at 1 the limit grows by its root; below, 0.8 of
    it stays and 0.2 follows the gradient.
    """
    limit = GradientLimit(1, 400, 4096)
    limit._slow_start_to = 0.0
    limit._windows = 10
    limit.long_s = 0.10
    window(limit, 0.0, rtt_s)

    # The window itself is in the long round trip already: two in 601 of it.
    target = 400 + 20 if gradient == 1.0 else 0.8 * 400 + 0.2 * (400 * gradient + 20)
    assert limit.value == pytest.approx(target, abs=6 / gradient)


def test_short_round_trips_are_no_load():
    """
    Near a server round trips double with the limit: up to 30 ms that does not end slow start.
    """
    limit = GradientLimit(1, 64, 4096)
    now, seen = 0.0, []
    for _ in range(8):
        now = window(limit, now, 0.001 + limit.value / 100_000)
        seen.append(limit.value)

    assert seen[:7] == [128, 256, 512, 1024, 2048, 4096, 4096]
    assert seen[7] < 4096


def test_the_long_round_trip():
    """
    It is the mean of the first ten windows, then moves by 2/601; twice the short one, it decays.
    """
    limit = GradientLimit(1, 64, 64)
    now, seen = 0.0, []
    for rtt_s in (*range(1, 11), 12):
        now = window(limit, now, rtt_s / 100)
        seen.append(limit.long_s * 100)
    window(limit, now, 0.01)

    assert seen[9] == pytest.approx(5.5)
    assert seen[10] == pytest.approx(5.5 + 6.5 * 2 / 601)
    assert limit.long_s * 100 == pytest.approx((seen[10] + (1 - seen[10]) * 2 / 601) * 0.95)


def test_one_window_of_long_round_trips_does_not_end_slow_start():
    """
    In slow start one is chance: the limit stays. Two in a row end it.
    """
    limit = GradientLimit(1, 64, 4096)
    now, seen = 0.0, []
    for rtt_s in (0.01, 0.04, 0.01, 0.09, 0.09, 0.01):
        now = window(limit, now, rtt_s)
        seen.append(limit.value)

    assert seen[:4] == [128, 128, 256, 256]
    assert 0.9 * 256 <= seen[4] < 256
    assert seen[5] == seen[4] + 16


def test_half_of_the_limit_unused_changes_nothing():
    """
    Without rows to send there is no evidence, so no growth, and no shrinking.
    """
    limit = GradientLimit(1, 64, 4096)
    now = window(limit, 0.0, 0.01, in_flight=31)
    idle = limit.value
    now = window(limit, now, 9.0, in_flight=31)
    slow = limit.value
    window(limit, now + 60, 0.01, in_flight=32)

    assert (idle, slow, limit.value) == (64, 64, 128)


def test_one_push_back_a_window_counts():
    """
    A push-back leaves 0.7 at once, further ones of the window nothing less; slow start is over.
    """
    limit = GradientLimit(1, 100, 4096)
    limit.acked(1, 0.01, 100, 0.0)
    for millis in range(10, 100, 10):
        limit.dropped(millis / 1000)
    once = limit.value
    limit.acked(1, 0.01, 70, 0.15)
    limit.dropped(0.2)
    twice = limit.value
    window(limit, 0.3, 0.01)
    window(limit, 0.4, 0.01)

    assert (once, twice) == (70, 49)
    assert limit.value == 49 + 7  # the first of these windows still has the push-back


def test_an_outage_is_recovered_from_by_slow_start():
    """
    Push-backs without a PubAck between them lower the limit to the least, but not for long.
    """
    limit = GradientLimit(2, 1000, 4096)
    limit.acked(1, 0.01, 1000, 0.0)
    now = 0.0
    for _ in range(60):
        now += 0.5
        limit.dropped(now)
    lowest = limit.value
    seen = []
    for _ in range(11):
        now = window(limit, now, 0.01)
        seen.append(limit.value)

    assert lowest == 2
    assert seen[-2] == 700 or seen[-1] == 700
    assert seen[-1] < 730


@pytest.mark.parametrize("samples", [1, 9])
def test_few_samples_close_no_window(samples):
    """
    Fewer than ten samples say nothing, however old they are.
    """
    limit = GradientLimit(1, 4, 4096)
    limit.acked(samples, 0.01, 4, 0.0)
    limit._close(limit._open(99.0), 99.0)
    before = limit.value
    limit.acked(9, 0.01, 4, 99.0)

    assert (before, limit.value) == (4, 8)


@pytest.mark.parametrize(
    ("rtt_s", "length_s"), [(0.001, 0.1), (0.05, 0.1), (0.2, 0.4), (0.5, 1.0), (7.0, 1.0)]
)
def test_the_length_of_a_window(rtt_s, length_s):
    """
    A window lasts twice its shortest round trip, 100 ms at least and 1 s at most.
    """
    limit = GradientLimit(1, 4, 4096)
    limit.acked(20, rtt_s + 1, 4, 0.0)
    limit.acked(20, rtt_s, 4, 0.0)
    limit.acked(20, rtt_s, 4, length_s - 0.001)
    before = limit.value
    limit.acked(20, rtt_s, 4, length_s)

    assert before == 4
    assert limit.value > 4


def test_a_limit_whose_bounds_are_one_stays():
    """
    Whatever comes: that of dead letters is such a one.
    """
    limit, now, seen = GradientLimit(7, 7, 7), 0.0, set()
    for rtt_s in (0.01, 9.0, 0.01):
        now = window(limit, now, rtt_s)
        seen.add(limit.value)
        limit.dropped(now)
        seen.add(limit.value)

    assert seen == {7}


def test_a26_a_limit_that_is_held_does_not_grow():
    """
    A26: neither in slow start nor later; it still shrinks.
    """
    limit = GradientLimit(1, 64, 4096)
    limit.held = True
    now = window(limit, 0.0, 0.01)
    held = limit.value
    limit.held = False
    now = window(limit, now, 0.01)
    grown = limit.value
    limit.held = True
    limit.dropped(now)

    assert (held, grown, limit.value) == (64, 128, 89)


def test_a26_the_share_of_a_core():
    """
    A26: CPU seconds of the last half a second, by the clock.
    """
    share, seen = CpuShare(80), []
    for cpu_s, now in [(5.0, 0.0), (5.4, 0.4), (5.41, 0.5), (5.7, 1.0), (6.11, 1.5), (6.2, 2.0)]:
        share.used(cpu_s, now)
        seen.append(share.is_over)

    assert seen == [False, False, True, False, True, False]


def test_repr_shows_the_state():
    """
    The limit says where it stands.
    """
    limit = GradientLimit(1, 64, 4096)
    window(limit, 0.0, 0.01)

    assert repr(limit) == "<GradientLimit 128 in slow start, long round trip 10.0ms>"


# ── simulated servers ────────────────────────────────────────────────────────────────────────

SERVERS = {
    "steady": (Script(), 6.0),
    "far": (Script(rtt_s=lambda now: 0.05), 6.0),
    "latency ×10": (Script(rtt_s=lambda now: 0.004 if now < 2 else 0.04), 8.0),
    "latency ×10 for 2s": (Script(rtt_s=lambda now: 0.04 if 2 <= now < 4 else 0.004), 8.0),
    "capacity cut": (Script(rate=lambda now: 2_000 if 2 <= now < 4 else 50_000), 6.0),
    "stopped for 3s": (Script(rate=lambda now: 0 if 2 <= now < 5 else 50_000), 8.0),
    "refuses above 300": (Script(room=300), 2.0),
    "slow, refuses above 50": (Script(rate=lambda now: 5_000, room=50), 2.0),
}
FIXED = (16, 64, 256, 1024, 4096)


@pytest.fixture(scope="module")
def results():
    """Publishes stored, by server and limit, and the client with the gradient."""
    found = {}
    for name, (script, seconds) in SERVERS.items():
        [client] = run(script, GradientLimit(1, 64, 4096), until=seconds)
        stored = {
            maximum: run(script, GradientLimit(maximum, maximum, maximum), until=seconds)[0]
            for maximum in FIXED
        }
        found[name] = client, {maximum: each.window.tally.acked for maximum, each in stored.items()}
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_the_gradient_is_close_to_the_best_fixed_window(results, name):
    """
    On each server the adaptive limit stores at least 4/5 of what the best fixed window does.
    """
    client, fixed = results[name]

    assert client.window.tally.acked >= 0.8 * max(fixed.values())


def test_no_fixed_window_is_as_good_on_all_servers(results):
    """
    Over all servers (geometric mean of the share of the best) the adaptive limit beats each.
    """

    def mean(stored):
        shares = [
            stored(client, fixed) / max(client.window.tally.acked, *fixed.values())
            for client, fixed in results.values()
        ]
        return math.prod(shares) ** (1 / len(shares))

    adaptive = mean(lambda client, fixed: client.window.tally.acked)

    assert adaptive > 0.9
    assert adaptive > max(mean(lambda client, fixed, m=maximum: fixed[m]) for maximum in FIXED)


@pytest.mark.parametrize("name", SERVERS)
def test_the_limit_never_collapses(results, name):
    """
    After the first second the limit is never below a third of what the server can use at its
    worst, whatever became of it in between.
    """
    client, _ = results[name]
    lowest = min(value for now, value in client.track if now > 1)

    script, seconds = SERVERS[name]
    times = [tick / 10 for tick in range(10, int(seconds * 10))]
    useful = min(script.rate(now) * script.rtt_s(now) for now in times)
    assert lowest >= max(1, min(useful, script.room) / 3)


def test_refusals_become_rare(results):
    """
    Where the server refuses above 300, fewer than 1 % of publishes are sent twice; a fixed window
    of 4,096 sends each many times.
    """
    client, _ = results["refuses above 300"]

    assert client.window.tally.retries < 0.01 * client.window.tally.acked


def test_latency_of_another_cause_is_accepted_within_seconds():
    """
    Round trips ten times as long, with capacity left: the limit is back where it was in 2 s, and
    grows to what they need.
    """
    script, seconds = SERVERS["latency ×10"]
    [client] = run(script, GradientLimit(1, 64, 4096), until=seconds)
    before = max(value for now, value in client.track if now < 2)
    after = {now: value for now, value in client.track if now > 2}

    assert min(after.values()) > before / 3
    assert all(value >= before for now, value in after.items() if now > 4.5)
    assert client.window.limit >= 50_000 * 0.04


def test_late_answers_in_slow_start_keep_no_writer_slow():
    """
    A server 20 ms away is slow for a tenth of a second while the limit doubles: it is soon where it
    would have been.
    """
    script = Script(rtt_s=lambda now: 0.06 if 0.3 <= now < 0.4 else 0.02)
    [client] = run(script, GradientLimit(1, 64, 4096), until=2)
    [steady] = run(Script(rtt_s=lambda now: 0.02), GradientLimit(1, 64, 4096), until=2)

    assert client.window.tally.acked > 0.8 * steady.window.tally.acked


def test_a_capacity_cut_shortens_the_queue():
    """
    When the server's own rate falls to a twenty-fifth, what it queues is reduced, not kept.
    """
    script = Script(rate=lambda now: 2_000 if now >= 2 else 50_000)
    [client] = run(script, GradientLimit(1, 64, 4096), until=10)
    before = max(value for now, value in client.track if now < 2)

    assert client.window.limit < before / 2


def test_sixteen_writers_converge():
    """
    Sixteen writers on one server share it: none starves, none is refused, all of it is used.
    """
    clients = run(Script(), *(GradientLimit(1, 64, 4096) for _ in range(16)), until=8)
    stored = [client.window.tally.acked for client in clients]

    assert sum(stored) >= 0.95 * 8 * 50_000
    assert min(stored) > 0.4 * sum(stored) / 16
    assert all(64 <= client.window.limit <= 1024 for client in clients)


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_random_events_keep_the_bounds(seed):
    """
    Whatever it hears, the limit stays within its bounds, is cut at most once in 100 ms, and by no
    more than 0.7 (0.9 is the most the gradient takes, at the end of a window).
    """
    rng = random.Random(seed)
    minimum, maximum = rng.randint(1, 50), rng.randint(50, 5000)
    limit = GradientLimit(minimum, rng.randint(1, 5000), maximum)
    now, cut_at, last = 0.0, -math.inf, float(limit.value)
    for _ in range(2000):
        now += rng.choice([0, 1e-4, 0.01, 0.3])
        if rng.random() < 0.1:
            limit.dropped(now)
            if limit._limit < 0.89 * last:
                assert now - cut_at >= 0.1 - 1e-9, seed
                cut_at = now
        else:
            in_flight = rng.randint(0, limit.value)
            limit.acked(rng.randint(1, 500), rng.expovariate(1 / 0.02), in_flight, now)
        assert minimum <= limit.value <= maximum, seed
        assert limit._limit >= 0.9 * 0.7 * last - 1e-9, seed
        last = limit._limit
