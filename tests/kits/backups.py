"""Backups of streams, as `nats stream backup` and `nats stream restore` make and take them."""

from __future__ import annotations

import json
import time
from typing import Any, Final, NamedTuple

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.jetstream import JetStream

_TIMEOUT_S: Final = 60.0


class Backup(NamedTuple):
    """A stream with its consumers."""

    told: dict[str, Any]
    """Its configuration and state."""
    chunks: list[bytes]


def backup(js: JetStream, stream: str) -> Backup:
    """Takes a backup of a stream."""
    connection, deadline = js.client.connection, time.monotonic() + _TIMEOUT_S
    inbox = connection.new_inbox()
    sid = connection.subscribe(f"{inbox}.*")
    body = json.dumps({"deliver_subject": f"{inbox}.chunks"}).encode()
    connection.send(wire.pub(f"{js.prefix}.STREAM.SNAPSHOT.{stream}", body, f"{inbox}.reply"))
    told, chunks, is_over = None, [], False
    while told is None or not is_over:
        frame = connection.next_frame(deadline)
        assert frame is not None, "the backup does not come to its end"
        if frame.subject.endswith(b".reply"):
            told = json.loads(frame.data)
            continue
        is_over = not frame.data
        chunks.append(frame.data)
        if frame.reply:
            connection.send(wire.pub(frame.reply.decode(), b""))
    connection.unsubscribe(sid)
    return Backup({key: told[key] for key in ("config", "state")}, chunks)


def restore(js: JetStream, kept: Backup) -> None:
    """Puts it in the place of the stream of its name."""
    name = kept.told["config"]["name"]
    js.delete_stream(name)
    body = json.dumps(kept.told).encode()
    answer = js.client.request(f"{js.prefix}.STREAM.RESTORE.{name}", body)
    for chunk in kept.chunks:  # the last is empty, and is its end
        done = js.client.request(json.loads(answer.data)["deliver_subject"], chunk)
    assert "error" not in json.loads(done.data), done.data
