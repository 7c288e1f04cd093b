"""Rows that are taken back, wait and go again: what a walk of whole writes has found."""

import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.admission import Admission
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.throttling import refusals
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import (
    PREFIX,
    FixedLimit,
    Reply,
    Sent,
    error,
    terms,
)
from ...kits.options import FIXED, rules_of
from ...kits.world import World, block, command


def numbers(parts: list[Messages]) -> list[int]:
    return sorted(row for part in parts for row in part.rows.to_pylist())


def test_a_row_that_is_stored_has_no_deadline():
    """One that came back and was stored does not shorten the time for the next connection."""
    one = Lane(PREFIX, *terms(FixedLimit(8), 1 << 30, 5.0, 120.0))
    one.offer(replace(block("a", 0), sent=pa.array([0.0])))
    one.frames_to_send(100.0, 1 << 20)
    before = one.give_up_at
    one.on_pubacks([0], 100.1)

    assert (before, one.give_up_at) == (120.0, math.inf)


@pytest.mark.parametrize("source", ["pause", "queue"])
def test_a_short_pause_by_the_server_is_not_the_end_of_rows_that_waited(source):
    """Rows that waited long, and were never sent, are not given up for a 429."""
    pauses = Throttle()
    one = Admission(rules_of(), pauses)
    one.offer(block("a", 0), 0.0, False)
    if source == "pause":
        pauses.table.command(command(1, "a", 150.0), 0.0)
    pauses.refusals.refuse("b", (10023, "full", True), "S", 149.5, 149.5)
    one.expire(149.6)

    assert one.waiting == 1


def test_a_row_the_server_keeps_refusing_is_given_up():
    """One that was sent is, after `publishTimeout`."""
    pauses = Throttle()
    one = Admission(rules_of(publish_timeout_s=10.0), pauses)
    one.offer(block("a", 0), 0.0, False)
    taken = one.take(1, 5.0)
    assert taken is not None
    one.give_back(replace(taken, sent=pa.array([5.0])), 5.0)
    pauses.refusals.refuse("a", (10077, "full", True), "S", 14.9, 14.9)
    one.expire(14.95)

    with pytest.raises(PublishTimeoutError, match=r"waited 10\.1s"):
        one.expire(15.1)


@pytest.mark.parametrize("maximum", [2, 10_000])
def test_subjects_at_their_limit_are_not_asked_all_the_time(monkeypatch, maximum):
    """I1, I7: each waits longer and longer, also when there are more than are known."""
    monkeypatch.setattr(refusals, "_MAX", maximum)
    world = World(monkeypatch, [block("abcd" * 4, 0)], random.Random(1))
    for server in world.net.servers:
        server.full_until = 103.0
    counts = world.run()

    assert counts.acked == 16
    assert sorted(world.rows()) == list(range(16))
    assert len(world.server.heard) < 16 * 10


@pytest.mark.parametrize("maximum", [4, 100])
def test_a_subject_at_its_limit_waits_alone(monkeypatch, maximum):
    """§12.2: others are stored meanwhile, and of those that wait not each one is tried."""
    world = World(
        monkeypatch,
        [block("ab" * 200, 0)],
        random.Random(1),
        **FIXED,
        max_in_flight=maximum,
        publish_timeout_s=100.0,
    )
    server, stored_at = world.server, dict[str, float]()

    def answers(sent: Sent) -> list[Reply] | None:
        if sent.subject == "a" and server.now < 130:
            return server.fails(sent, error(503, 10077))
        stored_at[sent.subject] = server.now
        return None

    server.answers = answers
    assert world.run().acked == 400
    assert stored_at["b"] < 115 < 130 <= stored_at["a"]
    tried = [each for each in server.heard if each.subject == "a"]
    assert len(tried) < 200 + maximum + 60


def test_a_word_without_a_pause_counts_until_the_next_puback(monkeypatch):
    """B6: then it explains nothing any more."""
    world = World(monkeypatch, [block("ab", 0)], random.Random(1))
    world.publisher.pauses.throttle.table.command(command(1, ">", 0.0, 2), 0.0)
    before = bool(world.publisher.pauses.throttle.table.informed)
    world.run()

    assert (before, bool(world.publisher.pauses.throttle.table.informed)) == (True, False)


def test_lanes_are_handed_a_batch_of_rows_at_most(monkeypatch):
    """All of it may be given back: by each of an operator's commands, say, twenty a second."""
    world = World(monkeypatch, [block("ab" * 15_000, 0)], random.Random(1))
    handed, offer = [], Lane.offer

    def watched(self: Lane, messages: Messages) -> None:
        handed.append(len(messages))
        offer(self, messages)

    monkeypatch.setattr(Lane, "offer", watched)
    counts = world.run()

    assert counts.acked == sum(handed) == 30_000
    assert max(handed) <= 10_000
