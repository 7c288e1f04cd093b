"""What the tests of lanes share: messages, frames, and a model of the server's side."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.window import Window
from pyspark_jetstream.publish.settings import WindowOptions

MANY = 1 << 30
INBOX = "_INBOX.0123456789abcdef"
PREFIX = f"{INBOX}.0"


class FixedLimit(Window):
    """A limit that stays."""

    def __init__(self, maximum):
        super().__init__(maximum, maximum)


def terms(limit, max_bytes=MANY, ack=5.0, publish=120.0, *, strict=False, rejects=False):
    """What a lane is made with."""
    limits = WindowOptions(1, limit.value, max_bytes, min(ack, publish), publish, strict)
    return limit, limits, rejects


def messages(subjects, data=None, *, first=0, ids=True, headers=None):
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


def parse(wire):
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


def error(code, err_code, description="no"):
    """The `error` of a PubAck."""
    return {"code": code, "err_code": err_code, "description": description}


class ModelServer:
    """
    One stream of one replica, as nats-server 2.15.1 treats publishes.

    What it does was compared with the real one in tests/live. `refuse` names rows (by data) and
    the error the stream has for them.
    """

    full_until = 0.0
    """It has no room before."""

    def __init__(self):
        self.stored: list[Sent] = []
        self.heard: list[Sent] = []
        """All that arrived."""
        self.ids: set[str] = set()
        self.refuse: dict[bytes, dict[str, object]] = {}
        self.now = 0.0
        self.answers: Callable[[Sent], list[Reply] | None] = lambda sent: None
        """What it says instead, if it does."""

    @property
    def data(self):
        """What is stored, in order."""
        return [sent.data for sent in self.stored]

    def publish(self, sent):
        """Takes one message and says what the server says to it."""
        self.heard.append(sent)
        if (said := self.answers(sent)) is not None:
            return said
        if self.now < self.full_until:
            return self.fails(sent, error(503, 10077))
        if sent.data in self.refuse:
            return self.fails(sent, self.refuse[sent.data])
        if self._store(sent):
            return self._say(sent, stream="S", seq=len(self.stored))
        return self._say(sent, stream="S", seq=1, duplicate=True)

    def fails(self, sent, error):
        """The stream has this error for it."""
        return self._say(sent, stream="S", seq=0, error=error)

    def refused(self, sent, code, err_code):
        """The message was dropped before the stream looked at it."""
        if err_code:
            return self._say(sent, status=code, stream="S", seq=0, error=error(code, err_code))
        return [Reply(sent.reply[len(PREFIX) + 1 :].encode(), code, b"")] if sent.reply else []

    def _store(self, sent):
        name = sent.headers.get("Nats-Msg-Id")
        if name is not None:
            if name in self.ids:
                return False
            self.ids.add(name)
        self.stored.append(sent)
        return True

    def _say(self, sent, status=0, **content):
        if not sent.reply:
            return []
        data = json.dumps(content).encode() if content else b""
        return [Reply(sent.reply[len(PREFIX) + 1 :].encode(), status, data)]


# ── conversations ────────────────────────────────────────────────────────────────────────────


def joined(frames):
    """What a lane sends; nothing for None."""
    return bytes(frames or b"")


def sent(one, now=0.0, chunk=MANY):
    """Everything the lane sends now."""
    found: list[Sent] = []
    while (frames := one.frames_to_send(now, chunk)) is not None:
        found += parse(joined(frames))
    return found


def hear(one, replies, now=0.0):
    for token, status, data in replies:
        one.on_reply(token, status, "", data, now)


def exchange(one, server, now=0.0):
    """Sends and answers until there is nothing to send."""
    log: list[Sent] = []
    while part := sent(one, now):
        log += part
        for each in part:
            hear(one, server.publish(each), now)
    return log
