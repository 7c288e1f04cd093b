"""Whose a write is, as operators and metrics are told: the name that its user gave it."""

import json
import time

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.outbox.throttling.throttleprotocol import Producer, understand
from pyspark_jetstream.publish.metrics import MetricsReport

from ..kits.options import connection_of


def rows(spark, name):
    return spark.range(20, numPartitions=1).selectExpr(
        f"'{name}.a' as subject", "cast(id as string) as data"
    )


def streaming(spark, options, name, home):
    """`writeStream.queryName` alone."""
    rows(spark, name).write.parquet(str(home / "rows"))
    read = spark.readStream.schema("subject string, data string").parquet(str(home / "rows"))
    query = (
        read.writeStream.format("jetstream").options(**options).queryName("orders by day")
        .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)


def batch(spark, options, name, home):
    """A batch write has an option."""
    write = rows(spark, name).write.format("jetstream").options(**options)
    write.option("queryName", "orders by day").mode("append").save()


def each_batch(spark, options, name, home):
    """A batch write in `foreachBatch` has the name of its query."""
    rows(spark, name).write.parquet(str(home / "rows"))
    read = spark.readStream.schema("subject string, data string").parquet(str(home / "rows"))

    def write(frame, number):
        frame.write.format("jetstream").options(**options).mode("append").save()

    query = (
        read.writeStream.foreachBatch(write).queryName("orders by day")
        .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)


@pytest.mark.parametrize("write", [streaming, batch, each_batch])
def test_a_write_has_the_name_of_its_query(spark, nats_server, new_stream, tmp_path, write):
    """Its reports of metrics have it, and its first word to operators, with its machine."""
    name = new_stream()
    options = {
        "servers": nats_server.url, "metricsSubject": f"m.{name}", "throttleSubject": f"t.{name}"
    }  # fmt: skip
    client = Client(connection_of(nats_server.url))
    connection = client.connection
    for subject in (options["metricsSubject"], f"t.{name}.active"):
        connection.subscribe(subject)
    connection.ping(60.0)
    write(spark, options, name, tmp_path)
    reports, words = [], []
    while not any(report.final for report in reports):
        frame = connection.next_frame(time.monotonic() + 60)
        assert frame is not None
        if json.loads(frame.data)["type"] == "metrics":
            reports.append(MetricsReport.decode(frame.data))
        else:
            words.append(understand(frame.data))
    client.close()

    assert {report.query_name for report in reports} == {"orders by day"}
    assert words and all(isinstance(word, Producer) for word in words)
    assert {word.query for word in words} == {"orders by day"} and all(w.host for w in words)
