"""Which rows are parked for a pause, and what is stored of them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import RowError
from pyspark_jetstream.outbox.deadletters import BEHIND, DeadLetters, notes, restore
from pyspark_jetstream.outbox.parking import Parking, Staying
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer

from ...kits.lanes import messages
from ...kits.targets import targets_of
from .test_deadletters import ROW, built, read

NOW = 100.0
STREAM = Target.parse({"name": "S", "subjects": [">"]})


def parking(known=(), room=lambda: True, target=STREAM, max_payload=1 << 20):
    letters = DeadLetters("P.q1.{subject}", "q1", 5, max_payload, suffix="")
    targets = targets_of(lambda subject: target)
    targets.of(pa.array(["a"]))
    return Parking(letters, targets, lambda place: f"7{place} then", known, room)


def throttled(*words):
    throttle = Throttle()
    for number, (subject, seconds, *reason) in enumerate(words):
        why = reason[0] if reason else Reason.TopicProduceQuotaExceeded
        throttle.command(ThrottleProducer(number, why, seconds, subject), NOW)
    return throttle


def rows(*subjects, **fields):
    made = messages(subjects)
    own = {"targets": pa.array([0] * len(made.distinct), pa.int32()), "ids": ids_of(len(made))}
    return replace(made, **own | fields)


def ids_of(count):
    return pa.array([f"i-{number}" for number in range(count)], pa.binary())


def parked(one, throttle, *subjects, **fields):
    """The subjects of the rows that are parked."""
    batch = rows(*subjects, **fields)
    mask = one.mask(batch, throttle, NOW)
    return [] if mask is None else [s for s, m in zip(subjects, mask.to_pylist(), strict=True) if m]


@pytest.mark.parametrize(
    ("words", "known", "expected"),
    [
        ((), (), []),
        ((("a", 5),), (), ["a", "a"]),
        ((("b", 5),), ("a",), ["a", "b", "a"]),
        ((), ("a",), ["a", "a"]),
        ((("a", 5), (">", 5, Reason.ConnectionPendingMessagesBreach)), (), []),
        ((("a", 5), ("a", 0)), (), []),
    ],
)
def test_b27_what_is_parked(words, known, expected):
    """
    B27: rows that operators pause by their subject, and those of subjects that have rows there.
    """
    assert parked(parking(known), throttled(*words), "a", "b", "a") == expected


def test_b27_what_is_parked_once_stays_so():
    """
    B27: rows follow those that were parked before, whatever becomes of the pause. One that was sent
    may be stored, and does not.
    """
    one, throttle = parking(), throttled(("a", 5))
    one.put_aside(rows("a"))
    throttle.command(ThrottleProducer(9, Reason.TopicProduceQuotaExceeded, 0, "a"), NOW)

    assert parked(one, throttle, "a", "b") == ["a"]
    sent = pa.array([99.0, None], pa.float64())
    assert parked(one, throttle, "a", "a", sent=sent) == ["a"]


def test_b27_rows_on_their_way_come_first():
    """
    B27: while rows are on their way, those of a subject that is paused then wait; when none is they
    are parked, and so are those that follow while the pause lasts.
    """
    one, throttle = parking(), throttled(("a", 5))
    one.note_wire(is_empty=False)
    assert parked(one, throttle, "a") == []
    assert not one.note_wire(is_empty=False)
    assert one.note_wire(is_empty=True) and not one.note_wire(is_empty=True)
    assert parked(one, throttle, "a") == ["a"]
    one.note_wire(is_empty=False)
    assert parked(one, throttle, "a", "b") == ["a"]
    assert not one.note_wire(is_empty=True)

    for over in (throttled(), throttled(("b", 5))):
        parked(one, throttle, "a")
        parked(one, over, "a")
        one.note_wire(is_empty=False)
        assert parked(one, throttle, "a") == [], "a is on its way again"
        one.note_wire(is_empty=True)


def test_b27_what_waits_to_go_again_comes_first():
    """
    B27: of a subject of which a row that was sent waits none is parked until the pause is over.
    """
    one, throttle = parking(), throttled(("a", 5))
    sent = pa.array([99.0, None, None], pa.float64())
    assert parked(one, throttle, "a", "a", "b", sent=sent) == []
    assert parked(one, throttle, "a") == []
    assert not one.note_wire(is_empty=True)
    assert parked(one, throttled(("b", 5)), "a") == []
    assert parked(one, throttle, "a") == ["a"]


def test_b27_a_full_stream_parks_what_has_to_follow_others():
    """
    B27: while there is no room rows of a paused subject wait; when the pause is over they follow
    those that are parked.
    """
    one = parking(["a"], room=lambda: False)

    assert parked(one, throttled(("a", 5), ("b", 5)), "a", "b") == []
    assert parked(one, throttled(), "a", "b") == ["a"]


@pytest.mark.parametrize(
    "config",
    [{"max_msgs_per_subject": 1}, {"allow_rollup_hdrs": True}, {"subject_transform": {"src": "a"}}],
)
def test_b27_streams_whose_rows_are_not_parked(config):
    """
    B27: those of which nobody could say later whether they have a row.
    """
    target = Target.parse({"name": "S", "subjects": [">"]} | config)

    assert parked(parking(target=target), throttled(("a", 5)), "a") == []


def test_b27_a_row_that_is_too_large():
    """
    B27: it waits, and those behind it; where rows before it are parked it is an error.
    """
    large = rows("a", "b")
    one, throttle = parking(max_payload=4096), throttled(("a", 5))

    assert one.mask(large, throttle, NOW).to_pylist() == [False, False]
    assert parked(one, throttle, "a") == []
    with pytest.raises(RowError, match="throttle parked --drain"):
        parking(["a"], max_payload=4096).mask(large, throttle, NOW)


@pytest.mark.parametrize(
    "line", [b"X: " + b"x" * 63_000, b"Nats-Expected-Last-Subject-Sequence: 7"], ids=["large", "7"]
)
def test_b27_rows_whose_headers_keep_them(line):
    """
    B27: a letter has more headers than its row, and a stream takes 64 KiB of them. What stands on a
    subject now, which a row expects, may not stand there later: it could never go out.
    """
    lines = [line + b"\r\nNats-Msg-Id: i-0\r\n", b"Nats-Msg-Id: i-1\r\n"]
    batch = rows("a", "b", lines=pa.array(lines, pa.binary()))
    mask = parking().mask(batch, throttled(("a", 5), ("b", 5)), NOW)

    assert mask.to_pylist() == [False, True]


def test_b27_what_is_stored_of_a_row():
    """
    B27: all that the row is, and where its stream ended before its task. Rows for several streams,
    or of several queries, may have one id, and are each stored.
    """
    batch = replace(built([ROW]), targets=pa.array([0], pa.int32()))
    stored = parking().put_aside(batch)
    headers = read(stored)

    assert stored.subject.to_pylist() == [b"P.q1.a.b"]
    assert stored.ids.to_pylist() == [b"q1.S.i-7"]
    (was,) = restore(headers).to_pylist()
    assert (was["subject"], was["headers"], was["msg_id"]) == ("a.b", [("X", ["1", "2"])], "i-7")
    assert [each.to_pylist() for each in notes(headers)] == [[5], ["70 then"]]
    assert BEHIND not in dict(was["headers"])


def test_b27_what_a_drain_leaves():
    """
    B27: rows of paused subjects, and all behind them, whatever becomes of the pause.
    """
    one = Staying()

    assert parked(one, throttled(), "a", "b") == []
    assert parked(one, throttled(("a", 5)), "a", "b", "a") == ["a", "a"]
    assert parked(one, throttled(), "a", "b") == ["a"]
    assert one.put_aside(rows("a", "b")) is None
    assert [each.to_pylist() for each in one.rows] == [[0, 1]]
