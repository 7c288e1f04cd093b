"""
Admission beside a model of it, row by row: the rules of overload.md as they stand there, and random
events. Every row that goes or is shed, and every answer of the queue, is the model's.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import cycle, islice

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_jetstream.errors import QueueTimeoutError
from pyspark_jetstream.outbox.admission import Admission, Leaving, Rules
from pyspark_jetstream.outbox.messages import Messages, sizes
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason

from ...kits.lanes import messages
from ...kits.options import rules_of
from ...kits.seeds import examples
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
        paused = [each for each in STREAMS if self.throttle.is_paused(each, now)]
        held = [row for row in self.waiting if row.subject in paused]
        return [row for row in self.waiting if row.subject not in paused], held

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


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from([NON_CRITICAL, *Priority]),
        st.sampled_from([1, 1, 1, 3]),
    )
)
RULES = st.builds(
    rules_of,
    queue_size=st.sampled_from([20, 20, 24, 10_000]),
    queue_bytes=st.sampled_from([24 * SIZE, SIZE << 20]),
    held_bytes=st.sampled_from([4 * SIZE, 60 * SIZE]),
    sheddable=st.sampled_from(SHEDDABLE),
    overload_window_s=st.sampled_from([0.5, 1.0, 4.0]),
    queue_timeout_s=st.sampled_from([math.inf, math.inf, 2.0]),
    throttle_max_wait_s=st.just(1e9),
    by_subject=st.sampled_from([True, True, False]),
)
IS_FULL = st.sampled_from([True, True, False])
WAITS_S = st.lists(st.sampled_from([0.0, 0.0, 0.0625, 0.375, 1.0]), min_size=1)


class Walk(RuleBasedStateMachine):
    """
    A8 to A15, A24, A26, B5, B6, B10, B11, B18, I1 to I7, and the rules of §7: a queue, the model,
    and what happens to both.
    """

    @initialize(rules=RULES, plain=st.sampled_from([False, False, False, True]), waits_s=WAITS_S)
    def begin(self, rules: Rules, plain: bool, waits_s: list[float]) -> None:
        self.waits_s = cycle(waits_s)
        self.begin_anew(rules, plain)

    def begin_anew(self, rules: Rules, plain: bool) -> None:
        self.throttle = Throttle()
        self.one = Admission(rules, self.throttle)
        self.model = Model(rules, self.throttle, plain)
        self.now, self.total, self.back, self.acked, self.taken, self.gone = 0.0, 0, 0, 0, 0, 0
        self.flying: dict[Row, Messages] = {}

    def check_shed(self, found: list[Leaving], expected: list[tuple[list[int], str]]) -> None:
        assert [(numbers(each.rows), each.reason) for each in found] == expected
        self.gone += sum(len(each.rows) for each in found)

    @rule(rows=ROWS, is_full=IS_FULL)
    def offer(self, rows: list[tuple[str, Priority, int]], is_full: bool) -> None:
        model = self.model
        subjects, priorities, counts = zip(*rows, strict=True) if rows else ((), (), ())
        priorities = [NORMAL] * len(rows) if model.plain else priorities
        data = [b"." * SIZE * (count - 1) for count in counts]
        made = messages(subjects, data, first=self.total, ids=False)
        targets = pa.array([STREAMS[subject] for subject in made.distinct], pa.int32())
        column = None if model.plain else pa.array(priorities, pa.int8())
        made = replace(made, targets=targets, priorities=column)
        for number, count in enumerate(counts):
            row = self.total + number, subjects[number], priorities[number]
            model.waiting.append(Row(*row, size=SIZE * count, came=self.now))
        self.total += len(rows)
        model.orders = []
        found = self.one.offer(made, self.now, is_full)
        self.check_shed(found, model.room(self.now, is_full))

    @rule(rows=ROWS, more=st.sampled_from([0, 0, 1, 5]), is_full=IS_FULL)
    def fill(self, rows: list[tuple[str, Priority, int]], more: int, is_full: bool) -> None:
        """Offers as many as there is room for, or more."""
        room = min(60, self.model.rules.queue_size) - len(self.model.parts(self.now)[0])
        self.offer([*islice(cycle(rows), max(0, room + more))], is_full)

    @rule(maximum=st.sampled_from([1, 2, 7, 100, 0]), times=st.sampled_from([1, 1, 100]))
    def take(self, maximum: int, times: int) -> None:
        """A few of them, once or till there is no more."""
        for _ in range(times):
            expected = self.model.next(maximum, self.now)
            taken = self.one.take(maximum, self.now)
            found = numbers(taken)
            count = len(found) if self.model.plain else min(maximum, len(expected[0]))
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

    @precondition(lambda self: self.flying)
    @rule(answers=st.lists(st.sampled_from("back acked none".split()), min_size=1, max_size=9))
    def answer(self, answers: list[str]) -> None:
        """Some are sent, some come back in any order (I5)."""
        said = dict(zip(self.flying, cycle(answers)))
        back = [row for row in said if said[row] == "back"]
        back.sort(key=lambda row: row.number * 7 % 10)
        parts = [self.flying[row] for row in back]
        self.flying = {row: part for row, part in self.flying.items() if said[row] == "none"}
        self.acked += len(said) - len(back) - len(self.flying)
        self.model.waiting += back
        if parts:
            self.back += len(parts)
            self.model.orders = []
            self.one.give_back(Messages.joined(parts), self.now)

    @rule(filter=st.sampled_from("abcde>"), pause_s=st.sampled_from([None, 0.5, 3.0, 0.0]))
    def pause(self, filter: str, pause_s: float | None) -> None:
        """By an operator; or the server refuses a subject."""
        if pause_s is None:
            refused = filter.replace(">", "a"), (10077, "full", True), ""
            self.throttle.refusals.refuse(*refused, self.now, self.now)
        else:
            pause(self.throttle, filter, pause_s, self.now)

    @rule(
        who=st.sampled_from([0, 1, None, "all", "none", 0, 1]),
        later_s=st.sampled_from([0.0, -0.5, 1.0]),
    )
    def push_back(self, who: int | str | None, later_s: float) -> None:
        """By a stream, or one that is not known; or all are overloaded, or, says a PubAck, none."""
        at = self.now + later_s
        if who == "all":
            pause(self.throttle, "a", 0.0, self.now, reason=Reason.MessageBufferSizeBreach)
        elif who == "none":
            self.throttle.table.acked()
        else:
            self.one.overload.pushed_back(who, at)
            self.model.pushed[who] = max(at, self.model.pushed.get(who, at))

    @rule(is_full=IS_FULL, is_due=st.sampled_from([True, True, False]))
    def expire(self, is_full: bool, is_due: bool) -> None:
        """When it is due, to the moment; where a row that may not go is late, the write is over."""
        if is_due:
            self.now = max(self.now, min(self.model.next_deadline(self.now), self.now + 4.0))
            self.one.take(0, self.now)  # a turn begins with it, which sees what is paused now
        try:
            found = self.one.expire(self.now, is_full)
        except QueueTimeoutError as error:
            self.model.room(self.now, is_full)
            late = self.model.timed_out(self.now)
            first = next(row for row in late if not self.model.may_go(row))
            waited = f"{self.now - first.came:.1f}s after it was there"
            assert f"'{first.subject}': row {first.number}:" in str(error) and waited in str(error)
            self.begin_anew(self.model.rules, self.model.plain)
            return
        expected = self.model.room(self.now, is_full)
        late = self.model.timed_out(self.now)
        assert all(map(self.model.may_go, late))
        self.check_shed(found, [*expected, *self.model.shed(late, "QueueTimeout")])

    @precondition(lambda self: self.flying)
    @rule(place=st.integers(0, 99))
    def give_up(self, place: int) -> None:
        row, late = [*self.flying.items()][place % len(self.flying)]
        gone = Leaving(self.one.give_up(late, self.now), "")
        self.check_shed([gone], self.model.give_up(row, self.now))

    @invariant()
    def both_say_the_same(self) -> None:
        """Some time later."""
        one, model = self.one, self.model
        self.now += next(self.waits_s)
        one.take(0, self.now)
        for is_full in (True, False):
            assert one.wants_rows(self.now, is_full) == model.wants_rows(self.now, is_full)
        assert one.waiting == len(model.waiting)
        assert one.next_deadline(self.now) == pytest.approx(model.next_deadline(self.now))
        assert one.offered + self.back == self.taken + self.gone + one.waiting
        left = one.waiting + len(self.flying)
        assert self.gone + left + self.acked == self.total == one.offered
        assert repr(one) == model.text(self.now)


test_any_walk = Walk.TestCase
test_any_walk.settings = settings(examples(60), stateful_step_count=50)
