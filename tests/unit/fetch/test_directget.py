"""Direct gets over a connection that is only bytes: what comes between, late, twice or never."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.gets import ForeignAnswerError, Gets
from pyspark_jetstream.fetch.layout import Slice

from ...fuzz import material
from ...kits.messages import Message
from ...kits.model import Line
from ...kits.seeds import examples


def near(messages, seed=0):
    """A server near by, whose answers come in pieces."""
    server = Line(messages, random.Random(seed), round_trip_s=0.0001)
    server.pieces = [1, 9, 1000, 1 << 20]
    return server


def gathered(server, batch=1000):
    """One complete request for what follows sequence 0."""
    gets = Gets(server, "S")
    gets.ask({"seq": 1, "batch": batch})
    gets.gather(time.monotonic() + 1)
    return gets


def reading(end):
    return Slice(0, "S", None, 0, end, 0, True, True)


def test_nothing_is_under_way_while_spark_has_a_batch():
    """When a batch is handed out, all that was asked for has been read."""
    messages = [Message(i, data=b"x" * 500) for i in range(1, 20_001)]
    server = near(messages)
    rows = 0
    for batch in read_direct(server, reading(20_000)):
        rows += batch.num_rows
        last = server.asked[-1]

        assert not server.under_way
        assert last["seq"] == rows + 1 or rows == 20_000
        assert batch.num_rows > last["batch"] or rows == 20_000

    assert rows == 20_000
    assert all(query["batch"] <= 1000 for query in server.asked)
    assert all(0 < query["max_bytes"] <= 8 << 20 for query in server.asked)
    ends = [query["seq"] + query["batch"] for query in server.asked]
    assert [query["seq"] for query in server.asked] == [1, *ends[:-1]]


def test_requests_are_small_where_publishers_are_not_to_wait():
    """`maxPublishDelay` bounds what is asked for at one time."""
    server = near([Message(i) for i in range(1, 4_001)])
    server.options = replace(server.options, max_publish_delay_s=0.002)
    rows = sum(batch.num_rows for batch in read_direct(server, reading(4_000), None))

    assert rows == 4_000
    assert {query["batch"] for query in server.asked} == {100}


def test_a_lost_reply_of_a_later_request_is_noticed():
    """A reply missing from the second request is not made up by the first."""
    server = near([Message(i) for i in range(1, 21)])
    gets = gathered(server, 10)
    server.spoil = lambda frames: frames[1:]
    gets.ask({"seq": 11, "batch": 10})
    gets.gather(time.monotonic() + 1)

    with pytest.raises(NotConnectedError, match="lost after sequence 10"):
        gets.take()


def test_lost_replies_are_asked_for_again():
    """A read goes on behind the last row it has handed out, and the rows are exact."""
    messages = [Message(i) for i in range(1, 5001)]
    server = near(messages)
    losses = iter([False, True, False, True])
    server.spoil = lambda frames: [*frames[:50], *frames[51:]] if next(losses, False) else frames
    rows = [row for batch in read_direct(server, reading(5000)) for row in batch.to_pylist()]

    assert [row["sequence"] for row in rows] == list(range(1, 5001))


def test_what_a_mirror_answers_is_dropped():
    """An answer of a mirror is refused; the requests before and after it count."""
    server = near([Message(i) for i in range(1, 31)])
    gets = gathered(server, 10)
    server.spoil = lambda frames: [f.replace(b"Nats-Stream: S", b"Nats-Stream: M") for f in frames]
    gets.ask({"seq": 11, "batch": 5})
    with pytest.raises(ForeignAnswerError, match="mirror 'M' answers"):
        gets.gather(time.monotonic() + 1)
    server.spoil = lambda frames: frames
    gets.ask({"seq": 11, "batch": 20})
    gets.gather(time.monotonic() + 1)
    messages = gets.take()

    assert messages is not None
    assert messages.columns(False).sequences.to_pylist() == list(range(1, 31))


@examples(40)
@given(st.lists(st.sampled_from(material.SUBJECTS), min_size=5), st.randoms(use_true_random=False))
def test_one_by_one_messages_are_those_of_the_columns(names, rng):
    """What is taken a message at a time is what is taken at one time."""
    messages = [
        Message(
            2**53 + 3 * number, name.decode(), material.payload(rng, True),
            nanos=material.nanos(rng), stored=material.stored(rng, True),
        )
        for number, name in enumerate(names)
    ]  # fmt: skip
    server = near(messages)
    columns = gathered(server).take().columns(with_headers=True)
    found = gathered(server).take_each()

    assert [one.sequence for one in found] == [message.sequence for message in messages]
    as_columns = (
        columns.subjects,
        columns.sequences,
        columns.times,
        columns.stored,
        columns.payloads,
    )
    rows = zip(*(column.to_pylist() for column in as_columns), strict=True)
    assert [one[:5] for one in found] == list(rows)


def test_frames_of_others_are_looked_at_once(monkeypatch):
    """Late frames of other subscriptions are taken out in one go, however many they are."""
    looked, next_frame = [], wire.next_frame

    def counting(buffer, pos):
        looked.append(len(buffer) if not pos else 0)  # copied to be looked at from the beginning
        return next_frame(buffer, pos)

    monkeypatch.setattr(wire, "next_frame", counting)
    server = near([Message(1)])
    late = 20_000 * b"MSG late 8 2\r\nhi\r\n"
    server.spoil = lambda frames: [*frames, late]
    server.pieces = [1 << 20]  # all of it at once
    gets = Gets(server, "S")
    gets.ask({"seq": 1, "batch": 10})

    assert gets.gather(time.monotonic() + 1).last == 1
    assert len(gets.take()) == 1
    assert len(looked) < 2 * 20_000
    assert sum(looked) < 4 * len(late)
