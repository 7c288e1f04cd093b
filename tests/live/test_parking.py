"""Rows of paused subjects in a stream of their own: parked, and sent on, once and in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Active,
    Producer,
    Reason,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.write.exactlyonce.ids import of_query
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.parked import drain, ensure_parking
from pyspark_jetstream.write.task import write_task

from ..kits.options import connection_of, creation_of, rules_of, sink_of
from .test_publisher import stored

QUERIES = count()


class Query:
    """A streaming query without Spark: its batches, each of one task, and their commits."""

    def __init__(self, server, stream, park_bytes=1 << 30, **changes):
        self.id = f"query{next(QUERIES)}"
        self.stream = stream
        self.park = f"{stream}_PARKED"
        self.options = sink_of(
            connection_of(server.url),
            ledger=True,
            create=creation_of(stream, (f"{stream}.>",)),
            rules=rules_of(park_stream=self.park, park_bytes=park_bytes, throttle_max_wait_s=60.0),
            **changes,
        )
        self.batch = 0
        self.rows: dict[str, list[str]] = {}
        self.client = Client(self.options.connection)
        self.js = JetStream(self.client)
        Ledger(self.js).ensure()
        ensure_parking(self.js, self.options)

    def made(self, *subjects, rows=20):
        """The rows of the next batch, on these subjects in turn."""
        data = []
        for number in range(rows):
            subject = f"{self.stream}.{subjects[number % len(subjects)]}"
            of = self.rows.setdefault(subject, [])
            of.append(str(len(of)))
            data.append((subject, of[-1]))
        names, values = zip(*data, strict=True)
        return pa.record_batch({"subject": pa.array(names), "data": pa.array(values)})

    def write(self, batch, task=0, **changes):
        """One attempt of the task."""
        client = Client(self.options.connection)
        try:
            name = TaskName(self.id, self.batch, task)
            options = replace(self.options, **changes)
            return write_task(client, options, [batch], name, of_query(self.id, self.batch))
        finally:
            client.close()

    def commit(self, tasks=1):
        """The driver's commit."""
        Ledger(self.js).commit(self.id, self.batch, tasks, {})
        self.batch += 1

    def drain(self, **options):
        """What is left when the driver has drained."""
        return drain(self.options, self.id, **options)

    def parked(self):
        """Number of rows that are parked."""
        return self.js.stream_info(self.park).messages

    def check(self):
        """Everything is stored, once and in the order of its subject."""
        found: dict[str, list[str]] = {}
        for subject, data in stored(self.js, self.stream):
            found.setdefault(subject, []).append(data.decode())
        assert found == self.rows
        assert self.parked() == 0


@pytest.fixture
def query(nats_server, js, new_stream):
    made = []

    def make(throttle, window_s=120.0, **options):
        name = new_stream(allow_direct=True, duplicate_window=round(window_s * 1e9))
        made.append(Query(nats_server, name, throttle_subject=throttle.control, **options))
        return made[-1]

    yield make
    for each in made:
        each.js.delete_stream(each.park)
        each.client.close()


class Controller(threading.Thread):
    """Tells each writer that begins what is paused, and what is not any more."""

    def __init__(self, server, control):
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.words: dict[str, float] = {}
        self._requests = count(1)
        self.control = control
        self._client = Client(connection_of(server.url))
        self._client.connection.subscribe(f"{control}.active")
        self._client.connection.ping(30)
        self.start()

    def __call__(self, *subjects):
        """These are paused from the next writer on, and no others."""
        self.words = dict.fromkeys(self.words, 0.0) | dict.fromkeys(subjects, 60.0)

    def run(self):
        connection = self._client.connection
        while not self.stop.is_set():
            frame = connection.next_frame(time.monotonic() + 0.05)
            said = understand(frame.data) if frame is not None and frame.data else None
            if not isinstance(said, Producer):
                continue
            to, words = f"{self.control}.{said.producer_id}", list(self.words.items())
            for subject, seconds in words:
                reason = Reason.TopicProduceQuotaExceeded
                command = ThrottleProducer(next(self._requests), reason, seconds, subject)
                connection.send(wire.pub(to, command.encode()))
            connection.send(wire.pub(to, Active(len(words)).encode()))
        self._client.close()


@pytest.fixture
def throttle(nats_server):
    """What an operator pauses, on a control subject of the test's own."""
    one = Controller(nats_server, f"control{next(QUERIES)}")
    yield one
    one.stop.set()
    one.join(30)


def test_a_pause_holds_nobody_else(query, throttle):
    """
    Of two subjects one is paused: the batch ends, what is not paused is stored, later rows of the
    paused one are parked behind the others, and all are there in order when the pause is over.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    written = one.write(one.made("a", "b"))
    assert (written.acked, written.parked) == (10, 10)
    one.commit()
    assert one.drain() == 10
    assert one.write(one.made("a", "b")).parked == 10
    one.commit()
    assert Counter(subject for subject, _ in stored(one.js, one.stream)) == {f"{one.stream}.b": 20}
    throttle()
    written = one.write(one.made("a", "b"))
    assert (written.acked, written.parked) == (10, 10), "rows overtake those that are parked"
    one.commit()
    assert one.drain() == 0
    one.check()
    assert one.write(one.made("a", "b")).parked == 0
    one.commit()
    one.check()
