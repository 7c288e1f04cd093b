"""Stored messages as nats-server 2.15.1 puts them on the wire, and as the rows a read owes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark_jetstream.client import wire
from pyspark_jetstream.serverheaders import NOT_READ

SID = 7
INBOX = "_INBOX.abc"
PIN = "cNbDmxzpQ1J7Kn1Q2DBvFH"
TAIL = f"Nats-Pin-Id: {PIN}\r\n\r\n".encode()
PREFIX = f"HMSG {INBOX} {SID} ".encode()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOOKALIKES = [
    b"",
    b"\r\n",
    b"HMSG a.b 7 $JS.ACK.S.c.1.1.1.1.0 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"MSG _INBOX.abc 7 3\r\nabc\r\nPING\r\n",
    TAIL,
    b"NATS/1.0 404 Not Found\r\n\r\n",
    bytes(range(256)),
]


def block(pairs):
    return wire.header_block(pairs)


def hmsg(subject, reply, headers, data):
    to = f"{subject} {SID} {reply}" if reply else f"{subject} {SID}"
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (
        to.encode(), len(headers), len(headers) + len(data), headers, data,
    )  # fmt: skip


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


def sent_on(stored, own):
    """A stored block with lines of the server, as nats-server 2.15.1 makes it (genHeader)."""
    kept = stored[:-2] if len(stored) > 2 else b"NATS/1.0\r\n"
    return kept + "".join(f"{name}: {value}\r\n" for name, value in own).encode() + b"\r\n"


class Message:
    """One stored message and what a read should make of it."""

    def __init__(
        self, sequence, subject="a.b", data=b"x", headers=(), nanos=1700000000 * 10**9, stored=None
    ):
        self.sequence, self.subject, self.data = sequence, subject, data
        self.headers, self.nanos = list(headers), nanos
        self._stored = stored

    @property
    def stored(self):
        """The header block, which need not be one."""
        return block(self.headers) if self._stored is None else self._stored

    def delivered(self, dseq, pending, prefix="$JS.ACK.S.c.1", tail=""):
        """As a consumer delivers it: with what was stored, and no more."""
        reply = f"{prefix}.{self.sequence}.{dseq}.{self.nanos}.{pending}{tail}"
        if self.stored:
            return hmsg(self.subject, reply, self.stored, self.data)
        line = f"MSG {self.subject} {SID} {reply} {len(self.data)}"
        return b"%b\r\n%b\r\n" % (line.encode(), self.data)

    def got(self, before, pending):
        """As a batched direct get sends it."""
        whole, part = divmod(self.nanos, 10**9)
        fraction = f".{part:09d}".rstrip("0").rstrip(".")
        stamp = (EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"
        own = [
            ("Nats-Stream", "S"),
            ("Nats-Subject", self.subject),
            ("Nats-Sequence", str(self.sequence)),
            ("Nats-Time-Stamp", stamp),
            ("Nats-Num-Pending", str(pending)),
            ("Nats-Last-Sequence", str(before)),
        ]
        return hmsg(INBOX, "", sent_on(self.stored, own), self.data)

    def row(self, partition, with_headers):
        """The row by the slowest way there is."""
        row = {
            "subject": self.subject,
            "data": self.data,
            "sequence": self.sequence,
            "timestamp": EPOCH + timedelta(microseconds=self.nanos // 1000),
            "partition": partition,
            "stream": "S",
        }
        if with_headers:
            found = {}
            for name, value in self.headers:
                if name not in NOT_READ and name.isascii():
                    found.setdefault(name, []).append(value)
            row["headers"] = list(found.items()) or None
        return row


def random_message(rng, sequence):
    headers = []
    if rng.random() < 0.4:
        names, values = ["A", "a", "X-Trace", "\u00fc"], ["", "v", "a: b"]
        headers = [(rng.choice(names), rng.choice(values)) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.2:
        # What a message that was delivered or republished before carries along.
        headers += [
            ("Nats-Stream", "STALE"), ("Nats-Subject", "stale"), ("Nats-Sequence", "999999"),
            ("Nats-Time-Stamp", "2001-01-01T00:00:00Z"), ("Nats-Last-Sequence", "5"),
            ("Nats-Pin-Id", "stale"),
        ]  # fmt: skip
    data = rng.choice(LOOKALIKES) if rng.random() < 0.4 else rng.randbytes(rng.randint(0, 300))
    if rng.random() < 0.003:
        data = rng.randbytes(1 << 20)
    return Message(
        sequence,
        rng.choice(["a", "a.b.c", "fl\u00fcge.\u6771\u4eac", "x" * 200, "$weird.{}.\u00a0"]),
        data,
        headers,
        rng.choice([0, 1, 999, 1_700_000_000_123_456_789, rng.randrange(2**60)]),
    )


def random_messages(rng, count):
    sequence = rng.choice([0, 2**53 - 3, 2**62])
    return [
        random_message(rng, sequence := sequence + rng.choice([1, 1, 1, rng.randint(2, 1000)]))
        for _ in range(count)
    ]
