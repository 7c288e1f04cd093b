"""Cutting replies of direct gets into columns, against a decoder that reads one at a time."""

import logging
import re

import pytest

from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.fetch.decoding.replies import cut
from pyspark_jetstream.fetch.decoding.rows import RowBuilder

from ....kits.messages import ODD, PREFIX, SOUND, Message

STALE = [("Nats-Stream", "OLD"), ("Nats-Subject", "old"), ("Nats-Last-Sequence", "7")]


def frames(messages, pending=150):
    """A request's replies, without its end."""
    before = [0, *(m.sequence for m in messages)]
    return b"".join(m.got(before[i], pending - i) for i, m in enumerate(messages))


def stored(message):
    return stored_before(message.stored)


def check(found, messages, pending=150):
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


def test_odd_blocks_are_null_headers(caplog):
    """Rows with odd blocks have null headers, are counted, and named in the log."""
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


@pytest.mark.parametrize(
    ("sequences", "ascending"),
    [([1], True), ([1, 2, 9], True), ([1, 1], False), ([3, 2], False), ([1, 3, 2, 4], False)],
)
def test_ascending(sequences, ascending):
    """Replies know whether their sequences ascend."""
    found = cut(frames([Message(seq) for seq in sequences]), PREFIX, "S")

    assert found is not None and found.ascending() is ascending
    assert repr(found) == f"<Replies {len(sequences)}, from sequence {sequences[0]} on>"
