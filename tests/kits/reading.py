"""A streaming read as Spark runs it, step by step, without Spark: log, tasks, commit, restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pyspark_jetstream.options import parse_read, parse_stream
from pyspark_jetstream.readstream.rangedriver import RangeDriver
from pyspark_jetstream.readstream.reader import StreamReader

from .clients import close_idle

Offset = dict[str, Any]


def text(offset: Offset) -> Offset:
    """An offset as it comes back out of the checkpoint."""
    return json.loads(json.dumps(offset))


def rows_of(reader: Any, tasks: Iterable[Any] | None = None) -> list[dict[str, Any]]:
    """What these tasks read; unless given, all tasks of a batch read."""
    tasks = reader.partitions() if tasks is None else tasks
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def batch_reader(server: Any, kind: Callable[..., Any], **options: Any) -> Any:
    """The reader of this kind that `spark.read` has of these options."""
    texts = {name: str(value) for name, value in options.items()}
    return kind(parse_read({"servers": server.url} | texts))


class Query:
    """One query: its checkpoint, which may begin somewhere, and the reader of its present run."""

    def __init__(self, server: Any, start: Offset | None = None, **options: Any) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.options.setdefault("servers", server.url)
        self.planned: list[Offset] = []
        """The offsets in the write-ahead log."""
        self.committed = 0
        """How many of them are in the commit log."""
        self.rows: list[dict[str, Any]] = []
        """Rows of committed batches."""
        self._first = start
        self.reader = self._reader()

    def _reader(self) -> Any:
        return StreamReader(parse_stream(self.options))

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]

    @property
    def data(self) -> list[bytes]:
        return [row["data"] for row in self.rows]

    def _end(self, batches: int) -> Offset:
        """Where so many of the planned batches end."""
        if batches > 0:
            return self.planned[batches - 1]
        self._first = self._first or self.reader.initialOffset()
        return self._first

    @property
    def at(self) -> Offset:
        """Where the next batch begins."""
        return self._end(len(self.planned))

    @property
    def start(self) -> Offset:
        """Where the batch begins that was planned last."""
        return self._end(len(self.planned) - 1)

    def ask(self) -> tuple[Offset, list[Any]]:
        """Where the next batch ends, and its tasks. Nothing is recorded."""
        end = text(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit()))
        return end, list(self.reader.partitions(self.at, end))

    def claim(self) -> Offset | None:
        """Where it ends, by a look at all streams; None where there is none by now."""
        self._doubt_words()
        end = text(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit()))
        return None if end == self.at else end

    def _doubt_words(self) -> None:
        """Has the driver look at all its streams next: the word of a message may be late."""
        driver = self.reader._driver
        if isinstance(driver, RangeDriver):
            driver._stayed = None

    def settle(self) -> None:
        """Spark tells the source that the batch before is in the commit log."""
        self.reader.commit(self.at)

    def plan(self) -> Offset | None:
        """Asks for a batch and records it in the write-ahead log."""
        end = self.claim()
        if end is not None:
            if self.planned and self.committed == len(self.planned):
                self.settle()
            self.planned.append(end)
        return end

    def tasks(self) -> list[Any]:
        """The tasks of the batch that was planned last."""
        return list(self.reader.partitions(self.start, self.planned[-1]))

    def read(self, tasks: Iterable[Any] | None = None) -> list[dict[str, Any]]:
        """The rows of these tasks; unless given, of the batch that was planned last."""
        return rows_of(self.reader, self.tasks() if tasks is None else tasks)

    def commit(self) -> None:
        """The batch that was planned last ends: its rows count."""
        self.rows += self.read()
        self.committed = len(self.planned)

    def step(self) -> int:
        """One whole micro-batch; how many rows it had."""
        if self.plan() is None:
            return 0
        before = len(self.rows)
        self.commit()
        return len(self.rows) - before

    def batch(self) -> list[int]:
        """One of which the source is not told that it is committed; its sequences."""
        end, tasks = self.ask()
        rows = self.read(tasks)
        if end != self.at:
            self.planned.append(end)
        self.rows += rows
        self.committed = len(self.planned)
        return [row["sequence"] for row in rows]

    def drain(self) -> None:
        """Micro-batches until there is nothing for this query."""
        while self.step():
            pass

    def standby(self) -> dict[str, Any]:
        """Who reads, as the progress says it."""
        return text(self.reader.reportLatestOffset())["standby"]

    def die(self) -> None:
        """The run ends without a word: no heartbeat, no ack."""
        self.reader.stop()

    def stop(self) -> None:
        """Likewise, and what its tasks have left open for the next ones is closed."""
        self.die()
        close_idle()

    def restart(self, **options: Any) -> None:
        """Another run from the checkpoint; a batch that was not committed is run again."""
        self.die()
        self.options |= {name: str(value) for name, value in options.items()}
        self.reader = self._reader()
        if self.committed < len(self.planned):
            self.commit()


def queries(kind: Callable[..., Any] = Query, **usual: Any) -> Any:
    """A fixture that makes queries, of the shared server unless given; they end with the test."""

    @pytest.fixture
    def query(nats_server: Any) -> Iterator[Callable[..., Any]]:
        made: list[Any] = []

        def make(server: Any = None, **options: Any) -> Any:
            made.append(kind(server or nats_server, **usual | options))
            return made[-1]

        yield make
        for each in made:
            each.stop()

    return query


query = queries()
jobs = queries(priorityPolicy="overflow", consumer="jobs")
"""On one shared consumer."""
