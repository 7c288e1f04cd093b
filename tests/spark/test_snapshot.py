"""Snapshots, buckets, single gets and pushed filters through a real Spark session."""

from __future__ import annotations

from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from ..kits.clients import serving
from ..live.test_pushdown import messages_out


@pytest.fixture(params=["true", "false"], ids=["push-down", "no-push-down"])
def push_down(spark, request):
    """Spark's push-down into Python sources, on and off (its default)."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    yield request.param == "true"
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def reduced(whole, up_to):
    """The last row of each subject at or below a sequence, by Spark."""
    newest = Window.partitionBy("subject").orderBy(F.desc("sequence"))
    return (
        whole.where(F.col("sequence") <= up_to)
        .withColumn("place", F.row_number().over(newest))
        .where("place = 1")
        .drop("place")
    )


def test_a_snapshot_is_the_reduction_of_the_range(range_df, js, new_stream, publish):
    """As of any sequence a snapshot equals Spark's reduction of the stream."""
    name = new_stream()
    publish(
        [
            (f"{name}.{i % 3}.{i * i % 50}", b"%d" % i, *([[("N", str(i))]] if i % 7 == 0 else []))
            for i in range(500)
        ]
    )
    js.purge(name, f"{name}.1.1", 400)
    options = {"stream": name, "includeHeaders": True, "partitions": 3,
               "partitionSubject": f"{name}.{{partition}}.>"}  # fmt: skip
    whole = range_df(**options).cache()
    try:
        for up_to in (1, 250, 500):
            snapshot = range_df(
                **options, multiLast=f"{name}.0.>,{name}.1.>", upToSequence=up_to, minPartitions=3,
                failOnDataLoss=False,
            )  # fmt: skip

            # Maps have no order, so they are compared as text.
            assert_df_equality(
                snapshot.withColumn("headers", F.to_json("headers")),
                reduced(whole.where("partition < 2"), up_to).withColumn(
                    "headers", F.to_json("headers")
                ),
                ignore_row_order=True,
                ignore_nullable=True,
            )
    finally:
        whole.unpersist()


FILTERS = {
    "subject": "subject = '{name}.1.7'",
    "subjects": "subject IN ('{name}.1.7', '{name}.0.2')",
    "like": "subject LIKE '{name}.1.%' AND subject LIKE '%7'",
    "sequence": "sequence > 90 AND sequence <= 95",
    "partition": "partition = 1",
    "time": "timestamp >= to_timestamp('2020-01-01') AND timestamp < now() + INTERVAL 1 DAY",
    "none of ours": "length(data) = 1 OR subject = '{name}.1.7'",
}


@pytest.mark.parametrize("multi_last", [None, "{name}.>"], ids=["range", "snapshot"])
def test_filters_with_and_without_push_down(push_down, range_df, new_stream, publish, multi_last):
    """Whatever Spark's setting, filtered reads give the rows of Spark's own filter."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.{i % 10}", b"%d" % i) for i in range(100)])
    options: dict[str, Any] = {"stream": name, "partitions": 2,
                               "partitionSubject": f"{name}.{{partition}}.>"}  # fmt: skip
    if multi_last is not None:
        options["multiLast"] = multi_last.format(name=name)
    whole = range_df(**options).cache()
    try:
        for text in FILTERS.values():
            condition = text.format(name=name)
            found = range_df(**options).where(condition).collect()

            assert sorted(found) == sorted(whole.where(condition).collect())
            assert found
    finally:
        whole.unpersist()


def test_pushed_filters_reach_the_server(spark, push_down, range_df, new_stream, publish):
    """With push-down a query for one subject takes few messages from the server."""
    with serving() as (server, js):
        js.client.requests([(f"S.{i % 100}", b"") for i in range(2000)])
        before = messages_out(server)
        found = range_df(server, stream="S").where("subject = 'S.7'").collect()
        out = messages_out(server) - before

    assert len(found) == 20
    assert (out < 200) is push_down
