"""Batched direct gets one after the other, over a connection that is only bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice

from ...kits.messages import Message
from ...kits.model import Line
from ...kits.seeds import examples


def reading(end):
    return Slice(0, "S", None, 0, end, 0, False, False)


def sequences(server, end):
    batches = read_direct(server, reading(end))
    return [sequence for batch in batches for sequence in batch["sequence"].to_pylist()]


def stored(runs):
    """Runs of messages: how many are missing before it, how long it is, their distance and size."""
    messages, last = [], 0
    for gap, count, apart, most in runs:
        sequences = range(last + gap + 1, last + gap + 1 + apart * count, apart)
        messages += [Message(each, data=bytes(each * 7919 % most)) for each in sequences]
        last = sequences[-1]
    return messages


def runs(*sizes):
    return st.lists(
        st.tuples(
            st.integers(0, 5000), st.integers(1, 3000), st.integers(1, 4), st.sampled_from(sizes)
        ),
        min_size=1,
        max_size=5,
    )


def test_a_range_takes_few_round_trips():
    """Far away 40,000 messages are two requests."""
    messages = [Message(sequence) for sequence in range(1, 40_001)]
    server = Line(messages, random.Random(1))
    assert sequences(server, 40_000) == list(range(1, 40_001))
    assert len(server.asked) == 2
    assert server.turns <= 4


def test_near_the_server_one_request_is_under_way():
    messages = [Message(sequence) for sequence in range(1, 10_001)]
    server = Line(messages, random.Random(1), round_trip_s=0.0005)
    assert sequences(server, 10_000) == list(range(1, 10_001))
    assert server.together == 1
    assert server.turns == len(server.asked) >= 10


@examples(20)
@given(
    runs(10, 100, 20_000).map(stored),
    st.lists(st.sampled_from([1 << 20, 1, 9, 1000, 1 << 16]), min_size=1),
)
def test_every_message_once_whatever_the_requests_bring(messages, pieces):
    """Sequences are missing, and sizes change: each message is there once, in order."""
    server = Line(messages, random.Random(1))
    server.pieces = pieces
    end = messages[-1].sequence
    assert sequences(server, end) == [message.sequence for message in messages]


@examples(6)
@given(runs(50, 500).map(stored), st.integers(0, 99))
def test_a_connection_that_is_cut(monkeypatch, messages, seed):
    """What had come of whole requests is not read again, and nothing is lost or doubled."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the pauses behind cuts
    server = Line(messages, random.Random(seed), cut=0.04)
    server.pieces = [1 << 13]
    end = messages[-1].sequence
    assert sequences(server, end) == [message.sequence for message in messages]


def test_the_stream_ends_before_the_range():
    """Requests beyond the end bring nothing; then the leader's word is asked."""
    messages = [Message(sequence) for sequence in range(1, 7_001)]
    server = Line(messages, random.Random(1))
    assert sequences(server, 60_000) == list(range(1, 7_001))


@pytest.mark.parametrize("fails", ["send", "requests", "spoil"])
def test_rows_that_were_made_are_handed_on_whatever_fails_then(monkeypatch, fails):
    """Rows that were made reach Spark though the next request, or its answer, fails in any way."""
    server = Line([Message(sequence) for sequence in range(1, 30_001)], random.Random(1))
    works, failed = getattr(server, fails), []

    def once(what, *more):
        if failed or len(server.asked) <= (fails != "send"):
            return works(what, *more)
        failed.append(what)
        if fails == "spoil":
            return what[:9] + what[10:]
        server.drop()
        raise NotConnectedError("model", "cut")

    monkeypatch.setattr(server, fails, once)
    end = 30_000 if fails != "requests" else 40_000  # beyond the stream's last message
    assert sequences(server, end) == list(range(1, 30_001))
    assert failed
