"""What the tests of fast-ingest batches share: a lane, rows that go one by one, steps."""

from __future__ import annotations

from pyspark_jetstream.outbox.limits import GradientLimit
from pyspark_jetstream.publish.lanes.fastlane import FastLane

from .lanes import MANY, PREFIX, FixedLimit, ModelServer, Sent, hear, sent, terms


def lane(
    maximum: int | GradientLimit = 4096,
    max_bytes: int = MANY,
    ack: float = 5.0,
    publish: float = 120.0,
):
    """A lane without limits, unless given."""
    limit = FixedLimit(maximum) if isinstance(maximum, int) else maximum
    return FastLane(PREFIX, terms(limit, max_bytes, ack, publish))


def one_by_one(one: FastLane, server: ModelServer) -> tuple[list[Sent], list[Sent]]:
    """Plays on while plain publishes come; those, and what came then."""
    log: list[Sent] = []
    while part := sent(one):
        if part[0].reply.endswith("$FI"):
            return log, part
        log += part
        for each in part:
            hear(one, server.publish(each))
    return log, []


def steps(found: list[Sent]) -> list[str]:
    """Sequence and operation of each, as in the reply subject; `one` for a plain publish."""
    return [
        ".".join(each.reply.split(".")[-3:-1]) if each.reply.endswith("$FI") else "one"
        for each in found
    ]
