"""A streaming query's write as Spark runs it, task by task and commit by commit, without Spark."""

from __future__ import annotations

import secrets
from contextlib import closing

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.publish.publisher import Written
from pyspark_jetstream.write.exactlyonce.ids import TaskName, of_query
from pyspark_jetstream.write.sink import JetStreamStreamWriter, Published
from pyspark_jetstream.write.task import TaskReport, write_task

from .options import sink_of

SCHEMA = StructType().add("subject", "string").add("data", "string")


def attempt(options, blocks, name, ids, report=None) -> Written | None:
    """One attempt of a task, on a connection of its own."""
    with closing(Client(options.connection)) as client:
        return write_task(client, options, blocks, name, ids, report)


class WriteQuery:
    """One that writes into one stream, exactly once; its batches are all alike unless given."""

    def __init__(self, connection, target, name=None, **fields):
        self.name = name or f"write-{target}-{secrets.token_hex(4)}"
        self.options = sink_of(connection, ledger=True, **fields)
        self.target = target
        self.at = 0
        """The batch that is next."""

    def rows(self, count=100, first=None, **columns) -> pa.RecordBatch:
        """Numbered rows of the next batch, on seven subjects of the target in turn."""
        first = self.at * count if first is None else first
        numbers = range(first, first + count)
        subjects = [f"{self.target}.{n % 7}" for n in numbers]
        return pa.record_batch({"subject": subjects, "data": list(map(str, numbers))} | columns)

    def task(self, blocks=None, task=0) -> Published:
        """One of the next batch: what it has written, None if it was written before."""
        name, report = TaskName(self.name, self.at, task), TaskReport()
        blocks = [self.rows()] if blocks is None else blocks
        written = attempt(self.options, blocks, name, of_query(self.name, self.at), report)
        return Published(self.name, written, streams=tuple(report.seen))

    def commit(self, *published) -> None:
        """All tasks of the next batch have written."""
        JetStreamStreamWriter(self.options, SCHEMA).commit([*published], self.at)
        self.at += 1

    def batch(self, blocks=None) -> Written:
        """A batch of one task, and its commit."""
        published = self.task(blocks)
        self.commit(published)
        return published.written

    def run(self, until) -> None:
        """Batches up to this one."""
        while self.at < until:
            self.batch()
