"""
Serves the metrics that reads and writes publish (option metricsSubject) to Prometheus.

    pyspark-jetstream metrics --servers nats://127.0.0.1:4222 --listen 0.0.0.0:9464
    curl http://127.0.0.1:9464/metrics

One exporter sums up all executors and queries that publish on the subject. A second one that
listens to the same subject has the same figures; let Prometheus scrape one of them.

Exit status 1: no connection or no port, one line says why; 2: wrong arguments; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
Needs prometheus-client: pip install prometheus-client
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urlsplit

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.operations.metrics import Beginnings, Reports
from pyspark_jetstream.publish.metrics import EXPORTED, ZEROS, MetricsSnapshot, Report
from pyspark_jetstream.sanitize import get_logger
from pyspark_jetstream.values import subject_filter

from .program import Parser, argument, connected, seconds

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = get_logger(__name__)

_WARN_S: Final = 1.0
"""Shortest time between two log lines about messages that are no reports."""

_IDLE_S = 10.0
"""A connection without messages for so long is checked by a PING."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    add = parser.add_argument
    add("--metrics-subject", type=argument(subject_filter), metavar="SUBJECT",
        default="spark.jetstream.metrics",
        help="subject of the reports (%(default)s)")  # fmt: skip
    add("--listen", type=argument(address), metavar="HOST:PORT", default="127.0.0.1:9464",
        help="address for Prometheus (%(default)s)")  # fmt: skip
    add("--silent", type=seconds, default=30.0, metavar="TIME",
        help="drop the gauges of a query or write that is silent for so long (30s)")  # fmt: skip
    parser.add_connection()


def run(given: argparse.Namespace) -> NoReturn:
    """Serves until it is stopped; it returns only by an error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    exporter = Exporter(Reports(given.silent))
    with connected(given) as client:
        client.connection.ping(client.options.request_timeout_s)
        exporter.serve(*given.listen)
        exporter.follow(client, given.metrics_subject)


def address(text: str) -> tuple[str, int]:
    """
    `host:port` or `[host]:port`; port 0 takes any that is free.

    Raises:
        ValueError: It is none.
    """
    where = urlsplit(f"//{text}")
    if where.hostname is None or where.port is None or "@" in text:
        raise ValueError(f"expected HOST:PORT such as 127.0.0.1:9464, got '{text}'")
    return where.hostname, where.port


class Exporter:
    """All reports; the thread that follows the subject writes them, scrapes read them."""

    def __init__(self, reports: Reports, clock: Callable[[], float] = time.monotonic) -> None:
        self._reports = reports
        self._clock = clock
        self._beginnings = Beginnings()
        self._lock = Lock()
        self._left_out = 0
        self._warn_at = -math.inf

    def serve(self, host: str, port: int) -> None:
        """Answers scrapes from now on, in threads of their own."""
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.registry import Collector

        exporter = self

        class Sums(Collector):
            def collect(self) -> Iterator[Metric]:
                with exporter._lock:
                    totals = exporter._beginnings.of(exporter._reports.totals(exporter._clock()))
                yield from families(totals)

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Sums())
        server, _ = start_http_server(port, host, registry)
        shown = f"[{host}]" if ":" in host else host
        logger.info("serving http://%s:%d/metrics", shown, server.server_port)

    def follow(self, client: Client, subject: str) -> NoReturn:
        """
        Takes reports, over as many connections as it needs.

        Raises:
            JetStreamError: The server does not let this user in, or subscribe.
        """
        while True:
            try:
                connection = client.connection
                sid = connection.subscribe(subject)
                connection.ping(client.options.request_timeout_s)  # the server has it
                logger.info("following %s on %s", subject, client.options.where)
                while True:
                    frame = connection.next_frame(time.monotonic() + _IDLE_S)
                    if frame is None:
                        connection.send(wire.PING)
                    elif frame.sid == sid:
                        self.take(frame.data)
            except NotConnectedError as error:
                client.drop()
                if not error.retryable:
                    raise
                logger.warning("no reports come until the server answers again: %s", error)
                time.sleep(1)

    def take(self, data: bytes) -> None:
        """A message on the subject; what is no report is counted, and logged at times."""
        try:
            report = Report.decode(data)
            with self._lock:
                self._reports.take(report, self._clock())
        except ValueError as error:
            self._left_out += 1
            if self._clock() >= self._warn_at:
                logger.warning(
                    "left out %d reports so far, which count for nothing: %s", self._left_out, error
                )
                self._warn_at = self._clock() + _WARN_S


def families(totals: Mapping[str, MetricsSnapshot]) -> Iterator[Metric]:
    """
    In Prometheus's words; counters end with `_total` there, whatever their name.

    What has not happened yet is 0, so that who asks for it finds it.

    Args:
        totals: by query, "" for none.
    """
    from prometheus_client import core

    known = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    totals = {**totals, "": MetricsSnapshot.merged([ZEROS, totals.get("", MetricsSnapshot({}))])}
    for metric in EXPORTED.values():
        # Reads say themselves of which query they are.
        is_told = "query" in metric.labels
        labels = metric.labels if is_told else (*metric.labels, "query")
        labelled = [
            (label_values if is_told else (*label_values, query), series)
            for query, snapshot in totals.items()
            for label_values, series in snapshot.values.get(metric.name, {}).items()
        ]
        if metric.kind == "histogram":
            bounds = [*map(str, metric.buckets), "+Inf"]
            histogram = core.HistogramMetricFamily(metric.name, metric.doc, labels=labels)
            for label_values, (*counts, sum_) in labelled:
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                histogram.add_metric(label_values, buckets, sum_ / metric.per_unit)
            yield histogram
            continue
        family = known[metric.kind](metric.name, metric.doc, labels=labels)
        for label_values, (value,) in labelled:
            family.add_metric(label_values, value / metric.per_unit)
        yield family
