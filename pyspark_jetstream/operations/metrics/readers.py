"""What the server knows of the queries that read: lag, pins, pauses and redeliveries."""

from __future__ import annotations

from typing import Final

from prometheus_client import core

from ...client.jetstream import JetStream
from ..inspect.findings import consumer_row

READERS: Final = {
    "jetstream_read_lag_messages": ("lag", "Messages that no batch has yet."),
    "jetstream_read_runs": ("runs", "1 while a client is pinned at the consumer, or waits there."),
    "jetstream_read_paused": ("is_paused", "1 while the consumer is paused."),
    "jetstream_read_ack_pending_messages": ("ack_pending", "Claims that are not acknowledged."),
    "jetstream_read_redelivered_messages": ("redelivered", "Those delivered more than once."),
}
"""Gauges of a query's consumers, each with its column of `inspect`, and what it says."""


def readers(js: JetStream) -> list[core.Metric]:
    """The consumers of queries, in all streams."""
    labels = ("query", "stream", "consumer")
    gauges = {n: core.GaugeMetricFamily(n, doc, labels=labels) for n, (_, doc) in READERS.items()}
    for stream in js.stream_names():
        for row in (consumer_row(stream, each) for each in js.consumer_list(stream)[0]):
            row["is_paused"] = row["paused_until"] is not None
            for name, (column, _) in READERS.items() if row["query"] else ():
                if row[column] is not None:
                    gauges[name].add_metric((row["query"], stream, row["consumer"]), row[column])
    return [*gauges.values()]
