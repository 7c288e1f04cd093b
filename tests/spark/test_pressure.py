"""A real Spark's writes under pressure: priorities, an operator's pause, shedding, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.metrics.reports import Reports
from pyspark_jetstream.publish.metrics import MetricsReport, MetricsSnapshot

from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..live.test_publisher import stored
from .test_sink import messages


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """The format, whatever PYTHONPATH Spark's workers have."""
    from pyspark_jetstream.datasource import JetStreamDataSource

    spark.dataSource.register(JetStreamDataSource)


SILENT = 3
"""The operator's program, where a task of a busy machine once answered later than it waits."""


def operator(server, *arguments):
    """The operator's program, started."""
    return subprocess.Popen(
        [sys.executable, "-m", "pyspark_jetstream", "throttle",
             *arguments, "--servers", server.url],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_priorities_from_columns(spark, nats_server, js, new_stream):
    """
    The columns priority and claims, a header and a rule by subject are understood; none is stored.
    """
    name = new_stream()
    (
        spark.range(0, 400, numPartitions=2)
        .selectExpr(
            f"concat('{name}.', id % 4) as subject",
            "cast(id as string) as data",
            "case when id % 4 = 1 then 'critical' end as priority",
            "map('tenant', case when id % 4 = 2 then 'free' end) as claims",
            "map('X-Priority', case when id % 4 = 3 then 'critical' else 'normal' end) as headers",
        )
        .write.format("jetstream")
        .mode("append")
        .options(
            servers=nats_server.url,
            prioritySubjects=f"{name}.0=non-critical",
            priorityHeader="X-Priority",
            priorityClaim="tenant",
            priorityClaimValues="free=non-critical",
            queueSize="20",
        )  # fmt: skip
        .save()
    )
    found = messages(js, name)

    assert sorted(int(data) for _, data, _ in found) == list(range(400))
    assert all(b"X-Priority: " in headers for _, _, headers in found)
    assert not any(b"tenant" in headers for _, _, headers in found)


def test_an_operator_pauses_a_write(spark, nats_server, js, new_stream):
    """
    `throttle pause` reaches the tasks of a write that begins meanwhile: the subject waits,
    the other does not, and in the end every row is there once, in order.
    """
    name = new_stream()
    frame = spark.range(0, 40_000, numPartitions=2).selectExpr(
        f"concat('{name}.', if(id % 2 = 0, 'a', 'b')) as subject", "cast(id as string) as data"
    )
    pause = ("pause", "--subject", f"{name}.a", "--for", "1h", "--receipt-wait", "400ms", "--json")
    ended = threading.Event()

    def lift():
        """Ends the pause when all rows of the other subject are stored."""
        client = Client(connection_of(nats_server.url))
        while not ended.wait(0.05):
            _, counts = JetStream(client).subject_counts(name, [f"{name}.b"])
            if counts.get(f"{name}.b") == 20_000:
                program.terminate()
                break
        client.close()

    lifting = threading.Thread(target=lift)
    with operator(nats_server, *pause) as program:
        try:
            begun = program.stdout.readline()
            lifting.start()
            (frame.write.format("jetstream").mode("append").options(servers=nats_server.url).save())
            said, _ = program.communicate(timeout=60)
        finally:
            ended.set()
            lifting.join()
            program.kill()
    found = stored(js, name)
    a = [int(data) for subject, data in found if subject.endswith(".a")]
    b = [int(data) for subject, data in found if subject.endswith(".b")]
    alone = max(len(run) for run in runs(found, f"{name}.b"))

    assert "nobody so far" in begun
    assert program.returncode in (0, SILENT), said
    told, _ = json.JSONDecoder().raw_decode(said, said.index("{"))
    assert any(each["receipts"] for each in told["producers"])
    assert sorted(a + b) == list(range(40_000))
    # Two tasks write half of the numbers each, in order.
    for rows in (a, b):
        for half in (0, 1):
            own = [row for row in rows if row // 20_000 == half]
            assert own == sorted(own)
    assert alone > 500, "the subject was not paused while the other flowed"


def runs(found, subject):
    """Stretches in which only this subject was stored."""
    stretch: list[bytes] = []
    for name, data in found:
        if name == subject:
            stretch.append(data)
        elif stretch:
            yield stretch
            stretch = []
    yield stretch


def test_a_streaming_write_sheds_and_says_what_it_counts(spark, tmp_path, caplog):
    """
    overload.md §12.8 with a real query: under 429s non-critical rows become dead letters; the
    stream and they are the input. Metrics reach whoever listens, and Spark's log.
    """
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
