"""The protocol as bytes: what is a frame, wherever the reads cut it."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.wire import Control, Frame, next_frame
from pyspark_jetstream.errors import ProtocolError

from ...kits.seeds import fresh

SEEDS = [1, 2, *fresh(__name__)]
"""The last one is new in every run; a failing test shows it in its name."""

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
    """
    Cut at any byte, a frame is None with a need that never asks beyond its end; whole, it is
    found with its end.
    """
    offset = b"garbage before"
    for cut in range(len(data)):
        found, need = next_frame(offset + data[:cut], len(offset))

        assert found is None
        assert 1 <= need <= len(data) - cut
    assert next_frame(offset + data, len(offset)) == (expected, len(offset) + len(data))


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_follow_each_other(seed):
    """Any sequence of frames, grown by random pieces, yields exactly these frames."""
    rng = random.Random(seed)
    chosen = [rng.choice(FRAMES) for _ in range(300)]
    stream = b"".join(data for data, _ in chosen)
    buffer, pos, at, found = b"", 0, 0, []
    while at < len(stream):
        step = rng.randint(1, 60)
        buffer += stream[at : at + step]
        at += step
        while (item := next_frame(buffer, pos))[0] is not None:
            found.append(item[0])
            pos = item[1]

    assert found == [frame for _, frame in chosen]
    assert pos == len(stream)


def test_verbs_are_case_insensitive():
    """The protocol's verbs may come in any case."""
    assert next_frame(b"ping\r\n", 0)[0] == Control(b"PING", b"")
    assert next_frame(b"msg a 1 1\r\nx\r\n", 0)[0] == Frame(b"a", 1, b"", b"", b"x")


@pytest.mark.parametrize("blank", [b"\r", b"\v", b"\f", b"\x1c", b"\x00"], ids=repr)
def test_blanks_that_separate_nothing(blank):
    """A server stores subjects with any of these, and sends them as they are."""
    for subject in (b"a%bb" % blank, b"a%b" % blank, b"%ba" % blank):
        data = b"HMSG %b 7 r 12 13\r\nNATS/1.0\r\n\r\nx\r\n" % subject

        assert next_frame(data, 0) == (Frame(subject, 7, b"r", data[-15:-3], b"x"), len(data))
    assert next_frame(b"MSG  a\t7   1 \r\nx\r\n", 0)[0] == Frame(b"a", 7, b"", b"", b"x")
    assert next_frame(b"MSG\ta\t7\t1\r\nx\r\n", 0)[0] == Frame(b"a", 7, b"", b"", b"x")
    assert next_frame(b"-ERR\t'a\tb'\r\n", 0)[0] == Control(b"-ERR", b"'a\tb'")


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n",
        b"\r\n",
        b"GET / HTTP/1.1\r\n",
        b"MSG\r\n",
        b"MSG a\r\n",
        b"MSG a 1\r\n",
        b"MSG a one 1\r\nx\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 r extra 1\r\nx\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 20 5\r\n12345\r\n",
        b"HMSG a 1 -1 5\r\n12345\r\n",
        b"HMSG a 1 r extra 1 5\r\n12345\r\n",
        b"MSG a 1 +1\r\nx\r\n",
        b"MSG a 1 1_0\r\n0123456789\r\n",
        b"MSG a -1 1\r\nx\r\n",
        b"HMSG a 1 \xc2\xb2 5\r\n12345\r\n",
        b"MSG a 1 2\r\nabcd\r\n",
        b"x" * ((1 << 20) + 1),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_frame_is_an_error(data):
    """Bytes that are no frame of the protocol raise, instead of being skipped or waited for."""
    with pytest.raises(ProtocolError):
        next_frame(data, 0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (b"NATS/1.0\r\nA: 503\r\n\r\n", (0, "")),
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n", (503, "")),
        (b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last: 4\r\n\r\n", (100, "Idle Heartbeat")),
        (b"NATS/1.0   423   Nats-Wrong-Pin-Id  \r\n\r\n", (423, "Nats-Wrong-Pin-Id")),
        (b"NATS/1.0 nonsense here\r\n\r\n", (0, "")),
        (b"NATS/1.0 404 \xff\r\n\r\n", (404, "\ufffd")),
        (b"XXXXXXXX 404 Not Found\r\n\r\n", (0, "")),
        (b"NATS/1.0404 Not Found\r\n\r\n", (0, "")),
        (b"NATS/1.0 -1 no\r\n\r\n", (0, "")),
        (b"NATS/1.0 404", (404, "")),
        (b"NATS/1.0 " + b"9" * 5000 + b"\r\na: b\r\n\r\n", (0, "")),
        (b"", (0, "")),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_status_lines(headers, expected):
    """The preamble line may hold a status code and a description."""
    assert wire.status_of(headers) == expected


def test_headers_in_order_as_sent():
    """
    Header lines keep order, case and repetition; blanks around values go; colons in values stay;
    lines without a colon and the status are left out; bad UTF-8 is replaced.
    """
    block = (
        b"NATS/1.0 100 X: y\r\nA: 1\r\na:2\r\nA:  b: c \r\nempty:\r\nno colon\r\nbad: \xff\r\n"
        b"\xc3\xbc: \xc3\xa4\r\n\r\n"
    )

    assert wire.parse_headers(block) == [
        ("A", "1"), ("a", "2"), ("A", "b: c"), ("empty", ""), ("bad", "\ufffd"),
        ("\u00fc", "\u00e4"),
    ]  # fmt: skip


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
