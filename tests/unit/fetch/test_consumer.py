"""Reading through a pinned consumer over a connection that is only bytes: whose messages count."""

from __future__ import annotations

import json
import time

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.errors import ConsumerFencedError
from pyspark_jetstream.fetch.consumer import ConsumerRead
from pyspark_jetstream.fetch.durable import consumer_config

from ...kits.messages import INBOX, PIN, SID, Message
from ...kits.options import connection_of


class Server:
    """A client whose first pull brings these bytes; its consumer stands at the beginning."""

    options = connection_of("nats://model")
    max_payload = 1 << 20
    round_trip_s = 0.0

    def __init__(self, frames: list[bytes], waiting: int = 0) -> None:
        self.waiting = waiting
        """Pulls that wait at the consumer."""
        self.asked: list[list[str]] = []
        """What was asked, by round trips."""
        self.under_way = b"".join(frames)
        self.buffer, self.pos = b"", 0
        self.pulls = 0

    @property
    def connection(self) -> Server:
        return self

    def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
        self.asked.append([subject.split(".")[3] for subject, _ in requests])
        info = {
            "name": "c",
            "delivered": {"consumer_seq": 0, "stream_seq": 0},
            "num_pending": 9,
            "num_waiting": self.waiting,
            "priority_groups": [{"group": "spark", "pinned_client_id": PIN}],
            "config": consumer_config(reading(9)),
        }
        return [Reply(0, "", b"", json.dumps(info).encode()) for _ in requests]

    def request(self, subject: str, data: bytes = b"") -> Reply:
        return self.requests([(subject, data)])[0]

    def drop(self) -> None:
        pass

    def new_inbox(self) -> str:
        return INBOX

    def subscribe(self, subject: str) -> int:
        return SID

    def unsubscribe(self, sid: int) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.pulls += 1

    def fill(self, deadline: float, need: int = 1) -> bool:
        assert self.pulls and deadline < time.monotonic() + 60
        self.buffer, self.under_way = self.buffer[self.pos :] + self.under_way, b""
        self.pos = 0
        return True

    def control(self, control: wire.Control) -> None:
        pass


def reading(end: int) -> ConsumerRead:
    return ConsumerRead(
        partition=0, stream="S", filter=None, start=0, end=end, expected=end,
        include_headers=False, fail_on_data_loss=True, consumer="c", group="spark",
    )  # fmt: skip


def under(pin: str, frame: bytes) -> bytes:
    """The message, delivered under another pin of the same length."""
    assert len(pin) == len(PIN)
    return frame.replace(PIN.encode(), pin.encode())


@pytest.mark.parametrize("at", [2, 3, 9], ids=["second", "third", "last"])
def test_messages_under_another_pin_are_nobodys_rows(at):
    """
    A message that came under another pin than the first ends the attempt, also where its delivery
    number is the one that is due; no row of it, nor of what follows, is handed on.
    """
    other = "X" * len(PIN)
    frames = [Message(i).delivered(i, 9 - i) for i in range(1, 10)]
    frames[at - 1 :] = [under(other, each) for each in frames[at - 1 :]]
    rows: list[int] = []
    with pytest.raises(ConsumerFencedError, match=f"under pin id '{other}', ours is '{PIN}'"):
        for batch in reading(9).batches(Server(frames)):
            rows += batch.column("sequence").to_pylist()

    assert rows == list(range(1, at))[: len(rows)]


def test_a_message_without_a_pin_is_nobodys_row():
    """
    A server that delivers without a pin, as it does to pulls outside of the group, delivers to
    somebody else as well.
    """
    frames = [under(" " * len(PIN), Message(1).delivered(1, 8))]
    with pytest.raises(ConsumerFencedError, match="under pin id ''"):
        list(reading(9).batches(Server(frames)))


def test_messages_under_one_pin_are_the_rows():
    """
    The same without another pin is read.
    """
    frames = [Message(i).delivered(i, 9 - i) for i in range(1, 10)]
    rows = [
        seq
        for batch in reading(9).batches(Server(frames))
        for seq in batch.column("sequence").to_pylist()
    ]

    assert rows == list(range(1, 10))


@pytest.mark.parametrize(
    ("waiting", "asked"), [(0, [["UNPIN", "INFO"]]), (1, [["UNPIN", "INFO"], ["INFO"]])]
)
def test_who_takes_over_waits_once_for_the_pin_and_where_the_consumer_stands(waiting, asked):
    """
    Where the consumer stands may have been answered before the pin was taken: while pulls wait
    under a pin there it is asked again, as they may be answered in between.
    """
    server = Server([Message(i).delivered(i, 9 - i) for i in range(1, 10)], waiting)

    assert sum(batch.num_rows for batch in reading(9).batches(server)) == 9
    assert server.asked == asked


def test_one_that_stood_still_reads_what_has_come(monkeypatch):
    """
    A task that got no time between its pull and `requestTimeout` reads what waits in its socket: it
    takes its own silence for nobody else's.
    """
    ahead_s = [0.0]
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead_s[0])

    class Slow(Server):
        def send(self, data: bytes) -> None:
            super().send(data)
            ahead_s[0] += 3600

        def fill(self, deadline: float, need: int = 1) -> bool:
            assert self.pulls == 1
            return super().fill(deadline, need)

    server = Slow([Message(i).delivered(i, 9 - i) for i in range(1, 10)])
    rows = [
        sequence
        for batch in reading(9).batches(server)
        for sequence in batch.column("sequence").to_pylist()
    ]

    assert rows == list(range(1, 10))
