"""PIP-385 in a writer: what commands say, and what pauses explain (`test_throttle_walk`: which)."""

import json

import pytest

from pyspark_jetstream.outbox.throttling.throttle import REFUSALS, Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Active,
    Discover,
    Operators,
    Paused,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

QUOTA = Reason.TopicProduceQuotaExceeded
SERVER = Reason.BrokerProduceQuotaExceeded


def writer() -> Operators:
    return Operators("t", Producer(7, True), Throttle())


def command(subject: str, pause_s: float, reason: Reason = QUOTA, request_id: int = 1):
    return ThrottleProducer(request_id, reason, pause_s, subject)


# ── the wire ─────────────────────────────────────────────────────────────────────────────────


def test_b1_reasons():
    """B1: the five reasons with PIP-385's numbers; on the wire names, numbers are taken, too."""
    assert (json.loads(DISCOVER), understand(DISCOVER)) == ({"type": "discover"}, Discover())
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


WIRE = [
    (
        ThrottleProducer(42, QUOTA, 0.64, "orders.*", 7),
        {"type": "throttle_producer", "request_id": 42, "throttling_reason": QUOTA.name,
         "pause_for_millis": 640, "subject": "orders.*", "producer_id": 7},
    ),
    (Receipt(42, 7), {"type": "throttle_producer_receipt", "request_id": 42, "producer_id": 7}),
    (Active(2), {"type": "active", "commands": 2}),
    (
        Producer(7, True, ("orders.eu",), (Paused("orders.eu", QUOTA, 1.5, ">", "operator", 3),),
                 query="orders", host="worker-3"),
        {"type": "producer", "producer_id": 7, "subjects_sent": ["orders.eu"], "query": "orders",
         "feature_flags": {"supports_throttle_producer_commands": True}, "host": "worker-3",
         "throttled": [
             {"subject": "orders.eu", "throttling_reason": QUOTA.name, "pause_for_millis": 1500,
              "filter": ">", "source": "operator", "request_id": 3}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "on_wire"), WIRE, ids=lambda each: type(each).__name__)
def test_b3_messages_on_the_wire(said, on_wire):
    """B3: each message is the JSON of docs/overload.md, and comes back as it was."""
    assert json.loads(said.encode()) == on_wire
    assert understand(said.encode()) == said


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
            )
        ),
    ],
)
def test_b4_what_is_malformed_has_no_receipt_and_no_effect(data, caplog):
    """B4: no receipt, so that the controller falls back; it is logged, and nothing is paused."""
    operators = writer()
    throttle = operators.throttle

    assert operators.heard(data, 0.0) is None
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert not throttle.active(0.0)


def test_b4_unknown_fields_are_ignored():
    """B4: a later version's fields are no fault."""
    operators = writer()

    assert operators.heard(json.dumps(GOOD | {"colour": "red"}).encode(), 0.0)
    assert operators.throttle.pause("a", 0.5).reason is QUOTA


# ── what pauses explain ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("paused_s", "is_throttled"), [(79.0, False), (81.0, True)])
def test_b15_the_pause_is_the_error_above_four_fifths_of_the_time(paused_s, is_throttled):
    """B15: B/T = 0.79 is a timeout, 0.81 a `ProducerThrottledError` with all there is to know."""
    throttle = Throttle()
    throttle.table.command(command("a.*", paused_s, request_id=42), 0.0)
    error = throttle.error("a.b", 0.0, 100.0)

    assert (error is not None) == is_throttled
    if error is not None:
        assert (error.subject, error.subject_filter, error.request_id) == ("a.b", "a.*", 42)
        assert (error.reason, error.throttled_for) == (QUOTA.name, 81.0)


def test_b15_a_window_that_is_renewed_counts_as_one():
    """B15: a pause that is issued again each second is one pause; a lift ends it there."""
    throttle = Throttle()
    for second in range(90):
        throttle.table.command(command("a.*", 1.5, request_id=second), float(second))
    throttle.table.command(command("a.*", 0.0, request_id=90), 90.0)
    error = throttle.error("a.b", 0.0, 100.0)

    assert (error.throttled_for, error.request_id) == (90.0, 89)
    assert throttle.error("a.b", 0.0, 120.0) is None
    assert throttle.error("b", 0.0, 100.0) is None


def test_b15_a_word_without_a_pause_is_a_reason():
    """B6, B15: until a PubAck comes."""
    throttle = Throttle()
    throttle.table.command(command("a", 0.0, SERVER, 5), 0.0)
    error = throttle.error("a", 0.0, 9.0)
    throttle.table.acked()

    assert (error.reason, error.request_id, error.subject_filter) == (SERVER.name, 5, ">")
    assert throttle.error("a", 0.0, 9.0) is None


def test_b15_many_refusals_are_one_cause():
    """B15: a publish that waited from refusal to refusal was throttled."""
    for err_code, subject in ((10077, "a"), (10002, "b"), (10167, "a"), (10023, "b")):
        throttle, now = Throttle(), 0.0
        while now < 120.0:
            holds = err_code != 10167
            throttle.refusals.refuse(subject, (err_code, "full", holds), "S", now + 1.0, now)
            now += 1.0
        error = throttle.error("a", 0.0, 120.0)

        assert error.reason == REFUSALS[err_code].name
        assert error.throttled_for > 110.0


def test_b20_without_any_command_nothing_is_asked():
    """B20: a writer that never hears of the control subject looks at no subject."""
    throttle = Throttle()

    assert throttle.table.mask(None, 0.0) is throttle.refusals.mask(None, 0.0) is None
    assert throttle.pause("a", 0.0) is None
    assert throttle.error("a", 0.0, 100.0) is None
