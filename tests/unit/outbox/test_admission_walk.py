"""Many rows of many lanes, and random events: nothing is lost, doubled or out of order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.admission import Admission, Leaving, Load, queue_rows
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.throttling.throttle import Throttle

from ...kits.admission import (
    CRITICAL,
    FULL,
    NON_CRITICAL,
    NORMAL,
    OF,
    admission,
    drained,
    numbers,
    pause,
    rows,
)
from ...kits.options import rules_of
from ...kits.seeds import SEED


def test_a_large_queue_in_pieces():
    """
    Ten thousand rows of a thousand lanes, taken in pieces: each once, lanes in order, critical
    ones and what they drag first.
    """
    rng = random.Random(1)
    one = admission()
    text = " ".join(f"s{rng.randrange(1000)}.{rng.choice('cnnnl')}" for _ in range(10_000))
    offered = rows(text)
    one.offer(offered, 0.0, FULL)
    order = drained(one, piece=500)

    assert sorted(order) == list(range(10_000))
    check_lanes(order, offered)
    urgent = [row for row, each in enumerate(offered.priorities.to_pylist()) if each == CRITICAL]
    last = {offered.codes[row]: row for row in urgent}
    ahead = order[: max(map(order.index, urgent)) + 1]
    assert all(row <= last.get(offered.codes[row], -1) for row in ahead)


def check_lanes(order: list[int], messages: Messages) -> None:
    """I5: no lane is reordered."""
    lanes = defaultdict(list)
    codes = list(messages.codes)
    for row in order:
        lanes[codes[row]].append(row)
    assert all(lane == sorted(lane) for lane in lanes.values())


@pytest.mark.parametrize("seed", range(SEED, SEED + 25))
def test_random_walk(seed):
    """
    Random arrivals, sends, acks, refusals and pauses: I1 nothing is lost or doubled, I2 no
    critical row is shed, I3 nothing is by default, I5 subjects keep their order, I6 a paused one
    sends nothing, I7 what waits is bounded.
    """
    rng = random.Random(seed)
    sheddable = rng.choice([frozenset(), {NON_CRITICAL}, {NORMAL, NON_CRITICAL}])
    rules = rules_of(
        queue_size=rng.choice([20, 50, "sqrt"]),
        queue_bytes=rng.choice([20_000, 1 << 20]),
        held_bytes=15_000,
        sheddable=frozenset(sheddable),
        publish_timeout_s=1e9,
        throttle_max_wait_s=1e9,
    )
    throttle = Throttle()
    one = Admission(rules, throttle)
    lanes = "abcdef"
    subject, priority, block = {}, {}, 0
    in_flight: dict[int, Messages] = {}
    done: list[int] = []  # acked
    gone: Counter[int] = Counter()
    now, total, given_back = 0.0, 0, 0
    sent: dict[str, list[int]] = defaultdict(list)

    def drop(found: list[Leaving]) -> None:
        for each in found:
            for row in numbers(each.rows):
                assert priority[row] in sheddable, seed
                gone[row] += 1

    def check() -> None:
        assert one.offered + given_back == one.taken + one.shed + one.waiting, seed
        assert one.waiting + len(in_flight) + len(done) + sum(gone.values()) == total, seed
        limit = queue_rows(rules.queue_size, 30)
        assert one.waiting < limit + 15_000 / 256 + block + 31, seed

    for _ in range(300):
        now += rng.choice([0.0, 0.05, 0.4])
        load = Load(len(in_flight), 30)
        event = rng.random()
        if event < 0.35 and one.wants_rows(now, load):
            words = [(rng.choice(lanes), rng.choice("cnnll")) for _ in range(rng.randint(1, 25))]
            offered = rows(" ".join(f"{lane}.{letter}" for lane, letter in words), total)
            for row, (lane, letter) in enumerate(words, total):
                subject[row], priority[row] = lane, OF[letter]
            total += len(words)
            block = max(block, len(words))
            drop(one.offer(offered, now, load))
        elif event < 0.7:
            part = one.take(rng.randint(0, 30 - len(in_flight)), now)
            for place, row in enumerate(numbers(part)):
                lane = subject[row]
                assert throttle.state(lane, now) is None, seed
                older = [each for each in in_flight if subject[each] == lane]
                assert all(each < row for each in older), seed
                sent[lane].append(row)
                in_flight[row] = part.slice(place, 1)
        elif event < 0.85 and in_flight:
            # In the order of each lane; what else a server may do is the window's to bear.
            for lane in rng.sample(lanes, rng.randint(1, len(lanes))):
                mine = sorted(row for row in in_flight if subject[row] == lane)
                for row in mine[: rng.randint(0, 9)]:
                    del in_flight[row]
                    done.append(row)
        elif event < 0.9 and in_flight:
            # A lane at its limit: all it has on the wire is refused, and goes again later.
            lane = subject[rng.choice(sorted(in_flight))]
            refused = [row for row in in_flight if subject[row] == lane]
            rng.shuffle(refused)
            one.overload.pushed_back(None, now)
            throttle.refused(10077, lane, 0.3, now)
            messages = Messages.joined([in_flight.pop(row) for row in refused])
            one.give_back(replace(messages, sent=pa.repeat(now, len(refused))), now)
            given_back += len(refused)
            sent[lane] = [row for row in sent[lane] if row not in refused]
        else:
            filter = rng.choice([*lanes, ">"])
            pause(throttle, filter, rng.choice([0.0, 0.5, 1.0]), now)
        check()
    now += 100.0
    for row in drained(one, now, piece=7):
        sent[subject[row]].append(row)
        done.append(row)
    done += in_flight
    in_flight.clear()

    check()
    assert sorted([*done, *gone.elements()]) == list(range(total)), seed
    assert max(gone.values(), default=0) <= 1
    assert all(lane == sorted(lane) for lane in sent.values()), seed
