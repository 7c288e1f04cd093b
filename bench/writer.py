"""
Writes without Spark: the package's own publisher, or its whole task, for so many seconds.

Rows are of 100 B with ids, and there are always more of them. What is on the wire in the end stays
there: what counts is the PubAcks that the writer has read by then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import repeat, takewhile
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priorities
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.metrics import OUTCOMES, MetricsSnapshot
from pyspark_jetstream.publish.options import SinkOptions
from pyspark_jetstream.publish.publisher import Publisher
from pyspark_jetstream.publish.rowthread import Supply
from pyspark_jetstream.publish.telemetry import Origin, Telemetry
from pyspark_jetstream.write.exactlyonce.ids import Ids
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.rows import MessageBuilder
from pyspark_jetstream.write.task import write_task

from .streams import create

SIZE: Final = 100
"""Bytes of a payload."""

SUBJECTS: Final = tuple(f"pressure.{number}" for number in range(1_000))

_STREAM: Final = "PRESSURE"
_BLOCK_ROWS: Final = 10_000
"""As large as the batches that Spark hands to a sink."""

_PRODUCER: Final = Origin(producer_id=1)


class Written(NamedTuple):
    """What came of a write."""

    acked: int
    seconds: float
    """From the first block on."""
    counts: MetricsSnapshot

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.acked / self.seconds


@contextmanager
def empty(url: str, name: str = _STREAM, **config: Any) -> Iterator[JetStream]:
    """A stream of `<name>.>` without messages; deleted in the end."""
    client = Client(parse_connection({"servers": url, "requestTimeout": "60s"}))
    js = JetStream(client)
    try:
        made = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file"}
        create(js, made | {"allow_direct": True} | config)
        try:
            yield js
        finally:
            client.request(f"{js.prefix}.STREAM.DELETE.{name}")
    finally:
        client.close()


def sink(url: str, **changes: Any) -> SinkOptions:
    """Options of a write with a PubAck for each row, with other values, also of its window."""
    options = parse_sink({"servers": url})
    window = {name: changes.pop(name) for name in {*changes} if hasattr(options.window, name)}
    return replace(options, window=replace(options.window, **window), **changes)


def batch(subjects: Sequence[str], data: bytes = bytes(SIZE)) -> pa.RecordBatch:
    """A row a subject."""
    return pa.record_batch(
        {"subject": pa.array(subjects), "data": pa.repeat(pa.scalar(data), len(subjects))}
    )


def rows(subjects: Sequence[str], priorities: Priorities | None = None) -> Iterator[Messages]:
    """Blocks without an end, on these subjects in turn."""
    builder = MessageBuilder(id_prefix=os.urandom(4).hex(), priorities=priorities)
    names = [subjects[row % len(subjects)] for row in range(_BLOCK_ROWS)]
    block = batch(names)
    while True:
        yield builder.build(block)


def write(
    options: SinkOptions,
    blocks: Iterable[Messages],
    seconds: float,
    is_enough: Callable[[], bool] = lambda: False,
) -> Written:
    """
    Writes until the blocks or the seconds are over, or it is enough.

    The clock begins with the first block: one that takes its time to come costs nothing.
    """
    client = Client(options.connection)
    telemetry = Telemetry(options.priorities.routes)
    client.connection.ping(10.0)
    began: list[float] = []

    def timed() -> Iterator[Messages]:
        for block in blocks:
            if not began:
                began.append(time.monotonic())
            yield block

    def is_over() -> bool:
        return bool(began) and (time.monotonic() >= began[0] + seconds or is_enough())

    try:
        publish(
            client, WriteContext(options, origin=_PRODUCER, telemetry=telemetry), timed(), is_over
        )
    finally:
        ended = time.monotonic()
        client.close()
    counts = telemetry.snapshot()
    return Written(counts.total(OUTCOMES.name, status="success")[0], ended - began[0], counts)


def publish(
    client: Client, context: WriteContext, blocks: Iterable[Messages], is_over: Callable[[], bool]
) -> None:
    """Publishes until there are no more blocks, or it is over."""
    with (
        Supply(blocks) as supply,
        Publisher(client, context, supply) as publisher,
    ):
        while publisher.busy and not is_over():
            for leaving in publisher.leaving():
                publisher.release(leaving)
            publisher.turn()


def rate_of_task(options: SinkOptions, block: pa.RecordBatch, seconds: float) -> float:
    """Rows a second of a task that gets this block for so many seconds and stores all its rows."""
    task = TaskName(os.urandom(4).hex(), 0, 0)
    with closing(Client(options.connection)) as client:
        client.connection.ping(10.0)
        began = time.monotonic()
        blocks = takewhile(lambda _: time.monotonic() < began + seconds, repeat(block))
        written = write_task(client, options, blocks, task, Ids(task.write))
        took = time.monotonic() - began
    if written is None or written.acked != written.rows:
        raise RuntimeError(f"not every row is stored: {written}")
    return written.acked / took
