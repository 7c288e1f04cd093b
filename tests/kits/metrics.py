"""A task that publishes its metrics, also as a program: SERVER SUBJECT PRODUCER."""

from __future__ import annotations

import sys
from bisect import bisect_left

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.publish.metrics import METRICS, MICRO, MetricsReport, MetricsSnapshot

from .options import connection_of

QUERY = "a6a91a5e-51a8-4d4c-8a57-6a8a3a1b2c3d"

_COUNTED = {
    "publish_rejected_total": ("orders.>", "MaxConcurrentRequests", "noncritical"),
    "publish_dead_letter_total": ("MaxConcurrentRequests", "noncritical"),
    "publish_rate_limit_count": ("operator", "TopicProduceQuotaExceeded", "orders.*", ""),
    "publish_retries_total": (),
}
"""What happens once between two reports."""


def series(name: str, labels: tuple[str, ...], *values: float) -> tuple:
    """A value, or the times of a histogram."""
    metric = METRICS[f"jetstream_{name}"]
    if metric.kind != "histogram":
        return metric.name, labels, values
    counts = [0] * metric.width
    for each in values:
        counts[bisect_left(metric.buckets, each)] += 1
        counts[-1] += round(each * MICRO)
    return metric.name, labels, counts


def reports(producer: int, count: int = 3, final: bool = True) -> list[MetricsReport]:
    """What a task says of itself as it goes on: each time one of everything more."""
    state = [
        series("publish_queue_total", ("orders.>", "critical"), producer),
        series("publish_queue_total", ("orders.>", "noncritical"), 2),
    ]
    once = [series(name, labels, 1) for name, labels in _COUNTED.items()]
    waits = 0.0007, 0.0007, 0.3
    once += [
        series("publish_queue_time_seconds", ("orders.>", "critical"), *waits),
        series("producer_throttled_times", ("TopicProduceQuotaExceeded", "orders.*", ""), 640),
        series("publish_outcomes_total", ("success",), 100),
        series("publish_outcomes_total", ("pushed_back",), 1),
        series("publish_outcomes_total", ("dropped",), 1),
    ]
    return [
        MetricsReport(
            producer, QUERY, 1, n, final and n == count, MetricsSnapshot.of(state + once * n)
        )
        for n in range(1, count + 1)
    ]


def publish(client: Client, subject: str, said: list[bytes]) -> None:
    """Publishes and waits until the server has it all."""
    client.connection.send(b"".join(wire.pub(subject, data) for data in said))
    client.connection.ping(60.0)


if __name__ == "__main__":
    server, subject, producer = sys.argv[1:]
    options = connection_of(server)
    publish(Client(options), subject, [each.encode() for each in reports(int(producer))])
