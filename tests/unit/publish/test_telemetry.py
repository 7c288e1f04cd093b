"""What one task counts, and what its reports say; no clock, no server."""

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.publish.metrics import MetricsReport
from pyspark_jetstream.publish.telemetry import Origin, Reporter, Telemetry

from ...kits.lanes import messages

CRITICAL, NORMAL, NON_CRITICAL = Priority


def total(one: Telemetry, name: str, **labels: str) -> int:
    """The first value of a metric's series of these labels."""
    return one.snapshot().total(f"jetstream_{name}", **labels)[0]


def test_totals_count_once():
    """What is new of totals is added, however often they are told."""
    one = Telemetry()
    one.count({"success": 5, "pushed_back": 1})
    one.count({"success": 9, "pushed_back": 1, "retries": 3})
    one.count({"success": 9, "pushed_back": 1, "retries": 4})
    one.count({"rejected": 2})
    name = "publish_outcomes_total"

    assert total(one, name, status="success") == 9
    assert total(one, name, status="pushed_back") == 1
    assert total(one, name, status="rejected") == 2
    assert total(one, "publish_retries_total") == 4


@pytest.mark.parametrize("are_kept", [True, False])
def test_what_is_shed(are_kept):
    """By route, reason and priority, as dead letters or as dropped."""
    one = Telemetry(["a.*"])
    rows = messages(["a.x", "b", "a.y"])
    priorities = pa.array([NON_CRITICAL, NORMAL, NON_CRITICAL], pa.int8())
    one.shed(replace(rows, priorities=priorities), "QueueTimeout", are_kept)
    one.shed(rows, "MaxMemoryUsage", are_kept)

    assert total(one, "publish_rejected_total") == 6
    assert total(one, "publish_rejected_total", subject="a.*", priority="noncritical") == 2
    assert total(one, "publish_dead_letter_total") == (6 if are_kept else 0)
    assert total(one, "publish_outcomes_total", status="dropped") == (0 if are_kept else 6)
    name = "publish_dead_letter_total" if are_kept else "publish_rejected_total"
    assert total(one, name, reason="QueueTimeout", priority="noncritical") == 2
    assert total(one, name, reason="QueueTimeout", priority="normal") == 1
    assert total(one, name, reason="MaxMemoryUsage", priority="normal") == 3


def test_reports_are_due_at_their_times():
    """The first at once, the next an interval later; each has a number; the last says so."""
    one, reporter = Telemetry(), Reporter(Origin(7, "query", 3), is_on=True)
    due = [reporter.due]
    said = []
    for now, final in ((0.0, False), (5.5, False), (6.0, True)):
        one.count({"success": round(now * 10)})
        said.append(MetricsReport.decode(reporter.report(one.snapshot(), now, final)))
        due.append(reporter.due)

    assert due == [-math.inf, 5.0, 10.5, 11.0]
    assert [each.sequence for each in said] == [1, 2, 3]
    assert [each.final for each in said] == [False, False, True]
    assert {(each.producer_id, each.query_id, each.batch_id) for each in said} == {(7, "query", 3)}
    assert [each.snapshot.total("jetstream_publish_outcomes_total")[0] for each in said] == [
        0, 55, 60,
    ]  # fmt: skip


def test_without_a_subject_nothing_is_ever_due():
    """Then nothing wakes the writer for it."""
    assert Reporter(Origin(), is_on=False).due == math.inf


QUOTA, PENDING = Reason.TopicProduceQuotaExceeded, Reason.ConnectionPendingMessagesBreach
TIMES, LIMITS = "producer_throttled_times", "publish_rate_limit_count"


def command(filter: str, pause_s: float, reason: Reason = QUOTA) -> ThrottleProducer:
    return ThrottleProducer(1, reason, pause_s, filter)


def test_pauses():
    """PIP-385's metrics: all count as time passes, and a renewal is no new limit."""
    one, throttle = Telemetry(), Throttle()
    throttle.table.command(command("b.>", 0.64), 0.0)
    throttle.table.command(command("x", 1.0, PENDING), 0.0)
    throttle.refusals.refuse("a.x", (10077, "full", True), "A", 0.0, 0.0)
    throttle.refusals.refuse("a.y", (10077, "full", True), "A", 0.0, 0.0)
    throttle.refusals.refuse("c", (10167, "busy", False), "C", 0.01, 0.0)
    throttle.refusals.refuse("a.x", (10158, "?", False), "A", 9.0, 0.0)
    one.paused(throttle, 0.005)
    early = total(one, TIMES)
    throttle.table.command(command("b.>", 0.64), 0.5)
    one.paused(throttle, 60.0)

    assert early == 4 * 5
    assert total(one, TIMES, subject="b.>", reason=QUOTA.name) == 1140
    assert total(one, TIMES, subject=">", reason=PENDING.name) == 1000
    assert total(one, TIMES, stream="A") == 250
    assert total(one, TIMES, stream="C") == 10
    assert total(one, LIMITS, limiter="operator", subject="b.>") == 1
    assert total(one, LIMITS, limiter="server") == 2
