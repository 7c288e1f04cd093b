"""What one task counts, and what its reports say; no clock, no server."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.limits import Kind
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason
from pyspark_jetstream.publish.lanes.answers import Outcome, Refusal
from pyspark_jetstream.publish.metrics import Report
from pyspark_jetstream.publish.telemetry import (
    TOTALS,
    Origin,
    Reporter,
    Telemetry,
)

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
    first = {name: count for count, name in enumerate(TOTALS, 1)}
    for totals in (first, first, {name: 2 * count for name, count in first.items()}):
        one.count(totals, "S", 0)

    statuses = {
        "success": first["stored"],
        "bypassed": first["dead_letters"],
        "pushed_back": first["drops"],
        "ignored": first["ignored"],
        "rejected": first["rejected"],
    }
    for status, count in statuses.items():
        assert total(one, "publish_outcomes_total", status=status) == 2 * count
    assert total(one, "publish_duplicates_total") == 2 * first["duplicates"]
    assert total(one, "publish_retries_total") == 2 * first["retries"]
    late = total(one, "publish_retries_beyond_duplicate_window_total")
    assert late == 2 * first["late_retries"]
    assert total(one, "producer_throttle_commands_invalid_total") == 2 * first["invalid"]
    assert total(one, "publish_priority_unrecognised_total") == 2 * first["unrecognised"]


def test_totals_are_those_of_lanes():
    """
    What each lane has counted adds up, under the stream it has at that time.
    """
    one = Telemetry()
    one.count({"stored": 5}, "S", 0)
    one.count({"stored": 7, "drops": 1}, "T", 1)
    one.count({"stored": 9}, "", 0)
    one.count({"rejected": 2})
    name = "publish_outcomes_total"

    assert [total(one, name, status="success", stream=each) for each in ("S", "T", "")] == [5, 7, 4]
    assert total(one, name, status="pushed_back", stream="T") == 1
    assert total(one, name, status="rejected") == 2


def stream(place):
    """The name of the stream in this place."""
    return "" if place is None else "ST"[place]


@pytest.mark.parametrize("are_kept", [True, False])
def test_what_is_shed(are_kept):
    """
    Shed rows are counted at once by stream, route, reason and priority; those that are
    dropped are gone, and dead letters count, in the order of shedding, when they are stored.
    """
    one = Telemetry(["a.*"])
    rows = messages(["a.x", "b", "a.y"])
    priorities = pa.array([NON_CRITICAL, NORMAL, NON_CRITICAL], pa.int8())
    of_streams = replace(rows, targets=pa.array([1, None, 1], pa.int32()))
    one.shed(replace(of_streams, priorities=priorities), "QueueTimeout", are_kept, stream)
    one.shed(rows, "MaxMemoryUsage", are_kept, stream)
    stored = []
    for count in (0, 1, 3, 6):
        one.count({"dead_letters": count}, "", 1)
        stored.append(total(one, "publish_dead_letter_total"))
    dropped = total(one, "publish_dropped_total")

    assert total(one, "publish_rejected_total") == 6
    assert total(one, "publish_rejected_total", subject="a.*", priority="noncritical") == 2
    assert total(one, "publish_rejected_total", stream="T") == 2
    assert total(one, "publish_rejected_total", stream="") == 4
    assert (stored, dropped) == (([0, 1, 3, 6], 0) if are_kept else ([0] * 4, 6))
    name = "publish_dead_letter_total" if are_kept else "publish_dropped_total"
    assert total(one, name, reason="QueueTimeout", priority="noncritical", stream="T") == 2
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
        one.count({"stored": round(now * 10)})
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


QUOTA, PENDING = Reason.TopicProduceQuotaExceeded, Reason.ConnectionPendingMessagesBreach
TIMES, LIMITS = "producer_throttled_times", "publish_rate_limit_count"


def refusal(err_code: int, subject: str, detail: str = "") -> Refusal:
    """The server's, until whenever."""
    return Refusal(subject, Outcome(Kind.LIMITED, detail, err_code), 0.0)


def test_pauses():
    """
    A command counts for its filter, a refusal for the route of its subject and its stream; what is
    no refusal for a limit or the load counts for nothing. All count as time passes.
    """
    one = Telemetry(["a.*"])
    one.commanded(QUOTA, "b.>", 0.64, 0.0)
    one.refused(refusal(10077, "a.x"), 0.25, "A", 0.0)
    one.refused(refusal(10167, "c"), 0.01, "C", 0.0)
    one.refused(refusal(10158, "a.x"), 9.0, "A", 0.0)
    at_first = total(one, TIMES)
    one.passed(0.005)
    early = total(one, TIMES)
    one.passed(60.0)

    assert (at_first, early) == (0, 15)
    assert total(one, TIMES) == 640 + 250 + 10
    assert total(one, TIMES, subject="a.*", stream="A") == 250
    assert total(one, LIMITS, limiter="operator", subject="b.>") == 1
    assert total(one, LIMITS, limiter="server") == 2
    assert total(one, LIMITS, subject="UNKNOWN", stream="C") == 1


@pytest.mark.parametrize("every_s", [1.0, 0.3])
def test_a_pause_that_is_issued_again(every_s):
    """
    PIP-385's metric: a pause of 60 s, issued each second for 1.5 s, is 60,000 ms and one limit.
    """
    one, now = Telemetry(), 0.0
    while now < 60.0 - 1e-9:
        one.commanded(QUOTA, "a.>", min(1.5, 60.0 - now), now)
        one.passed(now)
        now += every_s
    one.commanded(QUOTA, "a.>", 0.0, 60.0)
    one.passed(100.0)

    assert total(one, TIMES) == 60_000
    assert total(one, LIMITS) == 1


def test_a_pause_that_is_shortened():
    """
    It counts as long as it was; the same again later is another one.
    """
    one = Telemetry()
    one.commanded(QUOTA, "a.>", 60.0, 0.0)
    one.commanded(QUOTA, "a.>", 2.0, 10.0)
    one.passed(11.0)
    one.commanded(QUOTA, "a.>", 0.0, 11.5)
    one.commanded(QUOTA, "a.>", 0.0, 12.0)
    one.passed(50.0)

    assert (total(one, TIMES), total(one, LIMITS)) == (11_500, 1)
    one.commanded(QUOTA, "a.>", 1.0, 50.0)
    one.passed(60.0)
    assert (total(one, TIMES), total(one, LIMITS)) == (12_500, 2)


def test_a_quota_is_one_limit():
    """
    It pauses again and again, for what is more than its rate; that is one limit until there was no
    pause for some seconds, or it was lifted.
    """
    one = Telemetry()
    for now in range(10):
        one.commanded(QUOTA, "a.>", 0.3, float(now))
    one.passed(10.0)

    assert (total(one, TIMES), total(one, LIMITS)) == (3_000, 1)
    one.commanded(QUOTA, "a.>", 0.3, 15.0)
    one.commanded(QUOTA, "a.>", 0.0, 15.1)
    one.commanded(QUOTA, "a.>", 0.3, 15.2)
    assert total(one, LIMITS) == 3


def test_a_word_about_more_subjects_counts_for_them():
    """
    The latest word about a subject counts, so from then on it is the wider filter that is paused,
    or not; the other reasons' pauses go on, and so do narrower filters'.
    """
    one = Telemetry()
    one.commanded(QUOTA, "a.b", 60.0, 0.0)
    one.commanded(Reason.ResourceGroupProduceQuotaExceeded, "a.b", 3.0, 0.0)
    one.commanded(QUOTA, "a.b.c", 60.0, 0.0)
    one.commanded(QUOTA, "a.*", 0.0, 2.0)
    one.passed(10.0)

    assert total(one, TIMES, subject="a.b", reason=QUOTA.name) == 2_000
    assert total(one, TIMES, subject="a.b") == 5_000
    assert total(one, TIMES, subject="a.b.c") == 10_000


def test_words_about_the_connection():
    """
    B6: they pause the whole writer, whatever the filter; without a pause they count as a limit, and
    no time.
    """
    one = Telemetry()
    one.commanded(PENDING, "a", 1.0, 0.0)
    one.commanded(PENDING, "b", 0.0, 0.5)
    for now in (10.0, 11.0, 12.0):
        one.commanded(PENDING, "a", 0.0, now)
    one.passed(20.0)

    assert total(one, TIMES, subject=">") == total(one, TIMES) == 500
    assert total(one, LIMITS, subject=">") == 2


def test_a_limit_of_the_server_is_met_again():
    """
    What is refused is tried again, and refused: that is one limit, until nothing is for some
    seconds. Of subjects of one route time counts once, and a stream's limit once for all subjects.
    """
    one = Telemetry(["a.*"])
    for now in range(10):
        one.refused(refusal(10077, "a.x", "maximum messages per subject exceeded"), 0.5, "A", now)
        one.refused(refusal(10077, "a.y", "maximum messages per subject exceeded"), 0.25, "A", now)
    one.passed(10.0)

    assert (total(one, TIMES), total(one, LIMITS)) == (5_000, 2)
    one.refused(refusal(10077, "a.x", "maximum messages per subject exceeded"), 0.5, "A", 20.0)
    assert total(one, LIMITS) == 3
    for number in range(100):
        one.refused(refusal(10077, f"a.{number}", "maximum messages exceeded"), 0.5, "B", 30.0)
    assert total(one, LIMITS, stream="B") == 1
