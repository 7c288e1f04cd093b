"""Owners: what metadata says, and which sights of another client are an error."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.readstream.pinned.ownership import ConsumerView, Pins, foreign_client

CALM = ConsumerView(
    pinned="", stranger=False, waiting=0, waiting_for_s=0.0, settles=False, gap_s=10.0,
    timeout_s=120.0, age_s=600.0, patience_s=35.0,
)  # fmt: skip


def test_metadata_says_who_it_was():
    """
    What a run writes into the metadata of a consumer is read back, beside the server's own; other
    consumers have no owner.
    """
    owner = Owner("q1", "host", 42, "_INBOX.x")

    assert Owner.of({"metadata": {"_nats.ver": "2.15.1"} | owner.metadata}) == owner
    assert str(owner) == "query q1 (host host, process 42)"
    named = replace(owner, name="alerts\n")
    assert Owner.of({"metadata": named.metadata}) == named
    assert str(named) == "query q1 'alerts\\n' (host host, process 42)"
    for config in ({}, {"metadata": None}, {"metadata": {"_nats.ver": "2.15.1"}}):
        assert Owner.of(config) is None
    odd = Owner.of({"metadata": owner.metadata | {"pyspark-jetstream.pid": "²"}})
    assert odd is not None and odd.pid == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, None),
        ({"gap_s": 600.0}, None),
        ({"pinned": "x"}, None),
        ({"pinned": "x", "gap_s": 600.0}, None),
        ({"pinned": "x", "stranger": True}, None),
        ({"pinned": "x", "stranger": True, "gap_s": 600.0}, "id 'x'.*600s passed.*lasts 120s"),
        ({"pinned": "x", "stranger": True, "waiting": 1}, "id 'x'.*attempts has. let no other"),
        ({"pinned": "x", "stranger": True, "settles": True}, "id 'x'.*let no other"),
        ({"pinned": "x", "stranger": True, "gap_s": 600.0, "age_s": 30.0}, None),
        ({"waiting": 2, "waiting_for_s": 20.0}, None),
        ({"waiting": 2, "waiting_for_s": 36.0}, "2 pulls.*last 36s.*120s, time between.*10s"),
    ],
    ids=["calm", "lapse", "ours", "ours-lapse", "visitor", "stranger-lapse", "stranger-waits",
         "stranger-settles", "young-run", "leftover", "waits-on"],
)  # fmt: skip
def test_foreign_client(changes, error):
    """
    Alone a pin may lapse, and a visitor may come and go; another client that stays, or takes what
    it acknowledges, is an error with both times and the way out. What may be an attempt of the run
    before is none.
    """
    why = foreign_client(replace(CALM, **changes))

    if error is None:
        assert why is None
    else:
        assert why is not None
        assert re.search(error, why), why
        assert "option consumer" in why


def test_whose_a_pin_is():
    """
    A pin is an attempt's if it was announced; without announcements, and of a partition that is
    none, nobody can tell.
    """
    pins = Pins({("S", "c-0"): 0})
    pins.add_announcement({"partition": 0, "pinned": "x"})
    assert pins.is_announced({"partition": 0, "pin": "x"}) is None, "not known to be heard"
    pins.add_announcement({"hello": True})

    assert pins.is_announced({"partition": 0, "pin": "x"}) is True
    assert pins.is_announced({"partition": 0, "pin": "y"}) is False
    for question in ({}, {"partition": 1, "pin": "x"}, {"partition": "0", "pin": "x"}):
        assert pins.is_announced(question) is None
    pins.break_off()
    assert pins.is_announced({"partition": 0, "pin": "y"}) is None
