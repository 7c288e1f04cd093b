"""Who gets what of a shared consumer: queries called as Spark calls them, a real server."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from ..kits.reading import jobs as query
from ..kits.shared import RETENTIONS, ack_pending, numbered, numbered_stream

__all__ = ["numbered_stream", "query"]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_two_queries_have_the_stream_between_them(js, new_stream, publish, query, retention):
    """Two queries in turns have each message once between them; commits acknowledge."""
    name = new_stream(retention=retention)
    one, two = (query(stream=name, maxRecordsPerTrigger=30) for _ in range(2))
    assert one.claim() is None and two.claim() is None  # makes the consumer
    publish(numbered(name, 100))
    while one.step() + two.step():
        pass

    rows = {row["sequence"]: row for row in one.rows + two.rows}
    assert sorted(one.sequences + two.sequences) == list(range(1, 101))
    assert len(one.rows) >= 30 and len(two.rows) >= 30
    assert {(s, row["subject"], row["data"], row["deliveries"]) for s, row in rows.items()} == {
        (i + 1, f"{name}.{i % 7}", b"m%d" % i, 1) for i in range(100)
    }
    assert ack_pending(js, name) == 0
    assert js.consumer_info(name, "jobs-0").config["headers_only"]
    assert js.stream_info(name).messages == (100 if retention == "limits" else 0)


def test_overflow_by_pending(js, new_stream, publish, query):
    """`minPending`: served only while so many messages wait (ADR-42; >= as measured)."""
    name = new_stream()
    primary, second = query(stream=name), query(stream=name, minPending=11)
    publish(numbered(name, 10))

    assert second.claim() is None
    publish(numbered(name, 3, start=10))
    assert second.step() == 3, "13, 12 and 11 are served, the tenth last is not"
    assert second.claim() is None
    assert primary.step() == 10
    assert sorted(primary.sequences + second.sequences) == list(range(1, 14))


def test_overflow_by_claims(js, new_stream, publish, query):
    """`minAckPending`: served only while so many claims of others are open."""
    name = new_stream()
    primary = query(stream=name, maxRecordsPerTrigger=5)
    second = query(stream=name, minAckPending=5)
    publish(numbered(name, 12))

    assert second.claim() is None
    primary.plan()
    assert second.step() == 7, "five claims are open: the rest goes to the overflow query"
    primary.commit()
    assert sorted(primary.sequences + second.sequences) == list(range(1, 13))


def test_a_query_may_wait_for_its_message(js, new_stream, publish, query):
    """An idle query has a pull waiting: a message that comes meanwhile is claimed by that call."""
    name = new_stream()
    one = query(stream=name, priorityPolicy="prioritized")
    assert one.claim() is None
    stop, found = threading.Event(), []

    def poll():
        while not stop.is_set() and not found:
            end = one.plan()
            if end is not None:
                found.append(end)

    thread = threading.Thread(target=poll)
    thread.start()
    publish([(f"{name}.x", b"1")])
    thread.join(60)
    stop.set()

    assert found[0]["claims"] == {"0": {"1": "1"}}


def test_partitions_are_claimed_alike(js, new_stream, publish, query):
    """With several partitions a batch has its part of each; what one lacks goes to the others."""
    name = new_stream()
    publish([(f"{name}.{p}.x", b"%d" % i) for i in range(40) for p in (0, 1)])
    publish([(f"{name}.2.x", b"only")])
    one = query(stream=name, partitions=3, partitionSubject=f"{name}.{{partition}}.>",
                maxRecordsPerTrigger=31)  # fmt: skip
    end = one.plan()
    one.commit()
    counts = [sum(row["partition"] == p for row in one.rows) for p in range(3)]

    assert sum(counts) == 31
    assert counts[2] == 1
    assert abs(counts[0] - counts[1]) <= 2
    assert set(end["claims"]) == {"0", "1", "2"}
    assert all(row["subject"].split(".")[1] == str(row["partition"]) for row in one.rows)
    one.drain()
    assert sorted(one.sequences) == list(range(1, 82))


def test_streams_layout(js, new_stream, publish, query):
    """One stream a partition: each has its own shared consumer."""
    base = new_stream()
    names = [new_stream(f"{base}-{p}", subjects=[f"{base}x{p}.>"]) for p in (0, 1)]
    publish([(f"{base}x{p}.a", b"x") for p in (0, 1) for _ in range(5)])
    one = query(stream=f"{base}-{{partition}}", partitions=2)
    one.drain()

    assert sorted((r["stream"], r["sequence"]) for r in one.rows) == [
        (name, s) for name in names for s in range(1, 6)
    ]


def test_headers_and_tasks(js, new_stream, publish, query):
    """Headers, `deliveries` behind them; `minPartitions` and `maxRecordsPerPartition` cut."""
    name = new_stream()
    publish([(f"{name}.a", b"x", [("A", "1"), ("A", "2")])] * 10)
    one = query(stream=name, includeHeaders="true", minPartitions=4, maxRecordsPerPartition=3)
    one.plan()
    tasks = one.reader.partitions(one.start, one.planned[-1])
    one.commit()

    assert [task.work.reads[0].expected for task in tasks] == [2, 3, 2, 3]
    assert list(one.rows[0])[-2:] == ["headers", "deliveries"]
    assert one.rows[0]["headers"] == [("A", ["1", "2"])]


def test_a_start_other_than_the_first_message(js, numbered_stream, query):
    """The query that makes the consumer says where it begins; those that join take it as it is."""
    name = numbered_stream(10)
    one = query(stream=name, startingOffsets='{"0": 8}')
    two = query(stream=name, startingOffsets="earliest")
    one.drain()
    two.drain()

    assert one.sequences == [8, 9, 10]
    assert two.sequences == []


def test_available_now(js, numbered_stream, publish, query):
    """A run of what is there claims as much as was waiting when it began, and ends."""
    name = numbered_stream(25)
    one = query(stream=name, maxRecordsPerTrigger=10)
    one.reader.prepareForTriggerAvailableNow()
    one.step()
    publish(numbered(name, 50, start=25))
    one.drain()

    assert one.sequences == list(range(1, 26))
    assert ack_pending(js, name) == 0


def test_available_now_of_a_paused_consumer_ends(js, new_stream, publish, query, caplog):
    """A run of what is there leaves what a paused consumer has, and says until when."""
    name = new_stream()
    one = query(stream=name)
    assert one.claim() is None
    publish(numbered(name, 5))
    until = datetime.now(UTC) + timedelta(hours=1)
    js.call(f"CONSUMER.PAUSE.{name}.jobs-0", {"pause_until": until.isoformat()})
    one.reader.prepareForTriggerAvailableNow()

    assert one.claim() is None
    assert "'jobs-0' is paused until" in caplog.text


def test_batches_are_limited(js, new_stream, publish, query):
    """`maxRecordsPerTrigger` and `maxBytesPerTrigger` limit what a batch claims."""
    name = new_stream()
    publish([(f"{name}.a", bytes(1000))] * 50)
    by_rows = query(stream=name, maxRecordsPerTrigger=7)
    by_bytes = query(stream=name, maxBytesPerTrigger=5000)

    assert by_rows.step() == 7
    assert 2 <= by_bytes.step() <= 5


def test_one_message_at_a_time(js, numbered_stream, publish, query):
    """With `maxAckPending` 1 one claim is held; another query gets one when it has none."""
    name = numbered_stream(4)
    one = query(stream=name, maxAckPending=1)
    two = query(stream=name, maxAckPending=1, minPending=1)

    assert [each.step() for each in (one, two, one, two, one, two, one)] == [1, 0, 1, 0, 1, 0, 1]
    assert one.step() == 0
    publish(numbered(name, 2, start=4))
    assert [each.step() for each in (two, one, two, two, one)] == [1, 0, 1, 0, 0]
    assert (one.sequences, two.sequences) == ([1, 2, 3, 4], [5, 6])


def test_progress(js, numbered_stream, query):
    """The progress tells claims of this query, of all readers, and what nobody has claimed."""
    name = numbered_stream(30)
    one, two = (query(stream=name, maxRecordsPerTrigger=10) for _ in range(2))
    one.plan()
    two.plan()

    assert two.reader.reportLatestOffset() == {
        "0": {"stream": name, "latest": 30, "lag": 10, "ackPending": 20, "claimed": 10,
              "redelivered": 0},
        "metrics": {"avgOffsetsBehindLatest": "10.0", "maxOffsetsBehindLatest": "10",
                    "minOffsetsBehindLatest": "10"},
    }  # fmt: skip
