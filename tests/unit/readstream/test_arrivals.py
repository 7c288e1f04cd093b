"""What a driver makes of what it hears of its pulls."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from pyspark_jetstream.readstream.arrivals import Arrivals, expires_s, pull_body

ARRIVED = b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\n\r\n"
WRONG_PIN = b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\n\r\n"
OTHERS_PIN = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
EXPIRED = b"NATS/1.0 408 Request Timeout\r\n\r\n"
GONE = b"NATS/1.0 503\r\n\r\n"
HERE = (5, 7)


@pytest.fixture
def arrivals():
    """Of a query of two partitions, which listens."""
    inboxes = itertools.count(1)
    made = Arrivals(lambda: f"IN{next(inboxes)}")
    made.set_listening(True)
    return made


def tokens(arrivals, now=0.0, where=HERE):
    """The tokens of what is due, by partition."""
    due = arrivals.due(where, now)
    return {partition: subject.removeprefix("IN1.") for partition, subject in due.items()}


def test_a_pull_can_bring_nothing():
    """
    It allows one byte, for one message, under a pin that is somebody's or nobody's, never none.
    """
    bodies = [json.loads(pull_body("spark", pin)) for pin in ("abc", "")]

    assert [(b["max_bytes"], b["batch"], b["group"]) for b in bodies] == [(1, 1, "spark")] * 2
    assert bodies[0]["id"] == "abc"
    assert bodies[1]["id"]


def test_silence_counts_where_all_can_be_heard(arrivals):
    """
    That nothing has come is known only with a pull open at each partition, and only for the place
    where the driver stands.
    """
    unheard = arrivals.wait(HERE, 0.0)
    first = tokens(arrivals)
    heard = arrivals.wait(HERE, 0.0)
    known = arrivals.is_quiet(list(HERE)), arrivals.is_quiet([5, 8]), arrivals.is_quiet(None)
    arrivals.set_listening(False)

    assert (unheard, heard) == (True, False)
    assert first.keys() == {0, 1}
    assert known == (True, False, False)
    assert not arrivals.is_quiet(list(HERE))
    assert arrivals.wait(HERE, 0.0)
    assert tokens(arrivals) == {}


@pytest.mark.parametrize("word", [ARRIVED, WRONG_PIN])
def test_a_message_is_told_once(arrivals, word):
    """
    What ends a pull for a message ends the wait; the next pull of the same partition is sent where
    the driver stands then.
    """
    token = tokens(arrivals)[1]
    assert not arrivals.wait(HERE, 0.0)
    arrivals.end_pull(token, word)
    quiet = arrivals.is_quiet(list(HERE))
    told = arrivals.wait(HERE, 60.0)
    arrivals.forget_pulls([1])
    again = tokens(arrivals, where=(5, 9))

    assert (quiet, told) == (False, True)
    assert again.keys() == {1}
    assert not arrivals.wait((5, 9), 0.0)


def test_a_driver_that_was_misled_goes_by_what_it_sees(arrivals):
    """
    Who was told of a message and is still there has found none: it hears no more until it moves.
    """
    arrivals.end_pull(tokens(arrivals)[0], ARRIVED)
    told = arrivals.wait(HERE, 60.0)
    due, deaf = tokens(arrivals), arrivals.wait(HERE, 0.0)

    assert (told, due, deaf) == (True, {}, True)
    assert not arrivals.is_quiet(list(HERE))
    assert tokens(arrivals, where=(6, 7)).keys() == {0}
    assert not arrivals.wait((6, 7), 0.0)


@pytest.mark.parametrize(
    "word", [EXPIRED, GONE, OTHERS_PIN], ids=["expired", "no consumer", "another's pin"]
)
def test_a_pull_that_ends_without_a_message(arrivals, word):
    """
    It ends no wait, but from then on silence says nothing, until another one is open.
    """
    arrivals.end_pull(tokens(arrivals)[0], word)
    looks = arrivals.wait(HERE, 0.0)
    again = tokens(arrivals)

    assert looks
    assert again.keys() == {0}
    assert not arrivals.wait(HERE, 0.0)


@pytest.mark.parametrize(
    ("token", "headers"),
    [("99", ARRIVED), ("x", ARRIVED), ("1", b""), ("1", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"),
     ("1", b"A: b\r\n\r\n")],
)  # fmt: skip
def test_what_is_no_end_of_a_pull_says_nothing(arrivals, token, headers):
    """
    Another token, a message, a heartbeat, anything: the pulls are open as before.
    """
    assert "1" in tokens(arrivals).values()
    arrivals.end_pull(token, headers)

    assert not arrivals.wait(HERE, 0.0)
    assert tokens(arrivals) == {}


def test_who_listens_anew_does_so_elsewhere(arrivals):
    """
    What was open when the listener went is not heard again, nor is it anybody's to the server.
    """
    before, asked = arrivals.inbox, arrivals.due(HERE, 0.0)
    arrivals.set_listening(False)
    after = arrivals.inbox
    arrivals.set_listening(False)
    arrivals.set_listening(True)
    again = arrivals.due(HERE, 0.0)

    assert all(subject.startswith(f"{before}.") for subject in asked.values())
    assert after != before and arrivals.inbox == after
    assert all(subject.startswith(f"{after}.") for subject in again.values())


def test_messages_that_were_found_end_their_pulls(arrivals):
    """
    Where a batch has messages of a partition its pull has ended, though nobody heard; what is said
    of it later is about messages that are known.
    """
    token = tokens(arrivals)[0]
    arrivals.forget_pulls([0])
    arrivals.end_pull(token, ARRIVED)

    assert not arrivals.is_open(0) and arrivals.is_open(1)
    assert tokens(arrivals, where=(6, 7)).keys() == {0}
    assert not arrivals.wait((6, 7), 0.0)


def test_a_pull_is_sent_again_when_its_time_is_over(arrivals):
    """
    Also where its end was not heard.
    """
    assert tokens(arrivals, now=0.0).keys() == {0, 1}
    assert tokens(arrivals, now=29.0) == {}
    assert tokens(arrivals, now=31.0).keys() == {0, 1}


@pytest.mark.parametrize(
    ("word", "again"),
    [(None, set()), (ARRIVED, {0}), (EXPIRED, {0}), (GONE, {0}), (OTHERS_PIN, {0})],
    ids=["nothing", "a message", "expired", "no consumer", "another's pin"],
)
def test_what_an_open_pull_would_have_told_is_not_asked(arrivals, word, again):
    """
    Nothing is asked of a partition while a pull is open there. Where one ended for another reason
    than a message or its time it is asked once, also with a new pull: the consumer may be another.
    """
    before = arrivals.unheard(2)
    token = tokens(arrivals, now=time.monotonic())[0]
    assert before == {0, 1} and arrivals.unheard(2) == set()
    if word is not None:
        arrivals.end_pull(token, word)
    tokens(arrivals, now=time.monotonic())
    anew = arrivals.unheard(2)
    arrivals.doubt(1)
    doubted = arrivals.unheard(2)

    assert anew == (again if word in (GONE, OTHERS_PIN) else set())
    assert doubted == {1}
    assert tokens(arrivals, now=time.monotonic()).keys() == {1}
    assert arrivals.unheard(2) == set()


def test_what_cannot_be_heard_is_asked(arrivals):
    """
    Pulls prove nothing where nobody hears of the consumers' leaders, who would forget them, where
    nobody listens, and when their time is over.
    """
    tokens(arrivals, now=time.monotonic() - 31.0)
    over = arrivals.unheard(2)
    arrivals.set_listening(True, is_warned=False)
    arrivals.due(HERE, time.monotonic())
    unwarned = arrivals.unheard(2)
    arrivals.set_listening(True)
    arrivals.due(HERE, time.monotonic(), of={1})
    some = arrivals.unheard(2)
    arrivals.set_listening(False)

    assert (over, unwarned, some, arrivals.unheard(2)) == ({0, 1}, {0, 1}, {0}, {0, 1})


@pytest.mark.parametrize(("partitions", "seconds"), [(1, 30.0), (30, 30.0), (512, 512.0)])
def test_one_pull_a_second_ends(partitions, seconds):
    """However many partitions there are: the more, the longer each is open."""
    assert expires_s(partitions) == seconds
