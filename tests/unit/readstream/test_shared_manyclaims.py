"""Claims that are cut many at a time are what they are one by one, whatever comes between them."""

from __future__ import annotations

import logging
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.readstream.shared import manyclaims as many_module
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls, LastClaim
from pyspark_jetstream.readstream.shared.claims import Claim, SharedConsumer
from pyspark_jetstream.readstream.shared.manyclaims import ManyClaims

ACKS = b"$JS.ACK.S.jobs-%d"
logger = logging.getLogger(__name__)

SIZE = b"NATS/1.0\r\nNats-Msg-Size: 9\r\n\r\n"
STORED = 1_763_834_567_123_456_789


def delivery(
    place=0, sid=None, *, sequence=1, deliveries=1, number=1, stored=STORED, pending=0,
    subject=b"s.x", acks=None, behind=b"", headers=SIZE, data=b"",
    sizes=None,
) -> bytes:  # fmt: skip
    """A message as the server sends it to the pull of one consumer."""
    reply = b"%b.%d.%d.%d.%d.%d%b" % (
        acks or ACKS % place, deliveries, sequence, number, stored, pending, behind
    )  # fmt: skip
    header, total = sizes or (len(headers), len(headers) + len(data))
    told = b"%d %d" % (header, total) if headers else b"%d" % total
    verb = b"HMSG" if headers else b"MSG"
    line = b"%b %b %d %b %b\r\n" % (verb, subject, 7 + place if sid is None else sid, reply, told)
    return line + headers + data + b"\r\n"


def status(place, line=b"404 No Messages") -> bytes:
    head = b"NATS/1.0 %b\r\n\r\n" % line
    return b"HMSG _INBOX.1 %d %d %d\r\n%b\r\n" % (7 + place, len(head), len(head), head)


def odd(rng: random.Random, place: int, sequence: int) -> bytes:
    """A frame of which something is unusual."""
    fake = delivery(place, sequence=666, headers=b"NATS/1.0\r\n\r\n")
    words = b" %d %b." % (7 + place, ACKS % place)
    hostile = rng.choice(
        (fake, fake[:-2], words, words + b"1.", b"\r\n" + words + b"1.6.6.6.6 1 1")
    )
    text: dict[str, Any] = {"sequence": sequence, "number": sequence}
    kind = rng.randrange(17)
    if kind == 0:
        return delivery(place, **text, deliveries=rng.choice((2, 10, 300)))
    if kind == 1:
        return delivery(place, **text, headers=b"NATS/1.0\r\nA: " + hostile + b"\r\n\r\n")
    if kind == 2:
        return delivery(place, **text, data=hostile)
    if kind == 3:
        return delivery(place, **text, headers=b"", data=rng.choice((b"", hostile)))
    if kind == 4:
        return delivery(
            place, **text, subject=rng.choice((b"s.\r", b"s.\xff", b"HMSG", b"\x0b.$JS"))
        )
    if kind == 5:
        return delivery(place, **text, pending=rng.choice((10**17, 10**18, 10**30)))
    if kind == 6:
        return rng.choice((b"PING\r\n", b"+OK\r\n", b"MSG other 3 1\r\nx\r\n"))
    if kind == 7:
        return delivery(1 - place, **text)
    if kind == 8:
        return delivery(place, sid=99, **text)
    if kind == 9:
        return status(
            place, rng.choice((b"100 Idle Heartbeat", b"404 No Messages", b"408 Timeout"))
        )
    if kind == 10 and rng.random() < 0.1:
        return status(place, b"409 Exceeded MaxWaiting")
    if kind == 11 and rng.random() < 0.1:
        return delivery(
            place, **text, acks=rng.choice((b"$JS.ACK.S.other", b"$JS.ACK.d.h.S.jobs-0"))
        )
    if kind == 12 and rng.random() < 0.1:
        return delivery(place, **text, behind=rng.choice((b".x", b".1.2.3", b"x")))
    if kind == 13 and rng.random() < 0.1:
        return delivery(place, sequence=rng.choice((1 << 63, 10**30)))
    if kind == 14 and rng.random() < 0.1:
        return delivery(place, **text, stored=rng.choice((1 << 63, 10**25)))
    if kind == 15 and rng.random() < 0.1:
        return delivery(place, **text, sizes=rng.choice(((40, 33), (33, 10), (0, 33), (33, 10**9))))
    if kind == 16:
        return delivery(place, **text, stored=rng.choice((0, STORED - 5, 12345)))
    return b""


def wire_text(rng: random.Random, count: int) -> bytes:
    """Runs of deliveries to two pulls, with more or less of what is unusual between them."""
    unusual = rng.choice((0.0, 0.001, 0.01, 0.3))
    alternates = rng.choice((0.0, 0.001, 0.5))
    sequence = rng.choice((1, 95, 10**6, 10**12))
    pending = rng.choice((count + 1, 10**9, 10**17))
    frames, place = [], 0
    for number in range(count):
        if rng.random() < alternates:
            place = 1 - place
        sequence += rng.choice((1, 1, 1, 7))
        if rng.random() < unusual:
            frames.append(odd(rng, place, sequence))
        else:
            frames.append(
                delivery(
                    place,
                    sequence=sequence,
                    number=number,
                    pending=pending - number,
                    subject=b"s." + b"y" * (sequence % 5),
                )  # fmt: skip
            )
    return b"".join(frames)


def outcome(parts, pulls, many) -> tuple[Any, ...]:
    """What two pulls bring whose bytes come in these parts; and how far, with which error."""
    consumers = {place: SharedConsumer(place, "S", f"jobs-{place}", None) for place in (0, 1)}
    claim = LastClaim({place: [] for place in pulls})
    claimed = ClaimPulls(consumers, pulls, many, claim)
    claimed.open = {7: 0, 8: 1}
    connection: Any = SimpleNamespace(buffer=b"", pos=0)
    error = None
    try:
        for part in parts:
            connection.buffer, connection.pos = connection.buffer[connection.pos :] + part, 0
            while True:
                claimed.scan(connection)
                frame, where = wire.next_frame(connection.buffer, connection.pos)
                if frame is None:
                    break
                connection.pos = where
                if isinstance(frame, wire.Frame):
                    claimed.receive(frame)
    except JetStreamError as raised:
        error = repr(raised)
    left = connection.buffer[connection.pos :]
    return claim, (claimed.open, repr(claimed)), left, error


class _Alone(ManyClaims):
    """Cuts nothing."""

    def cut(self, *_: Any) -> None:
        return None


class _Counted(ManyClaims):
    """Knows how many it cut, and how many bytes it looked at."""

    claims = 0

    def cut(self, *args: Any) -> Any:
        many = super().cut(*args)
        self.claims += len(many.claims) if many else 0
        return many


def parted(rng: random.Random, text: bytes, sizes) -> list[bytes]:
    parts = []
    while text:
        size = rng.choice(sizes)
        parts.append(text[:size])
        text = text[size:]
    return parts


@pytest.mark.parametrize("turn", range(12))
def test_many_at_a_time_or_one_by_one(monkeypatch, turn):
    """
    The same claims in the same order, the same pulls over, the same errors at the same place,
    wherever the bytes are cut and whatever somebody stored.
    """
    seed = time.time_ns() % 10**9
    logger.info("seed %d, turn %d", seed, turn)
    rng = random.Random(seed)
    for _ in range(12):
        least = rng.choice((0, 500, many_module._MIN_BYTES))
        monkeypatch.setattr(many_module, "_MIN_BYTES", least)
        text = wire_text(rng, rng.choice((10, 300, 1500)))
        pulls = {place: rng.choice((1, 200, 1499, 10**6)) for place in (0, 1)}
        parts = parted(rng, text, rng.choice(((5_000, 60_000), (10**6,), (700, 9_000, 200_000))))
        assert outcome(parts, pulls, ManyClaims()) == outcome(parts, pulls, _Alone())


def test_cut_at_every_byte(monkeypatch):
    """A window may end anywhere, and go on there."""
    monkeypatch.setattr(many_module, "_MIN_BYTES", 1)
    seed = time.time_ns() % 10**9
    logger.info("seed %d", seed)
    rng = random.Random(seed)
    frames = [delivery(sequence=n, number=n, pending=12 - n) for n in range(1, 10)]
    frames[rng.randrange(1, 9)] = odd(rng, 0, 5)
    text = b"".join([*frames, status(0)])
    pulls = {0: rng.choice((5, 100)), 1: 1}
    for at in range(len(text) + 1):
        parts = [text[:at], text[at:]]
        assert outcome(parts, pulls, ManyClaims()) == outcome(parts, pulls, _Alone()), at


def test_a_backlog_is_cut():
    """All but the ends of its windows."""
    count = 20_000
    text = b"".join(
        delivery(sequence=n, number=n, pending=2 * count - n) for n in range(count // 2, count)
    )
    parts = [text[at : at + 300_000] for at in range(0, len(text), 300_000)]
    many = _Counted()
    taken = outcome(parts, {0: count, 1: 1}, many)[0].claims
    assert taken[0] == [Claim(n, 1) for n in range(count // 2, count)]
    assert many.claims > 0.9 * len(taken[0])


@pytest.mark.parametrize("kind", ["again", "alternate", "headers", "verbs"])
def test_what_is_looked_at_is_linear(monkeypatch, kind):
    """Where nothing can be cut, no more bytes are looked at than there are, and the first few."""
    looked = 0
    cut = many_module.cut

    def counted(window, *args: Any, **named: Any) -> Any:
        nonlocal looked
        looked += len(window)
        return cut(window, *args, **named)

    monkeypatch.setattr(many_module, "cut", counted)
    fake = b"NATS/1.0\r\nA: 7 $JS.ACK.S.jobs-0.1.\r\n\r\n"
    frames = []
    for n in range(30_000):
        odds: dict[str, Any] = {
            "again": {"deliveries": 2},
            "alternate": {"place": n % 2},
            "headers": {"headers": fake},
            "verbs": {"subject": b"s.\r"} if n % 2 else {"headers": b"", "data": b"\r\n" * 9},
        }[kind]
        frames.append(delivery(sequence=n + 1, number=n + 1, **odds))
    text = b"".join(frames)
    parts = [text[at : at + 300_000] for at in range(0, len(text), 300_000)]
    taken = outcome(parts, {0: 10**6, 1: 10**6}, ManyClaims())[0].claims
    assert len(taken[0]) + len(taken[1]) == 30_000
    assert looked <= len(text) + 2 * many_module._MOST_CREDIT
