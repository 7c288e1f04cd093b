"""Rows that are taken back, wait and go again: what a walk of whole writes has found."""

import math
import random

import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.throttling.throttle import Refusals, Throttle
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, sent, terms
from ...kits.model import Reply, Sent, error
from ...kits.options import FIXED
from ...kits.world import World, block, command


def holding() -> tuple[Lane, Sent]:
    """A lane that holds two rows to `a`, of which this is the first; one to `b` goes again."""
    one = Lane(PREFIX, *terms(FixedLimit(8), 1 << 30, 5.0, 120.0))
    one.offer(block("aba", 0))
    first, other, _ = sent(one)
    one.on_disconnect()
    one.again.hold(lambda subject, is_tried: subject == "a")
    assert sent(one, 1.0) == [other]
    assert len(one.again.held[0].messages) == 2  # the block that they came in may go
    return one, first


def test_what_is_held_stops_nothing_new_and_goes_before_it():
    """Not even while its second sending has no answer; when that is refused, it stops all again."""
    one, first = holding()
    one.on_pubacks([1], 1.1)
    one.offer(block("b", 3))
    meanwhile = sent(one, 1.2)
    one.again.free(lambda subject, since: 1)
    wanted = one.wants_rows
    one.offer(block("b", 4))
    then = sent(one, 1.3)
    one.on_reply(b"0", 0, "", b'{"error":{"code":503,"err_code":10077}}', 1.4)

    assert [each.data for each in meanwhile] == [b"3"]
    assert not wanted
    assert then[0] == first
    assert [each.data for each in then] == [b"0", b"4"]
    assert (one.wants_rows, one.unanswered, one.tally.retries) == (False, 3, 2)


def test_a_late_puback_is_that_of_a_held_row():
    """It is stored, and has no deadline any more."""
    one, _ = holding()
    before = one.give_up_at
    one.on_pubacks([0, 1, 2], 9.0)

    assert before == 120.0
    assert (one.tally.acked, one.busy, one.give_up_at) == (3, False, math.inf)
    assert (one.again.held_bytes, one.bytes_in_flight) == (0, 0)


def test_what_has_no_time_left_is_not_sent():
    """Its stream may know its id no more, however late somebody looks."""
    one, _ = holding()
    one.on_pubacks([1], 1.1)
    one.again.free(lambda subject, since: 1)

    assert sent(one, 120.0) == []
    with pytest.raises(PublishTimeoutError, match=r"'a': row 0: not stored 120\.0s after it was"):
        one.expire(120.0)


def test_what_is_freed_and_paused_again_does_not_go():
    """Unless it is paused for a refusal: of those few are tried."""
    one, first = holding()
    one.on_pubacks([1], 1.1)
    throttle = Throttle()
    one.again.free(lambda subject, since: 1)
    throttle.refusals.refuse("a", (10077, "full", True), "S", 2.0, 2.0)
    tried = one.again.hold(lambda *each: throttle.is_paused(each[0], 2.0, each[1]))
    throttle.table.command(command(1, "a", 9.0), 2.0)
    held = one.again.hold(lambda *each: throttle.is_paused(each[0], 2.0, each[1]))

    assert (tried, held) == (False, True)
    assert sent(one, 2.0) == []
    one.again.free(lambda subject, since: 1)
    assert sent(one, 2.0) == [first]


def test_a_lost_row_goes_when_its_pause_is_lifted(monkeypatch):
    """B8, I6: at once, and not before, be it that no new row may go meanwhile."""
    world = World(monkeypatch, [block("a", 0)], random.Random(1), ack_timeout_s=1.0)
    world.net.commands += [(100.5, command(1, "a", 60.0)), (105.0, command(2, "a", 0.0))]
    world.net.on_sent = lambda each: world.clock.now > 104
    with world.publisher as publisher:
        while publisher.busy:
            if 100.5 < world.clock.now < 103:
                publisher.withhold()
                world.clock.now += 0.05
            else:
                for leaving in publisher.leaving():
                    publisher.release(leaving)
            publisher.turn()

    assert world.rows() == [0]
    assert world.clock.now < 106


@pytest.mark.parametrize("maximum", [2, 10_000])
def test_subjects_at_their_limit_are_not_asked_all_the_time(monkeypatch, maximum):
    """I1, I7: each waits longer and longer, also when there are more than are known."""
    monkeypatch.setattr(f"{Refusals.__module__}._MAX_WAITING", maximum)
    world = World(monkeypatch, [block("abcd" * 4, 0)], random.Random(1))
    for stream in world.net.streams:
        stream.full_until = 103.0
    counts = world.run()

    assert counts.acked == 16
    assert sorted(world.rows()) == list(range(16))
    assert len(world.stream.heard) < 16 * 10


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
    stream, stored_at = world.stream, dict[str, float]()

    def answers(sent: Sent) -> list[Reply] | None:
        if sent.subject == "a" and stream.now < 130:
            return stream.fails(sent, error(503, 10077))
        stored_at[sent.subject] = stream.now
        return None

    stream.answers = answers
    assert world.run().acked == 400
    assert stored_at["b"] < 115 < 130 <= stored_at["a"]
    tried = [each for each in stream.heard if each.subject == "a"]
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
