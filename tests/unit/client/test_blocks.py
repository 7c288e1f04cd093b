"""Ack subjects in both forms, and what is none of them, for all who read them."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.blocks import Ack, DeliveryFacts, ack_of
from pyspark_jetstream.client.wire import Frame
from pyspark_jetstream.errors import ProtocolError, ReadError
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls
from pyspark_jetstream.readstream.shared.claims import Claim, SharedConsumer

SOUND = {
    b"$JS.ACK.S.c.2.41.40.17.9": b"$JS.ACK.S.c",
    b"$JS.ACK.hub.hash.S.c.2.41.40.17.9": b"$JS.ACK.hub.hash.S.c",
    b"$JS.ACK._.hash.S.c.2.41.40.17.9.token": b"$JS.ACK._.hash.S.c",
    b"$JS.ACK._.hash.S.c.2.41.40.17.9.a.b.c": b"$JS.ACK._.hash.S.c",
}
"""Ack subjects of one delivery, and how they begin."""

HOSTILE = [
    b"$JS.ACK",
    b"$JS.ACK.",
    b"$JS.ACK.S.c.1.2.3.4",
    b"$JS.ACK.S.c.1.2.3.4.5.6",
    b"$JS.ACK.S.c.1..3.4.5",
    b"$JS.ACK.S.c.1.2.3.4.",
    b"$JS.ACK.S.c.1.-2.3.4.5",
    b"$JS.ACK.S.c.1.+2.3.4.5",
    b"$JS.ACK.S.c.1. 2.3.4.5",
    b"$JS.ACK.S.c.1.2_0.3.4.5",
    b"$JS.ACK.S.c.1.0x2.3.4.5",
    b"$JS.ACK.S.c.1.2e3.3.4.5",
    "$JS.ACK.S.c.1.٢.3.4.5".encode(),
    b"$JS.ACK.S.c.1.\xff.3.4.5",
    b"$JS.ACK.S.c.1.9223372036854775808.3.4.5",
    b"$JS.ACK.S.c.1.2.3.9223372036854775808.5",
    b"$JS.ACK.S.c.1." + b"9" * 5000 + b".3.4.5",
    b"$JS.ACK.S.c." + b"9" * 5000 + b".2.3.4.5",
    b"$JS.ACK.hub.hash.S.c.1.x.3.4.5",
    b"$JS.ACK.hub.hash.S.c.1.2.3.4.x",
    b"$JS.ACK.hub.hash.S.c.1.2.3.4.",
    b"JS.ACK.S.c.1.2.3.4.5",
    b"_INBOX.S.c.1.2.3.4.5",
    b"$JS.API.S.c.1.2.3.4.5",
    b"........",
    b"\xff" * 9,
]


@pytest.mark.parametrize("subject", SOUND)
def test_both_forms(subject):
    """With a domain and an account hash or without, whatever stands behind the numbers."""
    assert ack_of(subject) == Ack(SOUND[subject], 2, DeliveryFacts(41, 40, 17, 9))


@pytest.mark.parametrize("subject", HOSTILE, ids=lambda subject: repr(subject[:40]))
def test_what_is_no_ack_subject(subject):
    """Tokens that are missing, empty, no numbers or too large are a short error."""
    with pytest.raises(ProtocolError, match="no ack subject") as caught:
        ack_of(subject)
    assert len(str(caught.value)) < 600


# ── who reads them beside the data plane ─────────────────────────────────────────────────────


def taken(reply):
    """What a pull of the consumer `c` takes for a message with this reply subject."""
    claims: dict[int, list[Claim]] = {0: []}
    pulls = ClaimPulls([SharedConsumer(0, "S", "c", None)], {0: 10}, claims)
    pulls.open = {7: 0}
    pulls.receive(Frame(b"a", 7, reply, b"", b""))
    return claims[0]


def test_a_claim_is_what_its_ack_subject_says():
    """The sequence, and how often it was delivered."""
    assert taken(b"$JS.ACK.S.c.2.41.40.17.9") == [Claim(41, 2)]


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.hub.hash.S.c.2.41.40.17.9",
        b"$JS.ACK.S.d.2.41.40.17.9",
        b"$JS.ACK.\xff.c.2.1.1.1.1",
    ],
)
def test_a_claim_of_another_consumer_is_none(subject):
    """What cannot be acknowledged as the consumer's own is not taken."""
    with pytest.raises(ReadError, match="need the plain form of ack subjects"):
        taken(subject)
