"""Producers that keep rates, on the operator's side: what each is told, and when again."""

from __future__ import annotations

import pytest

from pyspark_jetstream.operations.pauses import LEASE_S, Pauses, Response
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Active,
    Kept,
    Producer,
    Rates,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

QUOTA, GROUP = Reason.TopicProduceQuotaExceeded, Reason.ResourceGroupProduceQuotaExceeded
PENDING = Reason.ConnectionPendingMessagesBreach
KEY = "a", QUOTA
NONE = Rates(0.0)


def word(number: int = 7, keeps: bool = True) -> bytes:
    """The first one of a producer."""
    return Producer(number, True, supports_rate=keeps).encode()


def waiting(number: int = 7, waiting_for: str = "msg") -> bytes:
    """It says for what rows wait."""
    rates = (Kept("a", QUOTA, NONE, 0, 0, waiting_for),)
    return Producer(number, True, supports_rate=True, rates=rates).encode()


def limited() -> Pauses:
    """An operator that limits one filter, and has asked who is there."""
    pauses = Pauses()
    pauses.limit("a", QUOTA, NONE)
    pauses.due(0.0)
    return pauses


def said(sends) -> list:
    return [understand(send.data) for send in sends if send.data != DISCOVER]


def begins(pauses: Pauses, number: int = 7, now: float = 0.0, keeps: bool = True) -> list:
    """A producer begins; all that it is told."""
    return said(pauses.receive_start(word(number, keeps=keeps), now))


def acknowledges(pauses: Pauses, commands, now: float) -> None:
    for each in commands:
        if isinstance(each, ThrottleProducer):
            data = Receipt(each.request_id, each.producer_id).encode()
            pauses.receive_reply(each.request_id, 0, data, now)


def waits(pauses: Pauses, number: int = 7, now: float = 0.0) -> None:
    """It says that rows wait, and waits for no answer."""
    assert pauses.receive_start(waiting(number), now) == []


def share(pauses: Pauses, now: float, *shares: float) -> list:
    """These are the shares of 7, 8, …; what is told."""
    by_id = {number: Rates(msgs) for number, msgs in enumerate(shares, 7)}
    return said(pauses.share({KEY: by_id}, now))


def test_b26_who_begins_is_told_to_wait_for_its_share():
    """
    B26: a rate of nothing comes before the answer, and no pause; where it says that rows wait, it
    has news, and its share is told at once.
    """
    pauses = limited()
    told = begins(pauses)
    pauses.news = False
    waits(pauses)
    has_news = pauses.news
    (command,) = share(pauses, 0.001, 40.0)

    assert told == [ThrottleProducer(1, QUOTA, LEASE_S, "a", 7, NONE), Active(1)]
    assert has_news
    assert command == ThrottleProducer(2, QUOTA, LEASE_S, "a", 7, Rates(40.0))


def test_b26_who_is_found_is_told_too():
    """
    B26: by discovery, as the limit begins.
    """
    pauses = limited()

    assert said(pauses.receive_reply(0, 0, word(), 0.0)) == [
        ThrottleProducer(1, QUOTA, LEASE_S, "a", 7, NONE)
    ]


def test_b26_a_share_is_told_when_it_is_another():
    """
    B26: by more than a tenth, and a tenth of a second later; each second in any case, so that it
    does not lapse.
    """
    pauses = limited()
    acknowledges(pauses, begins(pauses), 0.0)
    told = {}
    for now, msgs in (
        (0.0, 50.0), (0.05, 10.0), (0.1, 10.0), (0.3, 10.5), (1.09, 10.5), (1.11, 10.5),
        (1.2, 0.0), (1.22, 0.0), (1.23, 3.0), (1.25, 5.0), (1.4, 5.0),
    ):  # fmt: skip
        for command in share(pauses, now, msgs):
            acknowledges(pauses, [command], now)
            told[now] = command.rates.msgs

    assert told == {0.0: 50.0, 0.1: 10.0, 1.11: 10.5, 1.22: 0.0, 1.23: 3.0, 1.4: 5.0}


def test_b26_each_is_told_its_own():
    """
    B26: nobody else's, and nothing who has ended.
    """
    pauses = limited()
    for number in (7, 8):
        begins(pauses, number)
    told = share(pauses, 0.5, 30.0, 60.0, 10.0)

    assert {each.producer_id: each.rates for each in told} == {7: Rates(30.0), 8: Rates(60.0)}


def test_b26_a_receipt_has_time_until_the_next_command():
    """
    B22, B26: who is late by less than a second is not paused; who is later is told to pause its
    connection, for a second, and named if it does not do that either.
    """
    pauses = limited()
    acknowledges(pauses, begins(pauses), 0.0)
    commands = []
    for tick in range(1, 35):
        now = tick / 10
        if tick < 10:
            acknowledges(pauses, commands, now)
        new = share(pauses, now, 40.0 + tick % 2 * 20)
        commands = new + said(pauses.due(now))
        if new[1:]:
            fallback, since = new[1], now
            break
    late = pauses.silent
    pauses.due(since + 0.2)
    silent = pauses.silent
    acknowledges(pauses, [fallback], since + 0.3)
    whole = pauses.members[7].response
    acknowledges(pauses, share(pauses, since + 1.0, 40.0), since + 1.0)

    assert since == pytest.approx(2.0, abs=0.2)
    assert (fallback.reason, fallback.subject, fallback.pause_s) == (PENDING, ">", 1.0)
    assert (late, silent, whole) == ([], [7], Response.WHOLE)
    assert pauses.members[7].response is Response.ACKNOWLEDGED
    assert pauses.silent == []


def test_b26_who_has_acknowledged_is_not_silent():
    """
    B26: whatever it is told again and again.
    """
    pauses = limited()
    acknowledges(pauses, begins(pauses), 0.0)
    for tick in range(1, 100):
        commands = share(pauses, tick / 10, 40.0)
        assert len(commands) <= 1
        acknowledges(pauses, commands, tick / 10)

    assert pauses.silent == []
    assert pauses.members[7].response is Response.ACKNOWLEDGED


def test_b26_who_has_ended_has_news():
    """
    B26: the server says so, in place of the next receipt; its share is another's.
    """
    pauses = limited()
    begins(pauses)
    (command,) = share(pauses, 0.5, 40.0)
    pauses.news = False
    pauses.receive_reply(command.request_id, 503, b"", 0.5)

    assert pauses.news
    assert pauses.members == {}


@pytest.mark.parametrize(
    ("before", "after", "has_news"),
    [("", "msg", True), ("msg", "msg", False), ("msg", "byte", True), ("msg", "", True)],
)
def test_b26_what_is_news(before, after, has_news):
    """
    B26: that rows wait which did not, or for something else, or not any more.
    """
    pauses = limited()
    begins(pauses)
    pauses.receive_start(waiting(7, before), 0.1)
    pauses.news = False
    pauses.receive_reply(0, 0, waiting(7, after), 1.0)

    assert pauses.news is has_news


def test_b26_who_has_a_new_connection_is_told_its_share_again():
    """
    B7, B26: it may have lost it with the old one.
    """
    pauses = limited()
    begins(pauses)
    share(pauses, 0.5, 40.0)

    assert begins(pauses, now=0.6) == [
        ThrottleProducer(3, QUOTA, LEASE_S, "a", 7, Rates(40.0)), Active(1)
    ]  # fmt: skip


def test_b26_pauses_of_a_limit_are_for_those_who_keep_no_rate():
    """
    B26: a rate takes their place; a pause for another reason, or of another filter, is for all.
    """
    pauses = limited()
    for number in (7, 8):
        begins(pauses, number, keeps=number == 7)
    pauses.pause("a", QUOTA, 0.8)
    limit = said(pauses.due(0.0))
    pauses.pause("a", GROUP, 0.8)
    pauses.pause("b", QUOTA, 0.8)
    others = said(pauses.due(0.05))
    late = [each for each in begins(pauses, 9, 0.06) if isinstance(each, ThrottleProducer)]

    assert limit == [ThrottleProducer(2, QUOTA, 0.8, "a", 8)]
    assert sorted((each.producer_id, each.subject, each.reason) for each in others) == [
        (7, "a", GROUP), (7, "b", QUOTA), (8, "a", GROUP), (8, "b", QUOTA),
    ]  # fmt: skip
    assert [(each.subject, each.reason, each.rates) for each in late] == [
        ("a", GROUP, None), ("b", QUOTA, None), ("a", QUOTA, NONE),
    ]  # fmt: skip


def test_b26_limits_of_messages_and_bytes_are_one_command():
    """
    B26: nothing of both, at first.
    """
    pauses = limited()
    pauses.limit("a", QUOTA, Rates(nbytes=0.0))

    assert begins(pauses)[0].rates == Rates(0.0, 0.0)


def test_b26_the_end_of_a_limit_lifts():
    """
    B26: by a pause of 0, of what somebody was told who is there; who comes then is told nothing.
    """
    pauses = limited()
    pauses.limit("b", QUOTA, NONE)
    nobody = Pauses()
    nobody.limit("a", QUOTA, NONE)
    begins(pauses)
    keys = pauses.unlimit()
    lifts = [each for key in keys for each in said(pauses.lift(*key, 1.0))]

    assert nobody.unlimit() == []
    assert keys == [("a", QUOTA), ("b", QUOTA)]
    assert [(each.subject, each.pause_s, each.rates) for each in lifts] == [
        ("a", 0.0, None), ("b", 0.0, None),
    ]  # fmt: skip
    assert begins(pauses, 8, 1.0) == [Active(0)]
