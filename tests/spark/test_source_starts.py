"""Streaming reads in a real Spark: where they start and go on, layouts, what is gone by then."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_jetstream.client.info import parse_time
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.sources import NewStream, Publish, RunQuery, numbered


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


def test_a_start_yet_to_come(
    run_query: RunQuery, new_stream: NewStream, publish: Publish, js: JetStream
) -> None:
    """
    Nothing of before the moment is read, by whichever run: not what comes while a query waits, nor
    what comes between two of them.
    """
    name = new_stream()
    publish(numbered(name, 1))
    moment = js.stream_info(name).now + timedelta(seconds=8)
    options = {"stream": name, "startingTimestamp": moment.isoformat()}
    found = run_query(**options).sequences
    publish(numbered(name, 2))
    while js.stream_info(name).now <= moment:
        time.sleep(0.1)
    publish(numbered(name, 3))
    found += run_query(**options).sequences
    stored = {number: js.message_get(name, seq=number) for number in range(1, 7)}

    assert found == [n for n, each in stored.items() if parse_time(each.time) >= moment]


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
    js.delete_consumers([(name, "gone-0")])
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
    js.delete_consumers([(name, "gone-0")])
    publish(numbered(name, 5))
    with pytest.raises(StreamingQueryException, match="DataLossError.*gone-0"):
        run_query(stream=name, consumer="gone")


def test_another_number_of_partitions_under_the_same_checkpoint(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """
    A query that has another number of partitions than its checkpoint is refused, and told what
    writes the checkpoint for them.
    """
    name = new_stream()
    publish(numbered(name, 20, 2))
    subject = f"{name}.{{partition}}.>"
    run_query(stream=name, partitions=2, partitionSubject=subject)

    with pytest.raises(
        StreamingQueryException,
        match=f"OffsetError: the checkpoint was written for 2 partitions of stream {name}; this"
        f" query has 4 of {name}[.].*pyspark-jetstream partition --switch",
    ):
        run_query(stream=name, partitions=4, partitionSubject=subject)


def test_partitions_without_a_common_origin_are_refused(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """A checkpoint refuses the partitions of another stream that is no copy of its own."""
    name, other = new_stream(), new_stream()
    for stream in (name, other):
        publish(numbered(stream, 20, 2))
    run_query(stream=name, partitions=2, partitionSubject=f"{name}.{{partition}}.>")
    with pytest.raises(StreamingQueryException, match="(OffsetError|OptionError)"):
        run_query(stream=other, partitions=2, partitionSubject=f"{other}.{{partition}}.>")


def test_streams_join_a_query_of_several(
    run_query: RunQuery, new_stream: NewStream, publish: Publish
) -> None:
    """
    A query of a pattern goes on from its checkpoint with streams that came meanwhile, each from its
    first message on; `stream` tells the rows apart.
    """
    first = new_stream()
    names = [first, new_stream(f"{first}-b"), f"{first}-c"]
    publish([(f"{name}.{i}", b"x") for name in names[:2] for i in range(4)])
    before = run_query(streamPattern=f"{first}*", maxRecordsPerTrigger=5)
    new_stream(names[2])
    publish([(f"{name}.{i}", b"x") for name in names for i in range(3)])
    after = run_query(streamPattern=f"{first}*", maxRecordsPerTrigger=5)

    def rows(run: Any) -> list[Any]:
        return sorted((row.stream, row.partition, row.sequence) for row in run.rows)

    assert rows(before) == [(name, 0, i) for name in names[:2] for i in range(1, 5)]
    assert rows(after) == sorted(
        [(name, 0, i) for name in names[:2] for i in (5, 6, 7)]
        + [(names[2], 0, i) for i in (1, 2, 3)]
    )
    assert max(before.sizes) <= 5
