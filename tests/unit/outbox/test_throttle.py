"""PIP-385 in a writer: what commands say, what is paused, and what that explains."""

from __future__ import annotations

import json
import math
import random

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.throttling.operators import Operators
from pyspark_jetstream.outbox.throttling.throttle import REFUSALS, PausedBy, Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Discover,
    Kept,
    Producer,
    Rates,
    Reason,
    Receipt,
    ThrottleProducer,
    new_producer_id,
    understand,
)

from ...kits.seeds import SEED

QUOTA = Reason.TopicProduceQuotaExceeded
GROUP = Reason.ResourceGroupProduceQuotaExceeded
PENDING = Reason.ConnectionPendingMessagesBreach
SERVER = Reason.BrokerProduceQuotaExceeded


def command(subject: str, pause_s: float, reason: Reason = QUOTA, request_id: int = 1):
    return ThrottleProducer(request_id, reason, pause_s, subject)


# ── the wire ─────────────────────────────────────────────────────────────────────────────────


def test_b1_reasons():
    """
    B1: the five reasons with PIP-385's numbers; on the wire names, numbers are taken, too.
    """
    assert [(reason.name, reason.value) for reason in Reason] == [
        ("TopicProduceQuotaExceeded", 0),
        ("ResourceGroupProduceQuotaExceeded", 1),
        ("ConnectionPendingMessagesBreach", 2),
        ("MessageBufferSizeBreach", 3),
        ("BrokerProduceQuotaExceeded", 4),
    ]
    for reason in Reason:
        assert json.loads(command("a", 1, reason).encode())["throttling_reason"] == reason.name
        for said in (reason.name, reason.value):
            data = {"type": "throttle_producer", "request_id": 1, "pause_for_millis": 5}
            found = understand(json.dumps(data | {"throttling_reason": said}).encode())
            assert found == ThrottleProducer(1, reason, 0.005)


@pytest.mark.parametrize(
    "said",
    [
        ThrottleProducer(42, QUOTA, 0.64, "orders.*", 7),
        ThrottleProducer(0, SERVER, 0.0),
        ThrottleProducer(43, QUOTA, 5.0, "orders.*", 7, Rates(12.5)),
        ThrottleProducer(44, SERVER, 5.0, ">", 7, Rates(0.0, 1048576.0)),
        Receipt(42, 7),
        Producer(7, True, ("orders.eu",)),
        Producer(7, False),
        Producer(7, True, query="orders", host="worker-3", streams=("ORDERS", "US")),
        Producer(
            7,
            True,
            supports_rate=True,
            rates=(
                Kept("orders.*", QUOTA, Rates(12.5), 812, 90_000, "msg"),
                Kept("orders.*", SERVER, Rates(0.0, 1e6)),
            ),
        ),
    ],
    ids=lambda said: type(said).__name__,
)
def test_b3_messages_are_what_they_were(said):
    """
    B3: each message names its type, and comes back as it was.
    """
    assert understand(said.encode()) == said
    assert "type" in json.loads(said.encode())


def test_b2_the_receipt_names_request_and_producer():
    """
    B2: the receipt echoes the request's id, and says which of many producers it is from.
    """
    throttle = Throttle(producer_id=7)
    receipt = throttle.answer(command("a", 1, request_id=42), 0.0)

    assert json.loads(receipt) == {
        "type": "throttle_producer_receipt",
        "request_id": 42,
        "producer_id": 7,
    }


GOOD = {
    "type": "throttle_producer",
    "request_id": 1,
    "throttling_reason": "TopicProduceQuotaExceeded",
    "pause_for_millis": 1000,
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"type":"stop"}',
        b"{}",
        Receipt(1, 2).encode(),
        *(
            json.dumps(GOOD | changes).encode()
            for changes in (
                {"throttling_reason": "Because"},
                {"throttling_reason": 5},
                {"throttling_reason": True},
                {"throttling_reason": None},
                {"pause_for_millis": -1},
                {"pause_for_millis": 0.5},
                {"pause_for_millis": "1"},
                {"pause_for_millis": 1 << 60},
                {"request_id": None},
                {"request_id": True},
                {"producer_id": "7"},
                {"subject": "a..b"},
                {"subject": "a.>.b"},
                {"subject": 5},
                {"publish_throttling_rate_in_msg": -1},
                {"publish_throttling_rate_in_msg": "1"},
                {"publish_throttling_rate_in_msg": True},
                {"publish_throttling_rate_in_byte": 1 << 60},
                {"publish_throttling_rate_in_byte": math.inf},
                {"publish_throttling_rate_in_byte": math.nan},
            )
        ),
    ],
)
def test_b4_what_is_malformed_has_no_receipt_and_no_effect(data):
    """
    B4: no receipt, so that the controller falls back; it is counted, and nothing is paused.
    """
    operators = Operators("t", 7, 0.0)
    throttle = operators.throttle

    assert operators.heard(data, 0.0) == (None, None)
    assert throttle.invalid == 1
    assert not throttle.active(0.0)


def test_b4_unknown_fields_are_ignored():
    """
    B4: a later version's fields are no fault.
    """
    throttle = Throttle()

    assert throttle.answer(understand(json.dumps(GOOD | {"colour": "red"})), 0.0)
    assert throttle.state("a", 0.5).reason is QUOTA


def test_b21_a_writer_answers_discovery():
    """
    B21: with its id, the feature flag, and 32 of its subjects.
    """
    sent = [f"orders.{i}" for i in range(99)]
    found = understand(Throttle(producer_id=7).answer(Discover(), 0.0, sent))

    assert found == Producer(7, True, tuple(sent[:32]), supports_rate=True)


def test_b2_a_command_for_another_producer_is_not_ours():
    """
    B2: no receipt, no pause, no fault.
    """
    throttle = Throttle(producer_id=7)
    other = ThrottleProducer(1, QUOTA, 9.0, producer_id=8)
    own = ThrottleProducer(1, QUOTA, 9.0, producer_id=7)

    assert throttle.answer(other, 0.0) is None
    assert (throttle.invalid, throttle.active(0.0)) == (0, False)
    assert throttle.answer(own, 0.0)
    assert throttle.active(0.0)


def test_producer_ids_are_exact_in_json():
    """
    53 bits, the same for the same attempt, another for another.
    """
    ids = {new_producer_id(("query", 3, 1, attempt)) for attempt in range(100)}

    assert len(ids) == 100
    assert max(ids) < 1 << 53
    assert new_producer_id(("query", 3, 1, 0)) in ids


# ── windows ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", [QUOTA, GROUP])
def test_b5_quotas_pause_the_matching_subjects_only(reason):
    """
    B5: other subjects keep flowing on the same connection.
    """
    throttle = Throttle()
    throttle.command(command("orders.*", 1.0, reason), 0.0)
    paused = throttle.paused(pa.array(["orders.eu", "orders.eu.x", "x", "orders.us"]), 0.5)

    assert paused.to_pylist() == [True, False, False, True]


@pytest.mark.parametrize("reason", list(Reason)[2:])
def test_b6_connection_reasons_with_a_pause_pause_the_writer(reason):
    """
    B6: whatever the filter.
    """
    throttle = Throttle()
    throttle.command(command("orders.*", 1.0, reason), 0.0)

    assert throttle.state("other", 0.5).filter == ">"
    assert throttle.state("other", 1.0) is None


@pytest.mark.parametrize("reason", list(Reason)[2:])
def test_b6_connection_reasons_without_a_pause_explain(reason):
    """
    B6: nothing is paused; a timeout before the next PubAck has this reason.
    """
    throttle = Throttle()
    receipt = throttle.answer(command("orders.*", 0, reason, 9), 0.0)
    error = throttle.error("a", 0.0, 10.0)
    informed = throttle.informed
    throttle.acked()

    assert receipt
    assert (informed, throttle.informed) == (True, False)
    assert not throttle.active(0.0)
    assert (error.reason, error.request_id) == (reason.name, 9)
    assert throttle.error("a", 0.0, 10.0) is None


def test_b7_a_pause_that_is_issued_again_is_one_pause():
    """
    B7: a controller repeats the remainder of each second; the subject stays paused throughout, and
    longer pauses are accepted as sent.
    """
    throttle = Throttle()
    for second in range(60):
        throttle.command(command("a", 1.0, request_id=second), second)
        assert throttle.state("a", second + 0.999)
    state = throttle.state("a", 59.5)
    throttle.command(command("b", 3600.0), 60.0)

    assert (state.since, state.until, state.request_id) == (0.0, 60.0, 59)
    assert throttle.throttled_s("a", 0.0, 100.0) == 60.0
    assert throttle.state("b", 3659.0)


@pytest.mark.parametrize(
    ("pause_s", "until"), [(60.0, 65.0), (2.0, 7.0), (0.0, 5.0)], ids=["longer", "shorter", "lift"]
)
def test_b8_a_new_command_replaces_the_window(pause_s, until):
    """
    B8: it extends, shortens or lifts the window of the same filter and reason.
    """
    throttle = Throttle()
    throttle.command(command("a.*", 30.0), 0.0)
    throttle.command(command("a.*", pause_s, request_id=2), 5.0)

    if pause_s:
        state = throttle.state("a.b", until - 0.001)
        assert (state.since, state.until, state.request_id) == (0.0, until, 2)
    assert throttle.state("a.b", until) is None
    assert throttle.throttled_s("a.b", 0.0, 100.0) == until


def test_b8_the_latest_word_about_a_subject_counts():
    """
    B8: a command for one subject replaces what one for many said about it, and the other way.
    """
    throttle = Throttle()
    throttle.command(command("a.*", 60.0), 0.0)
    throttle.command(command("a.b", 0.0), 1.0)
    lifted = throttle.paused(pa.array(["a.b", "a.c"]), 2.0).to_pylist()
    throttle.command(command("a.*", 60.0), 3.0)
    again = throttle.paused(pa.array(["a.b", "a.c"]), 4.0).to_pylist()

    assert lifted == [False, True]
    assert again == [True, True]
    assert throttle.throttled_s("a.c", 0.0, 10.0) == 10.0


def test_b8_reasons_and_sources_do_not_cancel_each_other():
    """
    B8: a subject is paused while any window is open; lifting one lifts no other.
    """
    throttle = Throttle()
    throttle.command(command("a", 10.0), 0.0)
    throttle.command(command("a", 20.0, GROUP), 0.0)
    first = throttle.state("a", 11.0)
    throttle.refused(10077, "a", 5.0, 12.0)
    throttle.command(command("a", 0.0, GROUP), 13.0)
    last = throttle.state("a", 16.9)

    assert (first.reason, first.until) == (GROUP, 20.0)
    assert (last.source, last.reason) == (PausedBy.SERVER, QUOTA)
    assert throttle.state("a", 17.0) is None
    assert throttle.throttled_s("a", 0.0, 100.0) == 17.0


def test_b8_a_short_refusal_does_not_shorten_an_operators_pause():
    """
    B8: the server's windows and an operator's are different ones, also for one reason.
    """
    throttle = Throttle()
    throttle.command(command("a", 60.0), 0.0)
    throttle.refused(10077, "a", 0.25, 1.0)

    assert throttle.state("a", 30.0).source is PausedBy.OPERATOR


def test_b9_the_state_of_a_subject():
    """
    B9: whether it is paused, why, since when and for how long.
    """
    throttle = Throttle()
    throttle.command(command("a.>", 2.5, request_id=42), 10.0)

    assert throttle.state("a.b.c", 11.0) == (PausedBy.OPERATOR, QUOTA, "a.>", 10.0, 12.5, 42)
    assert throttle.state("b", 11.0) is None


def test_b11_a_window_ends_by_itself():
    """
    B11: at the next look behind its end; the earliest end is when to look.
    """
    throttle = Throttle()
    idle = throttle.next_deadline(0.0)
    throttle.command(command("a", 2.0), 0.0)
    throttle.command(command("b", 3.0), 0.0)
    deadlines = [throttle.next_deadline(now) for now in (0.0, 2.0, 3.0)]

    assert idle == math.inf
    assert deadlines == [2.0, 3.0, math.inf]
    assert throttle.paused(pa.array(["a", "b"]), 2.0).to_pylist() == [False, True]
    assert throttle.paused(pa.array(["a", "b"]), 3.0) is None


def test_b12_what_a_receipt_says_is_in_force():
    """
    B12: when there is a receipt, and not before, the subject is paused; so is all that is asked for
    between it and the end.
    """
    throttle = Throttle(producer_id=7)
    before = throttle.paused(pa.array(["a"]), 1.0)
    receipt = throttle.answer(command("a", 2.0, request_id=3), 1.0)

    assert before is None
    assert understand(receipt) == Receipt(3, 7)
    assert throttle.paused(pa.array(["a"]), 1.0).to_pylist() == [True]


@pytest.mark.parametrize(("paused_s", "is_throttled"), [(79.0, False), (81.0, True)])
def test_b15_the_pause_is_the_error_above_four_fifths_of_the_time(paused_s, is_throttled):
    """
    B15: B/T = 0.79 is a timeout, 0.81 a `ProducerThrottledError` with all there is to know.
    """
    throttle = Throttle()
    throttle.command(command("a.*", paused_s, request_id=42), 0.0)
    error = throttle.error("a.b", 0.0, 100.0)

    assert (error is not None) == is_throttled
    if error is not None:
        assert (error.subject, error.subject_filter, error.request_id) == ("a.b", "a.*", 42)
        assert (error.reason, error.throttled_for) == (QUOTA.name, 81.0)


def test_b15_pauses_of_other_subjects_explain_nothing():
    """
    B15: what failed on a subject about which nothing was said is a timeout like any other.
    """
    throttle = Throttle()
    throttle.command(command("a", 60.0), 0.0)

    assert throttle.error("b", 0.0, 10.0) is None
    assert throttle.throttled_s("b", 0.0, 10.0) == 0.0


def test_b15_a_pause_that_another_word_ended_counts_until_then():
    """
    B15, B8: a subject that was lifted out of a longer pause was not paused for the rest of it.
    """
    throttle = Throttle()
    throttle.command(command("a.*", 60.0, request_id=1), 0.0)
    throttle.command(command("a.b", 0.0, request_id=2), 1.0)
    throttle.command(command("a.b", 5.0, request_id=3), 30.0)

    assert throttle.throttled_s("a.b", 0.0, 50.0) == 6.0
    assert throttle.throttled_s("a.c", 0.0, 50.0) == 50.0
    assert throttle.error("a.b", 0.0, 50.0) is None
    assert throttle.error("a.c", 0.0, 50.0).request_id == 1


def test_b15_overlapping_pauses_count_once():
    """
    B15: two reasons at the same time do not make twice the time.
    """
    throttle = Throttle()
    throttle.command(command("a", 50.0), 0.0)
    throttle.command(command(">", 50.0, GROUP), 20.0)

    assert throttle.throttled_s("a", 0.0, 100.0) == 70.0
    assert throttle.throttled_s("a", 10.0, 30.0) == 20.0
    assert throttle.error("a", 0.0, 100.0) is None


def test_b15_many_refusals_are_one_cause():
    """
    B15: a publish that waited from refusal to refusal until its time was over was throttled.
    """
    throttle = Throttle()
    now = 0.0
    while now < 120.0:
        throttle.refused(10077, "a", 0.95, now)
        now += 1.0
    error = throttle.error("a", 0.0, 120.0)

    assert error.reason == QUOTA.name
    assert error.throttled_for == pytest.approx(120 * 0.95)


def test_b16_is_throttled():
    """
    B16: of a subject, or of a writer if any of its subjects is.
    """
    throttle = Throttle()
    throttle.command(command("a.*", 1.0), 0.0)

    assert [*throttle.throttled(["a.b"], 0.5)]
    assert [*throttle.throttled(["x", "a.b"], 0.5)]
    assert not [*throttle.throttled(["x", "y"], 0.5)]
    assert not [*throttle.throttled(["a.b"], 1.0)]


def test_b20_without_any_command_nothing_is_asked():
    """
    B20: a writer that never hears of the control subject looks at no subject.
    """
    throttle = Throttle()

    assert throttle.paused(None, 0.0) is None
    assert throttle.state("a", 0.0) is None
    assert throttle.error("a", 0.0, 100.0) is None


# ── the server's refusals ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("err_code", "reason", "paused"),
    [
        (10077, QUOTA, [True, False]),
        (10002, GROUP, [True, True]),
        (10167, Reason.MessageBufferSizeBreach, [True, False]),
        (10210, Reason.MessageBufferSizeBreach, [True, False]),
        (10211, Reason.MessageBufferSizeBreach, [True, False]),
        (10023, SERVER, [True, True]),
        (10028, SERVER, [True, True]),
        (10047, SERVER, [True, True]),
    ],
)
def test_the_servers_refusals_speak_through_the_same_states(err_code, reason, paused):
    """
    overload.md §4.5: a limit and a full queue pause the subject, the rest the writer.
    """
    throttle = Throttle()
    throttle.refused(err_code, "s.a", 1.0, 0.0)

    assert throttle.paused(pa.array(["s.a", "s.b"]), 0.5).to_pylist() == paused
    assert throttle.state("s.a", 0.5)[:2] == (PausedBy.SERVER, reason)


def test_other_refusals_pause_nothing():
    """
    overload.md §6: what is no push-back is no pause.
    """
    throttle = Throttle()
    throttle.refused(10158, "a", 1.0, 0.0)

    assert not throttle.active(0.0)
    assert set(REFUSALS) == {10077, 10002, 10167, 10210, 10211, 10023, 10028, 10047}


def test_repr_shows_the_state():
    """
    The throttle says what is paused.
    """
    throttle = Throttle()
    throttle.command(command("a.*", 1.0), 0.0)

    assert repr(throttle) == "<Throttle operator TopicProduceQuotaExceeded: a.*>"
    assert repr(Throttle()) == "<Throttle nothing paused>"


@pytest.mark.parametrize("seed", range(SEED, SEED + 60))
def test_random_words_against_a_slow_model(seed):
    """
    Whatever is said in whatever order, the state of each subject is what a model says that keeps
    for each subject, source and reason the last word about it.
    """
    rng = random.Random(seed)
    throttle = Throttle()
    subjects = ["a.x", "a.y", "b.x", "b.y.z"]
    covers = {
        ">": subjects, "a.*": subjects[:2], "a.x": ["a.x"], "*.x": ["a.x", "b.x"],
        "b.>": subjects[2:], "b.y.z": ["b.y.z"],
    }  # fmt: skip
    until: dict[tuple[object, ...], float] = {}
    now = 0.0
    for _ in range(120):
        now += rng.choice([0.0, 0.25, 1.0, 4.0])
        pause_s = rng.choice([0.0, 0.5, 2.0, 8.0])
        if rng.random() < 0.7:
            reason = rng.choice(list(Reason))
            filter = rng.choice(list(covers))
            throttle.command(command(filter, pause_s, reason), now)
            about = covers[filter] if reason.is_quota else subjects
            source = PausedBy.OPERATOR
        else:
            subject = rng.choice(subjects)
            throttle.refused(10077, subject, pause_s, now)
            about, source, reason = [subject], PausedBy.SERVER, QUOTA
        for subject in about:
            until[subject, source, reason] = now + pause_s
        paused = throttle.paused(pa.array(subjects), now)
        mask = [False] * 4 if paused is None else paused.to_pylist()
        for subject, is_paused in zip(subjects, mask, strict=True):
            end = max((end for key, end in until.items() if key[0] == subject), default=now)
            state = throttle.state(subject, now)
            assert is_paused == (end > now) == (state is not None), seed
            assert state is None or state.until == end, seed
        assert any(throttle.throttled(subjects, now)) == any(mask), seed


def test_nothing_is_paused_when_the_longest_pause_is_lifted():
    """
    Then all is as if it never had been, at once; a pause that is still open counts.
    """
    throttle = Throttle()
    throttle.command(ThrottleProducer(1, Reason.TopicProduceQuotaExceeded, 2.0, "a"), 0.0)
    throttle.command(ThrottleProducer(2, Reason.TopicProduceQuotaExceeded, 60.0, "b"), 0.0)
    throttle.command(ThrottleProducer(3, Reason.TopicProduceQuotaExceeded, 0.0, "b"), 1.0)

    assert throttle.active(1.5)
    assert not throttle.active(2.5)
