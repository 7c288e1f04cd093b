"""Writers as an operator meets them, each on a thread and a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.outbox.throttling.operators import Operators
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    THROTTLE_SUBJECT,
    Discover,
    Producer,
    ThrottleProducer,
    understand,
)

from .options import connection_of
from .servers import DevServer


class Writer:
    """
    A producer that speaks the protocol, and publishes if it is given a subject and a rate of its
    own.

    Args:
        supports: what it says of itself; one that does not support the protocol answers nothing
            but discovery.
        answers: whether it acts on a command at all.
    """

    def __init__(
        self,
        server: DevServer,
        producer_id: int,
        subjects: tuple[str, ...] = (),
        *,
        supports: bool = True,
        answers: Callable[[ThrottleProducer], bool] = lambda command: True,
        rate: float = 0.0,
        payload: bytes = b"x",
        control: str = THROTTLE_SUBJECT,
    ) -> None:
        self.operators = Operators(control, Producer(producer_id, True))
        self.operators.sent(subjects)
        self.commands: list[tuple[float, ThrottleProducer]] = []
        """All that came, and when."""
        self.free: list[float] = []
        """When the first of its subjects was found not to be paused."""
        self.published = 0
        self.discovered = 0
        """How often it was asked who it is."""
        self._id, self._subjects, self._rate = producer_id, subjects, rate
        self._payload = payload
        self._supports, self._answers, self._control = supports, answers, control
        self._client = Client(connection_of(server.url))
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()

    def _run(self) -> None:
        connection = self._client.connection
        for subject in (self._control, f"{self._control}.{self._id}"):
            connection.subscribe(subject)
        connection.ping(60.0)
        self._ready.set()
        credit, before = 0.0, time.monotonic()
        while not self._stop.is_set():
            frame = connection.next_frame(time.monotonic() + 0.005)
            if frame is not None:
                answer = self._answer(frame.data)
                if answer is not None:
                    connection.send(wire.pub(frame.reply.decode(), answer))
            now = time.monotonic()
            credit, before = min(credit + (now - before) * self._rate, self._rate / 20), now
            if self._subjects and not self.operators.throttle.is_paused(self._subjects[0], now):
                self.free.append(now)
                if credit >= 1:
                    connection.send(wire.pub(self._subjects[0], self._payload) * int(credit))
                    self.published += int(credit)
                    credit -= int(credit)

    def _answer(self, data: bytes) -> bytes | None:
        said = understand(data)
        if isinstance(said, ThrottleProducer):
            self.commands.append((time.monotonic(), said))
            if not self._supports or not self._answers(said):
                return None
        if isinstance(said, Discover):
            self.discovered += 1
            if not self._supports:
                return Producer(self._id, False, self._subjects).encode()
        return self.operators.heard(data, time.monotonic())
