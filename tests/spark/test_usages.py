"""
One streaming read used more than once in a plan: each scan has each row once.

On two executors, with speculation, a task of each scan is killed at its first try.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any, Final

import pytest
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.taskcontext import TaskContext

PARTS, ROUNDS, EACH = 2, 4, 40
ROWS = ROUNDS * EACH


class Source:
    """A stream, or one a partition, that grows while queries read it."""

    def __init__(self, new_stream, publish, retention, layout, first=0):
        self._publish = publish
        self._layout = layout
        self._first = first
        config = {"retention": retention}
        if layout == "streams":
            self.name = f"U{time.monotonic_ns()}"
            for p in range(PARTS):
                new_stream(name=f"{self.name}-{p}", **config)
            self.options: dict[str, Any] = {
                "stream": f"{self.name}-{{partition}}", "partitions": PARTS,
            }  # fmt: skip
        else:
            self.name = new_stream(**config)
            self.options = {"stream": self.name}
        if layout == "filtered":
            template = f"{self.name}.{{partition}}.>"
            self.options |= {"partitions": PARTS, "partitionSubject": template}

    def grow(self, round_):
        """Publishes the messages of a round: each has its number as its payload."""
        of = range(self._first + round_ * EACH, self._first + (round_ + 1) * EACH)
        name = f"{self.name}-{{}}" if self._layout == "streams" else f"{self.name}.{{}}"
        self._publish([(f"{name.format(i % PARTS)}.k{i % 4}", b"%d" % i) for i in of])


def union(rows, **_):
    even, odd = (rows.filter(f.col("number") % 2 == side) for side in (0, 1))
    return [(even.union(odd), None)]


def self_join(rows, **_):
    left = rows.withWatermark("timestamp", "1 hour").alias("l")
    right = rows.select("number", "timestamp").withWatermark("timestamp", "1 hour").alias("r")
    on = f.expr("l.number = r.number AND l.timestamp = r.timestamp")
    return [(left.join(right, on).select("l.number"), None)]


def _noted(batch, home, what):
    """Notes the numbers of a scan in a file."""
    numbers = [row.number for row in batch.select("number").collect()]
    with (home / what).open("a") as file:
        file.write(json.dumps(numbers) + "\n")


def threads(rows, home, **_):
    def write(batch, _):
        of = [threading.Thread(target=_noted, args=(batch, home, f"thread{i}")) for i in (0, 1)]
        for each in of:
            each.start()
        for each in of:
            each.join()

    return [(rows, write)]


def aggregate(rows, home, **_):
    def write(batch, _):
        counts = batch.groupBy("subject").count()
        _noted(batch.join(counts, "subject"), home, "joined")

    return [(rows, write)]


def cached(rows, home, **_):
    def write(batch, _):
        batch.cache()
        _noted(batch, home, "first")
        _noted(batch, home, "second")
        batch.unpersist()

    return [(rows, write)]


def two_sinks(rows, home, **_):
    def write(batch, number):
        written = str(home / "parquet" / str(number))
        batch.select("number").write.parquet(written)
        _noted(batch.sparkSession.read.parquet(written), home, "first")
        _noted(batch, home, "second")

    (home / "parquet").mkdir()
    return [(rows, write)]


def two_queries(rows, **_):
    return [(rows, None), (rows.filter("number >= 0"), None)]


def sources(rows, other, **_):
    return [(rows.union(other), None)]


def static_side(rows, static, **_):
    return [(rows.join(static, "number"), None)]


USAGES = [
    union, self_join, threads, aggregate, cached, two_sinks, two_queries, sources, static_side,
]  # fmt: skip
SMALL = {"spark.executor.memory": "600m"}
PLACES: Final = {
    "local[2]": {},
    "local-cluster[1,2,600]": SMALL,
    "local-cluster[2,1,600]": SMALL | {
        "spark.speculation": "true", "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "0ms",
    },
}  # fmt: skip
"""Masters, and what is set there."""

HERE = os.environ.get("TESTS_MASTER", "local[2]")
DIMENSIONS: list[list[Any]] = [
    USAGES, ["limits", "workqueue", "interest"], ["one", "filtered", "streams"],
    [True, False], [None, 5], list(PLACES),
]  # fmt: skip


def _may_be(cell):
    """Spark makes two sources of some; a work queue has one consumer (10099)."""
    return cell[0] not in (self_join, two_queries) or cell[1] != "workqueue"


def _pairs(cell):
    return set(itertools.combinations(enumerate(map(str, cell)), 2))


def cells():
    """The first cell that has most of the pairs that are left, until none is left."""
    every = [cell for cell in itertools.product(*DIMENSIONS) if _may_be(cell)]
    left = set().union(*map(_pairs, every))
    chosen = []
    while left:
        chosen.append(max(every, key=lambda cell: len(left & _pairs(cell))))
        left -= _pairs(chosen[-1])
    return chosen


def _of_here():
    for usage, *others, place in cells():
        if place == HERE:
            name = "-".join([usage.__name__, *map(str, others)])
            yield pytest.param(usage, *others, id=name)


@pytest.mark.parametrize(
    ("usage", "retention", "layout", "adaptive", "min_partitions"), list(_of_here())
)
def test_each_scan_has_each_row_once(
    spark,
    stream_df,
    range_df,
    new_stream,
    publish,
    tmp_path,
    usage,
    retention,
    layout,
    adaptive,
    min_partitions,
):
    """While messages come, no row is missing or there twice in a scan, and the queries go on."""
    firsts = (0, ROWS) if usage is sources else (0,)
    made = [Source(new_stream, publish, retention, layout, first) for first in firsts]
    more = {} if min_partitions is None else {"minPartitions": min_partitions}
    number = plain = f.expr("int(string(data)) AS number")
    killed = tmp_path / "killed"
    if kills := "speculation" in str(PLACES[HERE]):

        @f.udf("int", useArrow=False)
        def killing(data):
            context = TaskContext.get()
            if context.attemptNumber() == 0 and context.partitionId() % PARTS == 0:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return int(data)

        number = killing("data").alias("number")
    read = [stream_df(**each.options, **more).select("*", number) for each in made]
    kept = Source(new_stream, publish, "limits", "one")
    for round_ in range(ROUNDS):
        kept.grow(round_)
    home = tmp_path / "noted"
    home.mkdir()
    spark.conf.set("spark.sql.adaptive.enabled", str(adaptive).lower())
    static = range_df(**kept.options).select(plain)
    branches = usage(read[0], other=read[-1], static=static, home=home)
    names = [f"usages_{time.monotonic_ns()}" for _ in branches]

    def found():
        tables = {
            name: Counter(row.number for row in spark.table(name).select("number").collect())
            for name, (_, write) in zip(names, branches, strict=True)
            if write is None
        }
        texts = {file.name: file.read_text() for file in home.iterdir() if file.is_file()}
        return tables | {
            name: Counter(number for line in text.splitlines() for number in json.loads(line))
            for name, text in texts.items()
        }

    queries: list[StreamingQuery] = []
    total = ROWS * len(made)
    try:
        for name, (frame, write) in zip(names, branches, strict=True):
            writer = frame.writeStream.option("checkpointLocation", str(tmp_path / name))
            sink = writer.foreachBatch(write) if write else writer.format("memory").queryName(name)
            queries.append(sink.start())
        deadline = time.monotonic() + 120
        if retention == "interest":  # what comes before the query's consumers are there is not kept
            while not all(query.recentProgress for query in queries) and _go_on(queries, deadline):
                time.sleep(0.1)
        for round_ in range(ROUNDS):
            for each in made:
                each.grow(round_)
            time.sleep(0.2)
        while _go_on(queries, deadline):
            scans = found()
            if scans and all(sum(scan.values()) >= total for scan in scans.values()):
                break
            time.sleep(0.3)
        assert [query.exception() for query in queries] == [None] * len(queries)
    finally:
        for query in queries:
            query.stop()
        spark.conf.unset("spark.sql.adaptive.enabled")
    scans = found()
    assert scans and killed.exists() is kills
    assert all(scan == Counter(range(total)) for scan in scans.values()), {
        what: (len(scan), sum(scan.values())) for what, scan in scans.items()
    }


def _go_on(queries, deadline):
    return all(query.isActive for query in queries) and time.monotonic() < deadline


@pytest.mark.parametrize("place", [place for place in PLACES if place != HERE])
def test_on_executors(place, record_property):
    """The cells of another master, in a session of its own."""
    confs = " ".join(f"--conf {name}={value}" for name, value in PLACES[place].items())
    more = {"TESTS_MASTER": place, "PYSPARK_SUBMIT_ARGS": f"{confs} pyspark-shell"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--soak", __file__,
         "-k", "each_scan"],
        env={n: v for n, v in os.environ.items() if "PYTEST" not in n} | more,
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    count = sum(cell[-1] == place for cell in cells())
    record_property("states", count)

    assert ran.returncode == 0 and f"{count} passed" in ran.stdout, ran.stdout[-6000:]
