"""Removing what `partitioning` made: what would be lost with it."""

from __future__ import annotations

import json
from types import SimpleNamespace

from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.partition.removal import _unread


class Answering:
    """A client of a server that lists two consumers, one of which has no leader."""

    options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)

    def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
        """One page of CONSUMER.LIST."""
        ((subject, _),) = requests
        assert subject == "$JS.API.CONSUMER.LIST.S"
        read = {"name": "a", "config": {"durable_name": "a"}, "num_pending": 0}
        answer = {"total": 2, "consumers": [read], "missing": ["b"]}
        return [Reply(0, "", b"", json.dumps(answer).encode())]


def test_a_consumer_without_a_leader_may_have_messages_to_read():
    """
    `a` has read everything; what `b` has to read nobody says, so it counts as something to lose.
    """
    assert _unread(JetStream(Answering()), "S") == [
        "its consumer 'b' has no leader that says what it has to read"
    ]
