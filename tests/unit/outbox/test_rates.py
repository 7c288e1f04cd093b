"""A writer that keeps rates: which rows go when, and what it says of them."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ProducerThrottledError
from pyspark_jetstream.outbox.admission import Admission
from pyspark_jetstream.outbox.messages import sizes
from pyspark_jetstream.outbox.throttling.operators import Operators
from pyspark_jetstream.outbox.throttling.throttle import Pause, PausedBy, Throttle, Wait
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Kept,
    Paused,
    Producer,
    Rates,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

from ...kits.admission import FULL, admission, numbers, pause, rows
from ...kits.options import rules_of
from ...kits.seeds import SEED

QUOTA = Reason.TopicProduceQuotaExceeded
GROUP = Reason.ResourceGroupProduceQuotaExceeded
BROKER = Reason.BrokerProduceQuotaExceeded


def rate(throttle: Throttle, filter: str, msgs: float, now: float = 0.0, **rest) -> None:
    reason, lease_s = rest.get("reason", QUOTA), rest.get("lease_s", 1000.0)
    rates = Rates(msgs, rest.get("nbytes"))
    throttle.command(ThrottleProducer(3, reason, lease_s, filter, None, rates), now)


def limited(text: str, msgs: float = 10.0, **rules) -> tuple[Admission, Throttle]:
    """These rows, offered at 0 under a rate of `a*`."""
    one = admission(rules_of(**rules), throttle=(throttle := Throttle()))
    rate(throttle, "a", msgs)
    one.offer(rows(text), 0.0, FULL)
    return one, throttle


def went(one: Admission, until: float, since: float = 0.0, every_s: float = 0.01) -> dict:
    """The rows that go, and when."""
    times = {}
    for tick in range(round((until - since) / every_s)):
        now = since + tick * every_s
        while (found := numbers(one.take(100, now))) != []:
            times |= dict.fromkeys(found, round(now, 3))
    return times


# ── which rows go ────────────────────────────────────────────────────────────────────────────


def test_b26_rows_of_a_limited_subject_go_at_its_rate():
    """
    B26, I6: in order, a few at a time; rows of other subjects at once.
    """
    one, _ = limited("a b " * 50)
    times = went(one, 10.0)
    of_a = [times[row] for row in sorted(times) if row % 2 == 0]

    assert [times[row] for row in range(1, 100, 2)] == [0.0] * 50
    assert of_a == sorted(of_a)
    assert all(round(after - before, 3) <= 0.11 for before, after in itertools.pairwise(of_a))
    assert len(of_a) == 50
    assert of_a[-1] == pytest.approx(5.0, abs=0.02)


def test_b26_subjects_of_a_filter_share_its_rate():
    """
    B26: whatever rows of them come first; priorities hold among them.
    """
    one = admission(throttle=(throttle := Throttle()))
    rate(throttle, "*", 10.0)
    one.offer(rows("a.l b.l a.l c.c b.n " * 4), 0.0, FULL)
    order = list(went(one, 2.1))

    assert order[:4] == [3, 8, 13, 18]
    assert order[4:8] == [1, 4, 6, 9]  # each normal row draws what is before it on its subject
    assert sorted(order) == list(range(20))


@pytest.mark.parametrize(
    ("quota", "group", "seconds"), [(10.0, 100.0, 5.0), (100.0, 10.0, 5.0), (10.0, 10.0, 5.0)]
)
def test_b26_rates_of_several_reasons_hold_together(quota, group, seconds):
    """
    B8, B26: the tightest one holds.
    """
    one = admission(throttle=(throttle := Throttle()))
    rate(throttle, "a", quota)
    rate(throttle, ">", group, reason=GROUP)
    one.offer(rows("a " * 50), 0.0, FULL)

    assert max(went(one, 10.0).values()) == pytest.approx(seconds, abs=0.02)


def test_b26_a_pause_of_another_reason_holds_all():
    """
    B8, B26: a subject that is paused stands, whatever its rate, and goes on at it.
    """
    one, throttle = limited("a " * 20)
    times = went(one, 0.55)
    pause(throttle, ">", 5.0, 0.55, reason=BROKER)
    paused = went(one, 5.5, 0.55)
    after = went(one, 20.0, 5.5)

    assert (len(times), paused) == (5, {})
    assert min(after.values()) >= 5.55
    assert sorted([*times, *after]) == list(range(20))
    assert max(after.values()) - min(after.values()) > 1.0


def test_b26_the_latest_word_about_a_filter_counts():
    """
    B8, B26: a pause takes a rate's place, and a rate a pause's; 0 lifts both.
    """
    one, throttle = limited("a " * 20)
    before = went(one, 0.5)
    pause(throttle, "a", 60.0, 0.5)
    paused = went(one, 5.0, 0.5)
    rate(throttle, "a", 10.0, 5.0)
    limited_ = went(one, 5.5, 5.0)
    pause(throttle, "a", 0.0, 5.5)

    assert (len(before), paused) == (4, {})
    assert len(limited_) == 4
    assert len(numbers(one.take(100, 5.5))) == 20 - 4 - 4


def test_b26_a_rate_lapses_with_its_controller():
    """
    B26: at the end of its lease all rows go; who says it again in time holds them.
    """
    one = admission(throttle=(throttle := Throttle()))
    for now in (0.0, 4.0):
        rate(throttle, "a", 0.0, now, lease_s=5.0)
    one.offer(rows("a " * 20), 0.0, FULL)
    held = [numbers(one.take(100, now)) for now in (0.0, 4.9, 5.1, 8.9)]
    wakes = one.next_deadline(8.0)

    assert held == [[]] * 4
    assert wakes == 9.0
    assert numbers(one.take(100, 9.0)) == list(range(20))


def test_b26_a_rate_that_lapsed_is_given_anew():
    """
    B26: rows that came meanwhile keep it.
    """
    one, throttle = limited("a " * 5)
    rate(throttle, "a", 10.0, lease_s=1.0)
    went(one, 1.0)
    assert len(numbers(one.take(100, 1.0))) == 0
    one.offer(rows("a " * 20, 5), 1.5, FULL)
    rate(throttle, "a", 10.0, 2.0)

    assert len(went(one, 3.0, 2.0)) in (10, 11, 12)


def test_b26_a_later_rate_holds_from_then_on():
    """
    B26: higher or lower, without a gap or a burst.
    """
    one, throttle = limited("a " * 300)
    for second, msgs in enumerate((10.0, 100.0, 0.0, 20.0)):
        rate(throttle, "a", msgs, float(second))
        count = len(went(one, second + 1.0, float(second)))

        assert count == pytest.approx(msgs, abs=5), second


def test_b26_a_rate_of_bytes():
    """
    B26: bytes are counted about as a stream does.
    """
    one = admission(throttle=(throttle := Throttle()))
    throttle.command(ThrottleProducer(3, QUOTA, 1000.0, "a", None, Rates(None, 10_460.0)), 0.0)
    one.offer(rows("a " * 100, data=b"x" * 999), 0.0, FULL)

    assert max(went(one, 20.0).values()) == pytest.approx(10.0, abs=0.2)


def test_b26_what_was_sent_has_taken_its_part():
    """
    B13, B26: a row that has to go again goes at once, ahead of those that wait for the rate.
    """
    one, throttle = limited("a " * 20)
    first = one.take(100, 0.1)
    throttle.refused(10077, "a", 0.5, 0.2)
    one.give_back(replace(first, sent=pa.array([0.1])), 0.2)
    rate(throttle, "a", 0.0, 0.2)

    assert went(one, 1.0, 0.2) == {0: pytest.approx(0.7, abs=0.011)}


def test_b26_rows_that_are_taken_back_unsent_take_nothing():
    """
    B26: nor do those that turn out to be stored already.
    """
    one, _ = limited("a " * 200, msgs=1000.0)
    first = one.take(100, 0.05)
    one.give_back(first, 0.05)
    again = one.take(100, 0.05)
    one.refund(again, 0.05)

    assert numbers(first) == numbers(again) == list(range(50))
    assert numbers(one.take(100, 0.05)) == list(range(50, 100))
    assert one.take(100, 0.05) is None


def test_b18_rows_that_wait_for_a_rate_do_not_fill_the_queue():
    """
    B18, B26: they have the buffer of paused ones; when that is full the iterator waits.
    """
    text = "a " * 30 + "b " * 5
    size = sizes(rows("a"))[0].as_py()
    one, _ = limited(text, queue_size=20, held_bytes=31 * size)
    before = one.wants_rows(0.0, FULL), one.is_held_full
    one.offer(rows("a", 35), 0.0, FULL)

    assert before == (True, False)
    assert (one.wants_rows(0.0, FULL), one.is_held_full) == (False, True)
    assert numbers(one.take(100, 0.0)) == list(range(30, 35))


def test_a15_rows_that_wait_for_a_rate_are_shed_after_queue_timeout():
    """
    A15, B26: as those of paused subjects are.
    """
    one, _ = limited("a.l " * 20, sheddable=frozenset({2}), queue_timeout_s=1.0)
    times = went(one, 0.95)
    (shed,) = one.expire(1.0)

    assert shed.reason == "QueueTimeout"
    assert sorted([*times, *numbers(shed.rows)]) == list(range(20))
    assert len(times) == pytest.approx(9, abs=1)


# ── how long a row may wait ──────────────────────────────────────────────────────────────────


def test_b14_rows_that_go_slowly_stand_not_still():
    """
    B14, B26: a batch that takes longer than `throttleMaxWait` at its rate is stored all the same.
    """
    one, _ = limited("a " * 100, msgs=0.5, throttle_max_wait_s=10.0)
    times = {}
    for second in range(400):
        times |= dict.fromkeys(numbers(one.take(100, float(second))), second)
        one.expire(float(second))

    assert sorted(times) == list(range(100))
    assert max(times.values()) == pytest.approx(200, abs=3)


def test_b14_a_row_waits_for_its_rate_no_longer_than_for_a_pause():
    """
    B14, B15, B26: where nothing goes for `throttleMaxWait`, it fails as if it were paused, and says
    by what.
    """
    one, throttle = limited("a " * 3, throttle_max_wait_s=60.0)
    one.take(100, 0.15)
    rate(throttle, "a", 0.0, 0.15)
    one.take(100, 0.15)
    one.expire(59.0)
    deadline = one.next_deadline(59.0)
    one.expire(60.0)

    with pytest.raises(ProducerThrottledError) as raised:
        one.expire(60.2)
    assert deadline == pytest.approx(60.15)
    error = raised.value
    assert (error.subject, error.reason, error.subject_filter) == ("a", QUOTA.name, "a")
    assert error.request_id == 3
    assert error.throttled_for == pytest.approx(60.05, abs=0.1)


@pytest.mark.parametrize(("msgs", "fails_at"), [(0.35, 8.7), (0.01, 0.5), (0.0, 0.5)])
def test_b14_failing_fast(msgs, fails_at):
    """
    B14, B26: time for a rate counts against `publishTimeout`, and a row whose rate would let it go
    only later fails at once.
    """
    one, _ = limited("a " * 5, msgs, publish_timeout_s=10.0, throttle_max_wait_s=0.0)
    failed = None
    for tick in range(5, 200):
        now = tick / 10
        one.take(100, now)
        try:
            one.expire(now)
        except ProducerThrottledError:
            failed = failed or now

    assert failed == fails_at


# ── what it says ─────────────────────────────────────────────────────────────────────────────


def test_b26_a_subject_is_throttled_while_rows_wait_for_its_rate():
    """
    B16, B26: not by the rate alone; the time counts as paused (B15).
    """
    one, throttle = limited("", msgs=10.0)
    idle = throttle.state("a", 0.0), throttle.snapshot(0.0), list(throttle.throttled(["a"], 0.0))
    one.offer(rows("a " * 4), 1.0, FULL)
    one.take(100, 1.0)  # the bucket holds two and a half
    waiting = throttle.state("a", 1.0)
    listed = list(throttle.throttled(["a", "b"], 1.0))
    is_paused = throttle.snapshot(1.0)
    went(one, 2.0, 1.01)

    assert idle == (None, None, [])
    assert waiting == Pause(PausedBy.OPERATOR, QUOTA, "a", 1.0, 1000.0, 3)
    assert listed == [Paused("a", QUOTA, 999.0, "a", "operator", 3)]
    assert (is_paused("a"), is_paused("b"), throttle.is_paused("a", 1.0)) == (True, False, False)
    assert throttle.state("a", 2.0) is None
    assert throttle.throttled_s("a", 0.0, 2.0) == pytest.approx(0.15, abs=0.02)
    assert throttle.waits == [Wait(QUOTA, "a", 999.0), Wait(QUOTA, "a", 0.0)]


def operators_of(*told: ThrottleProducer, before: Operators | None = None, now: float = 0.0):
    found = Operators("control", 7, now, before)
    for each in told:
        found.heard(each.encode(), now)
    return found


def command(msgs: float, request_id: int = 3, filter: str = "a") -> ThrottleProducer:
    return ThrottleProducer(request_id, QUOTA, 5.0, filter, 7, Rates(msgs))


def test_b26_a_rate_has_a_receipt():
    """
    B12, B26: as a pause has; and discovery is told of it.
    """
    operators = operators_of()
    said, receipt = operators.heard(command(10.0).encode(), 0.0)
    _, data = operators.heard(DISCOVER, 0.0)

    assert said == command(10.0)
    assert understand(receipt) == Receipt(3, 7)
    assert understand(data).rates == (Kept("a", QUOTA, Rates(10.0)),)


def test_b26_a_writer_says_when_rows_begin_to_wait():
    """
    B26: at once, and not again while they do; no more often than ten times a second; what it
    publishes stands beside it.
    """
    operators = operators_of(command(10.0))
    one = Admission(rules_of(), operators.throttle)
    quiet = operators.word(0.0)
    one.offer(rows("a " * 4), 0.0, FULL)
    one.take(100, 0.0)
    word = operators.word(0.0)
    again = [operators.word(now) for now in (0.0, 0.2)]
    went(one, 0.5)
    one.offer(rows("a " * 9, 4), 0.9, FULL)
    one.take(100, 0.9)

    assert (quiet, again) == (None, [None, None])
    assert understand(word) == Producer(
        7, True, supports_rate=True, rates=(Kept("a", QUOTA, Rates(10.0), 0, 0, "msg"),)
    )
    assert operators.next_deadline(0.9) == math.inf  # it is known to wait until discovery asks
    operators.heard(DISCOVER, 0.6)


def test_b26_words_keep_their_distance():
    """
    B26: what is to be said a moment after another word is said when its time has come.
    """
    operators = operators_of(command(0.0), command(0.0, 4, "b"))
    one = Admission(rules_of(), operators.throttle)
    one.offer(rows("a"), 0.0, FULL)
    one.take(1, 0.0)
    first = operators.word(0.0)
    one.offer(rows("b", 1), 0.01, FULL)
    one.take(1, 0.01)

    assert first is not None
    assert operators.word(0.01) is None
    assert operators.next_deadline(0.01) == pytest.approx(0.1)
    assert [each.filter for each in understand(operators.word(0.1)).rates] == ["a", "b"]


def test_b26_a_writer_that_ends_gives_up_its_share():
    """
    B26: if operators think that rows wait; else there is nothing to say.
    """
    operators = operators_of(command(0.0))
    one = Admission(rules_of(), operators.throttle)
    silent = operators.word(0.0, ends=True)
    one.offer(rows("a"), 0.0, FULL)
    one.take(1, 0.0)
    operators.word(0.5)
    last = operators.word(0.6, ends=True)

    assert silent is None
    assert [each.waiting_for for each in understand(last).rates] == [""]


def test_b26_the_next_task_of_a_process_keeps_the_rate():
    """
    B7, B26: until its lease ends; what the task before has published counts, and none of the time
    between the two brings anything.
    """
    first = operators_of(command(10.0))
    one = Admission(rules_of(), first.throttle)
    one.offer(rows("a " * 9), 0.0, FULL)
    before = went(one, 0.35)
    second = operators_of(before=first, now=0.6)
    two = Admission(rules_of(), second.throttle)
    two.offer(rows("a " * 9), 0.6, FULL)
    after = went(two, 1.02, 0.6)

    assert (len(before), len(after)) == (3, 4)
    assert min(after.values()) == pytest.approx(0.70, abs=0.02)
    assert second.throttle.kept(1.02)[0].msg_in_counter == 4
    assert operators_of(before=second, now=5.0).throttle.kept(5.0) == ()


def test_b26_more_than_32_rates():
    """
    B26: those that rows wait for are listed first.
    """
    operators = operators_of(*(command(0.0, n, f"s{n}") for n in range(40)))
    one = Admission(rules_of(), operators.throttle)
    one.offer(rows("s39"), 0.0, FULL)
    one.take(1, 0.0)
    found = understand(operators.word(0.0)).rates

    assert len(found) == 32
    assert (found[0].filter, found[0].waiting_for) == ("s39", "msg")


# ── all of it ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(SEED, SEED + 15))
def test_b26_random_rates_and_pauses(seed):
    """
    B26, I1, I5, I6: whatever comes when, each row goes once, in order within its subject; under a
    rate no more of a filter go than it allows, and none while it is paused.
    """
    rng = random.Random(seed)
    one = admission(
        rules_of(throttle_max_wait_s=1e9), throttle=(throttle := Throttle(rng.randrange(997)))
    )
    filters = {"a": "a", "b": "b", "*": "abc"}
    allowed = defaultdict(lambda: math.inf)  # of each filter, so many may have gone
    gone: Counter[str] = Counter()
    subject, order, total, now = {}, defaultdict(list), 0, 0.0
    current: dict[str, float] = {}
    plain = rng.random() < 0.5
    for _ in range(400):
        step = rng.choice([0.0, 0.01, 0.05, 0.3])
        for filter, msgs in current.items():
            allowed[filter] += msgs * step
        now += step
        event = rng.random()
        if event < 0.3:
            words = rng.choices("abcd", k=rng.randint(1, 30))
            letters = ["n"] * len(words) if plain else rng.choices("cnl", k=len(words))
            text = " ".join(map(".".join, zip(words, letters, strict=True)))
            one.offer(rows(text, total), now, FULL)
            subject |= dict(enumerate(words, total))
            total += len(words)
        elif event < 0.9:
            taken = one.take(rng.randint(1, 40), now)
            found = numbers(taken)
            if found and rng.random() < 0.1:
                one.give_back(taken, now)
                found = []
            for row in found:
                assert not throttle.is_paused(subject[row], now), seed
                order[subject[row]].append(row)
            gone.update(subject[row] for row in found)
        elif event < 0.97:
            filter, msgs = rng.choice([*filters]), rng.choice([0.0, 3.0, 40.0])
            if filter not in current:  # from now on; what is kept is a quarter of a second's worth
                allowed[filter] = sum(gone[each] for each in filters[filter]) + 1.0
            allowed[filter] += msgs * 0.25 + 1.0
            for other in [each for each in current if each != filter]:
                if {other, filter} != {"a", "b"}:  # another word about its subjects
                    del current[other]
                    allowed[other] = math.inf
            current[filter] = msgs
            rate(throttle, filter, msgs, now)
        else:
            pause(throttle, rng.choice("abc*"), rng.choice([0.2, 1.0]), now, reason=GROUP)
        for filter, count in allowed.items():
            assert sum(gone[each] for each in filters[filter]) <= count, (seed, filter)
        assert one.offered - sum(gone.values()) == one.waiting, seed
    pause(throttle, ">", 0.0, now + 10.0)
    for row in went(one, now + 10.1, now + 10.0):
        order[subject[row]].append(row)

    assert sorted(row for lane in order.values() for row in lane) == list(range(total))
    if plain:
        assert all(lane == sorted(lane) for lane in order.values()), seed
