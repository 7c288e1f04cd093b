"""Header blocks as the server sends them on: its lines at the end, anything before them."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import direct, lines_of, stored_before

from ...kits.messages import ODD, SOUND, block, sent_on

BATCHED = [
    ("Nats-Stream", "S"),
    ("Nats-Subject", "a.b"),
    ("Nats-Sequence", "12"),
    ("Nats-Time-Stamp", "2026-01-01T00:00:00Z"),
    ("Nats-Num-Pending", "7"),
    ("Nats-Last-Sequence", "11"),
]
ALL = {**ODD, **{name: stored for name, (stored, _) in SOUND.items()}}


@pytest.mark.parametrize("stored", ALL.values(), ids=ALL)
@pytest.mark.parametrize("count", [4, 6], ids=["single", "batched"])
def test_what_a_direct_get_says(stored, count):
    """
    Whatever a message was stored with, the server's lines are found, and are not those stored.
    """
    found = direct(sent_on(stored, BATCHED[:count]))

    assert found is not None
    assert found.stored == stored_before(stored)
    assert found[1:5] == (b"S", b"a.b", 12, b"2026-01-01T00:00:00Z")
    assert found[5:] == ((7, 11, True) if count == 6 else (0, 0, False))


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0 404 Message Not Found\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 5\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 5\r\n"
        b"Nats-UpTo-Sequence: 5\r\n\r\n",
        block(BATCHED[:5]),
        block(BATCHED[1:]),
        block(BATCHED)[:-1],
        block([*BATCHED, ("A", "1")]),
        block([*BATCHED[:2], ("Nats-Sequence", "x"), *BATCHED[3:]]),
        block([*BATCHED[:2], ("Nats-Sequence", "-1"), *BATCHED[3:]]),
    ],
    ids=repr,
)
def test_what_is_no_message(headers):
    """A status of the server, and lines that are not all of its, are no message's."""
    assert direct(headers) is None


@pytest.mark.parametrize("stored", ODD.values(), ids=ODD)
def test_what_is_no_header_block_has_no_lines(stored):
    """Something else than headers gives no line, or none with a name; it is never guessed at."""
    assert b":" not in (lines_of(stored_before(stored)) or b"")


@pytest.mark.parametrize(("stored", "headers"), SOUND.values(), ids=SOUND)
def test_lines(stored, headers):
    """Whatever is on the first line behind `NATS/1.0`, the other lines are headers."""
    lines = lines_of(stored_before(stored))

    assert lines is not None
    pairs = wire.parse_headers(b"NATS/1.0\r\n" + lines)
    assert [(name, [value]) for name, value in pairs] == (headers or [])
