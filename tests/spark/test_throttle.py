"""An operator's pause and streaming queries whose micro-batches are shorter than a second."""

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


def query(spark, server, subject, checkpoint):
    """Ten rows a batch on one subject, a batch every 500 ms."""
    return (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=10, numPartitions=1)
        .load()
        .selectExpr(f"'{subject}' as subject", "cast(value as string) as data")
        .writeStream.format("jetstream")
        .options(servers=server.url, checkpointLocation=str(checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def until(what, seconds=300.0):
    """Waits for it."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def subjects_of(js, stream, after=0):
    """The subject of every message behind this sequence, in order."""
    return (
        [each for each, _ in stored(js, stream)[after:]] if js.stream_info(stream).messages else []
    )


def test_b7_a_pause_holds_for_micro_batches(spark, nats_server, js, new_stream, tmp_path):
    """
    B7, B24, §12.5: two queries with a batch every 500 ms, one of whose subjects an operator pauses
    until twenty rows of the other are stored. A second after the program has begun nothing of it is
    stored until the end, by sequence; then everything is there, once and in order.
    """
    name = new_stream(allow_direct=True)
    a, b, mark = (f"{name}.{each}" for each in ("a", "b", "mark"))
    queries = [query(spark, nats_server, each, tmp_path / each) for each in (a, b)]
    try:
        until(lambda: {a, b} <= set(subjects_of(js, name)))
        program = subprocess.Popen(
            [sys.executable, "-m", "pyspark_jetstream", "throttle",
             "pause", "--subject", a, "--for", "1h",
             "--servers", nats_server.url, "--receipt-wait", "400ms"],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        first = program.stderr.readline()  # it is connected, and has asked who is there
        time.sleep(1.0)
        begun = js.publish(mark, b"", [])
        until(lambda: js.stream_info(name).last_seq >= begun + 20)
        ended = js.publish(mark, b"", [])
        program.terminate()
        out, err = program.communicate(timeout=120)
        status = program.returncode
        until(lambda: subjects_of(js, name, ended).count(a) > 30)
    finally:
        for each in queries:
            each.stop()
    found = stored(js, name)
    subjects = [subject for subject, _ in found]

    # 3: on a busy machine a task may once take longer to answer than the program waits.
    assert status in (0, 3), (first, out, err)
    assert Counter(subjects[begun : ended - 1]) == {b: ended - 1 - begun}
    assert "so far: a writer that begins is told" in first
    assert "acknowledged" in out
    for each in (a, b):
        rows = [int(data) for subject, data in found if subject == each]
        assert rows == list(range(len(rows)))
