"""An operator, for a process of its own: tells a writer to pause, and times the receipts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    THROTTLE_SUBJECT,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

from .bare import Counted
from .child import Child

_TIMEOUT_S: Final = 20.0


def pause(child: Child, url: str, **how: Any) -> None:
    """`Commands.pause` in a process of its own."""
    commands = Commands(url)
    child.run(lambda: commands.pause(**how))


class Commands:
    """One connection on which an operator speaks."""

    def __init__(self, url: str) -> None:
        self._connection = Client(parse_connection({"servers": url})).connection
        self._inbox = self._connection.new_inbox()
        self._sid = self._connection.subscribe(self._inbox)
        self._connection.ping(_TIMEOUT_S)

    def pause(self, subjects: Sequence[str], count: int, pause_s: float, every_s: float) -> Counted:
        """Pauses one subject after another, `count` times; latencies are until each receipt."""
        latencies = []
        self._await_writer()
        for number in range(count):
            due = time.monotonic() + every_s
            subject = subjects[number % len(subjects)]
            latencies.append(self._receipt(number, subject, pause_s))
            time.sleep(max(0.0, due - time.monotonic()))
        return Counted(count, latencies_s=latencies)

    def _await_writer(self) -> None:
        """Waits until the writer listens: its first block may be made before it has subscribed."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            self._connection.send(wire.pub(THROTTLE_SUBJECT, DISCOVER, self._inbox))
            frame = self._connection.next_frame(deadline)
            if frame is not None and frame.sid == self._sid and frame.data:
                return
            time.sleep(0.01)
        raise TimeoutError("nobody listens to operators")

    def _receipt(self, number: int, subject: str, pause_s: float) -> float:
        command = ThrottleProducer(number, Reason.TopicProduceQuotaExceeded, pause_s, subject)
        began = time.monotonic()
        self._connection.send(wire.pub(THROTTLE_SUBJECT, command.encode(), self._inbox))
        while (frame := self._connection.next_frame(began + _TIMEOUT_S)) is not None:
            if frame.sid == self._sid and frame.data:
                said = understand(frame.data)
                if isinstance(said, Receipt) and said.request_id == number:
                    return time.monotonic() - began
            elif frame.sid == self._sid:
                raise ConnectionError("nobody listens to operators")
        raise TimeoutError(f"no receipt of command {number}")
