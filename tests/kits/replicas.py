"""Messages that are stored once each, whoever leads a stream meanwhile."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ApiError

_NOT_NOW: Final = {
    "code": 503,  # nobody takes it
    "err_code": 10158,  # it was sent before, and is on its way to the replicas
}


def create(js: JetStream, config: dict[str, Any]) -> None:
    """A stream. A server that has just come is offline to the others for a moment (10005)."""
    deadline = time.monotonic() + 60
    while True:
        try:
            js.create_stream(config)
            return
        except ApiError as error:
            if error.err_code != 10005 or time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def leader(js: JetStream, stream: str) -> str:
    """Who leads it; empty where nobody does."""
    return js.call(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") or ""


def publish(client: Client, messages: Sequence[tuple[str, bytes]]) -> list[int]:
    """Stores each message, once, and returns their sequences; sent again while nobody takes it."""
    run, deadline = secrets.token_hex(8), time.monotonic() + 120
    requests = [
        (subject, data, wire.header_block([("Nats-Msg-Id", f"{run}-{number}")]))
        for number, (subject, data) in enumerate(messages)
    ]
    sequences = [0] * len(requests)
    while left := [number for number, sequence in enumerate(sequences) if not sequence][:1000]:
        assert time.monotonic() < deadline, f"nobody takes {requests[left[0]]}"
        replies = client.requests([requests[number] for number in left])
        for number, reply in zip(left, replies, strict=True):
            found = {"error": {"code": reply.status}} if reply.status else json.loads(reply.data)
            if error := found.get("error"):
                assert error.items() & _NOT_NOW.items(), (requests[number], error)
            else:
                sequences[number] = found["seq"]
    return sequences


def fill(js: JetStream, name: str, count: int) -> None:
    """`count` messages of 200 bytes on `<name>.a`."""
    publish(js.client, [(f"{name}.a", b"x" * 200)] * count)
