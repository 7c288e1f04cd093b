"""What the server knows of the queries that read: lag, pauses and redeliveries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...client.jetstream import JetStream
from ...fetch.owner import Owner

READERS: Final = {
    "jetstream_read_lag_messages": "Messages that no batch has yet.",
    "jetstream_read_paused": "1 while the consumer is paused.",
    "jetstream_read_ack_pending_messages": "Claims that are not acknowledged.",
    "jetstream_read_redelivered_messages": "Those of them that were delivered more than once.",
}
"""Gauges of a query's consumers, each with what it says."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One consumer of a query."""

    query: str
    """Its name, or its id; of a shared one what the queries call it (`consumer`)."""
    stream: str
    consumer: str
    values: dict[str, float]
    """By gauge."""


def readers(js: JetStream, streams: tuple[str, ...]) -> Iterator[Reader]:
    """
    The consumers of queries: their own by their metadata, and those that queries share, which name
    none of them, by how they are dealt out.

    Args:
        streams: those to look at; none: all of them.
    """
    for stream in streams or js.stream_names():
        consumers, _ = js.consumer_list(stream)
        for each in consumers:
            config, name = each.get("config") or {}, str(each["name"])
            owner = Owner.of(config)
            if owner is not None:
                yield Reader(owner.name or owner.query or name, stream, name, _values(each))
            elif _is_shared(config):
                yield Reader(name.rpartition("-")[0] or name, stream, name, _values(each))


def _is_shared(config: dict[str, Any]) -> bool:
    """Whether queries can share the consumer (`priorityPolicy`); tasks acknowledge nothing."""
    policy, acks = config.get("priority_policy"), config.get("ack_policy")
    return policy in ("overflow", "prioritized") and acks == "explicit"


def _values(facts: dict[str, Any]) -> dict[str, float]:
    values = {
        "jetstream_read_lag_messages": facts.get("num_pending", 0),
        "jetstream_read_paused": int(bool(facts.get("paused"))),
    }
    if facts["config"].get("ack_policy", "none") != "none":
        values["jetstream_read_ack_pending_messages"] = facts.get("num_ack_pending", 0)
        values["jetstream_read_redelivered_messages"] = facts.get("num_redelivered", 0)
    return values
