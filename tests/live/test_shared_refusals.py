"""What a query on a shared consumer refuses, and what it says is lost."""

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_jetstream.errors import (
    DataLossError,
    JetStreamError,
    OffsetError,
    OptionError,
    PermissionsError,
)
from pyspark_jetstream.values import Secret

from ..kits.clients import serving
from ..kits.reading import Query, text
from ..kits.reading import jobs as query
from ..kits.shared import ack_pending, numbered, numbered_stream
from ..kits.streams import delete_consumers

__all__ = ["numbered_stream", "query"]


SHARED = {"priority_policy": "overflow", "priority_groups": ["spark"]}
KINDS = [
    ({"deliver_subject": "x"}, {}, "consumer", "push consumer"),
    ({}, {}, "consumer", "no priority_policy where"),
    (SHARED | {"priority_groups": ["other"]}, {}, "consumer", "groups .'other'. where"),
    (SHARED | {"priority_groups": ["spark", "more"]}, {}, "consumer", "'more'. where"),
    (SHARED | {"priority_policy": "pinned_client"}, {}, "consumer", "'pinned_client' where"),
    (SHARED, {"priorityPolicy": "prioritized"}, "consumer", "policy 'overflow' where"),
    (SHARED | {"ack_policy": "all"}, {}, "consumer", "ack_policy"),
    (SHARED | {"filter_subject": "f"}, {}, "consumer", "filter_subject"),
    (SHARED | {"max_deliver": 3}, {}, "consumer", "max_deliver"),
    (SHARED, {"ackWait": "7s"}, "consumer", "leave the option out"),
    (SHARED, {"maxAckPending": 7}, "consumer", "leave the option out"),
    (SHARED | {"max_ack_pending": 5}, {"minAckPending": 6}, "minAckPending", "never reached"),
]


@pytest.mark.parametrize(("config", "options", "option", "says"), KINDS)
def test_a_consumer_of_another_kind(js, numbered_stream, query, config, options, option, says):
    """A consumer that cannot be shared so is one error before a message is claimed."""
    name = numbered_stream(3)
    js.create_consumer(name, {"durable_name": "jobs-0", "ack_policy": "explicit"} | config)

    with pytest.raises(OptionError, match=says) as caught:
        query(stream=name, **options).claim()
    assert caught.value.option == option
    assert js.consumer_info(name, "jobs-0").consumer_seq == 0


def test_streams_that_cannot_be_shared(js, new_stream, query):
    """Without direct get nothing can be fetched; a work queue is read from its beginning."""
    with pytest.raises(OptionError, match="direct get off"):
        query(stream=new_stream(allow_direct=False)).claim()
    with pytest.raises(OptionError, match="work queue"):
        query(stream=new_stream(retention="workqueue"), startingOffsets="latest").claim()


def test_a_checkpoint_of_another_query(js, numbered_stream, query):
    """A checkpoint that was written with other settings is refused, and named."""
    name = numbered_stream(3)
    one = query(stream=name)
    end = one.plan()
    limit = ReadMaxRows(1)
    pinned = {"version": 1, "sequences": [3], "base": [0], "streams": {}, "consumer": "c",
              "idle": []}  # fmt: skip

    with pytest.raises(OffsetError, match="pinned_client"):
        query(stream=name).reader.latestOffset(pinned, limit)
    with pytest.raises(OffsetError, match="consumer=jobs"):
        query(stream=name, consumer="others").reader.latestOffset(text(end), limit)
    with pytest.raises(OffsetError, match="consumer=jobs"):
        query(stream=name, consumer="others").reader.partitions(one.start, text(end))
    with pytest.raises(OffsetError, match="1 partitions"):
        query(
            stream=name, partitions=7, partitionSubject=f"{name}.{{partition}}"
        ).reader.latestOffset(text(end), limit)


def test_claims_that_left_the_stream(js, numbered_stream, query):
    """Messages that are purged between claim and read are data loss."""
    name = numbered_stream(10)
    strict = query(stream=name)
    strict.plan()
    js.purge(name, None, 6)

    with pytest.raises(DataLossError, match="5 of 10"):
        strict.read()
    lax = query(stream=name, failOnDataLoss="false")
    lax.planned = list(strict.planned)
    assert [row["sequence"] for row in lax.read()] == [6, 7, 8, 9, 10]


def test_a_consumer_or_stream_that_is_gone(js, numbered_stream, publish, query):
    """A query that resumes without its consumer, or with a stream made anew, says what is lost."""
    name = numbered_stream(3)
    one = query(stream=name)
    one.step()
    delete_consumers(js, [(name, "jobs-0")])
    one.restart()
    with pytest.raises(DataLossError, match="consumer 'jobs-0' is gone"):
        one.claim()
    js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
    js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    one.restart()
    with pytest.raises(DataLossError, match="made anew"):
        one.claim()

    publish(numbered(name, 2))
    lax = query(stream=name, failOnDataLoss="false")
    lax.planned, lax.committed = list(one.planned), one.committed
    assert lax.step() == 2


def test_a_consumer_deleted_meanwhile(js, new_stream, publish, query):
    """A consumer that is deleted while a query runs ends it with an error."""
    name = new_stream()
    one = query(stream=name, requestTimeout="3s")
    assert one.claim() is None
    delete_consumers(js, [(name, "jobs-0")])

    with pytest.raises(JetStreamError, match="jobs-0"):
        one.claim()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("stream", "the stream was made anew at .*not read of the one of"),
        ("consumer", "the consumer .* was made anew"),
    ],
)
def test_made_anew_while_a_query_runs(js, numbered_stream, publish, query, what, told):
    """A stream or consumer made anew under a running query is data loss."""
    name = numbered_stream(10)
    one = query(stream=name, maxRecordsPerTrigger=5)
    lax = query(stream=name, failOnDataLoss="false")
    assert one.step() == 5
    assert lax.step() == 5
    config = js.consumer_info(name, "jobs-0").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    delete_consumers(js, [(name, "jobs-0")])
    if what == "stream":
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
        js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        publish(numbered(name, 10))
    js.create_consumer(name, config)
    others = query(stream=name)
    others.plan()

    with pytest.raises(DataLossError, match=told):
        one.claim()
    if what == "stream":
        assert lax.claim() is None
        assert ack_pending(js, name) == 10, "nobody has acknowledged what others claimed"
    others.commit()
    assert others.claim() is None
    publish(numbered(name, 2, start=10))
    assert lax.step() == 2


def test_a_user_who_may_not_acknowledge():
    """That a user may not publish acks is an error before a message is claimed."""
    config = """authorization { users = [
      {user: all, password: x}
      {user: half, password: x, permissions: {publish: {deny: "$JS.ACK.>"}}}
    ]}"""
    with serving(config, user="all", password=Secret("x")) as (server, js):
        js.client.request("S.1", b"x")
        one = Query(server, stream="S", priorityPolicy="overflow", consumer="jobs",
                    user="half", password="x")  # fmt: skip
        try:
            with pytest.raises(PermissionsError, match="ACK"):
                one.claim()
            assert js.consumer_info("S", "jobs-0").consumer_seq == 0
        finally:
            one.die()
