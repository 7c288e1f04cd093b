"""
What is paused, beside a model of it: the rules of overload.md §4 as they stand there, and random
commands, refusals and PubAcks.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.throttling.throttle import Pause, PausedBy, Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

from ...kits.seeds import SEED

SUBJECTS = ["a.x", "a.y", "b.x", "b.y.z"]
COVERS = {
    ">": SUBJECTS, "a.*": SUBJECTS[:2], "a.x": ["a.x"], "*.x": ["a.x", "b.x"],
    "b.>": SUBJECTS[2:], "b.y.z": ["b.y.z"],
}  # fmt: skip
QUOTA, GROUP, _, BUFFER, SERVER = Reason
REFUSED = {
    10077: (QUOTA, False), 10002: (GROUP, True), 10167: (BUFFER, False), 10210: (BUFFER, False),
    10211: (BUFFER, False), 10023: (SERVER, True), 10028: (SERVER, True), 10047: (SERVER, True),
}  # fmt: skip
"""What the server's refusals mean, and which are about all subjects (§4.5)."""


@dataclass
class Word:
    """The latest word about a filter."""

    filter: str
    since: float
    until: float
    request_id: int


class Model:
    """The rules, one subject at a time."""

    def __init__(self) -> None:
        self.filters: dict[tuple[PausedBy, Reason, str], Word] = {}
        self.latest: dict[tuple[str, PausedBy, Reason], Word] = {}
        """The latest word about each subject (B8)."""
        self.informed: dict[Reason, int] = {}

    def word(
        self, source: PausedBy, reason: Reason, filter: str, pause_s: float, number: int, now: float
    ) -> None:
        """It extends, shortens or lifts what was said of the filter, and about its subjects."""
        if filter == ">":
            for key, other in self.filters.items():
                if key[:2] == (source, reason):
                    other.until = min(other.until, now) if key[2] != ">" else other.until
        before = self.filters.get((source, reason, filter))
        is_open = before is not None and before.until >= now
        since = before.since if before is not None and is_open else now
        said = self.filters[source, reason, filter] = Word(filter, since, now + pause_s, number)
        for subject in COVERS.get(filter, [filter]):
            self.latest[subject, source, reason] = said

    def command(self, said: ThrottleProducer, now: float) -> None:
        """B5, B6: quotas are about the filter, the others about the writer, or explain it."""
        reason, operator = said.reason, PausedBy.OPERATOR
        if reason.is_quota:
            self.word(operator, reason, said.subject, said.pause_s, said.request_id, now)
        elif said.pause_s or any(
            word.until > now for key, word in self.latest.items() if key[1:] == (operator, reason)
        ):
            self.word(operator, reason, ">", said.pause_s, said.request_id, now)
        else:
            self.informed[reason] = said.request_id

    def state(self, subject: str, now: float) -> list[Pause]:
        """B9: all that pauses it, the longest last."""
        found = [
            Pause(source, reason, word.filter, word.since, word.until, word.request_id)
            for (about, source, reason), word in self.latest.items()
            if about == subject and word.until > now
        ]
        return sorted(found, key=lambda pause: pause.until)


class Walk:
    """A throttle, the model, and what happens to both."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now = random.Random(seed), 0.0
        self.one, self.model = Throttle(producer_id=7), Model()
        self.is_exact = seed % 2 == 0
        """Whether each reason has filters of which no two are for one subject."""
        self.paused: list[set[str]] = []
        """The subjects that were paused in each quarter of a second."""

    def command(self, number: int) -> None:
        """An operator's command, for this producer, for all, or for another one."""
        reason = self.rng.choice(list(Reason))
        filters = ["a.*", "b.x", "b.y.z"] if self.is_exact else [*COVERS]
        filter = ">" if self.is_exact and reason is GROUP else self.rng.choice(filters)
        pause_s, producer = self.rng.choice([0.0, 0.5, 2.0, 8.0]), self.rng.choice([None, 7, 7, 8])
        said = ThrottleProducer(number, reason, pause_s, filter, producer)
        receipt = self.one.answer(said, self.now)
        assert (receipt is None) == (producer == 8)
        if receipt is not None:
            assert understand(receipt) == Receipt(number, 7)
            self.model.command(said, self.now)

    def refusal(self) -> None:
        """A refusal by the server."""
        code, subject = self.rng.choice([*REFUSED, 10158]), self.rng.choice(SUBJECTS)
        pause_s = self.rng.choice([0.25, 2.0])
        self.one.refused(code, subject, pause_s, self.now)
        if code in REFUSED:
            reason, is_of_all = REFUSED[code]
            about = ">" if is_of_all else subject
            self.model.word(PausedBy.SERVER, reason, about, pause_s, 0, self.now)

    def check(self) -> None:
        """What is asked of both."""
        one, model, now = self.one, self.model, self.now
        states = {subject: model.state(subject, now) for subject in SUBJECTS}
        mask = one.paused(pa.array(SUBJECTS), now)
        assert (mask or pa.array([False] * 4)).to_pylist() == [bool(states[s]) for s in SUBJECTS]
        for subject, found in states.items():
            state = one.state(subject, now)
            assert state in ([each for each in found if each.until == found[-1].until] or [None])
            by_operators = [each.reason for each in found if each.source is PausedBy.OPERATOR]
            is_subject = bool(by_operators) and all(reason.is_quota for reason in by_operators)
            assert one.is_subject_paused(subject, now) == is_subject
        throttled = {each.subject: each.pause_s for each in one.throttled(SUBJECTS, now)}
        assert throttled == {s: found[-1].until - now for s, found in states.items() if found}
        ends = [word.until for word in model.filters.values() if word.until > now]
        assert one.next_deadline(now) == min(ends, default=math.inf)
        assert one.active(now) == bool(ends)
        assert (one.informed, one.invalid) == (bool(model.informed), 0)
        error = one.error("x.y", now, now)
        assert (error and (error.reason, error.request_id)) == next(
            ((reason.name, number) for reason, number in model.informed.items()), None
        )

    def check_time(self) -> None:
        """For how long a subject was paused, and whether that explains a failure (B15)."""
        since = self.rng.randrange(len(self.paused) + 1)
        spent_s, subject = (len(self.paused) - since) / 4, self.rng.choice(SUBJECTS)
        throttled_s = sum(subject in paused for paused in self.paused[since:]) / 4
        assert self.one.throttled_s(subject, since / 4, self.now) == throttled_s
        is_why = throttled_s > 0.8 * spent_s or bool(self.model.informed)
        assert (self.one.error(subject, since / 4, self.now) is not None) == is_why

    def pass_time(self) -> None:
        for _ in range(self.rng.choice([0, 0, 1, 4, 16])):
            self.paused.append({s for s in SUBJECTS if self.model.state(s, self.now)})
            self.now += 0.25


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_random_walk(seed):
    """
    B2, B5 to B9, B11, B12, B15, B16, B20, and §4.5: whatever is said in whatever order.
    """
    walk = Walk(seed)
    walk.check()
    for number in range(120):
        walk.pass_time()
        match walk.rng.randrange(8):
            case 0 | 1 | 2 | 3:
                walk.command(number)
            case 4 | 5 | 6:
                walk.refusal()
            case _:
                walk.one.acked()
                walk.model.informed.clear()
        walk.check()
        if walk.is_exact:
            walk.check_time()
