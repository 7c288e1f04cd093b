"""`spark.readStream.format("jetstream")` against a real server, in a real Spark session."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.jetstream import JetStream

from .conftest import Run

RunQuery = Callable[..., Run]
NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]


def numbered(name: str, n: int, partitions: int = 1, start: int = 0) -> list[tuple[str, bytes]]:
    """`n` messages dealt out over `<name>.<partition>.x`."""
    return [(f"{name}.{i % partitions}.x", b"m%d" % i) for i in range(start, start + n)]


@pytest.mark.parametrize("read_mode", ["auto", "consumer", "direct"])
@pytest.mark.parametrize("layout", ["one", "filtered", "streams"])
def test_every_message_is_delivered_once(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, layout: str, read_mode: str
) -> None:
    """
    In each layout and read mode two runs over a growing stream deliver every message exactly once,
    with its columns.
    """
    options: dict[str, Any] = {"readMode": read_mode}
    if layout == "streams":
        base = new_stream()
        for p in range(2):
            new_stream(f"{base}P-{p}", subjects=[f"{base}P.{p}.>"])
        prefix = f"{base}P"
        options |= {"stream": f"{base}P-{{partition}}", "partitions": 2}
    else:
        prefix = new_stream()
        options |= {"stream": prefix}
        if layout == "filtered":
            options |= {"partitions": 2, "partitionSubject": f"{prefix}.{{partition}}.>"}
    publish(numbered(prefix, 300, 2))
    first = run_query(**options)
    publish(numbered(prefix, 100, 2, start=300))
    second = run_query(**options)
    rows = first.rows + second.rows

    assert len(first.rows) == 300
    assert sorted(bytes(row.data) for row in rows) == sorted(b"m%d" % i for i in range(400))
    for row in rows:
        number = int(bytes(row.data)[1:])
        assert row.subject == f"{prefix}.{number % 2}.x"
        assert row.partition == (0 if layout == "one" else number % 2)
        assert row.timestamp.year >= 2024
    assert {row.stream for row in rows} == (
        {f"{prefix}-0", f"{prefix}-1"} if layout == "streams" else {prefix}
    )


def test_order_within_a_partition(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """Rows of a partition come in stream order."""
    name = new_stream()
    publish(numbered(name, 500, 2))
    run = run_query(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")

    for partition in (0, 1):
        sequences = [row.sequence for row in run.rows if row.partition == partition]
        assert sequences == sorted(sequences) and len(sequences) == 250


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_retention(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream, retention: str
) -> None:
    """
    On every retention a message is delivered once; interest and workqueue streams let go of it
    once its batch is committed, which for the last batch the next run sees to.
    """
    name = new_stream(retention=retention)
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.x",
               "maxRecordsPerTrigger": 40}  # fmt: skip
    run_query(**options)  # makes the consumers: an interest stream keeps nothing before
    publish(numbered(name, 100, 2))
    first = run_query(**options)
    left = js.stream_info(name).messages
    publish(numbered(name, 2, 2, start=100))
    second = run_query(**options)

    assert first.sequences == list(range(1, 101))
    assert second.sequences == [101, 102]
    assert left == (100 if retention == "limits" else 20)
    assert js.stream_info(name).messages == (102 if retention == "limits" else 2)


def test_max_records_per_trigger(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """No batch exceeds maxRecordsPerTrigger, over all partitions together."""
    name = new_stream()
    publish(numbered(name, 250, 3))
    run = run_query(
        stream=name, partitions=3, partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerTrigger=60,
    )  # fmt: skip

    assert run.sequences == list(range(1, 251))
    assert max(run.sizes) <= 60
    assert len(run.sizes) <= 7


def test_max_bytes_per_trigger(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """maxBytesPerTrigger cuts by the stream's average message, together with the row limit."""
    name = new_stream()
    publish([(f"{name}.0.x", b"x" * 1000) for _ in range(100)])
    run = run_query(stream=name, maxBytesPerTrigger="21KB", maxRecordsPerTrigger=90)

    assert run.sequences == list(range(1, 101))
    assert max(run.sizes) in range(15, 22)


def test_a_small_partition_is_not_starved(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """
    Beside a partition with a deep backlog, a partition of another stream with few messages has
    them in the first batch.
    """
    base = new_stream() + "H"
    for p in range(2):
        new_stream(f"{base}-{p}", subjects=[f"{base}.{p}.>"])
    publish([(f"{base}.0.x", b"hot")] * 400 + [(f"{base}.1.x", b"small")] * 5)
    run = run_query(stream=f"{base}-{{partition}}", partitions=2, maxRecordsPerTrigger=50)

    assert sum(row.partition == 1 for row in run.batches[0]) == 5
    assert len(run.batches[0]) <= 50
    assert len(run.rows) == 405


def test_min_records_wait_for_more_or_for_the_delay(
    stream_df: Callable[..., Any], new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    With minRecordsPerTrigger a batch waits until so many messages are there, but not beyond
    maxTriggerDelay.
    """
    name = new_stream()
    batches: list[int] = []
    query = (
        stream_df(stream=name, minRecordsPerTrigger=10, maxTriggerDelay="3s")
        .writeStream.foreachBatch(lambda df, _: batches.append(df.count()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        publish(numbered(name, 4))
        time.sleep(0.5)
        early = [size for size in batches if size]
        publish(numbered(name, 8))
        deadline = time.monotonic() + 30
        while sum(batches) < 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        full = [size for size in batches if size]
        publish(numbered(name, 3))
        while sum(batches) < 15 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        query.stop()

    assert early == []
    assert full == [12]
    assert [size for size in batches if size] == [12, 3]


def test_progress_reports_lag_and_read_mode(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """Progress shows each partition's stream end, its lag at the batch's start and its mode."""
    name = new_stream()
    publish(numbered(name, 100, 2))
    run = run_query(
        stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerTrigger=50,
    )  # fmt: skip
    reports = [p["sources"][0]["latestOffset"] for p in run.progress]

    assert reports[0] == {
        str(p): {"stream": name, "latest": 100, "lag": 50, "read": "consumer"} for p in (0, 1)
    }
    assert [report["0"]["lag"] for report in reports if report["0"]["lag"]] == [50, 25]


def test_lag_of_the_consumers_is_visible(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """What `nats consumer info` shows as pending is what the query has not read."""
    name = new_stream()
    publish(numbered(name, 20, 2))
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>",
               "consumer": "lagtest"}  # fmt: skip
    run_query(**options)
    publish(numbered(name, 6, 2))

    for p in (0, 1):
        info = js.consumer_info(name, f"lagtest-{p}")
        assert info.num_pending == 3
        assert info.config["priority_policy"] == "pinned_client"
        assert info.config["ack_policy"] == "none"


def test_available_now_ends_while_a_producer_writes(
    run_query: RunQuery, new_stream: NewStream, nats_server: DevServer, js: JetStream
) -> None:
    """AvailableNow reads what was there when it began, and ends although more keeps coming."""
    from pyspark_jetstream.client import Client

    from ..conftest import connection_to

    name = new_stream()
    stop = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        client = Client(connection_to(nats_server))
        while not stop.is_set():
            client.requests([(f"{name}.{i % 2}.x", b"x") for i in range(20)])
            sent += 20
            time.sleep(0.005)
        client.close()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        while sent < 200:
            time.sleep(0.01)
        before = js.stream_info(name).last_seq
        run = run_query(
            stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
            maxRecordsPerTrigger=5_000,
        )  # fmt: skip
        after = js.stream_info(name).last_seq
    finally:
        stop.set()
        producer.join()
    rest = run_query(
        stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
    )  # fmt: skip

    assert before <= len(run.rows) < after
    assert run.sequences == list(range(1, len(run.rows) + 1))
    assert run.sequences + rest.sequences == list(range(1, sent + 1))


def test_64_partitions_with_one_hot(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """64 partitions work; those without traffic have no task and do not hold up a hot one."""
    name = new_stream()
    publish([(f"{name}.7.x", b"hot")] * 2000 + [(f"{name}.9.x", b"cold")])
    run = run_query(stream=name, partitions=64, partitionSubject=f"{name}.{{partition}}.>")
    publish([(f"{name}.{p}.x", b"all") for p in range(64)])
    second = run_query(stream=name, partitions=64, partitionSubject=f"{name}.{{partition}}.>")

    assert len(run.rows) == 2001
    assert {row.partition for row in run.rows} == {7, 9}
    assert sorted(row.partition for row in second.rows) == list(range(64))


def test_offsets_beyond_2_to_the_53(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """Sequences that no double can hold survive checkpoint, restart and columns."""
    first = 2**53 + 3
    name = new_stream(first_seq=first)
    publish(numbered(name, 5))
    one = run_query(stream=name, maxRecordsPerTrigger=2)
    publish(numbered(name, 2))
    two = run_query(stream=name, maxRecordsPerTrigger=2)

    assert one.sequences == [first + i for i in range(5)]
    assert two.sequences == [first + 5, first + 6]


def test_payloads_from_nothing_to_max_payload(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, nats_server: DevServer
) -> None:
    """Payloads of 0 bytes up to max_payload arrive unchanged, by consumer and by direct get."""
    name = new_stream()
    sizes = [0, 1, 1000, 65_536, 1_000_000, 1 << 20]
    publish([(f"{name}.ünïcode.☃", bytes([i]) * size) for i, size in enumerate(sizes)])
    for mode in ("consumer", "direct"):
        run = run_query(checkpoint=mode, stream=name, readMode=mode)

        assert [bytes(row.data) for row in run.rows] == [
            bytes([i]) * size for i, size in enumerate(sizes)
        ]
        assert {row.subject for row in run.rows} == {f"{name}.ünïcode.☃"}


def test_headers(run_query: RunQuery, new_stream: NewStream, publish: Publish) -> None:
    """
    includeHeaders gives the publisher's headers, with every value, and none that servers add;
    stale server headers of a message stored again do not fool the columns.
    """
    name = new_stream()
    stale = [("Nats-Subject", "other"), ("Nats-Sequence", "99"), ("Nats-Stream", "OTHER"),
             ("Nats-Pin-Id", "stale"), ("Nats-Time-Stamp", "2001-01-01T00:00:00Z")]  # fmt: skip
    publish(
        [
            (f"{name}.a", b"1", [("K", "v1"), ("K", "v2"), ("Other", "x: y")]),
            (f"{name}.b", b"2"),
            (f"{name}.c", b"3", [*stale, ("Mine", "yes")]),
        ]
    )
    for mode in ("consumer", "direct"):
        rows = run_query(checkpoint=mode, stream=name, readMode=mode, includeHeaders="true").rows

        assert [row.subject for row in rows] == [f"{name}.a", f"{name}.b", f"{name}.c"]
        assert [row.sequence for row in rows] == [1, 2, 3]
        assert [row.headers for row in rows] == [
            {"K": ["v1", "v2"], "Other": ["x: y"]}, None, {"Mine": ["yes"]},
        ]  # fmt: skip
        assert all(row.timestamp.year >= 2024 for row in rows)


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ({"startingOffsets": "earliest"}, [1, 2, 3, 4, 5, 6]),
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"0": 3, "1": "latest"}'}, [3, 5]),
        ({"startingOffsets": '{"1": 6}'}, [1, 3, 5, 6]),
        ({"startingTimestamp": "-1h"}, [1, 2, 3, 4, 5, 6]),
        ({"startingTimestamp": "2001-01-01T00:00:00Z"}, [1, 2, 3, 4, 5, 6]),
    ],
    ids=["earliest", "default", "latest", "json", "json-partial", "relative", "absolute"],
)
def test_starting(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, starting: Any, expected: Any
) -> None:
    """A query starts where its options say, and after a start it never looks at them again."""
    name = new_stream()
    publish(numbered(name, 6, 2))
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}
    first = run_query(**options, **starting)
    publish(numbered(name, 2, 2))
    second = run_query(**options, **starting)

    assert first.sequences == expected
    assert second.sequences == [7, 8]


def test_starting_timestamp_in_between(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """A query with startingTimestamp starts at the first message that is not older."""
    name = new_stream()
    publish(numbered(name, 3))
    time.sleep(0.05)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    publish(numbered(name, 2))

    assert run_query(stream=name, startingTimestamp=moment).sequences == [4, 5]


def test_layout_follows_the_streams_own_transform(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """Without partition options the layout is read off the stream's partition() transform."""
    name = new_stream()
    mapped = new_stream(
        f"{name}M",
        subjects=[f"{name}M.*"],
        subject_transform={
            "src": f"{name}M.*",
            "dest": f"{name}M.{{{{partition(3,1)}}}}.{{{{wildcard(1)}}}}",
        },
    )
    publish([(f"{mapped}.key{i}", b"x") for i in range(30)])
    run = run_query(stream=mapped)

    assert len(run.rows) == 30
    assert {row.partition for row in run.rows} == {0, 1, 2}
    assert all(row.subject.split(".")[1] == str(row.partition) for row in run.rows)


def test_gaps_are_no_data_loss(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """Messages deleted one by one or replaced per subject raise no alarm."""
    name = new_stream()
    publish(numbered(name, 10))
    for sequence in (4, 5, 10):
        js.client.request(
            f"{js.prefix}.STREAM.MSG.DELETE.{name}", json.dumps({"seq": sequence}).encode()
        )
    kv = new_stream(max_msgs_per_subject=1)
    publish([(f"{kv}.{i % 3}.x", b"x") for i in range(30)])

    assert run_query(stream=name).sequences == [1, 2, 3, 6, 7, 8, 9]
    assert run_query("kv", stream=kv).sequences == [28, 29, 30]
    publish([(f"{kv}.{i % 3}.x", b"x") for i in range(30)])
    assert run_query("kv", stream=kv).sequences == [58, 59, 60]


def test_expired_messages_fail_the_query(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """
    Messages that left the stream unread end the query with what, where and what to do; with
    failOnDataLoss=false it goes on with what is left.
    """
    name = new_stream(max_msgs=50)
    publish(numbered(name, 20))
    run_query(stream=name)
    publish(numbered(name, 100))
    with pytest.raises(
        StreamingQueryException, match="DataLossError.*sequences 21 to 70"
    ) as failed:
        run_query(stream=name)
    lenient = run_query(stream=name, failOnDataLoss="false")

    assert "failOnDataLoss=false" in str(failed.value)
    assert lenient.sequences == list(range(71, 121))


def test_recreated_stream_fails_the_query(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """
    A stream made anew under the same name is not taken for the old one; with
    failOnDataLoss=false the query reads it from its beginning.
    """
    name = new_stream()
    publish(numbered(name, 20))
    run_query(stream=name)
    js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
    new_stream(name)
    publish(numbered(name, 30))
    with pytest.raises(StreamingQueryException, match="DataLossError.*made anew"):
        run_query(stream=name)
    lenient = run_query(stream=name, failOnDataLoss="false")
    publish(numbered(name, 5))

    assert lenient.sequences == list(range(1, 31))
    assert run_query(stream=name).sequences == [31, 32, 33, 34, 35]


def test_deleted_consumer_is_made_again(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """On a limits stream a deleted consumer costs nothing: the checkpoint has the position."""
    name = new_stream()
    publish(numbered(name, 20))
    run_query(stream=name, consumer="gone")
    js.delete_consumer(name, "gone-0")
    publish(numbered(name, 5))

    assert run_query(stream=name, consumer="gone").sequences == [21, 22, 23, 24, 25]


def test_deleted_consumer_of_an_interest_stream(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """On an interest stream a deleted consumer means lost messages, and the query says so."""
    name = new_stream(retention="interest")
    run_query(stream=name, consumer="gone")
    publish(numbered(name, 5))
    run_query(stream=name, consumer="gone")
    js.delete_consumer(name, "gone-0")
    publish(numbered(name, 5))
    with pytest.raises(StreamingQueryException, match="DataLossError.*gone-0"):
        run_query(stream=name, consumer="gone")


def test_changed_number_of_partitions_is_refused(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """A checkpoint written for N partitions refuses another N and names the procedure."""
    name = new_stream()
    publish(numbered(name, 20, 2))
    run_query(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")
    with pytest.raises(StreamingQueryException, match="OffsetError.*2 partitions.*To change N"):
        run_query(stream=name, partitions=4, partitionSubject=f"{name}.{{partition}}.>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strem": "X"}, "option 'strem': unknown option; did you mean 'stream'"),
        ({}, "option 'stream': required"),
        (
            {"stream": "X", "maxRecordsPerTrigger": "many"},
            "expected a positive integer, got 'many'",
        ),
        ({"stream": "NOSUCH"}, "stream 'NOSUCH' not found"),
        ({"stream": "X", "standby": "true"}, "not supported by this version"),
        ({"stream": "X", "endingOffsets": "latest"}, "applies to spark.read, not to"),
    ],
    ids=["unknown", "missing", "malformed", "no-stream", "later", "misplaced"],
)
def test_bad_options_fail_on_the_driver(
    run_query: RunQuery, options: dict[str, str], message: str
) -> None:
    """A mistake in the options is one clear error before a row moves."""
    with pytest.raises(Exception, match=message):
        run_query(**options)


def test_secrets_do_not_show(
    stream_df: Callable[..., Any], new_stream: NewStream, tmp_path: Path
) -> None:
    """A password shows in no plan and in no error."""
    df = stream_df(stream=new_stream(), user="u", password="hunter2-secret")
    plan = df._jdf.queryExecution().toString()  # what explain(True) prints
    with pytest.raises(Exception) as failed:
        (
            stream_df(
                stream="NOSUCH", user="u", password="hunter2-secret", requestTimeout="1s",
                servers="nats://u:hunter2-secret@127.0.0.1:1",
            )
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
            .awaitTermination(60)
        )  # fmt: skip

    assert "hunter2" not in plan
    assert "hunter2" not in str(failed.value)


def test_auto_reads_a_deep_backlog_directly(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """
    readMode=auto reads a deep backlog under a wide filter without the filter, and changes to the
    consumer near the end of the stream; the rows are the same.
    """
    name = new_stream()
    publish([(f"{name}.{i % 2}.s{i // 2 % 400}", b"%d" % i) for i in range(20_000)])
    run = run_query(
        stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerTrigger=8_000,
    )  # fmt: skip
    modes = [p["sources"][0]["latestOffset"]["0"].get("read") for p in run.progress]

    assert modes[:3] == ["direct", "direct", "consumer"]
    assert run.sequences == list(range(1, 20_001))
    assert all(row.subject.split(".")[1] == str(row.partition) for row in run.rows)


def test_direct_get_off(run_query: RunQuery, new_stream: NewStream, publish: Publish) -> None:
    """Without direct get a stream is read through consumers; readMode=direct says what to do."""
    name = new_stream(allow_direct=False)
    publish(numbered(name, 50, 2))
    run = run_query(
        stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerTrigger=20,
    )  # fmt: skip

    assert run.sequences == list(range(1, 51))
    with pytest.raises(Exception, match="option 'readMode'.*allow_direct"):
        run_query("direct", stream=name, readMode="direct")


def test_direct_mode_splits_a_partition(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """readMode=direct splits a batch by minPartitions and maxRecordsPerPartition, exactly."""
    name = new_stream()
    publish(numbered(name, 500, 2))
    run = run_query(
        stream=name, readMode="direct", partitions=2, partitionSubject=f"{name}.{{partition}}.>",
        maxRecordsPerPartition=40, minPartitions=5,
    )  # fmt: skip

    assert run.sequences == list(range(1, 501))
    assert all(row.subject.split(".")[1] == str(row.partition) for row in run.rows)


def test_a_foreign_consumer_is_not_taken_over(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """A durable of the same name with other settings is refused, not changed."""
    name = new_stream()
    js.create_consumer(name, {"durable_name": "mine-0", "ack_policy": "explicit"})
    publish(numbered(name, 5))
    with pytest.raises(StreamingQueryException, match="option 'consumer'.*mine-0"):
        run_query(stream=name, consumer="mine")


def test_workqueue_must_start_at_its_beginning(run_query: RunQuery, new_stream: NewStream) -> None:
    """On a work queue a start that skips messages is refused: they would stay for ever."""
    name = new_stream(retention="workqueue")
    with pytest.raises(Exception, match="option 'startingOffsets'.*work queue"):
        run_query(stream=name, startingOffsets="latest")
