"""What the tests of atomic batches share: a lane, and how many rows are in no batch."""

from __future__ import annotations

from pyspark_jetstream.publish.lanes.atomiclane import AtomicLane

from .lanes import MANY, PREFIX, FixedLimit, Sent, terms


def lane(maximum: int = 4096, max_bytes: int = MANY, ack: float = 5.0, publish: float = 120.0):
    """A lane without limits, unless given."""
    return AtomicLane(PREFIX, terms(FixedLimit(maximum), max_bytes, ack, publish))


def plain(found: list[Sent]) -> int:
    """How many are no part of a batch."""
    return sum("Nats-Batch-Id" not in each.headers for each in found)
