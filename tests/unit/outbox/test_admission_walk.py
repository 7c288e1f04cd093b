"""
Admission beside a model of it, row by row: the rules of overload.md as they stand there, and random
events. Every row that goes or is shed, and every answer of the queue, is the model's.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import QueueTimeoutError
from pyspark_jetstream.outbox.admission import Admission, Leaving, Rules
from pyspark_jetstream.outbox.messages import Messages, sizes
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason

from ...kits.lanes import messages
from ...kits.options import rules_of
from ...kits.seeds import SEED
from .test_admission import NON_CRITICAL, NORMAL, numbers, pause

STREAMS = {"a": 0, "b": 1, "c": None, "d": 0, "e": None}
"""The place of each subject's stream; None for one that is not known."""
SHEDDABLE = [frozenset(), {NON_CRITICAL}, {NORMAL, NON_CRITICAL}]
SIZE = sizes(messages(["a"], [b""], ids=False))[0].as_py()
"""Bytes of an empty row; all sizes and capacities are multiples of it, so that they are met."""


@dataclass(eq=False)
class Row:
    """A row of the model, and what is told of it."""

    number: int
    subject: str
    priority: Priority
    size: int
    came: float


class Model:
    """The rules, one row at a time."""

    def __init__(self, rules: Rules, throttle: Throttle, plain: bool) -> None:
        self.rules, self.throttle, self.plain = rules, throttle, plain
        self.waiting: list[Row] = []
        self.orders: list[list[Row]] = []
        """What may have been worked out for rows that did not fit; holds until others come."""
        self.pushed: dict[int | None, float] = {}

    def parts(self, now: float) -> tuple[list[Row], list[Row]]:
        """Rows in the queue and held ones (B10, B18), as they came."""
        self.waiting.sort(key=lambda row: row.number)
        held = [row for row in self.waiting if self.throttle.is_paused(row.subject, now)]
        return [row for row in self.waiting if row not in held], held

    # ── order (§7) ───────────────────────────────────────────────────────────────────────────

    def in_order(self, rows: list[Row]) -> list[Row]:
        """A10, and rules 1 to 4: classes; of a class, subjects in turns."""
        if self.plain:
            return rows
        if not self.rules.by_subject:
            return sorted(rows, key=lambda row: row.priority)
        turns: Counter[tuple[str, Priority]] = Counter()
        keys = {}
        for at, row in enumerate(rows):
            kind = min(each.priority for each in rows[at:] if each.subject == row.subject)
            keys[row] = kind, turns[row.subject, kind]
            turns[row.subject, kind] += 1
        return sorted(rows, key=keys.__getitem__)

    def next(self, maximum: int, now: float) -> list[list[Row]]:
        """What may be taken: as the order is, or as it was worked out before."""
        free, _ = self.parts(now)
        fits = self.plain or len(free) <= maximum
        return [free if fits else self.in_order(free), *self.orders]

    # ── overload ─────────────────────────────────────────────────────────────────────────────

    def over(self, now: float) -> tuple[int, int]:
        """How many rows and bytes there are above the capacity (A9, A11)."""
        free, _ = self.parts(now)
        rows = len(free) - self.rules.queue_size
        return rows, sum(row.size for row in free) - self.rules.queue_bytes

    def is_late(self, at: float, now: float) -> bool:
        return now - at <= self.rules.overload_window_s

    def pressed(self, row: Row, now: float) -> bool:
        """A12, B6: whether its stream pushes back."""
        at = self.pushed.get(STREAMS[row.subject], -math.inf)
        return bool(self.throttle.table.informed) or self.is_late(at, now)

    def is_felt(self, now: float) -> bool:
        times = [*self.pushed.values()]
        return bool(self.throttle.table.informed) or any(self.is_late(at, now) for at in times)

    def is_overloaded(self, now: float, is_full: bool) -> bool:
        """A12: all three."""
        return is_full and max(self.over(now)) >= 0 and self.is_felt(now)

    def may_go(self, row: Row) -> bool:
        """A13, I1, I2."""
        return row.priority in self.rules.sheddable

    def shed(self, rows: list[Row], reason: str) -> list[tuple[list[int], str]]:
        rows.sort(key=lambda row: row.number)
        self.waiting = [row for row in self.waiting if row not in rows]
        return [([row.number for row in rows], reason)] if rows else []

    def room(self, now: float, is_full: bool) -> list[tuple[list[int], str]]:
        """A13, A14, A26: the newest of the least urgent leave, no more than are too many."""
        if not self.rules.sheddable or not self.is_overloaded(now, is_full):
            return []
        over_rows, over_bytes = self.over(now)
        free, _ = self.parts(now)
        found: list[Row] = []
        for row in sorted(free, key=lambda row: (-row.priority, -row.number)):
            enough = len(found) >= over_rows and sum(each.size for each in found) >= over_bytes
            if not enough and self.pressed(row, now) and self.may_go(row):
                found.append(row)
        reason = "MaxConcurrentRequests" if over_rows > 0 else "MaxMemoryUsage"
        return self.shed(found, reason)

    def is_held_full(self, now: float) -> bool:
        """B18: to the byte."""
        _, held = self.parts(now)
        return sum(row.size for row in held) >= self.rules.held_bytes

    def wants_rows(self, now: float, is_full: bool) -> bool:
        """A9, A13, B18."""
        if self.is_held_full(now):
            return False
        over = max(self.over(now))
        can = over == 0 and bool(self.rules.sheddable) and self.is_overloaded(now, is_full)
        return over < 0 or can

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def timed_out(self, now: float) -> list[Row]:
        """A15: those that waited for too long."""
        before = now - self.rules.queue_timeout_s
        return [row for row in self.waiting if row.came <= before]

    def give_up(self, late: Row, now: float) -> list[tuple[list[int], str]]:
        """A13: what waits for the stream that has refused this one for most of its time."""
        own = [row for row in self.waiting if STREAMS[row.subject] == STREAMS[late.subject]]
        may = [row for row in own if self.may_go(row) and self.pressed(row, now)]
        return self.shed(may if self.may_go(late) else [], "") or [([], "")]

    def next_deadline(self, now: float) -> float:
        """B11."""
        if not self.waiting:
            return math.inf
        late = min(row.came for row in self.waiting) + self.rules.queue_timeout_s
        return min(self.throttle.next_deadline(now), late if late > now else math.inf)

    def text(self, now: float) -> str:
        free, held = map(len, self.parts(now))
        return f"<Admission {free} queued; {held} held>"


class Walk:
    """A queue, the model, and what happens to both."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.rules = rules_of(
            queue_size=rng.choice([20, 24, 10_000]),
            queue_bytes=SIZE * rng.choice([24, 1 << 20]),
            held_bytes=SIZE * rng.choice([4, 60]),
            sheddable=frozenset(rng.choice(SHEDDABLE)),
            overload_window_s=rng.choice([0.5, 1.0, 4.0]),
            queue_timeout_s=rng.choice([2.0, math.inf, math.inf]),
            throttle_max_wait_s=1e9,
            by_subject=rng.random() < 0.8,
        )
        self.throttle = Throttle()
        self.one = Admission(self.rules, self.throttle)
        self.plain = rng.random() < 0.2
        self.model = Model(self.rules, self.throttle, self.plain)
        self.now, self.total, self.back, self.acked, self.taken, self.gone = 0.0, 0, 0, 0, 0, 0
        self.flying: dict[Row, Messages] = {}

    def is_window_full(self) -> bool:
        return self.rng.random() < 0.75

    def check_shed(self, found: list[Leaving], expected: list[tuple[list[int], str]]) -> None:
        assert [(numbers(each.rows), each.reason) for each in found] == expected
        self.gone += sum(len(each.rows) for each in found)

    def offer(self) -> None:
        rng, model = self.rng, self.model
        subjects = rng.choices("abcde", k=rng.choice([0, 1, 3, 30]))
        kinds = [NORMAL] if self.plain else [*Priority, NON_CRITICAL]
        priorities = rng.choices(kinds, k=len(subjects))
        counts = rng.choices([1, 1, 1, 3], k=len(subjects))
        data = [b"." * SIZE * (count - 1) for count in counts]
        made = messages(subjects, data, first=self.total, ids=False)
        targets = pa.array([STREAMS[subject] for subject in made.distinct], pa.int32())
        column = None if self.plain else pa.array(priorities, pa.int8())
        made = replace(made, targets=targets, priorities=column)
        for number, count in enumerate(counts):
            row = self.total + number, subjects[number], priorities[number]
            model.waiting.append(Row(*row, size=SIZE * count, came=self.now))
        self.total += len(subjects)
        model.orders = []
        is_full = self.is_window_full()
        found = self.one.offer(made, self.now, is_full)
        self.check_shed(found, model.room(self.now, is_full))

    def take(self) -> None:
        """A few of them, once or till there is no more."""
        maximum = self.rng.choice([0, 1, 2, 7, 7, 100])
        for _ in range(self.rng.choice([1, 1, 100])):
            expected = self.model.next(maximum, self.now)
            taken = self.one.take(maximum, self.now)
            found = numbers(taken)
            count = len(found) if self.plain else min(maximum, len(expected[0]))
            assert bool(found) == bool(maximum and expected[0])
            assert len(found) <= maximum
            fitting = [each for each in expected if [row.number for row in each[:count]] == found]
            assert fitting
            if taken is None:
                return
            self.taken += len(taken)
            rows = fitting[0][:count]
            self.model.orders = [each[count:] for each in fitting if each[count:]]
            self.model.waiting = [row for row in self.model.waiting if row not in rows]
            assert taken.since.to_pylist() == [row.came for row in rows]
            self.flying |= {row: taken.slice(at, 1) for at, row in enumerate(rows)}

    def answer(self) -> None:
        """Some are sent, some come back (I5)."""
        rows = self.rng.sample([*self.flying], k=self.rng.randint(0, len(self.flying)))
        back = [row for row in rows if self.rng.random() < 0.5]
        parts = [self.flying[row] for row in back]
        self.flying = {row: part for row, part in self.flying.items() if row not in rows}
        self.acked += len(rows) - len(back)
        self.model.waiting += back
        if parts:
            self.back += len(parts)
            self.model.orders = []
            self.one.give_back(Messages.joined(parts), self.now)

    def word(self) -> None:
        """By an operator or by the server, about a subject or about everything."""
        rng, now, throttle = self.rng, self.now, self.throttle
        match rng.randrange(6):
            case 0:
                filter, pause_s = rng.choice([*"abcde", ">"]), rng.choice([0.0, 0.5, 3.0])
                pause(throttle, filter, pause_s, now)
            case 1:
                throttle.refusals.refuse(rng.choice("abcde"), (10077, "full", True), "", now, now)
            case 2:
                pause(throttle, "a", 0.0, now, reason=Reason.MessageBufferSizeBreach)
            case 3:
                throttle.table.acked()
            case _:
                place, at = rng.choice([0, 1, None]), now + rng.choice([-0.5, 0.0, 1.0])
                self.one.overload.pushed_back(place, at)
                self.model.pushed[place] = max(at, self.model.pushed.get(place, at))

    def expire(self) -> bool:
        """Whether the write is over."""
        is_full = self.is_window_full()
        try:
            found = self.one.expire(self.now, is_full)
        except QueueTimeoutError as error:
            self.model.room(self.now, is_full)
            late = self.model.timed_out(self.now)
            first = next(row for row in late if not self.model.may_go(row))
            waited = f"{self.now - first.came:.1f}s after it was there"
            assert f"'{first.subject}': row {first.number}:" in str(error) and waited in str(error)
            return True
        expected = self.model.room(self.now, is_full)
        late = self.model.timed_out(self.now)
        assert all(map(self.model.may_go, late))
        self.check_shed(found, [*expected, *self.model.shed(late, "QueueTimeout")])
        return False

    def step(self) -> bool:
        """Something happens; whether the write is over."""
        one, model, rng = self.one, self.model, self.rng
        event = rng.choice(["offer", "offer", "take", "answer", "word", "word", "expire", "late"])
        self.now += rng.choice([0.0, 0.0625, 0.375, 1.0])
        if event == "expire" and rng.random() < 0.7:  # when it is due, to the moment
            self.now = max(self.now, min(model.next_deadline(self.now), self.now + 4.0))
        one.take(0, self.now)  # a turn begins with it, which sees what is paused now
        if event == "expire" and self.expire():
            return True
        if event == "late" and self.flying:
            row, late = rng.choice([*self.flying.items()])
            gone = Leaving(one.give_up(late, self.now), "")
            self.check_shed([gone], model.give_up(row, self.now))
        if event in ("offer", "take", "answer", "word"):
            getattr(self, event)()
        one.take(0, self.now)
        is_full = self.is_window_full()
        assert one.wants_rows(self.now, is_full) == model.wants_rows(self.now, is_full)
        assert one.waiting == len(model.waiting)
        assert one.next_deadline(self.now) == pytest.approx(model.next_deadline(self.now))
        assert one.offered + self.back == self.taken + self.gone + one.waiting
        assert self.gone + one.waiting + len(self.flying) + self.acked == self.total == one.offered
        if rng.random() < 0.2:
            assert repr(one) == model.text(self.now)
        return False


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_random_walk(seed):
    """A8 to A15, A24, A26, B5, B6, B10, B11, B18, I1 to I7, and the rules of §7."""
    walk = Walk(seed)
    for _ in range(200):
        if walk.step():
            return
