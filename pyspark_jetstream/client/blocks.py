r"""
What the server says of a stored message that it delivers: in header lines, or in an ack subject.

A header block has the stored lines, then the server's own. Whoever may publish may have any bytes
stored as one. To add lines, nats-server 2.15.1 (client.go, genHeader) drops the last two bytes of
the block, whatever they are, and writes its lines and an empty one in their place; for a block of
at most two bytes it writes a new one. So:

* the server's lines are those at the end, and nothing at the beginning is its word: it removes a
  status line from most blocks, not from all (`NATS/1.0 503 x` without a CRLF stays);
* what was stored stands before them, and is headers only if it looks like it.

| stored | sent |
|---|---|
| `NATS/1.0␍␊A: 1␍␊␍␊` | `NATS/1.0␍␊A: 1␍␊Nats-Pin-Id: …␍␊␍␊` |
| `NATS/1.0␍␊A: 1` | `NATS/1.0␍␊A:Nats-Pin-Id: …␍␊␍␊` |
| `xyz` | `xNats-Pin-Id: …␍␊␍␊` |
| nothing, or `xy` | `NATS/1.0␍␊Nats-Pin-Id: …␍␊␍␊` |

Blocks are looked at from the end, in time linear in the bytes.

The ack subject of a consumer's delivery is
`$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<dseq>.<timestamp>.<pending>`, with a domain and an
account hash behind `ACK` where the server has the second form of them, and any tokens at its end.

No I/O.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import ProtocolError
from .wire import CRLF, HEADER_PREAMBLE

DIRECT_NAMES: Final = (
    b"Nats-Stream: ",
    b"Nats-Subject: ",
    b"Nats-Sequence: ",
    b"Nats-Time-Stamp: ",
    b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)
"""
The lines of a direct get, in the server's order (ADR-31); the last two only in batches. What of
these names stands before them was stored, and is stale.
"""

_DIGITS: Final = 19
_MOST: Final = (1 << 63) - 1
"""The largest sequence or time that a row holds."""

ACKS: Final = b"$JS.ACK."
"""First tokens of every ack subject."""

FACTS: Final = 5
"""Numbers in an ack subject: how often it was delivered, and what `DeliveryFacts` has."""

_ACK_DIGITS: Final = 160
"""Digits that they have together at the most."""

_END: Final = 2 * CRLF
_BATCHED: Final = len(DIRECT_NAMES)
_SINGLE: Final = _BATCHED - 2


class Direct(NamedTuple):
    """Facts of a message from a direct get that its headers have."""

    stored: bytes
    """Header lines before the server's; see `lines_of`."""
    stream: bytes
    subject: bytes
    sequence: int
    time: bytes
    pending: int
    """Number of messages behind it that the request can bring; 0 without a batch."""
    previous: int
    """The sequence of the message before it in its batch; 0 of the first, or without one."""
    batched: bool
    """Whether it says the two: servers that know no batch answer one with a single message."""


def direct(block: bytes) -> Direct | None:
    """
    The block of a message that a direct get brought; None for any other, as that of a status.

    A status of the server never ends in the lines of a message, and a message always does.
    """
    if not block.endswith(_END):
        return None
    body = block[: -len(_END)]
    # A value of the server's holds no CRLF, so its lines are the last ones.
    last = body[body.rfind(CRLF) + len(CRLF) :]
    count = _BATCHED if last.startswith(DIRECT_NAMES[-1]) else _SINGLE
    first, *lines = body.rsplit(CRLF, count - 1)
    if len(lines) != count - 1:
        return None
    # The name of a stream holds no blank, so this is the server's own line.
    stored, separator, stream = first.rpartition(DIRECT_NAMES[0])
    values = [stream]
    for line, name in zip(lines, DIRECT_NAMES[1:count], strict=True):
        if not line.startswith(name):
            return None
        values.append(line[len(name) :])
    subject, sequence, time, *numbers = values[1:]
    if not separator or CRLF in stream or not all(map(_is_number, (sequence, *numbers))):
        return None
    pending, previous = map(int, numbers or (0, 0))
    return Direct(stored, stream, subject, int(sequence), time, pending, previous, bool(numbers))


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= _DIGITS and int(word) <= _MOST


def stored_before(block: bytes) -> bytes:
    """Lines of a stored block that would stand before the server's lines."""
    return block[: -len(CRLF)] if len(block) > len(CRLF) else HEADER_PREAMBLE + CRLF


def lines_of(stored: bytes) -> bytes | None:
    """
    The header lines in what stands before the server's, each with its CRLF.

    None if it is no header block: it begins with something else than `NATS/1.0`, or ends in the
    middle of a line, so that a value, or who knows what, is cut off.
    """
    first, _, lines = stored.partition(CRLF)
    begins = first == HEADER_PREAMBLE or first.startswith(HEADER_PREAMBLE + b" ")
    return lines if begins and stored.endswith(CRLF) else None


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
    if len(told) == FACTS and all(told) and digits.isdigit() and len(digits) <= _ACK_DIGITS:
        delivered, *numbers = map(int, told)
        facts = DeliveryFacts(*numbers)
        if facts.sequence <= _MOST and facts.time <= _MOST and reply.startswith(ACKS):
            return Ack(b".".join(words[:at]), delivered, facts)
    raise ProtocolError(f"no ack subject: {reply[:128]!r}")
