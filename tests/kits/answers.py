"""The answers to what a test sends on a connection of its own inbox."""

from __future__ import annotations

import time

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Connection


def answer(connection: Connection, sid: int, timeout_s: float = 60.0) -> wire.Frame:
    """
    The next message of subscription `sid`.

    What comes for others is dropped: a batched direct get of one message, as
    `JetStream.next_messages` asks it, ends with an EOB that arrives when it likes.

    Raises:
        TimeoutError: None came within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while (frame := connection.next_frame(deadline)) is not None:
        if frame.sid == sid:
            return frame
    raise TimeoutError(f"no answer on subscription {sid} within {timeout_s:g}s")
