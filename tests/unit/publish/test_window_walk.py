"""The window against a server and a network that do whatever they like."""

import random

import pytest

from pyspark_jetstream.publish.lanes.flight import Window
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, terms
from .test_window import ABSENT, LIMITED, MANY, OVERLOADED, block, frame


@pytest.mark.parametrize("seed", range(60))
def test_random_walk(seed):
    """
    Whatever the server and the network do, every publish ends acked exactly once; first sendings
    are in order; a retry is never overtaken by a later first sending, of any subject, unless its
    own is paused; then it does not go; limits hold.
    """
    rng = random.Random(seed)
    maximum, max_bytes = rng.choice([(1, 500), (5, 60), (16, 30), (64, MANY)])
    w = Lane(
        PREFIX,
        *terms(
            rng.choice([FixedLimit(maximum), Window(maximum)]),
            max_bytes,
            1.0,
            1e9,
        ),
    )
    total = rng.randrange(1, 400)
    offered, now, acked_at_server = 0, 0.0, set()
    wire: list[int] = []  # what the server has not answered
    log: list[int] = []  # every sending
    unsettled: set[int] = set()  # refused or unheard, and neither acked nor held since
    subjects: list[str] = []
    paused: set[str] = set()

    def send() -> None:
        while (frames := w.frames_to_send(now, rng.choice([1, 20, 100]))) is not None:
            for one in bytes(frames).split(b";")[:-1]:
                ordinal = int(one)
                if ordinal not in log:
                    assert not unsettled, "overtook a retry"
                    assert ordinal == len(set(log)), "first sendings out of order"
                assert ordinal not in log or subjects[ordinal] not in paused, "is paused"
                log.append(ordinal)
                wire.append(ordinal)
            assert w.in_flight <= maximum
            assert w.bytes_in_flight <= max_bytes or w.in_flight == 1

    while w.busy or offered < total:
        if w.wants_rows and offered < total:
            count = min(rng.randrange(1, 40), total - offered)
            subjects += rng.choices("abc", k=count)
            w.append(block(offered, subjects[offered:]))
            offered += count
        w.again.hold(lambda subject, is_tried: subject in paused)
        unsettled.difference_update(w.again.held)
        w.again.free(lambda subject, since: 0 if subject in paused else rng.choice([1, 9]))
        assert w.again.held_bytes == sum(len(frame(ordinal)) for ordinal in w.again.held)
        send()
        event = rng.random()
        if wire and event < 0.7:
            at = 0 if rng.random() < 0.8 else rng.randrange(len(wire))
            fate = rng.random()
            if fate < 0.75:
                run = wire[at : at + rng.randrange(1, 6)]
                del wire[at : at + len(run)]
                w.on_pubacks(run, now)
                acked_at_server.update(run)
                unsettled.difference_update(run)
            else:
                ordinal = wire.pop(at)
                outcome = rng.choice([OVERLOADED, LIMITED, ABSENT])
                if fate < 0.9 and outcome is not ABSENT:
                    if ordinal not in acked_at_server:
                        unsettled.add(ordinal)
                    w.on_answer(ordinal, outcome, now)
                # else the answer is lost
        elif event < 0.73:
            unsettled.update(o for o in wire if o not in acked_at_server)
            wire.clear()
            w.on_disconnect()
        elif event < 0.8:
            paused.symmetric_difference_update(rng.choice("abc"))
        now += rng.random() * 0.4
        if rng.random() < 0.3 or not wire:
            w.expire(now)
            now = min(max(now, w.next_deadline(now)), now + 2.0)
            w.expire(now)

    assert acked_at_server == set(range(total))
    assert w.tally.acked == total
    assert w.in_flight == 0
    assert w.bytes_in_flight == 0
    assert w.wants_rows and not w.unanswered and not w.busy
