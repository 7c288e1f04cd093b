"""Cuts of messages: the same wherever a window ends and whatever it has."""

import random

import pytest

from pyspark_jetstream.fetch.decoding.cuts import cut

from ....kits.messages import SID, Message
from ....kits.seeds import fresh

WORDS = b" %d $JS.ACK.S.c." % SID
ID = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"

WAYS = pytest.mark.parametrize("stored", [b"", ID], ids=["plain", "with an id"])


def stream(stored, count, rng):
    """Messages that are alike."""
    messages = [
        Message(
            9_900 + i, "a" * rng.randrange(1, 9), b"x" * rng.randrange(40),
            nanos=10**18 + rng.randrange(10**17), stored=stored,
        )
        for i in range(count)
    ]  # fmt: skip
    return [m.delivered(i, 11_100 - i) for i, m in enumerate(messages, 9_950)]


@WAYS
@pytest.mark.parametrize("seed", [1, *fresh(__name__)])
def test_a_cut_ends_where_numbers_become_longer(stored, seed):
    """All cuts of a window together take all of its messages."""
    frames = stream(stored, 300, random.Random(seed))
    window, counts = b"".join(frames) + frames[0], []
    while (found := cut(window, WORDS, 1000, True)) is not None:
        counts.append(len(found.messages.payloads))
        window = window[found.size :]

    # 9,999 is followed by 10,000 among the deliveries, the sequences, and what follows.
    assert counts == [50, 50, 51, 149]
    assert window == frames[0]


@WAYS
def test_alike_are_nearly_all(stored):
    """Where facts are as long as each other's, and sizes of one digit more or less."""
    frames = stream(stored, 300, random.Random(1))[152:]
    found = cut(b"".join(frames), WORDS, 1000, False)

    assert found is not None
    assert len(found.messages.payloads) == len(frames) - 1


@WAYS
@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_a_cut_ends_where_a_message_is_not_proven(stored, seed):
    """Before a byte too many or too few, or something that the server says in between."""
    rng = random.Random(seed)
    frames = stream(stored, 300, rng)[152:212]
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
        Message(1, data=good).delivered(1, 1),
    ]
    for broken in breaks:
        window = b"".join([*frames[:40], broken, *frames[41:]])
        found = cut(window, WORDS, 1000, True)
        assert found is not None
        count = len(found.messages.payloads)
        assert count in (39, 40)
        assert found.size == sum(map(len, frames[:count]))
    whole = b"".join(frames)
    for end in rng.sample(range(len(whole)), 50):
        found = cut(whole[:end], WORDS, 1000, True)
        taken = 0 if found is None else found.size
        assert taken <= end < taken + 2 * max(map(len, frames)) + 2
