"""Deliveries of a pull: many at a time are what they are one by one."""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.client import wire
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls
from pyspark_jetstream.readstream.shared.claims import Claim, SharedConsumer

CLAIMS = st.builds(
    Claim, st.sampled_from((1, 7, 10**12, 10**18, 9 * 10**18)), st.sampled_from((1, 1, 2, 300))
)
FAKE = b"HMSG s.x %d $JS.ACK.S.%b.1.666.1.1.1 12 12\r\nNATS/1.0\r\n\r\n\r\n"
DELIVERIES = st.tuples(
    st.sampled_from((0, 1)),
    CLAIMS,
    st.sampled_from((b"s.x", b"s.HMSG", b"s.\r", "s.ü".encode())),
    st.sampled_from((b"", FAKE, b"A: \r\n" * 3)),
    st.sampled_from((b"", b"x", FAKE)),
    st.integers(1, 10**9),
)
"""Messages to one of two pulls, with whatever headers somebody stored."""


def delivery(place, claim, subject=b"s.x", headers=b"", data=b"", number=1):
    """As the server sends it."""
    sid, name = 7 + place, b"jobs-%d" % place
    headers, data = (each.replace(FAKE, FAKE % (sid, name)) for each in (headers, data))
    headers = b"NATS/1.0\r\n%b\r\n" % headers
    reply = b"$JS.ACK.S.%b.%d.%d.%d.%d.0" % (
        name, claim.deliveries, claim.sequence, number, 17 * 10**17
    )  # fmt: skip
    line = (subject, sid, reply, len(headers), len(headers) + len(data))
    return b"HMSG %b %d %b %d %d\r\n" % line + headers + data + b"\r\n"


@given(
    st.lists(DELIVERIES, min_size=1, max_size=60),
    st.lists(st.sampled_from((b"", b"PING\r\n", b"MSG other 3 1\r\nx\r\n")), min_size=1),
    st.lists(st.sampled_from((1, 50, 1000, 10_000)), min_size=1),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_scanned_or_one_by_one(deliveries, between, sizes, too_many):
    """Deliveries to two pulls, cut anywhere, are claimed in their order and to the end."""
    consumers = [SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)]
    text = b"".join(
        delivery(*each) + other for each, other in zip(deliveries, cycle(between), strict=False)
    )
    sent = {place: [each[1] for each in deliveries if each[0] == place] for place in (0, 1)}
    pulls = {place: max(1, len(claims) - too_many[place]) for place, claims in sent.items()}
    claims = {place: [] for place in pulls}
    claimed = ClaimPulls(consumers, pulls, claims)
    claimed.open = {7: 0, 8: 1}
    connection: Any = SimpleNamespace(buffer=b"", pos=0)
    sizes = cycle(sizes)
    while text or connection.pos < len(connection.buffer):
        size = next(sizes)
        connection.buffer, connection.pos = connection.buffer[connection.pos :] + text[:size], 0
        text = text[size:]
        while True:
            claimed.scan(connection)
            frame_, where = wire.next_frame(connection.buffer, connection.pos)
            if frame_ is None:
                break
            connection.pos = where
            if isinstance(frame_, wire.Frame) and frame_.reply:
                claimed.receive(frame_)

    assert claims == {place: claims[: pulls[place]] for place, claims in sent.items()}


def test_pulls_that_have_ended_bring_nothing_more():
    """What is left counts the open ones alone."""
    consumers = [SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)]
    claimed = ClaimPulls(consumers, {0: 10, 1: 40}, {0: [], 1: []})
    claimed.open = {7: 0, 8: 1}
    text = b"".join(delivery(0, Claim(n, 1)) for n in (1, 2, 3))
    connection: Any = SimpleNamespace(buffer=text, pos=0)
    claimed.scan(connection)
    assert connection.pos
    while connection.pos < len(text):
        frame, connection.pos = wire.next_frame(text, connection.pos)
        claimed.receive(frame)
    assert (claimed._left, len(claimed.open)) == (47, 2)
    claimed.receive(wire.Frame(b"", 7, b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""))

    assert (claimed._left, len(claimed.open)) == (40, 1)
