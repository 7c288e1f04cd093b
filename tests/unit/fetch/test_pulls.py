"""Reading a range through a consumer over a connection that is bytes, whatever a server says."""

from __future__ import annotations

import itertools
import json
import random
from bisect import bisect_left
from dataclasses import dataclass, field

import pytest

from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.fetch import pace
from pyspark_jetstream.fetch.decoding.rows import StoredBuilder
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.fetch.pace import Publishers
from pyspark_jetstream.fetch.pulling import pulls
from pyspark_jetstream.fetch.pulling.alone import ConsumerRefusedError, OwnAttempt
from pyspark_jetstream.fetch.pulling.pulls import Status, status_of

from ...kits.messages import SID, Message, hmsg, sent_on
from ...kits.options import connection_of
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


# ── a consumer in bytes ──────────────────────────────────────────────────────────────────────

MOVES = ["409 Leadership Change", "409 Server Shutdown", "409 Consumer Deleted", "503", "409 new"]
"""Words after which another session goes on."""


MOST_FAULTS = 6


@dataclass
class Pull:
    """One that is open."""

    inbox: str
    sid: int
    left: int
    room: int | None
    """Bytes."""


@dataclass
class Server:
    """A client with a consumer of these messages; `faults` says what may come."""

    messages: list[Message]
    rng: random.Random
    faults: tuple[str, ...] = ()
    chance: float = 0.02
    position: int = 0
    delivered: int = 0
    made: int = 0
    """Consumers, or sessions."""
    is_behind: bool = False
    """Whether the next delivery says that there is no more, by a replica that lags."""
    came: list[str] = field(default_factory=list)
    """The faults that came."""
    met: list[int] = field(default_factory=list)
    """The last sequence delivered before each of them."""
    asked: list[dict] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    config: dict = field(default_factory=dict)

    round_trip_s = 0.0
    max_payload = 1 << 12
    options = connection_of("nats://pulls", request_timeout_s=5.0)

    def __post_init__(self):
        self.buffer, self.pos = b"", 0
        self.subscribed: dict[str, int] = {}
        self.numbers = 0

    @property
    def connection(self):
        return self

    def drop(self):
        self.buffer, self.pos = b"", 0
        self.pulls.clear()
        self.subscribed.clear()

    # ── its API ──────────────────────────────────────────────────────────────────────────────

    def request(self, subject, data=b"", timeout_s=0):
        return self.requests([(subject, data)])[0]

    def requests(self, requests):
        return [Reply(0, "", b"", json.dumps(self._answer(s, d)).encode()) for s, d in requests]

    def _answer(self, subject, data):
        what, body = ".".join(subject.split(".")[2:4]), json.loads(data or b"{}")
        if what == "STREAM.MSG":
            if (at := self._at(body["seq"])) == len(self.messages):
                return {"error": {"code": 404, "err_code": 10037, "description": "none"}}
            found = self.messages[at]
            return {"message": {"seq": found.sequence, "subject": found.subject}}
        if what == "CONSUMER.CREATE":
            self.config = body["config"]
            self.position, self.delivered = self.config["opt_start_seq"] - 1, 0
            self.made += 1
        elif what == "CONSUMER.DELETE":
            return {"success": True}
        return {
            "name": subject.rpartition(".")[2],
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.position},
            "num_pending": self._left(),
            "config": self.config,
        }

    def _left(self):
        return len(self.messages) - self._at(self.position + 1)

    def _at(self, sequence):
        """The place of the first message that has this sequence, or one behind it."""
        return bisect_left(self.messages, sequence, key=lambda message: message.sequence)

    # ── its pulls ────────────────────────────────────────────────────────────────────────────

    def new_inbox(self):
        self.numbers += 1
        return f"_INBOX.{self.numbers}"

    def subscribe(self, subject):
        self.numbers += 1
        self.subscribed[subject] = self.numbers
        return self.numbers

    def unsubscribe(self, sid):
        self.pulls = [pull for pull in self.pulls if pull.sid != sid]

    def control(self, control):
        assert control.verb == b"PING"

    def send(self, data):
        while data:
            line, _, rest = data.partition(b"\r\n")
            _, _, inbox, size = line.decode().split()
            body, data = json.loads(rest[: int(size)]), rest[int(size) + 2 :]
            self.asked.append(body)
            pull = Pull(inbox, self.subscribed[inbox], body["batch"], body.get("max_bytes"))
            self.pulls.append(pull)

    def fill(self, deadline, need=1):
        frames = list(self._frames())
        self.buffer, self.pos = self.buffer[self.pos :] + b"".join(frames), 0
        return bool(frames)

    def _frames(self):
        for _ in range(self.rng.choice([1, 10, 500])):
            if not self.pulls:
                return
            pull = self.pulls[0]
            due = self.faults and len(self.came) < MOST_FAULTS
            if due and self.rng.random() < self.chance:
                self.came.append(fault := self.rng.choice(self.faults))
                self.met.append(self.position)
                if fault == "cut":
                    self.drop()
                    raise NotConnectedError("pulls", "cut")
                if fault == "ping":
                    yield b"PING\r\n"
                elif fault == "late":
                    yield b"MSG late 1000000 2\r\nhi\r\n"
                elif fault == "stolen":
                    self._next()
                    self.delivered += 1
                elif fault == "over":
                    yield self._word(self.pulls.pop(0), "408 Request Timeout")
                    continue
                elif fault == "lag":
                    self.is_behind = True
                elif fault in (*MOVES, "423 Nats-Wrong-Pin-Id"):
                    yield self._word(pull, fault)
                    self.pulls.clear()
                    return
                else:
                    yield self._word(pull, fault)
            message = self._peek()
            if message is None:
                yield self._word(pull, "100 Idle Heartbeat")
                return
            if pull.room is not None:
                if len(message.data) > pull.room:
                    yield self._word(self.pulls.pop(0), "409 Message Size Exceeds MaxBytes")
                    continue
                pull.room -= len(message.data)
            yield self._delivery(pull, self._next())
            pull.left -= 1
            if not pull.left:
                self.pulls.pop(0)

    def _peek(self):
        at = self._at(self.position + 1)
        return self.messages[at] if at < len(self.messages) else None

    def _next(self):
        message = self._peek()
        if message is None:
            return self.messages[-1]
        self.position = message.sequence
        return message

    def _delivery(self, pull, message):
        self.delivered += 1
        left, self.is_behind = 0 if self.is_behind else self._left(), False
        reply = f"$JS.ACK.S.c.1.{message.sequence}.{self.delivered}.{message.nanos}.{left}"
        frame = hmsg(message.subject, reply, sent_on(message.stored, []), message.data)
        return frame.replace(b" %d " % SID, b" %d " % pull.sid, 1)

    def _word(self, pull, word):
        lines = f"NATS/1.0 {word}\r\nNats-Pending-Messages: {pull.left}\r\n"
        lines += f"Nats-Pending-Bytes: {pull.room or 0}\r\n\r\n"
        frame = hmsg(pull.inbox, "", lines.encode(), b"")
        return frame.replace(b" %d " % SID, b" %d " % pull.sid, 1)


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
    server = Server(stored(rng, 1_000), rng, faults, 0.01)
    last = server.messages[-1].sequence
    start = rng.choice([0, last // 3])
    end = rng.choice([last, last // 2, last + 7])
    found = sequences(own(server, start, end).batches())

    assert found == between(server.messages, start, end)
    if not {"ping", "late", "over", "lag"} & set(faults) and found:
        assert server.made > 1 or min(server.met, default=end) >= found[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_larger_than_a_pulls_bytes_come_alone(seed):
    """A pull that its bytes kept empty is followed by one for a single message."""
    rng = random.Random(seed)
    messages = stored(rng, 40)
    for message in rng.sample(messages, 5):
        message.data = bytes(5 << 20)
    server = Server(messages, rng)
    found = sequences(own(server, 0, messages[-1].sequence).batches())
    alone = [pull for pull in server.asked if "max_bytes" not in pull]

    assert found == [message.sequence for message in messages]
    assert server.made == 1
    assert 1 <= len(alone) <= 5
    assert {pull["batch"] for pull in alone} == {1}


def test_a_pull_that_breaks_off_amid_rows_of_a_slow_query_is_no_silence(monkeypatch):
    """A status that nobody reads while Spark has rows is no silence of the server."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    messages = stored(random.Random(1), 40)
    for message in messages[10::10]:
        message.data = bytes(5 << 20)
    server = Server(messages, random.Random(1))
    fill, turns = server.fill, itertools.count()
    monkeypatch.setattr(server, "fill", lambda *wait: next(turns) % 2 == 0 and fill(*wait))
    found = []
    for batch in own(server, 0, messages[-1].sequence).batches():
        found += batch["sequence"].to_pylist()
        now[0] += 10.0

    assert found == [message.sequence for message in messages]
    assert server.made == 1


@pytest.mark.parametrize("published", [0, 1])
def test_pulls_of_a_stream_into_which_nobody_publishes_are_large(monkeypatch, published):
    """Where somebody publishes they stay small."""
    now, publishers = [0.0], Publishers()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(pulls, "publishers_of", lambda options, stream: publishers)
    monkeypatch.setattr(pace, "busy_messages", lambda delay_s: 100)
    rng = random.Random(1)
    server = Server(stored(rng, 8_000), rng)
    end, fill = server.messages[-1].sequence, server.fill

    def later(*wait):
        now[0] += 0.02
        for _ in range(published):
            server.messages.append(Message(server.messages[-1].sequence + 1, data=b"x"))
        return fill(*wait)

    monkeypatch.setattr(server, "fill", later)
    found = sequences(own(server, 0, end).batches())

    assert found == between(server.messages, 0, end)
    largest = max(pull["batch"] for pull in server.asked)
    assert largest == 100 if published else largest > 1_000


@pytest.mark.parametrize("word", ["409 Exceeded MaxRequestBatch of 1", "400 Bad Request"])
def test_what_a_server_refuses_is_left_to_another_way(word):
    """What was read before it is handed on, and where the rest begins is known."""
    rng = random.Random(1)
    server = Server(stored(rng, 500), rng, (word,), 0.01)
    attempt, found = own(server, 0, 2_000), []
    with pytest.raises(ConsumerRefusedError, match=word.split()[1]):
        for batch in attempt.batches():
            found += sequences([batch])

    assert found == between(server.messages, 0, attempt.last)
    assert attempt.rows == len(found)
