"""The exporter for Prometheus."""

from __future__ import annotations

import logging
from typing import NoReturn

import click

from ...client.options import ConnectionOptions
from ...values import subject_filter
from ..connecting import Kind, client_of, connects


def address(text: str) -> tuple[str, int]:
    """
    `host:port` or `[host]:port`; port 0 takes any that is free.

    Raises:
        ValueError: It is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"expected HOST:PORT such as 127.0.0.1:9464, got '{text}'")
    return host.strip("[]"), int(port)


@click.command()
@click.option("--listen", type=Kind("address", address), metavar="HOST:PORT",
              default="127.0.0.1:9464", show_default=True,
              help="Address for Prometheus.")  # fmt: skip
@click.option("--metrics-subject", type=Kind("subject", subject_filter), metavar="SUBJECT",
              default="spark.jetstream.metrics", show_default=True,
              help="Subject of the reports.")  # fmt: skip
@connects
def metrics(
    connection: ConnectionOptions, listen: tuple[str, int], metrics_subject: str
) -> NoReturn:
    """
    Serves metrics of reads and writes to Prometheus.

    Writers report on a subject (option metricsSubject); one exporter sums them up. Lag, pins and
    pauses of readers come from the server. Counters say since when they count: let
    Prometheus run with --enable-feature=created-timestamp-zero-ingestion, and it sees the first
    increase of each, as does a second Prometheus.

    \b
    pyspark-jetstream metrics --listen 0.0.0.0:9464
    curl http://127.0.0.1:9464/metrics
    """
    from .exporter import Exporter

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    exporter = Exporter()
    with client_of(connection) as client:
        client.connection.ping(client.options.request_timeout_s)
        exporter.serve(*listen)
        exporter.ask(connection)
        exporter.follow(client, metrics_subject)
