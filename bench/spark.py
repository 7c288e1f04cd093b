"""This package at work: a Spark session, and one query at a time with what it used."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_jetstream.readstream.offsets import Offset

from .runs import Run, until
from .usage import Sampler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS: Final = "conf/spark-defaults.conf"
"""What a session is set by, from the root of the repository."""

_TIMEOUT_S: Final = 600.0


def documented_settings() -> dict[str, str]:
    """Name and value of each setting in `SETTINGS`, as Spark reads them."""
    text = (Path(__file__).parents[1] / SETTINGS).read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in (line.split(None, 1) for line in lines)}


class Spark:
    """
    A local session on two cores with the documented settings, and its queries; a context manager.

    All that it leaves on disk is in one temporary directory.
    """

    def __init__(self, url: str, server_pid: int, packages: str = "") -> None:
        self._url = url
        self._server_pid = server_pid
        self._home = tempfile.TemporaryDirectory(prefix="pyspark-jetstream-bench-")
        self._packages = packages
        self._numbers = iter(range(1_000_000))
        self._jvm_pid = 0

    def __enter__(self) -> Spark:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark.sql import SparkSession

        home = Path(self._home.name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile us anew
        self.session: SparkSession = (
            SparkSession.builder.master("local[2]")
            .appName("pyspark-jetstream bench")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
            .config(map=dict(documented_settings()))
            # Named there, too, for sessions with local checkpoints alone, as this one.
            .config("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
            .config("spark.sql.warehouse.dir", str(home / "warehouse"))
            .config("spark.jars.packages", self._packages)
            .getOrCreate()
        )
        self.session.sparkContext.setLogLevel("ERROR")
        jvm: Any = self.session.sparkContext._jvm
        self._jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
        return self

    def __exit__(self, *_: object) -> None:
        self.session.stop()
        self._home.cleanup()

    def new_directory(self) -> Path:
        """A directory that nobody else uses, gone with the session."""
        path = Path(self._home.name) / f"d{next(self._numbers)}"
        path.mkdir()
        return path

    def sampler(self, server_pid: int | None = None) -> Sampler:
        """Measures a server, nats-server unless told, and all of Spark's processes."""
        return Sampler(server_pid or self._server_pid, self._jvm_pid)

    def read_stream(self, options: Mapping[str, Any], rows: int) -> Run:
        """`readStream` to noop, everything there is, then the end."""
        frame = self.stream(options)
        return self.drain(lambda: self.to_noop(frame, {"availableNow": True}), rows)

    def drain(
        self, start: Callable[[], StreamingQuery], rows: int, server_pid: int | None = None
    ) -> Run:
        """
        A streaming query to its end.

        Raises:
            RuntimeError: Not so many rows came out.
            TimeoutError: It took too long.
        """
        with self.sampler(server_pid) as sampler:
            began = time.monotonic()
            query = start()
            try:
                if not query.awaitTermination(int(_TIMEOUT_S)):
                    raise TimeoutError(f"a query runs for more than {_TIMEOUT_S:.0f}s")
            finally:
                query.stop()
            whole_s = time.monotonic() - began
        batches = query.recentProgress
        if (count := sum(batch.numInputRows for batch in batches)) != rows:
            raise RuntimeError(f"{count} rows came out of {rows}")
        work_s = sum(each.durationMs.get("triggerExecution", 0) for each in batches) / 1e3
        return Run(rows, work_s, sampler.cpu_s, f"{whole_s:.2f} s with the query's start")

    def read_range(self, options: Mapping[str, Any], rows: int) -> Run:
        """`read` to noop, which does not count the rows."""
        return self.run(self.range(options), rows)

    def reduce(self, options: Mapping[str, Any], rows: int) -> Run:
        """The last message of each subject, found by Spark itself; `rows` of them, to noop."""
        from pyspark.sql import functions as F

        last = F.max_by(F.struct("data", "sequence", "timestamp"), "sequence").alias("last")
        return self.run(self.range(options).groupBy("subject").agg(last), rows)

    def write(self, frame: DataFrame, options: Mapping[str, Any], rows: int) -> Run:
        """`write` of a DataFrame that is in memory."""
        writer = self._options(frame.write.format("jetstream").mode("append"), options)
        return self.timed(writer.save, rows)

    @contextmanager
    def following(self, options: Mapping[str, Any]) -> Iterator[StreamingQuery]:
        """A `readStream` to noop that runs one batch after another; stopped in the end."""
        query = self.to_noop(self.stream(options), {"processingTime": "0 seconds"})
        try:
            yield query
        finally:
            query.stop()

    def stream(self, options: Mapping[str, Any]) -> DataFrame:
        """A `readStream`."""
        reader = self._options(self.session.readStream.format("jetstream"), options)
        frame: DataFrame = reader.load()
        return frame

    def to_noop(self, frame: DataFrame, trigger: dict[str, Any]) -> StreamingQuery:
        """A streaming query that drops what it reads, with a checkpoint of its own."""
        query: StreamingQuery = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(self.new_directory()))
            .trigger(**trigger)
            .start()
        )
        return query

    def run(self, frame: DataFrame, rows: int, server_pid: int | None = None) -> Run:
        """The rows of a DataFrame to noop."""
        noop = frame.write.format("noop").mode("overwrite")
        return self.timed(noop.save, rows, server_pid)

    def timed(self, call: Callable[[], object], rows: int, server_pid: int | None = None) -> Run:
        """A call that moves so many rows."""
        with self.sampler(server_pid) as sampler:
            began = time.monotonic()
            call()
            seconds = time.monotonic() - began
        return Run(rows, seconds, sampler.cpu_s)

    def range(self, options: Mapping[str, Any]) -> DataFrame:
        """A `read` of all that there is."""
        frame: DataFrame = self._options(self.session.read.format("jetstream"), options).load()
        return frame

    def _options(self, builder: Any, options: Mapping[str, Any]) -> Any:
        return builder.option("servers", self._url).options(**options)


def counted(frame: DataFrame, rows: int) -> None:
    """
    Counts.

    Raises:
        RuntimeError: There are not so many rows.
    """
    if (count := frame.count()) != rows:
        raise RuntimeError(f"{count} rows came out of {rows}")


def wait_for(query: StreamingQuery, ends: list[int]) -> None:
    """
    Returns when a batch that ends at these sequences is done.

    Raises:
        RuntimeError: The query ended.
        TimeoutError: It took too long.
    """

    def is_done() -> bool:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        progress = query.lastProgress
        return progress is not None and sequences(progress.sources[0].endOffset) == ends

    until(is_done, _TIMEOUT_S, f"the query reaches {ends}")


def sequences(offset: Any) -> list[int]:
    """Of an offset in a query's progress, by partition; none of one that is no position yet."""
    end = json.loads(offset) if isinstance(offset, str) else offset
    return list(Offset.from_json(end).sequences) if end and not end.get("initial") else []
