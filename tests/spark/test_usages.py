"""
One streaming read that a plan uses more than once: each scan has each row once, and the query goes
on, in each retention and each layout.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_jetstream.client.jetstream import JetStream

from ..kits.sources import NewStream, Publish

RETENTIONS = ["limits", "workqueue", "interest"]
LAYOUTS = ["one", "filtered", "streams"]
PARTS, ROUNDS, EACH = 2, 6, 40
ROWS = ROUNDS * EACH


class Source:
    """A stream, or one a partition, that grows while a query reads it."""

    def __init__(
        self, new_stream: NewStream, publish: Publish, retention: str, layout: str
    ) -> None:
        self._publish = publish
        self._layout = layout
        config = {"retention": retention}
        if layout == "streams":
            self.name = f"U{time.monotonic_ns()}"
            for p in range(PARTS):
                new_stream(name=f"{self.name}-{p}", **config)
            self.options = {"stream": f"{self.name}-{{partition}}", "partitions": PARTS}
        else:
            self.name = new_stream(**config)
            self.options = {"stream": self.name}
        if layout == "filtered":
            template = f"{self.name}.{{partition}}.>"
            self.options |= {"partitions": PARTS, "partitionSubject": template}

    def grow(self, round_: int) -> None:
        """Publishes the messages of a round: each has its number as its payload."""
        of = range(round_ * EACH, (round_ + 1) * EACH)
        name = f"{self.name}-{{}}" if self._layout == "streams" else f"{self.name}.{{}}"
        self._publish([(f"{name.format(i % PARTS)}.k{i % 4}", b"%d" % i) for i in of])


def union(rows: DataFrame, _: Path) -> tuple[DataFrame, None]:
    even, odd = (rows.filter(f.col("number") % 2 == side) for side in (0, 1))
    return even.union(odd), None


def self_join(rows: DataFrame, _: Path) -> tuple[DataFrame, None]:
    left = rows.withWatermark("timestamp", "1 hour").alias("l")
    right = rows.select("number", "timestamp").withWatermark("timestamp", "1 hour").alias("r")
    on = f.expr("l.number = r.number AND l.timestamp = r.timestamp")
    return left.join(right, on).select("l.number"), None


def _noted(batch: DataFrame, home: Path, what: str) -> None:
    """Notes the numbers of a scan in a file."""
    numbers = [row.number for row in batch.select("number").collect()]
    with (home / what).open("a") as file:
        file.write(json.dumps(numbers) + "\n")


def threads(rows: DataFrame, home: Path) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    def write(batch: DataFrame, _: int) -> None:
        of = [threading.Thread(target=_noted, args=(batch, home, f"thread{i}")) for i in (0, 1)]
        for each in of:
            each.start()
        for each in of:
            each.join()

    return rows, write


def aggregate(rows: DataFrame, home: Path) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    def write(batch: DataFrame, _: int) -> None:
        counts = batch.groupBy("subject").count()
        _noted(batch.join(counts, "subject"), home, "joined")

    return rows, write


def cached(rows: DataFrame, home: Path) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
    def write(batch: DataFrame, _: int) -> None:
        batch.cache()
        _noted(batch, home, "first")
        _noted(batch, home, "second")
        batch.unpersist()

    return rows, write


USAGES = [union, self_join, threads, aggregate, cached]


def cells() -> Iterator[Any]:
    """
    All usages by all retentions and layouts: the diagonal for each commit, the others for the soak.
    """
    for u, usage in enumerate(USAGES):
        for r, retention in enumerate(RETENTIONS):
            if usage is self_join and retention == "workqueue":
                continue  # Spark makes two sources of it, and a queue has one consumer (10099)
            for at, layout in enumerate(LAYOUTS):
                kind = "usage" if at == (u + r) % len(LAYOUTS) else "soak"
                cell = f"{kind}-{usage.__name__}-{retention}-{layout}"
                yield pytest.param(usage, retention, layout, id=cell)


@pytest.mark.parametrize(("usage", "retention", "layout"), list(cells()))
def test_each_scan_has_each_row_once(
    spark: SparkSession, stream_df: Callable[..., DataFrame], new_stream: NewStream,
    publish: Publish, js: JetStream, tmp_path: Path, usage: Callable[..., Any], retention: str,
    layout: str,
) -> None:  # fmt: skip
    """While messages come, no row is missing or there twice in a scan, and the query goes on."""
    source = Source(new_stream, publish, retention, layout)
    rows = stream_df(**source.options).withColumn("number", f.expr("int(string(data))"))
    frame, write = usage(rows, tmp_path)
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    name = f"usages_{time.monotonic_ns()}"
    writer = writer.foreachBatch(write) if write else writer.format("memory").queryName(name)

    def found() -> dict[str, Counter[int]]:
        if write is None:
            return {"scan": Counter(row.number for row in spark.table(name).collect())}
        texts = {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()}
        return {
            name: Counter(number for line in text.splitlines() for number in json.loads(line))
            for name, text in texts.items()
        }

    query = writer.start()
    try:
        if retention == "interest":  # what comes before the query's consumers are there is not kept
            deadline = time.monotonic() + 60
            while not query.recentProgress and query.isActive and time.monotonic() < deadline:
                time.sleep(0.1)
        for round_ in range(ROUNDS):
            source.grow(round_)
            time.sleep(0.2)
        deadline = time.monotonic() + 90
        while query.isActive and time.monotonic() < deadline:
            scans = found()
            if scans and all(sum(scan.values()) >= ROWS for scan in scans.values()):
                break
            time.sleep(0.3)
        assert query.exception() is None, query.exception()
    finally:
        query.stop()
    scans = found()
    assert scans
    assert all(scan == Counter(range(ROWS)) for scan in scans.values()), {
        what: len(scan) for what, scan in scans.items()
    }
