"""
Cuts at line ends and at words: the same messages, wherever a window ends and whatever it holds.
"""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.fetch.decoding.cuts import cut

from ....kits.messages import SID, TAIL, Message
from ....kits.seeds import fresh

WORDS = b" %d $JS.ACK.S.c." % SID
ID = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"

WAYS = pytest.mark.parametrize(
    ("tail", "stored", "lines"),
    [(b"", b"", 2), (b"", ID, 5), (TAIL, None, 5), (TAIL, ID, 6)],
    ids=["own", "own with an id", "pinned", "pinned with an id"],
)


def stream(tail: bytes, stored: bytes | None, count: int, rng: random.Random) -> list[bytes]:
    """Messages with as many lines each."""
    messages = [
        Message(
            9_900 + i, "a" * rng.randrange(1, 9), b"x" * rng.randrange(40),
            nanos=10**18 + rng.randrange(10**17), stored=stored,
        )
        for i in range(count)
    ]  # fmt: skip
    return [
        (m.delivered if tail else m.delivered_plain)(i, 11_100 - i)
        for i, m in enumerate(messages, 9_950)
    ]


@WAYS
@pytest.mark.parametrize("first", [0, 150])
@pytest.mark.parametrize("seed", [1, *fresh(__name__)])
def test_both_ways_cut_the_same(tail, stored, lines, first, seed):
    """
    Where all messages have as many lines each whole one is cut at line ends, as it is at words;
    also where their numbers become longer.
    """
    rng = random.Random(seed)
    frames = stream(tail, stored, 300, rng)[first:]
    window = b"".join(frames)
    at_lines = cut(window, WORDS, 5, tail, 1000, True, lines)
    at_words = cut(window + frames[0], WORDS, 5, tail, len(frames), True)

    assert at_lines is not None and at_words is not None
    assert (at_lines.first, at_lines.last, at_lines.size) == at_words[1:]
    assert at_lines.size == len(window)
    for one, other in zip(at_lines.messages, at_words.messages, strict=True):
        assert one.equals(other)


@WAYS
@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_a_cut_ends_where_a_message_is_not_proven(tail, stored, lines, seed):
    """
    Before a byte too many or too few, a message with other lines, or something that the server
    says in between; wherever the window ends.
    """
    rng = random.Random(seed)
    frames = stream(tail, stored, 60, rng)
    good = frames[40]
    breaks = [
        good.replace(b"\r\n", b"x\r\n", 1),
        good[:-2] + b"x\r\n",
        good.replace(b" 7 ", b" 8 ", 1),
        good.replace(b" 7 ", b"\t7 ", 1),
        good.replace(b"MSG ", b"MSG  ", 1),
        good.replace(b"MSG ", b"MSG b ", 1),
        b"x" + good,
        b"PING\r\n",
        Message(1, data=good).delivered_plain(1, 1),
    ]
    for broken in breaks:
        window = b"".join([*frames[:40], broken, *frames[41:]])
        found = cut(window, WORDS, 5, tail, 1000, True, lines)
        assert found is not None
        assert (found.size, len(found.messages.payloads)) == (sum(map(len, frames[:40])), 40)
    whole = b"".join(frames)
    for end in rng.sample(range(len(whole)), 50):
        found = cut(whole[:end], WORDS, 5, tail, 1000, True, lines)
        taken = 0 if found is None else found.size
        assert taken <= end < taken + max(map(len, frames)) + 2


@WAYS
def test_a_block_with_a_line_more_before_an_empty_payload_is_not_proven(tail, stored, lines):
    """
    Where the payload of others is, it has an empty line too: only the block's size tells.
    """
    frames = stream(tail, stored, 60, random.Random(1))
    more = Message(
        1, data=b"", stored=b"NATS/1.0\r\n%bB: 2\r\n\r\n" % (b"A: 1\r\n" * (stored == ID))
    )
    odd = (more.delivered if tail else more.delivered_plain)(1, 1)
    found = cut(b"".join([*frames[:40], odd, *frames[41:]]), WORDS, 5, tail, 1000, True, lines)

    assert found is not None
    assert (found.size, len(found.messages.payloads)) == (sum(map(len, frames[:40])), 40)
