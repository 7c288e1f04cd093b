"""A real Spark's writes under pressure: priorities, shedding, metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.metrics.reports import Reports
from pyspark_jetstream.publish.metrics import MetricsReport, MetricsSnapshot

from ..kits.options import connection_of
from ..kits.servers import DevServer
from ..live.test_publisher import stored


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """The format, whatever PYTHONPATH Spark's workers have."""
    from pyspark_jetstream.datasource import JetStreamDataSource

    spark.dataSource.register(JetStreamDataSource)


def test_a_streaming_write_sheds_and_says_what_it_counts(spark, tmp_path, caplog):
    """§12.8: the stream and the dead letters are the input; metrics are those counts."""
    count = 4_000
    with DevServer("jetstream { max_buffered_msgs: 30 }") as server:
        client = Client(connection_of(server.url, request_timeout_s=60.0))
        js = JetStream(client)
        for name in ("S", "DEAD"):
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        heard = Reports()
        done = threading.Event()
        listener = Client(connection_of(server.url))

        def listen():
            connection = listener.connection
            sid = connection.subscribe("spark.metrics")
            while not done.is_set():
                frame = connection.next_frame(time.monotonic() + 0.1)
                if frame is not None and frame.sid == sid:
                    heard.take(MetricsReport.decode(frame.data), time.monotonic())

        listening = threading.Thread(target=listen)
        listening.start()
        source = tmp_path / "in"
        spark.range(0, count, numPartitions=2).selectExpr("cast(id as string) as value").write.text(
            str(source)
        )
        try:
            query = (
                spark.readStream.format("text")
                .load(str(source))
                .selectExpr(
                    "concat('S.', element_at(array('critical', 'normal', 'low', 'low'),"
                    " 1 + cast(value as int) % 4)) as subject",
                    "value as data",
                )
                .writeStream.format("jetstream")
                .options(
                    servers=server.url,
                    checkpointLocation=str(tmp_path / "checkpoint"),
                    prioritySubjects="S.critical=critical, S.low=non-critical",
                    overloadPolicy="dead-letter",
                    deadLetterSubject="DEAD.{subject}",
                    maxInFlight="200",
                    queueSize="100",
                    metricsSubject="spark.metrics",
                )  # fmt: skip
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(150)
            found, dead = stored(js, "S"), stored(js, "DEAD")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                total = MetricsSnapshot.merged(heard.totals(time.monotonic()).values())
                stored_now = total.total("jetstream_publish_outcomes_total", status="success")
                if stored_now == (len(found),):
                    break
                time.sleep(0.1)
        finally:
            done.set()
            listening.join()
        listener.close()
        client.close()

    assert len(dead) > 0
    assert {subject for subject, _ in dead} == {"DEAD.S.low"}
    assert sorted(int(data) for _, data in found + dead) == list(range(count))
    assert Counter(subject for subject, _ in found)["S.critical"] == count // 4
    assert stored_now == (len(found),)
    assert total.total("jetstream_publish_dead_letter_total") == (len(dead),)
    assert total.total(
        "jetstream_publish_rejected_total", priority="noncritical", subject="S.low"
    ) == (len(dead),)
