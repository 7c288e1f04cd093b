"""A server that is far away, as bytes: what was asked is answered when the client waits for it."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from functools import cached_property

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.errors import NotConnectedError, ProtocolError

from .messages import PREFIX, Message, hmsg
from .options import connection_of

_numbers = itertools.count()


class FarServer:
    """
    Direct gets of a stream of these messages, ranges of it and the last ones of subjects; both a
    client and its connection.

    `turns` counts the times the client had read all that had come and waited: then all that it
    had asked so far is answered. So it counts round trips, and no clock is looked at.

    Args:
        cut: the probability that a wait ends with the connection.
        round_trip_s: what the client is told of a PING.
    """

    def __init__(self, messages, rng, cut=0.0, round_trip_s=10.0):
        self.messages = messages
        self.turns = 0
        self.cuts = 0
        self.asked: list[dict] = []
        """Every request."""
        self.together = 0
        """The most requests that were answered at one time."""
        self.on_its_way = 0
        """The most bytes of messages that were on their way at one time."""
        self.pieces = [1 << 20]
        """How many bytes come at one time, one of these."""
        self.spoil: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
        """What becomes of the frames of an answer on their way."""
        self.buffer, self.pos = b"", 0
        self.max_payload = 1 << 20
        self.version = (2, 15, 1)
        self.options = connection_of(f"nats://far-{next(_numbers)}", request_timeout_s=60.0)
        self._rng = rng
        self._cut = cut
        self.round_trip_s = round_trip_s
        self._sids = itertools.count(1)
        self._inboxes = itertools.count()
        self._subscribed: dict[str, int] = {}
        self._open: list[tuple[str, dict]] = []
        self._coming = bytearray()

    @property
    def under_way(self):
        """What was asked for and not read."""
        return bool(self._open or self._coming)

    # ── what a client is to the reader ───────────────────────────────────────────────────────

    @property
    def connection(self):
        return self

    def drop(self):
        self.buffer, self.pos = b"", 0
        self._coming.clear()
        self._open.clear()
        self._subscribed.clear()

    def requests(self, requests, max_bytes=math.inf):
        """JetStream's API: what follows a sequence, and direct gets of the first of a subject."""
        self.turns += 1
        self.buffer, self.pos = b"", 0
        self._coming.clear()
        self._open.clear()
        replies: list[Reply] = []
        size = 0
        for subject, body, *_ in requests:
            query = json.loads(body)
            if ".DIRECT.GET." in subject:
                frame, _ = wire.next_frame(self._first(query).got(0, 0), 0)
                assert isinstance(frame, wire.Frame)
                size += len(frame.headers) + len(frame.data)
                if size > max_bytes:
                    self.cuts += 1
                    raise ProtocolError("too much")
                self.on_its_way = max(self.on_its_way, size)
                replies.append(Reply(0, "", frame.headers, frame.data))
                continue
            found = next((m for m in self.messages if m.sequence >= query["seq"]), None)
            answer = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
            if found is not None:
                answer = {"message": {"seq": found.sequence, "subject": found.subject}}
            replies.append(Reply(0, "", b"", json.dumps(answer).encode()))
        return replies

    # ── what a connection is ─────────────────────────────────────────────────────────────────

    def new_inbox(self):
        return f"_INBOX.far{next(self._inboxes)}"

    def subscribe(self, subject):
        self._subscribed[subject] = next(self._sids)
        return self._subscribed[subject]

    def unsubscribe(self, sid):
        self._subscribed = {inbox: at for inbox, at in self._subscribed.items() if at != sid}

    def control(self, control):
        raise AssertionError(control)

    def send(self, data):
        line, _, body = data.partition(b"\r\n")
        words = line.decode().split()
        assert words[:2] == ["PUB", "$JS.API.DIRECT.GET.S"]
        self.asked.append(json.loads(body))
        self._open.append((words[2], self.asked[-1]))

    def fill(self, deadline, need=1):
        assert deadline > time.monotonic() - 60
        if not self._coming:
            self._answer()
        if self._rng.random() < self._cut:
            self.cuts += 1
            self.drop()
            raise NotConnectedError("far", "cut")
        if len(self._coming) < need:
            return False
        size = max(need, self._rng.choice(self.pieces))
        self.buffer = self.buffer[self.pos :] + bytes(self._coming[:size])
        self.pos = 0
        del self._coming[:size]
        return True

    def next_frame(self, deadline):
        while True:
            received, where = wire.next_frame(self.buffer, self.pos)
            if isinstance(received, wire.Frame):
                self.pos = where
                return received
            if not self.fill(deadline, where):
                return None

    def _sid(self, inbox):
        whole = f"{inbox.rpartition('.')[0]}.*"
        return self._subscribed.get(inbox, self._subscribed.get(whole))

    def _answer(self):
        self.turns += 1
        self.together = max(self.together, len(self._open))
        answers = [
            [frame.replace(PREFIX, b"HMSG %b %d " % (inbox.encode(), sid), 1) for frame in frames]
            for inbox, frames in (
                (inbox, self.spoil(self._frames(query))) for inbox, query in self._open
            )
            if (sid := self._sid(inbox)) is not None
        ]
        self._open.clear()
        self._coming += b"".join(frame for frames in answers for frame in frames)
        self.on_its_way = max(self.on_its_way, len(self._coming))

    def _first(self, query):
        if "next_by_subj" in query:
            return self._by_subject[query["next_by_subj"]][0]
        return self.messages[query["seq"] - 1]

    def _found(self, query):
        if "multi_last" not in query:
            return [m for m in self.messages if m.sequence >= query["seq"]]
        up_to = query.get("up_to_seq", math.inf)
        named = [self._by_subject.get(name, []) for name in query["multi_last"]]
        there = [[m for m in of_one if m.sequence <= up_to] for of_one in named]
        return sorted((some[-1] for some in there if some), key=lambda m: m.sequence)

    @cached_property
    def _by_subject(self):
        found: dict[str, list[Message]] = {}
        for message in self.messages:
            found.setdefault(message.subject, []).append(message)
        return found

    def _frames(self, query):
        found = self._found(query)
        if not found:
            return [hmsg("_INBOX.abc", "", b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]
        count = size = 0
        most = min(query.get("batch", len(found)), len(found))
        while count < most and size < query.get("max_bytes", math.inf):
            message = found[count]
            size += len(message.subject) + len(message.stored) + len(message.data)
            count += 1
        before = [0, *(m.sequence for m in found[:count])]
        left = len(found)
        frames = [m.got(before[i], left - 1 - i) for i, m in enumerate(found[:count])]
        end = (
            f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {left - count}\r\n"
            f"Nats-Last-Sequence: {before[-1]}\r\n"
        )
        if "multi_last" in query:
            end += f"Nats-UpTo-Sequence: {self.messages[-1].sequence}\r\n"
        end += "\r\n"
        return [*frames, hmsg("_INBOX.abc", "", end.encode(), b"")]
