"""
The one gate of `failOnDataLoss`.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import DataLossError, SnapshotLossError
from pyspark_jetstream.fetch.dataloss import Glance, lost

from ...kits.messages import Message
from ...kits.options import connection_of
from ...kits.seeds import fresh

LOSSES = (
    DataLossError("S", 3, "messages 1 to 9 left the stream"),
    SnapshotLossError("S", ("a.b", "a.c"), "2 of 5 messages left the stream"),
)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_ends_the_query(loss):
    """
    With failOnDataLoss=true the error is raised as it is.
    """
    with pytest.raises(type(loss)) as caught:
        lost(loss, True)

    assert caught.value is loss


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_is_logged(loss, caplog):
    """
    With failOnDataLoss=false the log says what the error would have.
    """
    with caplog.at_level(logging.WARNING):
        lost(loss, False)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"data loss: {loss}"


INFO = {
    "config": {"name": "S"},
    "created": "2026-01-01T00:00:00Z",
    "ts": "2026-01-02T00:00:00Z",
    "state": {"first_seq": 3, "last_seq": 9, "messages": 7, "bytes": 70},
}


class Pieces:
    """A client whose connection brings these pieces, one a read."""

    options = connection_of("nats://model")
    round_trip_s = 0.0

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.buffer, self.pos = b"", 0
        self.sent: list[bytes] = []
        self.controls: list[bytes] = []

    @property
    def connection(self) -> Pieces:
        return self

    def new_inbox(self) -> str:
        return "_INBOX.glance"

    def subscribe(self, subject: str) -> int:
        return 77

    def unsubscribe(self, sid: int) -> None:
        assert sid == 77

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def fill(self, deadline: float, need: int = 1) -> bool:
        assert need >= 1 and time.monotonic() < deadline < math.inf
        if not self.pieces:
            return False
        self.buffer, self.pos = self.buffer[self.pos :] + self.pieces.pop(0), 0
        return True

    def control(self, control: wire.Control) -> None:
        self.controls.append(control.verb)


def said(data: bytes) -> bytes:
    return b"MSG _INBOX.glance 77 %d\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("seed", fresh(__name__, 20))
def test_a_glance_leaves_what_comes_besides_as_it_is(seed):
    """Whatever comes first, and in whatever pieces: the others' bytes are still to be read."""
    rng = random.Random(seed)
    others = [Message(i, "S.a", b"x" * rng.randrange(40)).got(i - 1, 9) for i in range(1, 9)]
    at = rng.randrange(len(others) + 1)
    before, behind = b"".join(others[:at]), b"".join(others[at:])
    coming = before + rng.choice([b"", b"PING\r\n"]) + said(json.dumps(INFO).encode()) + behind
    pieces = []
    while coming:
        size = rng.choice([1, 7, 100, 5_000])
        pieces.append(coming[:size])
        coming = coming[size:]
    client = Pieces(pieces)
    info = Glance(client, "S").info(time.monotonic() + 60.0)

    assert info is not None and (info.first_seq, info.last_seq) == (3, 9)
    assert client.sent == [b"PUB $JS.API.STREAM.INFO.S _INBOX.glance 0\r\n\r\n"]
    assert client.buffer[client.pos :] + b"".join(client.pieces) == before + behind


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"7", b"{}", b'{"error":{"code":503,"err_code":10008}}', b'{"state":{}}', None],
    ids=repr,
)
def test_a_glance_that_sees_nothing(answer):
    """Where nobody answers in time, or something else does, there is nothing to be told."""
    client = Pieces([] if answer is None else [said(answer)])

    assert Glance(client, "S").info(time.monotonic() + 60.0) is None
    assert client.buffer[client.pos :] == b""
