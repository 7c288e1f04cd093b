"""The exporter for Prometheus."""

from __future__ import annotations

import logging
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from ...client.options import ConnectionOptions
from ...values import subject_filter
from ..connecting import SECONDS, Kind, client_of, connects


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


@click.command()
@click.option("--listen", type=Kind("address", address), metavar="HOST:PORT",
              default="127.0.0.1:9464", show_default=True,
              help="Address for Prometheus.")  # fmt: skip
@click.option("--metrics-subject", type=Kind("subject", subject_filter), metavar="SUBJECT",
              default="spark.jetstream.metrics", show_default=True,
              help="Subject of the reports.")  # fmt: skip
@click.option("--silent", type=SECONDS, metavar="TIME", default="30s", show_default=True,
              help="Drop the gauges of a writer that is silent for so long.")  # fmt: skip
@click.option("--stream", "streams", multiple=True, metavar="NAME",
              help="Look for readers in this stream; repeatable; default: all.")  # fmt: skip
@click.option("--every", type=SECONDS, metavar="TIME", default="10s", show_default=True,
              help="Ask the server for readers so often.")  # fmt: skip
@click.option("--readers/--no-readers", "asks", default=True, show_default=True,
              help="Ask the server for readers at all.")  # fmt: skip
@connects
def metrics(
    connection: ConnectionOptions,
    listen: tuple[str, int],
    metrics_subject: str,
    silent: float,
    **of_readers: Any,
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
    exporter = Exporter(silent)
    with client_of(connection) as client:
        client.connection.ping(client.options.request_timeout_s)
        exporter.serve(*listen)
        if of_readers["asks"]:
            exporter.ask(connection, of_readers["streams"], of_readers["every"])
        exporter.follow(client, metrics_subject)
