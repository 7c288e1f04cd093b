"""Serves to Prometheus what producers report, beside what the server says of readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from threading import Lock, Thread
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry, core, start_http_server
from prometheus_client.registry import Collector

from ...client.connection import Client
from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...errors import JetStreamError, NotConnectedError
from ...publish.metrics import METRICS, MICRO, ZEROS, MetricsReport, MetricsSnapshot
from ...sanitize import get_logger
from .readers import readers
from .reports import Reports, Series

logger = get_logger(__name__)

_EVERY_S: Final = 5.0
"""The server is asked for readers so often."""

_LEFT_OUT: Final = 1_000
"""The first one of so many messages that are no reports is logged."""

_IDLE_S: Final = 10.0
"""A connection that is silent for so long is checked by a PING; its PONG has as long to come."""


class Exporter(Collector):
    """All that is known; threads that listen and ask write it, scrapes read it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._reports, self._clock, self._lock = Reports(), clock, Lock()
        self._readers: list[core.Metric] = []
        self._left_out = 0

    def serve(self, host: str, port: int) -> None:
        """Answers scrapes from now on, in threads of their own."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        server, _ = start_http_server(port, host, registry)
        logger.info("serving http://%s:%d/metrics", host, server.server_port)

    def collect(self) -> Iterator[core.Metric]:
        """What Prometheus gets."""
        with self._lock:
            totals, since = self._reports.totals(self._clock()), dict(self._reports.since)
        yield from families(totals, since)
        yield from self._readers

    def follow(self, client: Client, subject: str) -> NoReturn:
        """
        Takes reports, over as many connections as it needs.

        Raises:
            JetStreamError: The server does not let this user in, or subscribe.
        """
        idle_s = min(_IDLE_S, client.options.request_timeout_s)
        while True:
            try:
                connection = client.connection
                sid = connection.subscribe(subject)
                connection.ping(client.options.request_timeout_s)  # the server has it
                logger.info("following %s on %s", subject, client.options.where)
                while True:
                    frame = connection.next_frame(time.monotonic() + idle_s)
                    if frame is None:
                        connection.check(time.monotonic(), idle_s)
                    elif frame.sid == sid:
                        self.take(frame.data)
            except NotConnectedError as error:
                client.drop()
                if not error.retryable:
                    raise
                logger.warning("no reports come until the server answers again: %s", error)
                time.sleep(1)

    def ask(self, options: ConnectionOptions) -> None:
        """Asks the server for readers, again and again, in a thread of its own."""

        def look() -> NoReturn:
            client = Client(options)
            while True:
                try:
                    self._readers = readers(JetStream(client))
                except JetStreamError as error:
                    self._readers = []
                    logger.warning("the server does not say who reads: %s", error)
                time.sleep(_EVERY_S)

        Thread(target=look, name="readers", daemon=True).start()

    def take(self, data: bytes) -> None:
        """A message on the subject; what is no report is counted, and logged at times."""
        try:
            report = MetricsReport.decode(data)
            with self._lock:
                self._reports.take(report, self._clock())
        except ValueError as error:
            if self._left_out % _LEFT_OUT == 0:
                said = "left out %d reports so far, which count for nothing: %s"
                logger.warning(said, self._left_out + 1, error)
            self._left_out += 1


def families(
    totals: Mapping[str, MetricsSnapshot], created: Mapping[Series, float]
) -> Iterator[core.Metric]:
    """
    Reports in Prometheus's words; counters end with `_total` there, whatever their name.

    What has not happened yet is 0, so that who asks for it finds it. Since when a counter counts is
    said beside it, so that each scraper sees its first increase.

    Args:
        totals: by query, "" for none.
        created: by series, the time (UNIX) before which it was 0.
    """
    totals = {**totals, "": MetricsSnapshot.merged([ZEROS, totals.get("", MetricsSnapshot({}))])}
    for metric in METRICS.values():
        labels = (*metric.labels, "query")
        rows = [
            ((*values, query), series, created.get((query, metric.name, values)))
            for query, snapshot in totals.items()
            for values, series in snapshot.values.get(metric.name, {}).items()
        ]
        if metric.kind == "gauge":
            gauge = core.GaugeMetricFamily(metric.name, metric.doc, labels=labels)
            for values, (value,), _ in rows:
                gauge.add_metric(values, value)
            yield gauge
        elif metric.kind == "counter":
            counter = core.CounterMetricFamily(metric.name, metric.doc, labels=labels)
            for values, (value,), since in rows:
                counter.add_metric(values, value, created=since)
            yield counter
        else:
            bounds = [*map(str, metric.buckets), "+Inf"]
            histogram = core.HistogramMetricFamily(metric.name, metric.doc, labels=labels)
            for values, (*counts, sum_), since in rows:
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                histogram.add_metric(values, buckets, sum_ / MICRO)
                if since is not None:
                    named = dict(zip(labels, values, strict=True))
                    histogram.add_sample(f"{metric.name}_created", named, since)
            yield histogram
