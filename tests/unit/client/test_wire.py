"""The protocol as bytes: what is a frame, wherever the reads cut it."""

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.wire import Control, Frame, next_frame

LOOKALIKE = b"MSG fake 1 3\r\nxyz\r\nPING\r\n-ERR 'no'\r\n\r\n\r\nab"
"""A payload that holds what looks like frames."""

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"

FRAMES = [
    (b"PING\r\n", Control(b"PING", b"")),
    (b"PONG\r\n", Control(b"PONG", b"")),
    (b"+OK\r\n", Control(b"+OK", b"")),
    (b"-ERR 'Stale Connection'\r\n", Control(b"-ERR", b"'Stale Connection'")),
    (b'INFO {"a":1, "b": 2}\r\n', Control(b"INFO", b'{"a":1, "b": 2}')),
    (b"MSG a.b 9 0\r\n\r\n", Frame(b"a.b", 9, b"", b"", b"")),
    (b"MSG a.b 9 re.ply 3\r\nxyz\r\n", Frame(b"a.b", 9, b"re.ply", b"", b"xyz")),
    (
        b"HMSG s 12 19 19\r\n" + HEADERS[:17] + b"\r\n\r\n",
        Frame(b"s", 12, b"", HEADERS[:17] + b"\r\n", b""),
    ),
    (
        b"HMSG s 1 r %d %d\r\n%bpay\r\n" % (len(HEADERS), len(HEADERS) + 3, HEADERS),
        Frame(b"s", 1, b"r", HEADERS, b"pay"),
    ),
    (b"MSG s 1 %d\r\n%b\r\n" % (len(LOOKALIKE), LOOKALIKE), Frame(b"s", 1, b"", b"", LOOKALIKE)),
    (
        "MSG fl\u00fcge.\u6771\u4eac 3 2\r\nok\r\n".encode(),
        Frame("fl\u00fcge.\u6771\u4eac".encode(), 3, b"", b"", b"ok"),
    ),
]


@pytest.mark.parametrize(("data", "expected"), FRAMES, ids=lambda v: repr(v)[:30])
def test_a_frame_is_whole_or_asks_for_more(data, expected):
    """Cut at any byte a frame asks for no more than its end; whole, it is found."""
    offset = b"garbage before"
    for cut in range(len(data)):
        found, need = next_frame(offset + data[:cut], len(offset))

        assert found is None
        assert 1 <= need <= len(data) - cut
    assert next_frame(offset + data, len(offset)) == (expected, len(offset) + len(data))


def test_header_block_round_trip():
    """What `header_block` writes `parse_headers` reads."""
    pairs = [("A", "1"), ("A", "2"), ("\u00fc", "x: y")]

    assert wire.parse_headers(wire.header_block(pairs)) == pairs


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (wire.pub("a"), b"PUB a 0\r\n\r\n"),
        (wire.pub("a", b"xyz", "r"), b"PUB a r 3\r\nxyz\r\n"),
        (wire.pub("\u00fc", b"x"), b"PUB \xc3\xbc 1\r\nx\r\n"),
        (
            wire.pub("a", b"xyz", "r", HEADERS),
            b"HPUB a r %d %d\r\n%bxyz\r\n" % (len(HEADERS), len(HEADERS) + 3, HEADERS),
        ),
        (wire.sub("a.>", 7), b"SUB a.> 7\r\n"),
        (wire.unsub(7), b"UNSUB 7\r\n"),
    ],
    ids=["pub", "pub-reply", "pub-utf8", "hpub", "sub", "unsub"],
)
def test_commands(command, expected):
    """Commands are the protocol's lines, with sizes in bytes."""
    assert command == expected
