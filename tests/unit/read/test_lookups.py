"""Subjects looked up at a server far away, over a connection that is only bytes."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.fetch.pace import MOST_BYTES
from pyspark_jetstream.read.lookups import Lookups

from ...kits.messages import Message
from ...kits.model import Line
from ...kits.seeds import examples


def stored(count, subjects, sizes=(3,)):
    return [
        Message(number + 1, f"s.{number % subjects}", b"x" * sizes[number % len(sizes)])
        for number in range(count)
    ]


def looked_up(server, pin):
    names = list(dict.fromkeys(m.subject for m in server.stream.messages))
    pages = Lookups(server, "S", pin, 1).last(names, list)
    return {m.subject.decode(): m.sequence for page in pages for m in page}


def last_at(messages, pin):
    return {m.subject: m.sequence for m in messages if m.sequence <= pin}


def test_a_snapshot_of_50000_subjects_takes_few_round_trips():
    """Far away a request has 1,000 names."""
    messages = stored(50_000, 50_000)
    server = Line(messages, random.Random(1))

    assert looked_up(server, 50_000) == last_at(messages, 50_000)
    assert len(server.asked) == 50
    assert server.turns <= 55


def test_near_the_server_one_request_is_under_way():
    """So that no writer waits for more than one of them."""
    messages = stored(2_000, 1_000)
    server = Line(messages, random.Random(1), round_trip_s=0.0005)

    assert looked_up(server, 2_000) == last_at(messages, 2_000)
    assert server.together == 1
    assert max(len(query["multi_last"]) for query in server.asked) == 128


def test_subjects_that_changed_since_are_asked_about_together():
    """128 at one time: their first messages in a turn, and in the next the last ones at the pin."""
    messages = stored(2_000, 1_000)
    server = Line(messages, random.Random(1))

    assert looked_up(server, 1_000) == last_at(messages, 1_000)
    assert server.turns <= 2 * 8 + 4


@examples(5)
@given(
    st.lists(st.sampled_from([3, 3, 2_000, 30_000]), min_size=1, max_size=7),
    st.sampled_from([1_500, 2_200, 3_000]),
    st.integers(0, 99),
)
def test_whatever_is_cut_all_subjects_are_found(sizes, pin, seed):
    """Connections that break, answers that come in pieces, messages of which few fit a request."""
    messages = stored(3_000, 1_500, sizes)
    server = Line(messages, random.Random(seed), cut=0.005)
    server.pieces = [1_000, 1 << 16, 1 << 20]

    assert looked_up(server, pin) == last_at(messages, pin)
    assert server.on_its_way <= MOST_BYTES + (1 << 20)
