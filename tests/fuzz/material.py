"""
What streams of frames are made of: messages as nats-server 2.15.1 sends them, and whatever else it
may say in between, from hostile publishers and for every way a decoder has.
"""

from __future__ import annotations

import random
from typing import Final

from ..kits.messages import EMPTY, INBOX, ODD, PIN, SOUND, TAIL, hmsg, msg, sent_on, timestamp

STREAM: Final = b"S"
SHAPES: Final = (
    (b"$JS.ACK.S.c.1", b""),
    (b"$JS.ACK.hub.hash.S.c.1", b""),
    (b"$JS.ACK.hub.hash.S.c.1", b".rnd0m"),
    (b"$JS.ACK._.hash.S.c-2.77", b".a.b.c"),
)
"""How ack subjects begin and end: of version 1, of version 2 without and with a token of chance."""


WORDS: Final = b" 7 $JS.ACK.S.c."
FORGED: Final = hmsg(
    b"forged", b"$JS.ACK.S.c.1.7.7.1.0", sent_on(EMPTY, b"Nats-Pin-Id: %b\r\n" % PIN), b"z"
)
FORGED_GOT: Final = hmsg(
    INBOX,
    b"",
    sent_on(
        EMPTY,
        b"Nats-Stream: S\r\nNats-Subject: forged\r\nNats-Sequence: 7\r\nNats-Time-Stamp:"
        b" 2001-01-01T00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n",
    ),
    b"z",
)
EOB: Final = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 7\r\n\r\n"
FRAGMENTS: Final = (
    b"", b"x", b"\r\n", b"\r", b"\n", b"HMSG ", b"MSG ", b"\r\nHMSG a", b"\r\nHMSG a.b", WORDS,
    WORDS[:-1], WORDS * 3, WORDS + b"1.5.5.5.5 60 61\r\n", WORDS + b"1.5.5.5.5 60 61",
    WORDS + b"1.5.5.5.5 999999999 0\r\n", b"\r\nHMSG a" + WORDS + b"1.x.5.5.5 60 61\r\n", FORGED,
    b"\r\n" + FORGED, FORGED[:-3], TAIL, b"NATS/1.0\r\n" + TAIL, b"NATS/1.0 404 Not Found\r\n\r\n",
    b"PING\r\n", b"HMSG _INBOX.abc 7 ", FORGED_GOT, FORGED_GOT[:-2], EOB, b"y" * 300, bytes(40),
    bytes(range(256)), b"\xff\xfe\x80", "\u6771\u4eac".encode(), b'{"stream":"S","seq":1}\r\n',
    b'MSG _INBOX.abc.0.1 7 22\r\n{"stream":"S","seq":1}\r\n',
)  # fmt: skip
"""What payloads are made of, of a stranger who knows stream, consumer, pin and inbox."""

SUBJECTS: Final = (
    b"a", b"a.b", b"orders.eu.1", "fl\u00fcge.\u6771\u4eac".encode(), b"x" * 200, b"HMSG", b"MSG.7",
    b"a\rb", b"\va", b"a\x00b", b"$JS.ACK.S.c.1.1.1.1.1", b"NATS/1.0", b"s" * 3000, b"a\x1c",
    "$weird.{}.\u00a0".encode(),
)  # fmt: skip
STALE: Final = (
    b"Nats-Stream: STALE\r\nNats-Subject: stale\r\nNats-Sequence: 999999\r\nNats-Time-Stamp:"
    b" 2001-01-01T00:00:00Z\r\nNats-Num-Pending: 4\r\nNats-Last-Sequence: 5\r\n"
    b"Nats-Pin-Id: stale\r\n"
)
NAMES: Final = (
    b"A", b"a", b"X-Trace", b"traceparent", b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup",
    b"Nats-Msg-Size", b"Nats-Trace-Dest", b"nats-trace-dest", b"KV-Operation", b"Nats-Pin-Id",
    b"Nats-Marker-Reason", b"Nats-Stream-Source", "\u00fc".encode(), b"a b", b"", b"\xff",
    b"Nats-Sequence", b"Status", b"Nats-Schedule",
)  # fmt: skip
VALUES: Final = (
    b"", b"v", b"a: b", b" x ", b"\tx\t", b"DEL", b"PURGE", b"PUT", b"MaxAge", b"Remove", b"sub",
    b"all", b"\xff\xfe", "\u00e4".encode(), b"a\rb", b"a\nb", b"x\r", b"1", b"9" * 30, b"y" * 500,
    b"Nats-Stream: S", b"Nats-Pin-Id: " + PIN,
)  # fmt: skip
BLOCKS: Final = (*ODD.values(), *(block for block, _ in SOUND.values()))

BETWEEN: Final = (
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b'INFO {"max_payload":1048576}\r\n',
    b"ping\r\n",
    hmsg(INBOX, b"", b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 5\r\n\r\n", b"", 8),
    FORGED.replace(b" 7 $JS", b" 8 $JS"),
    msg(b"other", b"", FORGED, 8),
    msg(b"other", b"reply.to", b"", 81),
    b"MSG  a\t8   1 \r\nx\r\n",
)
"""What may stand between messages, and is none of the subscription's."""

STATUSES: Final = tuple(
    hmsg(INBOX, b"", block, b"")
    for block in (
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n",
        b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 1\r\n\r\n",
        b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\n\r\n",
        b"NATS/1.0 413 Too Many Results\r\n\r\n",
        b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\nNats-Pending-Messages: 5\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
    )
)
"""What the server says on the subscription itself: heartbeats, and how pulls end."""


def payload(rng: random.Random, wild: bool) -> bytes:
    """A payload; a wild one imitates frames."""
    chance = rng.random()
    if wild and chance < 0.7:
        return b"".join(rng.choices(FRAGMENTS, k=rng.choice((1, 1, 2, 5))))
    if chance < 0.1:
        return b""
    if chance < 0.998:
        return rng.randbytes(rng.randrange(1, 60))
    return rng.randbytes(rng.choice((1000, 5000, 70_000)))


def stored(rng: random.Random, wild: bool) -> bytes:
    """A block as it is stored: headers mostly, and with `wild` at times what is none."""
    chance = rng.random()
    if chance < (0.3 if wild else 0.8):
        return EMPTY if chance < 0.25 else b""
    if wild and chance < 0.5:
        return rng.choice(BLOCKS)
    lines = b"".join(
        b"%b:%b%b\r\n" % (rng.choice(NAMES), rng.choice((b"", b" ", b"  ")), rng.choice(VALUES))
        for _ in range(rng.choice((1, 1, 2, 4)))
    )
    if wild and chance < 0.6:
        lines = STALE * rng.choice((1, 1, 2)) + lines
    if wild and chance > 0.998:
        lines *= 64_000 // len(lines)
    if wild and chance > 0.97:
        lines += rng.choice((b"junk\r\n", b"\r\n", b"A: 1\r\n\r\nB: 2\r\n", b":\r\n"))
    first = rng.choice((b"NATS/1.0", b"NATS/1.0", b"NATS/1.0 204 EOB", b"NATS/1.0 503"))
    return first + b"\r\n" + lines + b"\r\n"


def nanos(rng: random.Random) -> int:
    """A time."""
    return rng.choice((0, 1, 999, 1_700_000_000_123_456_789, rng.randrange(2**62)))


def delivered(
    rng: random.Random, wild: bool, shape: tuple[bytes, bytes], number: int,
    even: bytes | None = None,
) -> bytes:  # fmt: skip
    """A message of a consumer; `even`: stored with this, its numbers as long as those of others."""
    before, behind = shape
    sequence = rng.choice((number, number, 2**53 + number, rng.randrange(2**63)))
    time, pending = nanos(rng), rng.randrange(10**6)
    reply = b"%b.%d.%d.%d.%d%b" % (before, sequence, number, time, pending, behind)
    block = stored(rng, wild)
    if even is not None:
        block, time = even, 1_700_000_000_000_000_000 + rng.randrange(10**17)
        reply = b"%b.%d.%d.%d.%d%b" % (
            before,
            10**9 + number,
            10**6 + number,
            time,
            pending,
            behind,
        )
    subject = rng.choice(SUBJECTS) if wild else b"orders.eu.%d" % rng.randrange(40)
    if not block:
        return msg(subject, reply, payload(rng, wild))
    return hmsg(subject, reply, block, payload(rng, wild))


def run(
    rng: random.Random, wild: bool, first: int, count: int, after: int
) -> tuple[list[bytes], bytes]:
    """So many messages of an answer to a direct get, and the frame of its end."""
    sequences, sequence = [], first
    for _ in range(count):
        sequences.append(sequence)
        sequence += rng.choice((1, 1, 1, 1, rng.randrange(2, 50)))
    more = rng.choice((0, 1, 10**6))
    frames, previous = [], rng.choice((0, min(after, first - 1)))
    for row, sequence in enumerate(sequences):
        subject = rng.choice(SUBJECTS) if wild else b"orders.eu.%d" % rng.randrange(40)
        lines = (
            b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
            b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n"
        ) % (STREAM, subject, sequence, timestamp(nanos(rng)), more + count - row - 1, previous)
        block = sent_on(stored(rng, wild), lines)
        # Nobody can guess the inbox, so no payload holds it.
        data = payload(rng, wild).replace(INBOX, b"_INBOX.xyz")
        frames.append(hmsg(INBOX, b"", block, data))
        previous = sequence
    end = (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
        % (more, sequences[-1])
        if sequences
        else rng.choice((b"NATS/1.0 404 Message Not Found\r\n\r\n", b"NATS/1.0 503\r\n\r\n"))
    )
    return frames, hmsg(INBOX, b"", end, b"")


# ── answers to publishes ─────────────────────────────────────────────────────────────────────

NUMBERS: Final = (
    b"0", b"1", b"7", b"123456", b"-1", b"1.5", b"1e3", b"1e999", b"-1e999", b"NaN", b"Infinity",
    b"true", b"null", b'"5"', b"[]", b"{}", b"9" * 25, b"9" * 5000, b"18446744073709551615",
)  # fmt: skip
CODES: Final = (
    10002, 10023, 10028, 10047, 10054, 10071, 10077, 10111, 10158, 10167, 10168, 10174, 10176,
    10199, 10201, 10205, 10208, 10210, 10211, 10227, 0,
)  # fmt: skip
TEXTS: Final = (
    b"S", b"orders", b"", b"\\u00e4", "\u00e4".encode(), b"\\ud800", b"\xff", b"a\\\"b", b"a b",
    b"maximum messages per subject exceeded", b"}\r\n", b"\\r\\n",
)  # fmt: skip


def puback(rng: random.Random, wild: bool) -> bytes:
    """The JSON of an answer to a publish."""
    seq = b"%d" % rng.choice((1, 7, rng.randrange(1, 10**7), 2**63 - 1))
    chance = rng.random()
    if wild:
        seq = rng.choice((seq, *NUMBERS))
    if chance < (0.3 if wild else 0.85):
        domain = rng.choice((b"", b"", b'"domain":"hub",', b' "domain":"", '))
        blank = rng.choice((b"", b"", b" "))
        end = rng.choice((b"", b"", b"", b',"duplicate": true', b',"duplicate":true'))
        name = rng.choice(TEXTS) if wild else b"S"
        return b'{"stream":"%b",%b%b"seq":%b%b}' % (name, domain, blank, seq, end)
    if chance < 0.9:
        code = rng.choice((b"400", b"404", b"409", b"429", b"500", b"503"))
        number = b"%d" % rng.choice(CODES)
        if wild:
            code, number = rng.choice((code, *NUMBERS)), rng.choice((number, *NUMBERS))
        error = b'{"code":%b,"err_code":%b,"description":"%b"}' % (code, number, rng.choice(TEXTS))
        if wild:
            error = rng.choice((error, error, error, b"null", b"1", b'"x"', b"[]", b"{}", b"[1]"))
        return b'{"error":%b,"stream":"S","seq":0}' % error
    return rng.choice(NONSENSE)


NONSENSE: Final = (
    b"pong", b"[1]", b"{}", b"null", b"1", b'"seq"', b"{", b"[" * 20_000, b'{"a":' * 20_000,
    b"\xff\xfe{}", '{"stream":"S","seq":1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b" ", b"\x00",
    b'{"stream":"S","seq":1}{"stream":"S","seq":1}', b'{"stream":null,"seq":1}',
    b'{"stream":"S","stream":1,"seq":1}', b'{"batch":1}', b'["error","type","batch"]', b'"batch"',
    b'{"type":"io.nats.jetstream.api.v1.stream_delete_response"}',
    b'{"stream":"S","seq":1}\r\nMSG _INBOX.abc.0.9 7 22\r\n{"stream":"S","seq":1}',
)  # fmt: skip
"""What others than streams may answer."""


def ack_frame(rng: random.Random, wild: bool, number: int) -> bytes:
    """An answer to a publish as a frame."""
    subject = b"%b.%d.%d" % (INBOX, rng.choice((0, 0, 0, 1)), number)
    chance = rng.random()
    if wild and chance < 0.2:
        token = rng.choice(
            (b"0", b"9", b"-1", b"x", b"", b"00", b"active", b"0.x", b"0.-1", b"0.1.2", b"1e1",
             b"0.\xb2", b"0." + b"9" * 30, b"9" * 5000 + b".1", b"0.", b"0.1_0", b"0.+1")
        )  # fmt: skip
        subject = rng.choice((b"%b.%b" % (INBOX, token), INBOX, b"_INBOX.abcd.0.1"))
    if chance > 0.97:
        code = rng.choice((b"503", b"429 Too Many", b"400 Bad", b"404", b"x", b"0"))
        data = b"" if rng.random() < 0.6 else puback(rng, wild)
        return hmsg(subject, b"", b"NATS/1.0 %b\r\n\r\n" % code, data)
    return msg(subject, b"", puback(rng, wild))
