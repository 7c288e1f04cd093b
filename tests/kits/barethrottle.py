"""
A producer and a controller of the throttle, over plain sockets.

Rule 1: written from docs/overload.md alone; nothing of the package is imported, so that a
test in which these and ours understand each other says that the page is complete.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

CONTROL = "spark.jetstream.throttle"
REASONS = [
    "TopicProduceQuotaExceeded",
    "ResourceGroupProduceQuotaExceeded",
    "ConnectionPendingMessagesBreach",
    "MessageBufferSizeBreach",
    "BrokerProduceQuotaExceeded",
]
_ids = itertools.count(1)


class Message(NamedTuple):
    """What came."""

    subject: str
    reply: str
    status: str
    data: bytes

    def said(self) -> dict[str, Any]:
        """Its JSON; empty where it is none."""
        try:
            found = json.loads(self.data)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Nats:
    """The little of NATS's protocol that is needed."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").partition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self._buffer = b""
        self._pings, self._pongs = 1, 0
        self._sids = itertools.count(1)
        self.inbox = f"_INBOX.bare.{next(_ids)}.{time.time_ns()}"
        options = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1}
        self._send(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
        self.subscribe(f"{self.inbox}.*")

    def close(self) -> None:
        self._socket.close()

    def ping(self) -> None:
        """Asks whether all that was sent is there."""
        self._pings += 1
        self._send(b"PING\r\n")

    @property
    def is_answered(self) -> bool:
        """Whether the server has taken all that was sent before the last `ping`."""
        return self._pongs >= self._pings

    def subscribe(self, subject: str) -> None:
        self._send(f"SUB {subject} {next(self._sids)}\r\n".encode())

    def publish(self, subject: str, said: dict[str, Any] | bytes, reply: str = "") -> None:
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self._send(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")

    def next(self, seconds: float) -> Message | None:
        """The next message within this time."""
        end = time.monotonic() + seconds
        while True:
            found = self._parse()
            if found is not None:
                return found
            left = end - time.monotonic()
            if not select.select([self._socket], [], [], max(0.0, left))[0]:
                return None
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._buffer += chunk

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _parse(self) -> Message | None:
        while b"\r\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\r\n")
            verb, *words = line.decode().split()
            if verb not in ("MSG", "HMSG"):
                self._buffer = rest
                if verb == "PING":
                    self._send(b"PONG\r\n")
                self._pongs += verb == "PONG"
                continue
            size = int(words[-1])
            if len(rest) < size + 2:
                return None
            body, self._buffer = rest[:size], rest[size + 2 :]
            head, numbers = 0, 1
            if verb == "HMSG":
                head, numbers = int(words[-2]), 2
            reply = words[2] if len(words) - numbers == 3 else ""
            first = body[:head].split(b"\r\n")[0].decode().split()
            return Message(words[0], reply, first[1] if len(first) > 1 else "", body[head:])
        return None


def matches(filter: str, subject: str) -> bool:
    wanted, given = filter.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


class Producer(threading.Thread):
    """
    Publishes a message on each of its subjects every 5 ms, and does as it is told.

    Args:
        supports: whether it acts on commands.
        answers: whether it acts on a command at all.
        patience_s: how long it waits for an answer; 1 in the document, too little for a machine
            that stands still for a moment.
    """

    def __init__(
        self,
        url: str,
        producer_id: int,
        subjects: list[str],
        control: str = CONTROL,
        *,
        supports: bool = True,
        answers: Callable[[dict[str, Any]], bool] = lambda command: True,
        patience_s: float = 20.0,
    ) -> None:
        super().__init__(daemon=True)
        self.commands: list[dict[str, Any]] = []
        """All that came, with when it came as `at`."""
        self.free: list[float] = []
        """When the first of its subjects was found not to be paused."""
        self.discovered = 0
        """How often it was asked who it is."""
        self._nats, self._id, self._subjects = Nats(url), producer_id, subjects
        self._patience_s = patience_s
        self._control, self._supports = control, supports
        self._answers = answers
        self._windows: dict[int, dict[str, tuple[int, float, int]]] = {}
        """By reason and filter its turn, its end and the request that said so."""
        self._turns = itertools.count()
        self._ready, self.ending = threading.Event(), threading.Event()

    def __enter__(self) -> Producer:
        self.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.join(60)
        self._nats.close()

    def run(self) -> None:
        nats, began = self._nats, time.monotonic()
        nats.subscribe(self._control)
        nats.subscribe(f"{self._control}.{self._id}")
        nats.publish(f"{self._control}.active", self._word(), f"{nats.inbox}.active")
        nats.ping()
        may_at = began + self._patience_s
        tick = 0.0
        while not self.ending.is_set():
            message = nats.next(0.002)
            now = time.monotonic()
            if nats.is_answered:
                self._ready.set()
            if message is not None:
                said = message.said()
                if message.status == "503" and message.subject.endswith(".active"):
                    may_at = now
                elif said.get("type") == "active":
                    may_at = min(may_at, now + (now - began))
                else:
                    self.hear(message, said, now)
            if now < may_at or now < tick:
                continue
            tick = now + 0.005
            for subject in self._subjects:
                if self._pause(subject, now) is None:
                    if subject == self._subjects[0]:
                        self.free.append(now)
                    nats.publish(subject, b"x")

    def _word(self) -> dict[str, Any]:
        now, throttled = time.monotonic(), []
        for subject in self._subjects:
            found = self._pause(subject, now)
            if found is not None:
                end, reason, filter, request = found
                throttled.append({
                    "subject": subject, "throttling_reason": REASONS[reason],
                    "pause_for_millis": round((end - now) * 1000), "filter": filter,
                    "source": "operator", "request_id": request,
                })  # fmt: skip
        return {
            "type": "producer",
            "producer_id": self._id,
            "feature_flags": {"supports_throttle_producer_commands": self._supports},
            "subjects_sent": self._subjects[:32],
            "throttled": throttled,
        }

    def _pause(self, subject: str, now: float) -> tuple[float, int, str, int] | None:
        """The end, reason, filter and request of what pauses it for longest."""
        found = []
        for reason, windows in self._windows.items():
            words = [(word, filter) for filter, word in windows.items() if matches(filter, subject)]
            if words and max(words)[0][1] > now:
                (_, end, request), filter = max(words)
                found.append((end, reason, filter, request))
        return max(found, default=None)

    def hear(self, message: Message, said: dict[str, Any], now: float) -> None:
        """What it does on an operator's message."""
        if said.get("type") == "discover":
            self.discovered += 1
            self._nats.publish(message.reply, self._word())
        if said.get("type") != "throttle_producer":
            return
        if said.get("producer_id") not in (None, self._id):
            return
        self.commands.append(said | {"at": now})
        if not self._supports or not self._answers(said):
            return
        reason = said["throttling_reason"]
        reason = REASONS.index(reason) if isinstance(reason, str) else reason
        filter = said.get("subject", ">") if reason <= 1 else ">"
        end = now + said["pause_for_millis"] / 1000
        self._windows.setdefault(reason, {})[filter] = next(self._turns), end, said["request_id"]
        if message.reply:
            receipt = {"type": "throttle_producer_receipt", "request_id": said["request_id"]}
            self._nats.publish(message.reply, receipt)


PAUSE_MS = 6_000
"""It is said again each second; a machine that stands still for some is no operator that ended."""


class Controller(threading.Thread):
    """Wants these filters paused, until it is told to end; then it lifts."""

    def __init__(self, url: str, filters: list[str], control: str = CONTROL) -> None:
        super().__init__(daemon=True)
        self.producers: dict[int, dict[str, Any]] = {}
        """The last word of each."""
        self.acknowledged: dict[int, list[int]] = {}
        """The receipts of each."""
        self.began: list[int] = []
        """Those that said that they begin."""
        self._nats, self._filters, self._control = Nats(url), filters, control
        self._asked: dict[int, int] = {}
        self._requests = itertools.count(1)
        self._ready, self.ending = threading.Event(), threading.Event()

    def __enter__(self) -> Controller:
        self.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.join(60)
        self._nats.close()

    def run(self) -> None:
        nats = self._nats
        nats.subscribe(f"{self._control}.active")
        nats.ping()
        second = 0.0
        while not self.ending.is_set():
            now = time.monotonic()
            if now >= second:
                second = now + 1.0
                nats.publish(self._control, {"type": "discover"}, f"{nats.inbox}.who")
                for producer in self.producers:
                    self._tell(producer, PAUSE_MS)
            self.hear(nats.next(0.02))
            if nats.is_answered:
                self._ready.set()
        for producer in self.producers:
            self._tell(producer, 0)
        for _ in range(50):
            self.hear(nats.next(0.01))

    def _tell(self, producer: int, millis: int) -> int:
        able = self.producers[producer].get("feature_flags", {})
        if not able.get("supports_throttle_producer_commands"):
            return 0
        for filter in self._filters:
            request = next(self._requests)
            self._asked[request] = producer
            command = {
                "type": "throttle_producer", "request_id": request, "producer_id": producer,
                "subject": filter, "throttling_reason": REASONS[0], "pause_for_millis": millis,
            }  # fmt: skip
            self._nats.publish(
                f"{self._control}.{producer}", command, f"{self._nats.inbox}.{request}"
            )
        return len(self._filters)

    def hear(self, message: Message | None) -> None:
        """What it does on a producer's message."""
        if message is None:
            return
        said = message.said()
        if said.get("type") == "producer":
            producer = said["producer_id"]
            is_new = producer not in self.producers
            self.producers[producer] = said
            if message.subject == f"{self._control}.active":
                self.began.append(producer)
                count = self._tell(producer, PAUSE_MS)
                self._nats.publish(
                    f"{self._control}.{producer}", {"type": "active", "commands": count}
                )
            elif is_new:
                self._tell(producer, PAUSE_MS)
        elif said.get("type") == "throttle_producer_receipt":
            request = said["request_id"]
            self.acknowledged.setdefault(self._asked[request], []).append(request)
