"""Direct gets of small batches over a connection that is only frames: replies that were lost."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.fetch.appetite import Appetite
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.directcalls import DirectCalls

from ...kits.messages import INBOX, SID, Message, hmsg
from ...kits.options import connection_of


class Server:
    """A client whose requests are answered with these frames, one list a request."""

    options = connection_of("nats://model")

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.under_way: list[bytes] = []
        self.asked = 0

    @property
    def connection(self) -> Server:
        return self

    def drop(self) -> None:
        self.under_way = []

    def new_inbox(self) -> str:
        return INBOX

    def subscribe(self, subject: str) -> int:
        return SID

    def unsubscribe(self, sid: int) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.under_way = self.answers.pop(0)
        self.asked += 1

    def next_frame(self, deadline: float) -> wire.Frame | None:
        frame, _ = wire.next_frame(self.under_way.pop(0), 0)
        return frame


def answer(sequences: list[int]) -> list[bytes]:
    """What one request for these messages, the last there are, brings."""
    before = [0, *sequences]
    left = len(sequences)
    frames = [Message(seq).got(before[i], left - 1 - i) for i, seq in enumerate(sequences)]
    end = f"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: {before[-1]}\r\n\r\n"
    return [*frames, hmsg(INBOX, "", end.encode(), b"")]


@pytest.mark.parametrize(
    ("lost", "seen_by"),
    [
        (slice(0, 1), "the first names one before it"),
        (slice(2, 3), "a gap between two"),
        (slice(1, 4), "a longer gap"),
        (slice(4, 5), "the end names another last one"),
        (slice(1, 5), "the end, of all but the first"),
    ],
    ids=["first", "middle", "most", "last", "all-but-first"],
)
@pytest.mark.parametrize("multi", [True, False], ids=["multi_last", "batch"])
def test_an_answer_with_lost_replies_does_not_count(lost, seen_by, multi):
    """
    Each reply names the one before it, and the end the last one: an answer of which replies were
    lost on their way is asked for again.
    """
    spoiled = answer([3, 5, 6, 9, 12])
    del spoiled[lost]
    server = Server(spoiled, answer([3, 5, 6, 9, 12]))
    call = DirectCall(multi_last=("a.>",)) if multi else DirectCall(seq=1, batch=10)
    found = DirectCalls(server, "S").ask(call)

    assert [each.sequence for each in found.found] == [3, 5, 6, 9, 12], seen_by
    assert server.asked == 2


def test_batches_that_come_whole_ask_for_more_again(monkeypatch):
    """
    What broke off once makes batches smaller, and every one that comes whole counts towards the
    old size.
    """
    server = Server()
    server.max_payload = 1 << 20
    calls, appetite = DirectCalls(server, "S"), Appetite()
    monkeypatch.setattr(calls, "_appetite", appetite)
    monkeypatch.setattr(calls, "_some", lambda *_: [])
    appetite.cut()
    for _ in range(100):
        calls._in_turn([], range(1), [])

    assert appetite.share == 1.0
