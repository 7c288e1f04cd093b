"""Cutting replies of direct gets into columns, against a decoder that reads one at a time."""

from __future__ import annotations

import logging
import random
import re
from itertools import product

import pytest

from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.fetch.decoding.replies import Replies, cut
from pyspark_jetstream.fetch.decoding.rows import RowBuilder

from ....kits.messages import INBOX, LOOKALIKES, ODD, PREFIX, SID, SOUND, Message, random_messages
from ....kits.seeds import fresh

SEEDS = [1, 2, *fresh(__name__)]
"""The last one is new in every run; a failing test shows it in its name."""

STALE = [("Nats-Stream", "OLD"), ("Nats-Subject", "old"), ("Nats-Last-Sequence", "7")]


def frames(messages: list[Message], pending: int = 150) -> bytes:
    """A request's replies, without its end."""
    before = [0, *(m.sequence for m in messages)]
    return b"".join(m.got(before[i], pending - i) for i, m in enumerate(messages))


def stored(message: Message) -> bytes:
    return stored_before(message.stored)


def check(found: Replies | None, messages: list[Message], pending: int = 150) -> None:
    """Every value of every column."""
    assert found is not None and len(found) == len(messages)
    columns = found.columns(with_headers=True)
    assert columns.subjects.to_pylist() == [m.subject.encode() for m in messages]
    assert columns.sequences.to_pylist() == [m.sequence for m in messages]
    assert columns.payloads.to_pylist() == [m.data for m in messages]
    assert columns.stored.to_pylist() == [stored(m) for m in messages]
    assert columns.times.to_pylist() == [
        re.findall(rb"\r\nNats-Time-Stamp: ([^\r]+)\r\nNats-Num", m.got(0, 1))[-1] for m in messages
    ]
    assert found.columns(with_headers=False).stored is None
    before = [0, *(m.sequence for m in messages)]
    for row, message in enumerate(messages):
        assert (found.sequence(row), found.pending(row), found.previous(row)) == (
            message.sequence, pending - row, before[row]
        )  # fmt: skip


@pytest.mark.parametrize("shape", ["mixed", "headers", "bare", "lines"])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_messages_come_out_as_they_went_in(shape, seed):
    """
    Replies with or without headers of their own, stale ones of the server's names among them,
    and with any payloads are cut as their sizes say.
    """
    messages = random_messages(random.Random(seed), 150)
    for message in messages:
        if shape == "headers":
            message.headers = [("A", "1"), *STALE]
        elif shape != "mixed":
            message.headers = []
        if shape == "lines":
            message.data = message.data.replace(b"\r\n", b"\n\r")

    check(cut(frames(messages), PREFIX, "S"), messages)


@pytest.mark.parametrize("headers", [[], STALE], ids=["bare", "headers"])
@pytest.mark.parametrize("data", LOOKALIKES, ids=repr)
def test_one_message(data, headers):
    """A single message is enough, whatever it holds."""
    messages = [Message(2**62, "a", data, headers)]

    check(cut(frames(messages), PREFIX, "S"), messages)


BLOCKS = {**ODD, **{name: stored for name, (stored, _) in SOUND.items()}}


@pytest.mark.parametrize("odd", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("among", [0, 3], ids=["alone", "among others"])
def test_whatever_a_message_was_stored_with(odd, among):
    """
    A message that was stored with something else than headers is cut like any other, and none of
    the others is touched.
    """
    for data in (b"x", b"x\r\n"):
        messages = [Message(i, data=data) for i in range(1, 1 + among)]
        messages += [Message(10, "odd", data, stored=odd), Message(11, "odd", b"", stored=odd)]
        messages += [Message(20 + i) for i in range(among)]

        check(cut(frames(messages), PREFIX, "S"), messages)


def test_odd_blocks_are_null_headers(caplog):
    """
    Rows of messages that were stored with something else than headers have none; they are counted,
    and the log names them.
    """
    blocks = [*ODD.values(), *(block for block, _ in SOUND.values())]
    expected = [*(None for _ in ODD), *(headers for _, headers in SOUND.values())]
    messages = [Message(i, stored=each) for i, each in enumerate(blocks, 1)]
    found = cut(frames(messages), PREFIX, "S")
    builder = RowBuilder("S", True)
    with caplog.at_level(logging.WARNING):
        batch = builder.batch(found.columns(True), 1, 1 << 60)

    assert batch.column("headers").to_pylist() == expected[1:]
    assert builder.odd == len(ODD) - 1 + 2  # of SOUND two, in part
    (record,) = caplog.records
    assert "stream=S" in record.message and "sequences=2,3,4," in record.message


@pytest.mark.parametrize(
    "sizes",
    [
        b"999999999 T", b"-999999999 T", b"2147483647 T", b"2147483647 2147483647",
        b"4294967296 T", b"H 4294967296", b"-1 T", b"0 T", b"4 T", b"13 T", b"14 T", b"H H",
        b"T H", b"H -5", b"H T 1", b"H", b"T", b"", b"H  T", b" H T", b"+H T", b"1e2 T", b"H+1 T",
        b"H-1 T", b"H T+1", b"H T-1", b"H+1 T+1", b"H-1 T-1", b"T T",
    ],
    ids=repr,
)  # fmt: skip
def test_sizes_that_cannot_be_are_no_cut(sizes):
    """
    Sizes on a frame's line that are not those of its bytes make no offset, and no cut, wherever the
    frame stands, and whether line ends are in its data or not.
    """
    for position, data in product(range(3), (b"xyz", b"x\r\nz")):
        parts = [Message(i, data=data).got(0, 1) for i in range(1, 4)]
        line, _, rest = parts[position].partition(b"\r\n")
        before, header, total = line.rsplit(b" ", 2)
        words = []
        for word in sizes.split(b" "):
            name, add = word[:1], word[1:]
            number = {b"H": header, b"T": total}.get(name)
            words.append(word if number is None else b"%d" % (int(number) + int(add or 0)))
        parts[position] = b"%b %b\r\n%b" % (before, b" ".join(words), rest)

        assert cut(b"".join(parts), PREFIX, "S") is None, (position, data)


@pytest.mark.parametrize("headers", [[], STALE], ids=["bare", "headers"])
def test_columns_outlive_the_bytes(headers):
    """What was cut does not change when the buffer that it came in is used again."""
    messages = [Message(i, f"a.{i}", b"%d" % i, headers) for i in range(1, 100)]
    buffer = bytearray(frames(messages) + b"not a part of it")
    size = len(buffer) - len(b"not a part of it")
    found = cut(memoryview(buffer)[:size], PREFIX, "S")
    buffer[:] = bytes(len(buffer))

    check(found, messages)
    buffer.extend(bytes(10))  # nothing holds on to it either


GOOD = [Message(1), Message(2, headers=STALE), Message(3, data=b"a\r\nb")]
LINES = [Message(1), Message(2), Message(3)]


@pytest.mark.parametrize(
    "between",
    [
        b"PING\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"MSG x 8 2\r\nhi\r\n",
        Message(9).got(0, 1).replace(b" 7 ", b" 8 "),
        f"HMSG {INBOX} {SID} 28 28\r\nNATS/1.0 404 Message Not F\r\n\r\n\r\n".encode(),
        f"HMSG {INBOX} {SID} r 12 12\r\nNATS/1.0\r\n\r\n\r\n".encode(),
        Message(9).got(0, 1)[:-1],
        Message(9).got(0, 1)[:40],
        Message(9).got(0, 1)[:-1] + b"?",
        Message(9).got(0, 1).replace(b"Nats-Stream: S", b"Nats-Stream: T"),
        Message(9).got(0, 1).replace(b"Nats-Subject: ", b"Nats-Sabject: "),
        Message(9).got(0, 1).replace(b"Nats-Sequence: 9", b"Nats-Sequence: x"),
        Message(9).got(0, 1).replace(b"Nats-Time-Stamp", b"Nats-Time_Stamp"),
        Message(9, data=b"payload").got(0, 1).replace(b"payload", b"payloads"),
        Message(9, data=b"payload").got(0, 1).replace(b"payload", b"payloa"),
        Message(9, data=Message(4).got(0, 1)).got(0, 1),
        b"\r\n",
        b"",
    ],
    ids=[
        "ping", "err", "msg", "other-sid", "status", "reply", "cut-short", "cut-in-headers",
        "bad-end", "other-stream", "no-subject", "no-number", "no-time", "too-long", "too-short",
        "imitated", "crlf", "nothing",
    ],
)  # fmt: skip
def test_nothing_but_whole_messages_is_cut(between):
    """
    Whatever else stands before, between or behind messages, or imitates the line that frames
    begin with, makes the cut fail: it never shifts, hides or invents a row.
    """
    for messages, at in product((GOOD, LINES), (0, 1, 3)):
        parts = [m.got(0, 1) for m in messages]
        found = cut(b"".join([*parts[:at], between, *parts[at:]]), PREFIX, "S")

        assert (found is None) is (between != b""), (messages, at)


@pytest.mark.parametrize("data", [PREFIX, PREFIX + b"1 1", b"\r\n" + PREFIX], ids=repr)
def test_the_line_of_a_frame_in_a_payload_does_not_become_one(data):
    """
    A payload that imitates the line frames begin with is a payload, or there is no cut at all.
    """
    messages = [Message(1), Message(2, data=data), Message(3)]
    found = cut(frames(messages), PREFIX, "S")

    if found is not None:
        check(found, messages)


@pytest.mark.parametrize("wrong", [b"HMSG", b"", b"HMSG _INBOX.abc 7 "], ids=repr)
def test_no_messages(wrong):
    """Bytes without a message give none."""
    assert cut(wrong, PREFIX, "S") is None


@pytest.mark.parametrize(
    ("sequences", "ascending"),
    [([1], True), ([1, 2, 9], True), ([1, 1], False), ([3, 2], False), ([1, 3, 2, 4], False)],
)
def test_ascending(sequences, ascending):
    """Replies know whether their sequences ascend."""
    found = cut(frames([Message(seq) for seq in sequences]), PREFIX, "S")

    assert found is not None and found.ascending() is ascending
    assert repr(found) == f"<Replies {len(sequences)}, from sequence {sequences[0]} on>"
