"""A publisher whose process gets no time: PubAcks that have arrived, and deadlines that pass."""

import socket
import time

import pytest

from pyspark_jetstream.client import connection as connection_module
from pyspark_jetstream.client.connection import Connection
from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.publisher import publish

from ...kits.lanes import messages
from ...kits.model import ModelStream, parse
from ...kits.options import FIXED, connection_of, sink_of

COUNT = 300
HOUR_S = 3600.0


class Standing(Connection):
    """A connection whose process stands still for an hour once all rows are on the wire."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, answered: int) -> None:
        self.ahead_s = 0.0
        self._theirs = theirs
        self._rows, self._acks = 0, b""
        self._answered = answered
        self._stream = ModelStream()
        super().__init__(ours, {})

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def drop(self) -> None:
        raise AssertionError("the connection is dropped")

    @property
    def connection(self) -> Connection:
        return self

    def send(self, data: bytes | memoryview, timeout_s: float = 30.0) -> None:
        if b"PUB " not in bytes(data):
            return
        for sent in parse(bytes(data)):
            self._rows += 1
            if self._rows <= self._answered:
                (said,) = self._stream.publish(sent)
                self._acks += said.frame(2)
        if self._rows == COUNT:
            self._theirs.sendall(self._acks)
            self.ahead_s = HOUR_S


def run(monkeypatch: pytest.MonkeyPatch, answered: int) -> int:
    """How many of the rows are acknowledged."""
    monkeypatch.setattr(connection_module, "_RECV_BYTES", 512)  # a look brings a part of them
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Standing(ours, theirs, answered)
        options = sink_of(
            connection_of("nats://model"),
            throttle_subject=None,
            **FIXED,
            max_in_flight=COUNT,
            publish_timeout_s=120.0,
        )
        context = WriteContext(options, clock=connection)
        return publish(connection, context, [messages(["a"] * COUNT)]).acked


def test_what_has_arrived_is_read_before_rows_expire(monkeypatch):
    """Rows whose PubAcks wait in the socket are stored, however late their publisher looks."""
    assert run(monkeypatch, COUNT) == COUNT


def test_what_has_not_arrived_expires(monkeypatch):
    """One PubAck that is missing after `publishTimeout` fails the write."""
    with pytest.raises(PublishTimeoutError, match="a"):
        run(monkeypatch, COUNT - 1)
