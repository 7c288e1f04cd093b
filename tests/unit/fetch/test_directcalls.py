"""Direct gets of small batches over a connection that is only frames: replies that were lost."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.pace import appetite_of

from ...kits.messages import Message
from ...kits.model import Line
from ...kits.options import connection_of


@pytest.mark.parametrize(
    ("lost", "seen_by"),
    [
        (slice(0, 1), "the first names one before it"),
        (slice(2, 3), "a gap between two"),
        (slice(1, 4), "a longer gap"),
        (slice(4, 5), "the end names another last one"),
        (slice(1, 5), "the end, of all but the first"),
    ],
    ids=["first", "middle", "most", "last", "all-but-first"],
)
@pytest.mark.parametrize("multi", [True, False], ids=["multi_last", "batch"])
def test_an_answer_with_lost_replies_does_not_count(lost, seen_by, multi):
    """An answer of which replies were lost is asked for again."""
    messages = [Message(sequence, f"s.{sequence}") for sequence in (3, 5, 6, 9, 12)]
    server, losses = Line(messages, random.Random(1)), iter([lost])

    def spoil(frames):
        gone = frames[next(losses, slice(0))]
        return [frame for frame in frames if frame not in gone]

    server.spoil = spoil
    names = tuple(message.subject for message in messages)
    call = DirectCall(multi_last=names) if multi else DirectCall(seq=1, batch=10)
    found = DirectCalls(server, "S").ask(call)

    assert [each.sequence for each in found.found] == [3, 5, 6, 9, 12], seen_by
    assert len(server.asked) == 2


def test_batches_that_come_whole_ask_for_more_again():
    """Every batch that comes whole counts towards the size before one broke off."""
    server = Line([Message(1)], random.Random(1))
    calls, appetite = DirectCalls(server, "S"), appetite_of(server.options)
    appetite.shrink()
    for _ in range(100):
        calls.each([DirectCall(seq=1)])

    assert appetite.share == 1.0


def test_single_messages_far_away_are_got_together():
    """10,000 at one time, once their size is known; near the server no more than 500."""
    messages = [Message(sequence) for sequence in range(1, 10_001)]
    calls = [DirectCall(seq=sequence) for sequence in range(1, 10_001)]
    far, near = (Line(messages, random.Random(1), round_trip_s=s) for s in (10.0, 0.0005))
    for server in (far, near):
        found = DirectCalls(server, "S").each(calls)

        assert [one.sequence for one in found if one] == list(range(1, 10_001))
    assert far.turns <= 2
    assert near.turns >= 20


def test_what_single_messages_bring_together_is_bounded():
    """48 MiB are the most that is read of one burst; then fewer are asked for."""
    sizes = [10] * 40 + [1 << 20] * 60
    messages = [Message(place + 1, data=bytes(size)) for place, size in enumerate(sizes)]
    server = Line(messages, random.Random(1))
    calls = [DirectCall(seq=sequence) for sequence in range(1, 101)]
    found = DirectCalls(server, "S").each(calls)

    assert [len(one.data) for one in found if one] == sizes
    assert server.cuts == 1
    assert 24 << 20 < server.on_its_way <= 48 << 20


def test_one_message_may_be_of_any_size():
    """The bound is for several: what is larger than it comes alone."""
    messages = [Message(place + 1, data=bytes(50 << 20)) for place in range(2)]
    server = Line(messages, random.Random(1))
    found = DirectCalls(server, "S").each([DirectCall(seq=1), DirectCall(seq=2)])

    assert [len(one.data) for one in found if one] == [50 << 20] * 2


@pytest.mark.parametrize(
    ("ask", "blamed"),
    [
        (lambda calls: calls.message(0), "seq: expected a positive integer, got '0'"),
        (lambda calls: calls.message(-1), "seq: expected a positive integer, got '-1'"),
        (lambda calls: calls.message(True), "seq: expected a positive integer, got 'True'"),
        (lambda calls: calls.message(None), "names no message"),
        (lambda calls: calls.last(""), "last_by_subj: expected a value"),
        (lambda calls: calls.last("a..b"), "last_by_subj: invalid subject filter 'a..b'"),
        (lambda calls: calls.last("a b", appended=False), "last_by_subj: invalid subject filter"),
        (lambda calls: calls.last("a.>.b"), "last_by_subj: invalid subject filter 'a.>.b'"),
        (lambda calls: calls.next("a", 0), "seq: expected a positive integer, got '0'"),
        (lambda calls: calls.next(" "), "next_by_subj: expected a value"),
        (lambda calls: calls.next("a", start_time="8 o'clock"), "start_time: expected RFC 3339"),
        (lambda calls: calls.first_since("2026-01-31T08:00:00"), "start_time: expected RFC 3339"),
        (lambda calls: calls.batch(0, sequence=1), "batch: expected a positive integer, got '0'"),
        (lambda calls: calls.batch(1.5, "a"), "batch: expected a positive integer, got '1.5'"),
        (lambda calls: calls.batch(1, "a", max_bytes=0), "max_bytes: expected a positive integer"),
        (lambda calls: calls.batch(1), "names no message"),
        (lambda calls: calls.multi_last([]), "multi_last: expected a filter"),
        (lambda calls: calls.multi_last(""), "multi_last: expected a subject or a comma list"),
        (lambda calls: calls.multi_last(["a", ""]), "multi_last: expected a value"),
        (lambda calls: calls.multi_last(["a."]), "multi_last: invalid subject filter 'a.'"),
        (lambda calls: calls.multi_last(["a"], 0), "up_to_seq: expected a positive integer"),
        (lambda calls: calls.multi_last(["a"], batch=-2), "batch: expected a positive integer"),
        (lambda calls: calls.multi_last(["a"], up_to_time=""), "up_to_time: expected RFC 3339"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(ask, blamed):
    """What is no value of its kind names the request's field, and nothing is asked."""
    client = SimpleNamespace(options=connection_of("nats://nowhere"))
    with pytest.raises(ValueError, match=re.escape(blamed)):
        ask(DirectCalls(client, "S"))


def test_the_name_of_the_stream_is_checked():
    """No wildcard gets into the subject of a request."""
    for name in ("", "KV_*", "a.b", "a b"):
        with pytest.raises(OptionError, match="'stream'"), DirectCalls.open({}, name):
            pass
