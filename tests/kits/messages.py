"""Messages as nats-server 2.15.1 has them stored, and puts them on the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark_jetstream.client import wire

SID = 7
INBOX = b"_INBOX.abc"
PREFIX = b"HMSG %b %d " % (INBOX, SID)
PIN = b"cNbDmxzpQ1J7Kn1Q2DBvFH"
TAIL = b"Nats-Pin-Id: %b\r\n\r\n" % PIN
EMPTY = b"NATS/1.0\r\n\r\n"


def hmsg(subject: bytes, reply: bytes, block: bytes, data: bytes, sid: int = SID) -> bytes:
    """A message with headers."""
    to = b"%b %d %b" % (subject, sid, reply) if reply else b"%b %d" % (subject, sid)
    size = len(block)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, size, size + len(data), block, data)


def msg(subject: bytes, reply: bytes, data: bytes, sid: int = SID) -> bytes:
    """A message without."""
    to = b"%b %d %b" % (subject, sid, reply) if reply else b"%b %d" % (subject, sid)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(data), data)


def sent_on(stored: bytes, lines: bytes) -> bytes:
    """A stored block as the server sends it with lines of its own (genHeader)."""
    return (stored[:-2] if len(stored) > 2 else b"NATS/1.0\r\n") + lines + b"\r\n"


def timestamp(nanos: int) -> bytes:
    """As Go writes it (RFC3339Nano)."""
    whole, part = divmod(nanos, 10**9)
    fraction = f".{part:09d}".rstrip("0").rstrip(".")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    return (moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z").encode()


ODD = {
    "no preamble": b"A: 1\r\nB: 2\r\n\r\n",
    "no end": b"NATS/1.0\r\nA: 1",
    "half an end": b"NATS/1.0\r\nA: 1\r\n",
    "half a CRLF": b"NATS/1.0\r\nA: 1\r\n\r",
    "preamble only": b"NATS/1.0",
    "preamble and CRLF": b"NATS/1.0\r\n",
    "bare LF": b"NATS/1.0\nA: 1\n\n",
    "no line": b"NATS/1.0\r\njunk\r\n\r\n",
    "binary": bytes(range(256)),
    "CRLFs": 5 * b"\r\n",
    "blanks": b"          \r\n\r\n",
    "status": b"NATS/1.0 503 No Responders at all",
    "status of a batch's end": b"NATS/1.0 204 EOB Nats-Num-Pending: 0 Nats-Last-Sequence: 1",
    "status of something else": (
        b"XXXXXXXX 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\n\r\n"
    ),
    "the server's lines": (
        b"XXXXXXXX 404 no\r\nNats-Stream: T\r\nNats-Subject: t\r\nNats-Sequence: 9\r\n"
        b"Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 0"
    ),
    "the server's names": b"NATS/1.0\r\n" + b"Nats-Stream: Nats-Pin-Id: " * 100,
    **{f"{n} bytes": b"HMSG a 7 b 1 1"[:n] for n in range(3, 13)},
}
"""Header blocks that are none. A server stores them, and sends them with its lines at the end."""

SOUND = {
    "none": (b"", None),
    "empty": (b"NATS/1.0\r\n\r\n", None),
    "one byte": (b"N", None),
    "two bytes": (b"\r\n", None),
    "status": (b"NATS/1.0 503\r\n\r\n", None),
    "status and a line": (b"NATS/1.0 204 EOB\r\nA: 1\r\n\r\n", [("A", ["1"])]),
    "an empty line inside": (b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n", [("A", ["1"]), ("B", ["2"])]),
    "junk among lines": (b"NATS/1.0\r\nA: 1\r\njunk\r\n\r\n", [("A", ["1"])]),
    "last bytes are not looked at": (b"NATS/1.0\r\nA: 1\r\nxy", [("A", ["1"])]),
}
"""Header blocks as unusual of which something can be read, and what."""


class Message:
    """One stored message."""

    def __init__(
        self, sequence, subject="a.b", data=b"x", headers=(), nanos=1700000000 * 10**9, stored=None
    ):
        self.sequence, self.subject, self.data = sequence, subject, data
        self.headers, self.nanos = dict(headers), nanos
        self._stored = stored

    @property
    def stored(self):
        """The header block, which need not be one."""
        return wire.header_block(self.headers.items()) if self._stored is None else self._stored

    def delivered(self, dseq, pending, prefix="$JS.ACK.S.c.1", sid=SID):
        """As a consumer delivers it: with what was stored, and no more."""
        reply = f"{prefix}.{self.sequence}.{dseq}.{self.nanos}.{pending}".encode()
        if self.stored:
            return hmsg(self.subject.encode(), reply, self.stored, self.data, sid)
        return msg(self.subject.encode(), reply, self.data, sid)

    def head(self, before, pending):
        """The header block of the answer to a direct get."""
        lines = (
            b"Nats-Stream: S\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
            b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n"
        ) % (self.subject.encode(), self.sequence, timestamp(self.nanos), pending, before)
        return sent_on(self.stored, lines)

    def got(self, before, pending, inbox=INBOX, sid=SID):
        """As a batched direct get sends it."""
        return hmsg(inbox, b"", self.head(before, pending), self.data, sid)
