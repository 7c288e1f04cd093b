"""What an operator does to streams and consumers, and who publishes and looks at what is stored."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ApiError

from .shared import eventually

_NOT_NOW: Final = {
    "code": 503,  # nobody takes it
    "err_code": 10158,  # it was sent before, and is on its way to the replicas
}


def create(js: JetStream, config: dict[str, Any]) -> None:
    """A stream of a cluster."""

    def is_made() -> bool:
        try:
            js.create_stream(config)
        except ApiError as error:
            if error.err_code != 10005:  # a server that has just come is offline for a moment
                raise
            return False
        return True

    eventually(is_made)


def update_stream(js: JetStream, stream: str, **changes: Any) -> None:
    """Changes the configuration of a stream."""
    js.call(f"STREAM.UPDATE.{stream}", js.stream_info(stream).config | changes)


def leader(js: JetStream, stream: str) -> str:
    """Who leads it; empty where nobody does."""
    return js.call(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") or ""


def delete_messages(js: JetStream, stream: str, sequences: Sequence[int]) -> None:
    """Removes these messages; those that are gone already are fine."""
    for sequence in sequences:
        with suppress(ApiError):
            js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})


def delete_consumers(js: JetStream, of: Sequence[tuple[str, str]]) -> None:
    """Deletes several (stream, consumer)."""
    for stream, name in of:
        js.call(f"CONSUMER.DELETE.{stream}.{name}")


# ── messages ─────────────────────────────────────────────────────────────────────────────────


def publish(js: JetStream, messages: Sequence[tuple[Any, ...]]) -> None:
    """Publishes (subject, payload) or (subject, payload, header pairs), each with its PubAck."""
    requests = [(at, data, *map(wire.header_block, headers)) for at, data, *headers in messages]
    for low in range(0, len(requests), 500):
        for reply in js.client.connection.requests(requests[low : low + 500], 60.0):
            assert b'"seq"' in reply.data, reply


def fill(js: JetStream, subjects: Sequence[str], payload: bytes = b"x") -> None:
    """Publishes to all of them, fast: the last of each thousand has a PubAck."""
    for low in range(0, len(subjects), 1000):
        *run, last = subjects[low : low + 1000]
        js.client.connection.send(b"".join(wire.pub(each, payload) for each in run), 60.0)
        publish(js, [(last, payload)])


def store(client: Client, messages: Sequence[tuple[str, bytes]]) -> list[int]:
    """
    Stores each message, once, whoever leads the streams meanwhile, and returns their sequences;
    sent again while nobody takes it.
    """
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


def stored(js: JetStream, stream: str) -> dict[int, dict[str, Any]]:
    """Every message of the stream by its sequence, one by one from the leader."""
    last = js.stream_info(stream).last_seq
    subject = f"{js.prefix}.STREAM.MSG.GET.{stream}"
    found = {}
    for low in range(1, last + 1, 500):
        asked = range(low, min(low + 500, last + 1))
        replies = js.client.requests([(subject, b'{"seq":%d}' % seq) for seq in asked])
        for seq, reply in zip(asked, replies, strict=True):
            answer = json.loads(reply.data)
            if "message" in answer:
                message = answer["message"]
                found[seq] = {
                    "subject": message["subject"],
                    "data": base64.b64decode(message.get("data", "")),
                    "headers": base64.b64decode(message.get("hdrs", "")),
                }
    return found


def answer(connection: Connection, sid: int, timeout_s: float = 60.0) -> wire.Frame:
    """The next message of this subscription; what comes for others is dropped."""
    deadline = time.monotonic() + timeout_s
    while (frame := connection.next_frame(deadline)) is not None:
        if frame.sid == sid:
            return frame
    raise TimeoutError(f"no answer on subscription {sid} within {timeout_s:g}s")
