"""
Published counts of a streaming read (`metricsSubject`): by the driver from a thread, by tasks at
their end and in between.

Nothing waits for it and nothing fails by it: a report that cannot be sent is lost, and the next one
makes up for it. The thread has a connection of its own, because Spark calls the driver only now
and then; a task uses the one it reads on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from ..client.connection import Client
from ..errors import JetStreamError
from ..fetch.layout import Layout
from ..sanitize import get_logger
from ..tasks.rows import ReadTask, Work
from .counts import ReadCounts, RowCounts
from .options import SourceOptions

logger = get_logger(__name__)

_PATIENCE_S = 5.0
"""Time-out of a look at the server."""

_JOIN_S = 2.0


@dataclass(frozen=True, slots=True)
class CountedWork:
    """The work of a task that counts the rows it hands over."""

    work: Work
    query: str
    subject: str
    interval_s: float

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        counts = RowCounts(self.query, os.urandom(8).hex())
        began = told = time.monotonic()
        try:
            for batch in self.work.batches(client):
                counts.add(batch)
                if time.monotonic() - told >= self.interval_s:
                    told = time.monotonic()
                    client.tell(self.subject, counts.report())
                yield batch
        finally:
            counts.add_task(time.monotonic() - began)
            client.tell(self.subject, counts.report(final=True))


class Reporting:
    """
    Reports of one run of a query, from its first batch to its end.

    Args:
        query: its label.
        look: asks the server where the query stands, each interval, in the thread.
        observe: counts what is known without asking, before each report, in the thread.
    """

    def __init__(
        self,
        options: SourceOptions,
        query: str,
        layout: Layout,
        look: Callable[[Client], None],
        observe: Callable[[ReadCounts], None],
    ) -> None:
        assert options.metrics_subject is not None
        self._query = query
        self._subject = options.metrics_subject
        self._interval_s = options.metrics_interval_s
        self._counts = ReadCounts(query, os.urandom(8).hex(), layout)
        self._lock = threading.Lock()
        """Held for every use of `_counts`."""
        connection = options.connection
        patience_s = min(_PATIENCE_S, connection.request_timeout_s)
        self._client = Client(replace(connection, request_timeout_s=patience_s))
        self._look = look
        self._observe = observe
        self._batch_began: float | None = None
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @contextmanager
    def counting(self) -> Iterator[ReadCounts]:
        """The counts, while nobody else has them."""
        with self._lock:
            yield self._counts

    def report_soon(self) -> None:
        """Reports what is new without waiting for the interval."""
        self._wake.set()

    def begin_batch(self, tasks: list[ReadTask]) -> list[ReadTask]:
        """Notes that a batch begins; its tasks, made to count their rows."""
        if tasks:
            self._batch_began = time.monotonic()
        return [
            ReadTask(
                task.connection,
                CountedWork(task.work, self._query, self._subject, self._interval_s),
            )
            for task in tasks
        ]

    def end_batch(self) -> None:
        """Notes that Spark asks for another batch: the last one, if any, is committed."""
        if self._batch_began is not None:
            with self.counting() as counts:
                counts.add_batch(time.monotonic() - self._batch_began)
                counts.set_under_way({})
            self._batch_began = None
            self.report_soon()

    def close(self) -> None:
        """Reports for the last time, and ends the thread; never raises."""
        self._stopped = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stopped:
                try:
                    if time.monotonic() >= due:
                        due = time.monotonic() + self._interval_s
                        self._look(self._client)
                except JetStreamError as error:
                    logger.info("the metrics do not show where the query stands: %s", error)
                except Exception as error:  # the others are worth having
                    logger.warning(
                        "this report lacks some metrics; the next report may have them. The query"
                        " goes on: %r",
                        error, exc_info=True,
                    )  # fmt: skip
                self._tell()
                self._wake.wait(max(0.0, due - time.monotonic()))
                self._wake.clear()
            self._tell(final=True)
        finally:
            self._client.close()

    def _tell(self, final: bool = False) -> None:
        try:
            with self.counting() as counts:
                self._observe(counts)
                report = counts.report(final)
            _ = self._client.connection  # dials, if need be
            self._client.tell(self._subject, report)
        except Exception as error:
            logger.info("metrics are lost: %r", error)
