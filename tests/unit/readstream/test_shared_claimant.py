"""Deliveries of a pull: many at a time are what they are one by one."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls
from pyspark_jetstream.readstream.shared.claims import Claim, SharedConsumer

SEEDS = range(20)


def delivery(rng, sid, name):
    """A message as the server sends it, with whatever headers somebody stored."""
    claim = Claim(rng.choice((1, 7, 10**12, 10**18, 9 * 10**18)), rng.choice((1, 1, 2, 300)))
    subject = rng.choice((b"s.x", b"s.HMSG", b"s.\r", "s.ü".encode()))
    fake = b"HMSG s.x %d $JS.ACK.S.%b.1.666.1.1.1 12 12\r\nNATS/1.0\r\n\r\n\r\n" % (
        sid,
        name.encode(),
    )
    headers = b"NATS/1.0\r\n" + rng.choice((b"", fake, b"A: \r\n" * 3)) + b"\r\n"
    data = rng.choice((b"", b"", b"x", fake))
    reply = b"$JS.ACK.S.%b.%d.%d.%d.%d.0" % (
        name.encode(), claim.deliveries, claim.sequence, rng.randint(1, 10**9), 17 * 10**17
    )  # fmt: skip
    line = (subject, sid, reply, len(headers), len(headers) + len(data))
    return b"HMSG %b %d %b %d %d\r\n" % line + headers + data + b"\r\n", claim


@pytest.mark.parametrize("seed", SEEDS)
def test_scanned_or_one_by_one(seed):
    """Deliveries to two pulls, cut anywhere, are claimed in their order and to the end."""
    rng = random.Random(seed)
    consumers = [SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)]
    text, sent = b"", {0: [], 1: []}
    for _ in range(rng.randint(1, 60)):
        place = rng.randrange(2)
        frame, claim = delivery(rng, 7 + place, f"jobs-{place}")
        text += frame
        sent[place].append(claim)
        text += rng.choice((b"", b"", b"PING\r\n", b"MSG other 3 1\r\nx\r\n"))
    pulls = {place: max(1, len(claims) - rng.randint(0, 2)) for place, claims in sent.items()}
    claims = {place: [] for place in pulls}
    claimed = ClaimPulls(consumers, pulls, claims)
    claimed.open = {7: 0, 8: 1}
    connection: Any = SimpleNamespace(buffer=b"", pos=0)
    scanned = 0
    while text or connection.pos < len(connection.buffer):
        size = rng.choice((1, 50, 1000, 10_000))
        connection.buffer, connection.pos = connection.buffer[connection.pos :] + text[:size], 0
        text = text[size:]
        while True:
            claimed.scan(connection)
            scanned += connection.pos
            frame_, where = wire.next_frame(connection.buffer, connection.pos)
            if frame_ is None:
                break
            connection.pos = where
            if isinstance(frame_, wire.Frame) and frame_.reply:
                claimed.receive(frame_)

    assert claims == {place: claims[: pulls[place]] for place, claims in sent.items()}
    assert scanned


def test_pulls_that_have_ended_bring_nothing_more():
    """What is left counts the open ones alone."""
    rng = random.Random(1)
    consumers = [SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)]
    claimed = ClaimPulls(consumers, {0: 10, 1: 40}, {0: [], 1: []})
    claimed.open = {7: 0, 8: 1}
    text = b"".join(delivery(rng, 7, "jobs-0")[0] for _ in range(3))
    connection: Any = SimpleNamespace(buffer=text, pos=0)
    claimed.scan(connection)
    while connection.pos < len(text):
        frame, connection.pos = wire.next_frame(text, connection.pos)
        claimed.receive(frame)
    assert (claimed._left, len(claimed.open)) == (47, 2)
    claimed.receive(wire.Frame(b"", 7, b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""))

    assert (claimed._left, len(claimed.open)) == (40, 1)
