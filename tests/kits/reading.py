"""A streaming read as Spark runs it, step by step, without Spark: log, tasks, commit, restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.rangedriver import RangeDriver
from pyspark_jetstream.readstream.reader import StreamReader

from .servers import DevServer

Offset = dict[str, Any]


def text(offset: Offset) -> Offset:
    """An offset as it comes back out of the checkpoint."""
    return json.loads(json.dumps(offset))


class Query:
    """One query: its checkpoint, and the reader of its present run."""

    def __init__(self, server: DevServer, **options: Any) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.options.setdefault("servers", server.url)
        self.planned: list[Offset] = []
        """The offsets in the write-ahead log."""
        self.committed = 0
        """How many of them are in the commit log."""
        self.rows: list[dict[str, Any]] = []
        """Rows of committed batches."""
        self.reader = self._reader()

    def _reader(self) -> Any:
        return StreamReader(parse_stream(self.options))

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]

    @property
    def data(self) -> list[bytes]:
        return [row["data"] for row in self.rows]

    @property
    def start(self) -> Offset:
        """Where the batch begins that was planned last."""
        return self.planned[-2] if len(self.planned) > 1 else self.reader.initialOffset()

    def claim(self) -> Offset | None:
        """Asks for a batch; None where there is none by now. Nothing is recorded."""
        self._doubt_words()
        start = self.planned[-1] if self.planned else self.reader.initialOffset()
        # 1 where the options have a limit of their own: the reader goes by these.
        end = text(self.reader.latestOffset(start, ReadMaxRows(1)))
        return None if end == start else end

    def _doubt_words(self) -> None:
        """Has the driver look at all its streams next: the word of a message may be late."""
        driver = self.reader._driver
        if isinstance(driver, RangeDriver):
            driver._stayed = None

    def plan(self) -> Offset | None:
        """Asks for a batch and records it in the write-ahead log."""
        end = self.claim()
        if end is not None:
            if self.planned and self.committed == len(self.planned):
                self.reader.commit(self.planned[-1])
            self.planned.append(end)
        return end

    def tasks(self) -> list[Any]:
        """The tasks of the batch that was planned last."""
        return list(self.reader.partitions(self.start, self.planned[-1]))

    def read(self) -> list[dict[str, Any]]:
        """The rows of the batch that was planned last."""
        batches = [batch for task in self.tasks() for batch in self.reader.read(task)]
        return [row for batch in batches for row in batch.to_pylist()]

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

    def drain(self) -> None:
        """Micro-batches until there is nothing for this query."""
        while self.step():
            pass

    def die(self) -> None:
        """The run ends without a word: no heartbeat, no ack."""
        self.reader.stop()

    def restart(self, **options: Any) -> None:
        """Another run from the checkpoint; a batch that was not committed is run again."""
        self.die()
        self.options |= {name: str(value) for name, value in options.items()}
        self.reader = self._reader()
        if self.committed < len(self.planned):
            self.commit()


def queries(nats_server: DevServer, **usual: Any) -> Iterator[Callable[..., Query]]:
    """Makes queries, of this server where no other one is given; all end with the test."""
    made: list[Query] = []

    def make(server: DevServer | None = None, **options: Any) -> Query:
        made.append(Query(server or nats_server, **usual | options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


@pytest.fixture
def query(nats_server: DevServer) -> Iterator[Callable[..., Query]]:
    """Makes queries of the shared server."""
    yield from queries(nats_server)


@pytest.fixture
def reader(nats_server: DevServer) -> Iterator[Callable[..., StreamReader]]:
    """Makes stream readers of the shared server."""
    made = []

    def make(**options: Any) -> StreamReader:
        texts = {name: str(value) for name, value in options.items()}
        made.append(StreamReader(parse_stream({"servers": nats_server.url} | texts)))
        return made[-1]

    yield make
    for each in made:
        each.stop()
