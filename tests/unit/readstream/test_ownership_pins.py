"""Pins: what advisories and announcements together say of who is pinned."""

from __future__ import annotations

import pytest

from pyspark_jetstream.readstream.pinned.ownership import Pins


def event(kind, consumer="c-0", **fields):
    names = {
        "pinned": "consumer_group_pinned",
        "unpinned": "consumer_group_unpinned",
        "elected": "consumer_leader_elected",
    }
    return {
        "type": f"io.nats.jetstream.advisory.v1.{names[kind]}",
        "stream": "S",
        "consumer": consumer,
        "timestamp": "T",
        **fields,
    }


@pytest.fixture
def pins() -> Pins:
    pins = Pins({("S", "c-0"): 0, ("S", "c-1"): 1})
    pins.add_announcement({"hello": True})
    return pins


def test_an_attempt_s_pin_is_no_stranger_s(pins):
    """
    A pin that an attempt announces, before or after its advisory, is the query's own.
    """
    pins.add_announcement({"partition": 0, "pinned": "early"})
    pins.add_advisory(event("pinned", pinned_id="early"), 1.0)
    pins.add_advisory(event("pinned", pinned_id="late"), 2.0)
    pins.add_announcement({"partition": 0, "pinned": "late"})

    assert pins.strangers(100.0) == []
    assert pins.report(0)["pinned"] == "late"
    assert (pins.report(0)["pins"], pins.report(0)["strangers"]) == (2, 0)


def test_a_pin_that_nobody_announces_is_a_stranger_s(pins):
    """
    Two seconds after its advisory a pin without an announcement is a stranger's, reported once; one
    that is announced later still is taken back.
    """
    pins.add_advisory(event("pinned", "c-1", pinned_id="x"), 1.0)

    assert pins.strangers(2.9) == []
    assert not pins.is_stranger(1, "x")
    assert pins.strangers(3.1) == [(1, "x", 1)]
    assert pins.strangers(3.2) == []
    assert pins.is_stranger(1, "x") and not pins.is_stranger(0, "x")
    assert pins.report(1)["strangers"] == 1
    pins.add_announcement({"partition": 1, "pinned": "x"})
    assert not pins.is_stranger(1, "x") and pins.report(1)["strangers"] == 0


def test_a_client_that_takes_the_pin_each_second_is_said_once_a_minute(pins):
    """
    Of each partition one pin of a stranger is named a minute, with their number so far; all count.
    """
    said = []
    for second in range(100):
        for consumer in ("c-0", "c-1") if second % 2 else ("c-0",):
            pins.add_advisory(event("pinned", consumer, pinned_id=f"x{second}"), float(second))
        said += [(second, *each) for each in pins.strangers(float(second))]

    assert said == [(3, 0, "x0", 1), (4, 1, "x1", 1), (63, 0, "x60", 61), (64, 1, "x61", 31)]
    assert (pins.report(0)["strangers"], pins.report(1)["strangers"]) == (97, 48)
    assert pins.is_stranger(0, "x96"), "also one that is not named"


def test_nothing_is_judged_that_could_not_be_heard(pins):
    """
    Where announcements do not arrive, and for what came before the connection broke, no pin is
    called a stranger's.
    """
    pins.add_advisory(event("pinned", pinned_id="x"), 1.0)
    pins.break_off()
    assert pins.strangers(100.0) == []
    pins.add_advisory(event("pinned", pinned_id="y"), 101.0)
    assert pins.strangers(200.0) == []
    pins.add_announcement({"hello": True})

    assert pins.strangers(200.0) == [(0, "y", 1)]
    assert not pins.is_stranger(0, "")


def test_how_pins_end(pins):
    """
    Unpinning is counted by who did it: an attempt, an administrator, a timeout, a new leader.
    """
    lines = [
        pins.add_advisory(event("pinned", pinned_id="a"), 1.0),
        pins.add_advisory(event("unpinned", reason="timeout"), 2.0),
        pins.add_advisory(event("unpinned", reason="admin"), 3.0),
        pins.add_advisory(event("unpinned", reason="admin"), 3.0),
        pins.add_advisory(event("elected"), 3.0),
        pins.add_advisory(event("pinned", pinned_id="b"), 4.0),
        pins.add_advisory(event("elected"), 5.0),
    ]
    pins.add_announcement({"partition": 0, "unpin": True})

    assert pins.report(0) == {
        "pinned": None, "pinnedTs": "T", "pins": 2, "strangers": 0,
        "unpins": {"attempt": 1, "admin": 1, "timeout": 1, "leader": 1},
    }  # fmt: skip
    assert lines[0] == "pinned stream=S consumer=c-0 id=a"
    assert lines[1] == "unpinned stream=S consumer=c-0 id=a reason=timeout"
    assert lines[4] is None  # nobody was pinned
    assert lines[6] == "unpinned stream=S consumer=c-0 id=b reason=leader"


def test_the_server_s_own_word_counts(pins):
    """
    Who is pinned by CONSUMER.INFO is shown where advisories were missed; it judges nobody.
    """
    pins.set_pinned(0, "x", "T1")
    first = pins.report(0)
    pins.set_pinned(0, "", "0001-01-01T00:00:00Z")

    assert (first["pinned"], first["pinnedTs"], first["pins"]) == ("x", "T1", 0)
    assert (pins.report(0)["pinned"], pins.report(0)["pinnedTs"]) == (None, None)
    assert pins.strangers(100.0) == []


def test_others_are_none_of_our_business(pins):
    """
    Events of other consumers, of other kinds and notes of other partitions change nothing.
    """
    before = [pins.report(0), pins.report(1)]

    assert pins.add_advisory(event("pinned", "other", pinned_id="x"), 1.0) is None
    assert (
        pins.add_advisory({"type": "x.consumer_action", "stream": "S", "consumer": "c-0"}, 1.0)
        is None
    )
    pins.add_announcement({"partition": 7, "pinned": "x"})
    pins.add_announcement({})
    pins.add_announcement({"partition": [], "pinned": "x"})
    pins.add_announcement({"partition": {}, "unpin": True})

    assert [pins.report(0), pins.report(1)] == before
