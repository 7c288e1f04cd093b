"""What the tests of lanes share: messages, frames, and a model of the server's side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.window import Window
from pyspark_jetstream.publish.lanes.lane import Lane
from pyspark_jetstream.publish.options import WindowOptions

MANY = 1 << 30
INBOX = "_INBOX.0123456789abcdef"
PREFIX = f"{INBOX}.0"


class FixedLimit(Window):
    """A limit that stays."""

    def __init__(self, maximum: int) -> None:
        super().__init__(maximum, maximum)


def terms(
    limit: Window,
    max_bytes: int = MANY,
    ack: float = 5.0,
    publish: float = 120.0,
    *,
    strict: bool = False,
    rejects: bool = False,
) -> tuple[Window, WindowOptions, bool]:
    """What a lane is made with."""
    limits = WindowOptions(1, limit.value, max_bytes, min(ack, publish), publish, strict)
    return limit, limits, rejects


def messages(
    subjects: Sequence[str],
    data: Sequence[bytes] | None = None,
    *,
    first: int = 0,
    ids: bool = True,
    headers: Sequence[bytes] | None = None,
) -> Messages:
    """Rows `first`… of a task, each with its number as data and in its id."""
    rows = range(first, first + len(subjects))
    encoded = pa.array(list(subjects), pa.string()).dictionary_encode()
    lines = list(headers) if headers is not None else [b""] * len(subjects)
    if ids:
        lines = [
            b"%bNats-Msg-Id: t-%d\r\n" % (line, row) for line, row in zip(lines, rows, strict=True)
        ]
    return Messages(
        subject=pa.array([subject.encode() for subject in subjects], pa.binary()),
        lines=pa.array(lines, pa.binary()) if any(lines) else None,
        data=pa.array(data or [b"%d" % row for row in rows], pa.binary()),
        distinct=encoded.dictionary.to_pylist(),
        indices=encoded.indices,
        targets=pa.nulls(len(encoded.dictionary), pa.int32()),
        rows=pa.array(rows, pa.int64()),
    )


class Sent(NamedTuple):
    """A PUB or HPUB that a lane put on the wire."""

    subject: str
    reply: str
    headers: dict[str, str]
    data: bytes
    size: int


def parse(wire: bytes) -> list[Sent]:
    """The publishes in these bytes, as a server reads them."""
    found = []
    pos = 0
    while pos < len(wire):
        eol = wire.index(b"\r\n", pos)
        verb, *words = wire[pos:eol].decode().split()
        count = 2 if verb == "HPUB" else 1
        *to, total = words if count == 1 else (*words[:-2], words[-1])
        header_size = int(words[-2]) if count == 2 else 0
        start, end = eol + 2, eol + 2 + int(total)
        assert wire[end : end + 2] == b"\r\n"
        lines = wire[start : start + header_size].decode().split("\r\n")[1:-2]
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers.setdefault(name, value)  # the server looks at the first
        found.append(
            Sent(
                to[0],
                to[1] if len(to) > 1 else "",
                headers,
                wire[start + header_size : end],
                end + 2 - pos,
            )
        )
        pos = end + 2
    return found


class Reply(NamedTuple):
    """What the server says on a reply subject."""

    token: bytes
    status: int
    data: bytes


def error(code: int, err_code: int, description: str = "no") -> dict[str, object]:
    """The `error` of a PubAck."""
    return {"code": code, "err_code": err_code, "description": description}


class ModelServer:
    """
    One stream of one replica, as nats-server 2.15.1 treats publishes.

    What it does was compared with the real one in tests/live. `refuse` names rows (by data) and
    the error the stream has for them.
    """

    def __init__(self) -> None:
        self.stored: list[Sent] = []
        self.heard: list[Sent] = []
        """All that arrived."""
        self.ids: set[str] = set()
        self.refuse: dict[bytes, dict[str, object]] = {}
        self.now = 0.0

    @property
    def data(self) -> list[bytes]:
        """What is stored, in order."""
        return [sent.data for sent in self.stored]

    def publish(self, sent: Sent) -> list[Reply]:
        """Takes one message and says what the server says to it."""
        self.heard.append(sent)
        if sent.data in self.refuse:
            return self._say(sent, stream="S", seq=0, error=self.refuse[sent.data])
        if self._store(sent):
            return self._say(sent, stream="S", seq=len(self.stored))
        return self._say(sent, stream="S", seq=1, duplicate=True)

    def refused(self, sent: Sent, code: int, err_code: int) -> list[Reply]:
        """The message was dropped before the stream looked at it."""
        if err_code:
            return self._say(sent, status=code, stream="S", seq=0, error=error(code, err_code))
        return [Reply(sent.reply[len(PREFIX) + 1 :].encode(), code, b"")] if sent.reply else []

    def _store(self, sent: Sent) -> bool:
        name = sent.headers.get("Nats-Msg-Id")
        if name is not None:
            if name in self.ids:
                return False
            self.ids.add(name)
        self.stored.append(sent)
        return True

    def _say(self, sent: Sent, status: int = 0, **content: object) -> list[Reply]:
        if not sent.reply:
            return []
        data = json.dumps(content).encode() if content else b""
        return [Reply(sent.reply[len(PREFIX) + 1 :].encode(), status, data)]


# ── conversations ────────────────────────────────────────────────────────────────────────────


def joined(frames: bytes | memoryview | None) -> bytes:
    """What a lane sends; nothing for None."""
    return bytes(frames or b"")


def sent(one: Lane, now: float = 0.0, chunk: int = MANY) -> list[Sent]:
    """Everything the lane sends now."""
    found: list[Sent] = []
    while (frames := one.frames_to_send(now, chunk)) is not None:
        found += parse(joined(frames))
    return found


def hear(one: Lane, replies: list[Reply], now: float = 0.0) -> None:
    for token, status, data in replies:
        one.on_reply(token, status, "", data, now)


def exchange(one: Lane, server: ModelServer, now: float = 0.0) -> list[Sent]:
    """Sends and answers until there is nothing to send."""
    log: list[Sent] = []
    while part := sent(one, now):
        log += part
        for each in part:
            hear(one, server.publish(each), now)
    return log


def reply(each: Sent, status: int = 0, **content: object) -> list[Reply]:
    """An answer to this message."""
    data = json.dumps(content).encode() if content else b""
    return [Reply(each.reply[len(PREFIX) + 1 :].encode(), status, data)]
