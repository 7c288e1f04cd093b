"""
Ack subjects: the facts of a delivery in the reply subject of its message.

`$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<timestamp>.<pending>`, with a domain and an
account hash behind `ACK` where the server has the second form of them, and any tokens at its end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import ProtocolError

ACKS: Final = b"$JS.ACK."
"""First tokens of every ack subject."""

FACTS: Final = 5
"""Numbers in an ack subject: how often it was delivered, and what `DeliveryFacts` has."""

DIGITS: Final = 160
"""Digits that they have together at the most."""

MOST: Final = (1 << 63) - 1
"""The largest sequence or time that a column holds."""


class DeliveryFacts(NamedTuple):
    """Facts of a delivery that its ack subject has."""

    sequence: int
    delivery: int
    time: int
    pending: int


class Ack(NamedTuple):
    """An ack subject."""

    consumer: bytes
    """The ack subject up to the consumer's name."""
    delivered: int
    """Number of the message's deliveries, this one included."""
    facts: DeliveryFacts


def ack_of(reply: bytes) -> Ack:
    """
    The facts that a reply subject has as an ack subject.

    Raises:
        ProtocolError: It is none.
    """
    words = reply.split(b".")
    at = 4 if len(words) == 9 else 6  # with a domain and an account hash there are 11, or more
    told = words[at : at + FACTS]
    digits = b"".join(told)
    if len(told) == FACTS and all(told) and digits.isdigit() and len(digits) <= DIGITS:
        delivered, *numbers = map(int, told)
        facts = DeliveryFacts(*numbers)
        if facts.sequence <= MOST and facts.time <= MOST and reply.startswith(ACKS):
            return Ack(b".".join(words[:at]), delivered, facts)
    raise ProtocolError(f"no ack subject: {reply[:128]!r}")
