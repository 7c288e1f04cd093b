"""How much tasks ask a stream for, beside each other and publishers: a server that is one line."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pyspark_jetstream.fetch.pace import Courtesy, Waits

from ...kits.seeds import fresh

SEEDS = [1, 2, 3, *fresh(__name__)]
"""The last one is new in every run; a failing test shows it in its name."""

WIDTH = 250
"""Bytes a message."""


@dataclass
class Line:
    """
    A stream's one line: what is asked for is sent, and what is published taken, in this order.

    Args:
        rate: messages a second.
        noise: seconds for which the server gets no core, once in five hundred things that it does.
    """

    rate: float
    rng: random.Random
    noise: float = 0.005
    busy_until: float = 0.0
    worked_s: float = 0.0
    """For how long it has sent and taken something."""

    def takes(self, now: float, messages: float) -> float:
        """When what comes in now will be done."""
        took_s = messages / self.rate
        late_s = self.noise if self.rng.random() < 0.002 else 0.0
        self.worked_s += took_s
        self.busy_until = max(now, self.busy_until) + took_s + late_s
        return self.busy_until


@dataclass
class Outcome:
    """What came of it once all had begun."""

    rows: dict[int, int]
    """By task."""
    delays_s: list[float] = field(default_factory=list)
    """Of each publish, until its PubAck."""
    busy: float = 0.0
    """For which part of the time the line had something to do."""

    @property
    def p99_s(self) -> float:
        return sorted(self.delays_s)[int(0.99 * len(self.delays_s))]

    @property
    def fairness(self) -> float:
        """Rows of the task with the fewest, for each row of the one with the most."""
        return min(self.rows.values()) / max(self.rows.values())


def simulate(
    line: Line,
    tasks: Sequence[Courtesy],
    seconds: float = 10.0,
    warm_s: float = 3.0,
    joins_s: Sequence[float] = (),
    foreign: int = 0,
) -> Outcome:
    """
    Tasks that ask for as much as they may as soon as all is there, and a publish each 2 ms.

    Args:
        warm_s: what comes before counts for nothing.
        joins_s: when each task begins; 0 unless given.
        foreign: messages that somebody else always has in the line.
    """
    rng, outcome = line.rng, Outcome(dict.fromkeys(range(len(tasks)), 0))
    events: list[tuple[float, int, str, int, float, int]] = []
    numbers = iter(range(10**9))

    def at(when: float, what: str, who: int = 0, since: float = 0.0, messages: int = 0) -> None:
        heapq.heappush(events, (when, next(numbers), what, who, since, messages))

    for who in range(len(tasks)):
        at(joins_s[who] if joins_s else 0.0, "ask", who)
    at(0.0, "publish")
    if foreign:
        at(0.0, "foreign")
    warm_work = 0.0
    while events:
        now, _, what, who, since, messages = heapq.heappop(events)
        if now > seconds:
            break
        if now < warm_s:
            warm_work = line.worked_s
        if what == "ask":
            asked = tasks[who].messages
            at(line.takes(now, asked), "came", who, now, asked)
        elif what == "came":
            tasks[who].count(messages, messages * WIDTH)
            tasks[who].answered(now - since)
            outcome.rows[who] += messages if now >= warm_s else 0
            at(now + rng.uniform(0.0001, 0.0005), "ask", who)
        elif what == "publish":
            at(line.takes(now, 10), "taken", since=now)
            at(now + 0.002, "publish")
        elif what == "taken":
            at(line.takes(now, 1), "acked", since=since)
        elif what == "acked" and since >= warm_s:
            outcome.delays_s.append(now - since)
        elif what == "foreign":
            at(line.takes(now, foreign), "foreign")
    outcome.busy = (line.worked_s - warm_work) / (seconds - warm_s)
    return outcome


def of_many(count: int, delay_s: float | None = None) -> list[Courtesy]:
    return [Courtesy(delay_s) for _ in range(count)]


@pytest.mark.parametrize("tasks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("delay_s", "bound_s"), [(None, 0.04), (0.02, 0.02)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_publish_waits_no_longer_however_many_tasks_read(seed, delay_s, bound_s, tasks):
    """The line is hardly ever idle, and no task gets much less than the others."""
    found = simulate(Line(400_000, random.Random(seed)), of_many(tasks, delay_s))

    assert found.p99_s < 1.6 * bound_s
    assert found.busy > 0.9
    assert found.fairness > 0.4


@pytest.mark.parametrize("rate", [100_000, 1_000_000])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_servers_speed_is_found_out(seed, rate):
    found = simulate(Line(rate, random.Random(seed)), of_many(4, 0.02))

    assert found.p99_s < 0.032
    assert found.busy > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_that_comes_later_gets_its_share(seed):
    found = simulate(
        Line(400_000, random.Random(seed)), of_many(4), 20.0, 12.0, joins_s=[0, 0, 0, 6]
    )

    assert found.p99_s < 0.05
    assert found.fairness > 0.4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_delay_that_is_anothers_is_put_up_with_unless_told_otherwise(seed):
    """Somebody keeps 50 ms of work in the line: nothing that we ask for less makes it shorter."""
    usual = simulate(Line(400_000, random.Random(seed)), of_many(2), foreign=20_000)
    told = simulate(Line(400_000, random.Random(seed)), of_many(2, 0.02), foreign=20_000)

    assert sum(usual.rows.values()) > 20 * sum(told.rows.values())
    assert sum(told.rows.values()) > 0


def test_an_answer_that_is_late_alone_changes_nothing():
    courtesy = Courtesy()
    for _ in range(20):
        courtesy.answered(0.010)
    before = courtesy.messages
    courtesy.answered(0.5)
    courtesy.answered(0.5)
    assert courtesy.messages == before
    courtesy.answered(0.5)
    assert courtesy.messages < before


def test_what_nobody_has_looked_at_is_not_late_for_certain():
    """
    Whoever is away for longer than answers take sees none in time; it asks for fewer until it does.
    """
    courtesy = Courtesy()
    for _ in range(20):
        courtesy.answered(0.010)
    before = courtesy.messages
    for _ in range(3):
        courtesy.answered(0.5, 0.495)
    assert courtesy.messages == before
    courtesy.answered(0.5, 0.495)
    assert courtesy.messages < before


def test_large_messages_are_fewer():
    """What costs time are bytes and messages."""
    small, large = Courtesy(), Courtesy()
    small.count(1_000, 200_000)
    large.count(1_000, 100_000_000)
    assert small.messages > 100 * large.messages >= 100


def test_an_answer_is_timed_from_its_request_without_the_round_trip():
    """
    One that may have waited here is not late for certain, and what nobody waits for is not timed.
    """
    heard: list[tuple[float, float]] = []
    courtesy = Courtesy(0.1)  # bounds from far away, too
    courtesy.answered = lambda took_s, away_s=0.0: heard.append((took_s, away_s))  # type: ignore
    waits = Waits(courtesy)
    waits.asked(100, 10.0, 0.25)
    waits.asked(200, 11.0, 0.25)
    waits.away_s += 0.5
    waits.settle(99, 12.0, 0.25)
    assert heard == []
    waits.settle(150, 12.0, 0.25)
    assert heard == [(1.75, 0.5)]
    waits.forget()
    waits.asked(50, 20.0, 0.25)
    waits.settle(50, 20.125, 0.25)
    assert heard[1:] == [(0.0, 0.0)]


def test_where_nobody_publishes_nobody_waits():
    """
    A read looks for a short time whether its messages become more or fewer. It goes on asking for
    little for some seconds after each time that they do, and always where a user says so.
    """
    default, strict = Waits(Courtesy()), Waits(Courtesy(0.02))
    few = default.limit(10_000, 0.0)
    assert few < 10_000
    for waits in (default, strict):
        waits.found(500, 100.0)
        waits.found(500, 100.04)
        assert waits.limit(10_000, 0.0) < 10_000
        waits.found(500, 100.06)
    assert strict.limit(10_000, 0.0) < 10_000
    for now, messages in ((110.0, 501), (130.0, 400), (150.0, 401)):
        assert default.limit(10_000, 0.0) == 10_000
        default.found(messages, now)  # published, removed, published
        assert default.limit(10_000, 0.0) == few
        default.found(messages, now + 9.9)
        assert default.limit(10_000, 0.0) == few
        default.found(messages, now + 10.1)


def test_what_no_window_bounds_says_nothing_about_it():
    """
    A calm read asks for much, and its answers take long; the window is as it was when somebody
    publishes, for this read and for the next task of the process.
    """
    courtesy = Courtesy()
    waits, few = Waits(courtesy), courtesy.messages
    waits.found(500, 0.0)
    waits.found(500, 1.0)
    for number in range(1, 2_000):
        waits.asked(number, 1.0 + number, 0.0)
        waits.settle(number, 1.03 + number, 0.0)
    assert courtesy.messages == few
    waits.found(501, 3_000.0)
    waits.asked(2_000, 3_000.0, 0.0)
    waits.settle(2_000, 3_000.001, 0.0)
    assert courtesy.messages > few


def test_tasks_of_a_process_share_what_they_know_of_the_publishers():
    """
    Only the first request of a task is bounded where the stream was calm before; where one of them
    has seen a publish, all are bounded.
    """
    courtesy = Courtesy()
    first, second, third = (Waits(courtesy) for _ in range(3))
    first.found(500, 100.0)
    first.found(500, 100.1)
    assert second.limit(10_000, 0.0) < 10_000
    second.found(70, 100.2)
    assert second.limit(10_000, 0.0) == 10_000
    first.found(501, 100.3)
    third.found(30, 105.0)
    third.found(30, 105.1)
    for waits in (first, second, third):
        assert waits.limit(10_000, 0.0) < 10_000
    third.found(30, 110.4)
    assert third.limit(10_000, 0.0) == 10_000
