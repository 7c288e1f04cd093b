"""A query on a shared consumer as Spark runs it, step by step, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_jetstream.client import connection
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.shared.reader import SharedStreamReader

Offset = dict[str, Any]

RETENTIONS = ["limits", "interest", "workqueue"]


def text(offset: Offset) -> Offset:
    """An offset as it comes back out of the checkpoint."""
    return json.loads(json.dumps(offset))


class Query:
    """One query: its checkpoint, and the reader of its present run."""

    def __init__(self, server: DevServer, **options: Any) -> None:
        self._options = {name: str(value) for name, value in options.items()}
        self._options.setdefault("servers", server.url)
        self.reader = SharedStreamReader(parse_stream(self._options))
        self.planned: list[Offset] = []
        """The offsets in the write-ahead log."""
        self.committed = 0
        """How many of them are in the commit log."""
        self.rows: list[dict[str, Any]] = []
        """Rows of committed batches."""

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]

    @property
    def start(self) -> Offset:
        """Where the batch begins that was planned last."""
        return self.planned[-2] if len(self.planned) > 1 else self.reader.initialOffset()

    def claim(self) -> Offset | None:
        """Asks for a batch; None where there is none. Nothing is recorded."""
        start = self.planned[-1] if self.planned else self.reader.initialOffset()
        end = text(self.reader.latestOffset(start, ReadMaxRows(1)))
        return None if end == start else end

    def plan(self) -> Offset | None:
        """Asks for a batch and records it in the write-ahead log."""
        end = self.claim()
        if end is not None:
            self.planned.append(end)
        return end

    def read(self) -> list[dict[str, Any]]:
        """The rows of the batch that was planned last."""
        rows = []
        for task in self.reader.partitions(self.start, self.planned[-1]):
            for batch in self.reader.read(task):
                rows += batch.to_pylist()
        return rows

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

    def restart(self) -> None:
        """Another run from the checkpoint; a batch that was not committed is run again."""
        self.die()
        self.reader = SharedStreamReader(parse_stream(self._options))
        if self.committed < len(self.planned):
            self.commit()


def hang_up() -> None:
    """Closes what the tasks of this thread leave open for its next ones; a thread's last words."""
    while connection._idle.clients:
        connection._idle.clients.popitem()[1].close()


@pytest.fixture
def query(nats_server: DevServer) -> Iterator[Callable[..., Query]]:
    """Makes queries of the shared server, all of which end with the test."""
    made: list[Query] = []

    def make(server: DevServer | None = None, **options: Any) -> Query:
        options = {"priorityPolicy": "overflow", "consumer": "jobs"} | options
        made.append(Query(server or nats_server, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


def eventually(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Waits until `condition` holds, and returns what it gave."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come to hold in time"
        time.sleep(0.05)


def numbered(name: str, n: int, start: int = 0) -> list[tuple[str, bytes]]:
    """`n` messages on seven subjects below `name`."""
    return [(f"{name}.{i % 7}", b"m%d" % i) for i in range(start, start + n)]


def ack_pending(js: JetStream, name: str, consumer: str = "jobs-0") -> int:
    """Claims of all readers of a consumer."""
    return js.consumer_info(name, consumer).num_ack_pending
