"""The publisher under shedding, and with less room on the wire than its lanes want."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import NotConnectedError, PublishTimeoutError
from pyspark_jetstream.outbox import limits
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.publish import laneset, sender

from ...kits.lanes import Sent
from ...kits.options import FIXED, rules_of
from ...kits.world import SUBJECTS, Elsewhere, Net, World, block, elsewhere

SHEDDABLE = frozenset({Priority.NON_CRITICAL})


def urgent(subjects: str, first: int, priorities: list[Priority]) -> Messages:
    count = len(subjects)
    data = [b"%d." % row for row in range(first, first + count)]
    ids = pa.array([b"t-%d" % row for row in range(first, first + count)], pa.binary())
    found = block(subjects, first, data)
    return replace(found, priorities=pa.array(priorities, pa.int8()), ids=ids)


def shedding(
    monkeypatch: pytest.MonkeyPatch, pushed_back: bool = True, **options: object
) -> tuple[World, Elsewhere]:
    """A server that may have pushed back, and rows that may all be shed."""
    monkeypatch.setattr(Net, "max_payload", 1 << 20, raising=False)
    blocks = [urgent("abcd" * 25, first, [Priority.NON_CRITICAL] * 100) for first in (0, 100, 200)]
    settings: dict[str, object] = {
        "publish_mode": "async",
        **FIXED,
        "max_in_flight": 7,
        "publish_timeout_s": 20.0,
        "rules": rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=1e9),
    }
    world = World(monkeypatch, blocks, random.Random(1), **(settings | options))
    world.net.chaos = 0.0
    found = elsewhere(monkeypatch, world)
    for place in (0, 1) if pushed_back else ():
        world.publisher.admission.overload.pushed_back(place, 100.0)
    return world, found


@pytest.mark.parametrize("mode", ["async", "fast", "atomic", "auto"])
@pytest.mark.parametrize("chunk", [100, 1 << 19])
@pytest.mark.parametrize("seed", range(3))
def test_a_full_wire_that_breaks_is_filled_again(monkeypatch, mode, chunk, seed):
    """
    Bytes that wait to be sent again, or for a ping, leave no room; they go out all the same. So
    does a batch when the wire is full of parts of batches.
    """
    monkeypatch.setattr(sender, "_CHUNK_BYTES", chunk)
    rng = random.Random(seed)
    data = [b"%d" % row + b"." * 600 for row in range(200)]
    world = World(
        monkeypatch,
        [block("".join(rng.choices(SUBJECTS, k=200)), 0, data)],
        rng,
        publish_mode=mode,
        **FIXED,
        max_in_flight_bytes=20_000,
        ack_timeout_s=2.0,
        publish_timeout_s=120.0,
    )
    world.net.chaos = 0.0
    net, sent = world.net, 0

    def breaks(each: Sent) -> bool:
        nonlocal sent
        sent += 1
        if sent == 10:
            net.cut()
            net.forget()
        return not net.is_cut

    net.on_sent = breaks
    counts = world.run()

    assert counts.acked == 200
    assert world.clock.now < 160


def test_a_dead_letter_stream_without_room_fails_the_task(monkeypatch):
    """
    A22: within `publishTimeout`; what it says is not kept for ever, and rows that were shed but not
    stored there count as shed alone.
    """
    world, dead = shedding(monkeypatch, dead_letter_subject="dlq")
    dead.is_full = True

    with pytest.raises(PublishTimeoutError, match="dlq"):
        world.run()
    assert world.clock.now < 100 + 21
    lane = world.publisher.lanes.apart.get("dead_letters")
    assert lane is not None and len(lane.tally.refusals) <= 1
    counted = world.telemetry.snapshot()
    assert counted.total("jetstream_publish_rejected_total") > (0,)
    assert counted.total("jetstream_publish_dead_letter_total") == (0,)


@pytest.mark.parametrize("max_percent", [50, 150])
def test_a26_too_much_cpu_sheds(monkeypatch, max_percent):
    """
    A26: a writer that uses a whole core, where it may use half of one, has too much to do.
    """
    world, dead = shedding(
        monkeypatch, False, dead_letter_subject="dlq", max_cpu_percent=max_percent
    )
    monkeypatch.setattr(limits, "_CPU_WINDOW_S", 0.01)  # the model's network is fast
    monkeypatch.setattr(world.clock, "process_time", lambda: world.clock.now, raising=False)
    counts = world.run()

    assert (counts.dead_letters > 0) == (max_percent < 100)
    assert {each.headers["Jetstream-Sink-Reason"] for each in dead.stored} <= {"MaxCpuUsage"}
    assert counts.acked + counts.dead_letters == 300


@pytest.mark.parametrize(("window_s", "maximum"), [(1e9, 1), (1.0, 300)])
def test_a23_drops_are_said_once_in_a_window(monkeypatch, caplog, window_s, maximum):
    """
    A23: with their number, not for each row; where they are kept as dead letters, not at all.
    """
    caplog.set_level("WARNING", "pyspark_jetstream")
    rules = rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=window_s)
    world, _ = shedding(monkeypatch, rules=rules, drops=True)
    start = world.clock.now
    dropped = world.run().dropped
    said = [each.message for each in caplog.records if "dropped" in each.message]
    world, _ = shedding(monkeypatch, rules=rules, dead_letter_subject="dlq")
    caplog.clear()

    assert world.run().dead_letters > 0
    assert caplog.records == []
    assert 1 <= len(said) <= min(maximum, 1 + (world.clock.now - start) / window_s)
    assert len(said) < dropped
    assert said[0].startswith("dropped ")


def test_rows_that_are_stored_take_no_time(monkeypatch):
    """
    An attempt that finds thousands of rows stored looks at the next thousand at once.
    """
    world = World(
        monkeypatch, [block("ab" * 2500, 0)], random.Random(1), is_checked=True,
        publish_mode="async",
    )  # fmt: skip
    world.net.chaos = 0.0
    world.stored_before = lambda each: pa.array([True] * len(each))

    assert world.run().rows == 5000
    assert world.clock.now < 100 + 5


def test_a_connection_that_breaks_behind_the_last_row_fails_nothing(monkeypatch):
    """
    All is stored; a task that failed now would store it again.
    """
    world = World(monkeypatch, [block("ab", 0)], random.Random(1), publish_mode="async")
    world.net.chaos = 0.0

    def cut(sid: int) -> None:
        raise NotConnectedError("model", "cut")

    monkeypatch.setattr(world.net, "unsubscribe", cut)

    assert world.run().acked == 2


def test_metrics_larger_than_max_payload_are_not_sent(monkeypatch):
    """
    The server would cut the connection, again and again.
    """
    world, found = shedding(monkeypatch, metrics_subject="m", drops=True)
    monkeypatch.setattr(Net, "max_payload", 10)
    world.run()

    assert found.heard == []


def test_a26_a_limit_is_held_by_its_own_task_alone(monkeypatch):
    """
    A26: limits outlive their tasks; the next one may use all the CPU it wants.
    """
    world = World(monkeypatch, [block("ab", 0)], random.Random(1), publish_mode="async")
    world.net.chaos = 0.0
    limit = limits.GradientLimit(1, 64, 4096)
    limit.held = True
    monkeypatch.setattr(laneset, "kept_limit", lambda *_: limit)
    world.run()

    assert not limit.held
