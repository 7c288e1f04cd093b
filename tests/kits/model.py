"""A model of nats-server: streams, and a client on a line to them, which is only bytes."""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pyspark_jetstream.client import connection, wire
from pyspark_jetstream.errors import NotConnectedError, ProtocolError

from .messages import Message, hmsg, msg
from .options import connection_of

_lines = itertools.count()


class Sent(NamedTuple):
    """A PUB or HPUB that the client put on the wire."""

    subject: str
    reply: str
    headers: dict[str, str]
    data: bytes
    size: int


def parse(sent):
    """The publishes in these bytes, as a server reads them."""
    found = []
    pos = 0
    while pos < len(sent):
        eol = sent.index(b"\r\n", pos)
        verb, *words = sent[pos:eol].decode().split()
        count = 2 if verb == "HPUB" else 1
        to, sizes = words[:-count], words[-count:]
        header_size = int(sizes[0]) if count == 2 else 0
        start, end = eol + 2, eol + 2 + int(sizes[-1])
        assert sent[end : end + 2] == b"\r\n"
        headers: dict[str, str] = {}
        for line in sent[start : start + header_size].decode().split("\r\n")[1:-2]:
            name, _, value = line.partition(": ")
            headers.setdefault(name, value)  # the server looks at the first
        data, size = sent[start + header_size : end], end + 2 - pos
        found.append(Sent(to[0], "".join(to[1:]), headers, data, size))
        pos = end + 2
    return found


class Reply(NamedTuple):
    """What the server says to a publish."""

    subject: str
    status: int
    data: bytes

    def frame(self, sid):
        """As it comes on the wire."""
        to, head = self.subject.encode(), b"NATS/1.0 %d\r\n\r\n" % self.status
        return hmsg(to, b"", head, self.data, sid) if self.status else msg(to, b"", self.data, sid)


def error(code, err_code, description="no"):
    """The `error` of an answer."""
    return {"code": code, "err_code": err_code, "description": description}


class ModelStream:
    """
    A stream S of one replica, as nats-server 2.15.1 treats publishes, direct gets and a consumer.

    What it does was compared with the real one in tests/live. `refuse` names rows (by data) and
    the error the stream has for them.
    """

    full_until = 0.0
    """It has no room before."""

    def __init__(self, messages=()):
        self.messages: list[Message] = list(messages)
        self.heard: list[Sent] = []
        """All publishes that arrived."""
        self.ids: set[str] = set()
        self.refuse: dict[bytes, dict[str, object]] = {}
        self.now = 0.0
        self.answers: Callable[[Sent], list[Reply] | None] = lambda sent: None
        """What it says to a publish instead, if it does."""
        self.config: dict[str, object] = {}
        """Of its consumer."""
        self.position = self.delivered = self.made = 0
        """Of the consumer: the last sequence, and how many messages; how many there were."""

    # ── publishes ────────────────────────────────────────────────────────────────────────────

    def publish(self, sent):
        """Takes one message and says what the server says to it."""
        self.heard.append(sent)
        if (said := self.answers(sent)) is not None:
            return said
        if self.now < self.full_until:
            return self.fails(sent, error(503, 10077))
        if sent.data in self.refuse:
            return self.fails(sent, self.refuse[sent.data])
        name = sent.headers.get("Nats-Msg-Id")
        if name in self.ids:
            return self._say(sent, stream="S", seq=1, duplicate=True)
        self.ids |= {name} - {None}
        seq = len(self.messages) + 1
        self.messages.append(Message(seq, sent.subject, sent.data, sent.headers))
        return self._say(sent, stream="S", seq=seq)

    def fails(self, sent, error):
        """The stream has this error for it."""
        return self._say(sent, stream="S", seq=0, error=error)

    def refused(self, sent, code, err_code):
        """The message was dropped before the stream looked at it."""
        if err_code:
            return self._say(sent, code, stream="S", seq=0, error=error(code, err_code))
        return self._say(sent, code)

    def _say(self, sent, status=0, **content):
        data = json.dumps(content).encode() if content else b""
        return [Reply(sent.reply, status, data)] if sent.reply else []

    # ── what is asked ────────────────────────────────────────────────────────────────────────

    def at(self, sequence):
        """The place of the first message that has this sequence, or one behind it."""
        return bisect_left(self.messages, sequence, key=lambda message: message.sequence)

    @property
    def left(self):
        """How many messages are behind the consumer."""
        return len(self.messages) - self.at(self.position + 1)

    @property
    def next(self):
        """What the consumer delivers next."""
        return self.messages[self.at(self.position + 1)]

    def deliver(self):
        """It has."""
        self.position, self.delivered = self.next.sequence, self.delivered + 1

    @cached_property
    def _by_subject(self):
        found: dict[str, list[Message]] = {}
        for message in self.messages:
            found.setdefault(message.subject, []).append(message)
        return found

    def reply(self, subject, data=b""):
        """Headers and data of the answer to a request that has one answer."""
        what, query = ".".join(subject.split(".")[2:4]), json.loads(data or b"{}")
        if what == "DIRECT.GET":
            name, at = query.get("next_by_subj"), self.at(query.get("seq", 0))
            found = self._by_subject[name][0] if name else self.messages[at]
            return found.head(0, 0), found.data
        said = {"success": True}
        if what == "STREAM.MSG":
            said = {"error": error(404, 10037)}
            for found in self.messages[self.at(query["seq"]) :][:1]:
                said = {"message": {"seq": found.sequence, "subject": found.subject}}
        elif what != "CONSUMER.DELETE":
            if what == "CONSUMER.CREATE":
                self.config = query["config"]
                self.position, self.delivered = self.config["opt_start_seq"] - 1, 0
                self.made += 1
            said = {
                "name": subject.rpartition(".")[2],
                "delivered": {"consumer_seq": self.delivered, "stream_seq": self.position},
                "num_pending": self.left,
                "config": self.config,
            }
        return b"", json.dumps(said).encode()

    def batch(self, query, inbox, sid):
        """The frames of the answer to a batched direct get."""
        if names := query.get("multi_last"):
            up_to = query.get("up_to_seq", math.inf)
            there = [[m for m in self._by_subject.get(n, []) if m.sequence <= up_to] for n in names]
            found = sorted((some[-1] for some in there if some), key=lambda m: m.sequence)
        else:
            found = self.messages[self.at(query["seq"]) :]
        frames, before, size, left = [], 0, 0, len(found)
        for message in found[: query.get("batch")]:
            if size >= query.get("max_bytes", math.inf):
                break
            size += len(message.subject) + len(message.stored) + len(message.data)
            left -= 1
            frames.append(message.got(before, left, inbox, sid))
            before = message.sequence
        end = f"204 EOB\r\nNats-Num-Pending: {left}\r\nNats-Last-Sequence: {before}\r\n"
        if names:
            end += f"Nats-UpTo-Sequence: {self.messages[-1].sequence}\r\n"
        return [*frames, status(inbox, sid, end if found else "404 Message Not Found\r\n")]


def status(inbox, sid, words):
    """A frame that only says something: code and words, and header lines."""
    return hmsg(inbox, b"", f"NATS/1.0 {words}\r\n".encode(), b"", sid)


@dataclass
class Pull:
    """One that is open."""

    inbox: bytes
    sid: int
    left: int
    room: float
    """Bytes."""


class Line:
    """
    A client and its connection to the model of a stream that has these messages; what it asks is
    answered when it waits.

    `turns` counts the times the client had read all that had come and waited: then all that it
    had asked so far is answered. So it counts round trips, and no clock is looked at.

    Args:
        cut: the probability that a wait ends with the connection.
        round_trip_s: what the client is told of a PING.
    """

    version, max_payload = (2, 15, 1), 1 << 20

    def __init__(self, messages, rng, cut=0.0, round_trip_s=10.0):
        self.connection, self.stream, self.rng = self, ModelStream(messages), rng
        self.turns = self.cuts = 0
        self.asked: list[dict] = []
        """Every batched get, and every pull."""
        self.together = 0
        """The most gets that were answered at one time."""
        self.on_its_way = 0
        """The most bytes of messages that were on their way at one time."""
        self.pieces = [1 << 20]
        """How many bytes come at one time, one of these."""
        self.spoil: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
        """What becomes of the frames of an answer on their way."""
        self.options = connection_of(f"nats://line-{next(_lines)}", request_timeout_s=60.0)
        self.round_trip_s = round_trip_s
        self.subscriptions: dict[str, int] = {}
        self.pulls: list[Pull] = []
        self._cut = cut
        self._numbers = itertools.count(1)
        self._open: list[tuple[str, dict]] = []
        self.drop()

    def drop(self):
        self._forget()
        self.pulls.clear()
        self.subscriptions.clear()

    def _forget(self):
        self.buffer, self.pos, self.coming = b"", 0, bytearray()
        self._open.clear()

    @property
    def under_way(self):
        """What was asked for and not read."""
        return bool(self._open or self.coming)

    def new_inbox(self):
        return f"_INBOX.{next(self._numbers)}"

    def subscribe(self, subject, needed=True):
        self.subscriptions[subject] = sid = next(self._numbers)
        return sid

    def unsubscribe(self, sid):
        self.subscriptions = {to: at for to, at in self.subscriptions.items() if at != sid}
        self.pulls = [pull for pull in self.pulls if pull.sid != sid]

    def control(self, control):
        assert control.verb == b"PING"

    def request(self, subject, data=b"", timeout_s=0):
        return self.requests([(subject, data)])[0]

    def requests(self, requests, max_bytes=math.inf):
        """Of JetStream's API; what else was under way is nobody's."""
        self.turns += 1
        self._forget()
        replies = [connection.Reply(0, "", *self.stream.reply(*each[:2])) for each in requests]
        size = sum(len(reply.headers) + len(reply.data) for reply in replies)
        self.on_its_way = max(self.on_its_way, min(size, max_bytes))
        if size > max_bytes:
            self.cuts += 1
            raise ProtocolError("too much")
        return replies

    def send(self, data, timeout_s=30.0):
        for each in parse(bytes(data)):
            self.asked.append(query := json.loads(each.data))
            if ".DIRECT.GET." in each.subject:
                self._open.append((each.reply, query))
                continue
            room, sid = query.get("max_bytes", math.inf), self.subscriptions[each.reply]
            self.pulls.append(Pull(each.reply.encode(), sid, query["batch"], room))

    def fill(self, deadline, need=1):
        if not self.coming:
            self.turns += 1
            self.together = max(self.together, len(self._open))
            self.coming += b"".join(self._answers())
            self.on_its_way = max(self.on_its_way, len(self.coming))
        if self.rng.random() < self._cut:
            self.cuts += 1
            self.drop()
            raise NotConnectedError("model", "cut")
        if len(self.coming) < need:
            return False
        self.take(max(need, self.rng.choice(self.pieces)))
        return True

    def take(self, size):
        """So many bytes arrive."""
        self.buffer, self.pos = self.buffer[self.pos :] + bytes(self.coming[:size]), 0
        del self.coming[:size]

    def next_frame(self, deadline):
        while True:
            found, where = wire.next_frame(self.buffer, self.pos)
            if isinstance(found, wire.Frame):
                self.pos = where
                return found
            if not self.fill(deadline, where):
                return None

    def _answers(self):
        asked, self._open = self._open, []
        for inbox, query in asked:
            whole = f"{inbox.rpartition('.')[0]}.*"
            sid = self.subscriptions.get(inbox, self.subscriptions.get(whole))
            if sid is not None:
                yield from self.spoil(self.stream.batch(query, inbox.encode(), sid))
        for _ in range(self.rng.choice([1, 10, 500]) if self.pulls else 0):
            if self.pulls:
                yield from self.pulled(self.pulls[0])
            if not self.stream.left:
                break

    def pulled(self, pull):
        """What comes next for a pull."""
        stream = self.stream
        if not stream.left:
            yield self.word(pull, "100 Idle Heartbeat")
            return
        message = stream.next
        if len(message.data) > pull.room:
            yield self.word(self.pulls.pop(0), "409 Message Size Exceeds MaxBytes")
            return
        pull.room -= len(message.data)
        pull.left -= 1
        if not pull.left:
            self.pulls.remove(pull)
        stream.deliver()
        yield message.delivered(stream.delivered, stream.left, sid=pull.sid)

    def word(self, pull, word):
        """A status of a pull."""
        room = 0 if pull.room == math.inf else pull.room
        lines = f"{word}\r\nNats-Pending-Messages: {pull.left}\r\nNats-Pending-Bytes: {room}\r\n"
        return status(pull.inbox, pull.sid, lines)
