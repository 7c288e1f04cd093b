"""Reading a range through a consumer over a connection that is bytes, whatever a server says."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest

from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.fetch import pace
from pyspark_jetstream.fetch.decoding.rows import StoredBuilder
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.fetch.pace import Publishers
from pyspark_jetstream.fetch.pulling import pulls
from pyspark_jetstream.fetch.pulling.alone import ConsumerRefusedError, OwnAttempt
from pyspark_jetstream.fetch.pulling.pulls import Status, status_of

from ...kits.messages import Message
from ...kits.model import Line
from ...kits.seeds import fresh

SEEDS = [1, 2, 3, *fresh(__name__)]


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        (100, "Idle Heartbeat", Status.OPEN),
        (404, "No Messages", Status.ENDED),
        (408, "Request Timeout", Status.ENDED),
        (409, "Batch Completed", Status.ENDED),
        (409, "Message Size Exceeds MaxBytes", Status.ENDED),
        (409, "Exceeded MaxRequestBatch of 1", Status.REFUSED),
        (409, "Exceeded MaxWaiting", Status.REFUSED),
        (409, "Consumer is push based", Status.REFUSED),
        (409, "Leadership Change", Status.LOST),
        (409, "Server Shutdown", Status.LOST),
        (409, "Consumer Deleted", Status.LOST),
        (409, "whatever comes next", Status.OTHER),
        (423, "Nats-Wrong-Pin-Id", Status.REFUSED),
        (423, "Nats-Pin-Id mismatch", Status.REFUSED),
        (503, "", Status.LOST),
        (400, "Bad Request", Status.REFUSED),
        (0, "", Status.REFUSED),
    ],
)
def test_what_a_status_says(code, text, status):
    """Each that nats-server 2.15.1 sends to a pull, and what it may send one day."""
    assert status_of(code, text) is status


MOVES = ["409 Leadership Change", "409 Server Shutdown", "409 Consumer Deleted", "503", "409 new"]
"""Words after which another session goes on."""


MOST_FAULTS = 6


class Consumer(Line):
    """A line to one; `faults` says what may come instead of its next message."""

    max_payload = 1 << 12

    def __init__(self, messages, rng, faults=(), chance=0.02):
        super().__init__(messages, rng, round_trip_s=0.0)
        self.options = replace(self.options, request_timeout_s=5.0)
        self.pieces = [1 << 30]
        self.met: list[int] = []
        """The last sequence delivered before each fault."""
        self._faults, self._chance = faults, chance

    def pulled(self, pull):
        quiet = not self._faults or len(self.met) == MOST_FAULTS
        if quiet or self.rng.random() > self._chance:
            yield from super().pulled(pull)
            return
        self.met.append(self.stream.position)
        fault = self.rng.choice(self._faults)
        if fault == "cut":
            self.drop()
            raise NotConnectedError("pulls", "cut")
        if fault == "ping":
            yield b"PING\r\n"
        elif fault == "late":
            yield b"MSG late 1000000 2\r\nhi\r\n"
        elif fault == "stolen" and self.stream.left:
            self.stream.deliver()
        elif fault == "over":
            yield self.word(self.pulls.pop(0), "408 Request Timeout")
        elif fault == "lag":  # a replica that lags says that there is no more
            for frame in super().pulled(pull):
                yield re.sub(rb"\.\d+ (\d+ \d+\r\n)", rb".0 \1", frame, count=1)
        elif fault != "stolen":
            yield self.word(pull, fault)
            if fault in (*MOVES, "423 Nats-Wrong-Pin-Id"):
                self.pulls.clear()


def stored(rng, count, largest=20):
    """Messages with some sequences missing between them."""
    sequences = sorted(rng.sample(range(1, 2 * count), count))
    return [
        Message(s, headers=[("A", "b")], data=bytes(rng.randrange(1, largest))) for s in sequences
    ]


def own(server, start, end):
    read = Slice(None, "S", None, start, end, 0, True, False)
    return OwnAttempt(server, read, builder=StoredBuilder())


def sequences(batches):
    return [sequence for batch in batches for sequence in batch["sequence"].to_pylist()]


def between(messages, start, end):
    return [m.sequence for m in messages if start < m.sequence <= end]


@pytest.mark.parametrize("fault", ["cut", "ping", "late", "stolen", "over", "lag", *MOVES, "any"])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_own_consumers_range_is_exact(seed, fault, monkeypatch):
    """Each message comes once, in order, whatever breaks, goes missing, moves or ends early."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    rng = random.Random(seed)
    monkeypatch.setattr(pulls, "_PULL_MESSAGES", rng.choice([30, 20_000]))
    faults = ("cut", "ping", "late", "stolen", "over", *MOVES) if fault == "any" else (fault,)
    server = Consumer(stored(rng, 1_000), rng, faults, 0.01)
    last = server.stream.messages[-1].sequence
    start = rng.choice([0, last // 3])
    end = rng.choice([last, last // 2, last + 7])
    found = sequences(own(server, start, end).batches())

    assert found == between(server.stream.messages, start, end)
    if not {"ping", "late", "over", "lag"} & set(faults) and found:
        assert server.stream.made > 1 or min(server.met, default=end) >= found[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_larger_than_a_pulls_bytes_come_alone(seed):
    """A pull that its bytes kept empty is followed by one for a single message."""
    rng = random.Random(seed)
    messages = stored(rng, 40)
    for message in rng.sample(messages, 5):
        message.data = bytes(5 << 20)
    server = Consumer(messages, rng)
    found = sequences(own(server, 0, messages[-1].sequence).batches())
    alone = [pull for pull in server.asked if "max_bytes" not in pull]

    assert found == [message.sequence for message in messages]
    assert server.stream.made == 1
    assert 1 <= len(alone) <= 5
    assert {pull["batch"] for pull in alone} == {1}


def test_a_pull_that_breaks_off_amid_rows_of_a_slow_query_is_no_silence(monkeypatch):
    """A status that nobody reads while Spark has rows is no silence of the server."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    messages = stored(random.Random(1), 40)
    for message in messages[10::10]:
        message.data = bytes(5 << 20)
    server = Consumer(messages, random.Random(1))
    fill, turns = server.fill, itertools.count()
    monkeypatch.setattr(server, "fill", lambda *wait: next(turns) % 2 == 0 and fill(*wait))
    found = []
    for batch in own(server, 0, messages[-1].sequence).batches():
        found += batch["sequence"].to_pylist()
        now[0] += 10.0

    assert found == [message.sequence for message in messages]
    assert server.stream.made == 1


@pytest.mark.parametrize("published", [0, 1])
def test_pulls_of_a_stream_into_which_nobody_publishes_are_large(monkeypatch, published):
    """Where somebody publishes they stay small."""
    now, publishers = [0.0], Publishers()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(pulls, "publishers_of", lambda options, stream: publishers)
    monkeypatch.setattr(pace, "busy_messages", lambda delay_s: 100)
    rng = random.Random(1)
    server = Consumer(stored(rng, 8_000), rng)
    messages, fill = server.stream.messages, server.fill
    end = messages[-1].sequence

    def later(*wait):
        now[0] += 0.02
        for _ in range(published):
            messages.append(Message(messages[-1].sequence + 1, data=b"x"))
        return fill(*wait)

    monkeypatch.setattr(server, "fill", later)
    found = sequences(own(server, 0, end).batches())

    assert found == between(messages, 0, end)
    largest = max(pull["batch"] for pull in server.asked)
    assert largest == 100 if published else largest > 1_000


@pytest.mark.parametrize("word", ["409 Exceeded MaxRequestBatch of 1", "400 Bad Request"])
def test_what_a_server_refuses_is_left_to_another_way(word):
    """What was read before it is handed on, and where the rest begins is known."""
    rng = random.Random(1)
    server = Consumer(stored(rng, 500), rng, (word,), 0.01)
    attempt, found = own(server, 0, 2_000), []
    with pytest.raises(ConsumerRefusedError, match=word.split()[1]):
        for batch in attempt.batches():
            found += sequences([batch])

    assert found == between(server.stream.messages, 0, attempt.last)
    assert attempt.rows == len(found)
