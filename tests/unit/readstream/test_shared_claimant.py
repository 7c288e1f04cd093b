"""Deliveries of a pull: many at a time are what they are one by one."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.info import consumer_info_of
from pyspark_jetstream.readstream.shared import acks as acks_module
from pyspark_jetstream.readstream.shared.claimant import Claimant, ClaimSizes
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls, LastClaim
from pyspark_jetstream.readstream.shared.claims import Claim, SharedConsumer
from pyspark_jetstream.readstream.shared.manyclaims import ManyClaims

from ...kits.options import sharing_of

SEEDS = range(20)


def delivery(rng: random.Random, sid: int, name: str) -> tuple[bytes, Claim]:
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
    """
    Deliveries to two pulls, of any shape, with other frames between them and cut anywhere, are
    claimed in their order and to the end; a pull that has all it asked for takes no more.
    """
    rng = random.Random(seed)
    consumers = {p: SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)}
    text, sent = b"", {0: [], 1: []}
    for _ in range(rng.randint(1, 60)):
        place = rng.randrange(2)
        frame, claim = delivery(rng, 7 + place, f"jobs-{place}")
        text += frame
        sent[place].append(claim)
        text += rng.choice((b"", b"", b"PING\r\n", b"MSG other 3 1\r\nx\r\n"))
    pulls = {place: max(1, len(claims) - rng.randint(0, 2)) for place, claims in sent.items()}
    claim = LastClaim({place: [] for place in pulls})
    claimed = ClaimPulls(consumers, pulls, ManyClaims(), claim)
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

    assert claim.claims == {place: claims[: pulls[place]] for place, claims in sent.items()}
    assert scanned


def test_pulls_that_have_ended_bring_nothing_more():
    """
    What is left counts the open ones alone.
    """
    rng = random.Random(1)
    consumers = {p: SharedConsumer(p, "S", f"jobs-{p}", None) for p in (0, 1)}
    claimed = ClaimPulls(consumers, {0: 10, 1: 40}, ManyClaims(), LastClaim({0: [], 1: []}))
    claimed.open = {7: 0, 8: 1}
    text = b"".join(delivery(rng, 7, "jobs-0")[0] for _ in range(3))
    connection: Any = SimpleNamespace(buffer=text, pos=0)
    claimed.scan(connection)
    while connection.pos < len(text):
        frame, connection.pos = wire.next_frame(text, connection.pos)
        claimed.receive(frame)
    assert repr(claimed) == "<ClaimPulls for 47 more, 2 open>"
    claimed.receive(wire.Frame(b"", 7, b"", b"NATS/1.0 404 No Messages\r\n\r\n", b""))

    assert repr(claimed) == "<ClaimPulls for 40 more, 1 open>"


@pytest.mark.parametrize(
    ("led_s", "server", "lasted_s", "doubtful"),
    [
        (None, "A", 1.0, False),
        (None, "B", 1.0, True),
        (5.0, "B", 1.0, False),
        (0.9, "A", 1.0, True),
        (50.0, "A", 3.0, True),
        (None, "A", 3.0, True),
        ("gone", "A", 1.0, True),
    ],
)
def test_claims_that_may_be_somebody_elses(monkeypatch, led_s, server, lasted_s, doubtful):
    """
    A claim is doubtful whose consumer has had its leader for less long, or without replicas whose
    server is another run, or that the ack wait of 3 s is over for; after that fewer are claimed,
    and twice as many again after a claim that was full and took a short time.
    """
    client: Any = SimpleNamespace(
        options=SimpleNamespace(api_prefix="$JS.API"),
        connection=SimpleNamespace(info={"server_id": server}),
    )
    consumers = [SharedConsumer(0, "S", "jobs-0", None), SharedConsumer(4, "S", "jobs-4", None)]
    claimant = Claimant(client, consumers, sharing_of("overflow", ack_wait_s=3.0), "g")
    other = SimpleNamespace(led_s=1e9)
    infos = {"0": SimpleNamespace(led_s=led_s), "4": other}
    if led_s == "gone":
        del infos["0"]
    monkeypatch.setattr(claimant, "infos", lambda: infos)
    some = {"0": [Claim(1, 1)] * 500}
    claimant.last = LastClaim(some, began_s=time.monotonic() - lasted_s, server="A")
    claimant.sizes.most = 200

    late = lasted_s >= 3.0
    assert claimant.doubtful() == ({"0", "4"} if late else {"0"} if doubtful else set())
    assert claimant.sizes.most == (50 if late else 200)
    claimant.last.began_s = time.monotonic() - 0.1
    claimant.doubtful()
    assert claimant.sizes.most == (100 if late else 400)


def test_how_many_a_claim_asks_for():
    """
    After a claim that came too late a tenth of it; twice as many again only after one that was full
    and took a sixth of the ack wait at most. The pulls of one round share what comes in a third.
    """
    sizes = ClaimSizes()
    first = [sizes.each_pull(pulling, 30.0) for pulling in (1, 4, 100_000)]
    sizes.measure(999, 0.001)  # too few to tell
    same = sizes.each_pull(4, 30.0)
    sizes.measure(4_000, 1.0)
    fast = [sizes.each_pull(pulling, 30.0) for pulling in (1, 4)]
    sizes.shrink(5_000)
    most = [sizes.most]
    for count, lasted_s in ((499, 1.0), (500, 5.1), (500, 5.0), (999, 1.0)):
        sizes.grow(count, lasted_s, 30.0)
        most.append(sizes.most)

    assert (first, same, fast) == ([10_000, 2_500, 1], 2_500, [40_000, 10_000])
    assert most == [500, 500, 500, 1_000, 1_000]


@pytest.mark.parametrize(
    ("cluster", "led_s"),
    [
        (None, None),
        ({"name": "C", "leader": "n1"}, None),
        ({"name": "C", "leader": "n1", "leader_since": "2026-01-01T00:00:00.5Z"}, 9.5),
    ],
)
def test_for_how_long_a_consumer_has_had_its_leader(cluster, led_s):
    """By the server's clock; of one without replicas, or an older server, that is not known."""
    answer = {
        "name": "c",
        "delivered": {"consumer_seq": 1, "stream_seq": 1},
        "ts": "2026-01-01T00:00:10.000000001Z",
        "cluster": cluster,
    }
    assert consumer_info_of(answer).led_s == led_s


def test_a_claim_that_is_let_go_has_no_heartbeats(monkeypatch):
    """The server would deal it out to nobody, and to us as what we hold already."""
    monkeypatch.setattr(acks_module, "ack", lambda *_: None)
    consumers = [SharedConsumer(n, "S", f"jobs-{n}", None) for n in range(2)]
    held: Any = {}
    heartbeats: Any = SimpleNamespace(
        held=dict,
        hold=lambda consumer, numbers: held.setdefault(consumer, set()).update(numbers),
        release=lambda consumer, numbers: held[consumer].difference_update(numbers),
    )
    claimant: Any = SimpleNamespace(consumers=consumers, is_young=False, doubtful=lambda: {"0"})
    client: Any = None
    claims = {"0": [Claim(1, 1), Claim(2, 1)], "1": [Claim(7, 1)]}

    assert acks_module.keep(client, claimant, claims, heartbeats) == {"0": [], "1": claims["1"]}
    assert held == {consumers[0]: set(), consumers[1]: {7}}
