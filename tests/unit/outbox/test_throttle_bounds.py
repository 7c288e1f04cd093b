"""I7: what a writer remembers of pauses is bounded, and so is what a word about them costs."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.throttling.throttle import PausedBy, Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import understand
from pyspark_jetstream.publish.telemetry import Telemetry

from ...kits.admission import IDLE, admission, pause, rows
from .test_throttle import GROUP, QUOTA, command


def test_i7_windows_are_bounded():
    """
    I7: more filters than can be kept have no receipt; those that are over make room.
    """
    throttle = Throttle()
    for number in range(1_000):
        throttle.command(command(f"a.{number}", 1.0), 0.0)
    for number in range(10_000):
        throttle.refused(10077, f"c.{number}", 1.0, 0.0)
    refused = throttle.answer(command("b", 1.0), 0.5)
    other = throttle.answer(command("b", 1.0, GROUP), 0.5)
    throttle.refused(10077, "b", 1.0, 0.5)
    assert throttle.state("b", 0.5, [PausedBy.SERVER]) is None
    later = throttle.answer(command("b", 1.0), 2.0)

    assert (refused, throttle.invalid) == (None, 1)
    assert other and later
    assert throttle.state("b", 2.5).reason is QUOTA


def shaped(number: int, tokens: int = 6) -> str:
    """A filter with wildcards in places of its own."""
    return ".".join("*" if number >> place & 1 else "a" for place in range(tokens))


def test_i7_shapes_of_filters_are_bounded(caplog):
    """
    I7: filters with wildcards in more than 32 different places have no receipt, any number of those
    with wildcards in the same places has one. The first without is told, and what to do.
    """
    throttle = Throttle()
    given = [throttle.answer(command(shaped(n), 9.0), 0.0) for n in range(1, 41)]
    alike = [throttle.answer(command(f"a.{n}.*.a.a.a", 9.0), 0.0) for n in range(100)]
    literal = throttle.answer(command("a.b", 9.0), 0.0)

    assert [answer is not None for answer in given] == [True] * 32 + [False] * 8
    assert all(alike) and literal
    assert throttle.invalid == 8
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"the pause of '{shaped(33)}' is refused" in told
    assert "in 32 different ways, and 32 may be. Pause one wider filter instead ('>'" in told


@pytest.mark.parametrize("pause_s", [60.0, 0.0])
@pytest.mark.parametrize("name", ["a.{}", "a.{}.*", "shaped"])
def test_i7_a_word_about_all_subjects_is_always_heard(name, pause_s):
    """
    I7: however many filters are paused, `>` pauses or lifts all; nothing depends on them any more,
    so they make room for what comes.
    """
    throttle = Throttle()
    for number in range(2_000):
        filter = shaped(number % 64) if name == "shaped" else name.format(number)
        throttle.answer(command(filter, 86_400.0), 0.0)
    all_of_it = throttle.answer(command(">", pause_s), 1.0)
    then = throttle.answer(command("a.new.*", 9.0), 2.0)

    assert all_of_it and then
    assert throttle.invalid > 0
    assert (throttle.state("a.7.b", 3.0) is not None) is (pause_s > 0)
    assert throttle.state("a.new.b", 3.0).filter == "a.new.*"


def calls_of(work) -> int:
    """How many functions are called."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("wild", [True, False])
def test_i7_what_a_word_costs_does_not_grow_with_the_filters(wild):
    """
    I7: a command, the look at a subject and the count of it take as many calls when a thousand
    other filters are paused as when there are two hundred, and so do commands of which there are
    too many, and lifts in whatever order.
    """
    throttle, telemetry = Throttle(), Telemetry()
    said = [f"a.{number}.*" if wild else f"a.{number}" for number in range(1_400)]

    def say(numbers, pause_s):
        for number in numbers:
            throttle.answer(command(said[number], pause_s), number * 0.001)
            throttle.active(number * 0.001)
            throttle.state(f"a.{number}.b", number * 0.001)
            telemetry.commanded(QUOTA, said[number], pause_s, number * 0.001)

    paused = [calls_of(lambda n=n: say(range(n, n + 200), 60.0)) for n in range(0, 1_400, 200)]
    lifted = calls_of(lambda: say(range(999, 799, -1), 0.0))

    assert throttle.invalid == 400
    assert max(paused[2:]) < 1.2 * paused[1]
    assert lifted < 1.2 * paused[1]


def test_what_a_deadline_costs_does_not_grow_with_the_paused_subjects():
    """
    It is asked for in each turn that has nothing to send, whatever waits.
    """

    def calls_with(subjects):
        one = admission(throttle=(throttle := Throttle()))
        pause(throttle, ">", 60.0)
        one.offer(rows(" ".join(f"a{number}" for number in range(subjects))), 1.0, IDLE)
        one.expire(1.0)
        assert one.next_deadline(2.0) <= 60.0
        return calls_of(lambda: one.next_deadline(2.0))

    assert calls_with(1_000) < 2 * calls_with(10)


def test_i7_a_look_at_many_filters_is_as_one_at_few():
    """
    I7: of more filters than are looked for at once the answer is the same.
    """
    subjects = pa.array([f"a.{number}.b" for number in range(60)])
    throttle, few = Throttle(), Throttle()
    for number in range(0, 60, 2):
        throttle.command(command(f"a.{number}.*", 9.0), 0.0)
    throttle.command(command("a.4.>", 0.0), 1.0)
    few.command(command("a.*.b", 9.0), 0.0)

    assert throttle.paused(subjects, 2.0).to_pylist() == [n % 2 == 0 and n != 4 for n in range(60)]
    assert few.paused(subjects, 2.0).to_pylist() == [True] * 60
    assert throttle.paused(pa.array(["b", "a.1.b"]), 2.0) is None


def test_a_pause_lasts_for_a_day_at_most():
    """
    I7: a longer one is one of a day, until it is said again.
    """
    throttle = Throttle()
    data = b'{"type":"throttle_producer","request_id":1,"throttling_reason":0,"pause_for_millis":'
    receipt = throttle.answer(understand(data + b"9007199254740991}"), 0.0)

    assert receipt
    assert throttle.state("a", 0.0).until == 86_400.0


def test_i7_a_lift_is_not_forgotten_before_what_it_lifts(monkeypatch):
    """
    I7, B8: where there is no room for more, no subject is paused again by forgetting that it was
    lifted.
    """
    monkeypatch.setattr("pyspark_jetstream.outbox.throttling.throttle._MAX_COMMANDED", 3)
    one = Throttle()
    for filter, pause_s in (("a.*", 60.0), ("a.b", 0.0), ("c", 1.0)):
        one.command(command(filter, pause_s), 1.0)
    refused = one.answer(command("d", 1.0), 5.0)

    assert refused is None
    assert one.state("a.b", 5.0) is None
    assert one.state("a.c", 5.0) is not None
    assert one.answer(command("d", 1.0), 61.0)
