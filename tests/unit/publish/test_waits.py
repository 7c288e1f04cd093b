"""What a write waits for, and how long: the publisher against a server that gives it nothing."""

import json
import logging
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import (
    JetStreamError,
    NotConnectedError,
    ProducerThrottledError,
    PublishTimeoutError,
    QueueTimeoutError,
)
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.outbox.throttling.throttle import Refusals
from pyspark_jetstream.publish import telemetry
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.lanes.answers import Fate, Outcome, Refusal, classify
from pyspark_jetstream.publish.pauses import WriterPauses

from ...kits.model import ModelStream, Sent, error
from ...kits.options import FIXED, connection_of, rules_of, sink_of, targets_of
from ...kits.world import World, block, command, is_row

START_S = 100.0
"""When each write begins."""


def world_of(monkeypatch: pytest.MonkeyPatch, **options: object) -> World:
    """Two blocks to be written; nothing breaks by itself."""
    settings: dict[str, object] = {"publish_timeout_s": 20.0}
    blocks = [block("ab" * 20, 0), block("ab" * 20, 40)]
    world = World(monkeypatch, blocks, random.Random(1), **(settings | options))
    return world


SHEDDABLE = frozenset({Priority.NON_CRITICAL})


def urgent(subjects: str, first: int) -> Messages:
    """Rows that may all be shed."""
    rows = range(first, first + len(subjects))
    found = block(subjects, first, [b"%d." % row for row in rows])
    ids = pa.array([b"t-%d" % row for row in rows], pa.binary())
    return replace(
        found, priorities=pa.array([Priority.NON_CRITICAL] * len(rows), pa.int8()), ids=ids
    )


def shedding(
    monkeypatch: pytest.MonkeyPatch, pushed_back: bool = True, **options: object
) -> tuple[World, ModelStream]:
    """A server that may have pushed back, and rows that may all be shed."""
    blocks = [urgent("abcd" * 25, first) for first in (0, 100, 200)]
    settings: dict[str, object] = {
        **FIXED,
        "max_in_flight": 7,
        "publish_timeout_s": 20.0,
        "rules": rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=1e9),
    }
    world = World(monkeypatch, blocks, random.Random(1), **(settings | options))
    for place in (0, 1) if pushed_back else ():
        world.publisher.admission.overload.pushed_back(place, 100.0)
    return world, world.elsewhere


def silent(world: World) -> None:
    """Nothing that is sent arrives."""
    world.net.on_sent = lambda each: False


def refusing(status: int, code: int, err_code: int) -> Callable[[World], None]:
    """The server says this, whatever comes."""

    def refuse(world: World) -> None:
        for one in world.net.streams:
            one.answers = lambda sent, one=one: (
                one.refused(sent, status, err_code) if status
                else one.fails(sent, error(code, err_code))
            )  # fmt: skip

    return refuse


def paused(world: World) -> None:
    """An operator pauses everything, and never comes back."""
    world.net.commands.append((START_S, command(1, ">", 1e6)))


def gone(world: World) -> None:
    """The connection breaks, and no server is there any more."""

    def check() -> None:
        if world.clock.now > START_S:
            raise NotConnectedError("model", "gone")

    world.net.check_up = check  # type: ignore[method-assign]
    world.net.on_sent = lambda each: False


@pytest.mark.parametrize(
    ("happens", "expected", "max_s"),
    [
        (silent, PublishTimeoutError, 20.0),
        (refusing(503, 0, 0), PublishTimeoutError, 20.0),
        (refusing(429, 429, 10167), (ProducerThrottledError, PublishTimeoutError), 20.0),
        (refusing(0, 503, 10077), ProducerThrottledError, 20.0),
        (refusing(0, 503, 10023), (ProducerThrottledError, PublishTimeoutError), 20.0),
        (refusing(0, 400, 10002), (ProducerThrottledError, PublishTimeoutError), 20.0),
        (paused, ProducerThrottledError, 53.0),
        (gone, NotConnectedError, 20.0),
    ],
    ids=["silence", "no-stream", "429", "limit", "resources", "account", "pause", "gone"],
)
def test_i8_every_wait_ends_with_an_error_that_says_why(monkeypatch, happens, expected, max_s):
    """I8: whatever a write waits for has a deadline and a typed error."""
    world = world_of(monkeypatch, rules=rules_of(throttle_max_wait_s=53.0))
    happens(world)

    with pytest.raises(expected) as raised:
        world.run()
    assert isinstance(raised.value, JetStreamError)
    assert START_S + 5 < world.clock.now < START_S + max_s + 5


@pytest.mark.parametrize("policy", ["block", "drop"])
def test_i8_a_row_that_may_not_be_shed_fails_after_queue_timeout(monkeypatch, policy):
    """I8, A15: a row that nobody has sent waits for `queueTimeout` at most."""
    rules = rules_of(queue_timeout_s=5.0, sheddable=SHEDDABLE if policy == "drop" else frozenset())
    world = world_of(monkeypatch, **FIXED, max_in_flight=2, rules=rules)
    world.supply.blocks.pop()
    silent(world)

    with pytest.raises(QueueTimeoutError, match="not sent within queueTimeout"):
        world.run()
    assert world.clock.now < START_S + 5 + 3


@pytest.mark.parametrize(
    ("from_s", "expected"), [(0, ProducerThrottledError), (9, PublishTimeoutError)]
)
def test_b15_refusals_without_end_are_a_pause_or_a_timeout(monkeypatch, from_s, expected):
    """A15, B15: a row that was sent has `publishTimeout`; 0.8 of it refused, it was throttled."""
    rules = rules_of(queue_timeout_s=5.0)
    world = World(
        monkeypatch, [block("a", 0)], random.Random(1), publish_timeout_s=30.0, rules=rules
    )
    stream = world.stream
    stream.answers = lambda sent: (
        stream.fails(sent, error(503, 10077)) if stream.now >= START_S + from_s else []
    )

    with pytest.raises(expected) as raised:
        world.run()
    assert type(raised.value) is expected
    assert START_S + 30 <= world.clock.now < START_S + 31


def test_b14_a_row_that_may_be_stored_is_not_given_up(monkeypatch, caplog):
    """B14, B16, A28: paused for too long it fails its write, and is no dead letter."""
    caplog.set_level(logging.WARNING, "pyspark_jetstream")
    rules = rules_of(throttle_max_wait_s=15.0, buries_paused=True)
    blocks = [block("b", 0), block("a", 1)]
    world = World(monkeypatch, blocks, random.Random(1), rules=rules, ack_timeout_s=1.0)
    world.net.on_sent = lambda each: each.subject != "b"
    world.net.commands.append((START_S + 0.5, command(7, "b", 60.0)))

    with pytest.raises(ProducerThrottledError) as raised:
        world.run()
    assert raised.value.request_id == 7
    assert START_S + 15 <= world.clock.now < START_S + 15.1
    assert re.search("1 rows wait; an operator paused 'b'", caplog.text)
    assert world.telemetry.snapshot().total("jetstream_publish_queue_total") == (1,)


def test_a13_what_may_be_stored_is_not_given_up(monkeypatch):
    """A13: a row that got no answer once fails its write; what was refused is a dead letter."""
    world, dead = shedding(monkeypatch, dead_letter_subject="dlq", ack_timeout_s=2.0)
    silent_once = [b"0."]
    world.net.on_sent = lambda each: each.data not in silent_once or silent_once.clear()
    for stream in world.net.streams:
        stream.full_until = math.inf

    with pytest.raises(JetStreamError, match="publish to 'a'"):
        world.run()
    assert START_S + 15 <= world.clock.now < START_S + 21
    assert {each.headers["Jetstream-Sink-Reason"] for each in dead.messages} >= {"PublishTimeout"}
    assert b"0." not in {each.data for each in dead.messages}


@pytest.mark.parametrize("is_full", [False, True])
def test_i8_a_dead_letter_that_is_not_stored_fails_the_task(monkeypatch, is_full):
    """I8, A22: its deadline is `publishTimeout`; what it says is not kept for ever."""
    world, dead = shedding(monkeypatch, dead_letter_subject="dlq")
    dead.full_until = math.inf if is_full else 0.0
    world.net.on_sent = lambda each: is_full or is_row(each)

    with pytest.raises(PublishTimeoutError, match="dlq"):
        world.run()
    assert world.clock.now < START_S + 21
    assert len(world.publisher.lanes.letters.tally.refusals) <= 1


def test_a22_dead_letters_have_a_window_of_their_own(monkeypatch):
    """A22: 64 without a PubAck at most; refused ones go again, and each is stored once."""
    world, dead = shedding(monkeypatch, dead_letter_subject="dlq")
    dead.full_until = START_S + 3
    net, poll, maximum = world.net, world.net.poll, 0

    def watched() -> bool:
        nonlocal maximum
        maximum = max(maximum, world.publisher.lanes.letters.unanswered)
        return poll()

    net.poll = watched  # type: ignore[method-assign]
    counts = world.run()
    letters = [int(each.data.split(b".")[0]) for each in dead.messages]

    assert 7 < maximum <= 64
    assert len(dead.heard) > len(letters) == len(set(letters)) == counts.dead_letters > 0
    assert sorted([*world.rows(), *letters]) == list(range(300))


def test_a27_reports_and_receipts_pass_a_full_window(monkeypatch):
    """A27: while nothing is answered reports go out in time, and receipts at once."""
    monkeypatch.setattr(telemetry, "REPORT_S", 0.5)
    world = world_of(monkeypatch, **FIXED, max_in_flight=1, metrics_subject="m")
    net, receipts, receipt = world.net, [], world.net.receipt
    net.on_sent = lambda each: not is_row(each) or world.clock.now >= START_S + 10
    net.commands += [(START_S + 3, command(1, "b", 1.0)), (START_S + 7, command(2, "a", 1.0))]
    reports = []

    def noted(each: Sent) -> None:
        receipts.append(world.clock.now)
        receipt(each)

    net.receipt = noted  # type: ignore[method-assign]
    publish = world.elsewhere.publish
    world.elsewhere.publish = lambda sent: (reports.append(world.clock.now), publish(sent))[1]  # type: ignore[method-assign]
    counts = world.run()

    assert counts.acked == 80
    assert len([at for at in reports if at < START_S + 10]) >= 18
    assert [round(at - START_S, 1) for at in receipts] == [3.0, 7.0]


def test_a28_a_write_that_stands_still_says_so(monkeypatch, caplog):
    """A28: one warning in ten seconds, with what waits for what, and when the write fails."""
    caplog.set_level(logging.WARNING, "pyspark_jetstream")
    world = world_of(monkeypatch, **FIXED, max_in_flight=7, publish_timeout_s=45.0)
    silent(world)
    world.net.commands.append((START_S + 5, command(1, "b", 60.0)))

    with pytest.raises(PublishTimeoutError):
        world.run()
    said = [each.message for each in caplog.records if "nothing stored" in each.message]
    assert len(said) == 4
    assert not re.search("[<>]", "".join(said)), "no repr"
    assert re.search(r"\d+ rows wait; an operator paused 'b'", said[0])
    assert "(TopicProduceQuotaExceeded, request 1). That ends in 55.0s, unless" in said[0]
    assert "`pyspark-jetstream throttle lift --subject b --servers nats://model` ends it" in said[0]
    assert "4 publishes have no PubAck (window 7): no PubAck within ack" in said[0]
    times = [re.findall(r"stored for (\d+)s.* fails in (\d+)s, unless", each) for each in said]
    assert times == [[("10", "35")], [("20", "25")], [("30", "15")], [("40", "5")]]
    assert all("is stored by then (publishTimeout, or a shorter" in each for each in said)


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (
            lambda world: world.net.commands.append((START_S, command(9, ">", 60.0, reason=4))),
            r"80 rows wait; an operator paused the whole writer"
            r" \(BrokerProduceQuotaExceeded, request 9\)\. .* lift --subject '>'"
            " --reason BrokerProduceQuotaExceeded --servers nats://model` ends it",
        ),
        (
            refusing(0, 503, 10077),
            r"last refusal: publish to '[ab]': stream 'ab': .*\(err_code 10077\);"
            r" the stream is full: raise its limit",
        ),
    ],
    ids=["a whole writer", "a full stream"],
)
def test_what_holds_rows_back_is_said_with_what_ends_it(monkeypatch, caplog, happens, says):
    """A28: each of an operator's pause of the writer, an operator's rate, and a full stream."""
    caplog.set_level(logging.WARNING, "pyspark_jetstream")
    rules = rules_of(throttle_max_wait_s=15.0)
    world = world_of(monkeypatch, **FIXED, max_in_flight=7, rules=rules)
    happens(world)

    with pytest.raises(JetStreamError):
        world.run()
    said = [each.message for each in caplog.records if "nothing stored" in each.message]
    assert re.search(says, said[0]), said


@pytest.mark.parametrize("pause_s", [25.0, 5.0])
def test_rows_that_are_stored_again_are_said_once(monkeypatch, caplog, pause_s):
    """A28: after a stand-still that was said, and after no other."""
    caplog.set_level(logging.WARNING, "pyspark_jetstream")
    world = world_of(monkeypatch, **FIXED, max_in_flight=7)
    world.net.commands.append((START_S, command(1, ">", pause_s, reason=4)))
    world.run()

    said = [each.message for each in caplog.records]
    assert len([each for each in said if "nothing stored" in each]) == (2 if pause_s > 10 else 0)
    again = [each for each in said if each.startswith("rows are stored again")]
    assert len(again) == (1 if pause_s > 10 else 0)


@pytest.mark.parametrize("minimum", [4096, 1])
@pytest.mark.parametrize("ack_timeout_s", [2.0, 15.0])
def test_a12_silence_is_push_back(monkeypatch, minimum, ack_timeout_s):
    """A12, §6: no answer within `ackTimeout` is push-back; a server that is slow is none."""
    blocks = [urgent("ab" * 50, first) for first in (0, 100)]
    world = World(
        monkeypatch, blocks, random.Random(1), min_in_flight=minimum,
        max_in_flight=4, ack_timeout_s=ack_timeout_s,
        drops=True, rules=rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=1.0),
    )  # fmt: skip
    net, poll = world.net, world.net.poll
    net.poll = lambda: world.clock.now > START_S + 6 and poll()  # type: ignore[method-assign]
    counts = world.run()
    drops = world.telemetry.snapshot()
    (said,) = drops.total("jetstream_publish_outcomes_total", status="pushed_back")

    assert counts.acked + counts.dropped == 200
    assert (counts.dropped > 0, said > 0) == ((True, True) if ack_timeout_s < 6 else (False, False))


def asked_at(monkeypatch: pytest.MonkeyPatch, world: World) -> list[float]:
    """Gets the times at which the writer asks for a block."""
    times: list[float] = []
    ask = world.supply.ask
    monkeypatch.setattr(world.supply, "ask", lambda: (times.append(world.clock.now), ask()))
    return times


@pytest.mark.parametrize("are_sent", [False, True])
def test_b18_paused_rows_hold_up_the_others(monkeypatch, are_sent):
    """B18: when half of `bufferMemory` is full the iterator waits, be they sent and refused."""
    world = world_of(monkeypatch, rules=rules_of(held_bytes=1000, throttle_max_wait_s=1e9))
    if are_sent:
        world.stream.full_until = START_S + 5
    else:
        world.net.commands.append((START_S, command(1, "a", 5.0)))
    asked = asked_at(monkeypatch, world)
    counts = world.run()

    assert counts.acked == 80
    assert len(asked) == 3
    assert asked[1 + are_sent] - START_S >= 5.0


def test_i6_other_subjects_take_no_longer(monkeypatch):
    """I6: rows of subjects that are not paused go out as fast as without the pause."""
    took = {}
    for pause_s in (0.0, 60.0):
        rng = random.Random(1)
        blocks = [block("ab" * 200, first) for first in range(0, 4000, 400)]
        world = World(monkeypatch, blocks, rng, **FIXED, max_in_flight=100)
        world.supply.rng = random.Random(2)
        world.net.commands.append((START_S, command(1, "a", pause_s)))
        counts = world.run()
        sent = world.net.first_sent
        took[pause_s] = max(at for row, at in sent.items() if row % 2) - START_S
        if pause_s:  # but those that were on the wire when it came
            paused_out = sorted(at - START_S for row, at in sent.items() if row % 2 == 0)

        assert counts.acked == 4000
    assert took[60.0] < 1.2 * took[0.0] < 30.0
    assert paused_out[100] >= 60.0


def test_a_full_queue_takes_no_rows(monkeypatch):
    """A9: Spark's iterator waits for room."""
    rules = rules_of(queue_size=20)
    world = world_of(monkeypatch, **FIXED, max_in_flight=1, ack_timeout_s=15.0, rules=rules)
    poll = world.net.poll
    world.net.poll = lambda: world.clock.now > START_S + 6 and poll()  # type: ignore[method-assign]
    asked = asked_at(monkeypatch, world)
    counts = world.run()

    assert counts.acked == 80
    assert len([at for at in asked if at < START_S + 6]) < 3


def test_i10_a_write_leaves_no_subscription(monkeypatch):
    """I10: the connection serves the next task of the worker, which hears nothing of this one."""
    world = world_of(monkeypatch)
    ended: list[int] = []
    monkeypatch.setattr(world.net, "unsubscribe", ended.append)
    world.run()

    assert sorted(ended) == sorted(world.net.subscriptions.values())
    assert len(ended) == 3


def test_rows_that_are_stored_take_no_time(monkeypatch):
    """An attempt that finds thousands of rows stored looks at the next thousand at once."""
    world = World(
        monkeypatch, [block("ab" * 2500, 0)], random.Random(1), is_checked=True,
    )  # fmt: skip
    world.stored_before = lambda each: pa.array([True] * len(each))

    assert world.run().rows == 5000
    assert world.clock.now < START_S + 5


def test_the_last_refusal_is_the_last(monkeypatch):
    """What is said is what the server answered last, however many subjects were refused."""
    monkeypatch.setattr(f"{Refusals.__module__}._MAX_WAITING", 2)
    world = world_of(monkeypatch)
    one, said = world.publisher.pauses, []
    for subject, detail in (("a", "first"), ("b", "second"), ("a", "third"), ("c", "fourth")):
        one.refuse(Refusal(subject, Outcome(Fate.OVERLOADED, detail, 10167), 0.0), "", START_S)
        (line,) = one.reasons([], START_S + 60)
        said.append(line)

    words = ("first", "second", "third", "fourth")
    assert [word in line for word, line in zip(words, said, strict=True)] == [True] * 4


def test_a_refusal_of_an_hour_ago_is_no_last_answer(monkeypatch):
    """A row that gets no PubAck later is not told to wait for room."""
    one = world_of(monkeypatch).publisher.pauses
    one.refuse(Refusal("a", Outcome(Fate.LIMITED, "full", 10077), START_S), "", START_S)
    late = PublishTimeoutError("a", "row 7: no PubAck within ackTimeout")

    assert "last answer: full" in str(one.explained(late, START_S - 20, START_S + 5))
    assert one.explained(late, START_S + 3_580, START_S + 3_600).err_code == 0


PART = "maximum messages per subject exceeded"


@pytest.mark.parametrize(
    ("streams", "err_code", "detail", "sheddable", "waits"),
    [
        ("S", 10077, "maximum messages exceeded", (), False),
        ("S", 10002, "resource limits exceeded for account", (), False),
        ("S", 10077, PART, (), True),
        ("ST", 10077, "maximum messages exceeded", (), True),
        ("S", 10077, "maximum messages exceeded", SHEDDABLE, True),
        ("S", 10167, "too many requests", (), False),
    ],
)
def test_where_no_row_finds_room_no_subject_waits_apart(
    streams, err_code, detail, sheddable, waits
):
    """Their lane tries again by itself; where there are others, or rows may be shed, they wait."""
    known = {f"{s}.a": Target.parse({"name": s, "subjects": [f"{s}.>"]}) for s in streams}
    targets = targets_of(known.get)
    targets.of(pa.array([*known]))
    rules = rules_of(sheddable=frozenset(sheddable))
    context = WriteContext(sink_of(connection_of("nats://model"), rules=rules), targets)
    one = WriterPauses(context)
    outcome = classify(0, "", json.dumps({"error": error(503, err_code, detail)}).encode())

    assert one.refuse(Refusal("S.a", outcome, START_S + 0.002), "S", START_S) == waits
    assert one.throttle.refusals.is_waiting("S.a", START_S + 0.1) == waits
    assert one.throttle.refusals.get("S.a").err_code == err_code
