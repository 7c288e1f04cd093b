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
        names_itself: whether its receipts have a `producer_id`; PIP-385's have not.
        keeps_rates: whether it keeps rates, too, and says so.
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
        names_itself: bool = False,
        keeps_rates: bool = False,
        patience_s: float = 20.0,
    ) -> None:
        super().__init__(daemon=True)
        self.commands: list[dict[str, Any]] = []
        self.ended_by = ""
        """What ended its waiting for an answer: 503, active or time."""
        self.commands_first = 0
        """How many commands had come by then."""
        self.published = 0
        self._nats, self._id, self._subjects = Nats(url), producer_id, subjects
        self._patience_s = patience_s
        self._control, self._supports, self._names_itself = control, supports, names_itself
        self._keeps_rates = keeps_rates
        self._windows: dict[int, dict[str, tuple[int, float]]] = {}  # reason → filter → turn, end
        self._rates: dict[tuple[int, str], Rate] = {}
        self._worded = 0.0
        self._turns = itertools.count()
        self.ending = threading.Event()

    def __enter__(self) -> Producer:
        self.start()
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
        may_at = began + self._patience_s
        tick = 0.0
        while not self.ending.is_set():
            message = nats.next(0.002)
            now = time.monotonic()
            if message is not None:
                said = message.said()
                if message.status == "503" and message.subject.endswith(".active"):
                    self.ended_by, may_at = self.ended_by or "503", now
                elif said.get("type") == "active" and not self.ended_by:
                    self.ended_by, may_at = "active", min(may_at, now + (now - began))
                    self.commands_first = len(self.commands)
                else:
                    self.hear(message, said, now)
            if now < may_at or now < tick:
                continue
            self.ended_by = self.ended_by or "time"
            tick = now + 0.005
            for subject in self._subjects:
                if self._pause(subject, now) is None and self._may_go(subject, now):
                    nats.publish(subject, b"x")
                    self.published += 1
            if any(rate.is_news for rate in self._rates.values()) and now >= self._worded + 0.1:
                self._worded = now
                nats.publish(f"{self._control}.active", self._word())

    def _may_go(self, subject: str, now: float) -> bool:
        """Whether its rates let it go; then they are used."""
        rates = [
            rate
            for (reason, filter), rate in self._rates.items()
            if matches(filter, subject) and self._end(reason, filter) > now
        ]
        for rate in rates:
            rate.comes(now)
        may = all(rate.tokens >= 1 for rate in rates)
        for rate in rates:
            rate.tokens -= may
            rate.out += may
            rate.is_news |= not may and not rate.waits
            rate.waits = not may and rate.tokens < 1
        return may

    def _end(self, reason: int, filter: str) -> float:
        return self._windows.get(reason, {}).get(filter, (0, 0.0))[1]

    def _word(self) -> dict[str, Any]:
        now, throttled, rates = time.monotonic(), [], []
        for subject in self._subjects:
            found = self._pause(subject, now)
            if found is not None:
                reason, end = found
                throttled.append({
                    "subject": subject, "throttling_reason": REASONS[reason],
                    "pause_for_millis": round((end - now) * 1000),
                })  # fmt: skip
        for (number, filter), rate in self._rates.items():
            if self._end(number, filter) > now:
                rate.is_news = False
                rates.append({
                    "subject": filter, "throttling_reason": REASONS[number],
                    "publish_throttling_rate_in_msg": rate.msgs,
                    "msg_in_counter": rate.out, "bytes_in_counter": 40 * rate.out,
                    "waiting_for": "msg" if rate.waits else "",
                })  # fmt: skip
        word = {
            "type": "producer",
            "producer_id": self._id,
            "feature_flags": {"supports_throttle_producer_commands": self._supports},
            "subjects_sent": self._subjects[:32],
            "throttled": throttled,
        }
        if self._keeps_rates:
            word["feature_flags"]["supports_publish_throttling_rate"] = True
            word["rates"] = rates[:32]
        return word

    def _pause(self, subject: str, now: float) -> tuple[int, float] | None:
        """The reason and the end of what pauses it for longest."""
        found = []
        for reason, windows in self._windows.items():
            words = [
                (word, (reason, filter) in self._rates)
                for filter, word in windows.items()
                if matches(filter, subject)
            ]
            if words and max(words)[0][1] > now and not max(words)[1]:
                found.append((max(words)[0][1], reason))
        return max(found)[::-1] if found else None

    def hear(self, message: Message, said: dict[str, Any], now: float) -> None:
        """What it does on an operator's message."""
        if said.get("type") == "discover":
            self._nats.publish(message.reply, self._word())
        if said.get("type") != "throttle_producer" or not self._supports:
            return
        if said.get("producer_id") not in (None, self._id):
            return
        self.commands.append(said)
        reason = said["throttling_reason"]
        reason = REASONS.index(reason) if isinstance(reason, str) else reason
        filter = said.get("subject", ">") if reason <= 1 else ">"
        end = now + said["pause_for_millis"] / 1000
        self._windows.setdefault(reason, {})[filter] = next(self._turns), end
        msgs = said.get("publish_throttling_rate_in_msg") if self._keeps_rates else None
        if msgs is None:
            self._rates.pop((reason, filter), None)
        else:
            rate = self._rates.setdefault((reason, filter), Rate(now))
            rate.comes(now)
            rate.msgs = msgs
        if message.reply:
            receipt = {"type": "throttle_producer_receipt", "request_id": said["request_id"]}
            if self._names_itself:
                receipt["producer_id"] = self._id
            self._nats.publish(message.reply, receipt)


class Rate:
    """A rate that is kept."""

    def __init__(self, now: float) -> None:
        self.msgs, self.tokens, self.out = 0.0, 0.0, 0
        self.waits = self.is_news = False
        self._at = now

    def comes(self, now: float) -> None:
        self.tokens = min(self.tokens + (now - self._at) * self.msgs, max(1.0, self.msgs / 4))
        self._at = now


PAUSE_MS = 6_000
"""It is said again each second; a machine that stands still for some is no operator that ended."""


class Controller(threading.Thread):
    """
    Wants these filters paused, until it is told to end; then it lifts.

    Args:
        shares: of these filters, instead: a rate for each producer that keeps rates, from when it
            says that messages wait; nothing before.
    """

    def __init__(
        self,
        url: str,
        filters: list[str],
        control: str = CONTROL,
        shares: dict[str, float] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.producers: dict[int, dict[str, Any]] = {}
        """The last word of each."""
        self.acknowledged: dict[int, list[int]] = {}
        """The receipts of each."""
        self.began: list[int] = []
        """Those that said that they begin."""
        self.ended: set[int] = set()
        self.waited: dict[int, list[str]] = {}
        """The filters whose rates each has said that messages wait for."""
        self.shares = shares
        self.lifts = True
        """Whether it says so when it ends."""
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
        for producer in self.producers if self.lifts else ():
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
            if self.shares is not None and millis and able.get("supports_publish_throttling_rate"):
                waits = filter in self.waited.get(producer, [])
                command["pause_for_millis"] = 5000
                command["publish_throttling_rate_in_msg"] = self.shares[filter] if waits else 0
            self._nats.publish(
                f"{self._control}.{producer}", command, f"{self._nats.inbox}.{request}"
            )
        return len(self._filters)

    def hear(self, message: Message | None) -> None:
        """What it does on a producer's message."""
        if message is None:
            return
        said = message.said()
        token = message.subject.rpartition(".")[2]
        if message.status == "503" and token.isdigit():
            self.ended.add(self._asked[int(token)])
        elif said.get("type") == "producer":
            producer = said["producer_id"]
            is_new = producer not in self.producers
            self.producers[producer] = said
            waits = [e["subject"] for e in said.get("rates", []) if e.get("waiting_for")]
            new = [each for each in waits if each not in self.waited.get(producer, [])]
            self.waited.setdefault(producer, []).extend(new)
            if said.get("rates"):
                self._tell(producer, PAUSE_MS)
            elif token == "active":
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
