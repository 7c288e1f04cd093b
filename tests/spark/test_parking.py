"""A pause and a streaming query whose other subjects go on (`throttleParkStream`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from ..kits.places import ROOT
from ..live.test_publisher import stored


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """The format, whatever PYTHONPATH Spark's workers have."""
    from pyspark_jetstream.datasource import JetStreamDataSource

    spark.dataSource.register(JetStreamDataSource)


def until(what, seconds=120.0):
    """Waits for it."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


class Throttle:
    """The program that pauses a subject, until it is told to end."""

    def __init__(self, server, subject):
        self._program = subprocess.Popen(
            [sys.executable, "jobs/throttle.py", "pause", "--subject", subject, "--for", "1h",
             "--servers", server.url, "--receipt-wait", "400ms"],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._program.stderr.readline()  # it is connected, and has asked who is there

    def end(self):
        self._program.terminate()
        self._program.communicate(timeout=60)


def query(spark, server, name, checkpoint, rows):
    """Rows of two subjects in turn."""
    return (
        rows.selectExpr(
            f"if(value % 2 = 0, '{name}.a', '{name}.b') as subject", "cast(value as string) as data"
        )
        .writeStream.format("jetstream")
        .options(
            servers=server.url, checkpointLocation=str(checkpoint), createStream="true",
            stream=name, streamSubjects=f"{name}.>", throttleParkStream=f"{name}_PARKED",
        )
        .trigger(processingTime="500 milliseconds")
        .start()
    )  # fmt: skip


def of(found, subject):
    return [int(data) for each, data in found if each == subject]


def test_a_paused_subject_does_not_hold_the_other(spark, nats_server, js, new_stream, tmp_path):
    """
    A query with a batch every 500 ms, one of whose two subjects is paused: the other one's rows are
    stored meanwhile. When the pause is over the paused rows follow, and all is there, once and in
    order.
    """
    name = new_stream()
    rows = (
        spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1).load()
    )
    one = query(spark, nats_server, name, tmp_path / "c", rows)
    try:
        until(lambda: js.stream_info(name).last_seq >= 20)
        throttle = Throttle(nats_server, f"{name}.a")
        until(lambda: js.stream_info(f"{name}_PARKED").last_seq > 0)
        begun = js.stream_info(name).last_seq
        until(lambda: js.stream_info(name).last_seq >= begun + 30)
        while_paused = stored(js, name)[begun : begun + 30]
        throttle.end()
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 0)
        ended = js.stream_info(name).last_seq
        until(lambda: js.stream_info(name).last_seq >= ended + 40)
    finally:
        one.stop()
    found = stored(js, name)

    assert Counter(subject for subject, _ in while_paused) == {f"{name}.b": 30}
    for place, subject in enumerate((f"{name}.a", f"{name}.b")):
        values = of(found, subject)
        assert values == list(range(place, place + 2 * len(values), 2))


def test_rows_go_out_though_no_batch_comes(spark, nats_server, js, new_stream, tmp_path):
    """
    A query whose input has ended amid a pause: when the pause is over its parked rows are stored,
    in order, without another batch.
    """
    name = new_stream()
    folder = tmp_path / "rows"
    spark.range(100).selectExpr("id as value").coalesce(1).write.parquet(str(folder))
    rows = spark.readStream.schema("value long").parquet(str(folder))
    throttle = Throttle(nats_server, f"{name}.a")
    one = query(spark, nats_server, name, tmp_path / "c", rows)
    try:
        until(lambda: len(one.recentProgress) and one.lastProgress["batchId"] >= 0
              and js.stream_info(name).last_seq == 50)  # fmt: skip
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 50)
        throttle.end()
        until(lambda: js.stream_info(f"{name}_PARKED").messages == 0)
    finally:
        one.stop()

    found = stored(js, name)
    assert of(found, f"{name}.a") == list(range(0, 100, 2))
    assert of(found, f"{name}.b") == list(range(1, 100, 2))
