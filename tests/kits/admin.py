"""What an operator does to streams and consumers; the package itself does none of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ApiError


def update_stream(js: JetStream, config: dict[str, Any]) -> None:
    """Gives a stream this configuration."""
    js.call(f"STREAM.UPDATE.{config['name']}", config)


def delete_messages(js: JetStream, stream: str, sequences: Sequence[int]) -> None:
    """Removes these messages; those that are gone already are fine."""
    for sequence in sequences:
        with suppress(ApiError):
            js.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})


def delete_consumers(js: JetStream, of: Sequence[tuple[str, str]]) -> None:
    """Deletes several (stream, consumer)."""
    for stream, name in of:
        js.call(f"CONSUMER.DELETE.{stream}.{name}")
