"""What queries of a standby leave beside the lease: the record of who reads, and who waits."""

from __future__ import annotations

import json
import logging
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    RecordError,
)
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.readstream.lease import BUCKET, Lease
from pyspark_jetstream.values import Secret

from ..conftest import connection_to
from ..kits.servers import DevServer
from .test_standby import apart, query, until_it_reads

__all__ = ["apart", "query"]


def test_the_record_is_there_to_be_read_and_deleted(js, new_stream, publish, query):
    """
    The record shows who reads and up to where batches are committed. It outlives its queries: a
    query with a new checkpoint goes on from it, or begins as its options say when it was deleted.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first = query(stream=stream)
    first.batch()
    first.batch()
    first.stop()
    key = f"$KV.{BUCKET}.{stream}.hot"
    (record,) = js.last_messages(f"KV_{BUCKET}", [key])
    content = json.loads(record.data)
    publish([(f"{stream}.x", b"x")])
    second = query(stream=stream)
    second.batch()
    second.stop()
    js.publish(key, b"", [("KV-Operation", "DEL")])
    third = query(stream=stream)
    third.batch()

    assert content["owner"]["pyspark-jetstream.query"] == first.at["query"]
    assert content["offset"]["sequences"] == [10]
    assert second.sequences == [11]
    assert third.sequences == list(range(1, 12))


def test_a_record_of_a_stranger_is_an_error(js, new_stream, publish, query, apart):
    """
    Whoever may publish in the bucket may overwrite the record. Neither the query that reads nor one
    that waits goes by it: both fail, naming bucket and key, and read on when it is deleted.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    first.batch()
    second.batch()
    key = f"$KV.{BUCKET}.{stream}.hot"
    (record,) = js.last_messages(f"KV_{BUCKET}", [key])
    js.publish(key, record.data.replace(b"[10]", b"[99]"), [])
    publish([(f"{stream}.x", b"x")])
    with pytest.raises(RecordError, match=f"bucket {BUCKET}, key '{stream}.hot': sequence"):
        while True:  # until the next renewal
            first.batch()
    with pytest.raises(RecordError, match="not stored by compare-and-set"):
        while True:
            assert not second.batch()
    with pytest.raises(RecordError):
        query(stream=stream).batch()
    first.kill()
    second.stop()  # it would take what is deleted
    js.publish(key, b"", [("KV-Operation", "DEL")])
    third = query(stream=stream)

    assert until_it_reads(third) == list(range(1, 12))


def test_available_now_does_not_wait(js, new_stream, publish, query):
    """Under trigger(availableNow=True) a query whose turn it is not ends at once, without rows."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = query(stream=stream), query(stream=stream)
    first.batch()
    second.reader.prepareForTriggerAvailableNow()
    rows = [second.batch()]
    at = second.at
    rows += [second.batch()]

    assert rows == [[], []]
    assert second.at == at


def test_one_that_may_not_say_that_it_waits(caplog):
    """
    A user who may publish no other key than the record waits, reads and renews as any other.
    """
    caplog.set_level(logging.INFO, "pyspark_jetstream.readstream.lease")
    publishes = ["$JS.API.>", "_INBOX.>", "$KV.SPARK_STANDBY.S.hot", "S.>"]
    allowed = ", ".join(f'"{each}"' for each in publishes)
    streams = '"$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.LIST.S", "$JS.API.INFO"'
    config = (
        'authorization { users: [ { user: spark, password: pw, permissions: { publish: ['
        f'{allowed}] }} }}, {{ user: ops, password: pw, permissions: {{ publish: [{streams}] }} }}'
        " ] }"
    )  # fmt: skip
    with DevServer(config) as server:
        options = connection_to(server, user="spark", password=Secret("pw"))
        client = Client(options)
        JetStream(client).create_stream({"name": "S", "subjects": ["S.>"]})
        leases: list[Lease] = []
        try:
            for i in range(2):
                owner = Owner(f"q{i}", "h", i, True)
                leases.append(Lease(options, "S", owner, "hot", 6.0))
            reads, waits = leases
            deadline = time.monotonic() + 60
            while "operators are not told" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            first = reads.wait(5), waits.wait(0.1)
            reads.close()
            while not waits.wait(0.1):
                assert time.monotonic() < deadline
        finally:
            for lease in leases:
                lease.close()
            client.close()

    assert first == (True, False)


@pytest.mark.parametrize("who", ["another", "the same"])
def test_only_a_take_over_is_a_warning(nats_server, new_stream, caplog, who):
    """The first query that reads takes nobody's place, nor does a query that is started again."""
    caplog.set_level(logging.INFO, "pyspark_jetstream.readstream.lease")
    owners = Owner("q0", "h", 1, True), Owner("q1", "h", 2, True)
    stream = new_stream()
    for owner in (owners[0], owners[who == "another"]):
        lease = Lease(connection_to(nats_server), stream, owner, "hot", 6.0)
        assert lease.wait(60)
        lease.close()
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    first, last = [each for each in said if "reads from now on" in each[1]]

    assert first == ("INFO", f"standby: consumer=hot: {owners[0]} reads from now on (term 1)")
    assert last[0] == ("WARNING" if who == "another" else "INFO")
    assert last[1].endswith(
        f", in place of {owners[0]}, which has ended" if who == "another" else "(term 2)"
    )
