"""What a whole write counts: under which route, and how long it was paused."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.publish import telemetry
from pyspark_jetstream.publish.metrics import MetricsReport

from ...kits.options import FIXED, priorities_of, rules_of
from ...kits.world import World, block, command
from .test_waits import SHEDDABLE, START_S, shedding, world_of

ROUTES = priorities_of(subjects=(("a", Priority.NORMAL), ("*", Priority.NON_CRITICAL)))


def total(world: World, name: str, **labels: str) -> int:
    """A count of the write."""
    return world.telemetry.snapshot().total(f"jetstream_{name}", **labels)[0]


def test_shed_rows_have_their_route(monkeypatch):
    """That of the subject on which they would have gone."""
    world, _ = shedding(monkeypatch, drops=True, priorities=ROUTES)
    counts = world.run()
    name = "publish_rejected_total"

    assert counts.dropped == total(world, name) > 0
    assert total(world, name, subject="a") + total(world, name, subject="*") == counts.dropped
    assert total(world, "publish_outcomes_total", status="dropped") == counts.dropped


def test_what_waits_has_its_route(monkeypatch):
    """Reports say which rows wait, by filter; those that wait no more are 0."""
    monkeypatch.setattr(telemetry, "REPORT_S", 0.02)
    rows = block("abcd" * 300, 0)
    world = World(
        monkeypatch, [rows], random.Random(1), **FIXED,
        max_in_flight=4, priorities=ROUTES, metrics_subject="m",
        rules=rules_of(queue_timeout_s=1e6),
    )  # fmt: skip
    world.run()
    reports = [MetricsReport.decode(each.data).snapshot for each in world.elsewhere.heard]
    seen = {
        labels: [report.values["jetstream_publish_queue_total"].get(labels) for report in reports]
        for report in reports
        for labels in report.values["jetstream_publish_queue_total"]
    }

    assert set(seen) == {("a", "normal"), ("*", "normal")}
    assert max(each[0] for each in seen["a", "normal"] if each) > 100
    after = world.telemetry.snapshot().values["jetstream_publish_queue_total"]
    assert after == dict.fromkeys(seen, (0,))


def test_a_pause_that_is_issued_each_second_counts_its_time(monkeypatch):
    """PIP-385: a pause of a minute, of one subject, issued 60 times, is 60,000 ms and one limit."""
    world = world_of(monkeypatch, publish_timeout_s=120.0)
    for second in range(60):
        at = START_S + 1 + second
        world.net.commands.append((at, command(second, "a", 1.5 if second < 59 else 1.0)))
    world.net.on_sent = lambda each: world.clock.now >= START_S + 1
    world.supply.blocks.append(block("a" * 5, 80))
    world.run()

    assert total(world, "producer_throttled_times") == pytest.approx(60_000, abs=50)
    assert total(world, "producer_throttled_times", subject="a") > 0
    assert total(world, "publish_rate_limit_count", limiter="operator") == 1


@pytest.mark.parametrize("other", [False, True])
def test_a12_push_back_of_a_stream_sheds_its_own_rows(monkeypatch, other):
    """A12: what the server refuses of one stream makes no room among another's rows."""
    rules = rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=1.0)
    world, _ = shedding(monkeypatch, False, rules=rules, drops=True, publish_timeout_s=100.0)

    busy, free = world.net.streams[:: 1 - 2 * other]
    busy.answers = lambda sent: busy.refused(sent, 429, 10167) if busy.now < START_S + 3 else None
    counts = world.run()

    assert counts.dropped > 0
    assert len(free.messages) == 150
    assert len(busy.messages) == 150 - counts.dropped


def test_what_an_attempt_before_has_stored_hides_no_wait(monkeypatch):
    """Of a block of which some rows are stored, the others' time in the queue counts."""
    world = World(monkeypatch, [block("ab" * 20, 0)], random.Random(1), is_checked=True)
    known = pa.array([3, 4], pa.int64())
    world.stored_before = lambda rows: pc.is_in(rows.rows, known)
    counts = world.run()
    waits = world.telemetry.snapshot().total("jetstream_publish_queue_time_seconds")

    assert (counts.acked, counts.already_stored) == (38, 2)
    assert sum(waits[:-1]) == 38
