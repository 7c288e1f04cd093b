"""What one task counts, and what its reports say; no clock, no server."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.limits import GradientLimit
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttleprotocol import Reason
from pyspark_jetstream.publish.metrics import Report
from pyspark_jetstream.publish.telemetry import Origin, Reporter, Telemetry, Totals

from ...kits.lanes import messages

CRITICAL, NORMAL, NON_CRITICAL = Priority


def total(one: Telemetry, name: str, **labels: str) -> int:
    """The first value of a metric's series of these labels."""
    return one.snapshot().total(f"jetstream_{name}", **labels)[0]


def test_totals_count_once():
    """
    What is new since the last time is added, whoever looks how often.
    """
    one = Telemetry()
    first = Totals(*range(1, len(Totals._fields) + 1))
    for totals in (first, first, Totals(*(2 * each for each in first))):
        one.count(totals)

    statuses = {
        "success": first.stored,
        "bypassed": first.dead_letters,
        "dropped": first.drops,
        "ignored": first.ignored,
        "rejected": first.rejected,
    }
    for status, count in statuses.items():
        assert total(one, "publish_outcomes_total", status=status) == 2 * count
    assert total(one, "publish_duplicates_total") == 2 * first.duplicates
    assert total(one, "publish_retries_total") == 2 * first.retries
    late = total(one, "publish_retries_beyond_duplicate_window_total")
    assert late == 2 * first.late_retries
    assert total(one, "producer_throttle_commands_invalid_total") == 2 * first.invalid
    assert total(one, "publish_priority_unrecognised_total") == 2 * first.unrecognised


@pytest.mark.parametrize("are_kept", [True, False])
def test_what_is_shed(are_kept):
    """
    Shed rows are counted at once by route, reason and priority; those that are dropped are gone,
    and dead letters count, in the order of shedding, when they are stored.
    """
    one = Telemetry(["a.*"])
    rows = messages(["a.x", "b", "a.y"])
    priorities = pa.array([NON_CRITICAL, NORMAL, NON_CRITICAL], pa.int8())
    one.shed(replace(rows, priorities=priorities), "QueueTimeout", are_kept)
    one.shed(rows, "MaxMemoryUsage", are_kept)
    stored = []
    for count in (0, 1, 3, 6):
        one.count(Totals(dead_letters=count))
        stored.append(total(one, "publish_dead_letter_total"))
    dropped = total(one, "publish_dropped_total")

    assert total(one, "publish_rejected_total") == 6
    assert total(one, "publish_rejected_total", subject="a.*", priority="noncritical") == 2
    assert (stored, dropped) == (([0, 1, 3, 6], 0) if are_kept else ([0] * 4, 6))
    name = "publish_dead_letter_total" if are_kept else "publish_dropped_total"
    assert total(one, name, reason="QueueTimeout", priority="noncritical") == 2
    assert total(one, name, reason="QueueTimeout", priority="normal") == 1
    assert total(one, name, reason="MaxMemoryUsage", priority="normal") == 3


def test_blocked_seconds():
    """
    Time without asking for rows counts under its cause, and none after rows were asked for.
    """
    one = Telemetry()
    causes = ["queue", "queue", "throttle", None, None, "queue", None]
    for now, cause in enumerate(causes):
        one.wants_rows(cause, float(now))

    assert total(one, "publish_blocked_seconds_total", cause="queue") == 3_000_000
    assert total(one, "publish_blocked_seconds_total", cause="throttle") == 1_000_000


def test_reports_are_due_at_their_times():
    """
    The first at once, the next an interval later; each has a number of its own, and the last says
    that it is.
    """
    one, reporter = Telemetry(), Reporter(Origin(7, "query", 3), "run", 5.0)
    due = [reporter.due]
    said = []
    for now, final in ((0.0, False), (5.5, False), (6.0, True)):
        one.count(Totals(stored=round(now * 10)))
        said.append(Report.decode(reporter.report(one.snapshot(), now, final)))
        due.append(reporter.due)

    assert due == [-math.inf, 5.0, 10.5, 11.0]
    assert [each.sequence for each in said] == [1, 2, 3]
    assert [each.final for each in said] == [False, False, True]
    assert {(each.producer_id, each.run, each.query_id, each.batch_id) for each in said} == {
        (7, "run", "query", 3)
    }
    assert [each.snapshot.total("jetstream_publish_outcomes_total")[0] for each in said] == [
        0, 55, 60,
    ]  # fmt: skip


def test_without_a_subject_nothing_is_ever_due():
    """
    Then nothing wakes the writer for it.
    """
    assert Reporter(Origin(), "run", math.inf).due == math.inf


def test_a_watched_limit_is_the_limit():
    """
    Samples and push-backs reach the limit, and samples are counted.
    """
    one = Telemetry()
    plain, seen = GradientLimit(1, 64, 4096), GradientLimit(1, 64, 4096)
    watched = one.watched(seen, "async")
    for limit in (plain, watched):
        for tick in range(20):
            limit.acked(64, 0.01, limit.value, tick / 10)
        limit.dropped(2.0)
    count = sum(one.snapshot().total("jetstream_publish_processing_time_seconds")[:-1])

    assert plain.value != 64
    assert (watched.value, watched.drops, watched.maximum) == (plain.value, 1, 4096)
    assert count == 20 * 64


def test_pauses():
    """
    A command counts for its filter, a refusal for the route of its subject; what is no refusal for
    a limit or the load counts for nothing.
    """
    one = Telemetry(["a.*"])
    one.commanded(Reason.TopicProduceQuotaExceeded, "b.>", 0.64)
    one.refused(10077, "a.x", 0.25)
    one.refused(10167, "c", 0.01)
    one.refused(10158, "a.x", 9.0)

    assert total(one, "producer_throttled_times") == 640 + 250 + 10
    assert total(one, "producer_throttled_times", subject="a.*") == 250
    assert total(one, "publish_rate_limit_count", limiter="operator", subject="b.>") == 1
    assert total(one, "publish_rate_limit_count", limiter="server") == 2
    assert total(one, "publish_rate_limit_count", subject="UNKNOWN") == 1
