"""
The least a client can do: bare sockets, nothing decoded.

What these loops reach is the server's and the kernel's speed, the bound of every client here. They
ask for as much at a time as is fastest; where a request ends, they look at its last bytes.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pyspark_jetstream.publish.lanes.flight import Publishes

_PULL_MESSAGES: Final = 20_000
_PULL_BYTES: Final = 4 << 20
_DIRECT_BYTES: Final = 2 << 20

_BUFFER: Final = 1 << 20
_ANSWERS: Final = 1 << 18
_TAIL: Final = 512
"""Longer than a delivery's first line and than a status; so much is looked at twice."""


_SEND_MESSAGES: Final = 256
"""Sent at one time, at most; with a small window less, an eighth of it."""

_TIMEOUT_S: Final = 120.0

_STATUSES: Final = (b"100", b"404", b"408", b"409")
"""Heartbeats, and the ways in which a pull ends."""

_REPLY: Final = re.compile(rb" \$JS\.ACK\.[^. ]+\.[^. ]+\.\d+\.\d+\.(\d+)\.\d+\.\d+ ")
_LEFT: Final = re.compile(rb"Nats-Pending-Messages: (\d+)\r\n")

_EOB: Final = re.compile(rb"NATS/1\.0 204 EOB\r\n(?:[^\r]+\r\n)*?Nats-Last-Sequence: (\d+)\r\n")


class Counted(NamedTuple):
    """What came through."""

    messages: int
    latencies_s: Sequence[float] = ()
    """Of each message, where they were timed."""


class Wire:
    """One connection and one subscription, blocking."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("nats://").rpartition(":")
        self.inbox = f"_INBOX.{os.urandom(11).hex()}"
        self._sock = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        hello = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self._sock.sendall(
            f"CONNECT {json.dumps(hello)}\r\nSUB {self.inbox}.> 1\r\nPING\r\n".encode()
        )
        greeting = b""
        while b"PONG\r\n" not in greeting:
            chunk = self._sock.recv(1 << 16)
            if not chunk:
                raise ConnectionError(f"{url} closed the connection: {greeting!r}")
            greeting += chunk

    def drain_consumer(self, stream: str, consumer: str, count: int) -> Counted:
        """
        Pulls `count` messages from a consumer that has delivered none so far.

        How many have come is read off the last delivery in the buffer (its dseq); no other is
        looked at.
        """
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        body: dict[str, object] = {
            "max_bytes": _PULL_BYTES,
            "expires": 30 * 10**9,
            "idle_heartbeat": 10**9,
        }
        buffer = bytearray(_BUFFER)
        view = memoryview(buffer)
        delivered = asked = kept = 0
        while delivered < count:
            if asked < count and asked - delivered <= _PULL_MESSAGES // 2:
                batch = min(_PULL_MESSAGES, count - asked)
                self._ask(subject, json.dumps(body | {"batch": batch}).encode())
                asked += batch
            end = kept + self._receive(view[kept:])
            start = 0
            # A message's header block begins NATS/1.0\r\n; with a blank it is a status.
            while (at := buffer.find(b"NATS/1.0 ", start, end)) >= 0:
                over = buffer.find(b"\r\n\r\n", at, end)
                if over < 0:
                    break
                start = over
                if bytes(buffer[at + 9 : at + 12]) not in _STATUSES:
                    raise ConnectionError(f"{consumer}: {bytes(buffer[at:over])!r}")
                if left := _LEFT.search(buffer, at, over):
                    asked -= int(left[1])
            last = buffer.rfind(b" $JS.ACK.", 0, end)
            if last >= 0 and (reply := _REPLY.match(buffer, last, end)):
                delivered = max(delivered, int(reply[1]))
            kept = end - max(start, end - _TAIL)
            buffer[:kept] = buffer[end - kept : end]
        return Counted(delivered)

    def drain_direct(self, stream: str, start: int, end: int, batch: int) -> Counted:
        """Gets the messages `(start, end]` by batched direct get, `batch` a request."""
        subject = f"$JS.API.DIRECT.GET.{stream}"
        buffer = bytearray(_BUFFER)
        view = memoryview(buffer)
        last = start
        while last < end:
            query = {"seq": last + 1, "batch": min(batch, end - last), "max_bytes": _DIRECT_BYTES}
            self._ask(subject, json.dumps(query).encode())
            kept = 0
            while True:
                size = kept + self._receive(view[kept:])
                eob = _EOB.search(buffer, max(0, size - _TAIL), size)
                if eob:
                    last = int(eob[1])
                    break
                if size - kept < _TAIL and b"NATS/1.0 4" in view[:size].tobytes():
                    raise ConnectionError(f"{stream}: {view[:size].tobytes()!r}")
                kept = min(size, _TAIL)
                buffer[:kept] = buffer[size - kept : size]
        return Counted(end - start)

    def publish(self, blocks: Sequence[Publishes], window: int) -> Counted:
        """Sends all frames, at most `window` of them without a PubAck, and counts the PubAcks."""
        maximum = max(1, min(_SEND_MESSAGES, window // 8))
        chunks = [
            (block.slice(first, last), last - first)
            for block in blocks
            for first in range(block.first, block.end, maximum)
            for last in [min(first + maximum, block.end)]
        ]
        count = sum(messages for _, messages in chunks)
        sent = acked = 0
        pending, tail = iter(chunks), b""
        chunk = next(pending, None)
        while acked < count:
            sends = chunk is not None and sent + chunk[1] - acked <= window
            if chunk is not None and sends:
                self._send(chunk[0])
                sent += chunk[1]
                chunk = next(pending, None)
            answers = tail + self._answers(wait=not sends)
            _check(answers)
            acked += answers.count(b'"seq":')
            tail = answers[-5:]
        return Counted(acked)

    def publish_paced(
        self, subject: str, subjects: int, size: int, rate: float, stopped: Callable[[], bool]
    ) -> Counted:
        """
        Publishes `rate` messages a second, one at a time, each on the next of so many subjects.

        A latency is from when the publish was due to its PubAck: whoever waits for a slow publish
        before it is slow, too.
        """
        payload = bytes(size)
        latencies: list[float] = []
        began = time.perf_counter()
        while not stopped():
            due = began + len(latencies) / rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            self._ask(f"{subject}.{len(latencies) % subjects}", payload)
            answer = b""
            while b'"seq":' not in answer:
                answer += self._answers(wait=True)
                _check(answer)
            latencies.append(time.perf_counter() - due)
        return Counted(len(latencies), latencies)

    def publish_steadily(
        self, subject: str, subjects: int, size: int, rate: float, stopped: Callable[[], bool]
    ) -> Counted:
        """
        Publishes `rate` messages a second, on so many subjects in turn, and waits for nothing.

        What is due goes out each millisecond. A message that comes alone is just that.
        """
        payload = bytes(size)
        sent, began = 0, time.perf_counter()
        while not stopped():
            due = int((time.perf_counter() - began) * rate)
            frames = b"".join(
                b"PUB %b.%d %d\r\n%b\r\n" % (subject.encode(), n % subjects, size, payload)
                for n in range(sent, due)
            )
            self._send(frames)
            sent = max(sent, due)
            time.sleep(0.001)
        self._ask("bench.end", b"")  # nobody listens there, which is told behind all before it
        answer = b""
        while b"NATS/1.0 503" not in answer:
            answer += self._answers(wait=True)
        return Counted(sent)

    def _send(self, frames: bytes | memoryview) -> None:
        self._sock.settimeout(_TIMEOUT_S)
        self._sock.sendall(frames)

    def _answers(self, wait: bool) -> bytes:
        """What has arrived; nothing, unless it waits, when nothing has."""
        # With a time-out set, recv waits whatever its flags say.
        self._sock.settimeout(_TIMEOUT_S if wait else 0)
        try:
            answers = self._sock.recv(_ANSWERS)
        except BlockingIOError:
            return b""
        if not answers:
            raise ConnectionError("the server closed the connection")
        return answers

    def _ask(self, subject: str, body: bytes) -> None:
        # Every request answers the PING that may stand unread among what came before.
        frame = f"PONG\r\nPUB {subject} {self.inbox}.1 {len(body)}\r\n".encode()
        self._sock.sendall(frame + body + b"\r\n")

    def _receive(self, into: memoryview) -> int:
        size = self._sock.recv_into(into)
        if not size:
            raise ConnectionError("the server closed the connection")
        return size


def _check(answers: bytes) -> None:
    if b'"error"' in answers or b"NATS/1.0 " in answers:
        raise ConnectionError(f"not stored: {answers[:300]!r}")
