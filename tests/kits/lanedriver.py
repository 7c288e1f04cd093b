"""A lane driven over a real connection, as the publisher does it, but one lane and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.lanes.lane import Lane
from pyspark_jetstream.publish.sender import absorb

from .lanes import messages


class Driver:
    """Sends what the lane has ready and hands it the replies."""

    def __init__(self, client: Client, make: Callable[[str], Lane]) -> None:
        self.client = client
        self.connection = client.connection
        self.inbox = self.connection.new_inbox()
        self.lane = make(f"{self.inbox}.0")
        self.replies: list[tuple[bytes, bytes]] = []
        """All that was heard, as (token, data)."""
        self._listen()

    def run(self, offers: Iterable[Messages]) -> None:
        """Returns when every message of every offer is stored."""
        for each in offers:
            self.lane.offer(each)
            while not self.lane.wants_rows:
                self.turn()
        while self.lane.busy:
            self.turn()

    def turn(self) -> None:
        """Sends once or waits once, then reads what is there."""
        try:
            frames = self.lane.frames_to_send(time.monotonic(), 1 << 17)
            if frames is not None:
                self.connection.send(frames)
            else:
                now = time.monotonic()
                self.connection.fill(min(self.lane.next_deadline(now), now + 60))
                self.read()
            while self.connection.poll():
                self.read()
            self.lane.expire(time.monotonic())
        except NotConnectedError:
            self.reconnect()

    def read(self) -> None:
        connection = self.connection
        end = connection.buffer.rfind(b"}\r\n", connection.pos) + 3
        if end > connection.pos + 2 and absorb(
            [self.lane], self._sid, connection.buffer, connection.pos, end, time.monotonic()
        ):
            connection.pos = end
        while (frame := connection.next_frame(-math.inf)) is not None:
            self.answer(frame)

    def answer(self, frame: wire.Frame) -> None:
        if frame.sid != self._sid:
            return
        token = frame.subject[len(self.inbox) + 3 :]
        status, description = wire.status_of(frame.headers) if frame.headers else (0, "")
        self.replies.append((token, frame.data))
        self.lane.on_reply(token, status, description, frame.data, time.monotonic())

    def reconnect(self) -> None:
        """Like the publisher: until there is a connection."""
        self.lane.on_disconnect()
        self.client.drop()
        while True:
            try:
                self.connection = self.client.connection
                self._listen()
                return
            except NotConnectedError:
                if time.monotonic() > self.lane.give_up_at:
                    raise
                time.sleep(0.05)

    def _listen(self) -> None:
        self._sid = self.connection.subscribe(f"{self.inbox}.>")


def offers(subject: str, count: int, size: int = 10_000, **changes: object) -> list[Messages]:
    """`count` rows on seven subjects, `size` at a time."""
    return [
        messages(
            [f"{subject}.{row % 7}" for row in range(low, min(count, low + size))],
            first=low,
            **changes,
        )
        for low in range(0, count, size)
    ]


def check_in_order(found: list[tuple[str, bytes]], subject: str, count: int) -> None:
    """Every row once; within a subject in the order of the rows."""
    assert sorted(int(data) for _, data in found) == list(range(count))
    for number in range(7):
        rows = [int(data) for at, data in found if at == f"{subject}.{number}"]
        assert rows == list(range(number, count, 7))
