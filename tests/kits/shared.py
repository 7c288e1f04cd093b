"""What all tests share: one clock, one way to wait, and messages by number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream

RETENTIONS = ["limits", "interest", "workqueue"]


class Clock:
    """Time as a number, which passes where somebody sleeps; in place of a module's `time`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waited.append(seconds)


def eventually(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Waits until `condition` holds, and returns what it gave."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come to hold in time"
        time.sleep(0.05)


def numbered(name: str, n: int, start: int = 0) -> list[tuple[str, bytes]]:
    """`n` messages on seven subjects below `name`."""
    return [(f"{name}.{i % 7}", b"m%d" % i) for i in range(start, start + n)]


@pytest.fixture
def numbered_stream(new_stream: Callable[..., str], publish: Callable[..., None]) -> Any:
    """Makes a stream of so many messages."""

    def make(n: int) -> str:
        name = new_stream()
        publish(numbered(name, n))
        return name

    return make


def ack_pending(js: JetStream, name: str) -> int:
    """Claims of all readers of the shared consumer."""
    return js.consumer_info(name, "jobs-0").num_ack_pending
