"""A task that publishes its metrics, also as a program: SERVER SUBJECT PRODUCER."""

from __future__ import annotations

import sys

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttle import Source
from pyspark_jetstream.outbox.throttleprotocol import Reason
from pyspark_jetstream.publish.metrics import Report
from pyspark_jetstream.publish.telemetry import Meters

from .options import connection_of


def reports(producer: int, count: int = 3, final: bool = True) -> list[Report]:
    """What a task says of itself as it goes on: each time one of everything more."""
    meters, said = Meters(), []
    for sequence in range(1, count + 1):
        meters.limits(64, 10_000)
        meters.queued({Priority.CRITICAL: producer, Priority.NON_CRITICAL: 2}, "orders.>")
        meters.in_flight({Priority.NORMAL: 4}, "fast")
        meters.waited([(0.0007, 2), (0.3, 1)], "orders.>", Priority.CRITICAL)
        meters.processed(0.0015, 10, Priority.NORMAL, "fast")
        meters.rejected("orders.>", "MaxConcurrentRequests", Priority.NON_CRITICAL, 1)
        meters.throttled(Reason.TopicProduceQuotaExceeded, "orders.*", 640)
        meters.rate_limited(Source.OPERATOR, Reason.TopicProduceQuotaExceeded, "orders.*")
        meters.outcome("success", 100)
        meters.outcome("dropped", 1)
        meters.dead_letters("MaxConcurrentRequests", Priority.NON_CRITICAL, 1)
        meters.dropped("QueueTimeout", Priority.NON_CRITICAL, 1)
        meters.retries(1)
        meters.duplicates(1)
        meters.blocked("throttle", 0.25)
        meters.late_retries(1)
        meters.unrecognised(1)
        meters.invalid_commands()
        is_last = final and sequence == count
        said.append(Report(producer, "r", "q", 1, sequence, is_last, meters.snapshot()))
    return said


def publish(client: Client, subject: str, said: list[bytes]) -> None:
    """Publishes and waits until the server has it all."""
    client.connection.send(b"".join(wire.pub(subject, data) for data in said))
    client.connection.ping(10)


if __name__ == "__main__":
    server, subject, producer = sys.argv[1:]
    options = connection_of(server)
    publish(Client(options), subject, [each.encode() for each in reports(int(producer))])
