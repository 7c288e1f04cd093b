"""Writers as an operator meets them, each on a thread and a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    THROTTLE_SUBJECT,
    Discover,
    Producer,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.publisher import publish
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.write.rows import MessageBuilder

from .options import connection_of, rules_of, sink_of
from .servers import DevServer


class Writer:
    """
    A producer that speaks the protocol, but keeps no rates, and publishes if it is given a subject
    and a rate of its own.

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
        self.throttle = Throttle(producer_id)
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
            if self._subjects and self.throttle.state(self._subjects[0], now) is None:
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
        answer = self.throttle.answer(said, time.monotonic(), self._subjects)
        if isinstance(said, Discover) and answer is not None:
            answer = understand(answer)._replace(supports_rate=False).encode()
        return answer


class Keeper:
    """The sink's own writer, which keeps rates: one task that always has rows."""

    def __init__(self, server: DevServer, producer_id: int, subject: str, size: int = 100) -> None:
        self.acked = 0
        self._id, self._subject, self._size = producer_id, subject, size
        rules = rules_of(held_bytes=100_000)
        self._options = replace(sink_of(connection_of(server.url)), rules=rules)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _blocks(self) -> Iterator[Messages]:
        builder = MessageBuilder(id_prefix=f"{self._subject}-{self._id}")
        count = 50
        data = pa.repeat(pa.scalar(bytes(self._size)), count)
        batch = pa.record_batch({"subject": pa.array([self._subject] * count), "data": data})
        while not self._stop.is_set():
            yield builder.build(batch)
            time.sleep(0.01)

    def _run(self) -> None:
        client = Client(self._options.connection)
        origin = Origin(self._id)
        self.acked = publish(
            client, WriteContext(self._options, origin=origin), self._blocks()
        ).acked
        client.close()
